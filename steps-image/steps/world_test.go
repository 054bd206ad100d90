package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

const (
	oldVersion = "v1"
	newVersion = "v2"
)

// world is a small cluster with Agent Substrate on it, in memory and under a clock that moves only when somebody sleeps.
// It keeps to the rules by which state is lost: a pod that goes away takes the actor on it along, and an atelet of
// another version does not read a local snapshot. It notes every breach of a promise as it happens.
type world struct {
	t  *testing.T
	mu sync.Mutex

	now     time.Time
	nodes   map[string]*corev1.Node
	pods    map[string]*corev1.Pod // by namespace/name
	workers map[string]*substrate.Worker
	actors  map[substrate.Ref]*substrate.Actor
	lost    []string // actors whose state is gone
	lease   *coordinationv1.Lease
	phases  map[string]string // namespace/name/uid of a Workflow -> phase
	pending int               // worker pods of the new version that wait for a node
	serial  int

	// hook is called before each operation, without the lock; what it returns becomes the operation's error.
	hook     func(op, arg string) error
	calls    []string
	breaches []string
	events   []string
	said     []string
	progress []string

	// hides, when set, keeps an actor out of one answer to a list: lists are soft.
	hides func(substrate.Ref) bool

	// noAssigned hides ListWorkerActorAssignments; ateletAfter is how long a new atelet takes, 0 for never.
	noAssigned  bool
	ateletAfter time.Duration
	flippedAt   map[string]time.Time
}

// newWorld has three nodes with two gvisor and two microvm workers each at the old version, and as many new pods waiting.
func newWorld(t *testing.T) *world {
	w := &world{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
		workers: map[string]*substrate.Worker{}, actors: map[substrate.Ref]*substrate.Actor{}, phases: map[string]string{},
		pending: 12, ateletAfter: 3 * time.Second, flippedAt: map[string]time.Time{}}
	for _, n := range []string{"node1", "node2", "node3"} {
		w.nodes[n] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{versions.Label: oldVersion}, Annotations: map[string]string{}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		w.addAtelet(n, oldVersion)
		for i := range 4 {
			w.addWorker(n, oldVersion, []string{"gvisor", "microvm"}[i%2])
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("calls:\n%s\nsaid:\n%s", strings.Join(tail(w.calls, 40), "\n"), strings.Join(tail(w.said, 15), "\n"))
		}
	})
	return w
}

func (w *world) addAtelet(node, version string) {
	name := "atelet-" + version + "-" + node
	w.pods["ate-system/"+name] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ate-system", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "atelet", versions.Label: version}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: ready(),
	}
}

func ready() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
}

// addWorker adds a Ready worker pod and its registered worker.
func (w *world) addWorker(node, version, class string) *substrate.Worker {
	w.serial++
	name := fmt.Sprintf("%s-%s-%d", class, version, w.serial)
	uid := "uid-" + name
	w.pods["pools/"+name] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pools", Name: name, UID: types.UID(uid), Labels: map[string]string{versions.WorkerPoolLabel: class + "-" + version}},
		Spec:       corev1.PodSpec{NodeName: node, NodeSelector: map[string]string{versions.Label: version}}, Status: ready(),
	}
	w.workers[uid] = &substrate.Worker{Name: uid, PodUID: uid, Namespace: "pools", Pool: class + "-" + version, Pod: name, Node: node, Class: class, State: substrate.Active, Capacity: 1}
	return w.workers[uid]
}

// run puts a running actor on a free worker of the node.
func (w *world) run(name, node string) substrate.Ref {
	for _, k := range sortedKeys(w.workers) {
		wk := w.workers[k]
		if wk.Node == node && w.holder(wk.Name) == nil {
			ref := substrate.Ref{Atespace: "default", Name: name}
			w.actors[ref] = &substrate.Actor{Ref: ref, State: substrate.Running, Worker: wk.Name, WorkerPodUID: wk.PodUID}
			return ref
		}
	}
	w.t.Fatalf("no free worker on %s", node)
	return substrate.Ref{}
}

// pause puts a paused actor's local snapshot on the node.
func (w *world) pause(name, node string) substrate.Ref {
	ref := substrate.Ref{Atespace: "default", Name: name}
	w.actors[ref] = &substrate.Actor{Ref: ref, State: substrate.Paused, SnapshotNodes: []string{node}}
	return ref
}

func (w *world) holder(worker string) *substrate.Actor {
	for _, a := range w.actors {
		if a.Worker == worker {
			return a
		}
	}
	return nil
}

func (w *world) breach(format string, args ...any) {
	w.breaches = append(w.breaches, fmt.Sprintf(format, args...))
}

