package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/gen/snapshot/snapshottest"
	"github.com/atewf/atewf/gen/workflow"
	"github.com/atewf/atewf/internal/versions"
)

// result is what one call of the program left.
type result struct {
	code           int
	stdout, stderr string
}

func atewf(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	// Nothing of this machine's clusters may be found.
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	streams, in, out, errOut := genericiooptions.NewTestIOStreams()
	in.WriteString(stdin)
	code := run(context.Background(), args, streams, func() time.Time { return snapshottest.Taken })
	return result{code, out.String(), errOut.String()}
}

func three() *snapshot.Snapshot { return snapshottest.Fleet(snapshottest.Three) }

// keep writes a snapshot to a file.
func keep(t testing.TB, s *snapshot.Snapshot) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.json")
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, snapshot.Write(f, s))
	require.NoError(t, f.Close())
	return file
}

func TestGenerate(t *testing.T) {
	file := keep(t, three())
	r := atewf(t, "", "generate", "--snapshot", file, "--image", "steps:1")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, workflow.Validate([]byte(r.stdout)))
	require.Contains(t, r.stdout, "value: steps:1")
	want := `Agent Substrate v1 to v2 on prod, from snapshot FILE

#  NODE   ZONE    WORKERS  ACTORS  VERDICT  REASON
1  node1  zone-a  4        5       roll     is at v1
2  node2  zone-b  4        1       roll     is at v1
3  node3  zone-c  4        0       roll     is at v1

worker pools: agents/pool1-v2 takes over from pool1, agents/pool2-v2 takes over from pool2
3 nodes, 3 gates, 12 step pods; SIZE KiB of JSON of 700.0 KiB at most, SIZE KiB of YAML
`
	got := regexp.MustCompile(`[0-9.]+ KiB of (JSON of|YAML)`).ReplaceAllString(strings.ReplaceAll(r.stderr, file, "FILE"), "SIZE KiB of $1")
	require.Equal(t, want, got)

	again := atewf(t, "", "generate", "--snapshot", file, "--image", "steps:1")
	require.Equal(t, r.stdout, again.stdout)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	fromStdin := atewf(t, string(data), "generate", "--snapshot", "-", "--image", "steps:1")
	require.Equal(t, r.stdout, fromStdin.stdout)
}

func TestFlagsReachTheWorkflow(t *testing.T) {
	file := keep(t, three())
	r := atewf(t, "", "generate", "--snapshot", file, "--name", "my-roll", "-n", "rolls", "--service-account", "roller", "--steps-endpoint", "api.x:1",
		"--audience", "aud", "--accept-field", "A.b,C.d", "--parallelism", "3", "--suspend", "wait", "--gate", "canary", "--soak", "90s",
		"--drain-timeout", "1m", "--suspend-timeout", "3h", "--flip-timeout", "40m", "--verify-timeout", "2m", "--atelet-timeout", "20m", "--nodes", "node3,node1")
	require.Zero(t, r.code, r.stderr)
	for _, want := range []string{"name: my-roll", "namespace: rolls", "serviceAccountName: roller", "value: api.x:1", "value: aud", "value: A.b,C.d", `value: "3"`, "value: wait",
		"name: approve-node1", "name: suspend-node3", `duration: "90"`, "value: 1m", "value: 3h", "value: 40m", "value: 2m", "value: 20m", "activeDeadlineSeconds: 11700"} {
		require.Contains(t, r.stdout, want+"\n")
	}
	require.NotContains(t, r.stdout, "approve-node3")
	require.NotContains(t, r.stdout, "node2")
	require.Contains(t, r.stderr, "2 nodes, 3 gates, 9 step pods")
}

