package substrate

import (
	"fmt"
	"slices"
	"sort"
)

// Reason says why an actor, or a worker, keeps a node occupied.
type Reason string

const (
	// OnWorker is an actor that runs on a worker of the node.
	OnWorker Reason = "runs on a worker of the node"
	// PausedHere is a paused actor whose local snapshot lies on the node; only the atelet that wrote it can save it.
	PausedHere Reason = "is paused with its local snapshot on the node"
	// InBetween is an actor on its way from one state to another on the node.
	InBetween Reason = "is in between two states on the node"
	// Unseen is a worker that claims an actor which the list of actors does not show.
	Unseen Reason = "is claimed by a worker but not shown in the list of actors"
	// Unknown is an actor whose state means nothing to this program.
	Unknown Reason = "is in a state that this version of atewf does not know"
)

// Occupant is one thing that must be off a node before the node may be flipped.
type Occupant struct {
	Actor  Actor
	Worker Worker // the worker it is bound to, zero when it is bound to none
	Reason Reason
}

// String tells an occupant to people.
func (o Occupant) String() string {
	if o.Reason == Unseen {
		return fmt.Sprintf("%s claims %d actor(s) %sthat the list of actors does not show", o.Worker, o.Worker.Claimed, inParens(o.Worker.ClaimedActor))
	}
	return fmt.Sprintf("actor %s (%s) %s", o.Actor.Ref, o.Actor.State, o.Reason)
}

func inParens(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ") "
}

// Site is a node as far as occupancy goes: its name, the workers on it that count, and what may be left aside.
type Site struct {
	Node string
	// Workers are the workers of the node whose actors must leave. On a node that was flipped already these are the
	// workers of the old version only.
	Workers []Worker
	// Flipped leaves out actors that sit on the node without a worker: after the flip they belong to the new version.
	Flipped bool
}

// Occupancy works out who is on a site while actors go by, so that a fleet's actors need not be held in memory.
type Occupancy struct {
	site  Site
	byKey map[string]Worker
	seen  map[Ref]bool
	shown map[string]int32
	found []Occupant
}

// NewOccupancy begins a count on a site on which no actor has been seen yet.
func NewOccupancy(site Site) *Occupancy {
	o := &Occupancy{site: site, byKey: make(map[string]Worker, 2*len(site.Workers)), seen: map[Ref]bool{}, shown: map[string]int32{}}
	for _, w := range site.Workers {
		o.byKey[w.Name] = w
		if w.PodUID != "" {
			o.byKey[w.PodUID] = w
		}
	}
	return o
}

// Occupants says who is on a site, for actors that are at hand in a slice.
func Occupants(site Site, actors []Actor) []Occupant {
	o := NewOccupancy(site)
	for _, a := range actors {
		o.Add(a)
	}
	return o.Occupants()
}

// Add looks at one actor. It joins from the side of the actors, because that is the one record that every generation of
// the API keeps; what a worker claims about itself only ever adds to the answer. Actors that are seen twice, as a list
// that moves under its reader may show them, count once.
//
// The rules, by state:
//   - bound to a worker of the site: an occupant whatever its state;
//   - PAUSED, and the local snapshot or the assigned node is this one: an occupant, needing the atelet that is here now;
//   - in between two states without a worker, and snapshot or assigned node is this one: an occupant, to be waited for;
//   - RUNNING elsewhere, SUSPENDED or CRASHED: not one, even if a stale record still names the node;
//   - in an unknown state: an occupant wherever it is, because nobody can tell.
func (o *Occupancy) Add(a Actor) {
	w, here := o.worker(a)
	// A binding to a worker that is not listed, on a node that the server names, is a binding to a record that was
	// missed: no proof that the actor is elsewhere.
	bound := here || a.Bound() && a.WorkerNode == o.site.Node && !o.site.Flipped
	lies := !o.site.Flipped && !a.Bound() && a.liesOn(o.site.Node)
	if a.State.Known() && !bound && !lies {
		return
	}
	if o.seen[a.Ref] {
		return
	}
	o.seen[a.Ref] = true
	if here {
		o.shown[w.Name]++
	}
	switch {
	case !a.State.Known():
		o.found = append(o.found, Occupant{Actor: a, Worker: w, Reason: Unknown})
	case bound && a.State == Running:
		o.found = append(o.found, Occupant{Actor: a, Worker: w, Reason: OnWorker})
	case bound:
		o.found = append(o.found, Occupant{Actor: a, Worker: w, Reason: InBetween})
	case a.State == Paused:
		o.found = append(o.found, Occupant{Actor: a, Reason: PausedHere})
	case !a.State.Settled():
		o.found = append(o.found, Occupant{Actor: a, Reason: InBetween})
	}
}

// worker finds the worker of the site that the actor is bound to.
func (o *Occupancy) worker(a Actor) (Worker, bool) {
	for _, key := range []string{a.Worker, a.WorkerPodUID} {
		if key == "" {
			continue
		}
		if w, ok := o.byKey[key]; ok {
			return w, true
		}
	}
	return Worker{}, false
}

// Occupants is the answer so far, in the order of the actors' names.
func (o *Occupancy) Occupants() []Occupant {
	out := append([]Occupant(nil), o.found...)
	for _, w := range o.site.Workers {
		if w.Claimed > o.shown[w.Name] {
			out = append(out, Occupant{Worker: w, Reason: Unseen})
		}
	}
	sort.SliceStable(out, func(i, j int) bool {
		if a, b := out[i].Actor.String(), out[j].Actor.String(); a != b {
			return a < b
		}
		return out[i].Worker.Name < out[j].Worker.Name
	})
	return out
}

// liesOn reports whether a record of an actor that sits on no worker names the node.
func (a Actor) liesOn(node string) bool {
	return node != "" && (a.AssignedNode == node || slices.Contains(a.SnapshotNodes, node))
}