// enter begins an operation: it calls the hook and takes the lock.
func (w *world) enter(op, arg string) (leave func(), err error) {
	if w.hook != nil {
		err = w.hook(op, arg)
	}
	w.mu.Lock()
	w.calls = append(w.calls, strings.TrimSpace(op+" "+arg))
	w.settle()
	return w.mu.Unlock, err
}

// settle lets happen what the controllers do by themselves.
func (w *world) settle() {
	for node, at := range w.flippedAt {
		n := w.nodes[node]
		if n == nil {
			continue
		}
		if version := n.Labels[versions.Label]; w.ateletAfter > 0 && w.now.Sub(at) >= w.ateletAfter {
			for k, p := range w.pods {
				if p.Labels["app"] == "atelet" && p.Spec.NodeName == node && p.Labels[versions.Label] != version {
					delete(w.pods, k)
				}
			}
			w.addAtelet(node, version)
		}
		if n.Labels[versions.Label] != newVersion {
			continue
		}
		here := 0
		for _, p := range w.pods {
			if p.Spec.NodeName == node && p.Labels[versions.WorkerPoolLabel] != "" {
				here++
			}
		}
		for ; here < 4 && w.pending > 0; here++ {
			w.pending--
			w.addWorker(node, newVersion, []string{"gvisor", "microvm"}[w.pending%2])
		}
	}
}

func (w *world) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	w.now = w.now.Add(d)
	w.settle()
	w.mu.Unlock()
	return nil
}

func (w *world) Say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *world) Progress(done, total int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progress = append(w.progress, fmt.Sprintf("%d/%d", done, total))
}

func (w *world) While(time.Duration, func() string) func() { return func() {} }

func notFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

func (w *world) Node(_ context.Context, name string) (*corev1.Node, error) {
	leave, err := w.enter("Node", name)
	defer leave()
	if err != nil {
		return nil, err
	}
	if n, ok := w.nodes[name]; ok {
		return n.DeepCopy(), nil
	}
	return nil, notFound("nodes", name)
}

func (w *world) ReadyNodes(_ context.Context, except string, of ...string) (int, error) {
	leave, err := w.enter("ReadyNodes", "")
	defer leave()
	n := 0
	for _, node := range w.nodes {
		if node.Name != except && slices.Contains(of, node.Labels[versions.Label]) && node.Status.Conditions[0].Status == corev1.ConditionTrue {
			n++
		}
	}
	return n, err
}

func (w *world) PatchNode(_ context.Context, name string, patch []PatchOp) error {
	leave, err := w.enter("PatchNode", name)
	defer leave()
	if err != nil && !strings.Contains(err.Error(), "answer lost") {
		return err
	}
	n := w.nodes[name]
	if n == nil {
		return notFound("nodes", name)
	}
	for _, op := range patch {
		key := strings.ReplaceAll(op.Path[strings.LastIndex(op.Path, "/")+1:], "~1", "/")
		switch {
		case op.Op == "test":
			if n.Labels[key] != op.Value {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, name, nil)
			}
		case strings.HasPrefix(op.Path, "/metadata/labels/"):
			w.flip(n, op.Value.(string))
		case strings.HasPrefix(op.Path, "/metadata/annotations/"):
			n.Annotations[key] = op.Value.(string)
		}
	}
	return err
}

// flip changes the label and notes what that breaks.
func (w *world) flip(n *corev1.Node, to string) {
	w.calls = append(w.calls, "Flip "+n.Name)
	for _, a := range w.actors {
		if wk := w.workers[a.Worker]; wk != nil && wk.Node == n.Name {
			w.breach("promise 1: %s flipped while actor %s (%s) is on it", n.Name, a.Ref, a.State)
		}
		if a.State == substrate.Paused && slices.Contains(a.SnapshotNodes, n.Name) {
			w.breach("promise 1: %s flipped while actor %s is paused there", n.Name, a.Ref)
			w.lost = append(w.lost, a.Ref.String())
		}
	}
	for _, wk := range w.workers {
		if wk.Node == n.Name && wk.State == substrate.Active {
			w.breach("promise 1: %s flipped while %s takes actors", n.Name, wk)
		}
	}
	for _, other := range w.nodes {
		if st, _ := roll.ParseStamp(other.Annotations); other.Name != n.Name && st.InProgress() {
			w.breach("promise 3: %s flipped while %s is open", n.Name, other.Name)
		}
	}
	n.Labels[versions.Label] = to
	w.flippedAt[n.Name] = w.now
}

func (w *world) podsWhere(match func(*corev1.Pod) bool) []corev1.Pod {
	var out []corev1.Pod
	for _, k := range sortedKeys(w.pods) {
		if match(w.pods[k]) {
			out = append(out, *w.pods[k].DeepCopy())
		}
	}
	return out
}

