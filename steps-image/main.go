// Command atewf-steps runs one step of the roll of one node: drain, suspend, flip or verify. It is what the pods of the
// generated Workflow run; see package steps for what each step promises.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atewf/atewf/internal/build"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
	"github.com/atewf/atewf/steps-image/kube"
	"github.com/atewf/atewf/steps-image/steps"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// flags are the command line of a step, as the step templates give it.
type flags struct {
	steps.Options
	roll, mode             string
	kubeconfig             string
	endpoint, serverName   string
	tokenFile, caFile      string
	acceptFields           []string
	outputDir, termination string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return steps.ExitOK
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	var u usageError
	if errors.As(err, &u) || cmd == root { // the root does nothing but read the command line
		return steps.ExitUsage
	}
	return steps.ExitCode(err)
}

// usageError is an error of the command line.
type usageError struct{ error }

func newRoot(stdout io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "atewf-steps",
		Short: "Run one step of the roll of one node of Agent Substrate",
		Long: `Run one step of the roll of one node of Agent Substrate.

Exit codes: 0 done or nothing to do; 1 error; 2 bad command line; 3 a person must act first; 4 what was waited for did
not come in time; 5 another roll owns the cluster, or another node is open; 6 an actor was lost.`,
		SilenceUsage: true, SilenceErrors: true,
		Version: build.Version(),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("no step given; want drain, suspend, flip or verify")}
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	for _, s := range []struct {
		name, short string
		do          func(*steps.Roller, context.Context) (steps.Result, error)
	}{
		{"drain", "Take the workers of the node out of service for new actors", (*steps.Roller).Drain},
		{"suspend", "Suspend every actor on the node", (*steps.Roller).Suspend},
		{"flip", "Move the node's label, wait for the new atelet, delete the old worker pods", (*steps.Roller).Flip},
		{"verify", "Confirm that the node serves at the new version and the fleet has room", (*steps.Roller).Verify},
	} {
		f := &flags{}
		cmd := &cobra.Command{
			Use: s.name, Short: s.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), s.name, stdout, s.do) },
		}
		f.bind(cmd)
		root.AddCommand(cmd)
	}
	return root
}

func (f *flags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.Node, "node", "", "name of the node")
	fs.StringVar(&f.From, "from", "", "version that the node leaves, as the label "+versions.Label+" carries it")
	fs.StringVar(&f.To, "to", "", "version that the node reaches")
	fs.StringVar(&f.roll, "roll", "", "who rolls: NAMESPACE/WORKFLOW/UID")
	fs.StringVar(&f.Namespace, "substrate-namespace", versions.Namespace, "namespace of Agent Substrate")
	fs.StringVar(&f.endpoint, "endpoint", "api.ate-system.svc:443", "host:port of the Control API")
	fs.StringVar(&f.serverName, "server-name", substrate.ServerName, "name on the certificate of the Control API")
	fs.StringVar(&f.tokenFile, "token-file", "/var/run/secrets/atewf/token", "file with the bearer token, read again before each call")
	fs.StringVar(&f.caFile, "ca-file", "/var/run/secrets/atewf/ca.crt", "file with the authority of the Control API's certificate")
	fs.StringSliceVar(&f.acceptFields, "accept-field", nil, "field of a status, as Message.field, that this version does not know and shall ignore")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; the pod's service account when empty")
	fs.DurationVar(&f.Timeout, "timeout", 0, "when to give up waiting; 0 is the step's default")
	fs.StringVar(&f.outputDir, "output-dir", "", "directory for the files that become output parameters")
	fs.StringVar(&f.termination, "termination-log", "/dev/termination-log", "file for the last message, which Kubernetes and Argo show")
	// Every step takes the flags of all, so that one set of arguments serves each.
	fs.StringVar(&f.mode, "suspend", string(steps.SuspendAuto), "who suspends: auto (the step) or wait (people; the step watches)")
	fs.IntVar(&f.Parallelism, "parallelism", 16, "how many actors to suspend at once")
	fs.DurationVar(&f.AteletTimeout, "atelet-timeout", 10*time.Minute, "how long to wait for the new atelet")
	fs.BoolVar(&f.AllowSingleNode, "allow-single-node", false, "flip even when no other node is Ready")
}

