// Package sim simulates the control plane of Agent Substrate: actors and workers, the Control API in several generations,
// and its error codes, leases and delays. It is honest: what its data plane loses is lost.
package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// States of an actor, without the prefix that the API puts before them.
const (
	Resuming   = "RESUMING"
	Running    = "RUNNING"
	Suspending = "SUSPENDING"
	Suspended  = "SUSPENDED"
	Pausing    = "PAUSING"
	Paused     = "PAUSED"
	Crashed    = "CRASHED"
)

// States of a worker.
const (
	Active   = "ACTIVE"
	Draining = "DRAINING"
)

// Actor is the record of an actor.
type Actor struct {
	Atespace, Name, UID string
	Version             int64
	State               string
	Class               string            // sandbox class that it needs; "" is any
	Selector            map[string]string // labels that its worker must carry
	Worker              string            // name of the worker it is bound to
	SnapshotNodes       []string          // of its local snapshot; a resume does not clear it
	AssignedNode        string            // cleared by suspend, revert and crash, kept while it is paused
	DataOnly            bool              // its pause keeps data only, while its template commits in full
	Snapshot            []byte            // the external one, as uploaded last
	CrashMessage        string
}

// Key is the actor's atespace/name.
func (a *Actor) Key() string { return a.Atespace + "/" + a.Name }

// Worker is the record of a worker.
type Worker struct {
	Name                         string // the UID of its pod
	Namespace, Pool, Pod, PodUID string
	Node, IP, Class              string
	Labels                       map[string]string
	State                        string
	Capacity                     int32
	Version                      int64
}

// Plane is where actors really run. An error that wraps ErrNoAtelet or ErrUnavailable leaves an actor where it is; any other
// costs its state, as in the real one.
type Plane interface {
	// Start boots an actor on a worker: from state, or from the local snapshot of the worker's node when local is set.
	Start(ctx context.Context, w Worker, actor string, state []byte, local bool) error
	// Checkpoint copies an actor's state out of its worker and stops it there.
	Checkpoint(ctx context.Context, w Worker, actor string) ([]byte, error)
	// Pause copies an actor's state to the disk of the worker's node and stops it.
	Pause(ctx context.Context, w Worker, actor string) error
	// Upload returns the local snapshot of an actor on a node.
	Upload(ctx context.Context, node, actor string) ([]byte, error)
	// Peek reads the state of a running actor without stopping it.
	Peek(ctx context.Context, w Worker, actor string) ([]byte, error)
	// PeekLocal reads a local snapshot without removing it.
	PeekLocal(ctx context.Context, node, actor string) ([]byte, error)
}

// Errors of a Plane that an actor survives.
var (
	ErrNoAtelet    = errors.New("no atelet on the node")
	ErrUnavailable = errors.New("atelet unavailable")
)

// Options of a Store.
type Options struct {
	// SuspendTime is how long a suspend takes at least.
	SuspendTime time.Duration
	// File, when set, keeps the records over a restart.
	File string
}

// Store holds the records and does what the API promises with them.
type Store struct {
	plane Plane
	o     Options

	mu      sync.Mutex
	Actors  map[string]*Actor
	Workers map[string]*Worker
	busy    map[string]bool // actors under the lease of an operation
	serial  int64
	faults  []*Fault
	calls   []Call
}

// Call is one call as the server saw it.
type Call struct {
	Method, Object, Code string
	At                   time.Time
}

// Fault makes the server misbehave. It is used up after Times matches; 0 is for ever.
type Fault struct {
	Method string // of the Control API; "" is every one
	Object string // actor as atespace/name, or worker name; "" is every one
	Times  int
	// Code is the gRPC code that is answered, by name ("Unavailable"). After does the work first and loses the answer.
	Code  string
	After bool
	// Stall leaves an actor that is to be suspended in SUSPENDING and answers with Code.
	Stall bool
	// Delay passes before the call is handled.
	Delay time.Duration
	// Hide leaves Object out of the answers of list methods.
	Hide bool
	// State overrides the state that is shown for Object.
	State string
	// Node and Land: once every worker of Node is drained, the actor Land is put on a worker of that node, as a resume that
	// had chosen its worker before the drain.
	Node, Land string
}

