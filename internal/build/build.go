// Package build says which build of the program this is.
package build

import "runtime/debug"

// version is set by the linker in releases: -X github.com/atewf/atewf/internal/build.version=v1.2.3.
var version string

// Version is the version of the program: the release, else what the Go toolchain knows of the module, else "dev".
func Version() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		return bi.Main.Version
	}
	return "dev"
}
