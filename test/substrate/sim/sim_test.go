package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/test/substrate/proto"
	"github.com/atewf/atewf/test/substrate/sim"
)

var ctx = context.Background()

// fleet is a control plane with one node, an atelet on it, and two workers.
func fleet(t *testing.T, gen proto.Generation, o sim.Options, change ...func(*sim.Server)) (*sim.Local, *sim.Memory) {
	t.Helper()
	mem := sim.NewMemory()
	mem.SetAtelet("n1", "v1")
	l, err := sim.NewLocal(mem, gen, o, change...)
	require.NoError(t, err)
	t.Cleanup(l.Stop)
	for i := range 2 {
		name := fmt.Sprintf("w%d", i)
		l.Store.Register(sim.Worker{Name: name, PodUID: name, Namespace: "agents", Pool: "p", Pod: "pod-" + name, Node: "n1", Class: "gvisor", Labels: map[string]string{"team": "a"}})
	}
	return l, mem
}

// dial connects with the product's own client.
func dial(t *testing.T, l *sim.Local, change ...func(*substrate.Options)) *substrate.Client {
	t.Helper()
	o := substrate.Options{Endpoint: l.Endpoint, CA: l.CA, Token: func(context.Context) (string, error) { return l.Token, nil }}
	for _, c := range change {
		c(&o)
	}
	c, err := substrate.Dial(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// actor makes a running actor.
func actor(t *testing.T, l *sim.Local, name string) string {
	t.Helper()
	a, err := l.Store.CreateActor(sim.Actor{Atespace: "s", Name: name, Selector: map[string]string{"team": "a"}})
	require.NoError(t, err)
	_, _, err = l.Store.Resume(ctx, a.Key())
	require.NoError(t, err)
	return a.Key()
}

func where(t *testing.T, l *sim.Local, key string) sim.Where {
	t.Helper()
	for _, w := range l.Store.Look(ctx) {
		if w.Actor == key {
			return w
		}
	}
	t.Fatalf("no actor %s", key)
	return sim.Where{}
}

func TestEveryGenerationIsReadByTheClient(t *testing.T) {
	for _, gen := range proto.Generations() {
		for _, reflected := range []bool{true, false} {
			if gen == proto.AssignedNode && !reflected {
				continue // see TestBuiltInDescriptionStopsAtWhatItDoesNotKnow
			}
			t.Run(fmt.Sprintf("%s reflected=%t", gen, reflected), func(t *testing.T) {
				l, _ := fleet(t, gen, sim.Options{}, func(s *sim.Server) { s.NoReflection = !reflected })
				c := dial(t, l)
				require.Equal(t, reflected, c.Reflected())
				running, paused := actor(t, l, "runs"), actor(t, l, "rests")
				_, err := l.Store.Pause(ctx, paused)
				require.NoError(t, err)

				workers, err := c.Workers(ctx)
				require.NoError(t, err)
				require.Len(t, workers, 2)
				claimed := int32(0)
				for _, w := range workers {
					require.Equal(t, "n1", w.Node)
					require.Equal(t, substrate.Active, w.State)
					require.Equal(t, "gvisor", w.Class)
					require.Equal(t, int32(1), w.Capacity)
					claimed += w.Claimed
				}
				if reflected || gen != proto.Runbook { // number 2 of WorkerStatus has two meanings, so it is not read unreflected
					require.Equal(t, int32(1), claimed)
				}
				var actors []substrate.Actor
				require.NoError(t, c.EachActor(ctx, func(a substrate.Actor) error { actors = append(actors, a); return nil }))
				require.Len(t, actors, 2)
				site := substrate.Site{Node: "n1", Workers: workers}
				oc := substrate.Occupants(site, actors)
				require.Len(t, oc, 2)
				require.Equal(t, substrate.PausedHere, oc[0].Reason)
				require.Equal(t, paused, oc[0].Actor.String())
				require.Equal(t, substrate.OnWorker, oc[1].Reason)
				require.Equal(t, running, oc[1].Actor.String())
				require.Equal(t, map[string]string{"team": "a"}, oc[1].Actor.Selector)

				w, err := c.Drain(ctx, oc[1].Worker.Name)
				require.NoError(t, err)
				require.Equal(t, substrate.Draining, w.State)
				held, served, err := c.Assigned(ctx, w.Name)
				require.NoError(t, err)
				require.Equal(t, gen != proto.Runbook && reflected, served)
				if served {
					require.Equal(t, []substrate.Ref{{Atespace: "s", Name: "runs"}}, held)
				}
				for _, o := range oc {
					a, err := c.Suspend(ctx, o.Actor.Ref)
					require.NoError(t, err)
					require.Equal(t, substrate.Suspended, a.State)
				}
				site.Workers, err = c.Workers(ctx)
				require.NoError(t, err)
				actors = nil
				require.NoError(t, c.EachActor(ctx, func(a substrate.Actor) error { actors = append(actors, a); return nil }))
				require.Empty(t, substrate.Occupants(site, actors), "a stale record of a local snapshot does not count")
				require.NoError(t, c.ServesDrain(ctx))
			})
		}
	}
}

func TestBuiltInDescriptionStopsAtWhatItDoesNotKnow(t *testing.T) {
	l, _ := fleet(t, proto.AssignedNode, sim.Options{}, func(s *sim.Server) { s.NoReflection = true })
	actor(t, l, "a")
	err := dial(t, l).EachActor(ctx, func(substrate.Actor) error { return nil })
	var u *substrate.UnknownFieldError
	require.ErrorAs(t, err, &u)
	require.Equal(t, "ActorStatus.?", u.Field)
	c := dial(t, l, func(o *substrate.Options) { o.AcceptFields = []string{"ActorStatus.?"} })
	require.NoError(t, c.EachActor(ctx, func(substrate.Actor) error { return nil }))
}

func TestUnknownStateIsShownAsItIs(t *testing.T) {
	l, _ := fleet(t, proto.Multi, sim.Options{})
	l.Store.AddFault(sim.Fault{Object: actor(t, l, "odd"), State: "42"})
	require.NoError(t, dial(t, l).EachActor(ctx, func(a substrate.Actor) error {
		require.Equal(t, substrate.ActorState("42"), a.State)
		require.False(t, a.State.Known())
		return nil
	}))
}

func TestTokenAndTrustAreRequired(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{})
	_, err := substrate.Dial(ctx, substrate.Options{Endpoint: l.Endpoint, CA: l.CA, Token: func(context.Context) (string, error) { return "wrong", nil }})
	if err == nil { // the description may be had without a token, an answer may not
		_, err = dial(t, l, func(o *substrate.Options) { o.Token = func(context.Context) (string, error) { return "wrong", nil } }).Workers(ctx)
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
	other, _, err := sim.Certificates("api.ate-system.svc")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = substrate.Dial(short, substrate.Options{Endpoint: l.Endpoint, CA: other, Token: func(context.Context) (string, error) { return l.Token, nil }})
	require.ErrorContains(t, err, "certificate")
	_, err = substrate.Dial(ctx, substrate.Options{Endpoint: l.Endpoint, CA: []byte("x"), Token: nil})
	require.ErrorContains(t, err, "trust bundle")
}

func TestTokenIsReadAgain(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{})
	token := l.Token
	c := dial(t, l, func(o *substrate.Options) { o.Token = func(context.Context) (string, error) { return token, nil } })
	_, err := c.Workers(ctx)
	require.NoError(t, err)
	token = "expired"
	_, err = c.Workers(ctx)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	token = l.Token
	_, err = c.Workers(ctx)
	require.NoError(t, err)
}

func TestListsArePagedToTheEnd(t *testing.T) {
	l, _ := fleet(t, proto.Multi, sim.Options{})
	for i := range 2500 {
		_, err := l.Store.CreateActor(sim.Actor{Atespace: "s", Name: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	n := 0
	require.NoError(t, dial(t, l).EachActor(ctx, func(substrate.Actor) error { n++; return nil }))
	require.Equal(t, 2500, n)
}

func TestDrainWorkerThatIsNotServed(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{}, func(s *sim.Server) { s.Unserved["DrainWorker"] = true })
	require.ErrorContains(t, dial(t, l).ServesDrain(ctx), "does not serve DrainWorker")
}

// What suspend answers, by the state that it finds.
func TestSuspendByState(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, l *sim.Local, m *sim.Memory, key string)
		code    codes.Code
		state   string
	}{
		"running":             {func(*testing.T, *sim.Local, *sim.Memory, string) {}, codes.OK, sim.Suspended},
		"on a drained worker": {func(t *testing.T, l *sim.Local, _ *sim.Memory, _ string) { drainAll(t, l) }, codes.OK, sim.Suspended},
		"paused":              {pause, codes.OK, sim.Suspended},
		"paused, and another atelet is there": {func(t *testing.T, l *sim.Local, m *sim.Memory, key string) {
			pause(t, l, m, key)
			m.SetAtelet("n1", "v2")
		}, codes.Internal, sim.Crashed},
		"no atelet": {func(_ *testing.T, _ *sim.Local, m *sim.Memory, _ string) { m.SetAtelet("n1", "") }, codes.Unknown, sim.Suspending},
		"suspended": {func(t *testing.T, l *sim.Local, _ *sim.Memory, key string) {
			_, err := l.Store.Suspend(ctx, key)
			require.NoError(t, err)
		}, codes.OK, sim.Suspended},
		"stalled before": {func(t *testing.T, l *sim.Local, _ *sim.Memory, key string) {
			l.Store.AddFault(sim.Fault{Stall: true, Object: key, Times: 1, Code: "DeadlineExceeded"})
			_, err := l.Store.Suspend(ctx, key)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			require.Equal(t, sim.Suspending, where(t, l, key).State)
		}, codes.OK, sim.Suspended},
		"worker killed": {func(_ *testing.T, l *sim.Local, m *sim.Memory, key string) {
			actors, _ := l.Store.Snapshot()
			m.Kill(actors[0].Worker)
			l.Store.DeleteWorker(actors[0].Worker)
		}, codes.FailedPrecondition, sim.Crashed},
	} {
		t.Run(name, func(t *testing.T) {
			l, m := fleet(t, proto.Runbook, sim.Options{})
			key := actor(t, l, "a")
			before := where(t, l, key)
			tc.prepare(t, l, m, key)
			_, err := l.Store.Suspend(ctx, key)
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			after := where(t, l, key)
			require.Equal(t, tc.state, after.State)
			if tc.state == sim.Suspended {
				require.Equal(t, before.Identity, after.Identity)
				require.GreaterOrEqual(t, after.Counter, before.Counter)
			}
		})
	}
}

func drainAll(t *testing.T, l *sim.Local) {
	_, workers := l.Store.Snapshot()
	for _, w := range workers {
		_, err := l.Store.Drain(w.Name)
		require.NoError(t, err)
	}
}

func pause(t *testing.T, l *sim.Local, _ *sim.Memory, key string) {
	_, err := l.Store.Pause(ctx, key)
	require.NoError(t, err)
}

func TestPausedDataOnlyIsRefused(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{})
	_, err := l.Store.CreateActor(sim.Actor{Atespace: "s", Name: "a", DataOnly: true})
	require.NoError(t, err)
	_, _, err = l.Store.Resume(ctx, "s/a")
	require.NoError(t, err)
	pause(t, l, nil, "s/a")
	_, err = l.Store.Suspend(ctx, "s/a")
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, sim.Paused, where(t, l, "s/a").State)
}

