package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/atewf/atewf/steps-image/steps"
)

// step runs the command line as the pod would, against an API server that is a handler.
func step(t testing.TB, h http.Handler, args ...string) (code int, out, dir string) {
	t.Helper()
	dir = t.TempDir()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	full := append(args, arguments(t, dir, srv.URL)...)
	var b bytes.Buffer
	code = run(context.Background(), full, &b, &b)
	return code, b.String(), dir
}

// arguments are those that every step gets here, with the files that they name.
func arguments(t testing.TB, dir, url string) []string {
	t.Helper()
	files := map[string]string{
		"ca": "no certificate", "token": "t", "log": "",
		"kubeconfig": fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", url),
	}
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return []string{"--ca-file", filepath.Join(dir, "ca"), "--token-file", filepath.Join(dir, "token"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--output-dir", dir, "--termination-log", filepath.Join(dir, "log")}
}

func gone(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"nodes \"n\" not found"}`)
}

func TestStepOnANodeThatIsGone(t *testing.T) {
	for _, name := range []string{"drain", "suspend", "flip"} {
		code, out, dir := step(t, http.HandlerFunc(gone), name, "--node", "n", "--from", "v1", "--to", "v2", "--roll", "ns/wf/uid")
		require.Equal(t, steps.ExitOK, code, out)
		summary, err := os.ReadFile(filepath.Join(dir, "summary"))
		require.NoError(t, err)
		require.Contains(t, string(summary), "does not exist any more")
		message, err := os.ReadFile(filepath.Join(dir, "log"))
		require.NoError(t, err)
		require.Equal(t, summary, message)
	}
}

func TestFailureIsLeftWhereArgoFindsIt(t *testing.T) {
	forbidden := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"may not read {{nodes}}\u001b[31m"}`)
	}
	code, out, dir := step(t, http.HandlerFunc(forbidden), "drain", "--node", "n", "--from", "v1", "--to", "v2", "--roll", "ns/wf/uid")
	require.Equal(t, steps.ExitError, code)
	require.Contains(t, out, "error: reading node n")
	message, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Contains(t, string(message), "may not read")
	require.NotContains(t, string(message), "{{", "Argo would take it for a tag")
	require.NotContains(t, string(message), "\x1b")
}

func TestBadCommandLine(t *testing.T) {
	for want, args := range map[string][]string{
		"no step given":     {},
		"unknown command":   {"undrain"},
		"unknown flag":      {"drain", "--force"},
		"does not name":     {"drain", "--node", "n", "--from", "v1", "--to", "v2", "--roll", "wf"},
		"nothing to roll":   {"flip", "--node", "n", "--from", "v1", "--to", "v1", "--roll", "ns/wf/uid"},
		"want auto or wait": {"suspend", "--suspend", "maybe", "--node", "n", "--from", "v1", "--to", "v2", "--roll", "ns/wf/uid"},
	} {
		t.Run(want, func(t *testing.T) {
			var b bytes.Buffer
			var code int
			if len(args) < 2 || args[0] == "drain" && args[1] == "--force" {
				code = run(context.Background(), args, &b, &b)
			} else {
				var out string
				code, out, _ = step(t, http.HandlerFunc(gone), args...)
				b.WriteString(out)
			}
			require.Contains(t, b.String(), want)
			require.Equal(t, steps.ExitUsage, code)
		})
	}
}

func TestProgressFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "progress")
	r := newReporter(&bytes.Buffer{}, file)
	r.Progress(0, 0) // Argo refuses a total of nothing
	require.NoFileExists(t, file)
	r.Progress(3, 8)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "3/8", string(b))
}

func TestReporterSpeaksWhileWorkGoesOn(t *testing.T) {
	var b bytes.Buffer
	r := newReporter(&b, "")
	said := make(chan struct{}, 100)
	stop := r.While(time.Millisecond, func() string { said <- struct{}{}; return "two\nlines" })
	<-said
	stop()
	require.Contains(t, b.String(), "two lines\n")
}

// BenchmarkStartToFirstRequest measures a step from its start as a process to its first request to the API server, and
// the size of the binary as it is in the image.
func BenchmarkStartToFirstRequest(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "atewf-steps")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	st, err := os.Stat(bin)
	require.NoError(b, err)
	asked := make(chan time.Time, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- time.Now()
		gone(w, r)
	}))
	defer srv.Close()
	dir := b.TempDir()
	args := append(strings.Fields("drain --node n --from v1 --to v2 --roll ns/wf/uid"), arguments(b, dir, srv.URL)...)
	var sum time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		sum += (<-asked).Sub(start)
		n++
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(n)/1000, "ms/first-request")
	b.ReportMetric(float64(st.Size())/1e6, "MB/binary")
}
