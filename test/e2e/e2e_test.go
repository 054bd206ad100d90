// Package e2e rolls real nodes: a real Kubernetes with three kubelets, a real Argo, and a simulated Agent Substrate whose
// actors keep their state in the memory of the worker pods. Each test installs Substrate afresh, in one of the generations
// of its API, and ends by comparing what every actor remembers with what it knew before.
//
// The tests run inside the test bed: test/e2e/run.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/test/substrate/install"
	"github.com/atewf/atewf/test/substrate/plane"
	"github.com/atewf/atewf/test/substrate/proto"
	"github.com/atewf/atewf/test/substrate/sim"
)

const (
	oldVersion = "v1.0.0"
	newVersion = "v1.1.0"
	simImage   = "docker.io/atewf/substrate-sim:test"
)

// substrate is a fresh installation with actors on it.
type substrate struct {
	*bed
	plane.Client
	install *install.Installer
	before  map[string]sim.Where
}

func newSubstrate(t *testing.T, api proto.Generation, running, paused int) *substrate {
	t.Helper()
	b := newBed(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	i, err := install.New(cfg, install.Options{API: api, Old: oldVersion, New: newVersion, Image: simImage, ControlNode: "node3"})
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, i.Run(b.ctx))
	require.NoError(t, i.Seed(b.ctx, running, paused))
	b.must("", "kubectl", "apply", "-f", os.Getenv("ATEWF_TEMPLATES")+"/rbac.yaml")
	b.must(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: atewf-roll-worker-pods, namespace: agents},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: atewf-roll-worker-pods}, subjects: [{kind: ServiceAccount, name: atewf-roll, namespace: argo}]}`,
		"kubectl", "apply", "-f", "-")
	s := &substrate{bed: b, Client: plane.Client{URL: install.AdminURL()}, install: i, before: map[string]sim.Where{}}
	for _, w := range s.look() {
		s.before[w.Actor] = w
	}
	t.Logf("installed in %s", time.Since(start).Round(time.Second))
	return s
}

func (s *substrate) look() []sim.Where {
	s.t.Helper()
	out, err := s.Look(s.ctx)
	require.NoError(s.t, err)
	return out
}

func (s *substrate) fault(f sim.Fault) {
	s.t.Helper()
	require.NoError(s.t, s.Do(s.ctx, "POST", "/faults", f, nil))
}

// on lists the actors that run on a node.
func (s *substrate) on(node string) []string {
	s.t.Helper()
	var out []string
	for _, w := range s.look() {
		if w.Node == node && w.State == sim.Running {
			out = append(out, w.Actor)
		}
	}
	return out
}

// intact asserts that nothing was lost: every actor is there, not CRASHED, with the identity that it chose at its first
// boot and a counter that did not go back. Then it wakes them all, to see that they really live on the new side.
func (s *substrate) intact() {
	s.t.Helper()
	after := s.look()
	require.Len(s.t, after, len(s.before))
	for _, a := range after {
		was := s.before[a.Actor]
		require.Empty(s.t, a.Error, a.Actor)
		require.NotEqual(s.t, sim.Crashed, a.State, a.Actor)
		require.Equal(s.t, was.Identity, a.Identity, a.Actor)
		require.GreaterOrEqual(s.t, a.Counter, was.Counter, a.Actor)
	}
}

// wake resumes every actor and asserts that it runs on the new side, where it remembers everything.
func (s *substrate) wake() {
	s.t.Helper()
	for _, a := range s.look() {
		require.NoError(s.t, s.Do(s.ctx, "POST", "/resume", plane.Act{Actor: a.Actor}, nil), a.Actor)
	}
	s.intact()
	for _, a := range s.look() {
		require.Equal(s.t, sim.Running, a.State, a.Actor)
		require.True(s.t, strings.HasSuffix(a.Pool, install.Suffix(newVersion)), "%s runs in pool %s", a.Actor, a.Pool)
	}
}

// label is the version that a node carries.
func (s *substrate) label(node string) string {
	s.t.Helper()
	n, err := s.cs.CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{})
	require.NoError(s.t, err)
	return n.Labels[install.VersionLabel]
}

// untouched asserts that nothing was done to a node.
func (s *substrate) untouched(node string) {
	s.t.Helper()
	require.Equal(s.t, oldVersion, s.label(node))
	workers, err := s.Workers(s.ctx)
	require.NoError(s.t, err)
	for _, w := range workers {
		if w.Node == node {
			require.Equal(s.t, sim.Active, w.State, "worker %s of %s", w.Pod, node)
		}
	}
}

// order asserts that every suspend of an actor came before the flip of the node that it was on.
func (s *substrate) flippedAt(node string) time.Time {
	s.t.Helper()
	evs, err := s.cs.CoreV1().Events("default").List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=RollFlipped,involvedObject.name=" + node})
	require.NoError(s.t, err)
	require.NotEmpty(s.t, evs.Items, "an Event tells of the flip of %s", node)
	last := evs.Items[0].LastTimestamp.Time
	for _, e := range evs.Items {
		if e.LastTimestamp.After(last) {
			last = e.LastTimestamp.Time
		}
	}
	return last
}

// Three nodes, a gate each, approved by a person; ten actors of which two are paused. A second roll that is started
// meanwhile is refused by name.
func TestPlainRoll(t *testing.T) {
	s := newSubstrate(t, proto.Runbook, 8, 2)
	other := s.generate("-n", namespace, "--gate", "none", "--nodes", "node3")
	r := s.submit(s.generate("-n", namespace))
	r.approve("node1")
	r.eventually("the second gate", 3*time.Minute, func() bool { return len(r.open()) == 1 && r.open()[0] == "approve-node2" })
	require.Equal(t, newVersion, s.label("node1"))
	s.untouched("node2")
	s.intact()

	second := s.submit(other)
	second.ends("Failed", 2*time.Minute)
	require.Contains(t, second.failure(), namespace+"/"+r.name)
	s.untouched("node3")

	r.approve("node2")
	r.approve("node3")
	r.ends("Succeeded", 3*time.Minute)
	for _, n := range []string{"node1", "node2", "node3"} {
		require.Equal(t, newVersion, s.label(n))
	}
	s.intact()

	// Every paused actor was suspended before the node that held its snapshot was flipped.
	var calls []sim.Call
	require.NoError(t, s.Do(s.ctx, "GET", "/calls", nil, &calls))
	for _, was := range s.before {
		if was.State != sim.Paused {
			continue
		}
		suspended := time.Time{}
		for _, c := range calls {
			if c.Method == "SuspendActor" && c.Object == was.Actor && c.Code == "OK" {
				suspended = c.At
			}
		}
		require.False(t, suspended.IsZero(), "%s was suspended", was.Actor)
		require.False(t, suspended.Truncate(time.Second).After(s.flippedAt(was.Node)), "%s before %s was flipped", was.Actor, was.Node)
	}
	s.wake()

	out, errs, err := s.atewf("generate", "-n", namespace, "--image", stepImage)
	require.Error(t, err, "there is nothing left to roll")
	require.Empty(t, out)
	t.Log(errs)
}

// What goes wrong on the way, one node after the other: a suspend that stalls; an actor that comes back between suspend and
// flip; a step that is killed in each of the four steps and gone on with by argo retry.
func TestRollThroughTrouble(t *testing.T) {
	s := newSubstrate(t, proto.Multi, 9, 0)
	r := s.submit(s.generate("-n", namespace))

	stalled := s.on("node1")[0]
	s.fault(sim.Fault{Stall: true, Object: stalled, Times: 2, Code: "DeadlineExceeded"})
	r.approve("node1")
	r.eventually("the second gate", 3*time.Minute, func() bool { return len(r.open()) == 1 && r.open()[0] == "approve-node2" })
	s.intact()
	var calls []sim.Call
	require.NoError(t, s.Do(s.ctx, "GET", "/calls", nil, &calls))
	var answers []string
	for _, c := range calls {
		if c.Method == "SuspendActor" && c.Object == stalled {
			answers = append(answers, c.Code)
		}
	}
	require.Equal(t, []string{"DeadlineExceeded", "DeadlineExceeded", "OK"}, answers, "it was called again until it was suspended")

	r.approve("node2")
	back := ""
	for _, w := range s.look() {
		if w.State == sim.Suspended {
			back = w.Actor // of node1, asleep
		}
	}
	r.eventually("node2 to be empty", 2*time.Minute, func() bool { return r.done("suspend", "node2") })
	require.NoError(t, s.Do(s.ctx, "POST", "/resume", plane.Act{Actor: back, Node: "node2"}, nil))
	r.eventually("the third gate", 3*time.Minute, func() bool { return len(r.open()) == 1 && r.open()[0] == "approve-node3" })
	s.intact()
	require.Equal(t, newVersion, s.label("node2"))

	r.approve("node3")
	before := ""
	for _, step := range []string{"drain", "suspend", "flip", "verify"} {
		if before != "" {
			r.eventually(before+" of node3", 3*time.Minute, func() bool { return r.done(before, "node3") })
		}
		before = step
		slow := map[string]sim.Fault{
			"drain": {Method: "DrainWorker", Times: 1, Delay: 5 * time.Second}, "suspend": {Method: "SuspendActor", Times: 1, Delay: 5 * time.Second},
			"flip": {Method: "ListWorkers", Times: 1, Delay: 5 * time.Second}, "verify": {Method: "ListWorkers", Times: 1, Delay: 5 * time.Second},
		}[step]
		s.fault(slow)
		r.running(step, "node3")
		time.Sleep(time.Second)
		s.must("", "pkill", "-9", "-f", "^/atewf-steps "+step)
		r.ends("Failed", 2*time.Minute)
		require.NoError(t, s.Do(s.ctx, "DELETE", "/faults", nil, nil))
		s.intact()
		r.retry()
		require.Empty(t, r.open(), "gates that were approved are not asked again")
	}
	r.ends("Succeeded", 3*time.Minute)
	s.intact()
	s.wake()
}

// done reports whether a step of a node has succeeded.
func (r *roll) done(step, node string) bool {
	pods, err := r.cs.CoreV1().Pods(namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "workflows.argoproj.io/workflow=" + r.name})
	if err != nil {
		return false
	}
	for _, p := range pods.Items {
		if !strings.HasPrefix(p.Name, r.name+"-"+step+"-") {
			continue
		}
		for _, c := range p.Spec.Containers {
			if c.Name != "main" || !strings.Contains(strings.Join(c.Args, " "), "--node="+node) {
				continue
			}
			for _, st := range p.Status.ContainerStatuses {
				if st.Name == "main" && st.State.Terminated != nil && st.State.Terminated.ExitCode == 0 {
					return true
				}
			}
		}
	}
	return false
}

// The new atelet never gets Ready: the line stops, the next node is untouched, the message says why. A fresh roll over the
// half-rolled cluster, once the atelet is repaired, takes the half-done node first and finishes.
func TestNewAteletThatNeverComes(t *testing.T) {
	s := newSubstrate(t, proto.LocalSnapshot, 6, 1)
	ds := s.install.Atelet(newVersion)
	patch := func(args string) {
		s.must("", "kubectl", "-n", install.Namespace, "patch", "ds", ds.Name, "--type=json", "-p",
			fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": [%s]}]`, args))
	}
	good := `"atelet", "--version=` + newVersion + `", "--dir=/local"`
	patch(good + `, "--broken"`)
	r := s.submit(s.generate("-n", namespace, "--gate", "none", "--nodes", "node2,node1", "--order", "name", "--atelet-timeout", "20s"))
	r.ends("Failed", 3*time.Minute)
	require.Contains(t, r.failure(), "new atelet")
	require.Contains(t, r.failure(), "image cache layout 7", "the last lines of its log")
	require.Contains(t, r.failure(), "next: ")
	s.untouched("node2")
	s.intact()

	patch(good)
	plan := s.generate("-n", namespace, "--gate", "none", "--order", "actors", "--nodes", "node2,node1")
	require.Less(t, strings.Index(plan, "roll-node1"), strings.Index(plan, "roll-node2"), "the half-done node comes first")
	again := s.submit(plan)
	again.ends("Succeeded", 4*time.Minute)
	require.Equal(t, newVersion, s.label("node1"))
	require.Equal(t, newVersion, s.label("node2"))
	s.untouched("node3")
	s.intact()
}

