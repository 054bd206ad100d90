package steps

import (
	"context"
	"strings"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/versions"
)

// pointer is the JSON pointer of a key in a map of metadata.
func pointer(m, key string) string {
	return "/metadata/" + m + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// stampOps is the patch that writes a stamp on the node as v shows it.
func (r *Roller) stampOps(v view, st *roll.Stamp) []PatchOp {
	var ops []PatchOp
	if v.node.Annotations == nil {
		ops = append(ops, PatchOp{Op: "add", Path: "/metadata/annotations", Value: map[string]string{}})
	}
	return append(ops, PatchOp{Op: "add", Path: pointer("annotations", roll.StampAnnotation), Value: st.String()})
}

// stamped returns the node's stamp moved on to a phase of this roll. What an earlier run noted is carried along.
func (r *Roller) stamped(v view, phase roll.Phase) *roll.Stamp {
	st := &roll.Stamp{}
	if v.stamp.InProgress() && v.stamp.To == r.o.To {
		*st = *v.stamp
	}
	if v.at() == r.o.To && phase != roll.Verified {
		phase = roll.Flipped // a node that was flipped does not go back to an earlier phase when a step runs again
	}
	st.Roll, st.From, st.To, st.Phase, st.At = r.o.Roll.String(), r.o.From, r.o.To, phase, r.clock.Now().UTC()
	if st.OldWorkers == nil && len(v.old) > 0 {
		st.OldWorkers = map[string]int{}
		for _, p := range v.old {
			st.OldWorkers[p.Namespace+"/"+p.Labels[versions.WorkerPoolLabel]]++
		}
	}
	return st
}

// stamp writes a stamp and keeps v in step with it.
func (r *Roller) stamp(ctx context.Context, v *view, st *roll.Stamp) error {
	_, err := again(ctx, r, "stamping node "+r.o.Node, func() (struct{}, error) {
		return struct{}{}, r.kube.PatchNode(ctx, r.o.Node, r.stampOps(*v, st))
	})
	if err != nil {
		return err
	}
	v.stamp = st
	if v.node.Annotations == nil {
		v.node.Annotations = map[string]string{}
	}
	v.node.Annotations[roll.StampAnnotation] = st.String()
	return nil
}

// event records a change on the node. A roll does not fail for an Event that could not be written.
func (r *Roller) event(ctx context.Context, v view, kind, reason, message string) {
	if v.node == nil {
		return
	}
	if err := r.kube.Event(ctx, v.node, kind, reason, message+" (roll "+r.o.Roll.Namespace+"/"+r.o.Roll.Name+")"); err != nil {
		r.out.Say("could not record an Event on node %s: %v", r.o.Node, err)
	}
}