func (f *flags) run(ctx context.Context, name string, stdout io.Writer, do func(*steps.Roller, context.Context) (steps.Result, error)) (err error) {
	out := newReporter(stdout, os.Getenv("ARGO_PROGRESS_FILE"))
	var res steps.Result
	defer func() { err = errors.Join(err, f.leave(res, err)) }()

	holder, err := roll.ParseHolder(f.roll)
	if err != nil {
		return usageError{fmt.Errorf("--roll: %w", err)}
	}
	f.Roll, f.Mode = holder, steps.Mode(f.mode)
	cfg, err := f.restConfig()
	if err != nil {
		return err
	}
	k, err := kube.New(cfg, time.Now)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(f.caFile)
	if err != nil {
		return fmt.Errorf("reading the trust bundle of the control API: %w; the step's pod must project the ClusterTrustBundle of signer %s there", err, substrate.SignerName)
	}
	sub := steps.Lazy(wall{}, out, func(ctx context.Context) (steps.Substrate, error) {
		return substrate.Dial(ctx, substrate.Options{Endpoint: f.endpoint, Name: f.serverName, CA: ca, Token: tokenFile(f.tokenFile), AcceptFields: f.acceptFields})
	})
	r, err := steps.New(k, sub, wall{}, out, f.Options)
	if err != nil {
		return usageError{err}
	}
	out.Say("%s of node %s, from %s to %s, for roll %s", name, f.Node, f.From, f.To, f.roll)
	res, err = do(r, ctx)
	if err != nil {
		return err
	}
	out.Say("%s", res.Summary)
	return nil
}

// leave writes what the step leaves behind in files: its outputs, and the message that Kubernetes takes from the
// container.
func (f *flags) leave(res steps.Result, stepErr error) error {
	message := res.Summary
	if stepErr != nil {
		message = stepErr.Error()
	}
	message = plain(message)
	// The file is there in a pod only; elsewhere nobody asks for it.
	if t, err := os.OpenFile(f.termination, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		const most = 4000 // Kubernetes keeps 4096 bytes
		_, werr := t.WriteString(message[:min(len(message), most)])
		if cerr := errors.Join(werr, t.Close()); cerr != nil {
			return fmt.Errorf("leaving the last message in %s: %w", f.termination, cerr)
		}
	}
	if f.outputDir == "" {
		return nil
	}
	for file, value := range map[string]string{"summary": message, "suspended": fmt.Sprint(res.Suspended)} {
		if err := os.WriteFile(filepath.Join(f.outputDir, file), []byte(value), 0o644); err != nil {
			return fmt.Errorf("writing output %s: %w", file, err)
		}
	}
	return nil
}

// plain keeps a text to printable ASCII: Argo puts output parameters into templates without escaping them.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, strings.NewReplacer("{{", "{ {", "}}", "} }").Replace(s))
}

func (f *flags) restConfig() (*rest.Config, error) {
	if f.kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("finding the API server: %w; outside a pod pass --kubeconfig", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", f.kubeconfig, err)
	}
	return cfg, nil
}

func tokenFile(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the token of the control API: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
}

// wall is the clock on the wall.
type wall struct{}

func (wall) Now() time.Time { return time.Now() }

func (wall) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// reporter prints lines with the time before them, and keeps Argo's progress file.
type reporter struct {
	mu       sync.Mutex
	w        io.Writer
	progress string
}

func newReporter(w io.Writer, progress string) *reporter { return &reporter{w: w, progress: progress} }

func (r *reporter) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.w, "%s %s\n", time.Now().UTC().Format("15:04:05"), strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// Progress writes done/total where Argo looks for it. Argo wants a total above zero.
func (r *reporter) Progress(done, total int) {
	if r.progress == "" || total <= 0 {
		return
	}
	if err := os.WriteFile(r.progress, []byte(fmt.Sprintf("%d/%d", done, total)), 0o644); err != nil {
		r.Say("could not tell Argo the progress: %v", err)
	}
}

func (r *reporter) While(every time.Duration, line func() string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for (wall{}).Sleep(ctx, every) == nil {
			r.Say("%s", line())
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
