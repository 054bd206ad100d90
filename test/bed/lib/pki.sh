# Keys, certificates, tokens and kubeconfigs of the cluster.

make_pki() {
	local name
	mkdir -p "$pki"
	(
		cd "$pki"
		umask 077
		exec 2>"$logs/pki.log"
		openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
			-subj /CN=bed-ca -keyout ca.key -out ca.crt
		sign kube-apiserver /CN=kube-apiserver "extendedKeyUsage=serverAuth
subjectAltName=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$api_service_ip,IP:$control_ip"
		sign kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client extendedKeyUsage=clientAuth
		openssl genrsa -out sa.key 2048
		openssl rsa -in sa.key -pubout -out sa.pub
	) || die "openssl could not make the certificates: see $logs/pki.log"
	identity admin admin system:masters
	identity controller-manager system:kube-controller-manager
	identity scheduler system:kube-scheduler
	for name in $(seq -f node%g "$1"); do identity "$name" "system:node:$name" system:nodes; done
	identity coredns coredns system:masters
}

# sign NAME SUBJECT EXTENSIONS makes a key and a certificate of the cluster's authority.
sign() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -subj "$2" -out "$1.csr"
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" -extfile <(echo "$3")
}

# identity NAME USER [GROUP] gives the user a static token and a kubeconfig.
identity() {
	local token
	token=$(openssl rand -hex 16)
	echo "$token,$2,$2,\"${3:-system:authenticated}\"" >>"$pki/tokens.csv"
	kubeconfig "$token" >"$pki/$1.kubeconfig"
}

# kubeconfig TOKEN [NAMESPACE] prints one.
kubeconfig() {
	cat <<-EOF
		apiVersion: v1
		kind: Config
		clusters: [{name: bed, cluster: {server: "https://$control_ip", certificate-authority: "$pki/ca.crt"}}]
		users: [{name: user, user: {token: "$1"}}]
		contexts: [{name: bed, context: {cluster: bed, user: user, namespace: "${2:-default}"}}]
		current-context: bed
	EOF
}
