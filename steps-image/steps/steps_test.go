package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

func TestRollOfThreeNodes(t *testing.T) {
	w := newWorld(t)
	for i, n := range []string{"node1", "node1", "node2", "node3"} {
		w.run(fmt.Sprintf("a%d", i), n)
	}
	w.pause("p", "node2")
	for _, n := range []string{"node1", "node2", "node3"} {
		require.NoError(t, w.all(w.roller(n)))
		require.Equal(t, newVersion, w.nodes[n].Labels[versions.Label])
		require.Equal(t, roll.Verified, w.stampOf(n).Phase)
		require.Empty(t, w.leaseAnnotation(roll.NodeInHandAnnotation))
	}
	w.intact()
	for _, a := range w.actors {
		require.Equal(t, substrate.Suspended, a.State)
	}
	require.Equal(t, []string{"RollDrained", "RollSuspended", "RollFlipped", "RollOldWorkersDeleted", "RollVerified"}, w.events[:5])
}

// Promise 1: nothing is flipped while an actor is on the node, whatever it is doing there.

func TestFlipSuspendsWhoCameBack(t *testing.T) {
	for name, back := range map[string]func(w *world) substrate.Ref{
		"an actor resumed on a worker that registered after the drain": func(w *world) substrate.Ref {
			w.addWorker("node1", oldVersion, "gvisor")
			return w.run("late", "node1")
		},
		"a resume that was under way when the worker was drained": func(w *world) substrate.Ref { return w.run("late", "node1") },
		"an actor paused there":                                   func(w *world) substrate.Ref { return w.pause("late", "node1") },
		"a suspend that stalled": func(w *world) substrate.Ref {
			ref := w.run("late", "node1")
			w.actors[ref].State = substrate.Suspending
			return ref
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.roller("node1")
			ctx := context.Background()
			_, err := r.Drain(ctx)
			require.NoError(t, err)
			_, err = r.Suspend(ctx)
			require.NoError(t, err)
			ref := back(w)
			_, err = r.Flip(ctx)
			require.NoError(t, err)
			w.intact()
			require.Equal(t, substrate.Suspended, w.actors[ref].State)
			require.Contains(t, mustJSON(t, w.stampOf("node1").Suspended), ref.String())
		})
	}
}

func TestFlipNeedsTwoCleanReadsInARow(t *testing.T) {
	for name, tc := range map[string]struct {
		hidden  int // the readings that miss the first actor
		another int // the reading before which a second actor is paused here, 0 for none
	}{
		"the first reading misses an actor":                            {hidden: 1},
		"and so does the one after a reading that found somebody else": {hidden: 3, another: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.roller("node1")
			require.NoError(t, first(r.Drain))
			ref := w.run("hidden", "node1")
			reads := -1 // the first list of a step is for the CRASHED ones
			w.hook = func(op, _ string) error {
				if op == "EachActor" {
					if reads++; reads == tc.another && reads > 0 {
						w.pause("another", "node1")
					}
				}
				return nil
			}
			w.hides = func(a substrate.Ref) bool { return a == ref && reads <= tc.hidden }
			require.NoError(t, first(r.Flip))
			w.intact()
			require.Equal(t, substrate.Suspended, w.actors[ref].State)
		})
	}
}

func TestFlipDrainsWhoRegisteredMeanwhile(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	require.NoError(t, first(r.Suspend))
	w.addWorker("node1", oldVersion, "gvisor") // a worker pod that was restarted registers as a fresh, ACTIVE worker
	require.NoError(t, first(r.Flip))
	w.intact()
}

func TestFlipReadsRightBeforeItActs(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	w.calls = nil
	require.NoError(t, first(r.Flip))
	before := w.calls[:index(w.calls, "Flip node1")]
	reads := 0
	for i := len(before) - 1; i >= 0 && reads < 2; i-- {
		switch before[i] {
		case "EachActor":
			reads++
		case "Drain", "Suspend":
			t.Fatalf("%s between the last readings and the flip", before[i])
		}
	}
	require.Equal(t, 2, reads)
}

