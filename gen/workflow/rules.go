package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	wfv1 "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
)

const (
	maxWorkflowName = 63 // it becomes a label
	maxTemplateName = 63 // it becomes part of a pod's name, and tools take that for a host name
	maxTaskName     = 128
)

// rulesOfWorkflow checks what Argo allows and a roll must not do. Each rule stands for a way in which such a Workflow
// went wrong for somebody.
func rulesOfWorkflow(wf *wfv1.Workflow) error {
	s := &wf.Spec
	var errs []error
	rule := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	rule(wf.Name == "" && wf.GenerateName == "", "metadata: neither name nor generateName is there")
	rule(len(wf.Name) > maxWorkflowName, "metadata.name has %d characters; it becomes a label and may have %d", len(wf.Name), maxWorkflowName)
	rule(s.WorkflowTemplateRef != nil, "spec.workflowTemplateRef: the roll must stand in the Workflow itself")
	rule(s.ActiveDeadlineSeconds != nil, "spec.activeDeadlineSeconds would end the roll at an open gate; put deadlines on the steps")
	rule(s.Suspend != nil, "spec.suspend makes argo stop do nothing; begin with a gate instead")
	rule(s.Synchronization != nil, "spec.synchronization: no form of it is valid from Argo 3.5 to 4.x; the steps hold a Lease")
	rule(len(s.Hooks) > 0, "spec.hooks make a failed step impossible to retry")
	rule(s.RetryStrategy != nil, "spec.retryStrategy: only steps may be repeated, or gates are asked again")
	rule(s.TemplateDefaults != nil, "spec.templateDefaults would reach gates and DAGs too")
	rule(s.TTLStrategy != nil && s.TTLStrategy.SecondsAfterFailure != nil, "spec.ttlStrategy.secondsAfterFailure can delete a roll that was retried and waits at a gate")
	rule(s.TTLStrategy != nil && s.TTLStrategy.SecondsAfterCompletion != nil, "spec.ttlStrategy.secondsAfterCompletion can delete a roll that was retried and waits at a gate")
	rule(s.PodGC != nil && s.PodGC.Strategy != wfv1.PodGCOnWorkflowSuccess && s.PodGC.Strategy != wfv1.PodGCOnPodNone,
		"spec.podGC.strategy %s deletes the logs of a step that failed", podGCStrategy(s.PodGC))
	for _, p := range s.Arguments.Parameters {
		rule(p.Value != nil && tag.MatchString(p.Value.String()), "spec.arguments: the value of %s, %q, would be replaced by Argo", p.Name, p.Value)
	}
	stored, err := Stored(wf)
	if err != nil {
		return err
	}
	if stored > Budget {
		errs = append(errs, &TooBig{Bytes: stored})
	}
	errs = append(errs, rulesOfTemplates(s))
	return errors.Join(errs...)
}

func podGCStrategy(p *wfv1.PodGC) wfv1.PodGCStrategy {
	if p == nil {
		return ""
	}
	return p.Strategy
}

// TooBig is the error of a Workflow that passes the Budget.
type TooBig struct {
	// Bytes is its size.
	Bytes int
	// Nodes is how many nodes it rolls, 0 when that is not known. Zones counts them by zone.
	Nodes int
	Zones map[string]int
	// Compact tells that it has the compact form already.
	Compact bool
}

// Error says by how much, and how to split the roll.
func (e *TooBig) Error() string {
	s := fmt.Sprintf("the Workflow has %d KiB of JSON and may have %d: Argo keeps the specification and the record of its run in one object of 1 MiB",
		(e.Bytes+1023)>>10, Budget>>10)
	if e.Nodes == 0 {
		return s
	}
	fit := max(1, int(int64(Budget)*int64(e.Nodes)/int64(e.Bytes)))
	s += fmt.Sprintf("; about %d of these %d nodes fit", fit, e.Nodes)
	if !e.Compact {
		s += ", more with --layout compact"
	}
	s += "; roll them in parts, one after the other, with --selector or --nodes"
	zone := ""
	for _, z := range slices.Sorted(maps.Keys(e.Zones)) {
		if z != "" && e.Zones[z] <= fit && e.Zones[z] > e.Zones[zone] {
			zone = z
		}
	}
	if zone != "" {
		s += fmt.Sprintf(", for example --selector topology.kubernetes.io/zone=%s (%d nodes)", zone, e.Zones[zone])
	}
	return s
}

