package steps

import (
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/versions"
)

// hold makes this roll the owner of the cluster and this node the one in hand, or says who is in the way. Holder and node
// are written under one resource version, so of two steps that try at once one is told of the other.
//
// It is the first thing that every step does which is going to change something. It returns the baseline of losses that
// was noted when the node was taken in hand; noted is false when there is none yet.
func (r *Roller) hold(ctx context.Context, step string) (base roll.Baseline, noted bool, err error) {
	_, err = again(ctx, r, "taking the Lease of the roll", func() (struct{}, error) {
		base, noted, err = r.tryHold(ctx, step)
		return struct{}{}, err
	})
	return base, noted, err
}

func (r *Roller) tryHold(ctx context.Context, step string) (base roll.Baseline, noted bool, err error) {
	lease, err := again(ctx, r, "reading the Lease of the roll", func() (*coordinationv1.Lease, error) {
		return r.kube.Lease(ctx, r.o.Namespace, roll.LeaseName)
	})
	now := metav1.NewMicroTime(r.clock.Now())
	me := r.o.Roll.String()
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.o.Namespace, Name: roll.LeaseName, Annotations: map[string]string{roll.NodeInHandAnnotation: r.o.Node}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &me, AcquireTime: &now, RenewTime: &now},
		}
		return base, false, r.kube.CreateLease(ctx, lease)
	}
	if err != nil {
		return base, false, err
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != me && holder != "" {
		if err := r.ended(ctx, step, holder); err != nil {
			return base, false, err
		}
		r.out.Say("taking over the Lease of roll %s, which has ended", holder)
	}
	inHand := lease.Annotations[roll.NodeInHandAnnotation]
	if inHand != "" && inHand != r.o.Node {
		if err := r.finished(ctx, step, inHand); err != nil {
			return base, false, err
		}
		inHand = ""
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") != me {
		lease.Spec.AcquireTime = &now
		lease.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1)
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &me, &now
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	if inHand == "" {
		delete(lease.Annotations, roll.BaselineAnnotation)
	}
	lease.Annotations[roll.NodeInHandAnnotation] = r.o.Node
	if v, ok := lease.Annotations[roll.BaselineAnnotation]; ok {
		if err := json.Unmarshal([]byte(v), &base); err != nil {
			return base, false, fmt.Errorf("annotation %s of Lease %s/%s is not readable: %w; look at it, and remove it to count losses from now on",
				roll.BaselineAnnotation, r.o.Namespace, roll.LeaseName, err)
		}
		noted = true
	}
	return base, noted, r.kube.UpdateLease(ctx, lease)
}

// note writes the baseline of losses beside the node in hand.
func (r *Roller) note(ctx context.Context, base roll.Baseline) error {
	v, err := json.Marshal(base)
	if err != nil {
		return err
	}
	return r.editLease(ctx, "noting the CRASHED actors of the moment", func(l *coordinationv1.Lease) bool {
		l.Annotations[roll.BaselineAnnotation] = string(v)
		return true
	})
}

// letGo takes the node out of the roll's hand, so that the next one may be opened.
func (r *Roller) letGo(ctx context.Context) error {
	return r.editLease(ctx, "handing the roll on to the next node", func(l *coordinationv1.Lease) bool {
		if l.Annotations[roll.NodeInHandAnnotation] != r.o.Node {
			return false
		}
		delete(l.Annotations, roll.NodeInHandAnnotation)
		delete(l.Annotations, roll.BaselineAnnotation)
		return true
	})
}

// editLease changes the Lease while this roll owns it. edit reports whether there is anything to write.
func (r *Roller) editLease(ctx context.Context, what string, edit func(*coordinationv1.Lease) bool) error {
	_, err := again(ctx, r, what, func() (struct{}, error) {
		l, err := r.kube.Lease(ctx, r.o.Namespace, roll.LeaseName)
		if err != nil {
			return struct{}{}, err
		}
		if h := ptr.Deref(l.Spec.HolderIdentity, ""); h != r.o.Roll.String() {
			return struct{}{}, fmt.Errorf("the Lease %s/%s went to %s meanwhile; see what that roll does before you go on", r.o.Namespace, roll.LeaseName, h)
		}
		if l.Annotations == nil {
			l.Annotations = map[string]string{}
		}
		if !edit(l) {
			return struct{}{}, nil
		}
		return struct{}{}, r.kube.UpdateLease(ctx, l)
	})
	return err
}

// ended returns nil when the roll that holds the Lease is over, and a Stop that names it otherwise. A roll is over when
// its Workflow has finished or is gone; its age says nothing, because a roll may wait at a gate for days.
func (r *Roller) ended(ctx context.Context, step, holder string) error {
	h, err := roll.ParseHolder(holder)
	if err != nil {
		return r.stop(step, ExitHeld, fmt.Sprintf("Lease %s/%s is held by %q, which is no Workflow, so nobody can tell whether it has ended", r.o.Namespace, roll.LeaseName, holder),
			fmt.Sprintf("make sure that nothing rolls this cluster, then kubectl -n %s delete lease %s", r.o.Namespace, roll.LeaseName))
	}
	var uid string
	phase, err := again(ctx, r, "reading Workflow "+h.Namespace+"/"+h.Name, func() (p string, err error) {
		uid, p, err = r.kube.WorkflowPhase(ctx, h.Namespace, h.Name)
		return p, err
	})
	switch {
	case apierrors.IsNotFound(err), err == nil && uid != h.UID:
		return nil
	case err != nil:
		return fmt.Errorf("finding out whether roll %s, which holds the Lease, has ended: %w", holder, err)
	}
	switch phase {
	case "Succeeded", "Failed", "Error":
		return nil
	}
	return r.stop(step, ExitHeld, fmt.Sprintf("another roll owns this cluster: Workflow %s/%s, which is %s", h.Namespace, h.Name, orPending(phase)),
		fmt.Sprintf("let it finish, or end it with: argo stop -n %s %s", h.Namespace, h.Name))
}

func orPending(phase string) string {
	if phase == "" {
		return "Pending"
	}
	return phase
}

// finished returns nil when a node that the Lease names as the one in hand is done with, and a Stop otherwise: only one
// node is out at a time.
func (r *Roller) finished(ctx context.Context, step, node string) error {
	n, err := again(ctx, r, "reading node "+node, func() (*corev1.Node, error) { return r.kube.Node(ctx, node) })
	if apierrors.IsNotFound(err) {
		r.out.Say("node %s, which this roll had in hand, is gone", node)
		return nil
	}
	if err != nil {
		return err
	}
	st, err := roll.ParseStamp(n.Annotations)
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	// A node without a stamp at the new version was created there, in place of the one that was in hand.
	if !st.InProgress() && (st != nil || n.Labels[versions.Label] == r.o.To) {
		return nil
	}
	return r.stop(step, ExitHeld, fmt.Sprintf("node %s is still open (%s), and only one node may be out at a time", node, phaseOf(st)),
		fmt.Sprintf("finish node %s first: argo retry the Workflow that rolls it, or submit a fresh atewf generate, which takes it first", node))
}

func phaseOf(st *roll.Stamp) string {
	if st == nil {
		return "begun"
	}
	return string(st.Phase)
}

func (r *Roller) stop(step string, code int, cause, next string, blockers ...Blocker) *Stop {
	return &Stop{Code: code, Step: step, Node: r.o.Node, Cause: cause, Blockers: blockers, Next: next}
}
