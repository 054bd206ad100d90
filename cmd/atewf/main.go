// Command atewf turns the rolling upgrade of an Agent Substrate cluster into an Argo Workflow. It reads the cluster,
// works out which nodes are rolled and in which order, and prints the Workflow; it changes nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/atewf/atewf/gen/plan"
)

func main() {
	// The program lives for a second or two: collecting garbage less often is time saved, but so is memory that is used
	// twice and not asked for anew. The limit keeps the largest snapshots in bounds.
	debug.SetGCPercent(200)
	debug.SetMemoryLimit(200 << 20)
	// What the libraries log is not for users; what they return is.
	klog.SetLogger(logr.Discard())
	logrus.SetOutput(io.Discard)
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, time.Now)
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code: 0, or 1 after a message on standard error.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams, now func() time.Time) int {
	root := newRoot(streams, now)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var failed plan.Failed
	if errors.As(err, &failed) {
		for _, f := range failed {
			fmt.Fprintf(streams.ErrOut, "error: %s\n", f)
		}
		return 1
	}
	fmt.Fprintf(streams.ErrOut, "error: %v\n", err)
	return 1
}
