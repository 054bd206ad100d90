package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/atewf/atewf/gen"
	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/workflow"
	"github.com/atewf/atewf/internal/build"
)

// generateOptions are the flags of generate.
type generateOptions struct {
	streams  genericiooptions.IOStreams
	source   *source
	snapshot string
	plan     plan.Options
	workflow workflow.Options
}

func newGenerate(streams genericiooptions.IOStreams, now func() time.Time) *cobra.Command {
	o := &generateOptions{
		streams: streams, source: newSource(streams, now),
		plan:     plan.Options{Pace: plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendAuto}},
		workflow: workflow.Defaults(),
	}
	o.workflow.Image = workflow.ImageOf(build.Version())
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print the Workflow that rolls the nodes of a cluster",
		Long: `Print the Workflow that rolls the nodes of a cluster from one version of Agent Substrate to another.

The versions are told from the labels of the two atelet DaemonSets. Nodes that an earlier roll left half done come first,
nodes that are done are left out. Standard output carries the Workflow and nothing else; the plan, and everything that
speaks against it, is told on standard error. Nothing is printed when a roll must not begin.`,
		Example: `  # Roll all nodes, asking before each one
  atewf generate | argo submit -n argo -

  # Zone by zone, asking once, after the first node, with ten minutes between nodes
  atewf generate --order zone --gate canary --soak 10m | argo submit -n argo -

  # Two nodes only, and people suspend the actors
  atewf generate --nodes node1,node2 --suspend wait | argo submit -n argo -

  # From what was read before
  atewf generate --snapshot cluster.json > roll.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Flags().Changed("substrate-namespace"))
		},
	}
	o.source.bind(cmd)
	f := cmd.Flags()
	f.StringVar(&o.snapshot, "snapshot", "", "read this file, which atewf snapshot wrote, instead of a cluster; - is standard input")

	f.StringVar(&o.plan.From, "from", "", "version that the nodes leave, as the label has it; found out when not given")
	f.StringVar(&o.plan.To, "to", "", "version that the nodes reach; found out when not given")
	f.StringVarP(&o.plan.Selector, "selector", "l", "", "roll only nodes whose labels match, as kubectl takes it")
	f.StringSliceVar(&o.plan.Nodes, "nodes", nil, "roll only these nodes, in this order unless --order is given")
	f.StringSliceVar(&o.plan.Exclude, "exclude", nil, "do not roll these nodes")
	enumFlag(cmd, &o.plan.Order, "order", "order of the nodes: by name, zone by zone, or fewest actors first (default name)", plan.OrderName, plan.OrderZone, plan.OrderActors)
	f.BoolVar(&o.plan.AllowSingleNode, "allow-single-node", false, "roll a node although no other is there to serve meanwhile")

	enumFlag(cmd, &o.plan.Pace.Gate, "gate", "ask a person before every node, before the first one, once after the first one (canary), or never",
		plan.GateEvery, plan.GateFirst, plan.GateCanary, plan.GateNone)
	enumFlag(cmd, &o.plan.Pace.Suspend, "suspend", "actors are suspended at once (auto), after a person was asked (gate), or by people while the step watches (wait)",
		plan.SuspendAuto, plan.SuspendGate, plan.SuspendWait)
	f.DurationVar(&o.plan.Pace.Soak, "soak", 0, "pause after each node but the last, and verify it once more after that")

	f.StringVar(&o.workflow.Name, "name", "", "name of the Workflow; one is made up when it is submitted if not given")
	f.StringVar(&o.workflow.ServiceAccount, "service-account", o.workflow.ServiceAccount, "service account that runs the steps")
	f.StringVar(&o.workflow.Image, "image", o.workflow.Image, "image of the steps; pin it by digest")
	f.StringVar(&o.workflow.Endpoint, "steps-endpoint", o.workflow.Endpoint, "host:port at which the steps reach the Control API")
	enumFlag(cmd, &o.workflow.Layout, "layout", "a template for each node, which reads well, or one for all, which is small; auto is the first up to 100 nodes",
		workflow.LayoutAuto, workflow.LayoutNodes, workflow.LayoutCompact)
	f.IntVar(&o.workflow.Parallelism, "parallelism", o.workflow.Parallelism, "how many actors are suspended at once")
	t := &o.workflow.Timeouts
	f.DurationVar(&t.Drain, "drain-timeout", t.Drain, "how long drain waits before it fails")
	f.DurationVar(&t.Suspend, "suspend-timeout", t.Suspend, "how long suspend waits for the node to be empty")
	f.DurationVar(&t.Flip, "flip-timeout", t.Flip, "how long flip waits for the node to be empty, and once more for the old worker pods to be gone")
	f.DurationVar(&t.Verify, "verify-timeout", t.Verify, "how long verify waits for the node to serve and for room elsewhere")
	f.DurationVar(&t.Atelet, "atelet-timeout", t.Atelet, "how long flip waits for the new atelet, in between")

	must(cmd.MarkFlagFilename("snapshot", "json"))
	for _, name := range []string{"nodes", "exclude"} {
		must(cmd.RegisterFlagCompletionFunc(name, o.source.completeNodes))
	}
	return cmd
}

func (o *generateOptions) run(ctx context.Context, namespaceGiven bool) error {
	r, from, err := o.reader()
	if err != nil {
		return err
	}
	if o.source.config.Namespace != nil {
		o.workflow.Namespace = *o.source.config.Namespace
	}
	o.workflow.Audience, o.workflow.AcceptFields = o.source.audience, o.source.acceptFields
	res, err := gen.Generate(ctx, r, o.plan, o.workflow)
	if err != nil {
		return err
	}
	if namespaceGiven && o.snapshot != "" && res.Plan.Namespace != o.source.namespace {
		return fmt.Errorf("snapshot %s was taken with --substrate-namespace %s, and %s was given; take it again, or leave the flag out", o.snapshot, res.Plan.Namespace, o.source.namespace)
	}
	summary{
		w: o.streams.ErrOut, plan: res.Plan, from: from, yaml: len(res.Manifest), terminal: terminal(o.streams.Out),
		namespace: o.workflow.Namespace, account: o.workflow.ServiceAccount, named: o.workflow.Name != "",
	}.print()
	if _, err := o.streams.Out.Write(res.Manifest); err != nil {
		return fmt.Errorf("printing the Workflow: %w", err)
	}
	return nil
}

// reader is what the cluster is read from, and its name for people.
func (o *generateOptions) reader() (gen.Reader, string, error) {
	if o.snapshot != "" {
		return stored{o.streams, o.snapshot}, "snapshot " + o.snapshot, nil
	}
	r, err := o.source.reader()
	return r, "the cluster", err
}
