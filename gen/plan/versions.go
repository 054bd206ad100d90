package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/roll"
	"github.com/atewf/atewf/internal/versions"
)

// texts refuses what cannot stand in a Workflow: what Argo would take for a tag and replace, and names that no node has.
func (b *builder) texts() {
	bad := func(s string) bool { return strings.Contains(s, "{{") || strings.Contains(s, "}}") }
	const wayOut = "Argo would replace it; rename it"
	check := func(object, what, value string) {
		if bad(value) {
			b.err(object, wayOut, "%s %q has {{ or }} in it", what, value)
		}
	}
	for _, n := range b.s.Nodes {
		if errs := validation.IsDNS1123Subdomain(n.Name); len(errs) > 0 && !bad(n.Name) {
			b.err(fmt.Sprintf("node %.40q", n.Name), "see whether the snapshot was edited", "no node of Kubernetes can have this name of %d characters: %s", len(n.Name), strings.Join(errs, "; "))
		}
	}
	check("cluster", "the name", b.s.Cluster.Name)
	check("cluster", "the context", b.s.Cluster.Context)
	check("namespace of Agent Substrate", "the name", b.s.Namespace)
	check("--from", "the version", b.o.From)
	check("--to", "the version", b.o.To)
	labels := func(object string, set map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(set)) {
			if bad(k) || bad(set[k]) {
				b.err(object, wayOut, "label %q with the value %q has {{ or }} in it", k, set[k])
			}
		}
	}
	for _, n := range b.s.Nodes {
		check("node "+n.Name, "the name", n.Name)
		labels("node "+n.Name, n.Labels)
	}
	for _, p := range b.s.Pools {
		check("worker pool "+p.String(), "the name", p.String())
		check("worker pool "+p.String(), "the pin", p.Pin)
		labels("worker pool "+p.String(), p.Labels)
	}
	for _, d := range b.s.Atelets {
		check("DaemonSet "+d.Name, "the version", d.Version)
	}
}

// versions finds out which version leaves and which one comes, from the labels of the atelet DaemonSets and never from
// their names.
func (b *builder) versions() {
	const install = "check that this is the right cluster, and --substrate-namespace"
	ns := "namespace " + b.s.Namespace
	switch {
	case !b.s.PoolsServed && len(b.s.Atelets) == 0:
		b.err("Agent Substrate", install, "it is not installed here: the API server knows no WorkerPool, and %s has no atelet", ns)
		return
	case !b.s.PoolsServed:
		b.err("Agent Substrate", "apply the CRDs of the release", "the API server knows no WorkerPool (ate.dev/v1alpha1)")
		return
	case len(b.s.Atelets) == 0:
		b.err("Agent Substrate", install, "%s has no DaemonSet with %s", ns, versions.AteletSelector)
		return
	}
	byVersion := map[string]snapshot.DaemonSet{}
	for _, d := range b.s.Atelets {
		switch other, twice := byVersion[d.Version]; {
		case d.Version == "":
			b.err("DaemonSet "+b.s.Namespace+"/"+d.Name, "install a versioned release afresh: the selector of this DaemonSet cannot be changed",
				"it carries no label %s, so nobody can tell the two sides of a roll apart", versions.Label)
		case twice:
			b.err("DaemonSet "+b.s.Namespace+"/"+d.Name, "remove the one that does not belong there", "it is of version %s, and so is %s", d.Version, other.Name)
		default:
			byVersion[d.Version] = d
		}
	}
	if b.failed() != nil {
		return
	}
	for _, given := range []struct{ flag, version string }{{"--from", b.o.From}, {"--to", b.o.To}} {
		flag, v := given.flag, given.version
		if v == "" {
			continue
		}
		if err := versions.Validate(v); err != nil {
			b.err(flag, "give the value of the label "+versions.Label+" of a DaemonSet", "%v", err)
		} else if _, ok := byVersion[v]; !ok {
			b.err(flag, "see kubectl get daemonsets -n "+b.s.Namespace+" -l "+versions.AteletSelector+" -L "+versions.Label,
				"no atelet DaemonSet is of version %s; there are %s", v, known(byVersion))
		}
	}
	if b.failed() != nil {
		return
	}
	b.p.From, b.p.To = b.direction(byVersion)
	if b.failed() != nil {
		return
	}
	for _, v := range []string{b.p.From, b.p.To} {
		if err := versions.Validate(v); err != nil {
			b.err("DaemonSet "+b.s.Namespace+"/"+byVersion[v].Name, "install a release with a version that can be a label", "%v", err)
		}
	}
	b.oldSet = byVersion[b.p.From]
	b.oldPlace, b.newPlace = placementOf(b.oldSet), placementOf(byVersion[b.p.To])
}

