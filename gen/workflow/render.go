// Package workflow turns a Plan into an Argo Workflow, and checks a Workflow by Argo's own rules and by those of a roll.
package workflow

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	wfv1 "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/internal/names"
	"github.com/atewf/atewf/templates"
)

// The names that a Workflow of a roll uses. Templates of nodes, batches and groups carry a suffix.
const (
	entrypoint = "roll"
	approve    = "approve"
	drain      = "drain"
	suspend    = "suspend"
	flip       = "flip"
	verify     = "verify"
	soak       = "soak"
	again      = "verify-again"

	// rollNode serves all nodes of the compact form. Where something stands between drain and suspend, it is split into
	// drainNode and moveNode, because a gate within a shared template could not have a name of its own.
	rollNode  = "node"
	drainNode = "drain-node"
	moveNode  = "move-node"

	// slugLen is the longest slug of a node. With its prefix it stays below 63 characters.
	slugLen = 40
)

// retainSuccess is how long a Workflow that succeeded is kept. One that failed is kept until somebody deletes it: a
// deadline would also take a retried one that waits at a gate.
const retainSuccess = 14 * 24 * time.Hour

// Render makes the Workflow of a plan. The same plan and options give the same Workflow. It does not check what it
// made; Validate does that on the bytes that are printed.
func Render(p *plan.Plan, o Options) (*wfv1.Workflow, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	nodes := p.Rolling()
	if len(nodes) == 0 {
		return nil, fmt.Errorf("the plan has no node to roll")
	}
	slugs, err := slugs(nodes)
	if err != nil {
		return nil, err
	}
	steps, err := stepTemplates(o)
	if err != nil {
		return nil, err
	}
	r := &renderer{pace: p.Pace, count: len(nodes)}
	var units []unit
	switch layout := o.Layout.For(len(nodes)); layout {
	case LayoutNodes:
		units = r.perNode(nodes, slugs)
	case LayoutCompact:
		units = r.compact(nodes, slugs)
	default:
		return nil, fmt.Errorf("layout %q is unknown; want auto, nodes or compact", layout)
	}
	entry := r.nest(units)

	wf := &wfv1.Workflow{
		TypeMeta:   metav1.TypeMeta{APIVersion: wfv1.SchemeGroupVersion.String(), Kind: "Workflow"},
		ObjectMeta: meta(p, o, slugs),
		Spec: wfv1.WorkflowSpec{
			Entrypoint:         entrypoint,
			ServiceAccountName: o.ServiceAccount,
			SecurityContext:    steps.Spec.SecurityContext,
			Arguments:          arguments(steps.Spec.Arguments, p, o),
			PodGC:              &wfv1.PodGC{Strategy: wfv1.PodGCOnWorkflowSuccess},
			TTLStrategy:        &wfv1.TTLStrategy{SecondsAfterSuccess: ptr.To(int32(retainSuccess.Seconds()))},
		},
	}
	wf.Spec.Templates = append(wf.Spec.Templates, wfv1.Template{Name: entrypoint, DAG: &wfv1.DAGTemplate{Tasks: entry}})
	wf.Spec.Templates = append(wf.Spec.Templates, r.templates...)
	if p.Pace.Soak > 0 && len(nodes) > 1 {
		wf.Spec.Templates = append(wf.Spec.Templates, wfv1.Template{Name: soak, Suspend: &wfv1.SuspendTemplate{Duration: seconds(p.Pace.Soak)}})
	}
	for _, t := range steps.Spec.Templates {
		if t.Name == approve && p.Cost.Gates == 0 {
			continue // Argo takes a template that nothing uses, but a reader would look for its use
		}
		wf.Spec.Templates = append(wf.Spec.Templates, t)
	}
	return wf, nil
}

// seconds is a duration as Argo's suspend templates take it on every version: whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// slugs gives each node the part of a name that stands for it.
func slugs(nodes []plan.Node) ([]string, error) {
	out := make([]string, len(nodes))
	owner := make(map[string]string, len(nodes))
	for i, n := range nodes {
		s := names.Slug(n.Name, slugLen)
		if reserved.MatchString(s) {
			s = names.Slug("node "+n.Name, slugLen)
		}
		if other, ok := owner[s]; ok {
			return nil, fmt.Errorf("nodes %q and %q both become %q when they are shortened; roll them one after the other, with --exclude %s first and once more without it",
				other, n.Name, s, n.Name)
		}
		owner[s] = n.Name
		out[i] = s
	}
	return out, nil
}

// reserved are slugs that a gate or another task could have as its name.
var reserved = regexp.MustCompile(`^(approve|suspend|soak|batch|group|verify|roll|drain|move)-|^(` + strings.Join([]string{drain, suspend, flip, verify}, "|") + `)$`)

// renderer collects the templates of one Workflow.
type renderer struct {
	pace      plan.Pace
	count     int
	templates []wfv1.Template
}

// unit is the tasks of one node within the DAG of its batch. Each task but the first waits for the one before it; the
// first waits for the last task of the unit before.
type unit []wfv1.DAGTask

