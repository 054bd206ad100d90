package snapshot_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/gen/snapshot/snapshottest"
)

func written(t testing.TB, s *snapshot.Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, snapshot.Write(&b, s))
	return b.Bytes()
}

func full() *snapshot.Snapshot {
	s := snapshottest.Fleet(snapshottest.Three)
	s.Lease = &snapshot.Lease{Holder: "argo/roll/1", Node: "node1", Workflow: snapshot.WorkflowLive}
	s.Nodes[0].Stamp = `{"roll":"argo/roll/1"}`
	s.Control.Why = "a <reason> & more"
	return s
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for name, s := range map[string]*snapshot.Snapshot{"full": full(), "empty": {Taken: snapshottest.Taken, Namespace: "ate-system"}} {
		t.Run(name, func(t *testing.T) {
			b := written(t, s)
			require.True(t, json.Valid(b))
			got, err := snapshot.Read("f", b)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(s, got))
			require.Equal(t, string(b), string(written(t, got)))
		})
	}
}

// One changed object is one changed line, so that diff shows it.
func TestOneLineForEachObject(t *testing.T) {
	a := full()
	b := full()
	b.Nodes[1].Ready = false
	b.Actors[3].State = "CRASHED"
	x, y := strings.Split(string(written(t, a)), "\n"), strings.Split(string(written(t, b)), "\n")
	require.Len(t, y, len(x))
	changed := 0
	for i := range x {
		if x[i] != y[i] {
			changed++
		}
	}
	require.Equal(t, 2, changed)
}

func TestReadIsStrict(t *testing.T) {
	good := string(written(t, full()))
	lines := strings.Split(good, "\n")
	node := func(name string) int { // its line, counted from 1
		for i, l := range lines {
			if strings.Contains(l, `{"name":"`+name+`"`) {
				return i + 1
			}
		}
		panic(name)
	}
	for name, c := range map[string]struct {
		file, want string
		line       int
	}{
		"empty":                 {"", "the file is empty", 1},
		"blank":                 {"\n\n ", "the file is empty", 1},
		"no JSON":               {"apiVersion: v1\nkind: List\n", "no JSON object", 1},
		"another object":        {`{"metadata": {}}`, `begins with "metadata" and not with apiVersion and kind`, 1},
		"another kind":          {strings.Replace(good, `"Snapshot"`, `"List"`, 1), `want "Snapshot" here, found "List"`, 3},
		"another version":       {strings.Replace(good, "atewf.dev/v1", "atewf.dev/v9", 1), `want "atewf.dev/v1" here, found "atewf.dev/v9"`, 2},
		"kind not first":        {"{\"apiVersion\": \"atewf.dev/v1\",\n\"nodes\": []}", "stands before apiVersion and kind", 2},
		"unknown field":         {strings.Replace(good, `"namespace":`, `"extra": 1,`+"\n"+`  "namespace":`, 1), `field "extra" is unknown`, 6},
		"unknown field within":  {strings.Replace(good, `{"name":"node2"`, `{"extra":1,"name":"node2"`, 1), `field "extra" is unknown`, node("node2")},
		"field that is twice":   {strings.Replace(good, `"namespace":`, `"namespace": "x",`+"\n"+`  "namespace":`, 1), `field "namespace" is there twice`, 7},
		"field twice within":    {strings.Replace(good, `{"name":"node2"`, `{"name":"node2","name":"node2"`, 1), `field "name" is there twice`, node("node2")},
		"field in capitals":     {strings.Replace(good, `{"name":"node2"`, `{"Name":"node2"`, 1), `field "Name" is unknown`, node("node2")},
		"wrong type":            {strings.Replace(good, `{"name":"node2"`, `{"name":2`, 1), "number", node("node2")},
		"no list":               {strings.Replace(good, `"nodes": [`, `"nodes": 3, "x": [`, 1), "want a list here, found 3", 10},
		"bad JSON":              {strings.Replace(good, `{"name":"node3"`, `{"name";"node3"`, 1), "invalid character ';'", node("node3")},
		"missing field":         {strings.Replace(good, "  \"namespace\": \"ate-system\",\n", "", 1), `field "namespace" is missing`, len(lines) - 1},
		"something follows":     {good + "{}", "something follows after the end", len(lines)},
		"two nodes of one name": {strings.Replace(good, `{"name":"node3"`, `{"name":"node2"`, 1), `node "node2" is there twice`, len(lines)},
		"node without a name":   {strings.Replace(good, `{"name":"node3"`, `{"name":""`, 1), "node 3 of 3 has no name", len(lines)},
		"cut in half":           {good[:len(good)/2], "the file ends in the middle, it was cut", 1 + strings.Count(good[:len(good)/2], "\n")},
		"cut at its end":        {strings.TrimRight(good, "}\n"), "the file ends in the middle, it was cut", len(lines) - 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := snapshot.Read("cluster.json", []byte(c.file))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "snapshot cluster.json, line ")
			require.ErrorContains(t, err, "; take it again with atewf snapshot")
			var at *snapshot.ReadError
			require.ErrorAs(t, err, &at)
			require.Equal(t, c.line, at.Line)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// Wherever the file is cut, that is what the error says, unless only the last line break is missing.
func TestEveryCutIsNoticed(t *testing.T) {
	good := written(t, snapshottest.Fleet(snapshottest.Size{Nodes: 1, Pools: 1, WorkersPerNode: 1, Actors: 1}))
	for n := 1; n < len(good)-2; n++ {
		_, err := snapshot.Read("f", good[:n])
		require.ErrorContains(t, err, "it was cut", "cut at %d: %s", n, good[:n])
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	_, err := snapshot.ReadFile(filepath.Join(dir, "nosuch.json"))
	require.ErrorContains(t, err, "nosuch.json: no such file or directory; write one with atewf snapshot > FILE")
	file := filepath.Join(dir, "cluster.json")
	require.NoError(t, os.WriteFile(file, written(t, full()), 0o600))
	s, err := snapshot.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, s.Nodes, 3)
}

func FuzzRead(f *testing.F) {
	good := written(f, full())
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"apiVersion":"atewf.dev/v1","kind":"Snapshot","nodes":null,"nodes":[`))
	f.Add([]byte(`{"apiVersion":"atewf.dev/v1","kind":"Snapshot",1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := snapshot.Read("f", data)
		if (s == nil) == (err == nil) {
			t.Fatal("want either a snapshot or an error")
		}
		if err != nil {
			return
		}
		again, err := snapshot.Read("f", written(t, s))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(s, again))
	})
}

// A damaged file is an error and never a panic or an endless loop.
func TestDamagedFiles(t *testing.T) {
	good := written(t, snapshottest.Fleet(snapshottest.Size{Nodes: 2, Pools: 1, WorkersPerNode: 1, Actors: 2}))
	for i := range good {
		for _, b := range []byte{'"', '{', '}', '[', ']', ',', ':', '0', 0, 0xff} {
			bad := bytes.Clone(good)
			bad[i] = b
			_, _ = snapshot.Read("f", bad)
		}
	}
}
