package workflow_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/gen/snapshot/snapshottest"
	"github.com/atewf/atewf/gen/workflow"
	"github.com/atewf/atewf/internal/roll"
)

var update = flag.Bool("update", false, "write the golden files anew")

// shape is one kind of Workflow that the generator can make.
type shape struct {
	name     string
	snapshot *snapshot.Snapshot
	plan     plan.Options
	options  func(*workflow.Options)
}

func fleet(n int, name func(int) string) *snapshot.Snapshot {
	return snapshottest.Fleet(snapshottest.Size{Nodes: n, Pools: 2, WorkersPerNode: 4, Actors: 10, Name: name})
}

// odd are names that need care: dots, a leading digit, two that differ in what a name may not have, two that are long
// and differ at their end, and such as a gate or a step has.
var odd = []string{
	"ip-10-120-33-104.eu-central-1.compute.internal", "10-0-1-2.ec2.internal", "a.b", "a-b",
	strings.Repeat("very-long-", 25) + "one", strings.Repeat("very-long-", 25) + "two", "approve-a-b", "drain", "soak-a.b",
}

func oddName(i int) string { return odd[i-1] }

func shapes() []shape {
	pace := func(g plan.Gate, s plan.Suspend, soak time.Duration) plan.Options {
		return plan.Options{Pace: plan.Pace{Gate: g, Suspend: s, Soak: soak}}
	}
	half := fleet(4, nil)
	snapshottest.Flip(half, "node1")
	half.Nodes[2].Stamp = (&roll.Stamp{Roll: "argo/roll/1", From: "v1", To: "v2", Phase: roll.Suspending, At: snapshottest.Taken}).String()
	single := fleet(1, nil)
	chosen := pace(plan.GateEvery, plan.SuspendAuto, 0)
	chosen.Exclude, chosen.Selector, chosen.Order = []string{"node4"}, "topology.kubernetes.io/zone in (zone-a,zone-c)", plan.OrderZone
	one := pace(plan.GateEvery, plan.SuspendAuto, 0)
	one.AllowSingleNode = true
	firstOnly := pace(plan.GateEvery, plan.SuspendAuto, 0)
	firstOnly.Nodes = []string{"node2"}
	return []shape{
		{name: "one-node", snapshot: fleet(3, nil), plan: firstOnly},
		{name: "single-node-cluster", snapshot: single, plan: one},
		{name: "gate-every", snapshot: fleet(3, nil), plan: pace(plan.GateEvery, plan.SuspendAuto, 0)},
		{name: "gate-first", snapshot: fleet(3, nil), plan: pace(plan.GateFirst, plan.SuspendAuto, 0)},
		{name: "gate-canary", snapshot: fleet(3, nil), plan: pace(plan.GateCanary, plan.SuspendAuto, 0)},
		{name: "gate-none", snapshot: fleet(3, nil), plan: pace(plan.GateNone, plan.SuspendAuto, 0)},
		{name: "suspend-gate", snapshot: fleet(3, nil), plan: pace(plan.GateEvery, plan.SuspendGate, 0)},
		{name: "suspend-wait", snapshot: fleet(3, nil), plan: pace(plan.GateNone, plan.SuspendWait, 0)},
		{name: "soak", snapshot: fleet(3, nil), plan: pace(plan.GateEvery, plan.SuspendAuto, 10*time.Minute)},
		{name: "half-done-first", snapshot: half, plan: pace(plan.GateEvery, plan.SuspendAuto, 0)},
		{name: "exclusions", snapshot: fleet(9, nil), plan: chosen},
		{name: "odd-names", snapshot: fleet(len(odd), oddName), plan: pace(plan.GateEvery, plan.SuspendGate, time.Minute)},
		{name: "odd-names-compact", snapshot: fleet(len(odd), oddName), plan: pace(plan.GateCanary, plan.SuspendAuto, time.Minute),
			options: func(o *workflow.Options) { o.Layout = workflow.LayoutCompact }},
		{name: "options", snapshot: fleet(2, nil), plan: pace(plan.GateEvery, plan.SuspendAuto, 0), options: func(o *workflow.Options) {
			o.Name, o.Namespace, o.ServiceAccount = "roll-2026-09-07", "rolls", "roller"
			o.Image = "registry.example/steps@sha256:" + strings.Repeat("0", 64)
			o.Endpoint, o.Audience, o.Parallelism = "api.other.svc:8443", "other", 4
			o.Timeouts = workflow.Timeouts{Drain: time.Minute, Suspend: 90 * time.Minute, Flip: 45 * time.Minute, Verify: 90 * time.Second, Atelet: 20 * time.Minute}
			o.AcceptFields = []string{"ActorStatus.mood", "WorkerStatus.mood"}
		}},
		{name: "sixty-nodes", snapshot: fleet(60, nil), plan: pace(plan.GateFirst, plan.SuspendAuto, 0)},
		{name: "compact", snapshot: fleet(120, nil), plan: pace(plan.GateEvery, plan.SuspendAuto, 0)},
		{name: "compact-suspend-gate-soak", snapshot: fleet(101, nil), plan: pace(plan.GateEvery, plan.SuspendGate, time.Hour)},
	}
}