// rulesOfTemplates checks the templates and how they use one another.
func rulesOfTemplates(s *wfv1.WorkflowSpec) error {
	var errs []error
	byName := make(map[string]*wfv1.Template, len(s.Templates))
	for i := range s.Templates {
		t := &s.Templates[i]
		if byName[t.Name] != nil {
			errs = append(errs, fmt.Errorf("template %s is there twice", t.Name))
		}
		byName[t.Name] = t
	}
	for i := range s.Templates {
		t := &s.Templates[i]
		for _, err := range append(rulesOfTemplate(t), rulesOfTags(t)...) {
			errs = append(errs, fmt.Errorf("template %s: %w", t.Name, err))
		}
	}
	errs = append(errs, rulesOfGates(s, byName)...)
	if err := noRecursion(s, byName); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func rulesOfTemplate(t *wfv1.Template) []error {
	var errs []error
	rule := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	pod := t.Container != nil || t.Script != nil || t.ContainerSet != nil
	rule(len(t.Name) > maxTemplateName, "its name has %d characters and may have %d", len(t.Name), maxTemplateName)
	rule(t.Name != strings.ToLower(t.Name), "capitals in the name make invalid names of pods")
	rule(len(t.Steps) > 0, "steps: a roll is a DAG whose tasks wait for one another by .Succeeded")
	rule(t.Synchronization != nil, "synchronization: no form of it is valid from Argo 3.5 to 4.x; the steps hold a Lease")
	rule(t.Memoize != nil, "memoize would skip a step that acts on the cluster")
	rule(t.Daemon != nil, "daemon: a step must end before the next one begins")
	rule(len(t.Annotations) > 0, "annotations are not known before Argo 3.7")
	rule(t.Timeout != "", "timeout: use activeDeadlineSeconds, which every kind of step pod obeys")
	rule(!pod && t.RetryStrategy != nil, "retryStrategy: only steps may be repeated, or gates are asked again")
	if pod {
		rule(t.ActiveDeadlineSeconds == nil, "activeDeadlineSeconds is missing")
		rule(t.RetryStrategy != nil && t.RetryStrategy.RetryPolicy == "", "retryStrategy.retryPolicy is missing; its default differs between versions of Argo")
		rule(t.RetryStrategy != nil && t.RetryStrategy.Expression != "", "retryStrategy.expression: exit codes that it looks at are not reliable")
	}
	rule(t.Container != nil && len(t.Container.Command) == 0, "container.command is missing; Argo would ask the registry for it")
	if t.DAG != nil {
		errs = append(errs, rulesOfDAG(t.DAG)...)
	}
	return errs
}

// rulesOfDAG checks that the tasks are one chain: the first waits for none, each other for the one before it to succeed.
// So only one thing goes on at a time, one gate is open at a time, and after a failure nothing begins.
func rulesOfDAG(d *wfv1.DAGTemplate) []error {
	var errs []error
	names := make(map[string]bool, len(d.Tasks))
	for i, task := range d.Tasks {
		rule := func(broken bool, format string, args ...any) {
			if broken {
				errs = append(errs, fmt.Errorf("task %s: "+format, append([]any{task.Name}, args...)...))
			}
		}
		rule(!taskName.MatchString(task.Name), "its name must begin with a letter, and have nothing but letters, digits and dashes")
		rule(names[task.Name], "another task of the same DAG has its name")
		names[task.Name] = true
		rule(len(task.Name) > maxTaskName, "its name has %d characters and may have %d", len(task.Name), maxTaskName)
		rule(len(task.WithItems) > 0 || task.WithParam != "" || task.WithSequence != nil, "a loop does not stop at a failure on every version of Argo")
		rule(task.When != "", "when: what is to be done is decided when the roll is generated")
		rule(len(task.Hooks) > 0 || task.OnExit != "", "a hook makes a failed step impossible to retry")
		rule(task.ContinueOn != nil, "continueOn: a failure stops the line")
		rule(task.Inline != nil, "inline: one template a step keeps the names of pods readable")
		rule(len(task.Dependencies) > 0, "dependencies lets a skipped task open the way; use depends with .Succeeded")
		switch want := ""; {
		case i == 0:
			rule(task.Depends != "", "depends on %q, but it is the first", task.Depends)
		default:
			want = d.Tasks[i-1].Name + ".Succeeded"
			rule(task.Depends != want, "depends on %q; want %q, so that one thing goes on at a time", task.Depends, want)
		}
	}
	return errs
}

// taskName is how a task may be called where others depend on it.
var taskName = regexp.MustCompile(`^[a-zA-Z][-a-zA-Z0-9]*$`)

// rulesOfGates checks that every gate is bare and that its task has a name which no other task has.
func rulesOfGates(s *wfv1.WorkflowSpec, byName map[string]*wfv1.Template) []error {
	var errs []error
	uses := map[string]int{} // by the name of the task
	for i := range s.Templates {
		if s.Templates[i].DAG != nil {
			for _, task := range s.Templates[i].DAG.Tasks {
				uses[task.Name]++
			}
		}
	}
	times := timesUsed(s, byName)
	for i := range s.Templates {
		t := &s.Templates[i]
		if t.Suspend != nil && (len(t.Inputs.Parameters) > 0 || len(t.Outputs.Parameters) > 0) {
			errs = append(errs, fmt.Errorf("template %s: a gate with inputs or outputs cannot be approved in the same way everywhere", t.Name))
		}
		if t.DAG == nil {
			continue
		}
		for _, task := range t.DAG.Tasks {
			g := byName[task.Template]
			if g == nil || g.Suspend == nil {
				continue
			}
			if uses[task.Name] > 1 {
				errs = append(errs, fmt.Errorf("template %s: gate %s has a name that %d tasks have, so it cannot be approved by its name", t.Name, task.Name, uses[task.Name]))
			}
			if times[t.Name] > 1 {
				errs = append(errs, fmt.Errorf("template %s: gate %s stands in a template that runs %d times, so it has no name of its own", t.Name, task.Name, times[t.Name]))
			}
		}
	}
	return errs
}

// timesUsed counts for each template how many tasks use it.
func timesUsed(s *wfv1.WorkflowSpec, byName map[string]*wfv1.Template) map[string]int {
	n := make(map[string]int, len(byName))
	for i := range s.Templates {
		if s.Templates[i].DAG != nil {
			for _, task := range s.Templates[i].DAG.Tasks {
				n[task.Template]++
			}
		}
	}
	return n
}

// noRecursion checks that no template reaches itself: Argo ends a recursion at a hundred levels, or not at all.
func noRecursion(s *wfv1.WorkflowSpec, byName map[string]*wfv1.Template) error {
	const open, closed = 1, 2
	state := map[string]int{}
	var visit func(name string) error
	visit = func(name string) error {
		switch t := byName[name]; {
		case t == nil || state[name] == closed || t.DAG == nil:
			return nil
		case state[name] == open:
			return fmt.Errorf("template %s reaches itself", name)
		default:
			state[name] = open
			for _, task := range t.DAG.Tasks {
				if err := visit(task.Template); err != nil {
					return err
				}
			}
			state[name] = closed
			return nil
		}
	}
	for i := range s.Templates {
		if err := visit(s.Templates[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// tag is what Argo replaces. allowed are the tags that the templates of a roll use; anything else came from data.
var (
	tag     = regexp.MustCompile(`\{\{.*?(\}\}|$)`)
	allowed = regexp.MustCompile(`^\{\{(workflow\.(namespace|name|uid)|workflow\.parameters\.[a-z-]+|inputs\.parameters\.[a-z-]+)\}\}$`)
)

// rulesOfTags checks that nothing but the templates' own tags would be replaced.
func rulesOfTags(t *wfv1.Template) []error {
	b, err := json.Marshal(t)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, m := range tag.FindAllString(string(b), -1) {
		if !allowed.MatchString(m) {
			const most = 60 // of one that is left open and runs on to the next
			m = m[:min(len(m), most)]
			errs = append(errs, fmt.Errorf("%q would be replaced by Argo, and is none of the tags that a roll uses", m))
		}
	}
	return errs
}
