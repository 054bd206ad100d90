package main

import (
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/atewf/atewf/internal/build"
)

// newRoot builds the whole command line anew, so that nothing is kept from one call to the next.
func newRoot(streams genericiooptions.IOStreams, now func() time.Time) *cobra.Command {
	root := &cobra.Command{
		Use:   "atewf",
		Short: "Roll Agent Substrate to a new version, node by node, as an Argo Workflow",
		Long: `Roll Agent Substrate to a new version, node by node, as an Argo Workflow.

atewf reads a cluster on which the new version was prepared (new atelet, cloned worker
pools), works out the plan, and prints a Workflow in which each node is drained, its
actors suspended, its label flipped and its workers verified, one node at a time, with
gates at which a person approves. It changes nothing itself.`,
		Example: `  # Roll all nodes, asking before each one
  atewf generate | argo submit -n argo -

  # See the plan without running anything
  atewf generate > roll.yaml

  # Keep what was read, and plan from it later, without the cluster
  atewf snapshot > cluster.json
  atewf generate --snapshot cluster.json --order zone --gate canary > roll.yaml`,
		Version:       build.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetVersionTemplate("atewf {{.Version}}\n")
	root.AddCommand(
		newGenerate(streams, now),
		newSnapshot(streams, now),
		newLint(streams),
		newVersion(streams),
	)
	return root
}
