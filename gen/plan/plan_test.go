package plan_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/gen/snapshot/snapshottest"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

func three() *snapshot.Snapshot { return snapshottest.Fleet(snapshottest.Three) }

func fleet(n int) *snapshot.Snapshot {
	return snapshottest.Fleet(snapshottest.Size{Nodes: n, Pools: 2, WorkersPerNode: 4, Actors: 10})
}

func stamp(phase roll.Phase, from, to string) string {
	return (&roll.Stamp{Roll: "argo/roll/1", From: from, To: to, Phase: phase, At: snapshottest.Taken}).String()
}

// rolling are the names of the nodes that are rolled, in their order.
func rolling(p *plan.Plan) string {
	var out []string
	for _, n := range p.Rolling() {
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

func TestHealthyFleet(t *testing.T) {
	p, err := plan.New(three(), plan.Options{})
	require.NoError(t, err)
	require.Empty(t, p.Findings)
	require.Equal(t, "v1", p.From)
	require.Equal(t, "v2", p.To)
	require.Equal(t, plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendAuto}, p.Pace)
	require.Equal(t, plan.Cost{Nodes: 3, Gates: 3, Pods: 12}, p.Cost)
	want := []plan.Node{
		{Name: "node1", Zone: "zone-a", Verdict: plan.Roll, Reason: "is at v1", Workers: 4, Actors: 5},
		{Name: "node2", Zone: "zone-b", Verdict: plan.Roll, Reason: "is at v1", Workers: 4, Actors: 1},
		{Name: "node3", Zone: "zone-c", Verdict: plan.Roll, Reason: "is at v1", Workers: 4},
	}
	// The first five of the ten actors run: actors 1, 3, 5, 7 on the four workers of node1, and 9 on node2; actor 10 is
	// paused on node1.
	require.Empty(t, cmp.Diff(want, p.Nodes))
	require.Equal(t, []plan.Pool{{Namespace: "agents", Name: "pool1", Clone: "pool1-v2"}, {Namespace: "agents", Name: "pool2", Clone: "pool2-v2"}}, p.Pools)
}

func TestChoiceAndOrder(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		o      plan.Options
		want   string
		left   map[string]string // reasons of nodes that are not rolled
	}{
		"by name, numbers by value": {want: "node1 node2 node3 node4 node5 node6 node7 node8 node9 node10 node11 node12"},
		"by zone":                   {o: plan.Options{Order: plan.OrderZone}, want: "node1 node4 node7 node10 node2 node5 node8 node11 node3 node6 node9 node12"},
		"by zone, without one last": {
			change: func(s *snapshot.Snapshot) { delete(node(s, "node1").Labels, corev1.LabelTopologyZone) },
			o:      plan.Options{Order: plan.OrderZone}, want: "node4 node7 node10 node2 node5 node8 node11 node3 node6 node9 node12 node1",
		},
		// node1 has the actors of its four workers; actor 10 is paused on node10, and actor 9 runs on node2.
		"fewest actors first": {o: plan.Options{Order: plan.OrderActors}, want: "node3 node4 node5 node6 node7 node8 node9 node11 node12 node2 node10 node1"},
		"named, in that order": {
			o: plan.Options{Nodes: []string{"node5", "node2", "node11"}}, want: "node5 node2 node11",
			left: map[string]string{"node1": "is not among --nodes"},
		},
		"named, in the order asked for": {o: plan.Options{Nodes: []string{"node5", "node2", "node11"}, Order: plan.OrderName}, want: "node2 node5 node11"},
		"selected": {
			o: plan.Options{Selector: "topology.kubernetes.io/zone=zone-b"}, want: "node2 node5 node8 node11",
			left: map[string]string{"node1": "does not match --selector topology.kubernetes.io/zone=zone-b"},
		},
		"excluded": {
			o:    plan.Options{Selector: "topology.kubernetes.io/zone=zone-b", Exclude: []string{"node5", "node1"}},
			want: "node2 node8 node11", left: map[string]string{"node5": "was excluded", "node1": "was excluded"},
		},
		"done": {
			change: func(s *snapshot.Snapshot) { snapshottest.Flip(s, "node1"); snapshottest.Flip(s, "node2") },
			o:      plan.Options{From: "v1", To: "v2", Nodes: []string{"node1", "node2", "node3"}}, want: "node3",
			left: map[string]string{"node1": "is at v2 and holds nothing of v1", "node4": "is not among --nodes"},
		},
		"begun: stamped": {
			change: func(s *snapshot.Snapshot) { node(s, "node7").Stamp = stamp(roll.Suspending, "v1", "v2") },
			o:      plan.Options{Nodes: []string{"node1", "node7", "node9"}}, want: "node7 node1 node9",
		},
		"begun: stamped by another roll": {
			change: func(s *snapshot.Snapshot) { node(s, "node7").Stamp = stamp(roll.Flipped, "v0", "v1") },
			o:      plan.Options{Nodes: []string{"node1", "node7"}}, want: "node7 node1",
		},
		"finished stamps change nothing": {
			change: func(s *snapshot.Snapshot) { node(s, "node7").Stamp = stamp(roll.Verified, "v0", "v1") },
			o:      plan.Options{Nodes: []string{"node1", "node7"}}, want: "node1 node7",
		},
		"begun: flipped by hand with old pods left": {
			change: func(s *snapshot.Snapshot) { node(s, "node7").Labels[versions.Label] = "v2" },
			o:      plan.Options{From: "v1", To: "v2", Nodes: []string{"node1", "node7"}}, want: "node7 node1",
		},
		"begun: drained by hand": {
			change: func(s *snapshot.Snapshot) {
				for i := range s.Workers {
					if s.Workers[i].Node == "node7" {
						s.Workers[i].State = substrate.Draining
					}
				}
			},
			o: plan.Options{Nodes: []string{"node1", "node7"}}, want: "node7 node1",
		},
		"not begun: the pod of a DRAINING worker is going away": {
			change: func(s *snapshot.Snapshot) {
				for i := range s.Workers {
					if s.Workers[i].Node == "node7" {
						s.Workers[i].State = substrate.Draining
					}
				}
				for i := range s.Pods {
					s.Pods[i].Terminating = s.Pods[i].Node == "node7"
				}
			},
			o: plan.Options{Nodes: []string{"node1", "node7"}}, want: "node1 node7",
		},
		"the node in hand before the others that are begun": {
			change: func(s *snapshot.Snapshot) {
				node(s, "node3").Stamp = stamp(roll.Draining, "v1", "v2")
				node(s, "node7").Stamp = stamp(roll.Draining, "v1", "v2")
				s.Lease = &snapshot.Lease{Holder: "argo/roll/1", Node: "node7", Workflow: snapshot.WorkflowEnded}
			},
			o: plan.Options{Nodes: []string{"node1", "node3", "node7"}, Order: plan.OrderName}, want: "node7 node3 node1",
		},
		"without a label": {
			change: func(s *snapshot.Snapshot) { delete(node(s, "node1").Labels, versions.Label) },
			o:      plan.Options{Nodes: []string{"node1", "node2"}}, want: "node2", left: map[string]string{"node1": "carries no label ate.dev/substrate-version"},
		},
		"at another version": {
			change: func(s *snapshot.Snapshot) { node(s, "node1").Labels[versions.Label] = "v0" },
			o:      plan.Options{Nodes: []string{"node1", "node2"}}, want: "node2", left: map[string]string{"node1": "is at v0, which is neither v1 nor v2"},
		},
		"atelet does not tolerate": {
			change: func(s *snapshot.Snapshot) {
				clear(s, "node1")
				node(s, "node1").Taints = []corev1.Taint{{Key: "ate.dev/workloadType", Value: "ate-control-plane", Effect: corev1.TaintEffectNoSchedule}}
			},
			o: plan.Options{Nodes: []string{"node1", "node2"}}, want: "node2",
			left: map[string]string{"node1": "cannot run the atelet of v2: it does not tolerate the taint ate.dev/workloadType=ate-control-plane:NoSchedule"},
		},
		"atelet tolerates its own taint, and what comes and goes": {
			change: func(s *snapshot.Snapshot) {
				node(s, "node1").Taints = []corev1.Taint{
					{Key: "ate.dev/sandboxClass", Value: "microvm", Effect: corev1.TaintEffectNoSchedule},
					{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
					{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
					{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule},
					{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule},
				}
			},
			o: plan.Options{Nodes: []string{"node1", "node2"}}, want: "node1 node2",
		},
		"atelet selects other nodes": {
			change: func(s *snapshot.Snapshot) {
				clear(s, "node1")
				s.Atelets[1].NodeSelector["disk"] = "ssd"
				for i := range s.Nodes {
					s.Nodes[i].Labels["disk"] = "ssd"
				}
				node(s, "node1").Labels["disk"] = "hdd"
			},
			o: plan.Options{Nodes: []string{"node1", "node2"}}, want: "node2",
			left: map[string]string{"node1": "cannot run the atelet of v2: its node selector or affinity does not match"},
		},
		"atelet has an affinity to other nodes": {
			change: func(s *snapshot.Snapshot) {
				clear(s, "node1")
				s.Atelets[1].NodeAffinity = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"node1"}}}}}}
			},
			o: plan.Options{Nodes: []string{"node1", "node2"}}, want: "node2",
			left: map[string]string{"node1": "cannot run the atelet of v2: its node selector or affinity does not match"},
		},
		"back": {
			change: func(s *snapshot.Snapshot) { snapshottest.Flip(s, "node1"); snapshottest.Flip(s, "node2") },
			o:      plan.Options{From: "v2", To: "v1"}, want: "node1 node2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fleet(12)
			if c.change != nil {
				c.change(s)
			}
			p, err := plan.New(s, c.o)
			require.NoError(t, err)
			require.Equal(t, c.want, rolling(p))
			require.Len(t, p.Nodes, 12)
			for _, n := range p.Nodes {
				if want, ok := c.left[n.Name]; ok {
					require.Equal(t, want, n.Reason, n.Name)
				}
				require.NotEmpty(t, n.Reason)
			}
		})
	}
}