func TestFlipWaitsForOthersInBetween(t *testing.T) {
	for _, state := range []substrate.ActorState{substrate.Resuming, substrate.Pausing, substrate.Reverting, substrate.Deleting} {
		t.Run(string(state), func(t *testing.T) {
			w := newWorld(t)
			ref := w.run("busy", "node1")
			w.actors[ref].State = state
			since := w.now
			w.hook = func(op, _ string) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if a := w.actors[ref]; a.State == state && w.now.Sub(since) > time.Minute {
					a.State = substrate.Running
				}
				return nil
			}
			r := w.roller("node1")
			require.NoError(t, first(r.Flip))
			w.intact()
			require.Equal(t, substrate.Suspended, w.actors[ref].State)
			require.Greater(t, w.now.Sub(since), time.Minute)
		})
	}
}

func TestWorkerThatClaimsAnUnseenActorBlocks(t *testing.T) {
	w := newWorld(t)
	for _, wk := range w.workers {
		if wk.Node == "node1" {
			wk.Claimed, wk.ClaimedActor = 1, "default/unseen"
			break
		}
	}
	err := first(w.roller("node1").Flip)
	s := stopOf(t, err, ExitTimeout)
	require.Contains(t, s.Error(), "default/unseen")
	require.NotContains(t, w.calls, "Flip node1")
}

func TestUnregisteredReadyPodBlocksTheFlip(t *testing.T) {
	w := newWorld(t)
	wk := w.addWorker("node1", oldVersion, "gvisor")
	delete(w.workers, wk.Name)
	s := stopOf(t, first(w.roller("node1").Flip), ExitTimeout)
	require.Contains(t, s.Error(), "not registered")
	require.NotContains(t, w.calls, "Flip node1")
}

// Promise 2: pods are deleted after the flip, one by one, by UID, after a look at their worker.

func TestOldPodIsLookedAtBeforeItIsDeleted(t *testing.T) {
	for _, noAssigned := range []bool{false, true} {
		t.Run(fmt.Sprintf("assignments hidden %t", noAssigned), func(t *testing.T) {
			w := newWorld(t)
			w.noAssigned = noAssigned
			r := w.roller("node1")
			require.NoError(t, first(r.Drain))
			// A resume that was under way lands on the very worker whose pod is about to go, after the node was read.
			var victim string
			armed := false
			w.hook = func(op, arg string) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if op == "DeletePod" && victim == "" {
					armed, victim = true, "next"
				}
				if op == "Assigned" && armed && victim == "next" {
					victim = arg
					ref := substrate.Ref{Atespace: "default", Name: "late"}
					w.actors[ref] = &substrate.Actor{Ref: ref, State: substrate.Running, Worker: arg, WorkerPodUID: arg}
				}
				return nil
			}
			require.NoError(t, first(r.Flip))
			require.NotEmpty(t, victim)
			w.intact()
			require.Equal(t, substrate.Suspended, w.actors[substrate.Ref{Atespace: "default", Name: "late"}].State)
		})
	}
}

func TestPodOfTheSameNameIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	// Somebody deletes the pod and a fresh one of the same name comes, between the list and the delete.
	swapped := ""
	w.hook = func(op, arg string) error {
		if op != "DeletePod" || swapped != "" {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		swapped = arg
		p := w.pods["pools/"+arg]
		delete(w.workers, string(p.UID))
		p.UID += "-again"
		w.workers[string(p.UID)] = &substrate.Worker{Name: string(p.UID), PodUID: string(p.UID), Pod: arg, Node: "node1", State: substrate.Active, Capacity: 1}
		ref := substrate.Ref{Atespace: "default", Name: "late"}
		w.actors[ref] = &substrate.Actor{Ref: ref, State: substrate.Running, Worker: string(p.UID), WorkerPodUID: string(p.UID)}
		return nil
	}
	require.NoError(t, first(r.Flip))
	w.intact()
	require.NotEmpty(t, swapped)
}

func TestDeleteNeedsTheNewLabel(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	// Somebody moves the label back as soon as the new atelet is looked for.
	w.hook = func(op, _ string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := w.nodes["node1"]; op == "Workers" && n.Labels[versions.Label] == newVersion {
			n.Labels[versions.Label] = oldVersion
		}
		return nil
	}
	s := stopOf(t, first(r.Flip), ExitBlocked)
	require.Contains(t, s.Error(), "moved back")
	w.intact()
	for _, c := range w.calls {
		require.NotContains(t, c, "DeletePod")
	}
}

// Promise 3: one node at a time, and only with room for those that wait.