// NewStore makes a Store over a data plane, with the records in its file if there are any.
func NewStore(plane Plane, o Options) (*Store, error) {
	s := &Store{plane: plane, o: o, Actors: map[string]*Actor{}, Workers: map[string]*Worker{}, busy: map[string]bool{}}
	if o.File == "" {
		return s, nil
	}
	b, err := os.ReadFile(o.File)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the records: %w", err)
	}
	return s, nil
}

// save writes the records; the lock is held.
func (s *Store) save() {
	s.serial++
	if s.o.File == "" {
		return
	}
	b, err := json.Marshal(s)
	if err == nil {
		tmp := s.o.File + ".new"
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, s.o.File)
		}
	}
	if err != nil { // a control plane that cannot keep its records must not go on
		panic(fmt.Sprintf("writing the records: %v", err))
	}
}

// AddFault switches a fault on.
func (s *Store) AddFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = -1
	}
	s.faults = append(s.faults, &f)
}

// ClearFaults switches all faults off.
func (s *Store) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// take finds a fault that matches and uses it up once; the lock is held.
func (s *Store) take(match func(*Fault) bool) *Fault {
	for i, f := range s.faults {
		if !match(f) {
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				s.faults = slices.Delete(s.faults, i, i+1)
			}
		}
		c := *f
		return &c
	}
	return nil
}

// Calls returns what was called so far.
func (s *Store) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *Store) record(method, object string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, Call{Method: method, Object: object, Code: status.Code(err).String(), At: time.Now()})
}

// lease takes the lease of an actor's operations.
func (s *Store) lease(key string) (*Actor, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.Actors[key]
	if a == nil {
		return nil, nil, status.Errorf(codes.NotFound, "actor %s not found", key)
	}
	if s.busy[key] {
		return nil, nil, status.Error(codes.Aborted, "another operation is in progress for this actor")
	}
	s.busy[key] = true
	return a, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, key)
	}, nil
}

// with runs fn under the lock and writes the records.
func (s *Store) with(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	s.save()
}

// copyOf returns a copy of an actor's record.
func (s *Store) copyOf(a *Actor) Actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *a
}

func (s *Store) crash(a *Actor, why string) {
	s.with(func() {
		a.State, a.Worker, a.AssignedNode, a.CrashMessage = Crashed, "", "", why
		a.Version++
	})
}

// CreateActor adds a suspended actor that has never run.
func (s *Store) CreateActor(a Actor) (Actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Name == "" || a.Atespace == "" {
		return a, status.Error(codes.InvalidArgument, "an actor needs an atespace and a name")
	}
	if s.Actors[a.Key()] != nil {
		return a, status.Errorf(codes.AlreadyExists, "actor %s exists", a.Key())
	}
	a.UID = fmt.Sprintf("actor-%d-%d", time.Now().UnixNano(), len(s.Actors))
	a.State, a.Version = Suspended, 1
	s.Actors[a.Key()] = &a
	s.save()
	return a, nil
}

// DeleteActor removes a suspended actor, or any with anyState.
func (s *Store) DeleteActor(key string, anyState bool) (Actor, error) {
	a, release, err := s.lease(key)
	if err != nil {
		return Actor{}, err
	}
	defer release()
	c := s.copyOf(a)
	if c.State != Suspended && !anyState {
		return c, status.Errorf(codes.FailedPrecondition, "actor %s is %s", key, c.State)
	}
	s.with(func() { delete(s.Actors, key) })
	return c, nil
}

