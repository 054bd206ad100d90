# Shared by every part of the bed: where things live, how it speaks, and how its namespaces are entered.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ATEWF_BED_DIR=${ATEWF_BED_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/atewf/bed}
[[ $ATEWF_BED_DIR == /* ]] || ATEWF_BED_DIR=$PWD/$ATEWF_BED_DIR
bin=$ATEWF_BED_DIR/bin
images=$ATEWF_BED_DIR/images
run=$ATEWF_BED_DIR/run
state=$run/state # a tmpfs that only the bed's own mount namespace has
logs=$run/log
pki=$run/pki

# Addresses. The control plane's live on the loopback of the bed's network namespace, a node's in a namespace of its own.
control_ip=10.99.0.1
service_net=10.96.0.0/24
api_service_ip=10.96.0.1
dns_ip=10.96.0.10
node_ip() { echo "10.99.0.$((10 + $1))"; }
pod_net() { echo "10.244.$1.0/24"; }

say() { printf 'bed: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# note prints a line with the time, for the logs of what runs inside.
note() { printf '%(%T)T.%s %s\n' -1 "$(cut -c 12-13 <<<"$EPOCHREALTIME")" "$*"; }

# since START prints the seconds that have passed since START, which is a value of EPOCHREALTIME.
since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'; }

# until_true SECONDS COMMAND... runs COMMAND five times a second until it succeeds; false when time is up.
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || return 1
		sleep 0.2
	done
}

# start_time PID prints when the process was started, in clock ticks since boot. With it a pid names one process for
# ever; without it a recycled pid in a stale file would be taken for the bed.
start_time() {
	local stat
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
	stat=${stat##*) }
	# shellcheck disable=SC2086
	set -- $stat
	echo "${20}"
}

# launcher prints the pid of the process that holds the bed's namespaces; false when the bed is down.
launcher() {
	local pid started
	read -r pid started 2>/dev/null <"$run/launcher" || return 1
	[[ -n $started && $(start_time "$pid") == "$started" ]] || return 1
	echo "$pid"
}

# init_pid prints the pid of the first process inside the bed's namespaces.
init_pid() {
	local pid
	pid=$(launcher) && pgrep -P "$pid" | head -n 1 | grep .
}

need_root() { ((EUID == 0)) || die "root is needed, for namespaces and mounts: run it with sudo -E"; }

# inside COMMAND... runs COMMAND in the bed's namespaces as its admin, in the directory that the caller stands in.
inside() { (enter "$@"); }

# enter COMMAND... is the same, in place of the calling shell.
enter() {
	local init
	local -a env=(env "ATEWF_BED_INSIDE=$ATEWF_BED_DIR" "KUBECONFIG=${kubeconfig:-$pki/admin.kubeconfig}"
		"KUBEBUILDER_ASSETS=$bin" "PATH=$bin:$here:$PATH")
	if is_inside; then # a test that runs in there stops a node, say
		exec "${env[@]}" "$@"
	fi
	init=$(init_pid) || die "the bed is down: start it with '$0 up'"
	# The shell goes back to the directory, because entering a mount namespace ends in its root. And what runs inside
	# must not outlive who asked for it.
	exec nsenter -t "$init" --net --mount --pid --uts -- setpriv --pdeathsig TERM \
		sh -c 'cd "$0" 2>/dev/null; exec "$@"' "$PWD" "${env[@]}" "$@"
}

is_inside() { [[ ${ATEWF_BED_INSIDE:-} == "$ATEWF_BED_DIR" ]]; }

# spawn NAME COMMAND... starts a program of the bed in the background. To be called inside the namespaces.
spawn() {
	local name=$1
	shift
	setsid "$@" >>"$logs/$name.log" 2>&1 </dev/null 9>&- & # nine is the lock of the command that starts it
	echo $! >"$run/pid/$name"
}
