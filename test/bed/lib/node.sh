# Nodes. Each is like a machine of its own: network, mount, process, host name and control group namespaces, in which
# a containerd, a kubelet and the pods of that node live, and nothing else. So host ports and hostPath volumes belong
# to one node, and killing the node's first process kills the whole node at once, as a power cut would.
#
# What stands here runs in the namespaces of the bed; node-init.sh goes on in those of the node.

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
	cg_make "$node/launcher"
	(
		cg_join "$node/launcher"
		# shellcheck disable=SC2016
		spawn "$node" nsenter --net="/run/netns/$node" \
			unshare --mount --uts --pid --fork --mount-proc --kill-child \
			bash -c '. "$0/lib/common.sh"; . "$0/lib/cgroup.sh"; cg_namespace "$1" bash "$0/lib/node-init.sh" "$1"' \
			"$here" "$node"
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

node_gone() { ! kill -0 "$1" 2>/dev/null; }

cg_gone() {
	cg_remove "$1"
	[[ -z $(for h in $(cg_hierarchies); do [[ ! -d $h/$1 ]] || echo "$h"; done) ]]
}

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