func (w *world) WorkerPods(_ context.Context, node string) ([]corev1.Pod, error) {
	leave, err := w.enter("WorkerPods", node)
	defer leave()
	return w.podsWhere(func(p *corev1.Pod) bool { return p.Labels[versions.WorkerPoolLabel] != "" && p.Spec.NodeName == node }), err
}

func (w *world) UnscheduledWorkerPods(context.Context) ([]corev1.Pod, error) {
	leave, err := w.enter("UnscheduledWorkerPods", "")
	defer leave()
	var out []corev1.Pod
	for i := range w.pending {
		out = append(out, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "pools", Name: fmt.Sprintf("pending-%d", i)},
			Spec: corev1.PodSpec{NodeSelector: map[string]string{versions.Label: newVersion}}})
	}
	return out, err
}

func (w *world) AteletPods(_ context.Context, namespace, node string) ([]corev1.Pod, error) {
	leave, err := w.enter("AteletPods", node)
	defer leave()
	return w.podsWhere(func(p *corev1.Pod) bool {
		return p.Namespace == namespace && p.Labels["app"] == "atelet" && p.Spec.NodeName == node
	}), err
}

func (w *world) DeletePod(_ context.Context, namespace, name string, uid types.UID) error {
	leave, err := w.enter("DeletePod", name)
	defer leave()
	if err != nil {
		return err
	}
	p := w.pods[namespace+"/"+name]
	if p == nil {
		return notFound("pods", name)
	}
	if p.UID != uid {
		if uid == "" {
			w.breach("promise 2: pod %s deleted without its UID", name)
		}
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, fmt.Errorf("the UID is another"))
	}
	if at := w.nodes[p.Spec.NodeName].Labels[versions.Label]; at != newVersion {
		w.breach("promise 2: pod %s deleted on a node at %s", name, at)
	}
	if versions.PodPin(p) != oldVersion {
		w.breach("pod %s of the new version deleted", name)
	}
	if a := w.holder(string(uid)); a != nil {
		w.breach("promise 2: pod %s deleted under actor %s", name, a.Ref)
		w.crash(a)
	}
	delete(w.pods, namespace+"/"+name)
	delete(w.workers, string(uid))
	return nil
}

func (w *world) crash(a *substrate.Actor) {
	a.State, a.Worker, a.WorkerPodUID = substrate.Crashed, "", ""
	w.lost = append(w.lost, a.Ref.String())
}

func (w *world) LogTail(context.Context, string, string, int64) (string, error) {
	return "cannot read the image cache\ngiving up\n", nil
}

func (w *world) Lease(context.Context, string, string) (*coordinationv1.Lease, error) {
	leave, err := w.enter("Lease", "")
	defer leave()
	if err != nil {
		return nil, err
	}
	if w.lease == nil {
		return nil, notFound("leases", roll.LeaseName)
	}
	return w.lease.DeepCopy(), nil
}

func (w *world) CreateLease(_ context.Context, l *coordinationv1.Lease) error {
	leave, err := w.enter("CreateLease", "")
	defer leave()
	if err != nil {
		return err
	}
	if w.lease != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, l.Name)
	}
	w.lease = l.DeepCopy()
	w.lease.ResourceVersion = "1"
	return nil
}

func (w *world) UpdateLease(_ context.Context, l *coordinationv1.Lease) error {
	leave, err := w.enter("UpdateLease", "")
	defer leave()
	if err != nil {
		return err
	}
	if l.ResourceVersion != w.lease.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, l.Name, fmt.Errorf("it has changed"))
	}
	w.serial++
	w.lease = l.DeepCopy()
	w.lease.ResourceVersion = fmt.Sprint(w.serial + 1)
	return nil
}

func (w *world) WorkflowPhase(_ context.Context, namespace, name string) (string, string, error) {
	leave, err := w.enter("WorkflowPhase", name)
	defer leave()
	if err != nil {
		return "", "", err
	}
	for k, phase := range w.phases {
		if rest, ok := strings.CutPrefix(k, namespace+"/"+name+"/"); ok {
			return rest, phase, nil
		}
	}
	return "", "", notFound("workflows", name)
}

func (w *world) Event(_ context.Context, node *corev1.Node, kind, reason, message string) error {
	leave, err := w.enter("Event", reason)
	defer leave()
	w.events = append(w.events, reason)
	return err
}

func (w *world) Workers(context.Context) ([]substrate.Worker, error) {
	leave, err := w.enter("Workers", "")
	defer leave()
	var out []substrate.Worker
	for _, k := range sortedKeys(w.workers) {
		out = append(out, *w.workers[k])
	}
	return out, err
}

