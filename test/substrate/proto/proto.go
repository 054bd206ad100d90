// Package proto holds the Control API of Agent Substrate in the generations that the simulator serves, with the field
// numbers that each had. They share one protobuf package and give the same numbers to different things, so they are read at
// run time, each into a registry of its own, and never linked together.
package proto

import (
	"context"
	"embed"
	"fmt"
	"io"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
)

//go:embed *.proto
var files embed.FS

// Generation names one of the generations.
type Generation string

// The generations, oldest first.
const (
	Runbook       Generation = "runbook"       // one actor a worker, status.assignment, local_snapshot_info
	Multi         Generation = "multi"         // several actors a worker, ListWorkerActorAssignments, local_snapshot_info
	LocalSnapshot Generation = "localsnapshot" // local_snapshot, epochs, node names, RevertActor
	AssignedNode  Generation = "assignednode"  // assigned_node and a list of snapshots
)

// Generations lists them all.
func Generations() []Generation { return []Generation{Runbook, Multi, LocalSnapshot, AssignedNode} }

// Load reads the description of a generation.
func Load(ctx context.Context, g Generation) (protoreflect.FileDescriptor, error) {
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: func(path string) (io.ReadCloser, error) { return files.Open(path) },
	})}
	fds, err := c.Compile(ctx, string(g)+".proto")
	if err != nil {
		return nil, fmt.Errorf("reading generation %q of the control API: %w", g, err)
	}
	return fds[0], nil
}
