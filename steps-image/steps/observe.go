package steps

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// view is what one look at a node showed.
type view struct {
	node  *corev1.Node // nil when the node does not exist
	stamp *roll.Stamp  // nil when no roll touched it
	// old are the worker pods of the version that is being left, fresh those of the version that is being reached, other
	// those of neither.
	old, fresh, other []corev1.Pod
}

// at is the version that the node carries.
func (v view) at() string {
	if v.node == nil {
		return ""
	}
	return v.node.Labels[versions.Label]
}

// done reports whether there is nothing left to do on the node.
func (v view) done(to string) bool {
	return v.at() == to && len(v.old)+len(v.other) == 0 && !v.stamp.InProgress()
}

// look reads the node and its worker pods.
func (r *Roller) look(ctx context.Context) (view, error) {
	var v view
	n, err := again(ctx, r, "reading node "+r.o.Node, func() (*corev1.Node, error) { return r.kube.Node(ctx, r.o.Node) })
	if apierrors.IsNotFound(err) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.node = n
	if v.stamp, err = roll.ParseStamp(n.Annotations); err != nil {
		return v, fmt.Errorf("node %s: %w", r.o.Node, err)
	}
	pods, err := again(ctx, r, "listing the worker pods of node "+r.o.Node, func() ([]corev1.Pod, error) { return r.kube.WorkerPods(ctx, r.o.Node) })
	if err != nil {
		return v, err
	}
	for _, p := range pods {
		switch pin := versions.PodPin(&p); {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
			// It runs nothing any more; its record, if there still is one, is seen among the workers.
		case pin == r.o.To:
			v.fresh = append(v.fresh, p)
		case pin == r.o.From:
			v.old = append(v.old, p)
		default:
			v.other = append(v.other, p)
		}
	}
	return v, nil
}

// begin looks at the node and settles what every step settles first: is there anything to do, may this roll do it, and is
// it this node's turn. finished is not empty when there is nothing to do, and says why.
func (r *Roller) begin(ctx context.Context, step string) (v view, base roll.Baseline, finished string, err error) {
	if v, err = r.look(ctx); err != nil {
		return v, base, "", err
	}
	if v.node == nil {
		return v, base, fmt.Sprintf("node %s does not exist any more: nothing left to %s", r.o.Node, step), nil
	}
	if v.done(r.o.To) {
		return v, base, fmt.Sprintf("node %s is at %s already and has no worker of another version: nothing to %s", r.o.Node, r.o.To, step), nil
	}
	if at := v.at(); at != r.o.From && at != r.o.To {
		return v, base, "", r.stop(step, ExitBlocked, fmt.Sprintf("it carries %s=%q, which is neither %s nor %s, so this roll did not plan it", versions.Label, at, r.o.From, r.o.To),
			"find out who labelled it; generate the roll again with atewf generate")
	}
	if len(v.other) > 0 {
		var bs []Blocker
		for _, p := range v.other {
			bs = append(bs, Blocker{Object: "pod " + p.Namespace + "/" + p.Name, Reason: fmt.Sprintf("pinned to %q", versions.PodPin(&p))})
		}
		return v, base, "", r.stop(step, ExitBlocked, "it hosts worker pods that are pinned to neither version, and nobody can tell what becomes of them", "pin their worker pool to "+r.o.From+" while none of its workers has an actor, as the release's API guide describes", bs...)
	}
	base, noted, err := r.hold(ctx, step)
	if err != nil {
		return v, base, "", err
	}
	crashed, err := r.crashed(ctx)
	if err != nil {
		return v, base, "", err
	}
	if !noted {
		base = roll.NewBaseline(crashed)
		return v, base, "", r.note(ctx, base)
	}
	return v, base, "", r.lost(step, base, crashed)
}

// crashed lists the actors that are CRASHED, everywhere.
func (r *Roller) crashed(ctx context.Context) ([]string, error) {
	var out []string
	_, err := again(ctx, r, "listing the actors", func() (struct{}, error) {
		out = nil
		return struct{}{}, r.sub.EachActor(ctx, func(a substrate.Actor) error {
			if a.State == substrate.Crashed {
				out = append(out, a.Ref.String())
			}
			return nil
		})
	})
	return out, err
}

