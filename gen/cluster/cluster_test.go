package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/gen/cluster"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

var (
	created = metav1.NewTime(time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC))
	now     = time.Date(2026, 9, 7, 12, 0, 0, 500, time.UTC)
)

func objects() []runtime.Object {
	deleted := metav1.NewTime(now)
	atelet := func(version string) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: "atelet-" + version, CreationTimestamp: created,
				Labels: map[string]string{"app": "atelet", versions.Label: version}},
			Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				NodeSelector: map[string]string{versions.Label: version},
				Tolerations:  []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}},
				Affinity:     &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}},
			}}},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 1},
		}
	}
	worker := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: name, UID: "uid-" + "1", Labels: map[string]string{versions.WorkerPoolLabel: "counter"}},
			Spec:       corev1.PodSpec{NodeName: "node1", NodeSelector: map[string]string{versions.Label: "v1"}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	going := worker("going")
	going.DeletionTimestamp, going.Finalizers = &deleted, []string{"x/y"}
	return []runtime.Object{
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node2", CreationTimestamp: created, Labels: map[string]string{versions.Label: "v1"},
				Annotations: map[string]string{roll.StampAnnotation: "{}", "other": "x"}},
			Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &created}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}}},
		},
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node1", CreationTimestamp: created},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		},
		atelet("v2"), atelet("v1"),
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: "other"}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "atelet", Labels: map[string]string{"app": "atelet"}}},
		worker("here"), going,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "no-worker"}},
	}
}

func unstructuredOf(apiVersion, kind, namespace, name string, rest map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: rest}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

func pools() []runtime.Object {
	old := unstructuredOf("ate.dev/v1alpha1", "WorkerPool", "agents", "old-fields", map[string]any{
		"spec":   map[string]any{"replicas": int64(3), "ateomImage": "image", "unheardOf": map[string]any{"deep": []any{int64(1), "x"}}},
		"status": map[string]any{"readyReplicas": int64(2)},
	})
	old.SetLabels(map[string]string{"team": "a"})
	return []runtime.Object{old, unstructuredOf("ate.dev/v1alpha1", "WorkerPool", "agents", "new-fields", map[string]any{
		"spec": map[string]any{"replicas": int64(0), "workerImage": "image2", "sandboxClasses": []any{map[string]any{"name": "microvm"}},
			"template": map[string]any{"nodeSelector": map[string]any{versions.Label: "v2"}}},
	})}
}

func dynamicClient(objs ...runtime.Object) *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "ate.dev", Version: "v1alpha1", Resource: "workerpools"}:   "WorkerPoolList",
		{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}: "WorkflowList",
	}, objs...)
}

// control is a Control API that answers from memory.
type control struct {
	workers              []substrate.Worker
	actors               []substrate.Actor
	workersErr, actorErr error
	drainErr             error
	closed               *bool
}

func (c control) Workers(context.Context) ([]substrate.Worker, error) { return c.workers, c.workersErr }

func (c control) EachActor(_ context.Context, fn func(substrate.Actor) error) error {
	for _, a := range c.actors {
		if err := fn(a); err != nil {
			return err
		}
	}
	return c.actorErr
}

func (c control) ServesDrain(context.Context) error { return c.drainErr }

func (c control) Close() error {
	*c.closed = true
	return nil
}

func options(c control) cluster.Options {
	return cluster.Options{
		Cluster: snapshot.Cluster{Name: "prod"}, Namespace: "ate-system", Mode: cluster.Auto, Now: func() time.Time { return now },
		Dial: func(context.Context) (cluster.Control, error) { return c, nil },
	}
}

