package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Plan is what a roll will do: which nodes, in which order, and why, and what was found on the way.
type Plan struct {
	// From and To are the versions, as the label carries them.
	From string `json:"from"`
	To   string `json:"to"`
	// Cluster is the cluster's name for people; it may be empty.
	Cluster string `json:"cluster,omitempty"`
	// Namespace is where Agent Substrate is installed.
	Namespace string `json:"namespace"`
	// Nodes are all nodes that were read: those to be rolled first and in their order, then the others by name.
	Nodes []Node `json:"nodes"`
	// ActorsKnown reports whether the Control API was read, without which the actors of a node are not known.
	ActorsKnown bool `json:"actorsKnown"`
	// Pools are the worker pools of the old version and their clones, by namespace and name.
	Pools []Pool `json:"pools"`
	// Findings are what the checks found, errors first.
	Findings []Finding `json:"findings"`
	// Pace says where the roll stops on its way.
	Pace Pace `json:"pace"`
	// Cost says what the roll takes. Bytes is 0 until the Workflow was rendered.
	Cost Cost `json:"cost"`
}

// Verdict says what a roll does with a node.
type Verdict string

const (
	// Roll is a node that is still whole at the old version.
	Roll Verdict = "roll"
	// Resume is a node that an earlier roll began and did not finish. It goes first.
	Resume Verdict = "resume"
	// Done is a node at the new version with nothing left of the old one.
	Done Verdict = "done"
	// LeftOut is a node that the roll does not touch.
	LeftOut Verdict = "left out"
)

// Node is a node with the verdict on it and the reason for that.
type Node struct {
	Name    string  `json:"name"`
	Zone    string  `json:"zone,omitempty"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	// Workers counts the worker pods on the node, Actors the actors that must leave it, see ActorsKnown.
	Workers int `json:"workers"`
	Actors  int `json:"actors"`
}

// Rolls reports whether the node is part of the roll.
func (n Node) Rolls() bool { return n.Verdict == Roll || n.Verdict == Resume }

// Pool is a worker pool of the old version and its clone at the new one.
type Pool struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Clone is the name of the pool that takes over, "" when there is none.
	Clone string `json:"clone,omitempty"`
}

// Severity says what a Finding means for the plan.
type Severity string

const (
	// Error stops the generation.
	Error Severity = "error"
	// Warning is for people to weigh.
	Warning Severity = "warning"
)

// Finding is one thing that is wrong, or may be, with the way out.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object names what it is about, for example "worker pool agents/counter".
	Object  string `json:"object"`
	Message string `json:"message"`
	// WayOut says what to do about it.
	WayOut string `json:"wayOut"`
}

// String tells the finding in one line.
func (f Finding) String() string {
	s := f.Object + ": " + f.Message
	if f.WayOut != "" {
		s += "; " + f.WayOut
	}
	return s
}

// Gate says before which nodes a person is asked.
type Gate string

const (
	// GateEvery asks before each node.
	GateEvery Gate = "every"
	// GateFirst asks before the first node only.
	GateFirst Gate = "first"
	// GateCanary asks once, after the first node and before the second.
	GateCanary Gate = "canary"
	// GateNone never asks; to submit the Workflow is the approval.
	GateNone Gate = "none"
)

// Suspend says who suspends the actors of a node, and when.
type Suspend string

const (
	// SuspendAuto lets the step suspend them at once after the drain.
	SuspendAuto Suspend = "auto"
	// SuspendGate lets the step suspend them after a person has approved.
	SuspendGate Suspend = "gate"
	// SuspendWait leaves it to people: after their approval the step only watches until the node is empty.
	SuspendWait Suspend = "wait"
)

// Pace says where a roll stops on its way.
type Pace struct {
	Gate    Gate    `json:"gate"`
	Suspend Suspend `json:"suspend"`
	// Soak is a pause after each node but the last, after which the node is verified once more. 0 is no pause.
	Soak time.Duration `json:"soak,omitempty"`
}

// GateBefore reports whether a person is asked before the node at a position, counted from 0.
func (p Pace) GateBefore(i int) bool {
	switch p.Gate {
	case GateEvery:
		return true
	case GateFirst:
		return i == 0
	case GateCanary:
		return i == 1
	}
	return false
}

// GateBeforeSuspend reports whether a person is asked between the drain and the suspend of each node.
func (p Pace) GateBeforeSuspend() bool { return p.Suspend == SuspendGate || p.Suspend == SuspendWait }

// SoakAfter reports whether there is a pause after the node at a position of n.
func (p Pace) SoakAfter(i, n int) bool { return p.Soak > 0 && i < n-1 }

// Cost is what a roll takes.
type Cost struct {
	Nodes int `json:"nodes"`
	// Gates is how often a person is asked.
	Gates int `json:"gates"`
	// Pods is how many step pods run when nothing is repeated.
	Pods int `json:"pods"`
	// Bytes is the size of the Workflow as the API server keeps it.
	Bytes int `json:"bytes,omitempty"`
}

// cost counts what n nodes take at a pace.
func (p Pace) cost(n int) Cost {
	c := Cost{Nodes: n}
	for i := range n {
		c.Pods += 4
		if p.GateBefore(i) {
			c.Gates++
		}
		if p.GateBeforeSuspend() {
			c.Gates++
		}
		if p.SoakAfter(i, n) {
			c.Pods++
		}
	}
	return c
}

// Rolling returns the nodes to be rolled, in their order.
func (p *Plan) Rolling() []Node {
	for i, n := range p.Nodes {
		if !n.Rolls() {
			return p.Nodes[:i]
		}
	}
	return p.Nodes
}

// Hash is a short name for what is rolled: the versions and the nodes in their order. Two Workflows with the same hash
// do the same to the cluster, whatever their gates.
func (p *Plan) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", p.From, p.To)
	for _, n := range p.Rolling() {
		fmt.Fprintln(h, n.Name)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// Failed are the findings that stop the generation.
type Failed []Finding

// Error lists the findings, one a line.
func (f Failed) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].String()
	}
	return strings.Join(lines, "\n")
}