func (w *world) EachActor(_ context.Context, fn func(substrate.Actor) error) error {
	leave, err := w.enter("EachActor", "")
	var all []substrate.Actor
	for _, a := range w.actors {
		if w.hides == nil || !w.hides(a.Ref) {
			all = append(all, *a)
		}
	}
	leave()
	slices.SortFunc(all, func(a, b substrate.Actor) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	for _, a := range all {
		if err := fn(a); err != nil {
			return err
		}
	}
	return err
}

func (w *world) Actor(_ context.Context, ref substrate.Ref) (substrate.Actor, error) {
	leave, err := w.enter("Actor", ref.Name)
	defer leave()
	if err != nil {
		return substrate.Actor{}, err
	}
	if a := w.actors[ref]; a != nil {
		return *a, nil
	}
	return substrate.Actor{}, status.Error(codes.NotFound, "no such actor")
}

func (w *world) Assigned(_ context.Context, worker string) ([]substrate.Ref, bool, error) {
	leave, err := w.enter("Assigned", worker)
	defer leave()
	if w.noAssigned || err != nil {
		return nil, false, err
	}
	if a := w.holder(worker); a != nil {
		return []substrate.Ref{a.Ref}, true, nil
	}
	return nil, true, nil
}

func (w *world) Drain(_ context.Context, worker string) (substrate.Worker, error) {
	leave, err := w.enter("Drain", worker)
	defer leave()
	if err != nil {
		return substrate.Worker{}, err
	}
	wk := w.workers[worker]
	if wk == nil {
		return substrate.Worker{}, status.Error(codes.NotFound, "no such worker")
	}
	if strings.Contains(wk.Pool, newVersion) {
		w.breach("a worker of the new version was drained: %s", wk)
	}
	wk.State = substrate.Draining
	if a := w.holder(worker); a != nil && a.State == substrate.Resuming {
		w.breach("%s drained under actor %s, which is resuming", wk, a.Ref)
		w.crash(a)
	}
	return *wk, nil
}

func (w *world) Suspend(_ context.Context, ref substrate.Ref) (substrate.Actor, error) {
	leave, err := w.enter("Suspend", ref.Name)
	defer leave()
	if err != nil {
		return substrate.Actor{}, err
	}
	a := w.actors[ref]
	switch {
	case a == nil:
		return substrate.Actor{}, status.Error(codes.NotFound, "no such actor")
	case a.State == substrate.Running, a.State == substrate.Paused, a.State == substrate.Suspending, a.State == substrate.Suspended:
		a.State, a.Worker, a.WorkerPodUID = substrate.Suspended, "", "" // the record of the local snapshot stays, as in the real one
		return *a, nil
	}
	return substrate.Actor{}, status.Errorf(codes.FailedPrecondition, "MarkSuspending prerequisite not met: %s", a.State)
}

// holder of the roll in the tests.
var me = roll.Holder{Namespace: "default", Name: "roll", UID: "u1"}

// roller makes the Roller for a node.
func (w *world) roller(node string, change ...func(*Options)) *Roller {
	o := Options{Node: node, From: oldVersion, To: newVersion, Roll: me}
	for _, c := range change {
		c(&o)
	}
	w.phases[o.Roll.String()] = "Running"
	r, err := New(w, w, w, w, o)
	require.NoError(w.t, err)
	return r
}

// all runs the four steps on a node.
func (w *world) all(r *Roller) error {
	ctx := context.Background()
	for _, step := range []func(context.Context) (Result, error){r.Drain, r.Suspend, r.Flip, r.Verify} {
		if _, err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// intact asserts that no promise was broken and nothing is lost.
func (w *world) intact() {
	w.t.Helper()
	require.Empty(w.t, w.breaches)
	require.Empty(w.t, w.lost)
}

func (w *world) stampOf(node string) *roll.Stamp {
	st, err := roll.ParseStamp(w.nodes[node].Annotations)
	require.NoError(w.t, err)
	return st
}

func (w *world) leaseAnnotation(key string) string {
	if w.lease == nil {
		return ""
	}
	return w.lease.Annotations[key]
}

func stopOf(t *testing.T, err error, code int) *Stop {
	t.Helper()
	var s *Stop
	require.ErrorAs(t, err, &s)
	require.Equal(t, code, s.Code, "%v", err)
	require.Contains(t, err.Error(), "next: ", "a stop says what to do next")
	require.Contains(t, err.Error(), "node "+s.Node)
	return s
}

func mustJSON(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

func tail(s []string, n int) []string { return s[max(0, len(s)-n):] }
