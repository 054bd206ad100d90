// Command mkimage packs files into an image of one layer and writes it as a docker-archive tar, which containerd
// imports without any registry:
//
//	mkimage [-entrypoint PATH] [-user UID] [-env K=V] [-symlinks NAME,...] OUT.tar NAME:TAG FILE=/PATH/IN/IMAGE...
//
// The same files give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// passwd lets programs look up the two users that containers of the bed run as.
const passwd = "root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	entrypoint := flags.String("entrypoint", "", "program to run; none leaves it to the pod")
	user := flags.String("user", "", "user id to run as; none is root")
	symlinks := flags.String("symlinks", "", "names to link to the first file, in its directory, separated by commas")
	var env []string
	flags.Func("env", "environment variable K=V; may be repeated", func(s string) error {
		env = append(env, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() < 3 {
		return errors.New("usage: mkimage [flags] OUT.tar NAME:TAG FILE=/PATH/IN/IMAGE [FILE=/PATH/IN/IMAGE ...]")
	}
	out, files := flags.Arg(0), flags.Args()[2:]
	tag, err := name.NewTag(flags.Arg(1))
	if err != nil {
		return fmt.Errorf("read image name %q: %w", flags.Arg(1), err)
	}

	content, err := pack(files, *symlinks)
	if err != nil {
		return err
	}
	// Not compressed: it only travels to a disk of this machine, and every node would have to undo it.
	layer := static.NewLayer(content, types.DockerUncompressedLayer)
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("add the layer of %s: %w", tag, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("read the configuration of %s: %w", tag, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: append([]string{"PATH=/bin:/usr/bin"}, env...), User: *user}
	if *entrypoint != "" {
		config.Config.Entrypoint = []string{*entrypoint}
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return fmt.Errorf("set the configuration of %s: %w", tag, err)
	}
	if err := tarball.WriteToFile(out, tag, image); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	return nil
}

// pack returns the layer: the files, their directories, /etc/passwd and an open /tmp.
func pack(files []string, symlinks string) ([]byte, error) {
	var buf bytes.Buffer
	p := &packer{tw: tar.NewWriter(&buf), dirs: map[string]bool{"/": true}}
	if err := p.dir("/tmp", 0o1777); err != nil {
		return nil, err
	}
	if err := p.file("/etc/passwd", 0o644, []byte(passwd)); err != nil {
		return nil, err
	}
	for i, arg := range files {
		from, to, ok := strings.Cut(arg, "=")
		if !ok || !path.IsAbs(to) {
			return nil, fmt.Errorf("%q is not of the form FILE=/PATH/IN/IMAGE", arg)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("read a file for the image: %w", err)
		}
		if err := p.file(to, 0o755, data); err != nil {
			return nil, err
		}
		if i > 0 || symlinks == "" {
			continue
		}
		for _, link := range strings.Split(symlinks, ",") {
			if link = path.Join(path.Dir(to), link); link == to {
				continue
			}
			if err := p.link(link, path.Base(to)); err != nil {
				return nil, err
			}
		}
	}
	if err := p.tw.Close(); err != nil {
		return nil, fmt.Errorf("close the layer: %w", err)
	}
	return buf.Bytes(), nil
}

// packer writes entries and, before each, the directories that it needs. Times stay zero, for the sake of equal bytes.
type packer struct {
	tw   *tar.Writer
	dirs map[string]bool
}

func (p *packer) dir(name string, mode int64) error {
	if p.dirs[name] {
		return nil
	}
	if err := p.dir(path.Dir(name), 0o755); err != nil {
		return err
	}
	p.dirs[name] = true
	return p.entry(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (p *packer) file(name string, mode int64, data []byte) error {
	if err := p.dir(path.Dir(name), 0o755); err != nil {
		return err
	}
	return p.entry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}, data)
}

func (p *packer) link(name, target string) error {
	return p.entry(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (p *packer) entry(h *tar.Header, data []byte) error {
	h.Name = strings.TrimPrefix(h.Name, "/")
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s into the layer: %w", h.Name, err)
	}
	if _, err := p.tw.Write(data); err != nil {
		return fmt.Errorf("write %s into the layer: %w", h.Name, err)
	}
	return nil
}