func TestSecondNodeIsRefusedWhileTheFirstIsOpen(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, first(w.roller("node1").Drain))
	for name, step := range map[string]func(context.Context) (Result, error){"drain": w.roller("node2").Drain, "flip": w.roller("node2").Flip} {
		s := stopOf(t, first(step), ExitHeld)
		require.Contains(t, s.Error(), "node1", name)
	}
	for _, c := range w.calls {
		require.NotContains(t, c, "node2-drained")
	}
	for _, wk := range w.workers {
		if wk.Node == "node2" {
			require.Equal(t, substrate.Active, wk.State)
		}
	}
}

func TestNextNodeGoesOnWhenTheOpenOneIsGone(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, first(w.roller("node1").Drain))
	delete(w.nodes, "node1")
	require.NoError(t, first(w.roller("node2").Drain))
}

func TestVerifyWaitsForRoom(t *testing.T) {
	w := newWorld(t)
	ref := w.run("waits", "node1")
	w.actors[ref].Selector = map[string]string{"tier": "gold"}
	for _, wk := range w.workers {
		if wk.Node == "node1" {
			wk.Labels = map[string]string{"tier": "gold"}
		}
		if wk.Node == "node2" { // looks free, and is draining
			wk.Labels, wk.State = map[string]string{"tier": "gold"}, substrate.Draining
		}
	}
	err := w.all(w.roller("node1"))
	s := stopOf(t, err, ExitTimeout)
	require.Equal(t, "verify", s.Step)
	require.Contains(t, s.Error(), "default/waits")
	require.Contains(t, s.Error(), "tier=gold")
	require.Equal(t, "node1", w.leaseAnnotation(roll.NodeInHandAnnotation), "the line stops here")

	for _, wk := range w.workers {
		if wk.Node == "node1" {
			wk.Labels = map[string]string{"tier": "gold"}
		}
	}
	require.NoError(t, first(w.roller("node1").Verify))
	w.intact()
}

func TestVerifyWaitsForTheNewWorkers(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"not Ready": func(w *world) {
			for _, p := range w.pods {
				if versions.PodPin(p) == newVersion {
					p.Status = corev1.PodStatus{Phase: corev1.PodPending}
					return
				}
			}
		},
		"not registered": func(w *world) {
			for k, wk := range w.workers {
				if strings.Contains(wk.Pool, newVersion) {
					delete(w.workers, k)
					return
				}
			}
		},
		"is DRAINING": func(w *world) {
			for _, wk := range w.workers {
				if strings.Contains(wk.Pool, newVersion) {
					wk.State = substrate.Draining
					return
				}
			}
		},
		`pinned to "v1" is left`: func(w *world) { w.addWorker("node1", oldVersion, "gvisor") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.roller("node1")
			require.NoError(t, first(r.Drain))
			require.NoError(t, first(r.Suspend))
			require.NoError(t, first(r.Flip))
			spoil(w)
			s := stopOf(t, first(r.Verify), ExitTimeout)
			require.Contains(t, s.Error(), name)
			require.Equal(t, roll.Flipped, w.stampOf("node1").Phase)
		})
	}
}

func TestVerifyMissesWorkersThatShouldHaveComeHere(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	require.NoError(t, first(r.Flip))
	for k, p := range w.pods {
		if versions.PodPin(p) == newVersion {
			delete(w.workers, string(p.UID))
			delete(w.pods, k)
		}
	}
	w.flippedAt = map[string]time.Time{} // and none comes any more
	s := stopOf(t, first(r.Verify), ExitTimeout)
	require.Contains(t, s.Error(), "no new worker has come up here")
}

// Promise 6 and 9: stop, and say why.

func TestNewAteletThatNeverComes(t *testing.T) {
	w := newWorld(t)
	w.ateletAfter = 0
	err := w.all(w.roller("node1"))
	s := stopOf(t, err, ExitTimeout)
	require.Equal(t, "flip", s.Step)
	require.Contains(t, s.Error(), "new atelet")
	w.intact()
	for _, c := range w.calls {
		require.NotContains(t, c, "DeletePod", "the old workers stay until the new atelet is there")
	}
	require.Equal(t, ExitHeld, ExitCode(first(w.roller("node2").Drain)), "the next node is not touched")
	w.ateletAfter = time.Second
	require.NoError(t, w.all(w.roller("node1")))
}

func TestCrashLoopingAteletIsQuoted(t *testing.T) {
	w := newWorld(t)
	w.ateletAfter = 0
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	w.addAtelet("node1", newVersion)
	w.pods["ate-system/atelet-v2-node1"].Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
		{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}}}}}
	s := stopOf(t, first(r.Flip), ExitTimeout)
	require.Contains(t, s.Error(), "CrashLoopBackOff back-off 40s")
	require.Contains(t, s.Error(), "cannot read the image cache | giving up")
}