// Every input that a roll must not begin with: one message that names the thing and the way out, exit code 1, and
// nothing on standard output.
func TestBadInput(t *testing.T) {
	cut := func(t *testing.T) string {
		file := keep(t, three())
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, b[:len(b)/2], 0o600))
		return file
	}
	changed := func(change func(*snapshot.Snapshot)) func(*testing.T) string {
		return func(t *testing.T) string {
			s := three()
			change(s)
			return keep(t, s)
		}
	}
	same := changed(func(*snapshot.Snapshot) {})
	twins := func(t *testing.T) string { // their slugs agree in all of their 40 characters
		names := []string{"node-with-a-name-that-is-long-enough-to-be-cut-63060", "node-with-a-name-that-is-long-enough-to-be-cut-e5fd6"}
		return keep(t, snapshottest.Fleet(snapshottest.Size{Nodes: 2, Pools: 1, WorkersPerNode: 1, Name: func(i int) string { return names[i-1] }}))
	}
	large := func(t *testing.T) string {
		return keep(t, snapshottest.Fleet(snapshottest.Size{Nodes: 3000, Pools: 1}))
	}
	for name, c := range map[string]struct {
		file func(*testing.T) string
		args []string
		want string
	}{
		"unreachable cluster":  {nil, []string{"--server", "https://127.0.0.1:1", "--substrate", "skip"}, "error: reading the nodes: .*127.0.0.1:1.*connection refused; check that the cluster is up"},
		"no kubeconfig":        {nil, nil, "error: finding the cluster: there is no kubeconfig, and this is no pod; pass --kubeconfig or --context, or plan from a file with --snapshot"},
		"kubeconfig not there": {nil, []string{"--kubeconfig", "nosuch"}, "error: finding the cluster: .*nosuch.*; pass --kubeconfig"},
		"unknown context":      {nil, []string{"--context", "nosuch"}, `error: finding the cluster: .*context "nosuch" does not exist`},
		"no Substrate":         {changed(func(s *snapshot.Snapshot) { s.PoolsServed, s.Atelets = false, nil }), nil, "error: Agent Substrate: it is not installed here.*; check that this is the right cluster"},
		"unversioned atelet":   {changed(func(s *snapshot.Snapshot) { s.Atelets[0].Version = "" }), nil, "error: DaemonSet ate-system/atelet-v1: it carries no label.*; install a versioned release afresh"},
		"one version only":     {changed(func(s *snapshot.Snapshot) { s.Atelets = s.Atelets[:1] }), nil, "error: Agent Substrate: there is one version only, v1; deploy the atelet of the new version first"},
		"three versions": {changed(func(s *snapshot.Snapshot) {
			s.Atelets = append(s.Atelets, snapshottest.Atelet("v3", snapshottest.Taken, 0))
		}), nil, "error: Agent Substrate: there are 3 versions: v1, v2, v3; say which with --from and --to"},
		"an unpinned pool":       {changed(func(s *snapshot.Snapshot) { s.Pools[0].Pin = "" }), nil, "error: worker pool agents/pool1: it is pinned to no version.*; pin it to v1"},
		"too long a node name":   {changed(func(s *snapshot.Snapshot) { s.Nodes[1].Name = strings.Repeat("a", 254) }), nil, `error: node "a{38}.*: no node of Kubernetes can have this name of 254 characters`},
		"names that collide":     {twins, nil, `error: nodes "node-with.*63060" and "node-with.*e5fd6" both become "node-with-.*" when they are shortened; .*--exclude`},
		"braces in a label":      {changed(func(s *snapshot.Snapshot) { s.Nodes[1].Labels["team"] = "{{x}}" }), nil, `error: node node2: label "team" with the value "{{x}}" has {{ or }} in it; .*rename it`},
		"a snapshot cut in half": {cut, nil, `error: snapshot .*cluster.json, line [0-9]+ \(byte [0-9]+\): the file ends in the middle, it was cut; take it again with atewf snapshot`},
		"no snapshot":            {nil, []string{"--snapshot", "nosuch.json"}, "error: reading the snapshot: open nosuch.json: no such file or directory; write one with atewf snapshot"},
		"too large":              {large, nil, "error: the Workflow has [0-9]+ KiB of JSON and may have 700.*about 2[0-9]+ of these 3000 nodes fit; roll them in parts.*for example --selector topology.kubernetes.io/zone=zone-a .1000 nodes."},
		"unknown value":          {same, []string{"--gate", "often"}, `error: invalid argument "often" for "--gate" flag: want every\|first\|canary\|none`},
		"unknown order":          {same, []string{"--order", "random"}, `want name\|zone\|actors`},
		"unknown flag":           {same, []string{"--nosuch"}, "error: unknown flag: --nosuch"},
		"an argument":            {same, []string{"node1"}, `error: unknown command "node1" for "atewf generate"`},
		"unknown node":           {same, []string{"--nodes", "node9"}, `error: --nodes: there is no node "node9"; see kubectl get nodes`},
		"nothing left":           {same, []string{"--exclude", "node1,node2,node3"}, "error: roll: nothing to roll: all 3 nodes are left out"},
		"another namespace":      {same, []string{"--substrate-namespace", "other"}, "error: snapshot .* was taken with --substrate-namespace ate-system, and other was given"},
		"name that is none":      {same, []string{"--name", "My_Roll"}, `error: --name: "My_Roll" is no name`},
		"name that is too long":  {same, []string{"--name", strings.Repeat("a", 64)}, "error: --name: .* has 64 characters; give a name of 63 at most"},
		"braces in an image":     {same, []string{"--image", "{{x}}"}, `error: --image: "{{x}}" has {{ or }} in it`},
		"no image":               {same, []string{"--image", ""}, "error: no image of the steps is given; pass --image"},
		"no parallelism":         {same, []string{"--parallelism", "0"}, "error: 0 actors cannot be suspended at once; pass --parallelism"},
		"no time":                {same, []string{"--flip-timeout", "0s"}, "error: the timeout of flip is 0s; raise --flip-timeout"},
		"negative soak":          {same, []string{"--soak", "-1m"}, "error: --soak: -1m0s is no pause"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"generate"}, c.args...)
			if c.file != nil {
				args = append(args, "--snapshot", c.file(t))
			}
			r := atewf(t, "", args...)
			require.Equal(t, 1, r.code)
			require.Empty(t, r.stdout)
			require.Regexp(t, c.want, r.stderr)
			require.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line:\n%s", r.stderr)
			require.NotContains(t, r.stderr, "%!")
			require.NotContains(t, r.stderr, "Usage:")
		})
	}
}

