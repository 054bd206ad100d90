//go:build bed

package bed

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// These run inside the bed, by "bed check". Each has a namespace of its own, so that they can be repeated.

const patience = 90 * time.Second

func clients(t *testing.T) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	dyn, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return client, dyn
}

// namespace makes one that is gone again when the next test begins.
func namespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	made, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "check-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{}))
		eventually(t, "namespace "+made.Name+" is gone", func() bool {
			_, err := client.CoreV1().Namespaces().Get(ctx, made.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
	// No pod can be made before the controller manager has given the namespace its service account.
	eventually(t, "the service account is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts(made.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return made.Name
}

func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	require.Eventually(t, true, patience, 200*time.Millisecond, what)
}

// pod is one that runs the probe, with the fields that a test cares for.
func pod(name string, change func(*corev1.PodSpec), args ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "probe", Image: "docker.io/local/probe:1", Args: args}},
		},
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func start(t *testing.T, client kubernetes.Interface, ns string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	_, err := client.CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{})
	require.NoError(t, err)
	var got *corev1.Pod
	eventually(t, "pod "+p.Name+" is Ready", func() bool {
		got, err = client.CoreV1().Pods(ns).Get(t.Context(), p.Name, metav1.GetOptions{})
		return err == nil && ready(got)
	})
	return got
}

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// run runs a command, in a pod when it is kubectl exec, and returns what it printed.
func run(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), args[0], args[1:]...)
	command.Stdout, command.Stderr = &stdout, &stderr
	require.NoError(t, command.Run(), "%s: %s", strings.Join(args, " "), &stderr)
	return strings.TrimSpace(stdout.String())
}

func inPod(ns, pod string, args ...string) []string {
	return append([]string{"kubectl", "exec", "-n", ns, pod, "--", "/probe"}, args...)
}

func nodes(t *testing.T, client kubernetes.Interface) []corev1.Node {
	t.Helper()
	list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list.Items), 3, "start the bed with three nodes")
	return list.Items
}

func TestNodesHaveNamesZonesAndAddresses(t *testing.T) {
	client, _ := clients(t)
	for i, node := range nodes(t, client)[:3] {
		require.Equal(t, fmt.Sprintf("node%d", i+1), node.Name)
		require.Equal(t, []string{"zone-a", "zone-b", "zone-c"}[i], node.Labels[corev1.LabelTopologyZone])
		require.Equal(t, fmt.Sprintf("10.99.0.%d", 11+i), node.Status.Addresses[0].Address)
	}
}

func TestNamesOfHeadlessServicesResolve(t *testing.T) {
	client, _ := clients(t)
	ns := namespace(t, client)
	_, err := client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "server"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	server := start(t, client, ns, pod("server", func(s *corev1.PodSpec) { s.NodeName = "node1" }, "serve", ":8080"))
	start(t, client, ns, pod("client", func(s *corev1.PodSpec) { s.NodeName = "node2" }, "serve", ":8080"))
	probe, err := filepath.Abs(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "probe"))
	require.NoError(t, err)

	for _, name := range []string{"api." + ns + ".svc", "api." + ns + ".svc.cluster.local"} {
		eventually(t, name+" resolves", func() bool {
			out, err := exec.CommandContext(t.Context(), probe, "resolve", name).Output()
			return err == nil && strings.TrimSpace(string(out)) == server.Status.PodIP
		})
		require.Equal(t, server.Status.PodIP, run(t, inPod(ns, "client", "resolve", name)...))
		require.Equal(t, "server", run(t, inPod(ns, "client", "get", "http://"+name+":8080")...), "over the nodes' border")
		require.Equal(t, "server", run(t, probe, "get", "http://"+name+":8080"), "from outside the nodes")
	}
}

// A step pod authenticates to the Control API with these two, and with nothing else.
func TestTrustBundleAndTokenAreProjected(t *testing.T) {
	const signer, name = "servicedns.podcert.ate.dev/identity", "servicedns.podcert.ate.dev:identity:primary-bundle"
	client, _ := clients(t)
	ns := namespace(t, client)
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "ca.crt"))
	require.NoError(t, err)
	labels := map[string]string{"podcert.ate.dev/canarying": "live"}
	bundles := client.CertificatesV1beta1().ClusterTrustBundles()
	err = bundles.Delete(t.Context(), name, metav1.DeleteOptions{})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	_, err = bundles.Create(t.Context(), &certificatesv1beta1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: string(ca)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bundles.Delete(context.Background(), name, metav1.DeleteOptions{})) })

	start(t, client, ns, pod("step", func(s *corev1.PodSpec) {
		s.Containers[0].Image = "docker.io/local/busybox:1"
		s.Containers[0].Command = []string{"sh", "-c", "trap 'exit 0' TERM; while sleep 1; do :; done"}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "ate", MountPath: "/var/run/secrets/ate"}}
		s.Volumes = []corev1.Volume{{Name: "ate", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: ptr.To(signer), Path: "ca.crt",
					LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "api.ate-system.svc", Path: "token"}},
			}}}}}
	}))
	in := []string{"kubectl", "exec", "-n", ns, "step", "--", "cat"}
	require.Equal(t, strings.TrimSpace(string(ca)), run(t, append(in, "/var/run/secrets/ate/ca.crt")...))
	review := run(t, "sh", "-c", fmt.Sprintf(`kubectl create -o jsonpath='{.status.authenticated} {.status.user.username}' -f - <<EOF
{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {audiences: [api.ate-system.svc], token: "%s"}}
EOF`, run(t, append(in, "/var/run/secrets/ate/token")...)))
	require.Equal(t, "true system:serviceaccount:"+ns+":default", review)
}

