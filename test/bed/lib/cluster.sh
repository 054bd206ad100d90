# Up, down and what can be asked of a bed that is up.

group=atewf-bed-$(sha256sum <<<"$ATEWF_BED_DIR" | cut -c 1-8)

# packages of Debian, by the command or file that each is needed for.
needs=(
	containerd:containerd ctr:containerd crun:crun /usr/lib/cni/ptp:containernetworking-plugins
	/usr/lib/cni/portmap:containernetworking-plugins iptables:iptables ip:iproute2 sysctl:procps pgrep:procps
	nsenter:util-linux unshare:util-linux setpriv:util-linux setsid:util-linux flock:util-linux mount:mount openssl:openssl curl:curl awk:mawk
	busybox:busybox-static
)

missing_packages() {
	local need
	for need in "${needs[@]}"; do
		[[ -x ${need%%:*} ]] || command -v "${need%%:*}" >/dev/null || echo "${need#*:}"
	done | sort -u
}

need_packages() {
	local missing
	missing=$(missing_packages | paste -sd' ')
	[[ -z $missing ]] || die "missing from this machine: apt-get install -y $missing (or '$0 deps')"
	command -v go >/dev/null || [[ -x $bin/kmono ]] || die "go is not on PATH: it is needed to build the bed"
}

deps() {
	need_root
	local package missing=()
	while read -r package; do
		[[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
	done < <(printf '%s\n' "${needs[@]#*:}" jq tmux ca-certificates | sort -u)
	if ((${#missing[@]} == 0)); then
		echo "every package that is needed is there"
		return
	fi
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

up() {
	local nodes=${1:-3} begun=$EPOCHREALTIME pid i
	[[ $nodes =~ ^[1-9]$ ]] || die "the number of nodes must be from 1 to 9, not '$nodes'"
	need_root
	need_packages
	! launcher >/dev/null || die "the bed is up already: use it, or '$0 down' first"
	build
	sweep
	rm -rf "$run"
	mkdir -p "$logs" "$run/pid"
	make_pki "$nodes"
	! cg_unified || cg_controllers $cg
	cg_make "$group"
	cg_make "$group/launcher"
	(
		cg_join "$group/launcher"
		pid=$BASHPID
		echo "$pid $(start_time "$pid")" >"$run/launcher"
		# shellcheck disable=SC2016
		exec setsid unshare --net --mount --pid --uts --fork --mount-proc --kill-child \
			bash -c '. "$0/lib/common.sh"; . "$0/lib/cgroup.sh"; cg_namespace "$1" bash "$0/lib/init.sh" "$2"' \
			"$here" "$group" "$nodes" >"$logs/init.log" 2>&1 </dev/null 9>&-
	) &
	until_true 5 test -s "$run/launcher" || die "could not start: see $logs/init.log"
	until_true 180 up_or_dead control_plane_started
	launcher >/dev/null || { tail -n 20 "$logs/init.log" >&2; down; die "the bed died while starting: see $logs"; }
	say "control plane after $(since "$begun")"
	for i in $(seq "$nodes"); do # one by one: kubectl waits for the creation of one object only
		inside kubectl wait --for=create --timeout=120s "node/node$i" >/dev/null || die "node$i does not register: see $logs"
	done
	inside kubectl wait --for=condition=Ready --timeout=120s node --all >/dev/null || die "the nodes do not become Ready: see $logs"
	inside kubectl apply -f "$here/conf/dns-service.yaml" >/dev/null
	say "up with $nodes nodes after $(since "$begun")"
}

control_plane_started() { [[ -f $run/control-plane-started ]]; }

up_or_dead() { ! launcher || "$@"; }

down() {
	need_root
	local pid init
	if pid=$(launcher); then
		init=$(init_pid) && kill -9 "$init" 2>/dev/null
		kill -9 "$pid" 2>/dev/null || true
		until_true 60 launcher_gone || die "process $pid does not end"
		[[ -z $init ]] || until_true 60 test ! -d "/proc/$init" || die "process $init does not end"
	fi
	sweep
	# The logs stay until the next start.
	[[ ! -d $run ]] || find "$run" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +
	say "down"
}

launcher_gone() { ! launcher; }

# sweep removes the control groups of a bed that has ended, however it ended.
sweep() { until_true 10 cg_gone "$group" || die "processes are left in control group $group: end them"; }

status() {
	local pid
	pid=$(launcher) || { say "down"; return 1; }
	say "up, held by process $pid, state in $ATEWF_BED_DIR"
	inside bash -c '
		cd "$1" && for name in *; do
			kill -0 "$(cat "$name")" 2>/dev/null && echo "$name: running" || echo "$name: DEAD"
		done | sort' - "$run/pid"
	inside kubectl get nodes -L topology.kubernetes.io/zone
}

show_logs() {
	[[ -d $logs ]] || die "no logs yet"
	if (($# == 0)); then
		(cd "$logs" && ls -1 -- *.log | sed 's/\.log$//')
		return
	fi
	[[ -f $logs/$1.log ]] || die "no log named '$1': '$0 logs' lists them"
	if [[ ${2:-} == -f ]]; then exec tail -n 50 -f "$logs/$1.log"; else cat "$logs/$1.log"; fi
}

load() {
	need_root
	(($# > 0)) || die "usage: $0 load IMAGE.tar..."
	local tar
	local -a tars=()
	for tar; do
		[[ -f $tar ]] || die "no such file: $tar"
		tars+=("$(readlink -f "$tar")")
	done
	# shellcheck disable=SC2016
	inside bash -c '. "$0/lib/common.sh"; . "$0/lib/node.sh"
		for node in $(cd "$run/pid" && ls -d node* 2>/dev/null); do node_load "$node" "$@"; done' "$here" "${tars[@]}"
}

# node start|stop NAME
node() {
	need_root
	[[ ${1:-} == start || ${1:-} == stop ]] && node_exists "${2:-}" || die "usage: $0 node start|stop nodeX"
	# shellcheck disable=SC2016
	inside bash -c '. "$0/lib/common.sh"; . "$0/lib/cgroup.sh"; . "$0/lib/node.sh"; "node_$1" "$2"' "$here" "$1" "$2"
}

# check [TEST FLAGS...] proves on a bed that is up, with Argo, what this file promises.
check() {
	need_root
	(cd "$here" && CGO_ENABLED=0 go test -c -trimpath -tags bed -o "$bin/check.test" .)
	inside "$bin/check.test" -test.v "$@"
}