// perNode gives each node a template of its own.
func (r *renderer) perNode(nodes []plan.Node, slugs []string) []unit {
	units := make([]unit, len(nodes))
	for i, n := range nodes {
		var tasks unit
		if r.pace.GateBefore(i) {
			tasks = append(tasks, gate(approve, slugs[i]))
		}
		tasks = append(tasks, stepTask(drain, drain, n.Name))
		if r.pace.GateBeforeSuspend() {
			tasks = append(tasks, gate(suspend, slugs[i]))
		}
		for _, s := range []string{suspend, flip, verify} {
			tasks = append(tasks, stepTask(s, s, n.Name))
		}
		if r.pace.SoakAfter(i, r.count) {
			tasks = append(tasks, wfv1.DAGTask{Name: soak + "-" + slugs[i], Template: soak}, stepTask(again, verify, n.Name))
		}
		name := entrypoint + "-" + slugs[i]
		r.templates = append(r.templates, wfv1.Template{Name: name, DAG: &wfv1.DAGTemplate{Tasks: chain(tasks)}})
		units[i] = unit{{Name: slugs[i], Template: name}}
	}
	return units
}

// compact gives all nodes the same templates. The gates stand in the DAG of the batch, where each has a name of its own.
func (r *renderer) compact(nodes []plan.Node, slugs []string) []unit {
	shared := func(name string, steps ...string) {
		var tasks unit
		for _, s := range steps {
			tasks = append(tasks, stepTask(s, s, "{{inputs.parameters.node}}"))
		}
		r.templates = append(r.templates, wfv1.Template{
			Name:   name,
			Inputs: wfv1.Inputs{Parameters: []wfv1.Parameter{{Name: "node"}}},
			DAG:    &wfv1.DAGTemplate{Tasks: chain(tasks)},
		})
	}
	split := r.pace.GateBeforeSuspend()
	if split {
		shared(drainNode, drain)
		shared(moveNode, suspend, flip, verify)
	} else {
		shared(rollNode, drain, suspend, flip, verify)
	}
	units := make([]unit, len(nodes))
	for i, n := range nodes {
		pos := strconv.Itoa(i + 1)
		var u unit
		first := entrypoint + "-" + slugs[i]
		if r.pace.GateBefore(i) {
			u = append(u, gate(approve, slugs[i]))
			first = "n" + pos // the gate says which node it is, and names are what costs room
		}
		if split {
			u = append(u, stepTask(first, drainNode, n.Name), gate(suspend, slugs[i]), stepTask("move-"+pos, moveNode, n.Name))
		} else {
			u = append(u, stepTask(first, rollNode, n.Name))
		}
		if r.pace.SoakAfter(i, r.count) {
			u = append(u, wfv1.DAGTask{Name: soak + "-" + slugs[i], Template: soak}, stepTask(verify+"-"+pos, verify, n.Name))
		}
		units[i] = u
	}
	return units
}

// nest chains the units, in batches of DAGs of their own where there are too many for one.
func (r *renderer) nest(units []unit) []wfv1.DAGTask {
	prefix := "batch-"
	for {
		batches := split(units)
		if len(batches) == 1 {
			return batches[0]
		}
		next := make([]unit, len(batches))
		for i, tasks := range batches {
			name := prefix + strconv.Itoa(i+1)
			r.templates = append(r.templates, wfv1.Template{Name: name, DAG: &wfv1.DAGTemplate{Tasks: tasks}})
			next[i] = unit{{Name: name, Template: name}}
		}
		units, prefix = next, "group-"+prefix
	}
}

// split cuts units into chains that one DAG may hold.
func split(units []unit) [][]wfv1.DAGTask {
	var out [][]wfv1.DAGTask
	for len(units) > 0 {
		var tasks unit
		n := 0
		for n < len(units) && (n == 0 || len(tasks)+len(units[n]) <= batchTasks) {
			tasks = append(tasks, units[n]...)
			n++
		}
		out = append(out, chain(tasks))
		units = units[n:]
	}
	return out
}

// chain makes each task wait for the one before it to succeed, and for nothing else.
func chain(tasks []wfv1.DAGTask) []wfv1.DAGTask {
	for i := 1; i < len(tasks); i++ {
		tasks[i].Depends = tasks[i-1].Name + ".Succeeded"
	}
	return tasks
}

// gate is the task at which a person is asked: its name says about what, and it has nothing else.
func gate(what, slug string) wfv1.DAGTask {
	return wfv1.DAGTask{Name: what + "-" + slug, Template: approve}
}

func stepTask(name, template, node string) wfv1.DAGTask {
	return wfv1.DAGTask{Name: name, Template: template, Arguments: wfv1.Arguments{
		Parameters: []wfv1.Parameter{{Name: "node", Value: wfv1.AnyStringPtr(node)}},
	}}
}