// A node name may have 253 characters, and names may differ in what is cut off.
func TestLongNodeNames(t *testing.T) {
	part := strings.Repeat("a", 61) + "."
	names := []string{strings.Repeat(part, 4) + "12345", strings.Repeat(part, 4) + "12346"}
	require.Len(t, names[0], 253)
	file := keep(t, snapshottest.Fleet(snapshottest.Size{Nodes: 2, Pools: 1, WorkersPerNode: 1, Name: func(i int) string { return names[i-1] }}))
	r := atewf(t, "", "generate", "--snapshot", file)
	require.Zero(t, r.code, r.stderr)
	for _, n := range names {
		require.Contains(t, r.stdout, "value: "+n+"\n")
	}
}

func TestEveryErrorIsTold(t *testing.T) {
	s := three()
	s.Pools[0].Pin, s.Pools[2].Pin = "", ""
	r := atewf(t, "", "generate", "--snapshot", keep(t, s))
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
	require.Equal(t, 2, strings.Count(r.stderr, "error: worker pool agents/pool"))
}

func TestManyNodesThatAreNotRolled(t *testing.T) {
	file := keep(t, snapshottest.Fleet(snapshottest.Size{Nodes: 100, Pools: 1}))
	r := atewf(t, "", "generate", "--snapshot", file, "--nodes", "node1,node2")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "left out, each is not among --nodes: node3, node4, node5, node6, node7 and 93 more\n")
	require.Less(t, strings.Count(r.stderr, "\n"), 12)
}

// Somebody who sees the Workflow pass by is told what to type.
func TestSummaryOnATerminal(t *testing.T) {
	var b bytes.Buffer
	p := &plan.Plan{From: "v1", To: "v2", Pools: []plan.Pool{{Namespace: "agents", Name: "a", Clone: "b"}, {Namespace: "agents", Name: "c", Clone: "d"}, {Namespace: "more", Name: "e", Clone: "f"}}}
	summary{w: &b, plan: p, from: "the cluster", account: "atewf-roll", terminal: true}.print()
	require.Contains(t, b.String(), "next: repeat the command with  | argo submit -n NAMESPACE -  at its end, or with  | kubectl create -n NAMESPACE -f -\n")
	require.Contains(t, b.String(), "service account atewf-roll must be allowed to delete pods in agents, more (ClusterRole")
	require.Contains(t, b.String(), "kubectl apply needs a name: pass --name\n")
	b.Reset()
	summary{w: &b, plan: p, namespace: "argo", named: true, terminal: true}.print()
	require.Contains(t, b.String(), "| argo submit -  at its end")
	require.NotContains(t, b.String(), "kubectl apply")
}