func TestCrashedActorStopsTheLine(t *testing.T) {
	for _, at := range []string{"drain", "suspend", "flip", "verify"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t)
			old := w.pause("long-gone", "node3")
			w.actors[old].State = substrate.Crashed // was there before, and does not count
			r := w.roller("node1")
			for _, s := range []struct {
				name string
				do   func(context.Context) (Result, error)
			}{{"drain", r.Drain}, {"suspend", r.Suspend}, {"flip", r.Flip}, {"verify", r.Verify}} {
				if s.name == at {
					if at == "drain" {
						require.NoError(t, first(r.Drain)) // the baseline is taken by the first drain
					}
					ref := w.run("victim", "node2")
					w.crash(w.actors[ref])
					stop := stopOf(t, first(s.do), ExitLost)
					require.Contains(t, stop.Error(), "default/victim")
					require.NotContains(t, stop.Error(), "long-gone")
					return
				}
				require.NoError(t, first(s.do))
			}
		})
	}
}

func TestActorThatCrashesWhileItIsSuspended(t *testing.T) {
	w := newWorld(t)
	bad, good := w.run("bad", "node1"), w.run("good", "node1")
	w.hook = func(op, arg string) error {
		if op == "Suspend" && arg == "bad" {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.crash(w.actors[bad])
			w.lost = nil
		}
		return nil
	}
	s := stopOf(t, first(w.roller("node1").Suspend), ExitLost)
	require.Contains(t, s.Error(), "default/bad")
	require.Equal(t, substrate.Suspended, w.actors[good].State, "the others are saved")
}

func TestSuspendThatStallsIsAskedForAgain(t *testing.T) {
	w := newWorld(t)
	ref := w.run("slow", "node1")
	tries := 0
	w.hook = func(op, _ string) error {
		if op != "Suspend" {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if tries++; tries < 6 {
			w.actors[ref].State = substrate.Suspending
			return status.Error([]codes.Code{codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Internal, codes.Unknown}[tries-1], "not now")
		}
		return nil
	}
	res, err := w.roller("node1").Suspend(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, res.Suspended)
	require.Equal(t, 6, tries)
	w.intact()
	require.Equal(t, "1/1", w.progress[len(w.progress)-1])
}

func TestPausedActorThatCannotBeSuspendedIsExplained(t *testing.T) {
	w := newWorld(t)
	ref := w.pause("data-only", "node1")
	w.hook = func(op, _ string) error {
		if op == "Suspend" {
			return status.Error(codes.FailedPrecondition, "local snapshot holds DATA, template commits FULL")
		}
		return nil
	}
	s := stopOf(t, first(w.roller("node1").Suspend), ExitBlocked)
	require.Contains(t, s.Error(), "kubectl ate resume actor data-only -a default")
	require.Equal(t, substrate.Paused, w.actors[ref].State)
}

func TestFailedPreconditionIsLookedInto(t *testing.T) {
	w := newWorld(t)
	ref := w.run("done", "node1")
	w.hook = func(op, _ string) error {
		if op == "Suspend" {
			w.mu.Lock()
			defer w.mu.Unlock()
			a := w.actors[ref]
			a.State, a.Worker, a.WorkerPodUID = substrate.Suspended, "", ""
			return status.Error(codes.FailedPrecondition, "MarkSuspending prerequisite not met")
		}
		return nil
	}
	res, err := w.roller("node1").Suspend(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, res.Suspended)
	require.Contains(t, w.calls, "Actor done")
}

func TestUnknownStateStops(t *testing.T) {
	w := newWorld(t)
	ref := w.pause("odd", "node3")
	w.actors[ref].State = "HIBERNATING"
	s := stopOf(t, first(w.roller("node1").Flip), ExitBlocked)
	require.Contains(t, s.Error(), "HIBERNATING")
	require.NotContains(t, w.calls, "Flip node1")
}

func TestUnreadableWorkerStops(t *testing.T) {
	w := newWorld(t)
	w.hook = func(op, _ string) error {
		if op == "Workers" {
			return &substrate.UnknownFieldError{Object: "worker x", Field: "WorkerStatus.shadow"}
		}
		return nil
	}
	err := first(w.roller("node1").Flip)
	require.Equal(t, ExitError, ExitCode(err))
	require.ErrorContains(t, err, "WorkerStatus.shadow")
	require.NotContains(t, w.calls, "Flip node1")
}

func TestLastReadyNodeIsNotFlipped(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"node2", "node3"} {
		w.nodes[n].Status.Conditions[0].Status = corev1.ConditionFalse
	}
	stopOf(t, first(w.roller("node1").Flip), ExitBlocked)
	require.NotContains(t, w.calls, "Flip node1")
	require.NoError(t, first(w.roller("node1", func(o *Options) { o.AllowSingleNode = true }).Flip))
}

