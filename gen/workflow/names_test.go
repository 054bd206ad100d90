package workflow_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/workflow"
)

// Whatever nodes are called, the Workflow is valid, rolls them in their order, and has gates of different names.
func FuzzNodeNames(f *testing.F) {
	f.Add(strings.Join(odd, " "), uint8(0))
	f.Add("node1 node2 node10", uint8(1))
	f.Add("a.b a-b a--b A-B a_b", uint8(2))
	f.Add("verify flip roll approve suspend soak batch-1 group-batch-1 roll-node move-node n1 n2 node", uint8(3))
	f.Add("node-a approve-node-a node-approve-a", uint8(7))
	f.Fuzz(func(t *testing.T, joined string, kind uint8) { rollsAll(t, strings.Fields(joined), kind) })
}

// rollsAll renders nodes of these names in one of eight shapes and requires what must hold of any.
func rollsAll(t *testing.T, names []string, kind uint8) {
	t.Helper()
	seen := map[string]bool{}
	p := &plan.Plan{From: "v1", To: "v2", Namespace: "ate-system", Pace: plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendAuto}}
	for _, n := range names {
		n = strings.ToValidUTF8(n, "?")
		if strings.Contains(n, "{{") || strings.Contains(n, "}}") || seen[n] {
			continue // the plan refuses them
		}
		seen[n] = true
		p.Nodes = append(p.Nodes, plan.Node{Name: n, Verdict: plan.Roll})
	}
	if len(p.Nodes) == 0 || len(p.Nodes) > 150 {
		return
	}
	o := workflow.Defaults()
	if kind&1 != 0 {
		o.Layout = workflow.LayoutCompact
	}
	if kind&2 != 0 {
		p.Pace.Suspend = plan.SuspendGate
	}
	if kind&4 != 0 {
		p.Pace.Gate, p.Pace.Soak = plan.GateCanary, 60e9
	}
	p.Cost = plan.Cost{}
	for i := range p.Nodes {
		p.Cost.Pods += 4
		if p.Pace.GateBefore(i) {
			p.Cost.Gates++
		}
		if p.Pace.GateBeforeSuspend() {
			p.Cost.Gates++
		}
		if p.Pace.SoakAfter(i, len(p.Nodes)) {
			p.Cost.Pods++
		}
	}
	wf, err := workflow.Render(p, o)
	require.NoError(t, err)
	b, err := workflow.Marshal(wf)
	require.NoError(t, err)
	require.NoError(t, workflow.Validate(b))
	requireSequence(t, p, b)
}

// The same with names made up at random, of an alphabet in which they are close to one another.
func TestRandomNodeNames(t *testing.T) {
	const letters = "ab1-.AB_ö"
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var names []string
		for range 1 + rnd.IntN(30) {
			var b strings.Builder
			for range 1 + rnd.IntN(60) {
				b.WriteByte(letters[rnd.IntN(len(letters))])
			}
			names = append(names, b.String())
		}
		rollsAll(t, names, uint8(rnd.IntN(8)))
	}
}

// Two names whose slugs are the same, found by trying: their first 29 characters and 40 bits of their hashes agree.
const twinA, twinB = "node-with-a-name-that-is-long-enough-to-be-cut-63060", "node-with-a-name-that-is-long-enough-to-be-cut-e5fd6"

func TestNamesThatCollideAreRefused(t *testing.T) {
	p := &plan.Plan{From: "v1", To: "v2", Nodes: []plan.Node{{Name: twinA, Verdict: plan.Roll}, {Name: twinB, Verdict: plan.Roll}}}
	_, err := workflow.Render(p, workflow.Defaults())
	require.ErrorContains(t, err, twinA)
	require.ErrorContains(t, err, twinB)
	require.ErrorContains(t, err, "--exclude")
}
