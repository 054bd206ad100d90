// Command image packs the step binary into a container image without a container engine: the binary, the public
// certificate authorities, and nothing else. The same inputs give the same bytes.
//
//	image -tag atewf/atewf-steps:v1 -out steps.tar linux/amd64=bin/amd64/atewf-steps [linux/arm64=...]
//
// With one platform it writes a tar that container runtimes import (docker-archive); with -oci it writes an OCI layout,
// which holds any number of platforms.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// binary is where the step binary is in the image; the step templates name it.
const binary = "/atewf-steps"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	tag := fs.String("tag", "", "name of the image, as NAME:TAG")
	out := fs.String("out", "", "tar to write")
	oci := fs.String("oci", "", "OCI layout directory to write")
	roots := fs.String("roots", "", "write the certificate authorities alone to this file, as the Dockerfile needs them")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *roots != "" {
		return os.WriteFile(*roots, authorities(), 0o644)
	}
	ref, err := name.NewTag(*tag)
	if err != nil {
		return fmt.Errorf("-tag %q: %w", *tag, err)
	}
	if fs.NArg() == 0 || (*out == "") == (*oci == "") {
		return fmt.Errorf("want -out or -oci, and at least one PLATFORM=BINARY")
	}
	var images []v1.Image
	var platforms []*v1.Platform
	for _, a := range fs.Args() {
		platform, file, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("%q: want PLATFORM=BINARY, for example linux/amd64=bin/atewf-steps", a)
		}
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return fmt.Errorf("%q: %w", a, err)
		}
		img, err := build(p, file)
		if err != nil {
			return fmt.Errorf("building the image for %s: %w", platform, err)
		}
		images, platforms = append(images, img), append(platforms, p)
	}
	if *out != "" {
		if len(images) != 1 {
			return fmt.Errorf("-out holds one platform, not %d; use -oci", len(images))
		}
		if err := tarball.WriteToFile(*out, ref, images[0]); err != nil {
			return fmt.Errorf("writing %s: %w", *out, err)
		}
		return report(stdout, ref, images[0])
	}
	index := v1.ImageIndex(empty.Index)
	for i, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platforms[i],
			Annotations: map[string]string{"org.opencontainers.image.ref.name": ref.TagStr()}}})
	}
	if _, err := layout.Write(*oci, index); err != nil {
		return fmt.Errorf("writing %s: %w", *oci, err)
	}
	return report(stdout, ref, index)
}

func report(w io.Writer, ref name.Tag, o interface{ Digest() (v1.Hash, error) }) error {
	d, err := o.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s@%s\n", ref.Name(), d)
	return err
}

// build makes the image of one platform: a layer, and a configuration that runs the binary as nobody.
func build(p *v1.Platform, file string) (v1.Image, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	add := func(name string, mode int64, content []byte) error {
		h := &tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := tw.Write(content)
		return err
	}
	for _, f := range []struct {
		name    string
		mode    int64
		content []byte
	}{
		{"/etc/", 0o755, nil}, {"/etc/ssl/", 0o755, nil}, {"/etc/ssl/certs/", 0o755, nil},
		{"/etc/ssl/certs/ca-certificates.crt", 0o644, authorities()},
		{binary, 0o755, b},
	} {
		if err := add(f.name, f.mode, f.content); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: p.Architecture, OS: p.OS, Variant: p.Variant,
		Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		Config:  v1.Config{Entrypoint: []string{binary}, User: "65532:65532", Env: []string{"PATH=/"}},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: diffIDs(img)},
		History: []v1.History{{CreatedBy: "atewf steps-image/image", Created: v1.Time{Time: time.Unix(0, 0).UTC()}}},
	})
}

func diffIDs(img v1.Image) []v1.Hash {
	cf, err := img.ConfigFile()
	if err != nil { // an image made in memory has a configuration
		panic(err)
	}
	return cf.RootFS.DiffIDs
}

// authorities are the public certificate authorities, in PEM, from a module that is pinned like any other dependency.
func authorities() []byte {
	var buf bytes.Buffer
	for root := range bundle.Roots() {
		// Encoding into memory does not fail.
		_ = pem.Encode(&buf, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
	}
	return buf.Bytes()
}
