# Argo Workflows: definitions and rights in the cluster, the controller and the server as processes beside it.

argo() {
	need_root
	local crds=${1:-minimal} m=$ATEWF_BED_DIR/src/argo-manifests begun=$EPOCHREALTIME
	[[ $crds == minimal || $crds == full ]] || die "usage: $0 argo [minimal|full]"
	inside test ! -f "$run/pid/workflow-controller" || die "Argo is up already"
	inside kubectl apply --server-side -f "$m/crds-$crds.yaml" >/dev/null
	inside kubectl apply -f "$here/conf/argo.yaml" >/dev/null
	inside kubectl apply -f "$m/rbac.yaml" >/dev/null
	inside kubectl wait --for=condition=Established crd/workflows.argoproj.io crd/workflowtemplates.argoproj.io \
		crd/workflowtaskresults.argoproj.io --timeout=60s >/dev/null
	local sa
	for sa in argo argo-server; do
		kubeconfig "$(inside kubectl create token -n argo $sa --duration=24h)" argo >"$pki/$sa.kubeconfig"
	done
	beside workflow-controller "$pki/argo.kubeconfig" \
		env ARGO_NAMESPACE=argo LEADER_ELECTION_DISABLE=true GOGC=400 DEFAULT_REQUEUE_TIME=100ms \
		ARGO_PROGRESS_PATCH_TICK_DURATION=5s \
		workflow-controller --configmap=workflow-controller-configmap --executor-image-pull-policy=IfNotPresent \
		--executor-image="docker.io/local/argoexec:$argo_version" --qps=100 --burst=200
	beside argo-server "$pki/argo-server.kubeconfig" \
		env ARGO_NAMESPACE=argo GOGC=400 argo server --auth-mode=server --secure=false --port=2746
	until_true 60 inside curl -sf http://127.0.0.1:2746/api/v1/version || die "Argo's server does not answer: see $logs/argo-server.log"
	say "Argo is up after $(since "$begun")"
}

# beside NAME KUBECONFIG COMMAND... starts a program in the bed's namespaces and control group, beside its first process.
beside() {
	local name=$1 kubeconfig=$2
	shift 2
	(
		is_inside || cg_join "$group/system"
		# shellcheck disable=SC2016
		inside bash -c '. "$0/lib/common.sh"; spawn "$@"' "$here" "$name" "$@"
	)
}
