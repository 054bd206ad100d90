package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// Flip moves the node to the new version: it empties and closes the node once more, changes the version label, waits for
// the new atelet, and deletes the old worker pods one by one (runbook, 6c to 6e).
//
// The label is changed only right after two readings that found the node empty, and only if it still is the old one; a
// pod is deleted only on a node that carries the new label, after one more look at what its worker holds, and only if it
// still is the same pod.
func (r *Roller) Flip(ctx context.Context) (Result, error) {
	const step = "flip"
	v, base, finished, err := r.begin(ctx, step)
	if err != nil || finished != "" {
		return Result{Summary: finished}, err
	}
	e := r.newEmptying(step, base, r.timeout(30*time.Minute))
	var did []string
	if v.at() == r.o.From {
		if err := r.roomToFlip(ctx, step); err != nil {
			return Result{}, err
		}
		if _, err := again(ctx, r, "flipping the label of node "+r.o.Node, func() (struct{}, error) {
			// A second try empties the node again: time has passed since the readings.
			if err := e.run(ctx, &v); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, r.flipLabel(ctx, step, &v)
		}); err != nil {
			return r.vanished(err, len(e.suspended))
		}
		did = append(did, fmt.Sprintf("label moved to %s", r.o.To))
	}
	if err := r.newAtelet(ctx, step); err != nil {
		return r.vanished(err, len(e.suspended))
	}
	deleted, err := r.deleteOld(ctx, e, &v)
	if err != nil {
		return r.vanished(err, len(e.suspended))
	}
	did = append(did, "new atelet Ready", fmt.Sprintf("%d old worker pod(s) deleted", deleted))
	return Result{Summary: fmt.Sprintf("node %s: %s", r.o.Node, strings.Join(did, ", ")), Suspended: len(e.suspended)}, nil
}

// vanished turns the end of a node into the end of the step: there is nothing left to do on it.
func (r *Roller) vanished(err error, suspended int) (Result, error) {
	if errors.Is(err, errGone) {
		return Result{Summary: fmt.Sprintf("node %s vanished while it was rolled, and took no actor along", r.o.Node), Suspended: suspended}, nil
	}
	return Result{Suspended: suspended}, err
}

// roomToFlip refuses to take the last node out.
func (r *Roller) roomToFlip(ctx context.Context, step string) error {
	if r.o.AllowSingleNode {
		return nil
	}
	n, err := again(ctx, r, "counting the Ready nodes", func() (int, error) { return r.kube.ReadyNodes(ctx, r.o.Node, r.o.From, r.o.To) })
	if err != nil {
		return err
	}
	if n == 0 {
		return r.stop(step, ExitBlocked, "no other node of the fleet is Ready, so this would take everything out of service",
			"bring another node up, then argo retry; or generate with --allow-single-node to accept a full stop")
	}
	return nil
}

// flipLabel changes the label together with the stamp, in one patch that fails unless the label is still the old one.
func (r *Roller) flipLabel(ctx context.Context, step string, v *view) error {
	if _, _, err := r.hold(ctx, step); err != nil {
		return err
	}
	st := r.stamped(*v, roll.Flipped)
	label := pointer("labels", versions.Label)
	ops := append([]PatchOp{{Op: "test", Path: label, Value: r.o.From}, {Op: "replace", Path: label, Value: r.o.To}}, r.stampOps(*v, st)...)
	err := r.kube.PatchNode(ctx, r.o.Node, ops)
	if err != nil {
		// The answer may be lost and the label changed all the same, or somebody else changed it: only the node knows.
		now, lerr := r.look(ctx)
		switch {
		case lerr != nil:
			return fmt.Errorf("%w; and reading it back: %w", err, lerr)
		case now.node == nil:
			return errGone
		case now.at() == r.o.To && now.stamp != nil && now.stamp.Roll == st.Roll && now.stamp.Phase == roll.Flipped:
			*v = now
		case now.at() != r.o.From:
			return r.stop(step, ExitBlocked, fmt.Sprintf("its label was changed to %q by somebody else at the moment of the flip", now.at()), "find out who labels nodes, then argo retry")
		default:
			return fmt.Errorf("%w; nothing was changed", err)
		}
	}
	r.out.Say("label %s of node %s moved from %s to %s", versions.Label, r.o.Node, r.o.From, r.o.To)
	now, err := r.look(ctx)
	if err != nil {
		return err
	}
	*v = now
	r.event(ctx, *v, corev1.EventTypeNormal, "RollFlipped", fmt.Sprintf("moved from version %s to %s", r.o.From, r.o.To))
	return nil
}

