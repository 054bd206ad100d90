package workflow_test

import (
	"strings"
	"testing"

	wfv1 "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/workflow"
)

// valid is a Workflow of three nodes with everything that one can have.
func valid(t testing.TB) *wfv1.Workflow {
	t.Helper()
	_, b := generate(t, shape{snapshot: fleet(3, nil), plan: plan.Options{Pace: plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendGate, Soak: 60e9}}})
	wf := &wfv1.Workflow{}
	require.NoError(t, yaml.UnmarshalStrict(b, wf))
	return wf
}

func template(wf *wfv1.Workflow, name string) *wfv1.Template {
	for i := range wf.Spec.Templates {
		if wf.Spec.Templates[i].Name == name {
			return &wf.Spec.Templates[i]
		}
	}
	panic("no template " + name)
}

func TestRules(t *testing.T) {
	b, err := workflow.Marshal(valid(t))
	require.NoError(t, err)
	require.NoError(t, workflow.Validate(b))

	node := func(wf *wfv1.Workflow) []wfv1.DAGTask { return template(wf, "roll-node1").DAG.Tasks }
	for name, c := range map[string]struct {
		breakIt func(*wfv1.Workflow)
		want    string
	}{
		"deadline of the Workflow": {func(wf *wfv1.Workflow) { wf.Spec.ActiveDeadlineSeconds = ptr.To(int64(3600)) }, "spec.activeDeadlineSeconds"},
		"start suspended":          {func(wf *wfv1.Workflow) { wf.Spec.Suspend = ptr.To(true) }, "spec.suspend"},
		"synchronization": {func(wf *wfv1.Workflow) {
			wf.Spec.Synchronization = &wfv1.Synchronization{Mutexes: []*wfv1.Mutex{{Name: "m"}}}
		}, "spec.synchronization"},
		"hook of the Workflow": {func(wf *wfv1.Workflow) {
			wf.Spec.Hooks = wfv1.LifecycleHooks{"exit": {Template: "approve"}}
		}, "spec.hooks"},
		"retry of the Workflow": {func(wf *wfv1.Workflow) { wf.Spec.RetryStrategy = &wfv1.RetryStrategy{} }, "spec.retryStrategy"},
		"template defaults":     {func(wf *wfv1.Workflow) { wf.Spec.TemplateDefaults = &wfv1.Template{} }, "spec.templateDefaults"},
		"deleted after failure": {func(wf *wfv1.Workflow) { wf.Spec.TTLStrategy.SecondsAfterFailure = ptr.To(int32(60)) }, "secondsAfterFailure"},
		"deleted when over":     {func(wf *wfv1.Workflow) { wf.Spec.TTLStrategy.SecondsAfterCompletion = ptr.To(int32(60)) }, "secondsAfterCompletion"},
		"logs deleted":          {func(wf *wfv1.Workflow) { wf.Spec.PodGC.Strategy = wfv1.PodGCOnPodCompletion }, "podGC"},
		"no name":               {func(wf *wfv1.Workflow) { wf.GenerateName = "" }, "neither name nor generateName"},
		"long name":             {func(wf *wfv1.Workflow) { wf.Name = strings.Repeat("a", 64) }, "63"},
		"loop":                  {func(wf *wfv1.Workflow) { node(wf)[1].WithItems = []wfv1.Item{{Value: []byte(`"a"`)}} }, "loop"},
		"loop over a parameter": {func(wf *wfv1.Workflow) { node(wf)[1].WithParam = "[]" }, "loop"},
		"condition":             {func(wf *wfv1.Workflow) { node(wf)[1].When = "1 == 1" }, "when"},
		"hook of a task":        {func(wf *wfv1.Workflow) { node(wf)[1].Hooks = wfv1.LifecycleHooks{"exit": {Template: "approve"}} }, "hook"},
		"exit of a task":        {func(wf *wfv1.Workflow) { node(wf)[1].OnExit = "approve" }, "hook"},
		"two at once":           {func(wf *wfv1.Workflow) { node(wf)[1].Depends = "" }, "one thing goes on at a time"},
		"after a failure":       {func(wf *wfv1.Workflow) { node(wf)[2].Depends = "drain.Failed" }, "one thing goes on at a time"},
		"after a skip":          {func(wf *wfv1.Workflow) { node(wf)[2].Depends = "drain" }, "one thing goes on at a time"},
		"over one":              {func(wf *wfv1.Workflow) { node(wf)[3].Depends = "drain.Succeeded" }, "one thing goes on at a time"},
		"recursion": {func(wf *wfv1.Workflow) {
			d := template(wf, "roll-node3").DAG
			d.Tasks = append(d.Tasks, wfv1.DAGTask{Name: "again", Template: "roll", Depends: d.Tasks[len(d.Tasks)-1].Name + ".Succeeded"})
		}, "reaches itself"},
		"gate with an input": {func(wf *wfv1.Workflow) {
			template(wf, "approve").Inputs.Parameters = []wfv1.Parameter{{Name: "why", Default: wfv1.AnyStringPtr("")}}
		}, "gate with inputs"},
		"two gates of one name": {func(wf *wfv1.Workflow) {
			d := template(wf, "roll-node2").DAG
			d.Tasks[0].Name, d.Tasks[1].Depends = "approve-node1", "approve-node1.Succeeded"
		}, "cannot be approved by its name"},
		"gate in a shared template": {func(wf *wfv1.Workflow) {
			template(wf, "roll").DAG.Tasks[1].Template = "roll-node1"
		}, "no name of its own"},
		"retry of a DAG":          {func(wf *wfv1.Workflow) { template(wf, "roll-node1").RetryStrategy = &wfv1.RetryStrategy{} }, "only steps may be repeated"},
		"retry without a policy":  {func(wf *wfv1.Workflow) { template(wf, "flip").RetryStrategy.RetryPolicy = "" }, "retryPolicy is missing"},
		"retry by an expression":  {func(wf *wfv1.Workflow) { template(wf, "flip").RetryStrategy.Expression = "true" }, "expression"},
		"step without a deadline": {func(wf *wfv1.Workflow) { template(wf, "flip").ActiveDeadlineSeconds = nil }, "activeDeadlineSeconds is missing"},
		"step without a command":  {func(wf *wfv1.Workflow) { template(wf, "flip").Container.Command = nil }, "command is missing"},
		"template annotations":    {func(wf *wfv1.Workflow) { template(wf, "flip").Annotations = map[string]string{"a": "b"} }, "Argo 3.7"},
		"memoize":                 {func(wf *wfv1.Workflow) { template(wf, "flip").Memoize = &wfv1.Memoize{Key: "k"} }, "memoize"},
		"capitals": {func(wf *wfv1.Workflow) {
			template(wf, "roll-node1").Name, template(wf, "roll").DAG.Tasks[0].Template = "roll-Node1", "roll-Node1"
		}, "capitals"},
		"tag of no template":   {func(wf *wfv1.Workflow) { template(wf, "flip").Container.Args[1] = "{{retries}}" }, "none of the tags"},
		"tag in a node's name": {func(wf *wfv1.Workflow) { node(wf)[1].Arguments.Parameters[0].Value = wfv1.AnyStringPtr("{{item}}") }, "none of the tags"},
		"tag in a value": {func(wf *wfv1.Workflow) {
			wf.Spec.Arguments.Parameters[0].Value = wfv1.AnyStringPtr("{{workflow.name}}")
		}, "replaced by Argo"},
		"tag that is left open": {func(wf *wfv1.Workflow) { template(wf, "flip").Container.Args[1] = "{{x" }, "none of the tags"},
		"unknown template":      {func(wf *wfv1.Workflow) { node(wf)[1].Template = "nosuch" }, "nosuch"},
		"unknown parameter":     {func(wf *wfv1.Workflow) { template(wf, "flip").Container.Args[1] = "{{workflow.parameters.nosuch}}" }, "nosuch"},
		"too large": {func(wf *wfv1.Workflow) {
			wf.Annotations["workflows.argoproj.io/description"] = strings.Repeat("a", workflow.Budget)
		}, "KiB of JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			wf := valid(t)
			c.breakIt(wf)
			b, err := workflow.Marshal(wf)
			require.NoError(t, err)
			require.ErrorContains(t, workflow.Validate(b), c.want)
		})
	}
}