// Every worker is taken and the new pools give none: the actors that were suspended have nowhere to go, so the next node
// does not begin.
func TestNoRoomForThoseThatWait(t *testing.T) {
	s := newSubstrate(t, proto.AssignedNode, 12, 0)
	scale := func(n int) {
		for _, p := range []string{"counter", "micro"} {
			s.must("", "kubectl", "-n", install.PoolNamespace, "scale", "workerpool", p+"-"+install.Suffix(newVersion), fmt.Sprintf("--replicas=%d", n))
		}
	}
	plan := s.generate("-n", namespace, "--gate", "none", "--nodes", "node1,node2", "--verify-timeout", "10s")
	scale(0)
	r := s.submit(plan)
	r.ends("Failed", 3*time.Minute)
	require.Contains(t, r.failure(), "4 of 4 actors that wait find no free ACTIVE worker")
	s.untouched("node2")
	s.intact()
	scale(6)
	r.retry()
	r.ends("Succeeded", 4*time.Minute)
	s.intact()
	s.wakeSome()
}

// wakeSome resumes every actor; on a half-rolled fleet they may live on either side.
func (s *substrate) wakeSome() {
	s.t.Helper()
	for _, a := range s.look() {
		require.NoError(s.t, s.Do(s.ctx, "POST", "/resume", plane.Act{Actor: a.Actor}, nil), a.Actor)
	}
	s.intact()
}

