# The first process of a node: containerd and kubelet. Usage: node-init.sh NODE

set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"
. "$here/lib/cgroup.sh"
. "$here/lib/node.sh"

node=$1
number=${node#node}
ip=$(node_ip "$number")
dir=$state/$node
zones=(zone-a zone-b zone-c)
zone=${zones[(number - 1) % 3]}
export GOGC=400 GOMAXPROCS=2 NO_PROXY='*' # memory is cheaper here than processor time: collect garbage late

# fill FILE prints a file of conf/ with the values of this node.
fill() {
	sed -e "s|@STATE@|$dir|g" -e "s|@PKI@|$pki|g" -e "s|@NODE_IP@|$ip|g" -e "s|@POD_NET@|$(pod_net "$number")|g" \
		-e "s|@DNS_IP@|$dns_ip|g" "$here/conf/$1"
}

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
until_true 60 ctr -a "$dir/containerd.sock" version || die "$node: containerd does not answer"
note "containerd answers"
node_load "$node" "$images"/*.tar
note "images loaded"
until_true 120 test -f "$run/api-ready" || die "$node: the API server is not ready"
setsid "$bin/kmono" kubelet --config="$dir/kubelet.yaml" --kubeconfig="$pki/$node.kubeconfig" \
	--hostname-override="$node" --node-ip="$ip" --root-dir="$dir/kubelet" --cert-dir="$dir/pki" \
	--node-labels="topology.kubernetes.io/zone=$zone,topology.kubernetes.io/region=bed" \
	>>"$logs/$node-kubelet.log" 2>&1 </dev/null &
note "kubelet started"
# The first process must stay: it also reaps what pods leave behind. A dead kubelet or containerd is not started again,
# so that a fault is seen and not papered over.
while :; do wait -n || sleep 1; done