func node(s *snapshot.Snapshot, name string) *snapshot.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	panic("no node " + name)
}

// clear takes the workers off a node.
func clear(s *snapshot.Snapshot, name string) {
	var pods []snapshot.Pod
	for _, p := range s.Pods {
		if p.Node != name {
			pods = append(pods, p)
		}
	}
	var workers []substrate.Worker
	for _, w := range s.Workers {
		if w.Node != name {
			workers = append(workers, w)
		}
	}
	s.Pods, s.Workers = pods, workers
}

func actor(s *snapshot.Snapshot, name string) *substrate.Actor {
	for i := range s.Actors {
		if s.Actors[i].Name == name {
			return &s.Actors[i]
		}
	}
	panic("no actor " + name)
}

func pool(s *snapshot.Snapshot, name string) *snapshot.Pool {
	for i := range s.Pools {
		if s.Pools[i].Name == name {
			return &s.Pools[i]
		}
	}
	panic("no pool " + name)
}

// spec changes one field of a pool's spec.
func spec(p *snapshot.Pool, change func(map[string]any)) {
	var m map[string]any
	if err := json.Unmarshal(p.Spec, &m); err != nil {
		panic(err)
	}
	change(m)
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	p.Spec = b
}

func remove(s *snapshot.Snapshot, name string) {
	for i := range s.Pools {
		if s.Pools[i].Name == name {
			s.Pools = append(s.Pools[:i], s.Pools[i+1:]...)
			return
		}
	}
	panic("no pool " + name)
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		o      plan.Options
		want   []string // each a part of one message, in their order
	}{
		"no Substrate": {change: func(s *snapshot.Snapshot) { s.PoolsServed, s.Atelets, s.Pools = false, nil, nil },
			want: []string{"not installed here: the API server knows no WorkerPool, and namespace ate-system has no atelet; check that this is the right cluster"}},
		"no CRD":    {change: func(s *snapshot.Snapshot) { s.PoolsServed = false }, want: []string{"knows no WorkerPool"}},
		"no atelet": {change: func(s *snapshot.Snapshot) { s.Atelets = nil }, want: []string{"namespace ate-system has no DaemonSet with app=atelet"}},
		"unversioned atelet": {change: func(s *snapshot.Snapshot) { s.Atelets[0].Version, s.Atelets[0].Name = "", "atelet" },
			want: []string{"DaemonSet ate-system/atelet: it carries no label ate.dev/substrate-version"}},
		"one version":                   {change: func(s *snapshot.Snapshot) { s.Atelets = s.Atelets[:1] }, want: []string{"one version only, v1; deploy the atelet of the new version first"}},
		"two DaemonSets of one version": {change: func(s *snapshot.Snapshot) { s.Atelets[1].Version = "v1" }, want: []string{"it is of version v1, and so is atelet-v1"}},
		"three versions": {change: func(s *snapshot.Snapshot) {
			s.Atelets = append(s.Atelets, snapshottest.Atelet("v3", snapshottest.Taken, 0))
		}, want: []string{"there are 3 versions: v1, v2, v3; say which with --from and --to"}},
		"same versions":        {o: plan.Options{From: "v1", To: "v1"}, want: []string{"both are v1"}},
		"unknown version":      {o: plan.Options{To: "v9"}, want: []string{"--to: no atelet DaemonSet is of version v9; there are v1, v2"}},
		"invalid version":      {o: plan.Options{From: "v1/x"}, want: []string{`--from: version "v1/x" cannot be a label value`}},
		"two invalid versions": {o: plan.Options{From: "v1/x", To: "v 2"}, want: []string{"--from", "--to"}},
		"invalid label in a snapshot": {change: func(s *snapshot.Snapshot) {
			s.Atelets[1].Version = "v2/x"
		}, want: []string{`DaemonSet ate-system/atelet-v2: version "v2/x" cannot be a label value`}},
		"everything done": {change: func(s *snapshot.Snapshot) {
			for _, n := range []string{"node1", "node2", "node3"} {
				snapshottest.Flip(s, n)
				node(s, n).Stamp = stamp(roll.Verified, "v1", "v2")
			}
		}, want: []string{"nothing to roll: all 3 nodes are at v2 and hold nothing of v1; to go the other way, pass --from v2 --to v1"}},
		"everything done by hand": {change: func(s *snapshot.Snapshot) {
			for _, n := range []string{"node1", "node2", "node3"} {
				snapshottest.Flip(s, n)
			}
		}, want: []string{"nothing to roll: every node is at v2, whose atelet is the newer of the two; to go the other way, pass --from v2 --to v1"}},
		"everything left out": {o: plan.Options{Selector: "zone=nosuch"}, want: []string{"nothing to roll: all 3 nodes are left out, the first one (node1) because it does not match"}},
		"nobody knows which way": {change: func(s *snapshot.Snapshot) {
			snapshottest.Flip(s, "node1")
			s.Atelets[0].Created, s.Atelets[1].Created = time.Time{}, time.Time{}
		}, want: []string{"no node says which way the roll goes; pass --from v1 --to v2"}},
		"no node labelled": {change: func(s *snapshot.Snapshot) {
			for i := range s.Nodes {
				delete(s.Nodes[i].Labels, versions.Label)
			}
		}, want: []string{"none carries ate.dev/substrate-version=v1 or v2"}},
		"unknown nodes": {o: plan.Options{Nodes: []string{"node1", "nosuch"}, Exclude: []string{"NODE2"}},
			want: []string{`--nodes: there is no node "nosuch"; see kubectl get nodes`, `--exclude: there is no node "NODE2"; did you mean "node2"?`}},
		"bad selector": {o: plan.Options{Selector: "a=b=c"}, want: []string{"--selector"}},
		"order without actors": {change: func(s *snapshot.Snapshot) { s.Control = snapshot.Control{Why: "no route"} }, o: plan.Options{Order: plan.OrderActors},
			want: []string{"--order actors: the actors are not known: no route"}},
		"unpinned pool": {change: func(s *snapshot.Snapshot) { pool(s, "pool1").Pin = "" },
			want: []string{"worker pool agents/pool1: it is pinned to no version, so its workers would land on either side; pin it to v1"}},
		"stray worker pod": {change: func(s *snapshot.Snapshot) { s.Pods[0].Pin = "" },
			want: []string{"worker pod agents/pool1-000001 on node1: pinned to neither v1 nor v2"}},
		"no clone": {change: func(s *snapshot.Snapshot) { remove(s, "pool1-v2") }, want: []string{"worker pool agents/pool1: it has no clone at v2 in its namespace"}},
		"clone elsewhere": {change: func(s *snapshot.Snapshot) { pool(s, "pool1-v2").Namespace = "other" },
			want: []string{"worker pool agents/pool1: it has no clone at v2"}},
		"clone with other labels": {change: func(s *snapshot.Snapshot) { pool(s, "pool1-v2").Labels = nil },
			want: []string{"(pool1-v2 is no clone: its metadata.labels differ"}},
		"one clone for two": {change: func(s *snapshot.Snapshot) {
			remove(s, "pool2-v2")
			pool(s, "pool2").Labels = pool(s, "pool1").Labels
		}, want: []string{"worker pool agents/pool2: it has no clone at v2"}},
		"clone with lower limits": {change: func(s *snapshot.Snapshot) {
			spec(pool(s, "pool1-v2"), func(m map[string]any) {
				m["template"].(map[string]any)["resources"] = map[string]any{"limits": map[string]string{"cpu": "1", "memory": "2000M"}}
			})
		}, want: []string{"worker pool agents/pool1-v2: spec.template.resources.limits.memory (2G) is below that of pool1"}},
		"unreadable spec": {change: func(s *snapshot.Snapshot) { pool(s, "pool1-v2").Spec = json.RawMessage("[]") }, want: []string{"its spec cannot be read"}},
		"single node":     {change: func(s *snapshot.Snapshot) { *s = *fleet(1) }, want: []string{"node node1: no other node is Ready to serve while it is rolled; add a node, or pass --allow-single-node"}},
		"single Ready node": {change: func(s *snapshot.Snapshot) { node(s, "node2").Ready, node(s, "node3").Ready = false, false },
			o: plan.Options{Nodes: []string{"node1"}}, want: []string{"node node1: no other node is Ready"}},
		"unknown state of an actor": {change: func(s *snapshot.Snapshot) { actor(s, "actor000004").State = "DREAMING" }, want: []string{"actor space4/actor000004 (DREAMING): in a state that this version of atewf does not know"}},
		"unknown state of a worker": {change: func(s *snapshot.Snapshot) { s.Workers[0].State = "" }, want: []string{`worker agents/pool1-000001 (00000000-0000-4000-8000-000000000001): its state "" is unknown`}},
		"unreadable stamp":          {change: func(s *snapshot.Snapshot) { node(s, "node1").Stamp = "{" }, want: []string{"node node1: annotation atewf.dev/roll is not readable"}},
		"another roll": {change: func(s *snapshot.Snapshot) {
			s.Lease = &snapshot.Lease{Holder: "argo/other/7", Node: "node2", Workflow: snapshot.WorkflowLive}
		}, want: []string{"Lease ate-system/atewf-roll: another roll owns this cluster: Workflow argo/other, with node node2 in hand; let it finish, or end it with: argo stop -n argo other"}},
		"a Lease of nobody": {change: func(s *snapshot.Snapshot) { s.Lease = &snapshot.Lease{Holder: "me"} }, want: []string{"its holder is no Workflow"}},
		"node in hand left out": {change: func(s *snapshot.Snapshot) {
			node(s, "node2").Stamp = stamp(roll.Draining, "v1", "v2")
			s.Lease = &snapshot.Lease{Holder: "argo/other/7", Node: "node2", Workflow: snapshot.WorkflowEnded}
		}, o: plan.Options{Exclude: []string{"node2"}}, want: []string{"node node2: it was excluded, but a roll has it in hand (draining)"}},
		"the new atelet cannot run where the old one does": {change: func(s *snapshot.Snapshot) {
			s.Atelets[0].Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			for i := range s.Nodes[:2] {
				s.Nodes[i].Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
			}
		}, want: []string{"nodes node1, node2: it hosts workers of v1 but cannot run the atelet of v2"}},
		"braces in a label":     {change: func(s *snapshot.Snapshot) { node(s, "node2").Labels["team"] = "{{workflow.name}}" }, want: []string{`node node2: label "team" with the value "{{workflow.name}}" has {{ or }} in it`}},
		"braces in a name":      {change: func(s *snapshot.Snapshot) { node(s, "node2").Name = "a{{b" }, want: []string{`node a{{b: the name "a{{b" has {{ or }} in it`}},
		"braces in a version":   {change: func(s *snapshot.Snapshot) { s.Atelets[1].Version = "v2}}" }, want: []string{"DaemonSet atelet-v2"}},
		"braces in a pool":      {change: func(s *snapshot.Snapshot) { pool(s, "pool1").Labels = map[string]string{"x": "}}"} }, want: []string{"worker pool agents/pool1: label"}},
		"braces in the cluster": {change: func(s *snapshot.Snapshot) { s.Cluster.Name = "{{x}}" }, want: []string{"cluster: the name"}},
		"node name that is too long": {change: func(s *snapshot.Snapshot) { node(s, "node2").Name = strings.Repeat("a", 254) },
			want: []string{`no node of Kubernetes can have this name of 254 characters: must be no more than 253 characters; see whether the snapshot was edited`}},
		"node name that cannot be":  {change: func(s *snapshot.Snapshot) { node(s, "node2").Name = `a" b` }, want: []string{`node "a\" b": no node of Kubernetes can have this name`}},
		"soak of less than nothing": {o: plan.Options{Pace: plan.Pace{Soak: -time.Minute}}, want: []string{"--soak: -1m0s is no pause"}},
		"several at once": {change: func(s *snapshot.Snapshot) {
			pool(s, "pool1").Pin = ""
			remove(s, "pool2-v2")
		}, want: []string{"worker pool agents/pool1:", "worker pool agents/pool2:"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := three()
			if c.change != nil {
				c.change(s)
			}
			p, err := plan.New(s, c.o)
			require.Nil(t, p)
			var failed plan.Failed
			require.ErrorAs(t, err, &failed)
			require.Len(t, failed, len(c.want), "%v", err)
			for i, want := range c.want {
				require.Contains(t, failed[i].String(), want)
				require.Equal(t, plan.Error, failed[i].Severity)
				require.NotContains(t, failed[i].String(), "%!")
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		o      plan.Options
		want   []string
	}{
		"Control API not read": {change: func(s *snapshot.Snapshot) {
			s.Control, s.Workers, s.Actors = snapshot.Control{Why: "no route"}, nil, nil
		},
			want: []string{"Control API: it was not read, so drained workers, lost actors and the number of actors a node are not known: no route"}},
		"pool not ready": {change: func(s *snapshot.Snapshot) { pool(s, "pool1").Ready = 4 }, want: []string{"worker pool agents/pool1: only 4 of its 6 workers are Ready"}},
		"pool not ready in a roll is meant to be": {change: func(s *snapshot.Snapshot) {
			snapshottest.Flip(s, "node1")
			pool(s, "pool1").Ready = 4
		}, o: plan.Options{From: "v1", To: "v2"}},
		"direction by age": {change: func(s *snapshot.Snapshot) { snapshottest.Flip(s, "node1") },
			want: []string{"nodes: 2 carry v1 and 1 carry v2; the roll goes to v2 because its atelet is the newer"}},
		"direction by stamp": {change: func(s *snapshot.Snapshot) {
			snapshottest.Flip(s, "node1")
			node(s, "node1").Stamp = stamp(roll.Verified, "v1", "v2")
			s.Atelets[0].Created, s.Atelets[1].Created = s.Atelets[1].Created, s.Atelets[0].Created
		}},
		"unused pool": {change: func(s *snapshot.Snapshot) {
			p := snapshottest.Pool("idle", "", 0)
			s.Pools = append(s.Pools, p)
		}, want: []string{"worker pool agents/idle: it is pinned to no version, and has no workers"}},
		"unused pool without a clone": {change: func(s *snapshot.Snapshot) { s.Pools = append(s.Pools, snapshottest.Pool("idle", "v1", 0)) },
			want: []string{"worker pool agents/idle: it has no clone at v2, and no workers"}},
		"pool of another version": {change: func(s *snapshot.Snapshot) { s.Pools = append(s.Pools, snapshottest.Pool("older", "v0", 0)) },
			want: []string{"worker pool agents/older: it is pinned to v0, which this roll does not move"}},
		"image without digest": {change: func(s *snapshot.Snapshot) { pool(s, "pool1-v2").Image = "ateom:v2" }, want: []string{"worker pool agents/pool1-v2: the worker image ateom:v2 has no digest"}},
		"same image":           {change: func(s *snapshot.Snapshot) { pool(s, "pool1-v2").Image = pool(s, "pool1").Image }, want: []string{"worker pool agents/pool1-v2: the worker image is the one of the old version"}},
		"clone that differs": {change: func(s *snapshot.Snapshot) {
			spec(pool(s, "pool1-v2"), func(m map[string]any) {
				m["replicas"] = 7
				m["template"].(map[string]any)["priorityClassName"] = "high"
			})
		}, want: []string{"worker pool agents/pool1-v2: it differs from pool1 in more than image and pin: spec.replicas, spec.template.priorityClassName"}},
		"clone with the list of classes filled in": {change: func(s *snapshot.Snapshot) {
			spec(pool(s, "pool1-v2"), func(m map[string]any) { m["sandboxClasses"] = []any{map[string]string{"name": "gvisor"}} })
		}},
		"clone with another class": {change: func(s *snapshot.Snapshot) {
			spec(pool(s, "pool1-v2"), func(m map[string]any) { m["sandboxClasses"] = []any{map[string]string{"name": "microvm"}} })
		}, want: []string{"spec.sandboxClasses"}},
		"clone whose pin is all that its template has": {change: func(s *snapshot.Snapshot) {
			spec(pool(s, "pool1"), func(m map[string]any) { delete(m, "template") })
			spec(pool(s, "pool1-v2"), func(m map[string]any) {
				m["template"] = map[string]any{"nodeSelector": map[string]string{versions.Label: "v2"}}
			})
		}},
		"crashed": {change: func(s *snapshot.Snapshot) {
			actor(s, "actor000002").State, actor(s, "actor000004").State = substrate.Crashed, substrate.Crashed
		},
			want: []string{"actors space2/actor000002, space4/actor000004: CRASHED already"}},
		"paused nowhere": {change: func(s *snapshot.Snapshot) { actor(s, "actor000010").SnapshotNodes = []string{""} },
			want: []string{"actor space10/actor000010: PAUSED with a local snapshot on a node without a name"}},
		"node not Ready": {change: func(s *snapshot.Snapshot) { node(s, "node2").Ready = false }, want: []string{"node node2: not Ready, so the line would stop there"}},
		"cordoned":       {change: func(s *snapshot.Snapshot) { node(s, "node2").Unschedulable = true }, want: []string{"node node2: cordoned"}},
		"many nodes at once": {change: func(s *snapshot.Snapshot) {
			*s = *fleet(20)
			for i := range s.Nodes[2:] {
				s.Nodes[i+2].Ready = false
			}
		}, want: []string{"nodes node2, node3, node4, node5, node6 and 13 more: not Ready"}},
		"without a label": {change: func(s *snapshot.Snapshot) { delete(node(s, "node2").Labels, versions.Label) }, want: []string{"node node2: left out because it carries no label"}},
		"half done and left out": {change: func(s *snapshot.Snapshot) { node(s, "node2").Stamp = stamp(roll.Draining, "v1", "v2") }, o: plan.Options{Exclude: []string{"node2"}},
			want: []string{"node node2: it was excluded, but was begun and not finished: draining since 2026-09-07T12:00:00Z (v1 to v2)"}},
		"named and left out": {change: func(s *snapshot.Snapshot) {
			clear(s, "node2")
			node(s, "node2").Labels[versions.Label] = "v0"
		}, o: plan.Options{Nodes: []string{"node1", "node2"}}, want: []string{"node node2: named in --nodes but left out because it is at v0"}},
		"old atelet not Ready": {change: func(s *snapshot.Snapshot) { s.Atelets[0].Ready = 2 }, want: []string{"DaemonSet ate-system/atelet-v1: 2 of its 3 atelets are Ready"}},
		"no room": {change: func(s *snapshot.Snapshot) {
			for i := range s.Workers {
				if s.Workers[i].Node != "node1" {
					s.Workers[i].State = substrate.Draining
				}
			}
			for i := range s.Pods {
				s.Pods[i].Terminating = s.Pods[i].Node != "node1"
			}
		}, o: plan.Options{Nodes: []string{"node1"}},
			want: []string{"node node1: while it is rolled, 4 of its 4 running actors cannot be resumed, because no free worker elsewhere matches them: actors space1/actor000001"}},
		"no room for labels": {change: func(s *snapshot.Snapshot) {
			for i := range s.Actors {
				if s.Actors[i].Name == "actor000003" {
					s.Actors[i].Selector = map[string]string{"pool": "special"}
				}
			}
		}, want: []string{"node node1: while it is rolled, 1 of its 4 running actors cannot be resumed, because no free worker elsewhere matches them: actor space3/actor000003"}},
		"a Lease whose Workflow is unknown": {change: func(s *snapshot.Snapshot) { s.Lease = &snapshot.Lease{Holder: "argo/other/7", Why: "forbidden"} },
			want: []string{"Lease ate-system/atewf-roll: Workflow argo/other holds it, and whether it has ended is not known: forbidden"}},
		"a Lease whose Workflow has ended": {change: func(s *snapshot.Snapshot) {
			s.Lease = &snapshot.Lease{Holder: "argo/other/7", Workflow: snapshot.WorkflowEnded}
		}},
		"a free Lease": {change: func(s *snapshot.Snapshot) { s.Lease = &snapshot.Lease{} }},
		"single node, accepted": {change: func(s *snapshot.Snapshot) {
			*s = *snapshottest.Fleet(snapshottest.Size{Nodes: 1, Pools: 1, WorkersPerNode: 1})
		}, o: plan.Options{AllowSingleNode: true}},
		"a third version, chosen": {change: func(s *snapshot.Snapshot) {
			s.Atelets = append(s.Atelets, snapshottest.Atelet("v0", snapshottest.Taken, 0))
		}, o: plan.Options{From: "v1", To: "v2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := three()
			c.change(s)
			p, err := plan.New(s, c.o)
			require.NoError(t, err)
			require.Len(t, p.Findings, len(c.want), "%v", p.Findings)
			for i, want := range c.want {
				require.Contains(t, p.Findings[i].String(), want)
				require.Equal(t, plan.Warning, p.Findings[i].Severity)
				require.NotContains(t, p.Findings[i].String(), "%!")
			}
		})
	}
}

// A roll that was interrupted anywhere is taken up where it stood: the nodes that it finished are left out, the one that
// it had in hand comes first, and the direction is the same.
func TestHalfRolledFleet(t *testing.T) {
	s := fleet(6)
	for _, n := range []string{"node1", "node2", "node3", "node4"} {
		snapshottest.Flip(s, n)
		node(s, n).Stamp = stamp(roll.Verified, "v1", "v2")
	}
	node(s, "node5").Stamp = stamp(roll.Suspending, "v1", "v2")
	s.Lease = &snapshot.Lease{Holder: "argo/roll/1", Node: "node5", Workflow: snapshot.WorkflowEnded}
	p, err := plan.New(s, plan.Options{})
	require.NoError(t, err)
	require.Equal(t, "v1 v2", p.From+" "+p.To)
	require.Equal(t, "node5 node6", rolling(p))
	require.Equal(t, plan.Resume, p.Nodes[0].Verdict)
	require.Equal(t, plan.Done, p.Nodes[2].Verdict)
}

func TestCost(t *testing.T) {
	for name, c := range map[string]struct {
		pace        plan.Pace
		nodes       int
		gates, pods int
	}{
		"every":          {plan.Pace{Gate: plan.GateEvery}, 5, 5, 20},
		"first":          {plan.Pace{Gate: plan.GateFirst}, 5, 1, 20},
		"canary":         {plan.Pace{Gate: plan.GateCanary}, 5, 1, 20},
		"canary of one":  {plan.Pace{Gate: plan.GateCanary}, 2, 1, 8},
		"none":           {plan.Pace{Gate: plan.GateNone}, 5, 0, 20},
		"before suspend": {plan.Pace{Gate: plan.GateNone, Suspend: plan.SuspendGate}, 5, 5, 20},
		"wait":           {plan.Pace{Gate: plan.GateEvery, Suspend: plan.SuspendWait}, 5, 10, 20},
		"soak":           {plan.Pace{Gate: plan.GateNone, Soak: time.Minute}, 5, 0, 24},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := plan.New(fleet(c.nodes), plan.Options{Pace: c.pace})
			require.NoError(t, err)
			require.Equal(t, plan.Cost{Nodes: c.nodes, Gates: c.gates, Pods: c.pods}, p.Cost)
		})
	}
}

