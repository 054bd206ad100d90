package steps

import (
	"context"
	"fmt"
	"time"
)

// wait repeats a look until it finds no blockers, and says every few seconds what is waited for and for how long
// already. At the end of its time it returns a Stop with the blockers of the last look.
type wait struct {
	step    string
	what    string // "the new atelet"
	timeout time.Duration
	code    int // exit code at the end of the time; ExitTimeout unless set
	next    string
}

func (r *Roller) until(ctx context.Context, w wait, look func(context.Context) ([]Blocker, error)) error {
	start := r.clock.Now()
	var said time.Time
	for {
		bs, err := look(ctx)
		if err != nil || len(bs) == 0 {
			return err
		}
		now := r.clock.Now()
		if now.Sub(start) >= w.timeout {
			code := w.code
			if code == 0 {
				code = ExitTimeout
			}
			return r.stop(w.step, code, fmt.Sprintf("waited %s for %s", w.timeout, w.what), w.next, bs...)
		}
		if said.IsZero() || now.Sub(said) >= r.o.Talk {
			said = now
			r.out.Say("waiting for %s (%s of %s): %s", w.what, now.Sub(start).Round(time.Second), w.timeout, refs(bs, 3))
		}
		if err := r.clock.Sleep(ctx, r.o.Poll); err != nil {
			return fmt.Errorf("waiting for %s on node %s: %w", w.what, r.o.Node, err)
		}
	}
}
