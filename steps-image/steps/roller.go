// Package steps moves one node from one version of Agent Substrate to another without losing an actor: drain, suspend,
// flip and verify.
//
// Every step follows the same beats: observe, name the blockers, act, observe again. Every step can be run again at any
// point; it looks first whether its work is done. The promises of a roll are kept here, by each step itself, because
// days can pass between two steps and people and controllers change the cluster meanwhile.
//
// Clock, clients and output come from outside, so that the same code runs under a simulated world.
package steps

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
)

// Kube is what the steps need of Kubernetes. Errors are those of the API server, so that apierrors can classify them.
type Kube interface {
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// ReadyNodes counts the Ready nodes other than except that carry one of the values under the version label.
	ReadyNodes(ctx context.Context, except string, versions ...string) (int, error)
	// PatchNode applies a JSON patch (RFC 6902).
	PatchNode(ctx context.Context, name string, patch []PatchOp) error
	// WorkerPods lists the worker pods of all pools on a node.
	WorkerPods(ctx context.Context, node string) ([]corev1.Pod, error)
	// UnscheduledWorkerPods lists the worker pods of all pools that have no node.
	UnscheduledWorkerPods(ctx context.Context) ([]corev1.Pod, error)
	// DeletePod deletes a pod only if it still is the one with the UID.
	DeletePod(ctx context.Context, namespace, name string, uid types.UID) error
	// AteletPods lists the atelet pods of all versions on a node or made for it.
	AteletPods(ctx context.Context, namespace, node string) ([]corev1.Pod, error)
	// LogTail returns the last lines of a pod's first container.
	LogTail(ctx context.Context, namespace, pod string, lines int64) (string, error)
	Lease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, lease *coordinationv1.Lease) error
	// UpdateLease fails with a conflict unless the resource version is the current one.
	UpdateLease(ctx context.Context, lease *coordinationv1.Lease) error
	// WorkflowPhase returns the UID and the phase of an Argo Workflow.
	WorkflowPhase(ctx context.Context, namespace, name string) (uid, phase string, err error)
	// Event records what was done to a node.
	Event(ctx context.Context, node *corev1.Node, kind, reason, message string) error
}

// PatchOp is one operation of a JSON patch.
type PatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Substrate is what the steps need of the Control API.
type Substrate interface {
	Workers(ctx context.Context) ([]substrate.Worker, error)
	EachActor(ctx context.Context, fn func(substrate.Actor) error) error
	Actor(ctx context.Context, ref substrate.Ref) (substrate.Actor, error)
	Assigned(ctx context.Context, worker string) (held []substrate.Ref, served bool, err error)
	Drain(ctx context.Context, worker string) (substrate.Worker, error)
	Suspend(ctx context.Context, ref substrate.Ref) (substrate.Actor, error)
}

// Clock tells and passes the time.
type Clock interface {
	Now() time.Time
	// Sleep returns early with the context's error when that ends.
	Sleep(ctx context.Context, d time.Duration) error
}

// Reporter says what goes on. It must be safe for concurrent use.
type Reporter interface {
	// Say prints one line of plain text.
	Say(format string, args ...any)
	// Progress tells how much of a step's work is done.
	Progress(done, total int)
	// While repeats a line every so often until the returned function is called, for work that cannot be polled.
	While(every time.Duration, line func() string) (stop func())
}

// Mode says who suspends the actors of a node.
type Mode string

const (
	// SuspendAuto lets the step suspend them.
	SuspendAuto Mode = "auto"
	// SuspendWait leaves it to people; the step watches until the node is empty.
	SuspendWait Mode = "wait"
)

// Options are what a step is told. New fills in the defaults.
type Options struct {
	Node     string
	From, To string      // versions, as the label carries them
	Roll     roll.Holder // the Workflow that runs the step
	Mode     Mode        // default SuspendAuto

	// Namespace is where Agent Substrate is installed; default ate-system.
	Namespace string
	// Timeout ends the step with a message. Default: 5 minutes for drain, 2 hours for suspend, 30 minutes for flip,
	// 15 minutes for verify.
	Timeout time.Duration
	// AteletTimeout is how long flip waits for the new atelet; default 10 minutes. The old one may take 330 seconds to
	// exit and holds the node's host ports until then (terminationGracePeriodSeconds of its DaemonSet).
	AteletTimeout time.Duration
	// Parallelism is how many actors are suspended at once; default 16.
	Parallelism int
	// AllowSingleNode lets flip go on although no other node is Ready.
	AllowSingleNode bool

	// Poll is the pause between two looks at something that is waited for; default 2 seconds. Talk is the longest
	// silence while waiting; default 5 seconds.
	Poll, Talk time.Duration
	// SuspendCall is the deadline of one SuspendActor call; default 11 minutes, above the server's own ten.
	SuspendCall time.Duration
}

// confirm is the pause between the two reads that must agree before a node counts as empty. It is long enough for a
// write that was under way during the first read to be seen by the second.
const confirm = 250 * time.Millisecond

// Roller runs the steps of one node.
type Roller struct {
	kube  Kube
	sub   Substrate
	clock Clock
	out   Reporter
	o     Options
}

// New makes a Roller. It fails when the options cannot be those of any roll.
func New(kube Kube, sub Substrate, clock Clock, out Reporter, o Options) (*Roller, error) {
	switch {
	case o.Node == "":
		return nil, fmt.Errorf("no node given; pass --node")
	case o.From == "" || o.To == "":
		return nil, fmt.Errorf("node %s: both versions are needed; pass --from and --to", o.Node)
	case o.From == o.To:
		return nil, fmt.Errorf("node %s: --from and --to are both %s, so there is nothing to roll", o.Node, o.From)
	case o.Roll == roll.Holder{}:
		return nil, fmt.Errorf("node %s: nobody is named who rolls; pass --roll NAMESPACE/WORKFLOW/UID", o.Node)
	}
	if o.Mode == "" {
		o.Mode = SuspendAuto
	}
	if o.Mode != SuspendAuto && o.Mode != SuspendWait {
		return nil, fmt.Errorf("node %s: --suspend is %q; want auto or wait", o.Node, o.Mode)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.AteletTimeout, 10*time.Minute)
	def(&o.Poll, 2*time.Second)
	def(&o.Talk, 5*time.Second)
	def(&o.SuspendCall, 11*time.Minute)
	if o.Parallelism <= 0 {
		o.Parallelism = 16
	}
	if o.Namespace == "" {
		o.Namespace = "ate-system"
	}
	return &Roller{kube: kube, sub: sub, clock: clock, out: out, o: o}, nil
}

// Result is what a step says of itself when it is done.
type Result struct {
	Summary   string // one line
	Suspended int    // actors that this run suspended
}

func (r *Roller) timeout(def time.Duration) time.Duration {
	if r.o.Timeout > 0 {
		return r.o.Timeout
	}
	return def
}