// Suspend moves an actor's state to the external store.
func (s *Store) Suspend(ctx context.Context, key string) (Actor, error) {
	a, release, err := s.lease(key)
	if err != nil {
		return Actor{}, err
	}
	defer release()
	switch c := s.copyOf(a); c.State {
	case Suspended:
		return c, nil
	case Running, Suspending:
	case Paused:
		if c.DataOnly {
			return c, status.Error(codes.FailedPrecondition, "the local snapshot holds DATA and the template commits FULL")
		}
	default:
		return c, status.Errorf(codes.FailedPrecondition, "MarkSuspending prerequisite not met: actor is %s, want RUNNING, PAUSED, SUSPENDED or SUSPENDING", c.State)
	}
	s.with(func() { a.State = Suspending; a.Version++ })
	s.mu.Lock()
	stall := s.take(func(f *Fault) bool { return f.Stall && (f.Object == "" || f.Object == key) })
	s.mu.Unlock()
	if stall != nil {
		return s.copyOf(a), status.Error(code(stall.Code), "the workflow was interrupted")
	}
	select {
	case <-ctx.Done():
		return s.copyOf(a), status.FromContextError(ctx.Err()).Err()
	case <-time.After(s.o.SuspendTime):
	}
	c := s.copyOf(a)
	var state []byte
	switch {
	case c.Worker != "":
		w, ok := s.worker(c.Worker)
		if !ok {
			s.crash(a, "its worker is gone")
			return s.copyOf(a), status.Error(codes.Internal, "the worker of the actor is gone")
		}
		state, err = s.plane.Checkpoint(ctx, w, key)
	case len(c.SnapshotNodes) > 0 && c.SnapshotNodes[0] != "":
		state, err = s.plane.Upload(ctx, c.SnapshotNodes[0], key)
	default:
		s.crash(a, "suspending without a worker and without a local snapshot")
		return s.copyOf(a), status.Error(codes.Internal, "nothing to suspend from")
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrNoAtelet):
		return s.copyOf(a), status.Error(codes.Unknown, err.Error())
	case errors.Is(err, ErrUnavailable), ctx.Err() != nil:
		return s.copyOf(a), status.Error(codes.Unavailable, err.Error())
	default:
		s.crash(a, err.Error())
		return s.copyOf(a), status.Errorf(codes.Internal, "checkpoint failed: %v", err)
	}
	s.with(func() {
		a.State, a.Worker, a.AssignedNode, a.Snapshot = Suspended, "", "", state
		a.Version++
	})
	return s.copyOf(a), nil
}

// Pause moves an actor's state to the disk of its node.
func (s *Store) Pause(ctx context.Context, key string) (Actor, error) {
	a, release, err := s.lease(key)
	if err != nil {
		return Actor{}, err
	}
	defer release()
	c := s.copyOf(a)
	switch c.State {
	case Paused:
		return c, nil
	case Running, Pausing:
	default:
		return c, status.Errorf(codes.FailedPrecondition, "actor is %s, want RUNNING", c.State)
	}
	w, ok := s.worker(c.Worker)
	if !ok {
		s.crash(a, "its worker is gone")
		return s.copyOf(a), status.Error(codes.Internal, "the worker of the actor is gone")
	}
	s.with(func() { a.State = Pausing; a.Version++ })
	if err := s.plane.Pause(ctx, w, key); err != nil {
		if errors.Is(err, ErrNoAtelet) || errors.Is(err, ErrUnavailable) {
			return s.copyOf(a), status.Error(codes.Unavailable, err.Error())
		}
		s.crash(a, err.Error())
		return s.copyOf(a), status.Error(codes.Internal, err.Error())
	}
	s.with(func() {
		a.State, a.Worker, a.AssignedNode, a.SnapshotNodes = Paused, "", w.Node, []string{w.Node}
		a.Version++
	})
	return s.copyOf(a), nil
}

// Resume puts an actor on a free worker that matches it, picked at random among the ACTIVE ones.
func (s *Store) Resume(ctx context.Context, key string) (Actor, bool, error) {
	return s.resume(ctx, key, func(w *Worker) bool { return w.State == Active })
}

// Land puts a suspended actor on a worker of the node, DRAINING or not: what a resume does that had chosen its worker
// before the drain.
func (s *Store) Land(ctx context.Context, key, node string) (Actor, error) {
	a, _, err := s.resume(ctx, key, func(w *Worker) bool { return w.Node == node })
	return a, err
}

