package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	namespace = "argo"
	stepImage = "docker.io/atewf/atewf-steps:test"
)

var workflows = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}

// command runs a program to its end and returns what it printed.
func command(ctx context.Context, stdin, name string, args ...string) (stdout, stderr string, err error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), errs.String(), err
}

// bed is the cluster that the tests run in.
type bed struct {
	t   *testing.T
	ctx context.Context
	cs  kubernetes.Interface
	dyn dynamic.Interface
}

func newBed(t *testing.T) *bed {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	require.NoError(t, err, "the tests run inside the test bed: use test/e2e/run")
	cfg.QPS = -1
	cs, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	dyn, err := dynamic.NewForConfig(cfg)
	require.NoError(t, err)
	return &bed{t: t, ctx: t.Context(), cs: cs, dyn: dyn}
}

// must runs a program that has to succeed.
func (b *bed) must(stdin, name string, args ...string) string {
	b.t.Helper()
	out, _, err := command(b.ctx, stdin, name, args...)
	require.NoError(b.t, err)
	return out
}

// atewf runs the real generator.
func (b *bed) atewf(args ...string) (stdout, stderr string, err error) {
	return command(b.ctx, "", os.Getenv("ATEWF"), args...)
}

// generate prints a Workflow for the cluster as it is.
func (b *bed) generate(args ...string) string {
	b.t.Helper()
	out, errs, err := b.atewf(append([]string{"generate", "--image", stepImage}, args...)...)
	require.NoError(b.t, err)
	b.t.Logf("atewf generate %s\n%s", strings.Join(args, " "), errs)
	return out
}

// submit pipes a Workflow into argo.
func (b *bed) submit(yaml string) *roll {
	b.t.Helper()
	name := strings.TrimSpace(b.must(yaml, "argo", "submit", "-n", namespace, "-o", "name", "-"))
	r := &roll{bed: b, name: name}
	b.t.Cleanup(func() {
		if b.t.Failed() {
			r.dump()
		}
	})
	return r
}

// roll is a submitted Workflow.
type roll struct {
	*bed
	name string
}

// task is a node of the Workflow as its status has it.
type task struct {
	name, template, kind, phase, message, pod string
}

func (r *roll) get() *unstructured.Unstructured {
	r.t.Helper()
	var u *unstructured.Unstructured
	// A look may fall into the moment in which a test restarts something.
	require.Eventually(r.t, func() (ok bool) {
		var err error
		u, err = r.dyn.Resource(workflows).Namespace(namespace).Get(context.Background(), r.name, metav1.GetOptions{})
		return err == nil
	}, 30*time.Second, 200*time.Millisecond)
	return u
}

func (r *roll) phase() string {
	p, _, _ := unstructured.NestedString(r.get().Object, "status", "phase")
	return p
}

func (r *roll) tasks() []task {
	nodes, _, _ := unstructured.NestedMap(r.get().Object, "status", "nodes")
	var out []task
	for id, v := range nodes {
		m, _ := v.(map[string]any)
		s := func(k string) string { x, _ := m[k].(string); return x }
		out = append(out, task{name: s("displayName"), template: s("templateName"), kind: s("type"), phase: s("phase"), message: s("message"), pod: id})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// open lists the gates that wait.
func (r *roll) open() []string {
	var out []string
	for _, t := range r.tasks() {
		if t.kind == "Suspend" && t.phase == "Running" {
			out = append(out, t.name)
		}
	}
	return out
}

// eventually waits until a condition holds, and says what it waited for when it does not.
func (r *roll) eventually(what string, within time.Duration, cond func() bool) {
	r.t.Helper()
	end := time.Now().Add(within)
	for !cond() {
		if time.Now().After(end) {
			r.t.Fatalf("waited %s for %s; the Workflow is %s, open gates %v, nodes %+v", within, what, r.phase(), r.open(), r.tasks())
		}
		time.Sleep(300 * time.Millisecond)
	}
}

// approve waits for the gate of a node, makes sure that it is the only one, and approves it as a person would.
func (r *roll) approve(node string) {
	r.t.Helper()
	gate := "approve-" + node
	r.eventually("gate "+gate, 3*time.Minute, func() bool {
		if p := r.phase(); p == "Failed" || p == "Error" {
			r.t.Fatalf("the Workflow is %s before gate %s: %s", p, gate, r.failure())
		}
		return len(r.open()) > 0
	})
	require.Equal(r.t, []string{gate}, r.open(), "one gate at a time")
	r.must("", "argo", "resume", "-n", namespace, r.name, "--node-field-selector", "displayName="+gate)
}

// ends waits for the end of the Workflow.
func (r *roll) ends(phase string, within time.Duration) {
	r.t.Helper()
	r.eventually("the end", within, func() bool {
		switch r.phase() {
		case "Succeeded", "Failed", "Error":
			return true
		}
		return false
	})
	require.Equal(r.t, phase, r.phase(), r.failure())
}

// failure is the message of the step that failed.
func (r *roll) failure() string {
	var out []string
	for _, t := range r.tasks() {
		if t.kind == "Pod" && (t.phase == "Failed" || t.phase == "Error") {
			out = append(out, t.name+": "+t.message)
		}
	}
	return strings.Join(out, "\n")
}

func (r *roll) retry() {
	r.t.Helper()
	r.must("", "argo", "retry", "-n", namespace, r.name)
}

// running waits until the pod of a step runs, and returns its name.
func (r *roll) running(step, node string) string {
	r.t.Helper()
	var pod string
	r.eventually(step+" to run", 3*time.Minute, func() bool {
		pods, err := r.cs.CoreV1().Pods(namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "workflows.argoproj.io/workflow=" + r.name})
		if err != nil {
			return false
		}
		for _, p := range pods.Items {
			if !strings.HasPrefix(p.Name, r.name+"-"+step+"-") || p.Status.Phase != "Running" {
				continue
			}
			for _, c := range p.Spec.Containers {
				if c.Name == "main" && strings.Contains(strings.Join(c.Args, " "), "--node="+node) {
					pod = p.Name
					return true
				}
			}
		}
		return false
	})
	return pod
}

// dump prints what is needed to understand a failure.
func (r *roll) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, _, _ := command(ctx, "", "argo", "get", "-n", namespace, r.name)
	logs, _, _ := command(ctx, "", "argo", "logs", "-n", namespace, r.name)
	r.t.Logf("%s\n%s", out, logs)
}
