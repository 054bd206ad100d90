package plane

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/test/substrate/sim"
)

// Pools is the resource of WorkerPools.
var Pools = schema.GroupVersionResource{Group: "ate.dev", Version: "v1alpha1", Resource: "workerpools"}

// poolLabel is on every worker pod.
const poolLabel = "ate.dev/worker-pool"

// Registry is where the controller tells of workers: the control plane's records.
type Registry interface {
	Workers(ctx context.Context) ([]sim.Worker, error)
	Register(ctx context.Context, w sim.Worker) error
	Drain(ctx context.Context, name string) error
	Delete(ctx context.Context, name string) error
}

// Controller renders WorkerPools to Deployments and registers their pods as workers.
type Controller struct {
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Registry Registry
	// Capacity is how many actors a worker takes.
	Capacity int32
}

// pool is what the controller reads of a WorkerPool.
type pool struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas       int32  `json:"replicas"`
		WorkerImage    string `json:"workerImage"`
		SandboxClass   string `json:"sandboxClass"`
		SandboxClasses []struct {
			Name string `json:"name"`
		} `json:"sandboxClasses"`
		Template struct {
			Labels       map[string]string           `json:"labels"`
			NodeSelector map[string]string           `json:"nodeSelector"`
			Tolerations  []corev1.Toleration         `json:"tolerations"`
			Resources    corev1.ResourceRequirements `json:"resources"`
		} `json:"template"`
	} `json:"spec"`
}

func (p *pool) class() string {
	switch {
	case p.Spec.SandboxClass != "":
		return p.Spec.SandboxClass
	case len(p.Spec.SandboxClasses) > 0:
		return p.Spec.SandboxClasses[0].Name
	}
	return "gvisor"
}

// Run brings the cluster in line every so often, until the context ends.
func (c *Controller) Run(ctx context.Context, every time.Duration) error {
	for {
		if err := c.Reconcile(ctx); err != nil && ctx.Err() == nil {
			log.Printf("reconciling: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// Reconcile looks at everything once.
func (c *Controller) Reconcile(ctx context.Context) error {
	list, err := c.Dynamic.Resource(Pools).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing worker pools: %w", err)
	}
	deployments, err := c.Kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: poolLabel})
	if err != nil {
		return fmt.Errorf("listing deployments: %w", err)
	}
	have := map[string]*appsv1.Deployment{}
	for i := range deployments.Items {
		have[deployments.Items[i].Namespace+"/"+deployments.Items[i].Name] = &deployments.Items[i]
	}
	pools := map[string]*pool{}
	for i := range list.Items {
		u := &list.Items[i]
		p := &pool{}
		b, err := u.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(b, p)
		}
		if err != nil {
			return fmt.Errorf("reading worker pool %s/%s: %w", u.GetNamespace(), u.GetName(), err)
		}
		pools[p.Namespace+"/"+p.Name] = p
		if err := c.render(ctx, u, p, have[p.Namespace+"/"+p.Name]); err != nil {
			return err
		}
	}
	return c.workers(ctx, pools)
}

const renderedFrom = "sim.ate.dev/rendered-from"

func (c *Controller) render(ctx context.Context, u *unstructured.Unstructured, p *pool, d *appsv1.Deployment) error {
	spec, err := json.Marshal(p.Spec)
	if err != nil {
		return err
	}
	if p.DeletionTimestamp == nil && (d == nil || d.Annotations[renderedFrom] != string(spec)) {
		b, err := json.Marshal(deployment(p, string(spec)))
		if err != nil {
			return err
		}
		if _, err := c.Kube.AppsV1().Deployments(p.Namespace).Patch(ctx, p.Name, types.ApplyPatchType, b, metav1.PatchOptions{FieldManager: "ate-controller", Force: ptr.To(true)}); err != nil {
			return fmt.Errorf("rendering worker pool %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	if d == nil {
		return nil
	}
	want := map[string]any{"replicas": int64(d.Status.Replicas), "readyReplicas": int64(d.Status.ReadyReplicas), "selector": poolLabel + "=" + p.Name}
	if got, _, _ := unstructured.NestedMap(u.Object, "status"); maps.EqualFunc(got, want, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		return nil
	}
	b, err := json.Marshal(map[string]any{"status": want})
	if err != nil {
		return err
	}
	_, err = c.Dynamic.Resource(Pools).Namespace(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, b, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of worker pool %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

func deployment(p *pool, spec string) *appsv1.Deployment {
	labels := map[string]string{poolLabel: p.Name}
	maps.Copy(labels, p.Spec.Template.Labels)
	ready := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(WorkerPort)}}, PeriodSeconds: 1}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: labels, Annotations: map[string]string{renderedFrom: spec},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "ate.dev/v1alpha1", Kind: "WorkerPool", Name: p.Name, UID: p.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &p.Spec.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{poolLabel: p.Name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: p.Spec.Template.NodeSelector,
					Tolerations: append([]corev1.Toleration{{Key: "ate.dev/sandboxClass", Operator: corev1.TolerationOpEqual, Value: p.class(), Effect: corev1.TaintEffectNoSchedule}},
						p.Spec.Template.Tolerations...),
					TerminationGracePeriodSeconds: ptr.To[int64](3600),
					AutomountServiceAccountToken:  ptr.To(false),
					EnableServiceLinks:            ptr.To(false),
					Containers: []corev1.Container{{Name: "ateom", Image: p.Spec.WorkerImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"worker"},
						Resources: p.Spec.Template.Resources, ReadinessProbe: ready}},
				},
			},
		},
	}
}

// workers brings the records of the workers in line with the pods.
func (c *Controller) workers(ctx context.Context, pools map[string]*pool) error {
	// The records first: a worker that registers later has a pod in the list.
	records, err := c.Registry.Workers(ctx)
	if err != nil {
		return fmt.Errorf("listing workers: %w", err)
	}
	pods, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: poolLabel})
	if err != nil {
		return fmt.Errorf("listing worker pods: %w", err)
	}
	known := map[string]sim.Worker{}
	for _, w := range records {
		known[w.Name] = w
	}
	there := map[string]bool{}
	for _, p := range pods.Items {
		uid := string(p.UID)
		there[uid] = true
		w, registered := known[uid]
		switch {
		case p.DeletionTimestamp != nil:
			if registered && w.State != sim.Draining {
				if err := c.Registry.Drain(ctx, uid); err != nil {
					return err
				}
			}
		case podReady(&p) && p.Status.PodIP != "":
			n := sim.Worker{Name: uid, Namespace: p.Namespace, Pool: p.Labels[poolLabel], Pod: p.Name, PodUID: uid, Node: p.Spec.NodeName, IP: p.Status.PodIP, Capacity: c.Capacity}
			if pl := pools[p.Namespace+"/"+n.Pool]; pl != nil {
				n.Labels, n.Class = pl.Labels, pl.class()
			} else {
				n.Labels, n.Class = w.Labels, w.Class
			}
			if !registered || !maps.Equal(n.Labels, w.Labels) {
				if err := c.Registry.Register(ctx, n); err != nil {
					return err
				}
			}
		}
	}
	for uid := range known {
		if !there[uid] {
			if err := c.Registry.Delete(ctx, uid); err != nil {
				return err
			}
		}
	}
	return nil
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
