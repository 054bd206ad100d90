package steps

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
)

// Drain takes the workers of the node out of service for new actors; actors that run there go on (runbook, 6a). There is
// no undrain, so it takes the Lease first.
//
// A worker on which an actor is just resuming is left until the actor runs: Substrate crashes a resume that finds its
// worker drained.
func (r *Roller) Drain(ctx context.Context) (Result, error) {
	const step = "drain"
	v, base, finished, err := r.begin(ctx, step)
	if err != nil || finished != "" {
		return Result{Summary: finished}, err
	}
	if err := r.stamp(ctx, &v, r.stamped(v, roll.Draining)); err != nil {
		return Result{}, err
	}
	drained, total := 0, 0
	err = r.until(ctx, wait{step: step, what: "every worker to be drained", timeout: r.timeout(5 * time.Minute), next: "see what holds them up, then argo retry"},
		func(ctx context.Context) ([]Blocker, error) {
			now, o, err := r.observe(ctx)
			if err != nil {
				return nil, err
			}
			if now.node == nil {
				return nil, r.gone(ctx, step, base)
			}
			v = now
			if err := r.lost(step, base, o.crashed); err != nil {
				return nil, err
			}
			total = len(o.workers)
			bs, n, err := r.drainAll(ctx, o)
			drained += n
			for _, p := range o.late {
				bs = append(bs, Blocker{Object: "pod " + p.Namespace + "/" + p.Name, Reason: "Ready and not registered as a worker yet"})
			}
			return bs, err
		})
	if err != nil {
		return r.vanished(err, 0)
	}
	sum := fmt.Sprintf("node %s: %d worker(s) drained, %d of them now", r.o.Node, total, drained)
	if drained > 0 {
		r.event(ctx, v, corev1.EventTypeNormal, "RollDrained", sum)
	}
	return Result{Summary: sum}, nil
}

// drainAll drains the workers that still take actors, except those with an actor that is just resuming, which it returns
// as blockers. n counts the workers that it drained.
func (r *Roller) drainAll(ctx context.Context, o occupancy) (bs []Blocker, n int, err error) {
	resuming := map[string]substrate.Actor{}
	for _, oc := range o.occupants {
		if oc.Actor.State == substrate.Resuming && oc.Worker.Name != "" {
			resuming[oc.Worker.Name] = oc.Actor
		}
	}
	for _, w := range o.awake {
		if a, ok := resuming[w.Name]; ok {
			bs = append(bs, Blocker{Object: w.String(), Reason: fmt.Sprintf("actor %s is resuming on it and would crash", a.Ref)})
			continue
		}
		now, err := again(ctx, r, "draining "+w.String(), func() (substrate.Worker, error) { return r.sub.Drain(ctx, w.Name) })
		if status.Code(err) == codes.NotFound {
			continue // its pod went meanwhile; the next look shows what came in its place
		}
		if err != nil {
			return bs, n, err
		}
		if now.State != substrate.Draining {
			bs = append(bs, Blocker{Object: w.String(), Reason: fmt.Sprintf("still %s after it was drained", now.State)})
			continue
		}
		n++
		r.out.Say("drained %s", w)
	}
	return bs, n, nil
}
