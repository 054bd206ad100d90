// Package plane is the data plane of the simulated Substrate on a real cluster: workers that keep actors in the memory of
// their process, and atelets that carry state between a worker, the disk of its node, and the control plane.
package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/atewf/atewf/test/substrate/sim"
)

// Ports of a worker and of an atelet.
const (
	WorkerPort      = 8080
	AteletPort      = 8085
	AteletReadyPort = 9090
)

// Worker serves the actors of one worker process, which live in the box.
func Worker(box *sim.Box) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /start", func(w http.ResponseWriter, r *http.Request) {
		state, err := io.ReadAll(r.Body)
		if err == nil {
			err = box.Start(r.FormValue("actor"), state)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("POST /checkpoint", func(w http.ResponseWriter, r *http.Request) {
		b, err := box.Checkpoint(r.FormValue("actor"))
		answer(w, b, err)
	})
	mux.HandleFunc("GET /peek", func(w http.ResponseWriter, r *http.Request) {
		b, err := box.Peek(r.FormValue("actor"))
		answer(w, b, err)
	})
	return mux
}

func answer(w http.ResponseWriter, b []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_, _ = w.Write(b) // the caller went away
}

// local is a local snapshot as it lies on the disk of a node.
type local struct {
	Version string
	State   []byte
}

// Atelet serves a node: it talks to the workers there and keeps local snapshots in a directory. It reads only what an atelet
// of its own version wrote.
func Atelet(version, dir string) http.Handler {
	file := func(actor string) string { return filepath.Join(dir, url.PathEscape(actor)+".json") }
	read := func(actor string, foreign bool) ([]byte, error) {
		b, err := os.ReadFile(file(actor))
		if err != nil {
			return nil, err
		}
		var l local
		if err := json.Unmarshal(b, &l); err != nil {
			return nil, err
		}
		if l.Version != version && !foreign {
			return nil, fmt.Errorf("the local snapshot of actor %s was written by atelet %s, this is %s", actor, l.Version, version)
		}
		return l.State, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /start", func(w http.ResponseWriter, r *http.Request) {
		actor := r.FormValue("actor")
		state, err := io.ReadAll(r.Body)
		if err == nil && r.FormValue("local") == "true" {
			state, err = read(actor, false)
		}
		if err == nil {
			_, err = call(r.Context(), http.MethodPost, r.FormValue("worker"), "/start", url.Values{"actor": {actor}}, state)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("POST /checkpoint", func(w http.ResponseWriter, r *http.Request) {
		b, err := call(r.Context(), http.MethodPost, r.FormValue("worker"), "/checkpoint", url.Values{"actor": {r.FormValue("actor")}}, nil)
		answer(w, b, err)
	})
	mux.HandleFunc("POST /pause", func(w http.ResponseWriter, r *http.Request) {
		actor := r.FormValue("actor")
		b, err := call(r.Context(), http.MethodPost, r.FormValue("worker"), "/checkpoint", url.Values{"actor": {actor}}, nil)
		if err == nil {
			b, err = json.Marshal(local{Version: version, State: b})
		}
		if err == nil {
			err = os.WriteFile(file(actor), b, 0o600)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		b, err := read(r.FormValue("actor"), false)
		answer(w, b, err)
	})
	mux.HandleFunc("GET /peek", func(w http.ResponseWriter, r *http.Request) {
		b, err := read(r.FormValue("actor"), true)
		answer(w, b, err)
	})
	return mux
}

// Remote implements sim.Plane over the atelets of a cluster.
type Remote struct {
	// Node finds the address of a node.
	Node func(ctx context.Context, name string) (string, error)
}

func (p Remote) atelet(ctx context.Context, node, method, path string, q url.Values, body []byte) ([]byte, error) {
	ip, err := p.Node(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w: %w", node, sim.ErrNoAtelet, err)
	}
	b, err := call(ctx, method, net.JoinHostPort(ip, fmt.Sprint(AteletPort)), path, q, body)
	var ne net.Error
	if errors.As(err, &ne) {
		return nil, fmt.Errorf("node %s: %w: %w", node, sim.ErrNoAtelet, err)
	}
	return b, err
}

func params(w sim.Worker, actor string) url.Values {
	return url.Values{"actor": {actor}, "worker": {net.JoinHostPort(w.IP, fmt.Sprint(WorkerPort))}}
}

// Start implements sim.Plane.
func (p Remote) Start(ctx context.Context, w sim.Worker, actor string, state []byte, fromLocal bool) error {
	q := params(w, actor)
	q.Set("local", fmt.Sprint(fromLocal))
	_, err := p.atelet(ctx, w.Node, http.MethodPost, "/start", q, state)
	return err
}

// Checkpoint implements sim.Plane.
func (p Remote) Checkpoint(ctx context.Context, w sim.Worker, actor string) ([]byte, error) {
	return p.atelet(ctx, w.Node, http.MethodPost, "/checkpoint", params(w, actor), nil)
}

// Pause implements sim.Plane.
func (p Remote) Pause(ctx context.Context, w sim.Worker, actor string) error {
	_, err := p.atelet(ctx, w.Node, http.MethodPost, "/pause", params(w, actor), nil)
	return err
}

// Upload implements sim.Plane.
func (p Remote) Upload(ctx context.Context, node, actor string) ([]byte, error) {
	return p.atelet(ctx, node, http.MethodPost, "/upload", url.Values{"actor": {actor}}, nil)
}

// Peek implements sim.Plane. It asks the worker itself, so that it works whatever the atelet does.
func (p Remote) Peek(ctx context.Context, w sim.Worker, actor string) ([]byte, error) {
	return call(ctx, http.MethodGet, net.JoinHostPort(w.IP, fmt.Sprint(WorkerPort)), "/peek", url.Values{"actor": {actor}}, nil)
}

// PeekLocal implements sim.Plane.
func (p Remote) PeekLocal(ctx context.Context, node, actor string) ([]byte, error) {
	return p.atelet(ctx, node, http.MethodGet, "/peek", url.Values{"actor": {actor}}, nil)
}

// client has no keep-alive: the other end is often replaced, and a dead connection would look like a lost answer.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext}}

func call(ctx context.Context, method, addr, path string, q url.Values, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path+"?"+q.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", path, resp.Status, bytes.TrimSpace(b))
	}
	return b, nil
}