// Validate shows Argo only some of the tasks that are alike. What is wrong with any of the others must be found all the
// same, and what Lint finds, to whose Argo all tasks are shown, is the measure.
func TestNothingHidesBetweenTasksThatAreAlike(t *testing.T) {
	compact := func() *wfv1.Workflow {
		_, b := generate(t, shape{snapshot: fleet(120, nil), plan: plan.Options{Pace: plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendAuto}}})
		wf := &wfv1.Workflow{}
		require.NoError(t, yaml.UnmarshalStrict(b, wf))
		return wf
	}
	verdicts := func(wf *wfv1.Workflow) ([]workflow.Problem, error) {
		b, err := workflow.Marshal(wf)
		require.NoError(t, err)
		_, problems := workflow.Lint(b)
		return problems, workflow.Validate(b)
	}
	problems, err := verdicts(compact())
	require.NoError(t, err)
	require.Empty(t, problems)

	value := func(task *wfv1.DAGTask) *wfv1.Parameter { return &task.Arguments.Parameters[0] }
	for name, breakIt := range map[string]func(task *wfv1.DAGTask){
		"no name":                     func(task *wfv1.DAGTask) { task.Name = "" },
		"name with a space":           func(task *wfv1.DAGTask) { task.Name = "a b" },
		"name with a dot":             func(task *wfv1.DAGTask) { task.Name = "a.b" },
		"name that begins with digit": func(task *wfv1.DAGTask) { task.Name = "1a" },
		"name that is long":           func(task *wfv1.DAGTask) { task.Name = strings.Repeat("a", 129) },
		"name of another task":        func(task *wfv1.DAGTask) { task.Name = "n33" },
		"waits for none":              func(task *wfv1.DAGTask) { task.Depends = "" },
		"waits for one unknown":       func(task *wfv1.DAGTask) { task.Depends = "nosuch.Succeeded" },
		"waits for no end":            func(task *wfv1.DAGTask) { task.Depends += " && n1.Nosuch" },
		"unknown template":            func(task *wfv1.DAGTask) { task.Template = "nosuch" },
		"no template":                 func(task *wfv1.DAGTask) { task.Template = "" },
		"template of a WorkflowTemplate": func(task *wfv1.DAGTask) {
			task.Template, task.TemplateRef = "", &wfv1.TemplateRef{Name: "nosuch", Template: "x"}
		},
		"no value":            func(task *wfv1.DAGTask) { value(task).Value = nil },
		"no parameter":        func(task *wfv1.DAGTask) { task.Arguments.Parameters = nil },
		"another parameter":   func(task *wfv1.DAGTask) { value(task).Name = "nod" },
		"parameter twice":     func(task *wfv1.DAGTask) { task.Arguments.Parameters = append(task.Arguments.Parameters, *value(task)) },
		"unknown tag":         func(task *wfv1.DAGTask) { value(task).Value = wfv1.AnyStringPtr("{{workflow.parameters.nosuch}}") },
		"tag of another task": func(task *wfv1.DAGTask) { value(task).Value = wfv1.AnyStringPtr("{{tasks.n1.outputs.parameters.x}}") },
		"value of a list":     func(task *wfv1.DAGTask) { value(task).Enum = []wfv1.AnyString{"other"} },
		"value from nowhere":  func(task *wfv1.DAGTask) { value(task).Value, value(task).ValueFrom = nil, &wfv1.ValueFrom{} },
		"artifact":            func(task *wfv1.DAGTask) { task.Arguments.Artifacts = wfv1.Artifacts{{Name: "a"}} },
		"hook":                func(task *wfv1.DAGTask) { task.Hooks = wfv1.LifecycleHooks{"running": {Template: "nosuch"}} },
	} {
		t.Run(name, func(t *testing.T) {
			wf := compact()
			tasks := template(wf, "batch-3").DAG.Tasks
			i := len(tasks) - 3
			require.Equal(t, "node", tasks[i].Template)
			was := tasks[i].Name
			breakIt(&tasks[i])
			// Only this task is wrong: the next one goes on waiting for it.
			tasks[i+1].Depends = strings.Replace(tasks[i+1].Depends, was+".", tasks[i].Name+".", 1)
			problems, err := verdicts(wf)
			require.NotEmpty(t, problems)
			require.Error(t, err)
		})
	}
}

