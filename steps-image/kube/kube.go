// Package kube gives the steps the few things that they need of Kubernetes.
//
// It goes through the dynamic client: the typed ones bring every API group along, which would make up most of the step
// binary and of its start.
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/versions"
	"github.com/atewf/atewf/steps-image/steps"
)

var (
	nodes     = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	events    = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	leases    = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	workflows = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
)

// page is how many objects one request of a list asks for.
const page = 500

// Client implements steps.Kube.
type Client struct {
	dyn  dynamic.Interface
	rest *rest.RESTClient // for what is no object: the log of a pod
	now  func() time.Time
}

var _ steps.Kube = (*Client)(nil)

// New makes a Client. A step makes few requests and waits by itself, so the client does not limit them.
func New(cfg *rest.Config, now func() time.Time) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.Timeout = 60 * time.Second
	cfg.UserAgent = roll.FieldManager
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	cfg.GroupVersion = &schema.GroupVersion{Version: "v1"}
	cfg.APIPath = "/api"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	rc, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	return &Client{dyn: dyn, rest: rc, now: now}, nil
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

func untyped(o any, gvk schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(gvk)
	return u, nil
}

// each calls fn with every object of a list, page by page.
func each[T any](ctx context.Context, ri dynamic.ResourceInterface, o metav1.ListOptions, fn func(*T)) error {
	o.Limit = page
	for {
		l, err := ri.List(ctx, o)
		if err != nil {
			return err
		}
		for i := range l.Items {
			t, err := typed[T](&l.Items[i])
			if err != nil {
				return err
			}
			fn(t)
		}
		if o.Continue = l.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// Node reads a node.
func (c *Client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	u, err := c.dyn.Resource(nodes).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[corev1.Node](u)
}

// ReadyNodes counts Ready nodes by version label.
func (c *Client) ReadyNodes(ctx context.Context, except string, of ...string) (int, error) {
	n := 0
	err := each(ctx, c.dyn.Resource(nodes), metav1.ListOptions{LabelSelector: fmt.Sprintf("%s in (%s)", versions.Label, strings.Join(of, ","))}, func(node *corev1.Node) {
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue && node.Name != except {
				n++
			}
		}
	})
	return n, err
}

// PatchNode applies a JSON patch to a node.
func (c *Client) PatchNode(ctx context.Context, name string, patch []steps.PatchOp) error {
	b, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(nodes).Patch(ctx, name, types.JSONPatchType, b, metav1.PatchOptions{FieldManager: roll.FieldManager})
	return err
}

func (c *Client) podList(ctx context.Context, namespace, labels, fields string) ([]corev1.Pod, error) {
	var out []corev1.Pod
	err := each(ctx, c.dyn.Resource(pods).Namespace(namespace), metav1.ListOptions{LabelSelector: labels, FieldSelector: fields}, func(p *corev1.Pod) {
		out = append(out, *p)
	})
	return out, err
}

// WorkerPods lists the worker pods on a node.
func (c *Client) WorkerPods(ctx context.Context, node string) ([]corev1.Pod, error) {
	return c.podList(ctx, metav1.NamespaceAll, versions.WorkerPoolLabel, "spec.nodeName="+node)
}

// UnscheduledWorkerPods lists the worker pods without a node.
func (c *Client) UnscheduledWorkerPods(ctx context.Context) ([]corev1.Pod, error) {
	return c.podList(ctx, metav1.NamespaceAll, versions.WorkerPoolLabel, "spec.nodeName=,status.phase=Pending")
}

// AteletPods lists the atelet pods on a node, and those that were made for it and wait to be scheduled there: a pod of a
// DaemonSet names its node by an affinity until then.
func (c *Client) AteletPods(ctx context.Context, namespace, node string) ([]corev1.Pod, error) {
	here, err := c.podList(ctx, namespace, versions.AteletSelector, "spec.nodeName="+node)
	if err != nil {
		return nil, err
	}
	waiting, err := c.podList(ctx, namespace, versions.AteletSelector, "spec.nodeName=")
	if err != nil {
		return nil, err
	}
	for _, p := range waiting {
		if madeFor(&p, node) {
			here = append(here, p)
		}
	}
	return here, nil
}

// madeFor reports whether a pod may go to no other node than this one.
func madeFor(p *corev1.Pod, node string) bool {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && slices.Contains(f.Values, node) {
				return true
			}
		}
	}
	return false
}

// DeletePod deletes the pod with the UID.
func (c *Client) DeletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	return c.dyn.Resource(pods).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

// LogTail reads the end of a pod's log.
func (c *Client) LogTail(ctx context.Context, namespace, pod string, lines int64) (string, error) {
	b, err := c.rest.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("log").
		Param("tailLines", fmt.Sprint(lines)).Param("limitBytes", "4096").Do(ctx).Raw()
	return string(b), err
}

// Lease reads a Lease.
func (c *Client) Lease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	u, err := c.dyn.Resource(leases).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return typed[coordinationv1.Lease](u)
}

// CreateLease makes a Lease.
func (c *Client) CreateLease(ctx context.Context, l *coordinationv1.Lease) error {
	u, err := untyped(l, coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(leases).Namespace(l.Namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: roll.FieldManager})
	return err
}

// UpdateLease replaces a Lease that has not changed since it was read.
func (c *Client) UpdateLease(ctx context.Context, l *coordinationv1.Lease) error {
	u, err := untyped(l, coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(leases).Namespace(l.Namespace).Update(ctx, u, metav1.UpdateOptions{FieldManager: roll.FieldManager})
	return err
}

// WorkflowPhase reads how a Workflow stands.
func (c *Client) WorkflowPhase(ctx context.Context, namespace, name string) (uid, phase string, err error) {
	u, err := c.dyn.Resource(workflows).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	phase, _, err = unstructured.NestedString(u.Object, "status", "phase")
	return string(u.GetUID()), phase, err
}

// Event records something about a node. Events of nodes live in the namespace default, and carry the node's name as the
// UID, as those of the kubelet do: kubectl describe finds them by it.
func (c *Client) Event(ctx context.Context, node *corev1.Node, kind, reason, message string) error {
	now := metav1.NewTime(c.now())
	const most = 1024 // what the API server allows
	if len(message) > most {
		message = message[:most]
	}
	ev := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "atewf-", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: types.UID(node.Name)},
		Reason:         reason, Message: message, Type: kind, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: roll.FieldManager},
		ReportingController: "atewf.dev/steps",
	}
	u, err := untyped(ev, corev1.SchemeGroupVersion.WithKind("Event"))
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(events).Namespace(ev.Namespace).Create(ctx, u, metav1.CreateOptions{})
	return err
}