// A node vanishes while its gate is open: there is nothing left to roll on it, and the roll goes on with the next one.
func TestNodeThatVanishes(t *testing.T) {
	s := newSubstrate(t, proto.Runbook, 4, 0)
	for _, a := range s.on("node1") {
		require.NoError(t, s.Do(s.ctx, "POST", "/suspend", plane.Act{Actor: a}, nil))
	}
	r := s.submit(s.generate("-n", namespace, "--gate", "first", "--nodes", "node1,node2", "--order", "name"))
	r.eventually("the gate", time.Minute, func() bool { return len(r.open()) == 1 })
	bring := s.vanish("node1")
	r.approve("node1")
	r.ends("Succeeded", 4*time.Minute)
	require.Equal(t, newVersion, s.label("node2"))
	s.untouched("node3")
	s.intact()
	bring()
}

// vanish deletes a node with its pods, as a cloud does that takes a machine away, and returns what brings it back.
func (s *substrate) vanish(name string) (bring func()) {
	s.t.Helper()
	n, err := s.cs.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
	require.NoError(s.t, err)
	require.NoError(s.t, s.cs.CoreV1().Nodes().Delete(s.ctx, name, metav1.DeleteOptions{}))
	pods, err := s.cs.CoreV1().Pods("").List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	require.NoError(s.t, err)
	for _, p := range pods.Items {
		err := s.cs.CoreV1().Pods(p.Namespace).Delete(s.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		require.True(s.t, err == nil || apierrors.IsNotFound(err), "%v", err)
	}
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}, Spec: corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs}}
	done := false
	bring = func() {
		if done {
			return
		}
		done = true
		ctx := context.Background()
		_, err := s.cs.CoreV1().Nodes().Create(ctx, fresh, metav1.CreateOptions{})
		require.NoError(s.t, err)
		require.Eventually(s.t, func() bool {
			got, err := s.cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false
			}
			for _, c := range got.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return true
				}
			}
			return false
		}, time.Minute, time.Second)
	}
	s.t.Cleanup(bring)
	return bring
}
