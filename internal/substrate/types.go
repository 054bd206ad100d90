// Package substrate talks to the Control API of Agent Substrate, whatever generation of it a cluster serves, and says
// what the answers mean for a node that is to be rolled.
package substrate

import "fmt"

// Ref names an actor.
type Ref struct {
	Atespace string `json:"atespace"`
	Name     string `json:"name"`
}

// String is the actor as people write it: atespace/name.
func (r Ref) String() string { return r.Atespace + "/" + r.Name }

// ActorState is the state of an actor without the prefix that the API puts before it. A state that this package does not
// know is kept as the server spelled it, see Known.
type ActorState string

// The states of an actor, as Substrate names them.
const (
	Resuming   ActorState = "RESUMING"
	Running    ActorState = "RUNNING"
	Suspending ActorState = "SUSPENDING"
	Suspended  ActorState = "SUSPENDED"
	Pausing    ActorState = "PAUSING"
	Paused     ActorState = "PAUSED"
	Crashed    ActorState = "CRASHED"
	Deleting   ActorState = "DELETING"
	Reverting  ActorState = "REVERTING"
)

// Known reports whether s is a state whose meaning this package knows. A roll stops at any other.
func (s ActorState) Known() bool {
	switch s {
	case Resuming, Running, Suspending, Suspended, Pausing, Paused, Crashed, Deleting, Reverting:
		return true
	}
	return false
}

// Settled reports whether an actor stays in s until somebody acts. The others are in between two states.
func (s ActorState) Settled() bool {
	switch s {
	case Running, Suspended, Paused, Crashed:
		return true
	}
	return false
}

// Actor is what a roll has to know about an actor.
type Actor struct {
	Ref
	UID   string     `json:"uid,omitempty"`
	State ActorState `json:"state"`

	// Worker and WorkerPodUID name the worker that the actor is bound to; both are empty when it is bound to none.
	// WorkerNode is the node of that worker where the server says so (later generations only).
	Worker       string `json:"worker,omitempty"`
	WorkerPodUID string `json:"workerPodUID,omitempty"`
	WorkerNode   string `json:"workerNode,omitempty"`

	// SnapshotNodes are the nodes that the record of the actor's local snapshot names, AssignedNode the node it belongs
	// to where the server says so (latest generation). A resume does not clear the record, so it means something only
	// together with the state: see Occupants.
	SnapshotNodes []string `json:"snapshotNodes,omitempty"`
	AssignedNode  string   `json:"assignedNode,omitempty"`

	// Selector are the labels that a worker must carry to take the actor.
	Selector map[string]string `json:"selector,omitempty"`
}

// Bound reports whether the actor has a worker.
func (a Actor) Bound() bool { return a.Worker != "" || a.WorkerPodUID != "" }

// WorkerState is the state of a worker without the prefix that the API puts before it.
type WorkerState string

// The states of a worker. There is no way from DRAINING back to ACTIVE.
const (
	Active   WorkerState = "ACTIVE"
	Draining WorkerState = "DRAINING"
)

// Worker is what a roll has to know about a worker.
type Worker struct {
	Name      string            `json:"name"` // the UID of its pod, to be treated as opaque
	Namespace string            `json:"namespace"`
	Pool      string            `json:"pool"`
	Pod       string            `json:"pod"`
	PodUID    string            `json:"podUID"`
	Node      string            `json:"node"`
	Class     string            `json:"class,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	State     WorkerState       `json:"state"`

	// Capacity is how many actors the worker takes; 1 where the server does not say.
	Capacity int32 `json:"capacity"`
	// Claimed is how many actors the worker itself claims to host. It is a hint, never a proof of emptiness: old servers
	// say it by status.assignment, newer ones by status.allocated, and both may lag.
	Claimed int32 `json:"claimed,omitempty"`
	// ClaimedActor is the actor that status.assignment names, where it is served.
	ClaimedActor string `json:"claimedActor,omitempty"`
}

// String names the worker for people.
func (w Worker) String() string {
	if w.Pod == "" {
		return fmt.Sprintf("worker %s", w.Name)
	}
	return fmt.Sprintf("worker %s/%s (%s)", w.Namespace, w.Pod, w.Name)
}