// What the atelet needs: a port of the node that is that node's alone, reached from everywhere, and that a successor
// gets only when its predecessor has gone.
func TestHostPortsBelongToOneNode(t *testing.T) {
	for _, hostNetwork := range []bool{false, true} {
		t.Run(fmt.Sprintf("hostNetwork=%v", hostNetwork), func(t *testing.T) {
			client, _ := clients(t)
			ns := namespace(t, client)
			agent := func(name, node string) *corev1.Pod {
				return pod(name, func(s *corev1.PodSpec) {
					s.NodeSelector = map[string]string{corev1.LabelHostname: node}
					s.HostNetwork = hostNetwork
					s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8085, HostPort: 8085}, {ContainerPort: 9090, HostPort: 9090}}
				}, "serve", ":8085")
			}
			want := map[string]string{}
			for _, node := range nodes(t, client)[:3] {
				start(t, client, ns, agent("old-"+node.Name, node.Name))
				want[node.Status.Addresses[0].Address] = "old-" + node.Name
				if hostNetwork {
					want[node.Status.Addresses[0].Address] = node.Name // such a pod has the name of its node
				}
			}
			start(t, client, ns, pod("client", func(s *corev1.PodSpec) { s.NodeName = "node2" }, "serve", ":8080"))
			for address, name := range want {
				require.Equal(t, name, run(t, inPod(ns, "client", "get", "http://"+address+":8085")...))
			}

			_, err := client.CoreV1().Pods(ns).Create(t.Context(), agent("new", "node3"), metav1.CreateOptions{})
			require.NoError(t, err)
			eventually(t, "the scheduler refuses the successor", func() bool {
				p, err := client.CoreV1().Pods(ns).Get(t.Context(), "new", metav1.GetOptions{})
				return err == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
					return c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "free ports")
				})
			})
			require.NoError(t, client.CoreV1().Pods(ns).Delete(t.Context(), "old-node3", metav1.DeleteOptions{}))
			eventually(t, "the successor is Ready", func() bool {
				p, err := client.CoreV1().Pods(ns).Get(t.Context(), "new", metav1.GetOptions{})
				return err == nil && ready(p)
			})
			successor := map[bool]string{false: "new", true: "node3"}[hostNetwork]
			require.Equal(t, successor, run(t, inPod(ns, "client", "get", "http://10.99.0.13:8085")...))
		})
	}
}

func TestNodeVanishesAndReturns(t *testing.T) {
	client, _ := clients(t)
	ns := namespace(t, client)
	daemons := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agent"}},
				Spec:       pod("agent", nil, "serve", ":8080").Spec,
			},
		},
	}
	_, err := client.AppsV1().DaemonSets(ns).Create(t.Context(), daemons, metav1.CreateOptions{})
	require.NoError(t, err)
	ask := func() string {
		list, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=node3"})
		require.NoError(t, err)
		if len(list.Items) != 1 || list.Items[0].Status.PodIP == "" {
			return ""
		}
		probe := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "probe")
		out, _ := exec.CommandContext(t.Context(), probe, "get", "http://"+list.Items[0].Status.PodIP+":8080").Output()
		return strings.TrimSpace(string(out))
	}
	nodeReady := func() corev1.ConditionStatus {
		node, err := client.CoreV1().Nodes().Get(t.Context(), "node3", metav1.GetOptions{})
		require.NoError(t, err)
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status
			}
		}
		return corev1.ConditionUnknown
	}
	eventually(t, "the pod on node3 answers", func() bool { return ask() != "" })

	t.Cleanup(func() { _ = exec.Command("bed", "node", "start", "node3").Run() }) // also when the test fails half-way
	begun := time.Now()
	run(t, "bed", "node", "stop", "node3")
	require.Empty(t, ask(), "a pod of a node that is gone answers")
	eventually(t, "the node is not Ready", func() bool { return nodeReady() == corev1.ConditionUnknown })
	t.Logf("the node is known to be gone after %v", time.Since(begun).Round(time.Second))

	begun = time.Now()
	run(t, "bed", "node", "start", "node3")
	eventually(t, "the node is Ready", func() bool { return nodeReady() == corev1.ConditionTrue })
	eventually(t, "the pod on node3 answers again", func() bool { return ask() != "" })
	t.Logf("the node and its pod are back after %v", time.Since(begun).Round(time.Second))
}

//go:embed testdata/chain.yaml
var chain []byte

func TestChainOfStepPods(t *testing.T) {
	_, dyn := clients(t)
	workflows := dyn.Resource(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}).Namespace("default")
	workflow := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal(chain, &workflow.Object))
	made, err := workflows.Create(t.Context(), workflow, metav1.CreateOptions{})
	require.NoError(t, err, "start Argo with: bed argo")
	t.Cleanup(func() {
		require.NoError(t, workflows.Delete(context.Background(), made.GetName(), metav1.DeleteOptions{}))
	})
	begun := time.Now()
	eventually(t, "the workflow has ended", func() bool {
		made, err = workflows.Get(t.Context(), made.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		finished, _, _ := unstructured.NestedString(made.Object, "status", "finishedAt")
		return finished != ""
	})
	phase, _, _ := unstructured.NestedString(made.Object, "status", "phase")
	require.Equal(t, "Succeeded", phase)
	t.Logf("four step pods in a row took %.1f s", time.Since(begun).Seconds())
}
