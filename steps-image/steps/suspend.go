package steps

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
)

// Suspend empties the node: it suspends the actors that run there and those that are paused with their snapshot there,
// and waits for those in between two states (runbook, 6b and 6c). In mode wait it suspends nothing and only watches.
//
// It is done when two readings in a row find nobody on the node and no worker of it that takes actors.
func (r *Roller) Suspend(ctx context.Context) (Result, error) {
	const step = "suspend"
	v, base, finished, err := r.begin(ctx, step)
	if err != nil || finished != "" {
		return Result{Summary: finished}, err
	}
	if err := r.stamp(ctx, &v, r.stamped(v, roll.Suspending)); err != nil {
		return Result{}, err
	}
	e := r.newEmptying(step, base, r.timeout(2*time.Hour))
	if err := e.run(ctx, &v); err != nil {
		return r.vanished(err, len(e.suspended))
	}
	sum := fmt.Sprintf("node %s: empty, %d actor(s) suspended", r.o.Node, len(e.suspended))
	if len(e.suspended) > 0 {
		r.event(ctx, v, corev1.EventTypeNormal, "RollSuspended", sum)
	}
	return Result{Summary: sum, Suspended: len(e.suspended)}, nil
}

// emptying empties a node and keeps it closed. suspend does it, and flip does it again right before it acts, because an
// actor may have come back and a fresh worker may have registered in between.
type emptying struct {
	r       *Roller
	step    string
	base    roll.Baseline
	timeout time.Duration

	mu        sync.Mutex
	suspended map[substrate.Ref]bool
	total     int // the most actors that were to be suspended, for the progress
	stuck     map[substrate.Ref]Blocker
}

func (r *Roller) newEmptying(step string, base roll.Baseline, timeout time.Duration) *emptying {
	return &emptying{r: r, step: step, base: base, timeout: timeout, suspended: map[substrate.Ref]bool{}, stuck: map[substrate.Ref]Blocker{}}
}

// run returns when two readings in a row, the second one not older than the return, show an empty and closed node.
func (e *emptying) run(ctx context.Context, v *view) error {
	r := e.r
	cleanReads := 0
	return r.until(ctx, wait{step: e.step, what: "the node to be empty", timeout: e.timeout, next: e.next(v)}, func(ctx context.Context) ([]Blocker, error) {
		for {
			next, o, err := r.observe(ctx)
			if err != nil {
				return nil, err
			}
			if next.node == nil {
				return nil, r.gone(ctx, e.step, e.base)
			}
			*v = next
			if err := r.lost(e.step, e.base, o.crashed); err != nil {
				return nil, err
			}
			if o.clean() {
				if cleanReads++; cleanReads == 2 {
					return nil, nil
				}
				if err := r.clock.Sleep(ctx, confirm); err != nil {
					return nil, err
				}
				continue
			}
			cleanReads = 0
			acted, err := e.act(ctx, v, o)
			if err != nil {
				return nil, err
			}
			if !acted {
				return e.blockers(o), nil
			}
		}
	})
}

// next is what to type when the node did not get empty in time.
func (e *emptying) next(v *view) string {
	if e.r.o.Mode == SuspendWait {
		return fmt.Sprintf("suspend them (kubectl ate suspend actor NAME -a ATESPACE), then argo retry; to see who is left: kubectl ate get actors -A, node %s", v.node.Name)
	}
	return "free what is named by hand (kubectl ate suspend actor NAME -a ATESPACE), then argo retry"
}

// act does what can be done about what a reading found: it drains what is awake and suspends who may be suspended.
// acted is false when there is nothing but waiting.
func (e *emptying) act(ctx context.Context, v *view, o occupancy) (acted bool, err error) {
	r := e.r
	if unknown := unknowns(o); len(unknown) > 0 {
		return false, r.stop(e.step, ExitBlocked, "nobody can tell whether these actors are on the node", "", unknown...)
	}
	_, drained, err := r.drainAll(ctx, o)
	if err != nil {
		return false, err
	}
	if r.o.Mode == SuspendWait {
		return drained > 0, nil
	}
	// SUSPENDING is among them: such an actor moves only when it is called again.
	var todo []substrate.Occupant
	for _, oc := range o.occupants {
		switch oc.Actor.State {
		case substrate.Running, substrate.Paused, substrate.Suspending:
			todo = append(todo, oc)
		}
	}
	if len(todo) == 0 {
		return drained > 0, nil
	}
	before := len(e.suspended)
	if err := e.suspendAll(ctx, v, todo); err != nil {
		return false, err
	}
	return drained > 0 || len(e.suspended) > before, nil
}