func TestNodeAtAnotherVersionIsRefused(t *testing.T) {
	w := newWorld(t)
	w.nodes["node1"].Labels[versions.Label] = "v7"
	s := stopOf(t, first(w.roller("node1").Drain), ExitBlocked)
	require.Contains(t, s.Error(), `"v7"`)
	for _, c := range w.calls {
		require.False(t, strings.HasPrefix(c, "Drain "), c)
	}
}

func TestUnpinnedWorkerIsRefused(t *testing.T) {
	w := newWorld(t)
	wk := w.addWorker("node1", oldVersion, "gvisor")
	w.pods["pools/"+wk.Pod].Spec.NodeSelector = nil
	s := stopOf(t, first(w.roller("node1").Drain), ExitBlocked)
	require.Contains(t, s.Error(), wk.Pod)
}

func TestLabelChangedAtTheMomentOfTheFlip(t *testing.T) {
	w := newWorld(t)
	w.hook = func(op, _ string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := w.nodes["node1"]; op == "PatchNode" && w.stampOf("node1") != nil {
			n.Labels[versions.Label] = "v7"
		}
		return nil
	}
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	s := stopOf(t, first(r.Flip), ExitBlocked)
	require.Contains(t, s.Error(), "by somebody else")
	require.Equal(t, "v7", w.nodes["node1"].Labels[versions.Label], "what others set is not overwritten")
}

// Promise 7: every step can run again.

func TestEveryStepRunsTwice(t *testing.T) {
	w := newWorld(t)
	w.run("a", "node1")
	r := w.roller("node1")
	for _, do := range []func(context.Context) (Result, error){r.Drain, r.Suspend, r.Flip, r.Verify} {
		require.NoError(t, first(do))
		require.NoError(t, first(do))
	}
	w.intact()
	w.calls = nil
	for _, do := range []func(context.Context) (Result, error){r.Drain, r.Suspend, r.Flip} {
		res, err := do(context.Background())
		require.NoError(t, err)
		require.Contains(t, res.Summary, "already")
	}
	for _, c := range w.calls {
		require.NotContains(t, c, "Patch", "a finished node is not touched")
		require.NotContains(t, c, "Lease", "nor is the Lease, which may be in use for another node")
	}
}

func TestStepsThatDieAnywhereAreTakenUpAgain(t *testing.T) {
	count := func() int {
		w := newWorld(t)
		w.run("a", "node1")
		w.pause("p", "node1")
		require.NoError(t, w.all(w.roller("node1")))
		return len(w.calls)
	}()
	for kill := range count {
		w := newWorld(t)
		w.run("a", "node1")
		w.pause("p", "node1")
		ctx, cancel := context.WithCancel(context.Background())
		n := 0
		w.hook = func(string, string) error {
			if n++; n > kill {
				cancel()
				return context.Canceled
			}
			return nil
		}
		r := w.roller("node1")
		for _, do := range []func(context.Context) (Result, error){r.Drain, r.Suspend, r.Flip, r.Verify} {
			if _, err := do(ctx); err != nil {
				break
			}
		}
		cancel()
		w.hook = nil
		require.NoError(t, w.all(w.roller("node1")), "killed at call %d", kill)
		w.intact()
		require.Equal(t, roll.Verified, w.stampOf("node1").Phase)
	}
}

func TestLostAnswerOfTheFlip(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	n := 0
	w.hook = func(op, _ string) error {
		if op == "PatchNode" {
			if n++; n == 1 {
				return errors.New("answer lost")
			}
		}
		return nil
	}
	require.NoError(t, first(r.Flip))
	require.Equal(t, newVersion, w.nodes["node1"].Labels[versions.Label])
	w.intact()
}