// generate does what the program does after reading.
func generate(t testing.TB, s shape) (*plan.Plan, []byte) {
	t.Helper()
	p, err := plan.New(s.snapshot, s.plan)
	require.NoError(t, err)
	o := workflow.Defaults()
	o.AllowSingleNode = s.plan.AllowSingleNode
	if s.options != nil {
		s.options(&o)
	}
	wf, err := workflow.Render(p, o)
	require.NoError(t, err)
	out, err := workflow.Marshal(wf)
	require.NoError(t, err)
	return p, out
}

func TestGolden(t *testing.T) {
	written := map[string]bool{}
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			p, got := generate(t, s)
			require.NoError(t, workflow.Validate(got))
			_, again := generate(t, s)
			require.True(t, bytes.Equal(got, again), "the same plan must give the same bytes")
			requireSequence(t, p, got)

			file := filepath.Join("testdata", s.name+".yaml")
			written[s.name+".yaml"] = true
			if *update {
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "write it with: go test ./gen/workflow -update")
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s differs (-want +got); look at it, then go test ./gen/workflow -update:\n%s", file, diff)
			}
		})
	}
	files, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".yaml") && !written[f.Name()] {
			t.Errorf("testdata/%s belongs to no shape", f.Name())
		}
	}
}

// event is one thing that happens in a roll, in its order.
type event struct{ what, node string }