func known(byVersion map[string]snapshot.DaemonSet) string {
	return strings.Join(slices.SortedFunc(maps.Keys(byVersion), natural), ", ")
}

// direction says which version leaves and which one comes.
func (b *builder) direction(byVersion map[string]snapshot.DaemonSet) (from, to string) {
	from, to = b.o.From, b.o.To
	if from != "" && from == to {
		b.err("--from and --to", "give two versions", "both are %s, so there is nothing to roll", from)
		return "", ""
	}
	if from != "" && to != "" {
		return from, to
	}
	vs := slices.SortedFunc(maps.Keys(byVersion), natural)
	switch {
	case len(vs) == 1:
		b.err("Agent Substrate", "deploy the atelet of the new version first (runbook: prepare the new dataplane), from a release whose version differs",
			"there is one version only, %s", vs[0])
		return "", ""
	case len(vs) > 2:
		b.err("Agent Substrate", "say which with --from and --to, and retire those that are not needed", "there are %d versions: %s", len(vs), known(byVersion))
		return "", ""
	case from != "":
		return from, other(vs, from)
	case to != "":
		return other(vs, to), to
	}
	return b.guess(vs, byVersion)
}

func other(two []string, v string) string {
	if two[0] == v {
		return two[1]
	}
	return two[0]
}

// guess tells the direction of a roll between two versions. What an earlier run of the roll wrote on a node decides;
// without that, the version that all nodes carry is the old one, and the DaemonSet that was made last is the new one.
func (b *builder) guess(vs []string, byVersion map[string]snapshot.DaemonSet) (from, to string) {
	var last time.Time
	carried := map[string]int{}
	for _, n := range b.s.Nodes {
		carried[n.Version()]++
		st, err := roll.ParseStamp(map[string]string{roll.StampAnnotation: n.Stamp})
		if err != nil || st == nil || st.At.Before(last) {
			continue // index reports a stamp that cannot be read
		}
		if slices.Equal(vs, slices.SortedFunc(slices.Values([]string{st.From, st.To}), natural)) {
			from, to, last = st.From, st.To, st.At
		}
	}
	if from != "" {
		return from, to
	}
	x, y := vs[0], vs[1]
	made := func(v string) time.Time { return byVersion[v].Created }
	dated := !made(x).IsZero() && !made(y).IsZero() && !made(x).Equal(made(y))
	if dated && made(y).Before(made(x)) || !dated && carried[x] < carried[y] {
		x, y = y, x
	}
	explicit := fmt.Sprintf("pass --from %s --to %s, or the other way round", x, y)
	switch {
	case carried[x] == 0 && carried[y] == 0:
		b.err("nodes", "label the nodes as the installer of the release does", "none carries %s=%s or %s", versions.Label, x, y)
	case carried[x] == 0 && dated:
		b.err("roll", fmt.Sprintf("to go the other way, pass --from %s --to %s", y, x),
			"nothing to roll: every node is at %s, whose atelet is the newer of the two", y)
	case carried[x] > 0 && carried[y] > 0 && !dated:
		b.err("nodes", explicit, "%d carry %s and %d carry %s, and no node says which way the roll goes", carried[x], x, carried[y], y)
	case carried[x] > 0 && carried[y] > 0:
		b.warn("nodes", explicit+" to be sure", "%d carry %s and %d carry %s; the roll goes to %s because its atelet is the newer", carried[x], x, carried[y], y, y)
		return x, y
	default:
		return x, y
	}
	return "", ""
}
