// Package steps tests the step code against a real API server and a simulated Substrate.
package steps

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/versions"
	"github.com/atewf/atewf/steps-image/kube"
	"github.com/atewf/atewf/steps-image/steps"
)

// api is the API server of all tests in this package: etcd and kube-apiserver as processes.
var api *rest.Config

func TestMain(m *testing.M) {
	env := &envtest.Environment{}
	cfg, err := env.Start()
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting an API server: %v; build it with: make bed, and set KUBEBUILDER_ASSETS to its bin directory\n", err)
		os.Exit(1)
	}
	api = cfg
	code := m.Run()
	if err := env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		code = 1
	}
	os.Exit(code)
}

// cluster gives a test the clients it needs, and a cluster without nodes and pods.
func cluster(t testing.TB) (*kube.Client, kubernetes.Interface) {
	t.Helper()
	k, err := kube.New(api, time.Now)
	require.NoError(t, err)
	cs, err := kubernetes.NewForConfig(api)
	require.NoError(t, err)
	ctx := context.Background()
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	wipe := func() {
		require.NoError(t, cs.CoreV1().Nodes().DeleteCollection(ctx, now, metav1.ListOptions{}))
		for _, ns := range []string{"default", "kube-system"} {
			require.NoError(t, cs.CoreV1().Pods(ns).DeleteCollection(ctx, now, metav1.ListOptions{}))
			require.NoError(t, cs.CoordinationV1().Leases(ns).DeleteCollection(ctx, now, metav1.ListOptions{}))
		}
	}
	wipe()
	t.Cleanup(wipe)
	return k, cs
}

func node(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{versions.Label: version}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func workerPod(name, node, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{versions.WorkerPoolLabel: "p-" + version}},
		Spec: corev1.PodSpec{NodeName: node, NodeSelector: map[string]string{versions.Label: version}, Containers: []corev1.Container{{Name: "ateom", Image: "i"}}}}
}

func TestLabelIsOnlyMovedFromWhereItIs(t *testing.T) {
	k, cs := cluster(t)
	ctx := context.Background()
	_, err := cs.CoreV1().Nodes().Create(ctx, node("n1", "v1"), metav1.CreateOptions{})
	require.NoError(t, err)
	move := func(from, to string) error {
		path := "/metadata/labels/ate.dev~1substrate-version"
		return k.PatchNode(ctx, "n1", []steps.PatchOp{{Op: "test", Path: path, Value: from}, {Op: "replace", Path: path, Value: to}})
	}
	require.Error(t, move("v0", "v2"))
	n, err := k.Node(ctx, "n1")
	require.NoError(t, err)
	require.Equal(t, "v1", n.Labels[versions.Label])
	require.NoError(t, move("v1", "v2"))
	n, err = k.Node(ctx, "n1")
	require.NoError(t, err)
	require.Equal(t, "v2", n.Labels[versions.Label])
}

func TestPodIsOnlyDeletedByItsUID(t *testing.T) {
	k, cs := cluster(t)
	ctx := context.Background()
	p, err := cs.CoreV1().Pods("default").Create(ctx, workerPod("w", "", "v1"), metav1.CreateOptions{})
	require.NoError(t, err)
	err = k.DeletePod(ctx, "default", "w", "another")
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.NoError(t, k.DeletePod(ctx, "default", "w", p.UID))
	err = k.DeletePod(ctx, "default", "w", p.UID)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestPodsAreFoundByNodeAndKind(t *testing.T) {
	k, cs := cluster(t)
	ctx := context.Background()
	for _, n := range []string{"n1", "n2"} {
		_, err := cs.CoreV1().Nodes().Create(ctx, node(n, "v1"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	plain := workerPod("plain", "n1", "v1")
	plain.Labels = nil
	atelet := workerPod("atelet", "n1", "v1")
	atelet.Labels = map[string]string{"app": "atelet", versions.Label: "v1"}
	forNode := func(name, node string) *corev1.Pod { // as the DaemonSet controller makes a pod
		p := atelet.DeepCopy()
		p.Name, p.Spec.NodeName = name, ""
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}
		return p
	}
	for _, p := range []*corev1.Pod{workerPod("a", "n1", "v1"), workerPod("b", "n2", "v1"), workerPod("waits", "", "v2"), plain, atelet, forNode("atelet-waits", "n1"), forNode("atelet-n2", "n2")} {
		_, err := cs.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	names := func(pods []corev1.Pod, err error) []string {
		require.NoError(t, err)
		var out []string
		for _, p := range pods {
			out = append(out, p.Name)
		}
		return out
	}
	require.Equal(t, []string{"a"}, names(k.WorkerPods(ctx, "n1")))
	require.Equal(t, []string{"waits"}, names(k.UnscheduledWorkerPods(ctx)))
	require.Equal(t, []string{"atelet", "atelet-waits"}, names(k.AteletPods(ctx, "default", "n1")))

	ready, err := k.ReadyNodes(ctx, "n1", "v1", "v2")
	require.NoError(t, err)
	require.Equal(t, 1, ready)
	ready, err = k.ReadyNodes(ctx, "n1", "v7")
	require.NoError(t, err)
	require.Zero(t, ready)
}

func TestLeaseIsWrittenByOneOfTwo(t *testing.T) {
	k, _ := cluster(t)
	ctx := context.Background()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: roll.LeaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a/b/c")}}
	require.NoError(t, k.CreateLease(ctx, l))
	require.True(t, apierrors.IsAlreadyExists(k.CreateLease(ctx, l)))
	one, err := k.Lease(ctx, "default", roll.LeaseName)
	require.NoError(t, err)
	two, err := k.Lease(ctx, "default", roll.LeaseName)
	require.NoError(t, err)
	one.Spec.HolderIdentity = ptr.To("one")
	require.NoError(t, k.UpdateLease(ctx, one))
	require.True(t, apierrors.IsConflict(k.UpdateLease(ctx, two)))
}

func TestEventIsOnTheNode(t *testing.T) {
	k, cs := cluster(t)
	ctx := context.Background()
	n, err := cs.CoreV1().Nodes().Create(ctx, node("n1", "v1"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, k.Event(ctx, n, corev1.EventTypeNormal, "RollFlipped", "moved"))
	evs, err := cs.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=n1,reason=RollFlipped"})
	require.NoError(t, err)
	require.Len(t, evs.Items, 1)
	require.Equal(t, "moved", evs.Items[0].Message)
}

func TestListsArePaged(t *testing.T) {
	k, cs := cluster(t)
	ctx := context.Background()
	for i := range 510 {
		_, err := cs.CoreV1().Pods("default").Create(ctx, workerPod(fmt.Sprintf("p%d", i), "", "v2"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	pods, err := k.UnscheduledWorkerPods(ctx)
	require.NoError(t, err)
	require.Len(t, pods, 510)
}
