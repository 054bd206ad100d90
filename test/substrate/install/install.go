// Package install puts the simulated Substrate on a cluster, in the shapes of objects that the real installer makes, and
// takes every trace of an earlier one away first.
package install

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/atewf/atewf/test/substrate/plane"
	"github.com/atewf/atewf/test/substrate/proto"
	"github.com/atewf/atewf/test/substrate/sim"
)

//go:embed workerpools.yaml
var crd []byte

const (
	// Namespace is where the control plane and the atelets are.
	Namespace = "ate-system"
	// PoolNamespace is where the worker pools are.
	PoolNamespace = "agents"
	// VersionLabel is the version label.
	VersionLabel = "ate.dev/substrate-version"
	manager      = "ate-setup"
)

// Options of an installation.
type Options struct {
	API      proto.Generation
	Old, New string // versions; New "" leaves the second atelet and the clones out
	Image    string // of the simulator; it must be on the nodes
	Capacity int32  // actors that a worker takes; 1 in the runbook's generation
	// ControlNode is the node that the control plane runs on. It should not be one that a test lets vanish.
	ControlNode string
	Replicas    int32 // of each pool
	// WorkflowNamespace is where the Workflows of earlier rolls are removed; argo when empty.
	WorkflowNamespace string
}

// Installer installs on one cluster.
type Installer struct {
	Kube kubernetes.Interface
	Dyn  dynamic.Interface
	o    Options
}

// New makes an Installer.
func New(cfg *rest.Config, o Options) (*Installer, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	if o.Capacity == 0 {
		o.Capacity = 1
	}
	if o.WorkflowNamespace == "" {
		o.WorkflowNamespace = "argo"
	}
	if o.Replicas == 0 {
		o.Replicas = 6
	}
	return &Installer{Kube: cs, Dyn: dyn, o: o}, nil
}

// AdminURL is where the control plane takes faults and stimuli.
func AdminURL() string { return fmt.Sprintf("http://api.%s.svc:%d", Namespace, plane.AdminPort) }

func (i *Installer) admin() plane.Client { return plane.Client{URL: AdminURL()} }

// Run removes what is there, installs afresh, and waits until every pool has all its workers.
func (i *Installer) Run(ctx context.Context) error {
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"removing what was there", i.wipe},
		{"applying the base", i.base},
		{"labelling the nodes", i.label},
		{"applying the atelets and worker pools", i.dataplane},
		{"waiting for the workers", i.ready},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

var workflows = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}

// absent treats what is not there as removed.
func absent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// wipe removes workflows, pools, workers, atelets, the Lease, and what the nodes carry. The control plane stays where its
// generation does.
func (i *Installer) wipe(ctx context.Context) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	all := metav1.ListOptions{}
	if err := absent(i.Dyn.Resource(workflows).Namespace(i.o.WorkflowNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all)); err != nil {
		return err
	}
	if err := absent(i.Dyn.Resource(plane.Pools).Namespace(PoolNamespace).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, all)); err != nil {
		return err
	}
	if err := i.Kube.AppsV1().Deployments(PoolNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	if err := i.Kube.AppsV1().DaemonSets(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	if err := absent(i.Kube.CoordinationV1().Leases(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all)); err != nil {
		return err
	}
	// Pods of Deployments that are just going may still be made: delete until none comes.
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		left := 0
		for ns, sel := range map[string]string{PoolNamespace: "", Namespace: "app=atelet"} {
			pods, err := i.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: sel})
			if err != nil {
				return false, err
			}
			left += len(pods.Items)
			for _, p := range pods.Items {
				if err := absent(i.Kube.CoreV1().Pods(ns).Delete(ctx, p.Name, now)); err != nil {
					return false, err
				}
			}
		}
		return left == 0, nil
	})
	if err != nil {
		return err
	}
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		drop := map[string]any{}
		for k := range n.Annotations {
			if strings.HasPrefix(k, "atewf.dev/") {
				drop[k] = nil
			}
		}
		if err := i.patchNode(ctx, n.Name, map[string]any{"annotations": drop, "labels": map[string]any{VersionLabel: nil}}); err != nil {
			return err
		}
	}
	return nil
}

func (i *Installer) patchNode(ctx context.Context, name string, meta map[string]any) error {
	b, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	_, err = i.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, b, metav1.PatchOptions{})
	return err
}

// kvm is what a microvm worker needs of its node; a node has as much as two of them need.
const kvm = "ate.dev/kvm"

// label gives every node the old version, and room for two microvm workers.
func (i *Installer) label(ctx context.Context) error {
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if err := i.patchNode(ctx, n.Name, map[string]any{"labels": map[string]any{VersionLabel: i.o.Old}}); err != nil {
			return err
		}
		room := []byte(fmt.Sprintf(`{"status": {"capacity": {%q: "2"}, "allocatable": {%q: "2"}}}`, kvm, kvm))
		if _, err := i.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, room, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// apply applies objects on the server side.
func (i *Installer) apply(ctx context.Context, objs ...any) error {
	for _, o := range objs {
		b, err := json.Marshal(o)
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(b); err != nil {
			return err
		}
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		gvk := u.GroupVersionKind()
		resource := strings.ToLower(gvk.Kind) + "s"
		ri := i.Dyn.Resource(gvk.GroupVersion().WithResource(resource))
		var to dynamic.ResourceInterface = ri
		if ns := u.GetNamespace(); ns != "" {
			to = ri.Namespace(ns)
		}
		if _, err := to.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true}); err != nil {
			return fmt.Errorf("%s %s: %w", gvk.Kind, u.GetName(), err)
		}
	}
	return nil
}

