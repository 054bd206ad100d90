package steps

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Exit codes of the step binary. 64 is the Argo executor's own and is never used.
const (
	ExitOK      = 0 // done, or nothing to do
	ExitError   = 1 // something failed that is none of the below: a server that cannot be reached, a permission
	ExitUsage   = 2 // the command line makes no sense
	ExitBlocked = 3 // a person must act before the step can go on
	ExitTimeout = 4 // what was waited for did not come in time
	ExitHeld    = 5 // another roll owns the cluster, or another node is open
	ExitLost    = 6 // an actor was lost: the number of CRASHED actors grew
)

// Blocker is one thing that stands in the way, with the reason and the way out.
type Blocker struct {
	Object string // what it is, as people name it
	Reason string
	Next   string // what to do; empty when waiting is all there is to do
}

// String is the blocker as one line.
func (b Blocker) String() string { return strings.TrimSpace(b.Object + ": " + b.Reason) }

// Stop is why a step ended without having done its work. What was done so far stays.
type Stop struct {
	Code     int // one of the exit codes
	Step     string
	Node     string
	Cause    string
	Blockers []Blocker
	Next     string // the next command to type
}

// Error is one line: node, step, cause, the blockers and the way out.
func (s *Stop) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of node %s stopped: %s", s.Step, s.Node, s.Cause)
	const most = 5
	for i, bl := range s.Blockers {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(s.Blockers)-most)
			break
		}
		fmt.Fprintf(&b, "; %s", bl)
	}
	next := s.Next
	if next == "" {
		for _, bl := range s.Blockers {
			if bl.Next != "" {
				next = bl.Next
				break
			}
		}
	}
	if next != "" {
		fmt.Fprintf(&b, "; next: %s", next)
	}
	return b.String()
}

// ExitCode maps what a step returned to the exit code of the binary.
func ExitCode(err error) int {
	var s *Stop
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &s):
		return s.Code
	}
	return ExitError
}

// transient reports whether the same call may succeed a little later: the server could not be reached, was busy, lost a
// race, or did not answer in time.
func transient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if _, ok := status.FromError(err); ok {
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unknown:
			return true
		}
		return false
	}
	var netErr net.Error
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		errors.As(err, &netErr)
}

// patience is how long a step repeats a call that fails for a passing reason. An ate-api-server that rolls, or an API
// server that restarts, is back well within it.
const patience = 3 * time.Minute

// again repeats a call while it fails for a passing reason, with growing pauses, and says so.
func again[T any](ctx context.Context, r *Roller, what string, call func() (T, error)) (T, error) {
	start := r.clock.Now()
	pause := r.o.Poll / 4
	for {
		v, err := call()
		if err == nil || !transient(err) || r.clock.Now().Sub(start) > patience {
			var s *Stop
			if err != nil && !errors.As(err, &s) && !errors.Is(err, errGone) {
				err = fmt.Errorf("%s: %w", what, err)
			}
			return v, err
		}
		r.out.Say("%s failed and will be tried again in %s: %v", what, pause.Round(time.Millisecond), err)
		if serr := r.clock.Sleep(ctx, pause); serr != nil {
			return v, fmt.Errorf("%s: %w", what, err)
		}
		pause = min(2*pause, 10*time.Second)
	}
}