func TestValidateIsStrict(t *testing.T) {
	b, err := workflow.Marshal(valid(t))
	require.NoError(t, err)
	for name, c := range map[string]struct{ manifest, want string }{
		"empty":               {"", "empty"},
		"blank":               {"\n \n", "empty"},
		"unknown field":       {strings.Replace(string(b), "entrypoint: roll", "entrypoint: roll\n  entrypiont: roll", 1), "entrypiont"},
		"field that is twice": {strings.Replace(string(b), "entrypoint: roll", "entrypoint: roll\n  entrypoint: roll", 1), "entrypoint"},
		"two documents":       {string(b) + "---\n" + string(b), "want one Workflow, found 2"},
		"another kind":        {"apiVersion: argoproj.io/v1alpha1\nkind: WorkflowTemplate\nmetadata:\n  name: x\n", "want a Workflow"},
		"no YAML":             {"kind: Workflow\n a: [", "no proper YAML"},
		"no object":           {"- a\n- b\n", "no object"},
		"another API version": {strings.Replace(string(b), "argoproj.io/v1alpha1", "argoproj.io/v2", 1), "apiVersion"},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, workflow.Validate([]byte(c.manifest)), c.want) })
	}
}

func TestLint(t *testing.T) {
	good, err := workflow.Marshal(valid(t))
	require.NoError(t, err)
	wf := valid(t)
	wf.Spec.ActiveDeadlineSeconds = ptr.To(int64(1))
	bad, err := workflow.Marshal(wf)
	require.NoError(t, err)

	n, problems := workflow.Lint(good)
	require.Equal(t, 1, n)
	require.Empty(t, problems)

	n, problems = workflow.Lint([]byte(string(good) + "---\nkind: ConfigMap\napiVersion: v1\nmetadata:\n  name: x\n---\n" + string(bad)))
	require.Equal(t, 2, n)
	require.Len(t, problems, 1)
	require.Equal(t, "Workflow atewf-roll-...", problems[0].Object)
	require.ErrorContains(t, problems[0].Err, "activeDeadlineSeconds")

	n, problems = workflow.Lint([]byte("a: b\n"))
	require.Zero(t, n)
	require.Empty(t, problems)
}
