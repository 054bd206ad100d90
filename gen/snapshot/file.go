package snapshot

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/atewf/atewf/internal/substrate"
)

// Sort puts the lists in the order of names.
func (s *Snapshot) Sort() {
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Pools, func(a, b Pool) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(s.Atelets, func(a, b DaemonSet) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Pods, func(a, b Pod) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(s.Workers, func(a, b substrate.Worker) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Actors, func(a, b substrate.Actor) int {
		return cmp.Or(cmp.Compare(a.Atespace, b.Atespace), cmp.Compare(a.Name, b.Name))
	})
}

// Write writes a snapshot as one JSON document, with one line for each object of a list, so that diff shows what
// changed.
func Write(w io.Writer, s *Snapshot) error {
	b := bufio.NewWriterSize(w, 1<<16)
	enc := &encoder{w: b}
	b.WriteString("{")
	for i, f := range []struct {
		name  string
		value any
	}{
		{"apiVersion", APIVersion}, {"kind", Kind}, {"taken", s.Taken.UTC()}, {"cluster", s.Cluster}, {"namespace", s.Namespace},
		{"poolsServed", s.PoolsServed}, {"control", s.Control}, {"lease", s.Lease},
	} {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(b, "\n  %q: ", f.name)
		enc.value(f.value)
	}
	list(enc, "nodes", s.Nodes)
	list(enc, "pools", s.Pools)
	list(enc, "atelets", s.Atelets)
	list(enc, "pods", s.Pods)
	list(enc, "workers", s.Workers)
	list(enc, "actors", s.Actors)
	b.WriteString("\n}\n")
	if enc.err != nil {
		return fmt.Errorf("writing the snapshot: %w", enc.err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	return nil
}

type encoder struct {
	w   *bufio.Writer
	err error
}

func (e *encoder) value(v any) {
	b, err := json.Marshal(v)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.w.Write(b)
}

func list[T any](e *encoder, name string, items []T) {
	fmt.Fprintf(e.w, ",\n  %q: [", name)
	for i := range items {
		if i > 0 {
			e.w.WriteString(",")
		}
		e.w.WriteString("\n    ")
		e.value(items[i])
	}
	if len(items) > 0 {
		e.w.WriteString("\n  ")
	}
	e.w.WriteString("]")
}

// ReadError is the error of a snapshot file that cannot be used.
type ReadError struct {
	// File is the name of the file, Line and Offset the place in it, counted from 1 and from 0.
	File   string
	Line   int
	Offset int64
	Err    error
}

// Error names the file, the place and the way out.
func (e *ReadError) Error() string {
	return fmt.Sprintf("snapshot %s, line %d (byte %d): %v; take it again with atewf snapshot", e.File, e.Line, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// ReadFile reads a snapshot from a file.
func ReadFile(path string) (*Snapshot, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the snapshot: %w; write one with atewf snapshot > FILE", err)
	}
	return Read(path, data)
}

// Read reads a snapshot; name stands for it in errors. It is strict: an unknown field, a field that is there twice,
// another kind or a missing end is an error, because a plan made of half a cluster is worse than none.
func Read(name string, data []byte) (*Snapshot, error) {
	d := &decoder{data: data, dec: jsontext.NewDecoder(bytes.NewBuffer(data), jsonv2.RejectUnknownMembers(true))}
	s, err := d.snapshot()
	if err == nil {
		if err = s.check(); err == nil {
			return s, nil
		}
	}
	at := min(d.at, len(data))
	field := func(fault error) string {
		var syntactic *jsontext.SyntacticError
		var semantic *jsonv2.SemanticError
		switch {
		case !errors.Is(err, fault):
		case errors.As(err, &syntactic):
			return syntactic.JSONPointer.LastToken()
		case errors.As(err, &semantic):
			return semantic.JSONPointer.LastToken()
		}
		return ""
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = len(data), errors.New("the file ends in the middle, it was cut")
	} else if f := field(jsonv2.ErrUnknownName); f != "" {
		err = unknown(f)
	} else if f := field(jsontext.ErrDuplicateName); f != "" {
		err = fmt.Errorf("field %q is there twice", f)
	}
	return nil, &ReadError{File: name, Line: 1 + bytes.Count(data[:at], []byte("\n")), Offset: int64(at), Err: err}
}

func unknown(field string) error {
	return fmt.Errorf("field %q is unknown to this version of atewf", field)
}

// decoder reads a snapshot object by object, each in one pass, so that a large one is never there twice.
type decoder struct {
	data []byte
	dec  *jsontext.Decoder
	at   int // where the value begins that is being read
}

func (d *decoder) snapshot() (*Snapshot, error) {
	if t := bytes.TrimLeft(d.data, " \t\r\n"); len(t) == 0 {
		return nil, errors.New("the file is empty")
	} else if t[0] != '{' {
		return nil, errors.New("this is no JSON object, so no snapshot")
	}
	if _, err := d.token(); err != nil {
		return nil, err
	}
	s := &Snapshot{}
	var apiVersion, kind string
	fields := map[string]func() error{
		"apiVersion":  func() error { return d.exactly(&apiVersion, APIVersion) },
		"kind":        func() error { return d.exactly(&kind, Kind) },
		"taken":       func() error { return d.value(&s.Taken) },
		"cluster":     func() error { return d.value(&s.Cluster) },
		"namespace":   func() error { return d.value(&s.Namespace) },
		"poolsServed": func() error { return d.value(&s.PoolsServed) },
		"control":     func() error { return d.value(&s.Control) },
		"lease":       func() error { return d.value(&s.Lease) },
		"nodes":       func() error { return items(d, &s.Nodes) },
		"pools":       func() error { return items(d, &s.Pools) },
		"atelets":     func() error { return items(d, &s.Atelets) },
		"pods":        func() error { return items(d, &s.Pods) },
		"workers":     func() error { return items(d, &s.Workers) },
		"actors":      func() error { return items(d, &s.Actors) },
	}
	seen := map[string]bool{}
	for d.dec.PeekKind() != '}' {
		t, err := d.token()
		if err != nil {
			return nil, err
		}
		name := t.String()
		read, ok := fields[name]
		switch {
		case !ok && kind == "":
			return nil, fmt.Errorf("the file begins with %q and not with apiVersion and kind, so it is no snapshot", name)
		case !ok:
			return nil, unknown(name)
		case kind == "" && name != "apiVersion" && name != "kind":
			return nil, fmt.Errorf("field %q stands before apiVersion and kind", name)
		}
		seen[name] = true
		if err := read(); err != nil {
			return nil, err
		}
	}
	if _, err := d.token(); err != nil {
		return nil, err
	}
	if _, err := d.token(); err == nil || !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows after the end of the snapshot")
	}
	for _, name := range []string{"apiVersion", "kind", "taken", "namespace", "poolsServed", "control", "nodes", "pools", "atelets", "pods", "workers", "actors"} {
		if !seen[name] {
			return nil, fmt.Errorf("field %q is missing", name)
		}
	}
	return s, nil
}

// next moves to the value that comes next, over what separates values.
func (d *decoder) next() {
	d.at = int(d.dec.InputOffset())
	for d.at < len(d.data) && strings.IndexByte(" \t\r\n,:", d.data[d.at]) >= 0 {
		d.at++
	}
}

func (d *decoder) token() (jsontext.Token, error) {
	d.next()
	return d.dec.ReadToken()
}

func (d *decoder) value(v any) error {
	d.next()
	return jsonv2.UnmarshalDecode(d.dec, v)
}

func (d *decoder) exactly(s *string, want string) error {
	if err := d.value(s); err != nil {
		return err
	}
	if *s != want {
		return fmt.Errorf("want %q here, found %q, so this is no snapshot that this version of atewf can read", want, *s)
	}
	return nil
}

func items[T any](d *decoder, out *[]T) error {
	t, err := d.token()
	if err != nil {
		return err
	}
	switch t.Kind() {
	case 'n':
		return nil
	case '[':
	default:
		return fmt.Errorf("want a list here, found %v", t)
	}
	// The list ends at a line of its own in every file that Write made, so its lines tell its length. In any other the
	// slice just grows as it must.
	rest := d.data[d.at:]
	if end := bytes.Index(rest, []byte("\n  ]")); end > 0 {
		*out = make([]T, 0, bytes.Count(rest[:end], []byte("\n")))
	}
	for d.dec.PeekKind() != ']' {
		var none T
		*out = append(*out, none)
		if err := d.value(&(*out)[len(*out)-1]); err != nil {
			return err
		}
	}
	_, err = d.token()
	return err
}