func TestRead(t *testing.T) {
	var closed bool
	c := control{
		// A list that moved under its reader has entries twice.
		workers: []substrate.Worker{{Name: "w2", Pod: "b", Node: "node1"}, {Name: "w1", Pod: "a", Node: "node1"}, {Name: "w2", Pod: "b", Node: "node1"}},
		actors: []substrate.Actor{{Ref: substrate.Ref{Atespace: "s", Name: "b"}}, {Ref: substrate.Ref{Atespace: "s", Name: "a"}},
			{Ref: substrate.Ref{Atespace: "s", Name: "b"}, State: substrate.Running}},
		closed: &closed,
	}
	got, err := cluster.New(kubefake.NewSimpleClientset(objects()...), dynamicClient(pools()...), options(c)).Read(context.Background())
	require.NoError(t, err)
	require.True(t, closed)
	at := created.UTC()
	tolerations := []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	want := &snapshot.Snapshot{
		Taken: now.Truncate(time.Second), Cluster: snapshot.Cluster{Name: "prod"}, Namespace: "ate-system", PoolsServed: true, Control: snapshot.Control{Read: true},
		Nodes: []snapshot.Node{
			{Name: "node1", Ready: true, Created: at},
			{Name: "node2", Created: at, Labels: map[string]string{versions.Label: "v1"}, Unschedulable: true, Stamp: "{}",
				Taints: []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}}},
		},
		Pools: []snapshot.Pool{
			{Namespace: "agents", Name: "new-fields", Class: "microvm", Image: "image2", Pin: "v2",
				Spec: []byte(`{"replicas":0,"sandboxClasses":[{"name":"microvm"}],"template":{"nodeSelector":{"ate.dev/substrate-version":"v2"}},"workerImage":"image2"}`)},
			{Namespace: "agents", Name: "old-fields", Labels: map[string]string{"team": "a"}, Class: "gvisor", Image: "image", Replicas: 3, Ready: 2,
				Spec: []byte(`{"ateomImage":"image","replicas":3,"unheardOf":{"deep":[1,"x"]}}`)},
		},
		Atelets: []snapshot.DaemonSet{
			{Name: "atelet-v1", Version: "v1", Created: at, Desired: 2, Ready: 1, NodeSelector: map[string]string{versions.Label: "v1"}, NodeAffinity: &corev1.NodeSelector{}, Tolerations: tolerations},
			{Name: "atelet-v2", Version: "v2", Created: at, Desired: 2, Ready: 1, NodeSelector: map[string]string{versions.Label: "v2"}, NodeAffinity: &corev1.NodeSelector{}, Tolerations: tolerations},
		},
		Pods: []snapshot.Pod{
			{Namespace: "agents", Name: "going", UID: "uid-1", Pool: "counter", Pin: "v1", Node: "node1", Phase: corev1.PodRunning, Ready: true, Terminating: true},
			{Namespace: "agents", Name: "here", UID: "uid-1", Pool: "counter", Pin: "v1", Node: "node1", Phase: corev1.PodRunning, Ready: true},
		},
		Workers: []substrate.Worker{{Name: "w1", Pod: "a", Node: "node1"}, {Name: "w2", Pod: "b", Node: "node1"}},
		Actors:  []substrate.Actor{{Ref: substrate.Ref{Atespace: "s", Name: "a"}}, {Ref: substrate.Ref{Atespace: "s", Name: "b"}}},
	}
	require.Empty(t, cmp.Diff(want, got))
}

func TestListsArePaged(t *testing.T) {
	kube := kubefake.NewSimpleClientset()
	pages := [][]string{{"node1", "node2"}, {}, {"node3"}}
	asked := 0
	kube.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		require.EqualValues(t, 500, a.(clienttesting.ListActionImpl).ListOptions.Limit)
		l := &corev1.NodeList{}
		for _, n := range pages[asked] {
			l.Items = append(l.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
		}
		if asked++; asked < len(pages) {
			l.Continue = "more"
		}
		return true, l, nil
	})
	o := options(control{})
	o.Mode = cluster.Skip
	s, err := cluster.New(kube, dynamicClient(), o).Read(context.Background())
	require.NoError(t, err)
	require.Len(t, s.Nodes, 3)
	require.Equal(t, len(pages), asked)
}

func TestNoWorkerPools(t *testing.T) {
	dyn := dynamicClient()
	dyn.PrependReactor("list", "workerpools", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource"}}
	})
	o := options(control{})
	o.Mode = cluster.Skip
	s, err := cluster.New(kubefake.NewSimpleClientset(), dyn, o).Read(context.Background())
	require.NoError(t, err)
	require.False(t, s.PoolsServed)
}

func TestControlAPI(t *testing.T) {
	refused := status.Error(codes.Unavailable, "connection refused")
	strange := &substrate.UnknownFieldError{Object: "actor a/b", Field: "ActorStatus.mood"}
	for name, c := range map[string]struct {
		mode    cluster.Mode
		dial    error
		control control
		why     string // where it goes on without
		err     string // where it fails
	}{
		"skipped":                       {mode: cluster.Skip, why: "--substrate=skip was given"},
		"not reached":                   {mode: cluster.Auto, dial: refused, why: "connection refused"},
		"not reached, required":         {mode: cluster.Require, dial: refused, err: "connection refused; pass --endpoint and --token-file to reach it another way, or --substrate=skip"},
		"not allowed":                   {mode: cluster.Auto, control: control{workersErr: status.Error(codes.PermissionDenied, "no")}, why: "no"},
		"not known":                     {mode: cluster.Auto, control: control{workersErr: status.Error(codes.Unauthenticated, "who")}, why: "who"},
		"lost in the middle":            {mode: cluster.Auto, control: control{workers: []substrate.Worker{{Name: "w"}}, actors: []substrate.Actor{{}}, actorErr: refused}, why: "connection refused"},
		"too slow":                      {mode: cluster.Auto, dial: context.DeadlineExceeded, why: "deadline exceeded"},
		"no DrainWorker":                {mode: cluster.Auto, control: control{drainErr: substrate.ErrNoDrain}, err: "does not serve DrainWorker"},
		"not understood":                {mode: cluster.Auto, control: control{actorErr: strange}, err: "--accept-field=ActorStatus.mood"},
		"not understood from the start": {mode: cluster.Auto, dial: errors.New("it does not describe ateapi.Control"), err: "it does not describe ateapi.Control"},
	} {
		t.Run(name, func(t *testing.T) {
			var closed bool
			c.control.closed = &closed
			o := options(c.control)
			o.Mode = c.mode
			if c.dial != nil {
				o.Dial = func(context.Context) (cluster.Control, error) { return nil, c.dial }
			}
			s, err := cluster.New(kubefake.NewSimpleClientset(), dynamicClient(), o).Read(context.Background())
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.ErrorContains(t, err, "reading the Control API: ")
				require.NotContains(t, err.Error(), "check that the cluster is up")
				return
			}
			require.NoError(t, err)
			require.False(t, s.Control.Read)
			require.Contains(t, s.Control.Why, c.why)
			require.Empty(t, s.Workers)
			require.Empty(t, s.Actors)
		})
	}
}

