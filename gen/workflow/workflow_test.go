package workflow

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/atewf/atewf/gen/plan"
)

var update = flag.Bool("update", false, "write the golden files anew")
var _ = update

func planOf(names ...string) *plan.Plan {
	p := &plan.Plan{From: "v1", To: "v2", Cluster: "prod", Namespace: "ate-system", Pace: plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendAuto}}
	for _, n := range names {
		p.Nodes = append(p.Nodes, plan.Node{Name: n, Verdict: plan.Roll})
	}
	p.Cost.Gates = len(names)
	return p
}

func TestTry(t *testing.T) {
	for _, n := range []int{3, 100, 1000} {
		var ns []string
		for i := range n {
			ns = append(ns, fmt.Sprintf("gke-production-worker-pool-7f3a9c1e-%04d", i)[:40])
		}
		p := planOf(ns...)
		t0 := time.Now()
		wf, err := Render(p, Defaults())
		require.NoError(t, err)
		t1 := time.Now()
		b, err := Marshal(wf)
		require.NoError(t, err)
		t2 := time.Now()
		err = Validate(b)
		t3 := time.Now()
		j, _ := JSON(wf)
		st, _ := Stored(wf)
		t.Log(n, "render", t1.Sub(t0), "marshal", t2.Sub(t1), "validate", t3.Sub(t2), "yaml", len(b), "json", len(j), len(j)/n, "stored", st, st/n, err)
		if n == 3 {
			fmt.Println(string(b))
		}
	}
}