func TestCounterMovesAndIsReallyLost(t *testing.T) {
	l, m := fleet(t, proto.Runbook, sim.Options{})
	key := actor(t, l, "a")
	require.Eventually(t, func() bool { return where(t, l, key).Counter >= 2 }, 5*time.Second, 20*time.Millisecond)
	actors, _ := l.Store.Snapshot()
	m.Kill(actors[0].Worker)
	l.Store.DeleteWorker(actors[0].Worker)
	w := where(t, l, key)
	require.Equal(t, sim.Crashed, w.State)
	require.Zero(t, w.Counter)
	_, _, err := l.Store.Resume(ctx, key)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	_, err = l.Store.Revert(key)
	require.NoError(t, err)
	_, _, err = l.Store.Resume(ctx, key)
	require.NoError(t, err)
	require.Empty(t, w.Identity)
}

func TestOneOperationAtATime(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{SuspendTime: 300 * time.Millisecond})
	key := actor(t, l, "a")
	done := make(chan error, 1)
	go func() { _, err := l.Store.Suspend(ctx, key); done <- err }()
	require.Eventually(t, func() bool { return where(t, l, key).State == sim.Suspending }, time.Second, time.Millisecond)
	_, err := l.Store.Suspend(ctx, key)
	require.Equal(t, codes.Aborted, status.Code(err))
	require.NoError(t, <-done)
}

