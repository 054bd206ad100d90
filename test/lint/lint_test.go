// Package lint checks what atewf makes with the argo command that users have.
package lint

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// argo finds the argo command. Without it nothing is tested, and that is a failure.
func argo(t *testing.T) string {
	t.Helper()
	if a := os.Getenv("ARGO"); a != "" {
		return a
	}
	a, err := exec.LookPath("argo")
	if err != nil {
		t.Fatal("there is no argo on PATH; build it with test/bed/bed build and set ARGO to ~/.cache/atewf/bed/bin/argo, or install the release of Argo Workflows")
	}
	return a
}

// offline runs argo lint on one file, as a user without any cluster does.
func offline(t *testing.T, argo, file string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argo, "lint", "--offline", "--no-color", file)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(t.TempDir(), "none"), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Every shape of Workflow that the generator makes, one object a file, and the templates that are installed.
func TestArgoLint(t *testing.T) {
	a := argo(t)
	files, err := filepath.Glob("../../gen/workflow/testdata/*.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 15, "the golden files of the generator")
	files = append(files, "../../templates/steps.yaml")
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			out, err := offline(t, a, f)
			require.NoError(t, err, out)
			require.Contains(t, out, "no linting errors found")
		})
	}
}

// argo lint does find faults, so that its silence above means something.
func TestArgoLintFindsFaults(t *testing.T) {
	a := argo(t)
	good, err := os.ReadFile("../../gen/workflow/testdata/gate-every.yaml")
	require.NoError(t, err)
	for name, c := range map[string]struct{ from, to string }{
		"unknown field":     {"entrypoint: roll", "entrypoint: roll\n  entrypiont: roll"},
		"unknown template":  {"template: flip", "template: flop"},
		"unknown parameter": {"{{workflow.parameters.to}}", "{{workflow.parameters.too}}"},
		"unknown task":      {"depends: flip.Succeeded", "depends: flop.Succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(good), c.from)
			f := filepath.Join(t.TempDir(), "bad.yaml")
			require.NoError(t, os.WriteFile(f, []byte(strings.ReplaceAll(string(good), c.from, c.to)), 0o600))
			out, err := offline(t, a, f)
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "%v: %s", err, out)
		})
	}
}