// lost stops the line when there are CRASHED actors that were not there before.
func (r *Roller) lost(step string, base roll.Baseline, crashed []string) error {
	lost := base.Lost(crashed)
	if len(lost) == 0 {
		return nil
	}
	var bs []Blocker
	for _, a := range lost {
		bs = append(bs, Blocker{Object: "actor " + a, Reason: "CRASHED"})
	}
	return r.stop(step, ExitLost, fmt.Sprintf("%d actor(s) are CRASHED that were not when the node was begun", len(lost)),
		"find out why with kubectl ate get actors -A; a CRASHED actor can go back to its last snapshot only by an explicit revert, which loses what came after; then argo retry", bs...)
}

// occupancy is one reading of who is on the node.
type occupancy struct {
	occupants []substrate.Occupant
	workers   []substrate.Worker // the workers that count: of the old version, or unknown to Kubernetes
	awake     []substrate.Worker // those of them that still take actors
	late      []corev1.Pod       // Ready worker pods that are not registered yet
	crashed   []string
}

// clean reports whether the node was empty and closed at that moment.
func (o occupancy) clean() bool {
	return len(o.occupants) == 0 && len(o.awake) == 0 && len(o.late) == 0
}

// observe looks at the node and reads who is on it. v.node is nil when the node does not exist.
//
// The workers are read before the pods: a worker registers after its pod was made, so a worker without a pod in the later
// list is one whose pod is gone, and never a fresh worker of the new version that would be drained for good by mistake.
// A worker without a pod counts as an old one: its record has not been cleared away yet, and an actor may still be bound
// to it.
func (r *Roller) observe(ctx context.Context) (view, occupancy, error) {
	var v view
	o, err := again(ctx, r, "reading who is on node "+r.o.Node, func() (occupancy, error) {
		var o occupancy
		all, err := r.sub.Workers(ctx)
		if err != nil {
			return o, err
		}
		if v, err = r.look(ctx); err != nil || v.node == nil {
			return o, err
		}
		fresh, old, known := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, p := range v.fresh {
			fresh[string(p.UID)] = true
		}
		for _, p := range v.old {
			old[string(p.UID)] = true
		}
		for _, w := range all {
			here := w.Node == r.o.Node || old[w.Name] || old[w.PodUID]
			if !here || fresh[w.Name] || fresh[w.PodUID] || known[w.Name] {
				continue
			}
			known[w.Name], known[w.PodUID] = true, true
			o.workers = append(o.workers, w)
			if w.State != substrate.Draining {
				o.awake = append(o.awake, w)
			}
		}
		for _, p := range v.old {
			if !known[string(p.UID)] && podReady(&p) && p.DeletionTimestamp == nil {
				o.late = append(o.late, p)
			}
		}
		count := substrate.NewOccupancy(substrate.Site{Node: r.o.Node, Workers: o.workers, Flipped: v.at() == r.o.To})
		if err := r.sub.EachActor(ctx, func(a substrate.Actor) error {
			if a.State == substrate.Crashed {
				o.crashed = append(o.crashed, a.Ref.String())
			}
			count.Add(a)
			return nil
		}); err != nil {
			return o, err
		}
		o.occupants = count.Occupants()
		return o, nil
	})
	return v, o, err
}

// blockers names what a reading found, for people.
func (o occupancy) blockers() []Blocker {
	var bs []Blocker
	for _, oc := range o.occupants {
		b := Blocker{Object: "actor " + oc.Actor.String(), Reason: fmt.Sprintf("%s, %s", oc.Actor.State, oc.Reason)}
		switch oc.Reason {
		case substrate.Unseen:
			b = Blocker{Object: oc.Worker.String(), Reason: oc.String(), Next: "kubectl ate get workers, and see which actor it means"}
		case substrate.Unknown:
			b.Next = "use a version of atewf that knows this state"
		default:
			b.Next = fmt.Sprintf("kubectl ate suspend actor %s -a %s", oc.Actor.Name, oc.Actor.Atespace)
		}
		bs = append(bs, b)
	}
	for _, w := range o.awake {
		bs = append(bs, Blocker{Object: w.String(), Reason: "not drained yet"})
	}
	for _, p := range o.late {
		bs = append(bs, Blocker{Object: "pod " + p.Namespace + "/" + p.Name, Reason: "Ready and not registered as a worker yet, so it cannot be drained yet"})
	}
	return bs
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// refs joins the names of a few blockers for a line of progress.
func refs(bs []Blocker, most int) string {
	var parts []string
	for i, b := range bs {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(bs)-most))
			break
		}
		parts = append(parts, b.String())
	}
	return strings.Join(parts, "; ")
}
