package workflow

import (
	"bytes"
	"encoding/json"
	"fmt"

	wfv1 "github.com/argoproj/argo-workflows/v3/pkg/apis/workflow/v1alpha1"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// Marshal writes a Workflow as YAML, without the empty fields that Argo's types carry along, and with the templates at its
// end. The same Workflow gives the same bytes.
func Marshal(wf *wfv1.Workflow) ([]byte, error) {
	m, err := pruned(wf)
	if err != nil {
		return nil, err
	}
	var templates []any
	if spec, ok := m["spec"].(map[string]any); ok {
		templates, _ = spec["templates"].([]any)
		delete(spec, "templates")
	}
	// The inner YAML package writes maps in the order of their keys too; the outer one would go through JSON once more.
	// It keeps all that it has written of a document in memory, and copies that again and again as it grows; so each
	// template is one of its own. spec is the last of the keys, and what follows it belongs to it.
	out, err := goyaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("writing the Workflow as YAML: %w", err)
	}
	if len(templates) == 0 {
		return out, nil
	}
	out = append(out, "  templates:\n"...)
	for _, t := range templates {
		item, err := goyaml.Marshal([]any{t})
		if err != nil {
			return nil, fmt.Errorf("writing the Workflow as YAML: %w", err)
		}
		for line := range bytes.Lines(item) {
			if len(line) > 1 { // a blank one within a text stays blank
				out = append(out, "  "...)
			}
			out = append(out, line...)
		}
	}
	return out, nil
}

// JSON is a Workflow as the printed YAML arrives at the API server.
func JSON(wf *wfv1.Workflow) ([]byte, error) {
	m, err := pruned(wf)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// Stored is how many bytes a Workflow has once Argo has written it: Argo puts the empty fields back.
func Stored(wf *wfv1.Workflow) (int, error) {
	b, err := json.Marshal(wf)
	if err != nil {
		return 0, fmt.Errorf("writing the Workflow as JSON: %w", err)
	}
	return len(b), nil
}

func pruned(wf *wfv1.Workflow) (map[string]any, error) {
	b, err := json.Marshal(wf)
	if err != nil {
		return nil, fmt.Errorf("writing the Workflow as JSON: %w", err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("reading the Workflow back: %w", err)
	}
	delete(m, "status") // of a Workflow that has not run, and yet never empty
	return prune(m).(map[string]any), nil
}

// noise are the fields that Argo's and Kubernetes' types write although they are empty. No other empty field is
// touched: suspend: {} and emptyDir: {} say something.
var noise = map[string]bool{"inputs": true, "outputs": true, "arguments": true, "metadata": true, "resources": true, "creationTimestamp": true, "name": true}

// prune takes the noise out of a value read from JSON, and makes its whole numbers integers again.
func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e = prune(e); noise[k] && empty(e) {
				delete(v, k)
			} else {
				v[k] = e
			}
		}
	case []any:
		for i, e := range v {
			v[i] = prune(e)
		}
	case float64:
		if n := int64(v); float64(n) == v {
			return n
		}
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case map[string]any:
		return len(v) == 0
	}
	return false
}
