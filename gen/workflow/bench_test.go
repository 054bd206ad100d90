package workflow

import (
	"fmt"
	"testing"
)

func BenchmarkTry(b *testing.B) {
	var ns []string
	for i := range 1000 {
		ns = append(ns, fmt.Sprintf("gke-production-worker-pool-7f3a9c1e-%04d", i)[:40])
	}
	p := planOf(ns...)
	for b.Loop() {
		wf, _ := Render(p, Defaults())
		m, _ := Marshal(wf)
		if err := Validate(m); err != nil {
			b.Fatal(err)
		}
	}
}
