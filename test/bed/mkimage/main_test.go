package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

func TestImageHoldsWhatItWasGiven(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/true\n"), 0o600))
	out := filepath.Join(dir, "out.tar")
	args := []string{"-entrypoint", "/bin/p", "-user", "65532", "-env", "A=1", "-symlinks", "p,q", out, "docker.io/local/p:1", program + "=/bin/p"}
	require.NoError(t, run(args))

	tag, err := name.NewTag("docker.io/local/p:1")
	require.NoError(t, err)
	image, err := tarball.ImageFromPath(out, &tag)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/p"}, config.Config.Entrypoint)
	require.Equal(t, "65532", config.Config.User)
	require.Equal(t, []string{"PATH=/bin:/usr/bin", "A=1"}, config.Config.Env)

	layers, err := image.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	got := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		got[h.Name] = h.FileInfo().Mode().String() + " " + h.Linkname
	}
	want := map[string]string{
		"tmp/": "dtrwxrwxrwx ", "etc/": "drwxr-xr-x ", "etc/passwd": "-rw-r--r-- ",
		"bin/": "drwxr-xr-x ", "bin/p": "-rwxr-xr-x ", "bin/q": "Lrwxrwxrwx p",
	}
	require.Equal(t, want, got)

	// The same files give the same bytes, so that an unchanged image is not loaded again.
	first, err := os.ReadFile(out)
	require.NoError(t, err)
	require.NoError(t, run(args))
	second, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestUsageErrorsSayWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.tar")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing to pack":  {[]string{out, "local/a:1"}, "usage: mkimage"},
		"bad name":         {[]string{out, "A B", "f=/f"}, `read image name "A B"`},
		"relative target":  {[]string{out, "local/a:1", "f=f"}, `"f=f" is not of the form FILE=/PATH/IN/IMAGE`},
		"no such file":     {[]string{out, "local/a:1", filepath.Join(dir, "none") + "=/f"}, "read a file for the image"},
		"unwritable place": {[]string{filepath.Join(dir, "none", "out.tar"), "local/a:1", os.Args[0] + "=/f"}, "write "},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, run(tc.args), tc.want) })
	}
}