// An interrupt is an interrupt, and no reason to go on without the Control API.
func TestReaderWhoMayNotDrain(t *testing.T) {
	closed := false
	o := options(control{closed: &closed, drainErr: status.Error(codes.PermissionDenied, "no"), workers: []substrate.Worker{{Name: "w"}}})
	s, err := cluster.New(kubefake.NewSimpleClientset(), dynamicClient(), o).Read(context.Background())
	require.NoError(t, err)
	require.True(t, s.Control.Read)
	require.Len(t, s.Workers, 1)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	o := options(control{})
	o.Dial = func(context.Context) (cluster.Control, error) {
		cancel()
		return nil, status.FromContextError(context.Canceled).Err()
	}
	_, err := cluster.New(kubefake.NewSimpleClientset(), dynamicClient(), o).Read(ctx)
	require.Error(t, err)
}

func TestErrorsTellTheWayOut(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"forbidden":    {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no")), "ask for the right to list it"},
		"unauthorized": {apierrors.NewUnauthorized("who"), "log in to the cluster again"},
		"unreachable":  {errors.New("dial tcp: connection refused"), "check that the cluster is up, and --context"},
		"server error": {apierrors.NewInternalError(errors.New("boom")), "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			kube := kubefake.NewSimpleClientset()
			kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
			o := options(control{})
			o.Mode = cluster.Skip
			_, err := cluster.New(kube, dynamicClient(), o).Read(context.Background())
			require.ErrorContains(t, err, c.want)
			require.True(t, strings.HasPrefix(err.Error(), "reading the nodes: "), err)
		})
	}
}

func TestLease(t *testing.T) {
	lease := func(holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: roll.LeaseName, Annotations: map[string]string{roll.NodeInHandAnnotation: "node1"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)},
		}
	}
	wf := func(uid, phase string) *unstructured.Unstructured {
		u := unstructuredOf("argoproj.io/v1alpha1", "Workflow", "argo", "roll", map[string]any{"status": map[string]any{"phase": phase}})
		u.SetUID("1")
		if uid != "" {
			u.SetUID("2")
		}
		return u
	}
	for name, c := range map[string]struct {
		lease    *coordinationv1.Lease
		workflow runtime.Object
		forbid   bool
		want     *snapshot.Lease
	}{
		"none":                     {},
		"running":                  {lease: lease("argo/roll/1"), workflow: wf("", "Running"), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowLive}},
		"pending":                  {lease: lease("argo/roll/1"), workflow: wf("", ""), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowLive}},
		"succeeded":                {lease: lease("argo/roll/1"), workflow: wf("", "Succeeded"), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowEnded}},
		"failed":                   {lease: lease("argo/roll/1"), workflow: wf("", "Failed"), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowEnded}},
		"gone":                     {lease: lease("argo/roll/1"), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowEnded}},
		"a later one of that name": {lease: lease("argo/roll/1"), workflow: wf("later", "Running"), want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowEnded}},
		"not to be read":           {lease: lease("argo/roll/1"), forbid: true, want: &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Why: `workflows.argoproj.io "roll" is forbidden: no`}},
		"of nobody":                {lease: lease(""), want: &snapshot.Lease{Node: "node1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var objs, dynObjs []runtime.Object
			if c.lease != nil {
				objs = append(objs, c.lease)
			}
			if c.workflow != nil {
				dynObjs = append(dynObjs, c.workflow)
			}
			dyn := dynamicClient(dynObjs...)
			if c.forbid {
				dyn.PrependReactor("get", "workflows", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "argoproj.io", Resource: "workflows"}, "roll", errors.New("no"))
				})
			}
			o := options(control{})
			o.Mode = cluster.Skip
			s, err := cluster.New(kubefake.NewSimpleClientset(objs...), dyn, o).Read(context.Background())
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(c.want, s.Lease))
		})
	}
}