func TestSchedulerTakesActiveWorkersThatMatch(t *testing.T) {
	l, _ := fleet(t, proto.Runbook, sim.Options{})
	_, err := l.Store.CreateActor(sim.Actor{Atespace: "s", Name: "micro", Class: "microvm"})
	require.NoError(t, err)
	_, _, err = l.Store.Resume(ctx, "s/micro")
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	actor(t, l, "a")
	drainAll(t, l)
	_, err = l.Store.CreateActor(sim.Actor{Atespace: "s", Name: "b"})
	require.NoError(t, err)
	_, _, err = l.Store.Resume(ctx, "s/b")
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "a drained worker looks free and is not")
	_, err = l.Store.Land(ctx, "s/b", "n1")
	require.NoError(t, err, "a resume that had chosen its worker before ends on it")
}

func TestPausedActorStaysOnItsNode(t *testing.T) {
	l, m := fleet(t, proto.Runbook, sim.Options{})
	key := actor(t, l, "a")
	pause(t, l, m, key)
	drainAll(t, l)
	m.SetAtelet("n2", "v1")
	l.Store.Register(sim.Worker{Name: "far", Node: "n2", Class: "gvisor", Labels: map[string]string{"team": "a"}})
	_, _, err := l.Store.Resume(ctx, key)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestRecordsSurviveARestart(t *testing.T) {
	file := t.TempDir() + "/records.json"
	l, m := fleet(t, proto.Runbook, sim.Options{File: file})
	key := actor(t, l, "a")
	_, err := l.Store.Suspend(ctx, key)
	require.NoError(t, err)
	again, err := sim.NewStore(m, sim.Options{File: file})
	require.NoError(t, err)
	a, w := again.Snapshot()
	require.Len(t, a, 1)
	require.Len(t, w, 2)
	var st sim.State
	require.NoError(t, json.Unmarshal(a[0].Snapshot, &st))
	require.NotEmpty(t, st.Identity)
}
