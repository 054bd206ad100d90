// Command guards takes each guard of a promise out of the code, one at a time, and reports which tests notice. It fails when
// one goes unnoticed. The source tree is not touched: the changed file is laid over it for one run of the tests.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

type guard struct {
	Promise        int
	Guard          string
	File, Old, New string
	Packages       []string // where its tests are; the steps and the Substrate client unless said otherwise
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := run(root, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "guards:", err)
		os.Exit(1)
	}
}

func run(root string, w io.Writer) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(root, "test/guards/guards.yaml"))
	if err != nil {
		return err
	}
	var guards []guard
	if err := yaml.UnmarshalStrict(b, &guards); err != nil {
		return fmt.Errorf("reading guards.yaml: %w", err)
	}
	dir, err := os.MkdirTemp("", "guards")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "PROMISE\tGUARD TAKEN OUT\tNOTICED BY")
	unnoticed := 0
	for i, g := range guards {
		tests, err := without(root, filepath.Join(dir, fmt.Sprint(i)), g)
		if err != nil {
			return fmt.Errorf("%s: %w", g.Guard, err)
		}
		by := fmt.Sprintf("%s (%d tests)", strings.Join(tests[:min(2, len(tests))], ", "), len(tests))
		if len(tests) == 0 {
			unnoticed++
			by = "NOBODY"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\n", g.Promise, g.Guard, by)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d guards, %d unnoticed\n", len(guards), unnoticed)
	if unnoticed > 0 {
		return fmt.Errorf("%d guard(s) can be taken out without a test noticing", unnoticed)
	}
	return nil
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// without runs the tests without the guard and returns the names of those that fail.
func without(root, dir string, g guard) ([]string, error) {
	file := filepath.Join(root, g.File)
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(src), g.Old); n != 1 {
		return nil, fmt.Errorf("%q stands %d times in %s, want once: bring guards.yaml up to date", g.Old, n, g.File)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	changed := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), g.Old, g.New, 1)), 0o644); err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return nil, err
	}
	pkgs := g.Packages
	if len(pkgs) == 0 {
		pkgs = []string{"./steps-image/steps", "./internal/substrate"}
	}
	cmd := exec.Command("go", append([]string{"test", "-vet=off", "-timeout=2m", "-overlay", list}, pkgs...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil, nil
	}
	var names []string
	for _, m := range failed.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		// It does not compile, or a test hangs: neither shows that a test notices.
		return nil, fmt.Errorf("the tests did not run without it:\n%s", out)
	}
	return names, nil
}
