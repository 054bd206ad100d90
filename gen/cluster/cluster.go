// Package cluster reads a snapshot from a live cluster: Kubernetes through its API server, and the Control API of Agent
// Substrate where it can be reached.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

var (
	workerPools = schema.GroupVersionResource{Group: "ate.dev", Version: "v1alpha1", Resource: "workerpools"}
	workflows   = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
)

// page is how many objects one request of a list asks for: some five megabytes of pods.
const page = 500

// Control is what is read of the Control API.
type Control interface {
	Workers(ctx context.Context) ([]substrate.Worker, error)
	EachActor(ctx context.Context, fn func(substrate.Actor) error) error
	// ServesDrain asks, with a name that no worker has, whether draining works at all.
	ServesDrain(ctx context.Context) error
	Close() error
}

// Mode says what to do about the Control API.
type Mode string

const (
	// Auto reads it where it can be reached, and goes on without it otherwise.
	Auto Mode = "auto"
	// Require fails where it cannot be reached.
	Require Mode = "require"
	// Skip does not try.
	Skip Mode = "skip"
)

// Options say what is read and how.
type Options struct {
	// Cluster names the cluster for people.
	Cluster snapshot.Cluster
	// Namespace is where Agent Substrate is installed.
	Namespace string
	Mode      Mode
	// Dial connects to the Control API; see Dialer. It is not called in mode Skip.
	Dial func(ctx context.Context) (Control, error)
	// Now is the clock that dates the snapshot.
	Now func() time.Time
}

// Reader reads snapshots.
type Reader struct {
	kube kubernetes.Interface
	dyn  dynamic.Interface
	o    Options
}

// New makes a Reader.
func New(kube kubernetes.Interface, dyn dynamic.Interface, o Options) *Reader {
	return &Reader{kube: kube, dyn: dyn, o: o}
}

// Read reads the cluster once. The parts are read one after the other, so they may be some seconds apart; the steps
// look again at all of it when their turn comes.
func (r *Reader) Read(ctx context.Context) (*snapshot.Snapshot, error) {
	s := &snapshot.Snapshot{Cluster: r.o.Cluster, Namespace: r.o.Namespace}
	for _, part := range []struct {
		what string
		read func(context.Context, *snapshot.Snapshot) error
	}{
		{"the nodes", r.nodes}, // first, because it tells soonest that there is no cluster
		// Workers before pods: a worker without a pod in the later list is one whose pod is gone.
		{"the Control API", r.control},
		{"the worker pools", r.pools},
		{"the atelet DaemonSets", r.atelets},
		{"the worker pods", r.pods},
		{"the Lease of the roll", r.lease},
	} {
		if err := part.read(ctx, s); err != nil {
			return nil, fmt.Errorf("reading %s: %w", part.what, hint(err))
		}
	}
	s.Taken = r.o.Now().UTC().Truncate(time.Second)
	s.Sort()
	return s, nil
}

// hint adds the way out where an error of the API server does not tell it.
func hint(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; log in to the cluster again", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; ask for the right to list it, or pass another --context or --as", err)
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && !errors.Is(err, context.Canceled):
		var own *ControlError
		if errors.As(err, &own) {
			return err
		}
		return fmt.Errorf("%w; check that the cluster is up, and --context, --kubeconfig and --server", err)
	}
	return err
}