func (s *Store) resume(ctx context.Context, key string, may func(*Worker) bool) (Actor, bool, error) {
	a, release, err := s.lease(key)
	if err != nil {
		return Actor{}, false, err
	}
	defer release()
	c := s.copyOf(a)
	switch c.State {
	case Running:
		return c, false, nil
	case Suspended, Paused:
	case Resuming:
		if w, ok := s.worker(c.Worker); ok && w.State == Draining {
			s.crash(a, "assigned worker is draining")
			return s.copyOf(a), false, status.Error(codes.Aborted, "assigned worker is draining")
		}
	default:
		return c, false, status.Errorf(codes.FailedPrecondition, "AssignWorker prerequisite not met: actor is %s", c.State)
	}
	var w Worker
	found := false
	s.with(func() {
		if c.State == Resuming && c.Worker != "" {
			if p := s.Workers[c.Worker]; p != nil {
				w, found = *p, true
			}
			return
		}
		var fit []*Worker
		for _, p := range s.Workers {
			if may(p) && s.load(p.Name) < p.Capacity && fits(c, p) && (c.State != Paused || slices.Contains(c.SnapshotNodes, p.Node)) {
				fit = append(fit, p)
			}
		}
		if len(fit) > 0 {
			w, found = *fit[rand.IntN(len(fit))], true
			a.State, a.Worker = Resuming, w.Name
			a.Version++
		}
	})
	if !found {
		return s.copyOf(a), false, status.Error(codes.ResourceExhausted, "no free workers available")
	}
	if err := s.plane.Start(ctx, w, key, c.Snapshot, c.State == Paused); err != nil {
		if errors.Is(err, ErrNoAtelet) || errors.Is(err, ErrUnavailable) {
			s.with(func() { a.State, a.Worker = c.State, "" })
			return s.copyOf(a), false, status.Error(codes.Unavailable, err.Error())
		}
		s.crash(a, err.Error())
		return s.copyOf(a), false, status.Error(codes.Aborted, err.Error())
	}
	gone := false
	s.with(func() {
		if a.Worker != w.Name { // its worker went away while it started
			gone = true
			return
		}
		a.State, a.AssignedNode = Running, w.Node
		a.Version++
	})
	if gone {
		return s.copyOf(a), false, status.Error(codes.Aborted, "the assigned worker went away")
	}
	return s.copyOf(a), true, nil
}

// Revert gives an actor up to its last external snapshot.
func (s *Store) Revert(key string) (Actor, error) {
	a, release, err := s.lease(key)
	if err != nil {
		return Actor{}, err
	}
	defer release()
	c := s.copyOf(a)
	switch c.State {
	case Running, Paused, Crashed:
	default:
		return c, status.Errorf(codes.FailedPrecondition, "actor is %s", c.State)
	}
	s.with(func() {
		a.State, a.Worker, a.AssignedNode, a.SnapshotNodes = Suspended, "", "", nil
		a.Version++
	})
	return s.copyOf(a), nil
}

func fits(a Actor, w *Worker) bool {
	if a.Class != "" && a.Class != w.Class {
		return false
	}
	for k, v := range a.Selector {
		if w.Labels[k] != v {
			return false
		}
	}
	return true
}

// load counts the actors of a worker; the lock is held.
func (s *Store) load(worker string) int32 {
	var n int32
	for _, a := range s.Actors {
		if a.Worker == worker {
			n++
		}
	}
	return n
}

func (s *Store) worker(name string) (Worker, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.Workers[name]; w != nil {
		return *w, true
	}
	return Worker{}, false
}

// Register adds a worker, or brings what may change of one up to date. A worker that is there keeps its state.
func (s *Store) Register(w Worker) {
	s.with(func() {
		if have := s.Workers[w.Name]; have != nil {
			have.Labels, have.IP = w.Labels, w.IP
			return
		}
		if w.Capacity == 0 {
			w.Capacity = 1
		}
		w.State, w.Version = Active, 1
		s.Workers[w.Name] = &w
	})
}