// suspendAll calls SuspendActor for each occupant, a few at a time. Before the first call it notes in the stamp who will
// be waiting for room, so that a step which dies half way has told.
func (e *emptying) suspendAll(ctx context.Context, v *view, todo []substrate.Occupant) error {
	r := e.r
	if err := e.remember(ctx, v, todo); err != nil {
		return err
	}
	e.total = max(e.total, len(e.suspended)+len(todo))
	r.out.Progress(len(e.suspended), e.total)
	r.out.Say("suspending %d actor(s), %d at a time", len(todo), r.o.Parallelism)

	defer r.out.While(r.o.Talk, func() string {
		e.mu.Lock()
		defer e.mu.Unlock()
		return fmt.Sprintf("suspending: %d of %d done", len(e.suspended), e.total)
	})()

	// One actor that cannot be suspended does not keep the others from it: they are saved, and then the step stops.
	var g errgroup.Group
	g.SetLimit(r.o.Parallelism)
	stops := make([]error, len(todo))
	for i, oc := range todo {
		g.Go(func() error {
			stops[i] = e.suspendOne(ctx, oc)
			return nil
		})
	}
	_ = g.Wait() // the functions return nothing; what went wrong is in stops
	return firstStop(stops)
}

// firstStop prefers a loss over any other reason to stop.
func firstStop(errs []error) error {
	sort.SliceStable(errs, func(i, j int) bool { return ExitCode(errs[i]) > ExitCode(errs[j]) })
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// suspendOne suspends one actor and finds out what a refusal means. It returns an error only when waiting cannot help.
func (e *emptying) suspendOne(ctx context.Context, oc substrate.Occupant) error {
	r, ref := e.r, oc.Actor.Ref
	call, cancel := context.WithTimeout(ctx, r.o.SuspendCall)
	a, err := r.sub.Suspend(call, ref)
	cancel()
	switch {
	case err == nil:
		return e.settle(oc, a, "")
	case ctx.Err() != nil:
		return fmt.Errorf("suspending actor %s: %w", ref, ctx.Err())
	case status.Code(err) == codes.NotFound:
		r.out.Say("actor %s was deleted meanwhile", ref)
		return nil
	case status.Code(err) == codes.FailedPrecondition:
		// The code alone says nothing: the actor may be suspended already, on its way, or lost. Look.
		now, gerr := again(ctx, r, "reading actor "+ref.String(), func() (substrate.Actor, error) { return r.sub.Actor(ctx, ref) })
		if status.Code(gerr) == codes.NotFound {
			return nil
		}
		if gerr != nil {
			return gerr
		}
		return e.settle(oc, now, err.Error())
	case transient(err):
		e.mu.Lock()
		e.stuck[ref] = Blocker{Object: "actor " + ref.String(), Reason: "suspending it failed for now: " + err.Error()}
		e.mu.Unlock()
		r.out.Say("suspending actor %s failed for now and will be asked for again: %v", ref, err)
		return nil
	}
	return r.stop(e.step, ExitBlocked, fmt.Sprintf("actor %s cannot be suspended", ref),
		fmt.Sprintf("kubectl ate suspend actor %s -a %s, see why it fails, then argo retry", ref.Name, ref.Atespace), Blocker{Object: "actor " + ref.String(), Reason: err.Error()})
}

// settle draws the conclusion from the state in which a call left an actor. refusal is what the server said when it
// refused the call, empty when it did not.
func (e *emptying) settle(oc substrate.Occupant, a substrate.Actor, refusal string) error {
	r, ref := e.r, a.Ref
	switch a.State {
	case substrate.Suspended:
		e.mu.Lock()
		e.suspended[ref] = true
		delete(e.stuck, ref)
		done, total := len(e.suspended), e.total
		e.mu.Unlock()
		r.out.Progress(done, total)
		r.out.Say("suspended actor %s (%d of %d)", ref, done, total)
		return nil
	case substrate.Crashed:
		return r.stop(e.step, ExitLost, fmt.Sprintf("actor %s CRASHED while it was being suspended", ref),
			fmt.Sprintf("kubectl ate get actor %s -a %s -o yaml; then look at the atelet of node %s", ref.Name, ref.Atespace, r.o.Node), Blocker{Object: "actor " + ref.String(), Reason: "CRASHED " + refusal})
	case substrate.Paused:
		if refusal != "" && oc.Actor.State == substrate.Paused {
			return r.stop(e.step, ExitBlocked, fmt.Sprintf("actor %s is PAUSED and cannot be suspended as it is: its local snapshot holds less than its template commits", ref),
				fmt.Sprintf("kubectl ate resume actor %s -a %s, then kubectl ate suspend actor %s -a %s, then argo retry", ref.Name, ref.Atespace, ref.Name, ref.Atespace),
				Blocker{Object: "actor " + ref.String(), Reason: refusal})
		}
	}
	e.mu.Lock()
	e.stuck[ref] = Blocker{Object: "actor " + ref.String(), Reason: fmt.Sprintf("%s after it was asked to suspend %s", a.State, refusal)}
	e.mu.Unlock()
	return nil
}

// remember adds the actors to those that wait for room, in the node's stamp.
func (e *emptying) remember(ctx context.Context, v *view, todo []substrate.Occupant) error {
	st := e.r.stamped(*v, roll.Suspending)
	have := map[string]bool{}
	for _, w := range st.Suspended {
		have[w.Actor] = true
	}
	added := false
	for _, oc := range todo {
		if key := oc.Actor.Ref.String(); !have[key] {
			st.Suspended = append(st.Suspended, roll.Waiting{Actor: key, Class: oc.Worker.Class})
			added = true
		}
	}
	if !added {
		return nil
	}
	sort.Slice(st.Suspended, func(i, j int) bool { return st.Suspended[i].Actor < st.Suspended[j].Actor })
	// The API server allows the annotations of an object 256 KiB; leave room for everybody else's.
	const most = 200 << 10
	if n := len(st.String()); n > most {
		return e.r.stop(e.step, ExitBlocked, fmt.Sprintf("it has so many actors that their names do not fit in its stamp (%d of %d bytes)", n, most),
			"suspend some of them by hand, then argo retry")
	}
	return e.r.stamp(ctx, v, st)
}

// blockers are those of a reading, with what is known about the ones that were tried.
func (e *emptying) blockers(o occupancy) []Blocker {
	e.mu.Lock()
	defer e.mu.Unlock()
	var bs []Blocker
	for _, oc := range o.occupants {
		if b, ok := e.stuck[oc.Actor.Ref]; ok && oc.Reason != substrate.Unseen {
			bs = append(bs, b)
		}
	}
	if len(bs) > 0 {
		return bs
	}
	return o.blockers()
}

func unknowns(o occupancy) []Blocker {
	var bs []Blocker
	for _, oc := range o.occupants {
		if oc.Reason == substrate.Unknown {
			bs = append(bs, Blocker{Object: "actor " + oc.Actor.Ref.String(), Reason: fmt.Sprintf("its state %s is not known to this version of atewf", oc.Actor.State), Next: "use a version of atewf that knows it"})
		}
	}
	return bs
}

// errGone ends a wait because the node vanished while it was rolled.
var errGone = errors.New("the node vanished")

// gone says what it means that the node vanished in the middle of its roll: nothing is left to do on it, unless it took
// an actor along.
func (r *Roller) gone(ctx context.Context, step string, base roll.Baseline) error {
	crashed, err := r.crashed(ctx)
	if err != nil {
		return err
	}
	if err := r.lost(step, base, crashed); err != nil {
		return err
	}
	return errGone
}