// each lists page by page and calls fn with each object.
func each[L metav1.ListInterface](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, fn func(L) error) error {
	o.Limit = page
	for {
		l, err := list(ctx, o)
		if err != nil {
			return err
		}
		if err := fn(l); err != nil {
			return err
		}
		if o.Continue = l.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

func (r *Reader) nodes(ctx context.Context, s *snapshot.Snapshot) error {
	return each(ctx, r.kube.CoreV1().Nodes().List, metav1.ListOptions{}, func(l *corev1.NodeList) error {
		for i := range l.Items {
			n := &l.Items[i]
			out := snapshot.Node{
				Name: n.Name, Labels: n.Labels, Unschedulable: n.Spec.Unschedulable,
				Stamp: n.Annotations[roll.StampAnnotation], Created: n.CreationTimestamp.UTC(),
			}
			for _, t := range n.Spec.Taints {
				t.TimeAdded = nil // it changes without meaning anything
				out.Taints = append(out.Taints, t)
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					out.Ready = c.Status == corev1.ConditionTrue
				}
			}
			s.Nodes = append(s.Nodes, out)
		}
		return nil
	})
}

func (r *Reader) pools(ctx context.Context, s *snapshot.Snapshot) error {
	err := each(ctx, r.dyn.Resource(workerPools).List, metav1.ListOptions{}, func(l *unstructured.UnstructuredList) error {
		for i := range l.Items {
			p, err := pool(&l.Items[i])
			if err != nil {
				return err
			}
			s.Pools = append(s.Pools, p)
		}
		return nil
	})
	s.PoolsServed = !apierrors.IsNotFound(err)
	if !s.PoolsServed {
		return nil // the plan says so
	}
	return err
}

// pool takes from a WorkerPool what is known of it, and its spec whole.
func pool(u *unstructured.Unstructured) (snapshot.Pool, error) {
	p := snapshot.Pool{Namespace: u.GetNamespace(), Name: u.GetName(), Labels: u.GetLabels()}
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	if err != nil {
		return p, fmt.Errorf("worker pool %s: %w", p, err)
	}
	if p.Spec, err = json.Marshal(spec); err != nil {
		return p, fmt.Errorf("worker pool %s: %w", p, err)
	}
	str := func(path ...string) string {
		v, _, _ := unstructured.NestedString(spec, path...)
		return v
	}
	if p.Image = str("workerImage"); p.Image == "" {
		p.Image = str("ateomImage") // its name in the first releases
	}
	if p.Class = str("sandboxClass"); p.Class == "" {
		p.Class = firstClass(spec)
	}
	p.Pin = str("template", "nodeSelector", versions.Label)
	p.Replicas, _, _ = unstructured.NestedInt64(spec, "replicas")
	p.Ready, _, _ = unstructured.NestedInt64(u.Object, "status", "readyReplicas")
	return p, nil
}

// firstClass is the class of a pool of a later release, which lists them; gvisor where none is given.
func firstClass(spec map[string]any) string {
	list, _, _ := unstructured.NestedSlice(spec, "sandboxClasses")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			if name, ok := m["name"].(string); ok {
				return name
			}
		}
	}
	return "gvisor"
}

func (r *Reader) atelets(ctx context.Context, s *snapshot.Snapshot) error {
	return each(ctx, r.kube.AppsV1().DaemonSets(r.o.Namespace).List, metav1.ListOptions{LabelSelector: versions.AteletSelector}, func(l *appsv1.DaemonSetList) error {
		for i := range l.Items {
			d := &l.Items[i]
			out := snapshot.DaemonSet{
				Name: d.Name, Version: d.Labels[versions.Label], Created: d.CreationTimestamp.UTC(),
				Desired: d.Status.DesiredNumberScheduled, Ready: d.Status.NumberReady,
				NodeSelector: d.Spec.Template.Spec.NodeSelector, Tolerations: d.Spec.Template.Spec.Tolerations,
			}
			if a := d.Spec.Template.Spec.Affinity; a != nil && a.NodeAffinity != nil {
				out.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			}
			s.Atelets = append(s.Atelets, out)
		}
		return nil
	})
}

func (r *Reader) pods(ctx context.Context, s *snapshot.Snapshot) error {
	return each(ctx, r.kube.CoreV1().Pods(metav1.NamespaceAll).List, metav1.ListOptions{LabelSelector: versions.WorkerPoolLabel}, func(l *corev1.PodList) error {
		for i := range l.Items {
			p := &l.Items[i]
			out := snapshot.Pod{
				Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Pool: p.Labels[versions.WorkerPoolLabel],
				Pin: versions.PodPin(p), Node: p.Spec.NodeName, Phase: p.Status.Phase, Terminating: p.DeletionTimestamp != nil,
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady {
					out.Ready = c.Status == corev1.ConditionTrue
				}
			}
			s.Pods = append(s.Pods, out)
		}
		return nil
	})
}

func (r *Reader) lease(ctx context.Context, s *snapshot.Snapshot) error {
	l, err := r.kube.CoordinationV1().Leases(r.o.Namespace).Get(ctx, roll.LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.Lease = &snapshot.Lease{Holder: ptr.Deref(l.Spec.HolderIdentity, ""), Node: l.Annotations[roll.NodeInHandAnnotation]}
	h, err := roll.ParseHolder(s.Lease.Holder)
	if err != nil {
		return nil // the plan says so
	}
	wf, err := r.dyn.Resource(workflows).Namespace(h.Namespace).Get(ctx, h.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && string(wf.GetUID()) != h.UID:
		s.Lease.Workflow = snapshot.WorkflowEnded
	case err != nil:
		s.Lease.Why = err.Error()
	default:
		s.Lease.Workflow = snapshot.WorkflowLive
		switch phase, _, _ := unstructured.NestedString(wf.Object, "status", "phase"); phase {
		case "Succeeded", "Failed", "Error":
			s.Lease.Workflow = snapshot.WorkflowEnded
		}
	}
	return nil
}
