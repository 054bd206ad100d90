package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Tick is how often a running actor's counter moves.
const Tick = 200 * time.Millisecond

// Box is the memory of one worker process: the actors in it, each with a counter that moves.
type Box struct {
	mu     sync.Mutex
	actors map[string]*running
}

type running struct {
	State
	stop chan struct{}
}

// NewBox makes an empty one.
func NewBox() *Box { return &Box{actors: map[string]*running{}} }

// Start boots an actor from a state, or afresh when that is empty.
func (b *Box) Start(actor string, state []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.actors[actor] != nil {
		return fmt.Errorf("actor %s runs here already", actor)
	}
	r := &running{stop: make(chan struct{})}
	if len(state) == 0 {
		r.Identity = fmt.Sprintf("%08x", rand.Uint32())
	} else if err := json.Unmarshal(state, &r.State); err != nil {
		return fmt.Errorf("reading the snapshot of actor %s: %w", actor, err)
	}
	b.actors[actor] = r
	go func() {
		t := time.NewTicker(Tick)
		defer t.Stop()
		for {
			select {
			case <-r.stop:
				return
			case <-t.C:
				b.mu.Lock()
				r.Counter++
				b.mu.Unlock()
			}
		}
	}()
	return nil
}

// Peek reads an actor's state.
func (b *Box) Peek(actor string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.actors[actor]
	if r == nil {
		return nil, fmt.Errorf("actor %s does not run here", actor)
	}
	return json.Marshal(r.State)
}

// Checkpoint reads an actor's state and stops it.
func (b *Box) Checkpoint(actor string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.actors[actor]
	if r == nil {
		return nil, fmt.Errorf("actor %s does not run here", actor)
	}
	close(r.stop)
	delete(b.actors, actor)
	return json.Marshal(r.State)
}

// Len counts the actors in it.
func (b *Box) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.actors)
}

// Close ends the process: what was in it is gone.
func (b *Box) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.actors {
		close(r.stop)
	}
	b.actors = map[string]*running{}
}

// Memory is a data plane without a cluster: boxes by worker name, atelets by node.
type Memory struct {
	mu      sync.Mutex
	boxes   map[string]*Box
	atelets map[string]string            // node -> version of the atelet there, "" for none
	local   map[string]map[string][2]any // node -> actor -> state, version that wrote it
}

// NewMemory makes an empty one.
func NewMemory() *Memory {
	return &Memory{boxes: map[string]*Box{}, atelets: map[string]string{}, local: map[string]map[string][2]any{}}
}

// SetAtelet puts an atelet of a version on a node; "" takes it away.
func (m *Memory) SetAtelet(node, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.atelets[node] = version
}

// Kill ends the process of a worker.
func (m *Memory) Kill(worker string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[worker]; b != nil {
		b.Close()
		delete(m.boxes, worker)
	}
}

// at returns the box of a worker and the version of its node's atelet.
func (m *Memory) at(w Worker) (*Box, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.atelets[w.Node]
	if v == "" {
		return nil, "", fmt.Errorf("node %s: %w", w.Node, ErrNoAtelet)
	}
	b := m.boxes[w.Name]
	if b == nil {
		b = NewBox()
		m.boxes[w.Name] = b
	}
	return b, v, nil
}

// Start implements Plane.
func (m *Memory) Start(ctx context.Context, w Worker, actor string, state []byte, local bool) error {
	b, _, err := m.at(w)
	if err != nil {
		return err
	}
	if local {
		if state, err = m.Upload(ctx, w.Node, actor); err != nil {
			return err
		}
	}
	return b.Start(actor, state)
}

// Checkpoint implements Plane.
func (m *Memory) Checkpoint(_ context.Context, w Worker, actor string) ([]byte, error) {
	b, _, err := m.at(w)
	if err != nil {
		return nil, err
	}
	return b.Checkpoint(actor)
}

// Pause implements Plane.
func (m *Memory) Pause(_ context.Context, w Worker, actor string) error {
	b, version, err := m.at(w)
	if err != nil {
		return err
	}
	state, err := b.Checkpoint(actor)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.local[w.Node] == nil {
		m.local[w.Node] = map[string][2]any{}
	}
	m.local[w.Node][actor] = [2]any{state, version}
	return nil
}

// Upload implements Plane: only an atelet of the version that wrote a local snapshot reads it.
func (m *Memory) Upload(_ context.Context, node, actor string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.atelets[node]
	if have == "" {
		return nil, fmt.Errorf("node %s: %w", node, ErrNoAtelet)
	}
	s, ok := m.local[node][actor]
	if !ok {
		return nil, fmt.Errorf("node %s has no local snapshot of actor %s", node, actor)
	}
	if s[1] != have {
		return nil, fmt.Errorf("the local snapshot of actor %s was written by atelet %s, this is %s", actor, s[1], have)
	}
	return s[0].([]byte), nil
}

// Peek implements Plane.
func (m *Memory) Peek(_ context.Context, w Worker, actor string) ([]byte, error) {
	m.mu.Lock()
	b := m.boxes[w.Name]
	m.mu.Unlock()
	if b == nil {
		return nil, fmt.Errorf("worker %s does not run", w.Name)
	}
	return b.Peek(actor)
}

// PeekLocal implements Plane.
func (m *Memory) PeekLocal(_ context.Context, node, actor string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.local[node][actor]
	if !ok {
		return nil, fmt.Errorf("node %s has no local snapshot of actor %s", node, actor)
	}
	return s[0].([]byte), nil
}