// requireSequence walks the Workflow as Argo would and requires that what happens is what the plan and its pace say: for
// each node its gates and steps, one after the other, and every gate by a name that no other task has.
func requireSequence(t *testing.T, p *plan.Plan, manifest []byte) {
	t.Helper()
	var want []event
	nodes := p.Rolling()
	for i, n := range nodes {
		if p.Pace.GateBefore(i) {
			want = append(want, event{"gate", n.Name})
		}
		want = append(want, event{"drain", n.Name})
		if p.Pace.GateBeforeSuspend() {
			want = append(want, event{"gate", n.Name})
		}
		want = append(want, event{"suspend", n.Name}, event{"flip", n.Name}, event{"verify", n.Name})
		if p.Pace.SoakAfter(i, len(nodes)) {
			want = append(want, event{"soak", n.Name}, event{"verify", n.Name})
		}
	}
	got := walk(t, manifest)
	for i := range got {
		// A gate does not know its node; the step that comes after it, or before it for a soak, does.
		switch got[i].what {
		case "gate":
			got[i].node = got[i+1].node
		case "soak":
			got[i].node = got[i-1].node
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(event{})); diff != "" {
		t.Errorf("what happens is not what was planned (-want +got):\n%s", diff)
	}
	var gates, pods int
	for _, e := range got {
		switch e.what {
		case "gate":
			gates++
		case "soak":
		default:
			pods++
		}
	}
	require.Equal(t, p.Cost.Gates, gates)
	require.Equal(t, p.Cost.Pods, pods)
}

// walk follows the chains of tasks from the entrypoint.
func walk(t *testing.T, manifest []byte) []event {
	t.Helper()
	type task struct {
		Name, Template, Depends string
		Arguments               struct {
			Parameters []struct{ Name, Value string }
		}
	}
	var wf struct {
		Spec struct {
			Entrypoint string
			Templates  []struct {
				Name    string
				DAG     *struct{ Tasks []task }
				Suspend *struct{ Duration string }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(manifest, &wf))
	var out []event
	seen := map[string]bool{}
	var run func(template, node string)
	run = func(template, node string) {
		for _, tm := range wf.Spec.Templates {
			switch {
			case tm.Name != template:
			case tm.DAG == nil:
				out = append(out, event{template, node})
			default:
				before := ""
				for _, k := range tm.DAG.Tasks {
					require.Equal(t, before, k.Depends, "task %s of %s", k.Name, template)
					before = k.Name + ".Succeeded"
					next := node
					if len(k.Arguments.Parameters) == 1 && k.Arguments.Parameters[0].Value != "{{inputs.parameters.node}}" {
						next = k.Arguments.Parameters[0].Value
					}
					if k.Template == "approve" || k.Template == "soak" {
						require.False(t, seen[k.Name], "gate %s is there twice", k.Name)
						seen[k.Name] = true
						out = append(out, event{map[string]string{"approve": "gate", "soak": "soak"}[k.Template], ""})
						continue
					}
					run(k.Template, next)
				}
			}
		}
	}
	run(wf.Spec.Entrypoint, "")
	return out
}

// fields are the fields that a Workflow may have: each is known to Argo 3.5, 3.6, 3.7 and 4.x, which was read in the Go
// types of v3.5.15, v3.6.19, v3.7.18 and v4.1.2. A list of its own, and not the types of one version, because Argo refuses
// a Workflow with a field that its version does not know. [] stands for the elements of a list, * for a key of a map.
var fields = []string{
	"apiVersion", "kind", "metadata", "metadata.name", "metadata.generateName", "metadata.namespace",
	"metadata.labels", "metadata.labels.*", "metadata.annotations", "metadata.annotations.*",
	"spec", "spec.entrypoint", "spec.serviceAccountName",
	"spec.arguments", "spec.arguments.parameters", "spec.arguments.parameters[].name", "spec.arguments.parameters[].value",
	"spec.podGC", "spec.podGC.strategy", "spec.ttlStrategy", "spec.ttlStrategy.secondsAfterSuccess",
	"spec.securityContext", "spec.securityContext.fsGroup", "spec.securityContext.runAsGroup", "spec.securityContext.runAsNonRoot",
	"spec.securityContext.runAsUser", "spec.securityContext.seccompProfile", "spec.securityContext.seccompProfile.type",
	"spec.templates", "spec.templates[].name", "spec.templates[].activeDeadlineSeconds",
	"spec.templates[].suspend", "spec.templates[].suspend.duration",
	"spec.templates[].dag", "spec.templates[].dag.tasks", "spec.templates[].dag.tasks[].name", "spec.templates[].dag.tasks[].template",
	"spec.templates[].dag.tasks[].depends", "spec.templates[].dag.tasks[].arguments", "spec.templates[].dag.tasks[].arguments.parameters",
	"spec.templates[].dag.tasks[].arguments.parameters[].name", "spec.templates[].dag.tasks[].arguments.parameters[].value",
	"spec.templates[].inputs", "spec.templates[].inputs.parameters", "spec.templates[].inputs.parameters[].name",
	"spec.templates[].outputs", "spec.templates[].outputs.parameters", "spec.templates[].outputs.parameters[].name",
	"spec.templates[].outputs.parameters[].valueFrom", "spec.templates[].outputs.parameters[].valueFrom.path",
	"spec.templates[].outputs.parameters[].valueFrom.default",
	"spec.templates[].retryStrategy", "spec.templates[].retryStrategy.limit", "spec.templates[].retryStrategy.retryPolicy",
	"spec.templates[].affinity", "spec.templates[].volumes", "spec.templates[].container",
}

// kubernetes are the parts that Argo takes from Kubernetes as they are; within them it knows what Kubernetes knows.
var kubernetes = regexp.MustCompile(`^spec\.templates\[\]\.(affinity|volumes|container)[.[]`)

func TestOnlyFieldsOfAllArgoVersions(t *testing.T) {
	used := map[string]bool{}
	for _, s := range shapes() {
		_, b := generate(t, s)
		for f := range paths(t, b) {
			used[f] = true
			if !slices.Contains(fields, f) && !kubernetes.MatchString(f) {
				t.Errorf("%s: field %s is not known to be there from Argo 3.5 to 4.x", s.name, f)
			}
		}
	}
	for _, f := range fields {
		require.True(t, used[f], "no shape has the field %s any more; take it off the list", f)
	}
}

// paths are the paths of all fields of a manifest.
func paths(t *testing.T, manifest []byte) map[string]bool {
	t.Helper()
	var v any
	require.NoError(t, yaml.Unmarshal(manifest, &v))
	out := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				p := k
				if path != "" {
					p = path + "." + k
				}
				if path == "metadata.labels" || path == "metadata.annotations" {
					p = path + ".*"
				}
				out[p] = true
				walk(p, e)
			}
		case []any:
			for _, e := range v {
				walk(path+"[]", e)
			}
		}
	}
	walk("", v)
	return out
}

