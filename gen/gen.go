// Package gen turns a cluster into a Workflow: it reads a snapshot, works out a plan, and renders it. Only the Reader at
// its edge knows a cluster; all else is pure.
package gen

import (
	"context"
	"fmt"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/gen/workflow"
)

// Reader reads a snapshot, from a cluster or from where one was kept.
type Reader interface {
	Read(ctx context.Context) (*snapshot.Snapshot, error)
}

// Result is a plan and the Workflow that carries it out.
type Result struct {
	Plan *plan.Plan
	// Manifest is the Workflow as YAML. It has passed workflow.Validate, byte by byte.
	Manifest []byte
}

// Generate reads, plans, renders and validates. An error of the plan is a plan.Failed, and a Workflow that would be too
// large is a *workflow.TooBig.
func Generate(ctx context.Context, r Reader, po plan.Options, wo workflow.Options) (*Result, error) {
	s, err := r.Read(ctx)
	if err != nil {
		return nil, err
	}
	p, err := plan.New(s, po)
	if err != nil {
		return nil, err
	}
	wo.AllowSingleNode = po.AllowSingleNode
	wf, err := workflow.Render(p, wo)
	if err != nil {
		return nil, err
	}
	if p.Cost.Bytes, err = workflow.Stored(wf); err != nil {
		return nil, err
	}
	if p.Cost.Bytes > workflow.Budget {
		e := &workflow.TooBig{Bytes: p.Cost.Bytes, Nodes: p.Cost.Nodes, Zones: map[string]int{}, Compact: wo.Layout.For(p.Cost.Nodes) == workflow.LayoutCompact}
		for _, n := range p.Rolling() {
			e.Zones[n.Zone]++
		}
		return nil, e
	}
	manifest, err := workflow.Marshal(wf)
	if err != nil {
		return nil, err
	}
	if err := workflow.Validate(manifest); err != nil {
		return nil, fmt.Errorf("the Workflow that was made is not valid, which is a fault of atewf: %w", err)
	}
	return &Result{Plan: p, Manifest: manifest}, nil
}
