package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/atewf/atewf/test/substrate/sim"
)

// AdminPort is where the control plane takes faults and stimuli, inside the cluster only.
const AdminPort = 8081

// Admin serves what a test and the controller need of a Store and the API does not give: one function per path.
func Admin(store *sim.Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /look", func(w http.ResponseWriter, r *http.Request) { reply(w, store.Look(r.Context()), nil) })
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, _ *http.Request) {
		a, k := store.Snapshot()
		reply(w, Records{Actors: a, Workers: k}, nil)
	})
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) { reply(w, store.Calls(), nil) })
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) { store.ClearFaults(); reply(w, struct{}{}, nil) })
	mux.HandleFunc("DELETE /all", func(w http.ResponseWriter, _ *http.Request) { store.Reset(); reply(w, struct{}{}, nil) })
	post(mux, "/faults", func(_ context.Context, f sim.Fault) (any, error) { store.AddFault(f); return struct{}{}, nil })
	post(mux, "/actors", func(_ context.Context, a sim.Actor) (any, error) { return store.CreateActor(a) })
	post(mux, "/suspend", func(ctx context.Context, a Act) (any, error) { return store.Suspend(ctx, a.Actor) })
	post(mux, "/pause", func(ctx context.Context, a Act) (any, error) { return store.Pause(ctx, a.Actor) })
	post(mux, "/resume", func(ctx context.Context, a Act) (any, error) {
		if a.Node != "" {
			return store.Land(ctx, a.Actor, a.Node)
		}
		got, _, err := store.Resume(ctx, a.Actor)
		return got, err
	})
	post(mux, "/workers", func(_ context.Context, w sim.Worker) (any, error) { store.Register(w); return struct{}{}, nil })
	post(mux, "/workers/drain", func(_ context.Context, w sim.Worker) (any, error) { return store.Drain(w.Name) })
	post(mux, "/workers/delete", func(_ context.Context, w sim.Worker) (any, error) {
		store.DeleteWorker(w.Name)
		return struct{}{}, nil
	})
	return mux
}

// Records are all actors and workers.
type Records struct {
	Actors  []sim.Actor
	Workers []sim.Worker
}

// Act names an actor, and for a resume the node that it must land on, DRAINING workers included.
type Act struct{ Actor, Node string }

func post[T any](mux *http.ServeMux, path string, do func(context.Context, T) (any, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in T
		err := json.NewDecoder(r.Body).Decode(&in)
		if err != nil {
			reply(w, nil, err)
			return
		}
		out, err := do(r.Context(), in)
		reply(w, out, err)
	})
}

func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the caller went away
}

// Client talks to an Admin.
type Client struct{ URL string }

// Do calls a path and reads the answer into out, which may be nil.
func (c Client) Do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, bytes.TrimSpace(buf.Bytes()))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(buf.Bytes(), out)
}

// Workers implements Registry.
func (c Client) Workers(ctx context.Context) ([]sim.Worker, error) {
	var r Records
	err := c.Do(ctx, http.MethodGet, "/records", nil, &r)
	return r.Workers, err
}

// Register implements Registry.
func (c Client) Register(ctx context.Context, w sim.Worker) error {
	return c.Do(ctx, http.MethodPost, "/workers", w, nil)
}

// Drain implements Registry.
func (c Client) Drain(ctx context.Context, name string) error {
	return c.Do(ctx, http.MethodPost, "/workers/drain", sim.Worker{Name: name}, nil)
}

// Delete implements Registry.
func (c Client) Delete(ctx context.Context, name string) error {
	return c.Do(ctx, http.MethodPost, "/workers/delete", sim.Worker{Name: name}, nil)
}

// Look reads every actor's own state.
func (c Client) Look(ctx context.Context) ([]sim.Where, error) {
	var out []sim.Where
	err := c.Do(ctx, http.MethodGet, "/look", nil, &out)
	return out, err
}
