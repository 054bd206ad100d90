package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/snapshot/snapshottest"
	"github.com/atewf/atewf/gen/workflow"
)

// beAtewf makes the test binary be the program, so that a benchmark can measure a whole process.
const beAtewf = "ATEWF_TEST_BE_ATEWF"

func TestMain(m *testing.M) {
	if os.Getenv(beAtewf) != "" {
		main()
	}
	os.Exit(m.Run())
}

// nodeName is a node's name of 40 characters, as cloud providers make them.
func nodeName(i int) string { return fmt.Sprintf("gke-production-worker-pool-7f3a9c1e-%04d", i) }

// measure runs the program as a process of its own, and reports its best time, on the clock and on processors, and its
// peak of memory. It fails beyond the limits that the project has set itself. The best run counts, because machines have
// other things to do.
func measure(b *testing.B, most time.Duration, mostMiB float64, args ...string) {
	b.Helper()
	const never = time.Duration(1 << 62)
	best, cpu, peak := never, never, 0.0
	for b.Loop() {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), beAtewf+"=1")
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		start := time.Now()
		if err := cmd.Run(); err != nil {
			b.Fatalf("%v: %s", err, errOut.String())
		}
		best = min(best, time.Since(start))
		cpu = min(cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		if out.Len() == 0 {
			b.Fatal("nothing was printed")
		}
		if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			peak = max(peak, float64(u.Maxrss)/1024)
		}
	}
	b.ReportMetric(best.Seconds(), "best-s")
	b.ReportMetric(cpu.Seconds(), "best-cpu-s")
	b.ReportMetric(peak, "peak-MiB")
	// On a machine that does nothing else the time on the clock is no more than that of its processors.
	if best > most && cpu > most {
		b.Errorf("the best run took %s, %s of it on a processor, and the limit is %s", best, cpu, most)
	}
	if peak > mostMiB {
		b.Errorf("it took %.0f MiB at its peak, and the limit is %.0f", peak, mostMiB)
	}
}

// One zone of a fleet of 5,000 nodes with 200 pools and 100,000 actors.
func BenchmarkGenerateLargeFleet(b *testing.B) {
	file := keep(b, snapshottest.Fleet(snapshottest.Size{Nodes: 5000, Pools: 200, WorkersPerNode: 8, Actors: 100_000, Name: nodeName}))
	measure(b, 2*time.Second, 300, "generate", "--snapshot", file, "--selector", "topology.kubernetes.io/zone=zone-a")
}

func BenchmarkGenerateThousandNodes(b *testing.B) {
	file := keep(b, snapshottest.Fleet(snapshottest.Size{Nodes: 1000, Pools: 10, WorkersPerNode: 4, Actors: 1000, Name: nodeName}))
	measure(b, 500*time.Millisecond, 300, "generate", "--snapshot", file)
}

// What one more node of a 40-character name takes, as it is printed and as Argo keeps it.
func BenchmarkBytesPerNode(b *testing.B) {
	for _, c := range []struct {
		layout workflow.Layout
		gate   plan.Gate
		nodes  int
	}{
		{workflow.LayoutNodes, plan.GateEvery, 100}, {workflow.LayoutNodes, plan.GateNone, 100},
		{workflow.LayoutCompact, plan.GateEvery, 1000}, {workflow.LayoutCompact, plan.GateNone, 1000},
	} {
		b.Run(fmt.Sprintf("%s/gate-%s", c.layout, c.gate), func(b *testing.B) {
			size := func(n int) (printed, stored, manifest int) {
				p := &plan.Plan{From: "v1", To: "v2", Namespace: "ate-system", Pace: plan.Pace{Gate: c.gate, Suspend: plan.SuspendAuto}, Cost: plan.Cost{Gates: 1}}
				for i := range n {
					p.Nodes = append(p.Nodes, plan.Node{Name: nodeName(i + 1), Verdict: plan.Roll})
				}
				o := workflow.Defaults()
				o.Layout = c.layout
				wf, err := workflow.Render(p, o)
				if err != nil {
					b.Fatal(err)
				}
				asJSON, err := workflow.JSON(wf)
				if err != nil {
					b.Fatal(err)
				}
				if stored, err = workflow.Stored(wf); err != nil {
					b.Fatal(err)
				}
				asYAML, err := workflow.Marshal(wf)
				if err != nil {
					b.Fatal(err)
				}
				return len(asJSON), stored, len(asYAML)
			}
			var printed, stored, manifest int
			p1, s1, m1 := size(1)
			for b.Loop() {
				printed, stored, manifest = size(c.nodes)
			}
			per := func(n, one int) float64 { return float64(n-one) / float64(c.nodes-1) }
			b.ReportMetric(per(printed, p1), "json-B/node")
			b.ReportMetric(per(stored, s1), "stored-B/node")
			b.ReportMetric(per(manifest, m1), "yaml-B/node")
		})
	}
}