// Order is total: however the snapshot is shuffled, the plan is the same.
func TestOrderIsTotal(t *testing.T) {
	names := []string{"node1", "node01", "node001", "node-1", "node1a", "node10", "node2", "a.b", "a-b", "10", "9", "node", "x99999999999999999999", "x100000000000000000000"}
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, order := range []plan.Order{plan.OrderAuto, plan.OrderName, plan.OrderZone, plan.OrderActors} {
		var want string
		for i := range 50 {
			s := snapshottest.Fleet(snapshottest.Size{Nodes: len(names), Pools: 2, WorkersPerNode: 2, Actors: 8, Name: func(i int) string { return names[i-1] }})
			rnd.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
			rnd.Shuffle(len(s.Actors), func(i, j int) { s.Actors[i], s.Actors[j] = s.Actors[j], s.Actors[i] })
			rnd.Shuffle(len(s.Workers), func(i, j int) { s.Workers[i], s.Workers[j] = s.Workers[j], s.Workers[i] })
			p, err := plan.New(s, plan.Options{Order: order})
			require.NoError(t, err)
			got := rolling(p) + p.Hash()
			if i == 0 {
				want = got
			}
			require.Equal(t, want, got, "order %q", order)
		}
	}
}

func TestNaturalOrder(t *testing.T) {
	names := []string{"9", "10", "a-b", "a.b", "node", "node-1", "node001", "node01", "node1", "node1a", "node2", "node10", "x99999999999999999999", "x100000000000000000000"}
	s := snapshottest.Fleet(snapshottest.Size{Nodes: len(names), Name: func(i int) string { return names[len(names)-i] }})
	p, err := plan.New(s, plan.Options{})
	require.NoError(t, err)
	require.Equal(t, strings.Join(names, " "), rolling(p))
}

func TestHash(t *testing.T) {
	base, err := plan.New(three(), plan.Options{})
	require.NoError(t, err)
	require.Len(t, base.Hash(), 12)
	for name, o := range map[string]plan.Options{
		"nodes":     {Exclude: []string{"node3"}},
		"order":     {Nodes: []string{"node3", "node2", "node1"}},
		"direction": {From: "v2", To: "v1"},
	} {
		s := three()
		if name == "direction" {
			for i := range s.Nodes {
				snapshottest.Flip(s, s.Nodes[i].Name)
			}
		}
		p, err := plan.New(s, o)
		require.NoError(t, err, name)
		require.NotEqual(t, base.Hash(), p.Hash(), name)
	}
}

func TestFindingInOneLine(t *testing.T) {
	f := plan.Failed{{Object: "node a", Message: "is bad", WayOut: "mend it"}, {Object: "node b", Message: "is worse"}}
	require.Equal(t, "node a: is bad; mend it\nnode b: is worse", fmt.Sprint(f.Error()))
}
