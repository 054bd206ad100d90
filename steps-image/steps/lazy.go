package steps

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/atewf/atewf/internal/substrate"
)

// Lazy connects to the Control API when it is first needed, so that a step whose node is finished or gone needs no
// Control API at all, and repeats the connecting while it fails for a passing reason.
func Lazy(clock Clock, out Reporter, dial func(context.Context) (Substrate, error)) Substrate {
	return &lazy{r: &Roller{clock: clock, out: out, o: Options{Poll: lazyPoll}}, dial: dial}
}

// lazyPoll paces the repeats; see again.
const lazyPoll = 2 * time.Second

type lazy struct {
	r    *Roller
	dial func(context.Context) (Substrate, error)

	mu sync.Mutex
	s  Substrate
}

func (l *lazy) get(ctx context.Context) (Substrate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s == nil {
		s, err := again(ctx, l.r, "connecting to the control API", func() (Substrate, error) { return l.dial(ctx) })
		if err != nil {
			return nil, fmt.Errorf("%w; check that ate-api-server is Ready, and the token and trust bundle of this pod", err)
		}
		l.s = s
	}
	return l.s, nil
}

func with[T any](ctx context.Context, l *lazy, call func(Substrate) (T, error)) (T, error) {
	s, err := l.get(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	return call(s)
}

func (l *lazy) Workers(ctx context.Context) ([]substrate.Worker, error) {
	return with(ctx, l, func(s Substrate) ([]substrate.Worker, error) { return s.Workers(ctx) })
}

func (l *lazy) EachActor(ctx context.Context, fn func(substrate.Actor) error) error {
	_, err := with(ctx, l, func(s Substrate) (struct{}, error) { return struct{}{}, s.EachActor(ctx, fn) })
	return err
}

func (l *lazy) Actor(ctx context.Context, ref substrate.Ref) (substrate.Actor, error) {
	return with(ctx, l, func(s Substrate) (substrate.Actor, error) { return s.Actor(ctx, ref) })
}

func (l *lazy) Assigned(ctx context.Context, worker string) (held []substrate.Ref, served bool, err error) {
	held, err = with(ctx, l, func(s Substrate) (refs []substrate.Ref, err error) {
		refs, served, err = s.Assigned(ctx, worker)
		return refs, err
	})
	return held, served, err
}

func (l *lazy) Drain(ctx context.Context, worker string) (substrate.Worker, error) {
	return with(ctx, l, func(s Substrate) (substrate.Worker, error) { return s.Drain(ctx, worker) })
}

func (l *lazy) Suspend(ctx context.Context, ref substrate.Ref) (substrate.Actor, error) {
	return with(ctx, l, func(s Substrate) (substrate.Actor, error) { return s.Suspend(ctx, ref) })
}