// newAtelet waits until an atelet of the new version is Ready on the node. Only its label tells its version.
func (r *Roller) newAtelet(ctx context.Context, step string) error {
	var pods []corev1.Pod
	err := r.until(ctx, wait{step: step, what: "the new atelet", timeout: r.o.AteletTimeout,
		next: fmt.Sprintf("repair the atelet, then argo retry; or give up the node: kubectl label node %s %s=%s --overwrite", r.o.Node, versions.Label, r.o.From)}, func(ctx context.Context) ([]Blocker, error) {
		n, err := again(ctx, r, "reading node "+r.o.Node, func() (*corev1.Node, error) { return r.kube.Node(ctx, r.o.Node) })
		if apierrors.IsNotFound(err) {
			return nil, errGone
		}
		if err != nil {
			return nil, err
		}
		if err := r.atNew(step, n); err != nil {
			return nil, err
		}
		pods, err = again(ctx, r, "listing the atelets of node "+r.o.Node, func() ([]corev1.Pod, error) { return r.kube.AteletPods(ctx, r.o.Namespace, r.o.Node) })
		if err != nil {
			return nil, err
		}
		return ateletBlockers(pods, r.o.Node, r.o.To), nil
	})
	var s *Stop
	if errors.As(err, &s) && s.Code == ExitTimeout {
		for _, p := range pods {
			if p.Labels[versions.Label] != r.o.To {
				continue
			}
			if tail, lerr := r.kube.LogTail(ctx, p.Namespace, p.Name, 5); lerr == nil && strings.TrimSpace(tail) != "" {
				s.Blockers = append(s.Blockers, Blocker{Object: "last lines of pod " + p.Name, Reason: strings.ReplaceAll(strings.TrimSpace(tail), "\n", " | ")})
			}
		}
	}
	return err
}

// atNew stops when the node does not carry the new label any more: its old pods must stay then, because their Deployment
// would put fresh ones beside them.
func (r *Roller) atNew(step string, n *corev1.Node) error {
	if at := n.Labels[versions.Label]; at != r.o.To {
		return r.stop(step, ExitBlocked, fmt.Sprintf("its label was moved back to %q by somebody else", at), "find out who labels nodes, then argo retry")
	}
	return nil
}

// ateletBlockers says why the node has no working atelet of the version yet. It is empty when it has one.
func ateletBlockers(pods []corev1.Pod, node, version string) []Blocker {
	var bs []Blocker
	found := false
	for _, p := range pods {
		name := "pod " + p.Namespace + "/" + p.Name
		switch {
		case p.Labels[versions.Label] == version && p.DeletionTimestamp == nil:
			if podReady(&p) {
				return nil
			}
			found = true
			bs = append(bs, Blocker{Object: name, Reason: "not Ready: " + podTrouble(&p)})
		case p.Labels[versions.Label] != version:
			bs = append(bs, Blocker{Object: name, Reason: "the old atelet is still there and holds the node's host ports"})
		}
	}
	if !found {
		bs = append(bs, Blocker{Object: "node " + node, Reason: fmt.Sprintf("no atelet pod of version %s has been made for it; does its DaemonSet exist, and does it tolerate the node's taints?", version)})
	}
	return bs
}

