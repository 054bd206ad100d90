package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/atewf/atewf/gen/snapshot"
)

func newSnapshot(streams genericiooptions.IOStreams, now func() time.Time) *cobra.Command {
	src := newSource(streams, now)
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Print what atewf reads of a cluster, to plan from it later",
		Long: `Print what atewf reads of a cluster, to plan from it later: nodes, worker pools and their pods, atelet DaemonSets, the
Lease of the roll, and the workers and actors that the Control API lists. It is one JSON document with a line for each
object, so that two of them can be compared with diff.

It holds names and labels of nodes, pools and actors, but no secret and nothing of what actors do.`,
		Example: `  atewf snapshot > cluster.json
  atewf generate --snapshot cluster.json

  # Of another cluster, and fail where the Control API cannot be reached
  atewf snapshot --context prod --substrate require > prod.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := src.reader()
			if err != nil {
				return err
			}
			s, err := r.Read(cmd.Context())
			if err != nil {
				return err
			}
			if err := snapshot.Write(streams.Out, s); err != nil {
				return err
			}
			fmt.Fprintf(streams.ErrOut, "%d nodes, %d worker pools, %d worker pods, %d workers, %d actors\n",
				len(s.Nodes), len(s.Pools), len(s.Pods), len(s.Workers), len(s.Actors))
			if !s.Control.Read {
				fmt.Fprintf(streams.ErrOut, "warning: the Control API was not read, so workers and actors are not in it: %s\n", s.Control.Why)
			}
			return nil
		},
	}
	src.bind(cmd)
	return cmd
}