// stepTemplates reads the embedded templates and fits them to the options.
func stepTemplates(o Options) (*wfv1.WorkflowTemplate, error) {
	t := &wfv1.WorkflowTemplate{}
	if err := yaml.UnmarshalStrict(templates.Steps, t); err != nil {
		return nil, fmt.Errorf("reading the built-in step templates: %w", err)
	}
	deadline := o.Timeouts.longest()
	for i := range t.Spec.Templates {
		s := &t.Spec.Templates[i]
		if d, ok := deadline[s.Name]; ok {
			s.ActiveDeadlineSeconds = ptr.To(intstr.FromInt32(int32((d + deadlineMargin).Seconds())))
		}
		if o.AllowSingleNode && s.Affinity != nil {
			s.Affinity.NodeAffinity = prefer(s.Affinity.NodeAffinity)
		}
	}
	return t, nil
}

// prefer turns what a pod requires of its node into what it prefers: on a cluster of one node a step has to run on the
// very node that is rolled.
func prefer(a *corev1.NodeAffinity) *corev1.NodeAffinity {
	out := &corev1.NodeAffinity{}
	for _, term := range a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		out.PreferredDuringSchedulingIgnoredDuringExecution = append(out.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: 100, Preference: term})
	}
	return out
}

// arguments fills the parameters of the step templates with the values of this roll.
func arguments(declared wfv1.Arguments, p *plan.Plan, o Options) wfv1.Arguments {
	mode := "auto"
	if p.Pace.Suspend == plan.SuspendWait {
		mode = "wait"
	}
	values := map[string]string{
		"image":               o.Image,
		"from":                p.From,
		"to":                  p.To,
		"substrate-namespace": p.Namespace,
		"endpoint":            o.Endpoint,
		"audience":            o.Audience,
		"suspend":             mode,
		"parallelism":         strconv.Itoa(o.Parallelism),
		"drain-timeout":       short(o.Timeouts.Drain),
		"suspend-timeout":     short(o.Timeouts.Suspend),
		"flip-timeout":        short(o.Timeouts.Flip),
		"verify-timeout":      short(o.Timeouts.Verify),
		"atelet-timeout":      short(o.Timeouts.Atelet),
		"allow-single-node":   strconv.FormatBool(o.AllowSingleNode),
		"accept-fields":       strings.Join(o.AcceptFields, ","),
	}
	var out wfv1.Arguments
	for _, d := range declared.Parameters {
		if v, ok := values[d.Name]; ok {
			d.Value = wfv1.AnyStringPtr(v)
		}
		out.Parameters = append(out.Parameters, d)
	}
	return out
}

// short is a duration without the zeros that Go prints at its end.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func meta(p *plan.Plan, o Options, slugs []string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name: o.Name, Namespace: o.Namespace,
		Labels: map[string]string{
			"app.kubernetes.io/name": "atewf",
			"atewf.dev/from":         p.From,
			"atewf.dev/to":           p.To,
			"atewf.dev/plan":         p.Hash(),
		},
		Annotations: map[string]string{
			"workflows.argoproj.io/title":       title(p),
			"workflows.argoproj.io/description": description(p, o, slugs),
		},
	}
	if o.Name == "" {
		m.GenerateName = "atewf-roll-"
	}
	return m
}

func title(p *plan.Plan) string {
	t := fmt.Sprintf("Roll Agent Substrate from %s to %s", p.From, p.To)
	if p.Cluster != "" {
		t += " on " + p.Cluster
	}
	return ascii(t)
}

// description tells whoever opens the Workflow in the UI what it does, and how to approve and to refuse.
func description(p *plan.Plan, o Options, slugs []string) string {
	nodes := p.Rolling()
	name := o.Name
	if name == "" {
		name = "WORKFLOW"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Rolls %s from Agent Substrate `%s` to `%s`, one at a time, `%s` first: drain, suspend, flip, verify.\n",
		plural(len(nodes), "node"), p.From, p.To, nodes[0].Name)
	example := ""
	switch {
	case p.Pace.GateBefore(0):
		example = approve + "-" + slugs[0]
		fmt.Fprintf(&b, "\nNothing is drained on a node before its gate `%s-...` was approved.", approve)
	case p.Pace.GateBeforeSuspend():
		example = suspend + "-" + slugs[0]
		fmt.Fprintf(&b, "\nNo actor of a node is suspended before its gate `%s-...` was approved.", suspend)
	case p.Pace.Gate == plan.GateCanary && len(nodes) > 1:
		fmt.Fprintf(&b, "\nIt stops once, after the first node, for a person to look and to approve.")
		example = approve + "-" + slugs[1]
	default:
		fmt.Fprintf(&b, "\nIt asks nobody on its way.")
	}
	if example != "" {
		fmt.Fprintf(&b, " Approve with Resume in the UI, or with `argo resume %s`; only one gate is open at a time."+
			" Refuse with `argo stop %s --node-field-selector displayName=%s --message WHY`.", name, name, example)
	}
	fmt.Fprintf(&b, "\n\nA step that fails stops the line and says what to do next. After that, `argo retry %s` goes on at that step,"+
		" and a fresh `atewf generate` does as well: it begins with the node that is half done.", name)
	return ascii(b.String())
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ascii keeps a text for people to what every UI and shell shows.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r >= ' ' && r <= '~' {
			return r
		}
		return '?'
	}, s)
}
