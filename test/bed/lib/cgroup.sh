# Control groups of the bed. It gets one of its own in every hierarchy, and each node one below that, so that a
# group of the bed never lands elsewhere and all of them can be removed when it ends. Both versions are handled.

cg=/sys/fs/cgroup

cg_unified() { [[ $(stat -fc %T $cg) == cgroup2fs ]]; }

# cg_hierarchies prints the directories in which a group has to be made.
cg_hierarchies() {
	if cg_unified; then
		echo $cg
	else
		awk -v root=$cg/ '$3 == "cgroup" && index($2, root) == 1 { print $2 }' /proc/self/mounts | sort -u
	fi
}

# cg_make GROUP makes a group in each hierarchy.
cg_make() {
	local h f
	for h in $(cg_hierarchies); do
		mkdir -p "$h/$1"
		for f in cpuset.cpus cpuset.mems; do # version 1 lets nobody in before these are set
			[[ ! -f $h/$1/$f ]] || cg_unified || cat "$h/$(dirname "$1")/$f" >"$h/$1/$f"
		done
	done
}

# cg_controllers DIRECTORY lets the groups below it have controllers: those that can be had.
cg_controllers() {
	local c
	for c in $(<"$1/cgroup.controllers"); do echo "+$c" 2>/dev/null >"$1/cgroup.subtree_control" || true; done
}

# cg_namespace GROUP COMMAND... becomes the command, in a cgroup namespace that has the group for its root. Nobody else
# may be in the group: one of version 2 has either processes or controllers for the groups below it.
cg_namespace() {
	cg_join "$1"
	shift
	exec unshare --cgroup "$@"
}

# cg_join GROUP moves the calling shell there.
cg_join() {
	local h
	for h in $(cg_hierarchies); do echo $BASHPID >"$h/$1/cgroup.procs"; done
}

# cg_remove GROUP removes it and all below it. What still has processes stays.
cg_remove() {
	local h
	for h in $(cg_hierarchies); do
		[[ ! -d $h/$1 ]] || find "$h/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
}

# cg_mount shows the hierarchies from the group that the current cgroup namespace is rooted in: so what runs inside
# takes that group for the whole tree. The processes inside live in the group "system".
cg_mount() {
	local h opts c
	if cg_unified; then
		umount -R $cg
		mount -t cgroup2 cgroup2 $cg
		mkdir -p $cg/system
		cg_join system
		cg_controllers $cg
		return
	fi
	local -A found=()
	while read -r h opts; do
		found[$h]=$opts
	done < <(awk -v root=$cg/ '$3 == "cgroup" && index($2, root) == 1 { print $2, $4 }' /proc/self/mounts)
	umount -R $cg
	mount -t tmpfs -o mode=755 tmpfs $cg
	for h in "${!found[@]}"; do
		opts=$(tr , '\n' <<<"${found[$h]}" | grep -vxE 'rw|relatime|nosuid|nodev|noexec|xattr|release_agent=.*' | paste -sd,)
		[[ $opts != name=* ]] || opts=none,$opts
		mkdir "$h"
		mount -t cgroup -o "$opts" cgroup "$h"
		[[ $opts != *,* || $opts == none,* ]] || for c in ${opts//,/ }; do ln -sfn "${h##*/}" "$cg/$c"; done
	done
	cg_make system
	cg_join system
}
