# Builds. A component is built again only when a hash over all that goes into it has changed; what did not change
# inside it is left to Go's own build cache. Nothing below the module cache is written to.

kubernetes_version=v1.34.4
argo_version=v3.7.4
argo_module=github.com/argoproj/argo-workflows/v3
argo_src=$ATEWF_BED_DIR/src/argo
strip='-s -w'

# component NAME KEY COMMAND... runs the command unless it has been run for this KEY before. It must make $bin/NAME or
# $images/NAME or $ATEWF_BED_DIR/src/NAME.
component() {
	local name=$1 key stamp=$ATEWF_BED_DIR/stamps/$1 begun=$EPOCHREALTIME
	key=$(sha256sum <<<"$2 $(go_version)" | cut -d' ' -f1)
	shift 2
	[[ ! -f $stamp || $(<"$stamp") != "$key" ]] || return 0
	say "$name: building"
	rm -f "$stamp"
	"$@" >"$ATEWF_BED_DIR/build-$name.log" 2>&1 || {
		tail -n 20 "$ATEWF_BED_DIR/build-$name.log" >&2
		die "$name: build failed: see $ATEWF_BED_DIR/build-$name.log"
	}
	echo "$key" >"$stamp"
	say "$name: built in $(since "$begun")"
}

go_version() { go env GOVERSION GOARCH | paste -sd' '; }