func TestPassingFailuresAreRidOut(t *testing.T) {
	w := newWorld(t)
	w.run("a", "node1")
	n := 0
	w.hook = func(op, _ string) error {
		if n++; n%3 == 0 {
			switch op {
			case "Workers", "EachActor", "Drain", "Suspend":
				return status.Error(codes.Unavailable, "restarting")
			}
		}
		return nil
	}
	require.NoError(t, w.all(w.roller("node1")))
	w.intact()
}

func TestFreshNewWorkerIsNeverDrained(t *testing.T) {
	w := newWorld(t)
	r := w.roller("node1")
	require.NoError(t, first(r.Drain))
	// New workers register between any two reads of the part of the flip that comes after the label moved.
	w.hook = func(op, _ string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.nodes["node1"].Labels[versions.Label] == newVersion && (op == "Workers" || op == "WorkerPods") && w.pending > 0 {
			w.pending--
			w.addWorker("node1", newVersion, "gvisor")
		}
		return nil
	}
	require.NoError(t, first(r.Flip))
	w.intact()
}

// Promise 8: one roll per cluster.

func TestSecondRollIsRefusedByName(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, first(w.roller("node1").Drain))
	other := w.roller("node2", func(o *Options) { o.Roll = roll.Holder{Namespace: "ops", Name: "other", UID: "u2"} })
	for _, step := range []func(context.Context) (Result, error){other.Drain, other.Suspend, other.Flip, other.Verify} {
		s := stopOf(t, first(step), ExitHeld)
		require.Contains(t, s.Error(), "default/roll")
	}
}

func TestLeaseOfAnEndedRollIsTakenOver(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"failed":          func(w *world) { w.phases[me.String()] = "Failed" },
		"succeeded":       func(w *world) { w.phases[me.String()] = "Succeeded" },
		"deleted":         func(w *world) { delete(w.phases, me.String()) },
		"made anew (UID)": func(w *world) { delete(w.phases, me.String()); w.phases["default/roll/u9"] = "Running" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			require.NoError(t, first(w.roller("node1").Drain))
			other := func(node string) *Roller {
				return w.roller(node, func(o *Options) { o.Roll = roll.Holder{Namespace: "ops", Name: "other", UID: "u2"} })
			}
			r1, r2 := other("node1"), other("node2")
			end(w)
			stopOf(t, first(r2.Drain), ExitHeld) // node1 is still open, whoever holds the Lease
			require.NoError(t, w.all(r1))
			require.NoError(t, first(r2.Drain))
			w.intact()
			require.Equal(t, "ops/other/u2", *w.lease.Spec.HolderIdentity)
		})
	}
}

func TestTwoRollsThatStartAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.roller("node1")
	b := w.roller("node2", func(o *Options) { o.Roll = roll.Holder{Namespace: "ops", Name: "other", UID: "u2"} })
	raced := false
	w.hook = func(op, _ string) error {
		if op == "CreateLease" && !raced {
			raced = true // b takes the Lease after a found none
			require.NoError(t, first(b.Drain))
		}
		return nil
	}
	s := stopOf(t, first(a.Drain), ExitHeld)
	require.Contains(t, s.Error(), "ops/other")
}

// Promise 10: nothing is drained but what the step was told, and the wait mode suspends nothing.

func TestWaitModeSuspendsNothing(t *testing.T) {
	w := newWorld(t)
	ref := w.run("mine", "node1")
	r := w.roller("node1", func(o *Options) { o.Mode = SuspendWait; o.Timeout = 10 * time.Minute })
	require.NoError(t, first(r.Drain))
	s := stopOf(t, first(r.Suspend), ExitTimeout)
	require.Contains(t, s.Error(), "default/mine")
	require.Contains(t, s.Error(), "kubectl ate suspend actor")
	require.Equal(t, substrate.Running, w.actors[ref].State)
	start := w.now
	w.hook = func(op, _ string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if a := w.actors[ref]; w.now.Sub(start) > 5*time.Minute {
			a.State, a.Worker, a.WorkerPodUID = substrate.Suspended, "", ""
		}
		return nil
	}
	require.NoError(t, first(r.Suspend))
	w.intact()
	for _, c := range w.calls {
		require.False(t, strings.HasPrefix(c, "Suspend"), c)
	}
}

func TestOnlyTheNodeIsDrained(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, first(w.roller("node1").Drain))
	for _, wk := range w.workers {
		want := substrate.Active
		if wk.Node == "node1" {
			want = substrate.Draining
		}
		require.Equal(t, want, wk.State, wk.String())
	}
}