func meta(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

func core(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

func rbac(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: kind}
}

// base applies what does not depend on a version: the CRD, the control plane and its rights.
func (i *Installer) base(ctx context.Context) error {
	var def map[string]any
	if err := yaml.Unmarshal(crd, &def); err != nil {
		return err
	}
	objs := []any{def, &corev1.Namespace{TypeMeta: core("Namespace"), ObjectMeta: meta("", Namespace, nil)}, &corev1.Namespace{TypeMeta: core("Namespace"), ObjectMeta: meta("", PoolNamespace, nil)}}
	for _, sa := range []string{"ate-api-server", "ate-controller", "ate-client", "atelet"} {
		objs = append(objs, &corev1.ServiceAccount{TypeMeta: core("ServiceAccount"), ObjectMeta: meta(Namespace, sa, nil)})
	}
	role := func(sa string, rules ...rbacv1.PolicyRule) {
		name := "sim:" + sa
		objs = append(objs, &rbacv1.ClusterRole{TypeMeta: rbac("ClusterRole"), ObjectMeta: meta("", name, nil), Rules: rules},
			&rbacv1.ClusterRoleBinding{TypeMeta: rbac("ClusterRoleBinding"), ObjectMeta: meta("", name, nil),
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: Namespace, Name: sa}}})
	}
	role("ate-api-server",
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"get", "create", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"servicedns.podcert.ate.dev/*"}, Verbs: []string{"attest"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}})
	role("ate-controller",
		rbacv1.PolicyRule{APIGroups: []string{"ate.dev"}, Resources: []string{"workerpools", "workerpools/status", "workerpools/finalizers"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}})
	objs = append(objs, &corev1.Service{TypeMeta: core("Service"), ObjectMeta: meta(Namespace, "api", nil), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "ate-api-server"}, PublishNotReadyAddresses: false,
		Ports: []corev1.ServicePort{{Name: "grpc", Port: 443, TargetPort: intstr.FromInt32(443)}, {Name: "admin", Port: plane.AdminPort, TargetPort: intstr.FromInt32(plane.AdminPort)}}}})
	if err := i.apply(ctx, objs...); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := i.Dyn.Resource(plane.Pools).List(ctx, metav1.ListOptions{})
		return err == nil, absent(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for the CRD to be served: %w", err)
	}
	if err := i.apply(ctx,
		i.component("ate-api-server", []string{"apiserver", "--api=" + string(i.o.API), "--state=/state"}, []corev1.ContainerPort{{ContainerPort: 443}}),
		i.component("ate-controller", []string{"controller", fmt.Sprintf("--capacity=%d", i.o.Capacity)}, nil)); err != nil {
		return err
	}
	for _, name := range []string{"ate-api-server", "ate-controller"} {
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
			d, err := i.Kube.AppsV1().Deployments(Namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 && d.Status.AvailableReplicas == 1 && d.Status.Replicas == 1, err
		})
		if err != nil {
			return fmt.Errorf("waiting for Deployment %s: %w", name, err)
		}
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return i.admin().Do(ctx, "DELETE", "/all", nil, nil) == nil, nil
	})
}

func (i *Installer) component(name string, args []string, ports []corev1.ContainerPort) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	c := corev1.Container{Name: "main", Image: i.o.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, Ports: ports,
		VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: "/state"}},
		Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(10, resource.DecimalSI)}}}
	if name == "ate-api-server" {
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(443)}}, PeriodSeconds: 1}
	}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta(Namespace, name, labels),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels}, Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				ServiceAccountName: name, TerminationGracePeriodSeconds: ptr.To[int64](2), NodeSelector: map[string]string{corev1.LabelHostname: i.o.ControlNode},
				SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)},
				Containers:      []corev1.Container{c}, Volumes: []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}},
		},
	}
}

// Suffix makes the suffix of a DaemonSet's name from a version, as the installer does.
func Suffix(version string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(version) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}