// Drain takes a worker out of service for new actors.
func (s *Store) Drain(name string) (Worker, error) {
	w, err := func() (Worker, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := s.Workers[name]
		switch {
		case name == "":
			return Worker{}, status.Error(codes.InvalidArgument, "a worker's name is required")
		case w == nil:
			return Worker{}, status.Errorf(codes.NotFound, "worker %s not found", name)
		case w.State != Draining:
			w.State = Draining
			w.Version++
			s.save()
		}
		return *w, nil
	}()
	if err != nil {
		return w, err
	}
	s.mu.Lock()
	all := true
	for _, other := range s.Workers {
		all = all && (other.Node != w.Node || other.State == Draining)
	}
	var land *Fault
	if all {
		land = s.take(func(f *Fault) bool { return f.Land != "" && f.Node == w.Node })
	}
	s.mu.Unlock()
	if land != nil {
		if _, err := s.Land(context.Background(), land.Land, land.Node); err != nil {
			return w, status.Errorf(codes.Internal, "landing %s on %s: %v", land.Land, land.Node, err)
		}
	}
	return w, nil
}

// DeleteWorker removes the record of a worker whose pod is gone. The actors on it are lost.
func (s *Store) DeleteWorker(name string) {
	s.with(func() {
		for _, a := range s.Actors {
			if a.Worker == name && a.State != Suspended {
				a.State, a.Worker, a.AssignedNode, a.CrashMessage = Crashed, "", "", "worker pod went away"
				a.Version++
			}
		}
		delete(s.Workers, name)
	})
}

// Snapshot returns copies of all records, in the order of their names.
func (s *Store) Snapshot() (actors []Actor, workers []Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(s.Actors)) {
		actors = append(actors, *s.Actors[k])
	}
	for _, k := range slices.Sorted(maps.Keys(s.Workers)) {
		workers = append(workers, *s.Workers[k])
	}
	return actors, workers
}

// Reset forgets everything.
func (s *Store) Reset() {
	s.with(func() {
		s.Actors, s.Workers, s.busy = map[string]*Actor{}, map[string]*Worker{}, map[string]bool{}
		s.faults, s.calls = nil, nil
	})
}

// State is what an actor keeps in memory.
type State struct {
	Identity string `json:"identity"` // chosen when it first boots
	Counter  int64  `json:"counter"`  // moves by itself while it runs
}

// Where says what is known of an actor's own state, and where it was read.
type Where struct {
	Actor    string `json:"actor"`
	State    string `json:"state"`
	Node     string `json:"node,omitempty"`
	Pool     string `json:"pool,omitempty"`
	Identity string `json:"identity,omitempty"`
	Counter  int64  `json:"counter"`
	Error    string `json:"error,omitempty"`
}

// Look reads every actor's own state from where it is now.
func (s *Store) Look(ctx context.Context) []Where {
	actors, _ := s.Snapshot()
	out := make([]Where, 0, len(actors))
	for _, a := range actors {
		w := Where{Actor: a.Key(), State: a.State}
		var raw []byte
		var err error
		switch {
		case a.Worker != "":
			wk, ok := s.worker(a.Worker)
			if !ok {
				err = fmt.Errorf("its worker %s is gone", a.Worker)
				break
			}
			w.Node, w.Pool = wk.Node, wk.Pool
			raw, err = s.plane.Peek(ctx, wk, a.Key())
		case a.State == Paused && len(a.SnapshotNodes) > 0:
			w.Node = a.SnapshotNodes[0]
			raw, err = s.plane.PeekLocal(ctx, w.Node, a.Key())
		case a.State == Crashed:
			err = errors.New(a.CrashMessage)
		default:
			raw = a.Snapshot
		}
		var st State
		if err == nil && len(raw) > 0 {
			err = json.Unmarshal(raw, &st)
		}
		w.Identity, w.Counter = st.Identity, st.Counter
		if err != nil {
			w.Error = err.Error()
		}
		out = append(out, w)
	}
	return out
}

// code finds a gRPC code by its name.
func code(name string) codes.Code {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if strings.EqualFold(c.String(), name) {
			return c
		}
	}
	return codes.Unavailable
}
