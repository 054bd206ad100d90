# The first process in the bed's namespaces: control plane, DNS, and the nodes. Usage: init.sh NODES

set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
. "$here/lib/cgroup.sh"
. "$here/lib/node.sh"


prepare() {
	local resolv
	hostname bed
	ip link set lo up
	ip addr add $control_ip/32 dev lo
	ip addr add $api_service_ip/32 dev lo # so the service of the API server needs no kube-proxy
	ip addr add $dns_ip/32 dev lo
	sysctl -qw net.ipv4.ip_forward=1

	cg_mount
	# What must be fast and may be forgotten: etcd and the nodes' disks. It also spares the machine's disk their fsyncs.
	mkdir -p "$state"
	mount -t tmpfs -o mode=755 tmpfs "$state"

	resolv=$(readlink -m /etc/resolv.conf)
	cat >"$run/resolv.conf" <<-EOF
		nameserver $dns_ip
		search default.svc.cluster.local svc.cluster.local cluster.local
		options ndots:5
	EOF
	mount -t tmpfs -o mode=755 tmpfs /run
	mkdir -p "$(dirname "$resolv")"
	[[ -e $resolv ]] || : >"$resolv"
	mount --bind "$run/resolv.conf" "$resolv"
}

gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true

start_api() {
	export GOGC=400 GOMAXPROCS=2 NO_PROXY='*' # memory is cheaper here than processor time: collect garbage late

	spawn etcd "$bin/kmono" etcd --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
		--initial-cluster default=http://127.0.0.1:2380
	spawn kube-apiserver "$bin/kmono" kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
		--bind-address=0.0.0.0 --secure-port=443 --advertise-address=$control_ip \
		--service-cluster-ip-range=$service_net --allow-privileged=true \
		--tls-cert-file="$pki/kube-apiserver.crt" --tls-private-key-file="$pki/kube-apiserver.key" \
		--client-ca-file="$pki/ca.crt" --token-auth-file="$pki/tokens.csv" \
		--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
		--service-account-issuer=https://kubernetes.default.svc.cluster.local \
		--service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
		--kubelet-preferred-address-types=InternalIP \
		--kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
		--feature-gates=$gates --runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true
}

# start_the_rest starts what needs the API server.
start_the_rest() {
	until_true 120 api_answers || die "the API server is not ready: see $logs/kube-apiserver.log"
	touch "$run/api-ready" # the nodes wait for it
	note "API server ready"
	spawn kube-controller-manager "$bin/kmono" kube-controller-manager \
		--kubeconfig="$pki/controller-manager.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
		--service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
		--use-service-account-credentials=true --feature-gates=$gates --kube-api-qps=100 --kube-api-burst=200 \
		--node-monitor-period=2s --node-monitor-grace-period=20s
	spawn kube-scheduler "$bin/kmono" kube-scheduler --kubeconfig="$pki/scheduler.kubeconfig" \
		--bind-address=127.0.0.1 --leader-elect=false --kube-api-qps=100 --kube-api-burst=200 \
		--pod-max-in-unschedulable-pods-duration=10s
	sed -e "s|@PKI@|$pki|g" -e "s|@DNS_IP@|$dns_ip|g" -e "s|@CONTROL_IP@|$control_ip|g" "$here/conf/Corefile" >"$run/Corefile"
	spawn coredns "$bin/kmono" coredns -conf "$run/Corefile"
}

api_answers() { [[ $(curl -s --max-time 2 --cacert "$pki/ca.crt" "https://$control_ip/readyz") == ok ]]; }

prepare
start_api
starting=()
for i in $(seq "$1"); do
	node_start "node$i" &
	starting+=($!)
done
start_the_rest
wait "${starting[@]}"
note "control plane started"
touch "$run/control-plane-started"
# The first process must stay, and reaps whatever is left without a parent.
while :; do wait -n || sleep 1; done
