# Nodes. Each is like a machine of its own: network, mount, process, host name and control group namespaces, in which
# a containerd, a kubelet and the pods of that node live, and nothing else. So host ports and hostPath volumes belong
# to one node, and killing the node's first process kills the whole node at once, as a power cut would.
#
# node_start and node_stop run in the namespaces of the bed, node_main in those of the node.

node_exists() { [[ $1 =~ ^node[1-9][0-9]*$ && -f $pki/$1.kubeconfig ]]; }

# node_start NAME
node_start() {
	local node=$1 i=${1#node} ip
	ip=$(node_ip "$i")
	node_stop "$node" # what is left of one that died
	ip netns add "$node"
	ip link add "$node" type veth peer name eth0 netns "$node"
	ip link set "$node" up
	ip -n "$node" link set lo up
	ip -n "$node" addr add "$ip/32" dev eth0
	ip -n "$node" link set eth0 up
	ip -n "$node" route add default via $control_ip dev eth0 onlink
	ip route add "$ip/32" dev "$node" src $control_ip
	ip route add "$(pod_net "$i")" via "$ip" dev "$node" onlink src $control_ip
	cg_make "$node"
	(
		cg_join "$node"
		# shellcheck disable=SC2016
		spawn "$node" nsenter --net="/run/netns/$node" unshare --mount --uts --pid --cgroup --fork --mount-proc --kill-child \
			bash -c '. "$0/lib/common.sh"; . "$0/lib/cgroup.sh"; . "$0/lib/node.sh"; node_main "$1"' "$here" "$node"
	)
}

# node_stop NAME kills the node with all that runs on it. What it has on disk stays.
node_stop() {
	local node=$1 pid
	pid=$(cat "$run/pid/$node" 2>/dev/null) && kill -9 "$pid" 2>/dev/null &&
		until_true 30 node_gone "$pid"
	rm -f "$run/pid/$node"
	ip link del "$node" 2>/dev/null || true
	ip netns del "$node" 2>/dev/null || true
	until_true 10 cg_gone "$node" || say "control groups of $node are left behind"
}

api_ready() { [[ $(curl -s --max-time 2 --cacert "$pki/ca.crt" "https://$control_ip/readyz") == ok ]]; }

node_gone() { ! kill -0 "$1" 2>/dev/null; }

cg_gone() {
	cg_remove "$1"
	[[ -z $(for h in $(cg_hierarchies); do [[ ! -d $h/$1 ]] || echo "$h"; done) ]]
}

# fill FILE prints a file of conf/ with the values of this node.
fill() {
	sed -e "s|@STATE@|$dir|g" -e "s|@PKI@|$pki|g" -e "s|@NODE_IP@|$ip|g" -e "s|@POD_NET@|$(pod_net "$i")|g" \
		-e "s|@DNS_IP@|$dns_ip|g" -e "s|@CONTROL_IP@|$control_ip|g" "$here/conf/$1"
}

# node_main NAME is the first process of a node.
node_main() {
	set -euo pipefail
	local node=$1 i=${1#node} dir=$state/$1 ip
	ip=$(node_ip "$i")
	export GOGC=400 GOMAXPROCS=2 NO_PROXY='*' # memory is cheaper here than processor time: collect garbage late
	hostname "$node"
	mkdir -p "$dir"/{cni,kubelet,pki,pod-logs,var-lib,var-log}
	cg_mount
	mount -t tmpfs tmpfs /run
	# hostPath volumes below these two belong to the node alone, and survive its restart.
	mount --bind "$dir/var-lib" /var/lib
	mount --bind "$dir/var-log" /var/log
	sysctl -qw net.ipv4.ip_forward=1
	fill cni.conflist >"$dir/cni/10-bed.conflist"
	fill containerd.toml >"$dir/containerd.toml"
	fill kubelet.yaml >"$dir/kubelet.yaml"

	setsid containerd -c "$dir/containerd.toml" -l warn >>"$logs/$node-containerd.log" 2>&1 </dev/null &
	until_true 30 ctr -a "$dir/containerd.sock" version || die "$node: containerd does not answer"
	node_load "$node" "$images"/*.tar
	until_true 120 api_ready || die "$node: the API server is not ready"
	setsid "$bin/kmono" kubelet --config="$dir/kubelet.yaml" --kubeconfig="$pki/$node.kubeconfig" \
		--hostname-override="$node" --node-ip="$ip" --root-dir="$dir/kubelet" --cert-dir="$dir/pki" \
		--node-labels="topology.kubernetes.io/zone=$(zone "$i"),topology.kubernetes.io/region=bed" \
		>>"$logs/$node-kubelet.log" 2>&1 </dev/null &
	# The first process must stay: it also reaps what pods leave behind. A dead kubelet or containerd is not started
	# again, so that a fault is seen and not papered over.
	while :; do wait -n || sleep 1; done
}

# zone NUMBER spreads the nodes over three zones.
zone() { printf 'zone-%s' "$(cut -c $((($1 - 1) % 3 + 1)) <<<abc)"; }

# node_load NAME TAR... imports images, unless the node has that very file already.
node_load() {
	local node=$1 dir=$state/$1 tar sum
	shift
	mkdir -p "$dir/loaded"
	for tar; do
		sum=$(stat -Lc '%s-%Y-%n' "$tar" | sha256sum | cut -c 1-16)
		[[ ! -f $dir/loaded/$sum ]] || continue
		ctr -a "$dir/containerd.sock" -n k8s.io images import "$tar" >>"$logs/$node-images.log" 2>&1 ||
			die "$node: importing $tar failed: see $logs/$node-images.log"
		touch "$dir/loaded/$sum"
	done
}
