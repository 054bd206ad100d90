// Package plan works out what a roll will do, from a snapshot and what was asked for: which version leaves and which one
// comes, which nodes are rolled and in which order, and everything that speaks against it. It does nothing else.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// Options say what was asked for.
type Options struct {
	// From and To are the versions; an empty one is found out.
	From, To string
	// Selector takes only nodes whose labels match, Nodes only those that it names, and Exclude leaves out those that it
	// names. Empty ones take all.
	Selector       string
	Nodes, Exclude []string
	Order          Order
	Pace           Pace
	// AllowSingleNode accepts that nothing serves while the only node is rolled.
	AllowSingleNode bool
}

// New works out the plan. It fails with a Failed when something was found that a roll must not begin with.
func New(s *snapshot.Snapshot, o Options) (*Plan, error) {
	b := &builder{s: s, o: o, p: &Plan{Cluster: s.Cluster.String(), Namespace: s.Namespace, ActorsKnown: s.Control.Read}}
	if b.o.Pace.Gate == "" {
		b.o.Pace.Gate = GateEvery
	}
	if b.o.Pace.Suspend == "" {
		b.o.Pace.Suspend = SuspendAuto
	}
	b.p.Pace = b.o.Pace
	if b.o.Pace.Soak < 0 {
		b.err("--soak", "give a time of zero or more", "%s is no pause", b.o.Pace.Soak)
	}
	// Each of these makes what comes after it meaningless when it fails.
	for _, part := range []func(){b.texts, b.versions, b.plan} {
		part()
		if err := b.failed(); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(b.p.Findings, func(x, y Finding) int { return cmp.Compare(x.Severity, y.Severity) })
	return b.p, nil
}

// builder makes one plan.
type builder struct {
	s *snapshot.Snapshot
	o Options
	p *Plan

	oldSet    snapshot.DaemonSet
	oldPlace  placement
	newPlace  placement
	pods      map[string][]*snapshot.Pod      // worker pods that run, by node
	occupants map[string][]substrate.Occupant // actors that must leave, by node
	draining  map[string]int                  // DRAINING workers of pods that are not going away, by node
	stamps    map[string]*roll.Stamp
}

func (b *builder) err(object, wayOut, format string, args ...any) {
	b.p.Findings = append(b.p.Findings, Finding{Severity: Error, Object: object, Message: fmt.Sprintf(format, args...), WayOut: wayOut})
}

func (b *builder) warn(object, wayOut, format string, args ...any) {
	b.p.Findings = append(b.p.Findings, Finding{Severity: Warning, Object: object, Message: fmt.Sprintf(format, args...), WayOut: wayOut})
}

func (b *builder) failed() error {
	var f Failed
	for _, x := range b.p.Findings {
		if x.Severity == Error {
			f = append(f, x)
		}
	}
	if len(f) > 0 {
		return f
	}
	return nil
}

// plan does all that needs the two versions.
func (b *builder) plan() {
	b.index()
	b.nodes()
	b.pools()
	b.fleet()
	b.control()
	b.room()
	b.lease()
	b.p.Cost = b.p.Pace.cost(len(b.p.Rolling()))
	if b.p.Cost.Nodes == 0 && b.failed() == nil {
		b.err("roll", b.nothingWayOut(), "nothing to roll: %s", b.nothing())
	}
}

// nothing says why no node is left to roll.
func (b *builder) nothing() string {
	done, out := 0, 0
	for _, n := range b.p.Nodes {
		if n.Verdict == Done {
			done++
		} else {
			out++
		}
	}
	switch {
	case out == 0:
		return fmt.Sprintf("all %d nodes are at %s and hold nothing of %s", done, b.p.To, b.p.From)
	case done == 0:
		return fmt.Sprintf("all %d nodes are left out, the first one (%s) because it %s", out, b.p.Nodes[0].Name, b.p.Nodes[0].Reason)
	}
	return fmt.Sprintf("%d nodes are at %s already, and %d are left out, among them %s", done, b.p.To, out, b.firstLeftOut())
}

func (b *builder) firstLeftOut() string {
	for _, n := range b.p.Nodes {
		if n.Verdict == LeftOut {
			return fmt.Sprintf("%s, which %s", n.Name, n.Reason)
		}
	}
	return ""
}

func (b *builder) nothingWayOut() string {
	if b.firstLeftOut() != "" {
		return "widen --selector, --nodes or --exclude if they should be rolled"
	}
	return fmt.Sprintf("to go the other way, pass --from %s --to %s", b.p.To, b.p.From)
}

// index joins pods, workers and actors with nodes.
func (b *builder) index() {
	b.pods, b.occupants, b.draining = map[string][]*snapshot.Pod{}, map[string][]substrate.Occupant{}, map[string]int{}
	b.stamps = map[string]*roll.Stamp{}
	live := make(map[string]bool, len(b.s.Pods)) // UIDs of worker pods that are not going away
	for i := range b.s.Pods {
		p := &b.s.Pods[i]
		if !p.Runs() {
			continue
		}
		if !p.Terminating {
			live[p.UID] = true
		}
		if p.Node != "" {
			b.pods[p.Node] = append(b.pods[p.Node], p)
		}
	}
	for _, n := range b.s.Nodes {
		st, err := roll.ParseStamp(map[string]string{roll.StampAnnotation: n.Stamp})
		if err != nil {
			b.err("node "+n.Name, "", "%v", err)
			continue
		}
		b.stamps[n.Name] = st
	}
	if !b.s.Control.Read {
		return
	}
	workersOf := map[string][]substrate.Worker{}
	nodeOf := make(map[string]string, len(b.s.Workers))
	for _, w := range b.s.Workers {
		workersOf[w.Node] = append(workersOf[w.Node], w)
		nodeOf[w.Name], nodeOf[w.PodUID] = w.Node, w.Node
		if w.State == substrate.Draining && (live[w.PodUID] || live[w.Name]) {
			b.draining[w.Node]++
		}
	}
	// Only an actor that some record ties to a node can occupy it. Who does is not decided here.
	near := make(map[string][]*substrate.Actor, len(b.s.Nodes))
	var tied []string
	for i := range b.s.Actors {
		a := &b.s.Actors[i]
		tied = append(tied[:0], nodeOf[a.Worker], nodeOf[a.WorkerPodUID], a.WorkerNode, a.AssignedNode)
		tied = append(tied, a.SnapshotNodes...)
		for i, n := range tied {
			if n != "" && !slices.Contains(tied[:i], n) {
				near[n] = append(near[n], a)
			}
		}
	}
	for _, n := range b.s.Nodes {
		site := substrate.Site{Node: n.Name, Workers: b.leaving(workersOf[n.Name]), Flipped: n.Version() == b.p.To}
		who := substrate.NewOccupancy(site)
		for _, a := range near[n.Name] {
			who.Add(*a)
		}
		b.occupants[n.Name] = who.Occupants()
	}
}

// leaving are the workers whose actors have to leave: all but those of pods at the new version.
func (b *builder) leaving(ws []substrate.Worker) []substrate.Worker {
	if len(ws) == 0 {
		return nil
	}
	fresh := map[string]bool{}
	for _, p := range b.pods[ws[0].Node] {
		if p.Pin == b.p.To {
			fresh[p.UID] = true
		}
	}
	if len(fresh) == 0 {
		return ws
	}
	return slices.DeleteFunc(slices.Clone(ws), func(w substrate.Worker) bool { return fresh[w.PodUID] || fresh[w.Name] })
}

// nodes gives each node its verdict and puts those to be rolled in order.
func (b *builder) nodes() {
	selector, err := labels.Parse(b.o.Selector)
	if err != nil {
		b.err("--selector", "write it as kubectl takes it, for example topology.kubernetes.io/zone=zone-a", "%q: %v", b.o.Selector, err)
		return
	}
	byName := map[string]bool{}
	for _, n := range b.s.Nodes {
		byName[n.Name] = true
	}
	for _, l := range []struct {
		flag  string
		names []string
	}{{"--nodes", b.o.Nodes}, {"--exclude", b.o.Exclude}} {
		for _, name := range l.names {
			if !byName[name] {
				b.err(l.flag, "see kubectl get nodes", "there is no node %q%s", name, b.nearest(name))
			}
		}
	}
	if b.o.Order == OrderActors && !b.s.Control.Read {
		b.err("--order actors", "make the Control API reachable, or choose another order", "the actors are not known: %s", b.s.Control.Why)
	}
	notes := about{what: "node"}
	for i := range b.s.Nodes {
		n := &b.s.Nodes[i]
		out := Node{Name: n.Name, Zone: n.Zone(), Workers: len(b.pods[n.Name]), Actors: len(b.occupants[n.Name])}
		var asked bool
		out.Verdict, out.Reason, asked = b.verdict(n, selector)
		b.p.Nodes = append(b.p.Nodes, out)
		if out.Rolls() {
			b.rolling(&notes, n)
		} else if out.Verdict == LeftOut {
			b.leftOut(&notes, n, out, asked)
		}
	}
	b.p.Findings = append(b.p.Findings, notes.findings()...)
	rank := map[Verdict]int{Resume: 0, Roll: 1, Done: 2, LeftOut: 3}
	slices.SortFunc(b.p.Nodes, func(x, y Node) int {
		if c := cmp.Compare(rank[x.Verdict], rank[y.Verdict]); c != 0 {
			return c
		}
		if x.Rolls() {
			// The node that the Lease names is the only one that a step may touch, until it is finished.
			if c := cmp.Compare(b.notInHand(x.Name), b.notInHand(y.Name)); c != 0 {
				return c
			}
			if c := b.inOrder(x, y); c != 0 {
				return c
			}
		}
		return natural(x.Name, y.Name)
	})
}

func (b *builder) notInHand(name string) int {
	if b.s.Lease != nil && b.s.Lease.Node == name {
		return 0
	}
	return 1
}

// inOrder compares two nodes by the order that was asked for.
func (b *builder) inOrder(x, y Node) int {
	switch b.o.Order {
	case OrderAuto:
		return cmp.Compare(slices.Index(b.o.Nodes, x.Name), slices.Index(b.o.Nodes, y.Name))
	case OrderZone:
		if c := cmp.Compare(noZone(x), noZone(y)); c != 0 {
			return c
		}
		return natural(x.Zone, y.Zone)
	case OrderActors:
		return cmp.Compare(x.Actors, y.Actors)
	}
	return 0
}

func noZone(n Node) int {
	if n.Zone == "" {
		return 1
	}
	return 0
}

// verdict decides what becomes of a node. The reason completes a sentence that begins with the node's name. asked tells
// that the node is left out because the options say so.
func (b *builder) verdict(n *snapshot.Node, selector labels.Selector) (v Verdict, reason string, asked bool) {
	at := n.Version()
	switch {
	case at == "":
		return LeftOut, "carries no label " + versions.Label, false
	case at != b.p.From && at != b.p.To:
		return LeftOut, fmt.Sprintf("is at %s, which is neither %s nor %s", at, b.p.From, b.p.To), false
	case slices.Contains(b.o.Exclude, n.Name):
		return LeftOut, "was excluded", true
	case len(b.o.Nodes) > 0 && !slices.Contains(b.o.Nodes, n.Name):
		return LeftOut, "is not among --nodes", true
	case !selector.Matches(labels.Set(n.Labels)):
		return LeftOut, "does not match --selector " + b.o.Selector, true
	}
	if why := b.newPlace.cannotRun(n); why != "" {
		return LeftOut, fmt.Sprintf("cannot run the atelet of %s: %s", b.p.To, why), false
	}
	if why := b.halfDone(n); why != "" {
		return Resume, why, false
	}
	if at == b.p.To {
		return Done, fmt.Sprintf("is at %s and holds nothing of %s", b.p.To, b.p.From), false
	}
	return Roll, "is at " + b.p.From, false
}

// halfDone says what an earlier roll left undone on the node, "" when nothing.
func (b *builder) halfDone(n *snapshot.Node) string {
	if st := b.stamps[n.Name]; st.InProgress() {
		return fmt.Sprintf("was begun and not finished: %s since %s (%s to %s)", st.Phase, st.At.UTC().Format(time.RFC3339), st.From, st.To)
	}
	if n.Version() == b.p.To {
		if old := b.pinned(n.Name, b.p.From); old > 0 {
			return fmt.Sprintf("is at %s with %s of %s left", b.p.To, count(old, "worker pod"), b.p.From)
		}
		return ""
	}
	if d := b.draining[n.Name]; d > 0 {
		return fmt.Sprintf("has %s that an earlier roll drained", count(d, "worker"))
	}
	return ""
}

// pinned counts the worker pods on a node that are pinned to a version.
func (b *builder) pinned(node, version string) int {
	c := 0
	for _, p := range b.pods[node] {
		if p.Pin == version {
			c++
		}
	}
	return c
}

// nearest suggests a node whose name is close to one that does not exist.
func (b *builder) nearest(name string) string {
	for _, n := range b.s.Nodes {
		if strings.EqualFold(n.Name, name) || strings.HasPrefix(n.Name, name+".") || strings.HasPrefix(name, n.Name+".") {
			return fmt.Sprintf("; did you mean %q?", n.Name)
		}
	}
	return ""
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
