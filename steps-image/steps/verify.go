package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// Verify confirms that the node has moved and that the fleet may lose the next one (runbook, 6f and 6g): no old worker
// pod is left, every new one is Ready and registered as ACTIVE, the actors that were suspended for the node have room on
// ACTIVE workers that match them, and no actor crashed. Two looks in a row must say so.
//
// It may be run again on a node that is finished, and then looks at everything again.
func (r *Roller) Verify(ctx context.Context) (Result, error) {
	const step = "verify"
	v, err := r.look(ctx)
	if err != nil {
		return Result{}, err
	}
	var base roll.Baseline
	open := v.node == nil || !v.done(r.o.To)
	if open {
		var noted bool
		if base, noted, err = r.hold(ctx, step); err != nil {
			return Result{}, err
		}
		crashed, err := r.crashed(ctx)
		if err != nil {
			return Result{}, err
		}
		if !noted {
			base = roll.NewBaseline(crashed)
		}
		if err := r.lost(step, base, crashed); err != nil {
			return Result{}, err
		}
	}
	if v.node == nil {
		return Result{Summary: fmt.Sprintf("node %s does not exist any more, and took no actor along", r.o.Node)}, r.letGo(ctx)
	}
	good := 0
	var fresh int
	err = r.until(ctx, wait{step: step, what: "the node to serve at the new version", timeout: r.timeout(15 * time.Minute),
		next: "repair what is named, then argo retry; the roll goes on at this step"}, func(ctx context.Context) ([]Blocker, error) {
		for {
			next, err := r.look(ctx)
			if err != nil {
				return nil, err
			}
			if next.node == nil {
				return nil, errGone
			}
			v = next
			bs, err := r.check(ctx, step, v, base, open)
			if err != nil {
				return nil, err
			}
			if len(bs) > 0 {
				good = 0
				return bs, nil
			}
			fresh = len(v.fresh)
			if good++; good == 2 {
				return nil, nil
			}
			if err := r.clock.Sleep(ctx, confirm); err != nil {
				return nil, err
			}
		}
	})
	if errors.Is(err, errGone) {
		if open {
			if err := r.gone(ctx, step, base); !errors.Is(err, errGone) {
				return Result{}, err
			}
		}
		return Result{Summary: fmt.Sprintf("node %s vanished, and took no actor along", r.o.Node)}, r.letGo(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	sum := fmt.Sprintf("node %s: at %s, %d new worker(s) ACTIVE, no old one left", r.o.Node, r.o.To, fresh)
	if open {
		st := &roll.Stamp{Roll: r.o.Roll.String(), From: r.o.From, To: r.o.To, Phase: roll.Verified, At: r.clock.Now().UTC()}
		if err := r.stamp(ctx, &v, st); err != nil {
			return Result{}, err
		}
		r.event(ctx, v, corev1.EventTypeNormal, "RollVerified", sum)
		if err := r.letGo(ctx); err != nil {
			return Result{}, err
		}
	}
	return Result{Summary: sum}, nil
}

// check is one look at everything that must be true of a rolled node.
func (r *Roller) check(ctx context.Context, step string, v view, base roll.Baseline, open bool) ([]Blocker, error) {
	var bs []Blocker
	node := "node " + r.o.Node
	if at := v.at(); at != r.o.To {
		return nil, r.stop(step, ExitBlocked, fmt.Sprintf("it carries %s=%q and not %s", versions.Label, at, r.o.To), "see who moved the label back; a fresh atewf generate takes the node first")
	}
	atelets, err := again(ctx, r, "listing the atelets of "+node, func() ([]corev1.Pod, error) { return r.kube.AteletPods(ctx, r.o.Namespace, r.o.Node) })
	if err != nil {
		return nil, err
	}
	bs = append(bs, ateletBlockers(atelets, r.o.Node, r.o.To)...)
	for _, p := range append(slices.Clone(v.old), v.other...) {
		bs = append(bs, Blocker{Object: "pod " + p.Namespace + "/" + p.Name, Reason: fmt.Sprintf("a worker pinned to %q is left", versions.PodPin(&p))})
	}
	workers, err := again(ctx, r, "listing the workers", func() ([]substrate.Worker, error) { return r.sub.Workers(ctx) })
	if err != nil {
		return nil, err
	}
	state := map[string]substrate.WorkerState{}
	for _, w := range workers {
		state[w.Name], state[w.PodUID] = w.State, w.State
	}
	here := 0
	for _, p := range v.fresh {
		name := "pod " + p.Namespace + "/" + p.Name
		switch st := state[string(p.UID)]; {
		case p.DeletionTimestamp != nil: // its replacement is looked at when it comes
		case !podReady(&p):
			bs = append(bs, Blocker{Object: name, Reason: "new worker not Ready: " + podTrouble(&p)})
		case st == "":
			bs = append(bs, Blocker{Object: name, Reason: "new worker Ready and not registered; is ate-controller Available?"})
		case st != substrate.Active:
			bs = append(bs, Blocker{Object: name, Reason: fmt.Sprintf("new worker is %s", st)})
		default:
			here++
		}
	}
	more, err := r.newWorkersDue(ctx, v, here)
	if err != nil {
		return nil, err
	}
	bs = append(bs, more...)

	waiting := map[string]roll.Waiting{}
	if v.stamp.InProgress() {
		for _, w := range v.stamp.Suspended {
			waiting[w.Actor] = w
		}
	}
	var crashed []string
	var needs []substrate.Need
	load := map[string]int32{}
	if _, err := again(ctx, r, "listing the actors", func() (struct{}, error) {
		crashed, needs, load = nil, nil, map[string]int32{}
		seen := map[substrate.Ref]bool{}
		return struct{}{}, r.sub.EachActor(ctx, func(a substrate.Actor) error {
			if seen[a.Ref] {
				return nil
			}
			if w, waits := waiting[a.Ref.String()]; waits || a.Bound() {
				seen[a.Ref] = true
				if waits && !a.Bound() && a.State == substrate.Suspended {
					needs = append(needs, substrate.Need{Actor: w.Actor, Class: w.Class, Selector: a.Selector})
				}
			}
			if a.Bound() {
				key := a.Worker
				if key == "" {
					key = a.WorkerPodUID
				}
				load[key]++
			}
			if a.State == substrate.Crashed {
				crashed = append(crashed, a.Ref.String())
			}
			return nil
		})
	}); err != nil {
		return nil, err
	}
	if open {
		if err := r.lost(step, base, crashed); err != nil {
			return nil, err
		}
	}
	return append(bs, noRoom(needs, workers, load)...), nil
}

// newWorkersDue says that new workers have not come up on the node although some wait for a node. Pods of the new pools
// that wait for other nodes are expected; that none came here, where old ones were, is not.
func (r *Roller) newWorkersDue(ctx context.Context, v view, here int) ([]Blocker, error) {
	if here > 0 || len(v.fresh) > 0 || !v.stamp.InProgress() || len(v.stamp.OldWorkers) == 0 {
		return nil, nil
	}
	pending, err := again(ctx, r, "listing the worker pods without a node", func() ([]corev1.Pod, error) { return r.kube.UnscheduledWorkerPods(ctx) })
	if err != nil {
		return nil, err
	}
	for _, p := range pending {
		if versions.PodPin(&p) == r.o.To && p.DeletionTimestamp == nil {
			return []Blocker{{Object: "node " + r.o.Node, Reason: fmt.Sprintf("no new worker has come up here, where workers of %s were, although pod %s/%s waits for a node: %s",
				strings.Join(sortedKeys(v.stamp.OldWorkers), ", "), p.Namespace, p.Name, podTrouble(&p))}}, nil
		}
	}
	return nil, nil
}

// noRoom names the actors that would find no worker if they all came back now.
func noRoom(needs []substrate.Need, workers []substrate.Worker, load map[string]int32) []Blocker {
	var slots []substrate.Slots
	seen := map[string]bool{}
	for _, w := range workers {
		if seen[w.Name] {
			continue
		}
		seen[w.Name] = true
		used := load[w.Name]
		if w.PodUID != w.Name {
			used += load[w.PodUID]
		}
		slots = append(slots, substrate.Slots{Worker: w, Free: w.Capacity - max(used, w.Claimed)})
	}
	left := substrate.Room(needs, slots)
	if len(left) == 0 {
		return nil
	}
	n := left[0]
	reason := fmt.Sprintf("%d of %d actors that wait find no free ACTIVE worker that matches them, first %s", len(left), len(needs), n.Actor)
	if n.Class != "" {
		reason += ", sandbox class " + n.Class
	}
	for _, k := range sortedKeys(n.Selector) {
		reason += fmt.Sprintf(", %s=%s", k, n.Selector[k])
	}
	return []Blocker{{Object: "fleet", Reason: reason + "; make room with more nodes, or suspend actors that are not needed"}}
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
