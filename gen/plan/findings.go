package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// daemonTolerations are what the DaemonSet controller adds to the pods that it makes.
var daemonTolerations = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

// passing are the taints that Kubernetes sets while a node is not Ready. They come and go, so they say nothing about
// where a DaemonSet belongs.
var passing = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeNetworkUnavailable}

// placement is where a DaemonSet can have pods, whatever version label the nodes carry.
type placement struct {
	tolerations []corev1.Toleration
	required    nodeaffinity.RequiredNodeAffinity
}

func placementOf(d snapshot.DaemonSet) placement {
	selector := maps.Clone(d.NodeSelector)
	delete(selector, versions.Label)
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: selector}}
	if d.NodeAffinity != nil {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.NodeAffinity}}
	}
	return placement{
		tolerations: append(slices.Clone(daemonTolerations), d.Tolerations...),
		required:    nodeaffinity.GetRequiredNodeAffinity(pod),
	}
}

// cannotRun says why the DaemonSet would have no pod on a node that carried its version label, "" when it would have one.
func (p placement) cannotRun(n *snapshot.Node) string {
	for _, t := range n.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule || slices.Contains(passing, t.Key) {
			continue
		}
		if !slices.ContainsFunc(p.tolerations, func(tol corev1.Toleration) bool { return tol.ToleratesTaint(&t) }) {
			return fmt.Sprintf("it does not tolerate the taint %s", t.ToString())
		}
	}
	ok, err := p.required.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}})
	switch {
	case err != nil:
		return fmt.Sprintf("its node affinity cannot be read: %v", err)
	case !ok:
		return "its node selector or affinity does not match"
	}
	return ""
}

// about collects findings on objects of one kind, so that one that many of them share is told once.
type about struct {
	what  string // the kind of object
	kinds []Finding
	names map[Finding][]string
}

func (a *about) add(severity Severity, name, wayOut, format string, args ...any) {
	f := Finding{Severity: severity, Message: fmt.Sprintf(format, args...), WayOut: wayOut}
	if a.names == nil {
		a.names = map[Finding][]string{}
	}
	if a.names[f] == nil {
		a.kinds = append(a.kinds, f)
	}
	a.names[f] = append(a.names[f], name)
}

func (a *about) findings() []Finding {
	var out []Finding
	for _, f := range a.kinds {
		names := a.names[f]
		f.Object = several(a.what, names)
		out = append(out, f)
	}
	return out
}

// rolling notes what speaks against rolling a node.
func (b *builder) rolling(a *about, n *snapshot.Node) {
	if !n.Ready {
		a.add(Warning, n.Name, "repair it, or leave it out with --exclude", "not Ready, so the line would stop there")
	}
	if n.Unschedulable {
		a.add(Warning, n.Name, "kubectl uncordon it, or leave it out with --exclude", "cordoned, so no new worker would come up there and the line would stop")
	}
}

// leftOut notes what speaks against leaving a node out.
func (b *builder) leftOut(a *about, n *snapshot.Node, v Node, asked bool) {
	half := b.halfDone(n)
	switch old := b.pinned(n.Name, b.p.From); {
	case b.stamps[n.Name].InProgress() && b.notInHand(n.Name) == 0:
		a.add(Error, n.Name, "take it into the roll", "it %s, but a roll has it in hand (%s), and no other node may be opened before it is finished", v.Reason, b.stamps[n.Name].Phase)
	case asked && half != "":
		a.add(Warning, n.Name, "take it into the roll unless that is meant", "it %s, but %s", v.Reason, half)
	case asked:
	case old > 0 && n.Version() == b.p.From:
		a.add(Error, n.Name, "let the new DaemonSet run where the old one does, or leave it out with --exclude", "it hosts workers of %s but %s", b.p.From, v.Reason)
	case n.Version() == "":
		a.add(Warning, n.Name, "label it as the installer does, unless it is not meant to serve", "left out because it %s", v.Reason)
	case slices.Contains(b.o.Nodes, n.Name):
		a.add(Warning, n.Name, "", "named in --nodes but left out because it %s", v.Reason)
	}
}

// fleet checks that something else serves while a node is out.
func (b *builder) fleet() {
	if d := b.oldSet; d.Ready < d.Desired {
		b.warn("DaemonSet "+b.s.Namespace+"/"+d.Name, "see why; the actors of a node can be suspended only while its atelet runs", "%d of its %d atelets are Ready", d.Ready, d.Desired)
	}
	var serving []string
	for i := range b.s.Nodes {
		n := &b.s.Nodes[i]
		if v := n.Version(); n.Ready && (v == b.p.From || v == b.p.To) && (b.newPlace.cannotRun(n) == "" || b.oldPlace.cannotRun(n) == "") {
			serving = append(serving, n.Name)
		}
	}
	if b.o.AllowSingleNode {
		return
	}
	for _, n := range b.p.Rolling() {
		if len(serving) == 0 || len(serving) == 1 && serving[0] == n.Name {
			b.err("node "+n.Name, "add a node, or pass --allow-single-node to accept a full stop", "no other node is Ready to serve while it is rolled")
			return
		}
	}
}

