package workflow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/argoproj/argo-workflows/v3/pkg/apis/workflow"
	wfv1 "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	"github.com/argoproj/argo-workflows/v3/workflow/common"
	"github.com/argoproj/argo-workflows/v3/workflow/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Validate checks the bytes of one Workflow as argo submit would, strictly, and by the rules of a roll. Of tasks that are
// alike Argo's validation sees one for each DAG, which is what makes a Workflow of thousands of nodes a matter of
// milliseconds; Lint shows it all of them, and says the same.
func Validate(manifest []byte) error {
	objects, err := parse(manifest)
	if err != nil {
		return err
	}
	if len(objects) != 1 {
		return fmt.Errorf("want one Workflow, found %d objects", len(objects))
	}
	wf, ok := objects[0].(*wfv1.Workflow)
	if !ok {
		return fmt.Errorf("want a Workflow, found %s", kindOf(objects[0]))
	}
	broken := rulesOfWorkflow(wf)
	shown := wf
	if broken == nil {
		if shown, err = thinned(wf); err != nil {
			return err
		}
	}
	if err := validateByArgo(shown, nil); err != nil {
		return err
	}
	return broken
}

// thinned is a Workflow without the tasks that are like an earlier one of their DAG. Argo looks at every task by itself,
// twice, and at all of its template; beyond the template and the arguments, all that it looks at is the name and what the
// task depends on. The rules check those, so the Workflow must have passed them: each DAG is a chain, and stays one.
func thinned(wf *wfv1.Workflow) (*wfv1.Workflow, error) {
	out := *wf
	out.Spec.Templates = slices.Clone(wf.Spec.Templates)
	for i := range out.Spec.Templates {
		t := &out.Spec.Templates[i]
		if t.DAG == nil {
			continue
		}
		seen := map[string]bool{}
		dag := *t.DAG
		dag.Tasks = nil
		for _, task := range t.DAG.Tasks {
			k, err := likeness(task)
			if err != nil {
				return nil, err
			}
			if !seen[k] {
				seen[k] = true
				dag.Tasks = append(dag.Tasks, task)
			}
		}
		chain(dag.Tasks)
		t.DAG = &dag
	}
	return &out, nil
}

// likeness is the same for tasks that differ in their names, in the task that they wait for, and in values of parameters
// in which Argo has nothing to replace.
func likeness(task wfv1.DAGTask) (string, error) {
	task.Name, task.Depends = "", ""
	task.Arguments.Parameters = slices.Clone(task.Arguments.Parameters)
	for i := range task.Arguments.Parameters {
		if p := &task.Arguments.Parameters[i]; p.Enum == nil && p.Value != nil && !tag.MatchString(p.Value.String()) {
			p.Value = wfv1.AnyStringPtr("")
		}
	}
	b, err := json.Marshal(task)
	return string(b), err
}

// Problem is what Lint has against one object.
type Problem struct {
	// Object is the kind and the name of the object, or what stands for it.
	Object string
	Err    error
}

// Lint checks every Argo object in a manifest of one or more documents: strictly against Argo's types, by Argo's own
// validation, and by the rules of a roll. References between Workflows and WorkflowTemplates are resolved within the
// manifest. objects is how many there were to check; documents of other kinds are passed over, as argo lint does.
func Lint(manifest []byte) (objects int, problems []Problem) {
	parsed, err := parse(manifest)
	if err != nil {
		return 0, []Problem{{Object: "manifest", Err: err}}
	}
	known := map[string]*wfv1.WorkflowTemplate{}
	for _, o := range parsed {
		if t, ok := o.(*wfv1.WorkflowTemplate); ok {
			known[t.Name] = t
		}
	}
	for _, o := range parsed {
		var err error
		switch o := o.(type) {
		case *wfv1.Workflow:
			err = validateWorkflow(o, known)
		case *wfv1.WorkflowTemplate:
			err = validateTemplate(o, known)
		default:
			continue
		}
		objects++
		if err != nil {
			problems = append(problems, Problem{Object: kindOf(o) + " " + nameOf(o), Err: err})
		}
	}
	return objects, problems
}

// parse reads the Argo objects of a manifest. An unknown field is an error, as it is for argo submit. Documents are split
// as Argo splits them, but one that is no YAML is an error, while Argo passes over it.
func parse(manifest []byte) ([]metav1.Object, error) {
	if len(bytes.TrimSpace(manifest)) == 0 {
		return nil, errors.New("the manifest is empty")
	}
	var out []metav1.Object
	for i, doc := range bytes.Split(manifest, []byte("\n---")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		asJSON, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, fmt.Errorf("document %d is no proper YAML: %w", i+1, err)
		}
		var m metav1.TypeMeta
		if err := json.Unmarshal(asJSON, &m); err != nil {
			return nil, fmt.Errorf("document %d is no object: %w", i+1, err)
		}
		if m.Kind != workflow.WorkflowKind && m.Kind != workflow.WorkflowTemplateKind {
			continue
		}
		for _, r := range common.ParseObjects(asJSON, true) {
			if r.Err != nil {
				return nil, fmt.Errorf("document %d, %s, read strictly: %w", i+1, m.Kind, r.Err)
			}
			if want := wfv1.SchemeGroupVersion.String(); m.APIVersion != want {
				return nil, fmt.Errorf("document %d, %s: apiVersion is %q, want %q", i+1, m.Kind, m.APIVersion, want)
			}
			out = append(out, r.Object)
		}
	}
	return out, nil
}

func kindOf(o metav1.Object) string {
	switch o.(type) {
	case *wfv1.Workflow:
		return workflow.WorkflowKind
	case *wfv1.WorkflowTemplate:
		return workflow.WorkflowTemplateKind
	}
	return "another kind"
}

func nameOf(o metav1.Object) string {
	if n := o.GetName(); n != "" {
		return n
	}
	return o.GetGenerateName() + "..."
}

func validateWorkflow(wf *wfv1.Workflow, known templateGetter) error {
	if err := validateByArgo(wf, known); err != nil {
		return err
	}
	return rulesOfWorkflow(wf)
}

func validateByArgo(wf *wfv1.Workflow, known templateGetter) error {
	// Argo's validation works on the object that it is given.
	if err := validate.ValidateWorkflow(known, clusterTemplates{}, wf.DeepCopy(), nil, validate.ValidateOpts{}); err != nil {
		return fmt.Errorf("argo's validation: %w", err)
	}
	return nil
}

func validateTemplate(t *wfv1.WorkflowTemplate, known templateGetter) error {
	if err := validate.ValidateWorkflowTemplate(known, clusterTemplates{}, t.DeepCopy(), nil, validate.ValidateOpts{Lint: true}); err != nil {
		return fmt.Errorf("argo's validation: %w", err)
	}
	return rulesOfTemplates(&t.Spec)
}

// templateGetter finds WorkflowTemplates among those at hand.
type templateGetter map[string]*wfv1.WorkflowTemplate

// Get finds one by its name.
func (g templateGetter) Get(name string) (*wfv1.WorkflowTemplate, error) {
	if t, ok := g[name]; ok {
		return t, nil
	}
	return nil, fmt.Errorf("workflow template %q is not in this manifest; put it into the same file to have references checked", name)
}

// clusterTemplates finds no ClusterWorkflowTemplate: a roll uses none.
type clusterTemplates struct{}

// Get finds none.
func (clusterTemplates) Get(name string) (*wfv1.ClusterWorkflowTemplate, error) {
	return nil, fmt.Errorf("cluster workflow template %q: a roll uses none", name)
}
