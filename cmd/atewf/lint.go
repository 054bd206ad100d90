package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/atewf/atewf/gen/workflow"
)

func newLint(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check Workflows of a roll as atewf checks its own",
		Long: `Check Workflows and WorkflowTemplates of a roll as atewf checks its own before it prints them: strictly against
Argo's types, by Argo's own validation, and by the rules of a roll: one thing at a time, gates that can be approved by
name, nothing that goes on after a failure. - reads standard input.`,
		Example: `  # After an edit by hand
  atewf generate > roll.yaml
  atewf lint roll.yaml

  # In a pipe
  atewf generate | atewf lint -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no file given; pass one or more, or - for standard input")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return lint(streams, args) },
	}
}

func lint(streams genericiooptions.IOStreams, files []string) error {
	var errs []error
	for _, file := range files {
		data, err := readFile(streams, file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objects, problems := workflow.Lint(data)
		for _, p := range problems {
			errs = append(errs, fmt.Errorf("%s: %s: %w", file, p.Object, p.Err))
		}
		switch {
		case len(problems) > 0:
		case objects == 0:
			errs = append(errs, fmt.Errorf("%s: there is no Workflow or WorkflowTemplate in it; give a file that has one", file))
		default:
			fmt.Fprintf(streams.ErrOut, "%s: no problem found\n", file)
		}
	}
	return joined(errs)
}

// readFile reads a file, or standard input for -.
func readFile(streams genericiooptions.IOStreams, name string) ([]byte, error) {
	if name == "-" {
		b, err := io.ReadAll(streams.In)
		if err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		return b, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the file: %w", err)
	}
	return b, nil
}
