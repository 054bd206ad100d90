package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/substrate"
)

const (
	// dialTime is how long the Control API may take to answer at all, listTime how long its lists may take: a hundred
	// pages of a thousand actors each.
	dialTime = 20 * time.Second
	listTime = 3 * time.Minute
)

// ControlError is the error of a Control API that could not be read.
type ControlError struct{ Err error }

// Error names the cause and the way out.
func (e *ControlError) Error() string {
	return e.Err.Error() + "; pass --endpoint and --token-file to reach it another way, or --substrate=skip to plan without it"
}

// Unwrap returns the cause.
func (e *ControlError) Unwrap() error { return e.Err }

func (r *Reader) control(ctx context.Context, s *snapshot.Snapshot) error {
	if r.o.Mode == Skip {
		s.Control.Why = "--substrate=skip was given"
		return nil
	}
	err := r.readControl(ctx, s)
	if err == nil {
		s.Control.Read = true
		return nil
	}
	s.Workers, s.Actors = nil, nil
	if r.o.Mode == Require || ctx.Err() != nil || !unreachable(err) {
		return &ControlError{err}
	}
	s.Control.Why = err.Error()
	return nil
}

// notThere is an error on the way to the Control API, before it said anything.
type notThere struct{ error }

func (e notThere) Unwrap() error { return e.error }

// unreachable reports whether an error says that the Control API cannot be reached, or not by this user. Any other means
// that it answered and was not understood, and the steps would stop there as well.
func unreachable(err error) bool {
	var n notThere
	if errors.As(err, &n) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unauthenticated, codes.PermissionDenied:
		return true
	}
	return false
}

func (r *Reader) readControl(ctx context.Context, s *snapshot.Snapshot) (err error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := r.o.Dial(dialCtx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancelList := context.WithTimeout(ctx, listTime)
	defer cancelList()
	if s.Workers, err = c.Workers(ctx); err != nil {
		return err
	}
	s.Workers = once(s.Workers, func(w substrate.Worker) string { return w.Name })
	// A reader who may not drain cannot tell; the steps may, and will say so.
	if err = c.ServesDrain(ctx); errors.Is(err, substrate.ErrNoDrain) {
		return err
	}
	if err = c.EachActor(ctx, func(a substrate.Actor) error {
		s.Actors = append(s.Actors, a)
		return nil
	}); err != nil {
		return err
	}
	s.Actors = once(s.Actors, func(a substrate.Actor) substrate.Ref { return a.Ref })
	return nil
}

// once keeps the first of entries with the same key: a list that moves under its reader may repeat some.
func once[T any, K comparable](items []T, key func(T) K) []T {
	seen := make(map[K]bool, len(items))
	out := items[:0]
	for _, it := range items {
		if k := key(it); !seen[k] {
			seen[k] = true
			out = append(out, it)
		}
	}
	return out
}
