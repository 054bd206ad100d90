// Package roll defines what a roll leaves behind in the cluster, so that every step and every later run can tell how far
// it got: a stamp on each node and one Lease.
package roll

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// StampAnnotation is the annotation of a Node that holds its Stamp as JSON.
	StampAnnotation = "atewf.dev/roll"

	// LeaseName is the name of the Lease that says which roll owns the cluster. It lives in the Substrate namespace,
	// so that there is one for each installation of Substrate, whatever namespace a Workflow runs in.
	LeaseName = "atewf-roll"

	// NodeInHandAnnotation is the annotation of the Lease that names the one node which is being rolled. It is written
	// together with the holder, under one resource version, and is what keeps two nodes from being open at once.
	NodeInHandAnnotation = "atewf.dev/node"

	// BaselineAnnotation is the annotation of the Lease that holds the Baseline of the node in hand as JSON. It is not on
	// the node, because a node can vanish together with what it tells.
	BaselineAnnotation = "atewf.dev/crashed-before"

	// FieldManager is the name under which every change is made.
	FieldManager = "atewf"
)

// Phase says how far a node is in its roll.
type Phase string

// The phases of a node, in their order. Only the last one means that the node is finished.
const (
	Draining   Phase = "draining"   // its workers take no new actors; there is no way back from here
	Suspending Phase = "suspending" // its actors are being suspended
	Flipped    Phase = "flipped"    // it carries the new label; old worker pods may still be there
	Verified   Phase = "verified"   // it serves at the new version
)

// Stamp is what a roll writes on a node: who rolls it, from which version to which, how far it is, and what the later
// steps need to know about the time before.
type Stamp struct {
	Roll  string    `json:"roll"` // the holder of the Lease, see Holder
	From  string    `json:"from"`
	To    string    `json:"to"`
	Phase Phase     `json:"phase"`
	At    time.Time `json:"at"` // when Phase was reached

	// Suspended lists the actors that this roll suspended on the node, and the sandbox class each one ran in: they wait
	// for room elsewhere.
	Suspended []Waiting `json:"suspended,omitempty"`

	// OldWorkers counts the old worker pods that the node had, by "namespace/pool".
	OldWorkers map[string]int `json:"oldWorkers,omitempty"`
}

// Waiting is an actor that was suspended for the roll.
type Waiting struct {
	Actor string `json:"actor"` // atespace/name
	Class string `json:"class,omitempty"`
}

// InProgress reports whether the node was begun and is not finished.
func (s *Stamp) InProgress() bool { return s != nil && s.Phase != "" && s.Phase != Verified }

// ParseStamp reads the stamp in a node's annotations. It returns nil without an error when there is none.
func ParseStamp(annotations map[string]string) (*Stamp, error) {
	v, ok := annotations[StampAnnotation]
	if !ok || v == "" {
		return nil, nil
	}
	s := &Stamp{}
	if err := json.Unmarshal([]byte(v), s); err != nil {
		return nil, fmt.Errorf("annotation %s is not readable: %w; look at it, and remove it when the node is not being rolled", StampAnnotation, err)
	}
	return s, nil
}

// String is the annotation's value.
func (s *Stamp) String() string {
	b, err := json.Marshal(s)
	if err != nil { // nothing in a Stamp can fail to marshal
		panic(err)
	}
	return string(b)
}

// Holder identifies a roll: the Workflow that runs it. The UID tells a Workflow from a later one of the same name.
type Holder struct {
	Namespace, Name, UID string
}

// String is the holder identity as the Lease carries it: namespace/name/uid.
func (h Holder) String() string { return h.Namespace + "/" + h.Name + "/" + h.UID }

// ParseHolder reads a holder identity.
func ParseHolder(s string) (Holder, error) {
	p := strings.Split(s, "/")
	if len(p) != 3 || p[0] == "" || p[1] == "" || p[2] == "" {
		return Holder{}, fmt.Errorf("%q does not name a roll: want NAMESPACE/WORKFLOW/UID", s)
	}
	return Holder{Namespace: p[0], Name: p[1], UID: p[2]}, nil
}

// Baseline is the state of losses when a node's roll began.
type Baseline struct {
	// Count is how many actors were CRASHED, Actors who they were. Actors is cut at MaxBaseline names; a fleet with more
	// is compared by number only.
	Count  int      `json:"count"`
	Actors []string `json:"actors,omitempty"`
}

// MaxBaseline is how many names of CRASHED actors a Baseline keeps: with names of 126 characters that is 63 KiB of the
// 256 KiB that the annotations of an object may have.
const MaxBaseline = 500

// NewBaseline notes the CRASHED actors of the moment.
func NewBaseline(crashed []string) Baseline {
	b := Baseline{Count: len(crashed)}
	if len(crashed) <= MaxBaseline {
		b.Actors = slices.Sorted(slices.Values(crashed))
	}
	return b
}

// Lost returns the actors that are CRASHED now and were not then. Where the names of that time were not kept, it can
// only tell that there are more, and returns all.
func (b Baseline) Lost(crashed []string) []string {
	if b.Actors == nil && b.Count > 0 {
		if len(crashed) > b.Count {
			return slices.Sorted(slices.Values(crashed))
		}
		return nil
	}
	var lost []string
	for _, c := range crashed {
		if !slices.Contains(b.Actors, c) {
			lost = append(lost, c)
		}
	}
	slices.Sort(lost)
	return lost
}