# content FILE... prints a hash of the files' names and contents.
content() { (cd "$here" && find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

go_build() { # NAME DIRECTORY PACKAGE LDFLAGS
	(cd "$2" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$4" -o "$bin/$1.new" "$3" &&
		mv "$bin/$1.new" "$bin/$1")
}

build() {
	command -v go >/dev/null || die "go is not on PATH: it is needed to build the bed"
	mkdir -p "$bin" "$images" "$ATEWF_BED_DIR/src" "$ATEWF_BED_DIR/stamps"
	local f v=k8s.io/component-base/version name
	f="$strip -X $v.gitVersion=$kubernetes_version -X $v.gitMajor=1 -X $v.gitMinor=34 -X $v.gitTreeState=clean"
	component kubernetes-source "$kubernetes_version $(content kmono) $(declare -f kubernetes_source copy_module change)" kubernetes_source
	component kmono "$(<"$ATEWF_BED_DIR/stamps/kubernetes-source") $f" go_build kmono "$ATEWF_BED_DIR/src/kmono" . "$f"
	for name in etcd kube-apiserver kubectl; do ln -sfn kmono "$bin/$name"; done

	component argo-source "$argo_version $(declare -f argo_source copy_module change)" argo_source
	f="$strip -X $argo_module.version=$argo_version -X $argo_module.gitTag=$argo_version"
	for name in argoexec workflow-controller argo; do
		component $name "$(<"$ATEWF_BED_DIR/stamps/argo-source") $f" go_build $name "$argo_src" "./cmd/$name" "$f"
	done
	component argo-manifests "$(<"$ATEWF_BED_DIR/stamps/argo-source") $(declare -f argo_manifests)" argo_manifests

	for name in mkimage pause probe; do
		component $name "$(content $name) $(modules ./$name)" go_build $name "$here" ./$name "$strip"
	done
	for name in pause argoexec busybox probe; do
		component image-$name "$(declare -f image_$name) $(sum mkimage) $(image_input $name)" image_$name
	done
}

# modules PACKAGE prints the versions of all modules that are linked into it.
modules() { (cd "$here" && go list -deps -f '{{with .Module}}{{.Path}} {{.Version}}{{end}}' "$1" | sort -u); }

image_input() { if [[ $1 == busybox ]]; then sha256sum "$(command -v busybox)"; else sum "$1"; fi; }

sum() { (cd "$bin" && sha256sum "$@"); }

# copy_module MODULE VERSION TO copies a module out of the module cache, in which nothing may be changed or replaced.
copy_module() {
	local dir
	dir=$(cd "$ATEWF_BED_DIR/src" && go mod download -json "$1@$2" | sed -n 's/.*"Dir": "\(.*\)",\?$/\1/p')
	[[ -d $dir ]] || return 1
	rm -rf "$3"
	cp -r "$dir" "$3"
	chmod -R u+w "$3"
}

# change FILE OLD NEW replaces a text that must be there in exactly one line: else a newer source would stay as it is,
# and nobody would notice.
change() {
	local text
	[[ $(grep -cF "$2" "$1") == 1 ]] || { echo "$1: there is not one line with: $2"; return 1; }
	text=$(<"$1")
	printf '%s\n' "${text/"$2"/"$3"}" >"$1"
}

# kubernetes_source makes a copy of kmono that is built from a copy of Kubernetes with one constant changed: how often
# the kubelet asks containerd what has become of its containers. A step pod waits for that four times in its short life.
kubernetes_source() {
	local src=$ATEWF_BED_DIR/src file
	copy_module k8s.io/kubernetes $kubernetes_version "$src/kubernetes" || return 1
	file=$src/kubernetes/pkg/kubelet/kubelet.go
	change "$file" 'genericPlegRelistPeriod    = time.Second * 1' 'genericPlegRelistPeriod = 200 * time.Millisecond' ||
		return 1
	rm -rf "$src/kmono"
	cp -r "$here/kmono" "$src/kmono"
	(cd "$src/kmono" && go mod edit -replace=k8s.io/kubernetes=../kubernetes)
}

# argo_source makes a copy of Argo with the two things that a module zip cannot hold: a file that is a symbolic link
# upstream, and the web page that the server embeds.
argo_source() {
	local file
	copy_module $argo_module $argo_version "$argo_src" || return 1
	cp "$argo_src"/workflow/executor/osspecific/signal_{darwin,linux}.go
	# How often "wait" looks for the end of "main", and "main" for the end of its command: not every second.
	for file in emissary/emissary.go osspecific/signal_linux.go; do
		change "$argo_src/workflow/executor/$file" 'time.Sleep(time.Second)' 'time.Sleep(50 * time.Millisecond)' || return 1
	done
	mkdir -p "$argo_src/ui/dist/app"
	echo '<!doctype html><title>Argo</title>The bed has no web page.' >"$argo_src/ui/dist/app/index.html"
}

# argo_manifests renders what "bed argo" applies.
argo_manifests() {
	local m=$argo_src/manifests out=$ATEWF_BED_DIR/src/argo-manifests d
	mkdir -p "$out"
	for d in minimal full; do "$bin/kubectl" kustomize "$m/base/crds/$d" >"$out/crds-$d.yaml" || return 1; done
	mkdir -p "$m/bed"
	cat >"$m/bed/kustomization.yaml" <<-EOF
		namespace: argo
		resources:
		- ../base/workflow-controller/workflow-controller-sa.yaml
		- ../base/argo-server/argo-server-sa.yaml
		- ../cluster-install-no-crds/workflow-controller-rbac
		- ../cluster-install-no-crds/argo-server-rbac
	EOF
	"$bin/kubectl" kustomize --load-restrictor LoadRestrictionsNone "$m/bed" >"$out/rbac.yaml"
}

image_pause() { "$bin/mkimage" -entrypoint /pause "$images/pause.tar" docker.io/local/pause:1 "$bin/pause=/pause"; }

image_probe() { "$bin/mkimage" -entrypoint /probe "$images/probe.tar" docker.io/local/probe:1 "$bin/probe=/probe"; }

image_argoexec() {
	"$bin/mkimage" -entrypoint /bin/argoexec "$images/argoexec.tar" "docker.io/local/argoexec:$argo_version" \
		"$bin/argoexec=/bin/argoexec"
}

image_busybox() {
	"$bin/mkimage" -symlinks "$(busybox --list | paste -sd,)" "$images/busybox.tar" docker.io/local/busybox:1 \
		"$(readlink -f "$(command -v busybox)")=/bin/busybox"
}