// podTrouble finds the most telling reason why a pod does not get Ready.
func podTrouble(p *corev1.Pod) string {
	for _, cs := range append(append([]corev1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...) {
		if w := cs.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return strings.TrimSpace(fmt.Sprintf("%s %s", w.Reason, oneLine(w.Message)))
		}
		if t := cs.LastTerminationState.Terminated; t != nil && !cs.Ready {
			return fmt.Sprintf("restarted %d time(s), last exit code %d %s", cs.RestartCount, t.ExitCode, oneLine(t.Message))
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			return strings.TrimSpace(fmt.Sprintf("%s %s", c.Reason, oneLine(c.Message)))
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		return "running, but its readiness probe fails"
	}
	return string(p.Status.Phase)
}

// oneLine makes a text from elsewhere fit for one line of a message.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 200
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// deleteOld deletes the old worker pods of a flipped node, one by one, and waits until they are gone.
func (r *Roller) deleteOld(ctx context.Context, e *emptying, v *view) (deleted int, err error) {
	asked := map[types.UID]bool{}
	err = r.until(ctx, wait{step: e.step, what: "the old worker pods to be gone", timeout: r.timeout(30 * time.Minute),
		next: "see what keeps the pods, then argo retry"}, func(ctx context.Context) ([]Blocker, error) {
		now, err := r.look(ctx)
		if err != nil {
			return nil, err
		}
		if now.node == nil {
			return nil, r.gone(ctx, e.step, e.base)
		}
		*v = now
		if err := r.atNew(e.step, v.node); err != nil {
			return nil, err
		}
		if len(v.old) == 0 {
			return nil, nil
		}
		// A resume whose worker was chosen before the drain may have ended on an old worker after the flip.
		if err := e.run(ctx, v); err != nil {
			return nil, err
		}
		var bs []Blocker
		for _, p := range v.old {
			name := "pod " + p.Namespace + "/" + p.Name
			if asked[p.UID] || p.DeletionTimestamp != nil {
				bs = append(bs, Blocker{Object: name, Reason: "being deleted"})
				continue
			}
			holds, err := r.holds(ctx, p)
			if err != nil {
				return nil, err
			}
			if holds != "" {
				bs = append(bs, Blocker{Object: name, Reason: "its worker holds " + holds})
				continue
			}
			n, err := again(ctx, r, "reading node "+r.o.Node, func() (*corev1.Node, error) { return r.kube.Node(ctx, r.o.Node) })
			if apierrors.IsNotFound(err) {
				return nil, r.gone(ctx, e.step, e.base)
			}
			if err != nil {
				return nil, err
			}
			if err := r.atNew(e.step, n); err != nil {
				return nil, err
			}
			_, err = again(ctx, r, "deleting "+name, func() (struct{}, error) {
				return struct{}{}, r.kube.DeletePod(ctx, p.Namespace, p.Name, p.UID)
			})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return nil, err
			}
			asked[p.UID] = true
			deleted++
			r.out.Say("deleted old worker %s", name)
			bs = append(bs, Blocker{Object: name, Reason: "being deleted"})
		}
		return bs, nil
	})
	if deleted > 0 {
		r.event(ctx, *v, corev1.EventTypeNormal, "RollOldWorkersDeleted", fmt.Sprintf("%d old worker pod(s) deleted", deleted))
	}
	return deleted, err
}

// holds looks once more at what the worker of a pod holds, right before the pod is deleted. It is empty when there is
// nothing.
func (r *Roller) holds(ctx context.Context, p corev1.Pod) (string, error) {
	held, served, err := r.assigned(ctx, string(p.UID))
	if err != nil {
		return "", err
	}
	if len(held) > 0 {
		return "actor " + held[0].String(), nil
	}
	var found string
	if !served {
		site := substrate.Site{Node: r.o.Node, Flipped: true, Workers: []substrate.Worker{{Name: string(p.UID), PodUID: string(p.UID)}}}
		_, err := again(ctx, r, "listing the actors", func() (struct{}, error) {
			count := substrate.NewOccupancy(site)
			err := r.sub.EachActor(ctx, func(a substrate.Actor) error {
				count.Add(a)
				return nil
			})
			if oc := count.Occupants(); len(oc) > 0 {
				found = oc[0].String()
			}
			return struct{}{}, err
		})
		return found, err
	}
	return "", nil
}

func (r *Roller) assigned(ctx context.Context, worker string) (held []substrate.Ref, served bool, err error) {
	held, err = again(ctx, r, "listing the actors of worker "+worker, func() (refs []substrate.Ref, err error) {
		refs, served, err = r.sub.Assigned(ctx, worker)
		return refs, err
	})
	return held, served, err
}