// Argo decodes a number where it wants a string, and the other way round, on some versions and not on others.
func TestParametersAreStrings(t *testing.T) {
	for _, s := range shapes() {
		_, b := generate(t, s)
		var v map[string]any
		require.NoError(t, yaml.Unmarshal(b, &v))
		spec := v["spec"].(map[string]any)
		for _, p := range spec["arguments"].(map[string]any)["parameters"].([]any) {
			require.IsType(t, "", p.(map[string]any)["value"], "%s: %v", s.name, p)
		}
		for _, tm := range spec["templates"].([]any) {
			if r, ok := tm.(map[string]any)["retryStrategy"]; ok {
				require.Equal(t, map[string]any{"limit": "2", "retryPolicy": "OnError"}, r)
			}
		}
	}
}

func TestSizeIsToldAsArgoKeepsIt(t *testing.T) {
	p, b := generate(t, shapes()[2])
	o := workflow.Defaults()
	wf, err := workflow.Render(p, o)
	require.NoError(t, err)
	stored, err := workflow.Stored(wf)
	require.NoError(t, err)
	asJSON, err := yaml.YAMLToJSON(b)
	require.NoError(t, err)
	printed, err := workflow.JSON(wf)
	require.NoError(t, err)
	require.JSONEq(t, string(asJSON), string(printed))
	require.Greater(t, stored, len(printed), "Argo's types put empty fields back")
	require.Less(t, stored, len(printed)+2000)
}

// bytesPerNode is what one more node adds to the JSON as it is printed.
func bytesPerNode(t testing.TB, layout workflow.Layout, gate plan.Gate, n int) float64 {
	t.Helper()
	size := func(n int) int {
		p := &plan.Plan{From: "v1", To: "v2", Namespace: "ate-system", Pace: plan.Pace{Gate: gate, Suspend: plan.SuspendAuto}}
		for i := range n {
			p.Nodes = append(p.Nodes, plan.Node{Name: fmt.Sprintf("gke-production-worker-pool-7f3a9c1e-%04d", i), Verdict: plan.Roll})
		}
		o := workflow.Defaults()
		o.Layout = layout
		wf, err := workflow.Render(p, o)
		require.NoError(t, err)
		b, err := workflow.JSON(wf)
		require.NoError(t, err)
		return len(b)
	}
	return float64(size(n)-size(1)) / float64(n-1)
}

func TestBytesPerNode(t *testing.T) {
	require.LessOrEqual(t, bytesPerNode(t, workflow.LayoutNodes, plan.GateEvery, 100), 1.5*1024)
	require.LessOrEqual(t, bytesPerNode(t, workflow.LayoutCompact, plan.GateNone, 1000), 0.25*1024)
	require.LessOrEqual(t, bytesPerNode(t, workflow.LayoutCompact, plan.GateEvery, 1000), 0.32*1024)
}

func TestLabelsTellThePlan(t *testing.T) {
	read := func(s shape) map[string]string {
		_, b := generate(t, s)
		var wf struct {
			Metadata struct{ Labels map[string]string }
		}
		require.NoError(t, yaml.Unmarshal(b, &wf))
		return wf.Metadata.Labels
	}
	every, none := read(shapes()[2]), read(shapes()[5])
	require.Equal(t, []string{"app.kubernetes.io/name", "atewf.dev/from", "atewf.dev/plan", "atewf.dev/to"}, slices.Sorted(maps.Keys(every)))
	require.Equal(t, "v1", every["atewf.dev/from"])
	require.Equal(t, "v2", every["atewf.dev/to"])
	require.Equal(t, every["atewf.dev/plan"], none["atewf.dev/plan"], "gates change nothing about what is rolled")
	require.NotEqual(t, every["atewf.dev/plan"], read(shapes()[0])["atewf.dev/plan"])
}

// The steps that a Workflow carries are those of the file that people read and install.
func TestStepsAreThoseOfTheTemplate(t *testing.T) {
	_, b := generate(t, shapes()[2])
	type doc struct {
		Spec struct {
			SecurityContext json.RawMessage
			Templates       []json.RawMessage
			Arguments       struct{ Parameters []struct{ Name string } }
		}
	}
	var got, want doc
	require.NoError(t, yaml.Unmarshal(b, &got))
	file, err := os.ReadFile("../../templates/steps.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(file, &want))
	require.JSONEq(t, string(want.Spec.SecurityContext), string(got.Spec.SecurityContext))
	require.Equal(t, want.Spec.Arguments, got.Spec.Arguments)
	last := got.Spec.Templates[len(got.Spec.Templates)-len(want.Spec.Templates):]
	for i := range last {
		require.JSONEq(t, string(want.Spec.Templates[i]), string(last[i]))
	}
}