// strangers checks that no worker pod on a node of the roll belongs to neither side. A step would stop at one.
func (b *builder) strangers() {
	var odd []string
	for _, n := range b.p.Rolling() {
		for _, p := range b.pods[n.Name] {
			if p.Pin != b.p.From && p.Pin != b.p.To {
				odd = append(odd, fmt.Sprintf("%s/%s on %s", p.Namespace, p.Name, n.Name))
			}
		}
	}
	if len(odd) > 0 {
		b.err(several("worker pod", odd), "pin its worker pool while no actor is on its workers, or remove the pod", "pinned to neither %s nor %s, so nobody can tell what becomes of it", b.p.From, b.p.To)
	}
}

// room checks that the actors of the fullest node would find free workers elsewhere while it is rolled. Those that do not
// stay suspended until it serves again.
func (b *builder) room() {
	if !b.s.Control.Read {
		return
	}
	var fullest string
	var needs []substrate.Need
	for _, n := range b.p.Rolling() {
		var here []substrate.Need
		for _, o := range b.occupants[n.Name] {
			if o.Worker.Name != "" && o.Reason != substrate.Unseen {
				here = append(here, substrate.Need{Actor: o.Actor.Ref.String(), Class: o.Worker.Class, Selector: o.Actor.Selector})
			}
		}
		if len(here) > len(needs) {
			fullest, needs = n.Name, here
		}
	}
	if len(needs) == 0 {
		return
	}
	bound := make(map[string]int32, len(b.s.Workers))
	for _, a := range b.s.Actors {
		if a.Bound() {
			bound[or(a.Worker, a.WorkerPodUID)]++
		}
	}
	slots := make([]substrate.Slots, 0, len(b.s.Workers))
	for _, w := range b.s.Workers {
		if w.Node != fullest {
			slots = append(slots, substrate.Slots{Worker: w, Free: w.Capacity - max(bound[w.Name], w.Claimed)})
		}
	}
	left := substrate.Room(needs, slots)
	if len(left) == 0 {
		return
	}
	var names []string
	for _, n := range left {
		names = append(names, n.Actor)
	}
	b.warn("node "+fullest, "add workers if they cannot wait",
		"while it is rolled, %d of its %d running actors cannot be resumed, because no free worker elsewhere matches them: %s", len(left), len(needs), several("actor", names))
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

// control checks what the Control API said.
func (b *builder) control() {
	if !b.s.Control.Read {
		b.warn("Control API", "make it reachable to have workers and actors checked; the steps check them in any case",
			"it was not read, so drained workers, lost actors and the number of actors a node are not known: %s", b.s.Control.Why)
		return
	}
	for _, w := range b.s.Workers {
		if w.State != substrate.Active && w.State != substrate.Draining {
			b.err(w.String(), "use a version of atewf that knows it", "its state %q is unknown to this version of atewf", w.State)
		}
	}
	var crashed, unknown, nowhere []string
	for _, a := range b.s.Actors {
		switch {
		case !a.State.Known():
			unknown = append(unknown, fmt.Sprintf("%s (%s)", a.Ref, a.State))
		case a.State == substrate.Crashed:
			crashed = append(crashed, a.Ref.String())
		case a.State == substrate.Paused && slices.Contains(a.SnapshotNodes, "") && a.AssignedNode == "":
			nowhere = append(nowhere, a.Ref.String())
		}
	}
	if len(unknown) > 0 {
		b.err(several("actor", unknown), "use a version of atewf that knows the state", "in a state that this version of atewf does not know, so nobody can tell which node it keeps")
	}
	if len(crashed) > 0 {
		b.warn(several("actor", crashed), "decide what to do with them before the roll; it stops when there are more than now", "CRASHED already")
	}
	if len(nowhere) > 0 {
		b.warn(several("actor", nowhere), "resume and suspend it before the roll", "PAUSED with a local snapshot on a node without a name, so no node's roll takes care of it")
	}
}

// several names a few of many objects.
func several(what string, names []string) string {
	const most = 5
	slices.SortFunc(names, natural)
	if len(names) == 1 {
		return what + " " + names[0]
	}
	if len(names) <= most {
		return what + "s " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("%ss %s and %d more", what, strings.Join(names[:most], ", "), len(names)-most)
}

// lease checks that no other roll owns the cluster.
func (b *builder) lease() {
	l := b.s.Lease
	if l == nil || l.Holder == "" {
		return
	}
	object := fmt.Sprintf("Lease %s/%s", b.s.Namespace, roll.LeaseName)
	h, err := roll.ParseHolder(l.Holder)
	if err != nil {
		b.err(object, fmt.Sprintf("make sure that nothing rolls this cluster, then kubectl -n %s delete lease %s", b.s.Namespace, roll.LeaseName), "its holder is no Workflow: %v", err)
		return
	}
	switch l.Workflow {
	case snapshot.WorkflowLive:
		b.err(object, fmt.Sprintf("let it finish, or end it with: argo stop -n %s %s", h.Namespace, h.Name),
			"another roll owns this cluster: Workflow %s/%s%s", h.Namespace, h.Name, inHand(l.Node))
	case snapshot.WorkflowUnknown:
		b.warn(object, fmt.Sprintf("see argo get -n %s %s; a new roll is refused until that one has ended", h.Namespace, h.Name),
			"Workflow %s/%s holds it%s, and whether it has ended is not known: %s", h.Namespace, h.Name, inHand(l.Node), l.Why)
	}
}

func inHand(node string) string {
	if node == "" {
		return ""
	}
	return ", with node " + node + " in hand"
}