func TestResumingActorIsNotDrainedUnder(t *testing.T) {
	w := newWorld(t)
	ref := w.run("waking", "node1")
	w.actors[ref].State = substrate.Resuming
	since := w.now
	w.hook = func(op, _ string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.now.Sub(since) > 30*time.Second {
			w.actors[ref].State = substrate.Running
		}
		return nil
	}
	require.NoError(t, first(w.roller("node1").Drain))
	w.intact()
}

// A node that vanishes.

func TestNodeThatVanishes(t *testing.T) {
	for _, at := range []string{"Drain", "Suspend", "DeletePod", "UnscheduledWorkerPods"} {
		t.Run("empty, at "+at, func(t *testing.T) {
			w := newWorld(t)
			ref := w.run("a", "node1")
			vanish := func() {
				delete(w.nodes, "node1")
				for k, p := range w.pods {
					if p.Spec.NodeName == "node1" {
						delete(w.workers, string(p.UID))
						delete(w.pods, k)
					}
				}
			}
			if at == "Drain" {
				vanish()
				delete(w.actors, ref)
			}
			require.NoError(t, first(w.roller("node1").Drain))
			require.NoError(t, first(w.roller("node1").Suspend))
			if at == "Suspend" {
				vanish()
			}
			w.hook = func(op, _ string) error {
				if op == at {
					w.mu.Lock()
					defer w.mu.Unlock()
					vanish()
				}
				return nil
			}
			require.NoError(t, first(w.roller("node1").Flip))
			require.NoError(t, first(w.roller("node1").Verify))
			w.hook = nil
			w.intact()
			require.NoError(t, w.all(w.roller("node2")))
		})
	}
	t.Run("with an actor on it", func(t *testing.T) {
		w := newWorld(t)
		ref := w.run("a", "node1")
		require.NoError(t, first(w.roller("node1").Drain))
		delete(w.nodes, "node1")
		w.crash(w.actors[ref])
		for _, do := range []func(*Roller, context.Context) (Result, error){(*Roller).Verify} {
			_, err := do(w.roller("node1"), context.Background())
			stopOf(t, err, ExitLost)
		}
	})
}

func TestWaitingStepTalks(t *testing.T) {
	w := newWorld(t)
	w.ateletAfter = time.Minute
	require.NoError(t, w.all(w.roller("node1")))
	var lines []string
	for _, s := range w.said {
		if strings.Contains(s, "waiting for the new atelet") {
			lines = append(lines, s)
		}
	}
	require.Greater(t, len(lines), 8, "a line every few seconds")
	require.Contains(t, lines[3], "the old atelet is still there")
}

func TestOptionsThatCannotBe(t *testing.T) {
	w := newWorld(t)
	good := Options{Node: "n", From: "v1", To: "v2", Roll: me}
	for want, spoil := range map[string]func(*Options){
		"--node":            func(o *Options) { o.Node = "" },
		"--from and --to":   func(o *Options) { o.From = "" },
		"nothing to roll":   func(o *Options) { o.To = "v1" },
		"--roll":            func(o *Options) { o.Roll = roll.Holder{} },
		"want auto or wait": func(o *Options) { o.Mode = "maybe" },
	} {
		o := good
		spoil(&o)
		_, err := New(w, w, w, w, o)
		require.ErrorContains(t, err, want)
	}
}

func TestUnreadableStampStops(t *testing.T) {
	w := newWorld(t)
	w.nodes["node1"].Annotations[roll.StampAnnotation] = "{"
	err := first(w.roller("node1").Drain)
	require.ErrorContains(t, err, "node1")
	require.ErrorContains(t, err, roll.StampAnnotation)
}

func TestPodTrouble(t *testing.T) {
	for want, p := range map[string]corev1.Pod{
		"ErrImagePull no such image": {Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such\nimage"}}}}}},
		"Unschedulable ports taken":  {Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "ports taken"}}}},
		"running, but its readiness": {Status: corev1.PodStatus{Phase: corev1.PodRunning}},
	} {
		p.ObjectMeta = metav1.ObjectMeta{Name: "p"}
		require.Contains(t, podTrouble(&p), want)
	}
}

func first(do func(context.Context) (Result, error)) error {
	_, err := do(context.Background())
	return err
}

func index(in []string, s string) int {
	for i, v := range in {
		if v == s {
			return i
		}
	}
	return -1
}
