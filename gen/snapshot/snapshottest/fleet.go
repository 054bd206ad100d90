// Package snapshottest makes up snapshots of fleets for tests.
package snapshottest

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// Old and New are the versions of a fleet.
const (
	Old = "v1"
	New = "v2"
)

// Size says how large a fleet is.
type Size struct {
	// Nodes in three zones, each with the same number of workers.
	Nodes int
	// Pools at the old version, each with a clone at the new one.
	Pools int
	// WorkersPerNode is the number of worker pods on each node, which belong to the pools in turn.
	WorkersPerNode int
	// Actors, of which every tenth is paused, every second suspended and the others run as far as there are workers.
	Actors int
	// Name makes the name of a node out of its number, counted from 1; node1, node2 and so on when it is nil.
	Name func(int) string
}

// Three is the smallest fleet that is worth rolling: three nodes, two pools of six workers, ten actors.
var Three = Size{Nodes: 3, Pools: 2, WorkersPerNode: 4, Actors: 10}

// Taken is when every fleet was read.
var Taken = time.Date(2026, 9, 7, 12, 0, 0, 0, time.UTC)

// Fleet is a healthy fleet before its roll: every node at Old, the atelet of New deployed, every pool cloned.
func Fleet(size Size) *snapshot.Snapshot {
	name := size.Name
	if name == nil {
		name = func(i int) string { return fmt.Sprintf("node%d", i) }
	}
	s := &snapshot.Snapshot{
		Taken: Taken, Cluster: snapshot.Cluster{Name: "prod", Context: "prod"}, Namespace: versions.Namespace,
		PoolsServed: true, Control: snapshot.Control{Read: true},
		Atelets: []snapshot.DaemonSet{
			Atelet(Old, Taken.Add(-90*24*time.Hour), int32(size.Nodes)),
			Atelet(New, Taken.Add(-time.Hour), 0),
		},
	}
	replicas := make([]int64, size.Pools)
	for i := range size.Nodes {
		n := name(i + 1)
		s.Nodes = append(s.Nodes, snapshot.Node{Name: n, Ready: true, Created: Taken.Add(-100 * 24 * time.Hour), Labels: map[string]string{
			versions.Label:             Old,
			corev1.LabelHostname:       n,
			corev1.LabelTopologyZone:   "zone-" + string(rune('a'+i%3)),
			corev1.LabelArchStable:     "amd64",
			corev1.LabelOSStable:       "linux",
			corev1.LabelInstanceType:   "n2-standard-16",
			corev1.LabelTopologyRegion: "europe-west1",
		}})
		for w := range size.WorkersPerNode {
			p := (i*size.WorkersPerNode + w) % max(1, size.Pools)
			replicas[p]++
			pod := Pod(fmt.Sprintf("pool%d", p+1), Old, n, len(s.Pods)+1)
			s.Pods = append(s.Pods, pod)
			s.Workers = append(s.Workers, Worker(pod))
		}
	}
	for i := range size.Pools {
		old := Pool(fmt.Sprintf("pool%d", i+1), Old, replicas[i])
		old.Ready = old.Replicas
		s.Pools = append(s.Pools, old, Clone(old))
	}
	free := 0
	for i := range size.Actors {
		a := substrate.Actor{Ref: substrate.Ref{Atespace: fmt.Sprintf("space%d", i%20+1), Name: fmt.Sprintf("actor%06d", i+1)}, State: substrate.Suspended}
		switch {
		case i%10 == 9 && size.Nodes > 0:
			a.State, a.SnapshotNodes = substrate.Paused, []string{s.Nodes[i%size.Nodes].Name}
		case i%2 == 0 && free < len(s.Workers):
			w := &s.Workers[free]
			a.State, a.Worker, a.WorkerPodUID = substrate.Running, w.Name, w.PodUID
			w.Claimed, w.ClaimedActor = 1, a.Ref.String()
			free++
		}
		s.Actors = append(s.Actors, a)
	}
	s.Sort()
	return s
}

// Atelet is the atelet DaemonSet of a version.
func Atelet(version string, created time.Time, nodes int32) snapshot.DaemonSet {
	return snapshot.DaemonSet{
		Name: "atelet-" + version, Version: version, Created: created, Desired: nodes, Ready: nodes,
		NodeSelector: map[string]string{versions.Label: version},
		Tolerations:  []corev1.Toleration{{Key: "ate.dev/sandboxClass", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
	}
}

// Pool is a worker pool that is pinned to a version.
func Pool(name, version string, replicas int64) snapshot.Pool {
	p := snapshot.Pool{
		Namespace: "agents", Name: name, Labels: map[string]string{"pool": name}, Class: "gvisor",
		Image: "registry.example/ateom-gvisor@sha256:" + fmt.Sprintf("%064x", 1), Pin: version, Replicas: replicas,
	}
	p.Spec = Spec(p)
	return p
}

// Clone is a pool as the runbook clones it: name, image and pin differ.
func Clone(old snapshot.Pool) snapshot.Pool {
	c := old
	c.Name, c.Pin, c.Ready = old.Name+"-"+New, New, 0
	c.Image = "registry.example/ateom-gvisor@sha256:" + fmt.Sprintf("%064x", 2)
	c.Spec = Spec(c)
	return c
}

// Spec is the spec of a pool, as JSON.
func Spec(p snapshot.Pool) json.RawMessage {
	template := map[string]any{"resources": map[string]any{"limits": map[string]string{"cpu": "1", "memory": "2Gi"}}}
	if p.Pin != "" {
		template["nodeSelector"] = map[string]string{versions.Label: p.Pin}
	}
	b, err := json.Marshal(map[string]any{"replicas": p.Replicas, "workerImage": p.Image, "sandboxClass": p.Class, "template": template})
	if err != nil { // nothing in it can fail to marshal
		panic(err)
	}
	return b
}

// Pod is a Ready worker pod.
func Pod(pool, version, node string, number int) snapshot.Pod {
	return snapshot.Pod{
		Namespace: "agents", Name: fmt.Sprintf("%s-%06d", pool, number), UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", number),
		Pool: pool, Pin: version, Node: node, Phase: corev1.PodRunning, Ready: true,
	}
}

// Worker is the worker that a pod is registered as.
func Worker(p snapshot.Pod) substrate.Worker {
	return substrate.Worker{
		Name: p.UID, PodUID: p.UID, Namespace: p.Namespace, Pool: p.Pool, Pod: p.Name, Node: p.Node, Class: "gvisor",
		State: substrate.Active, Capacity: 1,
	}
}

// Flip moves a node to New as a finished roll leaves it: new label, new pods and workers in place of the old.
func Flip(s *snapshot.Snapshot, node string) {
	for i := range s.Nodes {
		if s.Nodes[i].Name == node {
			s.Nodes[i].Labels[versions.Label] = New
		}
	}
	for i := range s.Pods {
		if s.Pods[i].Node == node {
			s.Pods[i].Pin = New
			s.Pods[i].Pool += "-" + New
			s.Pods[i].Name += "-" + New
		}
	}
	for i := range s.Workers {
		if s.Workers[i].Node == node {
			s.Workers[i].Pool += "-" + New
			s.Workers[i].Pod += "-" + New
		}
	}
}