func TestLint(t *testing.T) {
	file := keep(t, three())
	good := atewf(t, "", "generate", "--snapshot", file).stdout
	r := atewf(t, good, "lint", "-")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, result{0, "", "-: no problem found\n"}, r)
	steps := atewf(t, "", "lint", "../../templates/steps.yaml")
	require.Zero(t, steps.code, steps.stderr)

	bad := strings.Replace(good, "entrypoint: roll", "entrypoint: roll\n  activeDeadlineSeconds: 5\n  parallelism: 1", 1)
	for name, c := range map[string]struct{ stdin, want string }{
		"rule":       {bad, "error: -: Workflow atewf-roll-...: spec.activeDeadlineSeconds would end the roll at an open gate"},
		"strict":     {strings.Replace(good, "entrypoint: roll", "entrypiont: roll", 1), `unknown field "spec.entrypiont"`},
		"empty":      {"", "error: -: manifest: the manifest is empty"},
		"other kind": {"kind: ConfigMap\napiVersion: v1\n", "error: -: there is no Workflow or WorkflowTemplate in it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := atewf(t, c.stdin, "lint", "-")
			require.Equal(t, 1, r.code)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, c.want)
		})
	}
	r = atewf(t, good, "lint", "-", "nosuch.yaml")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "-: no problem found\nerror: reading the file: open nosuch.yaml")
	require.Equal(t, result{1, "", "error: no file given; pass one or more, or - for standard input\n"}, atewf(t, "", "lint"))
}

func TestVersion(t *testing.T) {
	require.Regexp(t, `^atewf \S+ \(go1\.\S+, \S+/\S+\)\n$`, atewf(t, "", "version").stdout)
	require.Regexp(t, `^atewf \S+\n$`, atewf(t, "", "--version").stdout)
}

func TestCompletion(t *testing.T) {
	require.Contains(t, atewf(t, "", "completion", "bash").stdout, "__start_atewf")
	require.Equal(t, "every\nfirst\ncanary\nnone\n:4\n", atewf(t, "", "__complete", "generate", "--gate", "").stdout)
	require.Equal(t, "auto\nnodes\ncompact\n:4\n", atewf(t, "", "__complete", "generate", "--layout", "").stdout)
	kubeconfig := serveFleet(t, three())
	require.Equal(t, "node1\nnode2\nnode3\n:6\n", atewf(t, "", "__complete", "generate", "--kubeconfig", kubeconfig, "--nodes", "").stdout)
	require.Equal(t, "node1,node2\nnode1,node3\n:6\n", atewf(t, "", "__complete", "generate", "--kubeconfig", kubeconfig, "--exclude", "node1,").stdout)
	require.Equal(t, "test\n:4\n", atewf(t, "", "__complete", "generate", "--kubeconfig", kubeconfig, "--context", "").stdout)
}

// What --help shows as an example can be typed, as far as it is about atewf.
func TestExamplesAreReal(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(keep(t, three()))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster.json"), data, 0o600))
	kubeconfig := serveFleet(t, three())
	t.Chdir(dir)
	seen := 0
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	for _, cmd := range append(newRoot(streams, time.Now).Commands(), newRoot(streams, time.Now)) {
		for _, line := range strings.Split(cmd.Example, "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			seen++
			stdin := ""
			for _, part := range strings.Split(line, "|") {
				command, file, _ := strings.Cut(part, ">")
				words := strings.Fields(command)
				if words[0] == "argo" {
					require.Equal(t, []string{"argo", "submit", "-n", "argo", "-"}, words)
					require.NoError(t, workflow.Validate([]byte(stdin)))
					continue
				}
				require.Equal(t, "atewf", words[0], line)
				args := words[1:]
				for i, a := range args { // the context and the Control API of the example are not there
					args[i] = strings.NewReplacer("require", "skip", "prod", "test").Replace(a)
				}
				if args[0] != "lint" {
					args = append(args, "--kubeconfig", kubeconfig)
				}
				r := atewf(t, stdin, args...)
				require.Zero(t, r.code, "%s: %s", line, r.stderr)
				stdin = r.stdout
				if file = strings.TrimSpace(file); file != "" {
					require.NoError(t, os.WriteFile(file, []byte(r.stdout), 0o600))
				}
			}
		}
	}
	require.Greater(t, seen, 8)
}