// Atelet is the DaemonSet of a version.
func (i *Installer) Atelet(version string) *appsv1.DaemonSet {
	labels := map[string]string{"app": "atelet", VersionLabel: version}
	return &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: meta(Namespace, "atelet-"+Suffix(version), labels),
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				PriorityClassName:  "system-node-critical", // as the real one has a class of its own
				ServiceAccountName: "atelet", NodeSelector: map[string]string{VersionLabel: version}, TerminationGracePeriodSeconds: ptr.To[int64](330), AutomountServiceAccountToken: ptr.To(false),
				Tolerations:     []corev1.Toleration{{Key: "ate.dev/sandboxClass", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
				SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)},
				Containers: []corev1.Container{{
					Name: "atelet", Image: i.o.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"atelet", "--version=" + version, "--dir=/local"},
					Ports:          []corev1.ContainerPort{{ContainerPort: plane.AteletPort, HostPort: plane.AteletPort}, {ContainerPort: plane.AteletReadyPort, HostPort: plane.AteletReadyPort}},
					ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(plane.AteletReadyPort)}}, PeriodSeconds: 1},
					VolumeMounts:   []corev1.VolumeMount{{Name: "local", MountPath: "/local"}},
					Resources:      corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(10, resource.DecimalSI)}},
				}},
				Volumes: []corev1.Volume{{Name: "local", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run/ate-local", Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}}},
			},
		}},
	}
}

// Pool is a WorkerPool of a sandbox class, pinned to a version. Two workers of each class fit on a node: gvisor workers
// take up its processors, microvm workers its room for virtual machines.
func (i *Installer) Pool(name, class, version string, milliCPU int64) map[string]any {
	resources := map[string]any{"requests": map[string]any{"cpu": fmt.Sprintf("%dm", milliCPU)}}
	if class == "microvm" {
		resources = map[string]any{"requests": map[string]any{kvm: "1"}, "limits": map[string]any{kvm: "1"}}
	}
	return map[string]any{
		"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool",
		"metadata": map[string]any{"namespace": PoolNamespace, "name": name, "labels": map[string]any{"team": "agents", "sandbox": class}},
		"spec": map[string]any{
			"replicas": i.o.Replicas, "workerImage": i.o.Image, "sandboxClass": class,
			"template": map[string]any{
				"nodeSelector": map[string]any{VersionLabel: version},
				"resources":    resources,
			},
		},
	}
}

// dataplane applies the atelets and pools of the old version, and what steps 4 and 5 of the runbook add for the new one.
func (i *Installer) dataplane(ctx context.Context) error {
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) == 0 {
		return fmt.Errorf("the cluster has no nodes")
	}
	// Two of them fit beside everything else, and a third one never does.
	cpu := nodes.Items[0].Status.Allocatable.Cpu().MilliValue() * 2 / 5
	classes := map[string]string{"counter": "gvisor", "micro": "microvm"}
	objs := []any{i.Atelet(i.o.Old)}
	for name, class := range classes {
		objs = append(objs, i.Pool(name, class, i.o.Old, cpu))
	}
	if err := i.apply(ctx, objs...); err != nil {
		return err
	}
	if i.o.New == "" {
		return nil
	}
	objs = []any{i.Atelet(i.o.New)}
	for name, class := range classes {
		objs = append(objs, i.Pool(name+"-"+Suffix(i.o.New), class, i.o.New, cpu))
	}
	return i.apply(ctx, objs...)
}

// ready waits until every worker of the old version is registered, and every atelet Ready.
func (i *Installer) ready(ctx context.Context) error {
	last := ""
	err := wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		active := map[string]int{}
		workers, err := i.admin().Workers(ctx)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		for _, w := range workers {
			if w.State == sim.Active {
				active[w.Pool]++
			}
		}
		ds, err := i.Kube.AppsV1().DaemonSets(Namespace).Get(ctx, "atelet-"+Suffix(i.o.Old), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pools, err := i.Dyn.Resource(plane.Pools).Namespace(PoolNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		settled := true
		for _, p := range pools.Items {
			ready, _, _ := unstructured.NestedInt64(p.Object, "status", "readyReplicas")
			pin, _, _ := unstructured.NestedString(p.Object, "spec", "template", "nodeSelector", VersionLabel)
			if pin == i.o.Old && ready != int64(i.o.Replicas) {
				settled = false
			}
		}
		last = fmt.Sprintf("workers %v, atelets %d of %d, pools settled %t", active, ds.Status.NumberReady, ds.Status.DesiredNumberScheduled, settled)
		return settled && active["counter"] == int(i.o.Replicas) && active["micro"] == int(i.o.Replicas) && ds.Status.NumberReady == ds.Status.DesiredNumberScheduled && ds.Status.NumberReady > 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w; at last: %s", err, last)
	}
	return nil
}

// Seed makes actors: running ones spread over both classes, then paused ones. Each has run, so that it has an identity.
func (i *Installer) Seed(ctx context.Context, running, paused int) error {
	admin := i.admin()
	for n := range running + paused {
		a := sim.Actor{Atespace: "default", Name: fmt.Sprintf("actor-%02d", n), Class: []string{"gvisor", "microvm"}[n%2], Selector: map[string]string{"team": "agents"}}
		if err := admin.Do(ctx, "POST", "/actors", a, nil); err != nil {
			return err
		}
		if err := admin.Do(ctx, "POST", "/resume", plane.Act{Actor: a.Key()}, nil); err != nil {
			return err
		}
	}
	for n := running; n < running+paused; n++ {
		if err := admin.Do(ctx, "POST", "/pause", plane.Act{Actor: fmt.Sprintf("default/actor-%02d", n)}, nil); err != nil {
			return err
		}
	}
	return nil
}