// The whole way from an API server, which answers with JSON.
func TestLiveCluster(t *testing.T) {
	fleet := three()
	kubeconfig := serveFleet(t, fleet)
	r := atewf(t, "", "generate", "--kubeconfig", kubeconfig)
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, workflow.Validate([]byte(r.stdout)))
	require.Contains(t, r.stderr, "Agent Substrate v1 to v2 on test-cluster, from the cluster\n")
	require.Contains(t, r.stderr, "warning: Control API: it was not read")
	require.Contains(t, r.stderr, "1  node1  zone-a  4        ?       roll     is at v1\n")

	taken := atewf(t, "", "snapshot", "--kubeconfig", kubeconfig)
	require.Zero(t, taken.code, taken.stderr)
	require.Contains(t, taken.stderr, "3 nodes, 4 worker pools, 12 worker pods, 0 workers, 0 actors\nwarning: the Control API was not read")
	fromFile := atewf(t, taken.stdout, "generate", "--snapshot", "-")
	require.Equal(t, r.stdout, fromFile.stdout)

	r = atewf(t, "", "generate", "--kubeconfig", kubeconfig, "--substrate", "require")
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
	require.Regexp(t, "^error: reading the Control API: the API server serves no ClusterTrustBundles .*--substrate=skip", r.stderr)

	fleet.PoolsServed, fleet.Atelets = false, nil
	r = atewf(t, "", "generate", "--kubeconfig", kubeconfig)
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
	require.Contains(t, r.stderr, "error: Agent Substrate: it is not installed here")

	r = atewf(t, "", "snapshot", "--server", "https://127.0.0.1:1")
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
}

// serveFleet is an API server that has the objects of a snapshot, and the kubeconfig that leads there.
func serveFleet(t *testing.T, s *snapshot.Snapshot) (kubeconfig string) {
	t.Helper()
	created := func(at time.Time) metav1.Time { return metav1.NewTime(at) }
	ready := func(ok bool) corev1.ConditionStatus {
		if ok {
			return corev1.ConditionTrue
		}
		return corev1.ConditionFalse
	}
	lists := map[string]func() any{
		"/api/v1/nodes": func() any {
			l := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
			for _, n := range s.Nodes {
				l.Items = append(l.Items, corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: created(n.Created)},
					Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready(n.Ready)}}},
				})
			}
			return l
		},
		"/api/v1/pods": func() any {
			l := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
			for _, p := range s.Pods {
				l.Items = append(l.Items, corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: map[string]string{versions.WorkerPoolLabel: p.Pool}},
					Spec:       corev1.PodSpec{NodeName: p.Node, NodeSelector: map[string]string{versions.Label: p.Pin}},
					Status:     corev1.PodStatus{Phase: p.Phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready(p.Ready)}}},
				})
			}
			return l
		},
		"/apis/apps/v1/namespaces/ate-system/daemonsets": func() any {
			l := appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{Kind: "DaemonSetList", APIVersion: "apps/v1"}}
			for _, d := range s.Atelets {
				l.Items = append(l.Items, appsv1.DaemonSet{
					ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: map[string]string{versions.Label: d.Version}, CreationTimestamp: created(d.Created)},
					Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: d.NodeSelector, Tolerations: d.Tolerations}}},
					Status:     appsv1.DaemonSetStatus{DesiredNumberScheduled: d.Desired, NumberReady: d.Ready},
				})
			}
			return l
		},
		"/apis/ate.dev/v1alpha1/workerpools": func() any {
			if !s.PoolsServed {
				return nil
			}
			items := []any{}
			for _, p := range s.Pools {
				items = append(items, map[string]any{
					"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "spec": p.Spec, "status": map[string]any{"readyReplicas": p.Ready},
					"metadata": map[string]any{"namespace": p.Namespace, "name": p.Name, "labels": p.Labels},
				})
			}
			return map[string]any{"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPoolList", "items": items}
		},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		if list := lists[r.URL.Path]; list != nil && r.Method == http.MethodGet {
			answer = list()
		}
		if answer == nil {
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not found"}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Errorf("answering %s: %v", r.URL.Path, err)
		}
	}))
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"apiVersion":"v1","kind":"Config","current-context":"test","contexts":[{"name":"test","context":{"cluster":"test-cluster","user":"me"}}],`+
		`"clusters":[{"name":"test-cluster","cluster":{"server":%q}}],"users":[{"name":"me","user":{}}]}`, srv.URL)
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	return file
}
