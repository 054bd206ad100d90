package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/versions"
)

// pools pairs each pool of the old version with its clone, and notes what is wrong with either.
func (b *builder) pools() {
	begun := slices.ContainsFunc(b.s.Nodes, func(n snapshot.Node) bool { return n.Version() == b.p.To })
	clones := map[string][]snapshot.Pool{} // pools of the new version by namespace
	for _, p := range b.s.Pools {
		if p.Pin == b.p.To {
			clones[p.Namespace] = append(clones[p.Namespace], p)
		}
	}
	unpinned := false
	notes := about{what: "worker pool"}
	taken := map[string]string{} // which old pool a clone belongs to
	for _, p := range b.s.Pools {
		object := "worker pool " + p.String()
		switch {
		case p.Pin == "" && p.Replicas == 0:
			b.warn(object, "pin it before it is used again", "it is pinned to no version, and has no workers")
			continue
		case p.Pin == "":
			unpinned = true
			b.err(object, fmt.Sprintf("pin it to %s (spec.template.nodeSelector %s) while no actor is on its workers", b.p.From, versions.Label),
				"it is pinned to no version, so its workers would land on either side")
			continue
		case p.Pin != b.p.From && p.Pin != b.p.To:
			b.warn(object, "", "it is pinned to %s, which this roll does not move", p.Pin)
			continue
		case p.Pin == b.p.To:
			if !strings.Contains(p.Image, "@sha256:") {
				notes.add(Warning, p.String(), "pin it by digest (image@sha256:...), so that every node gets the same", "the worker image %s has no digest", p.Image)
			}
			continue
		}
		// Once the roll has begun, old pods that lost their node are Pending on purpose: they are the way back.
		if p.Ready != p.Replicas && !begun {
			b.warn(object, "find out what it lacks before the roll", "only %d of its %d workers are Ready", p.Ready, p.Replicas)
		}
		b.p.Pools = append(b.p.Pools, Pool{Namespace: p.Namespace, Name: p.Name, Clone: b.clone(&notes, p, clones[p.Namespace], taken)})
	}
	b.p.Findings = append(b.p.Findings, notes.findings()...)
	if !unpinned { // the pods of an unpinned pool are no news
		b.strangers()
	}
}

// clone finds the pool that takes over from an old one: same namespace, same labels, and a spec that differs in nothing
// but image and pin, or at least in little.
func (b *builder) clone(notes *about, old snapshot.Pool, candidates []snapshot.Pool, taken map[string]string) string {
	object := "worker pool " + old.String()
	best, diff := -1, []string(nil)
	var almost string
	for i, c := range candidates {
		if taken[c.String()] != "" {
			continue
		}
		if !maps.Equal(old.Labels, c.Labels) {
			if c.Class == old.Class && almost == "" {
				almost = c.Name
			}
			continue
		}
		if c.Class != old.Class {
			continue
		}
		d, err := specDiff(old.Spec, c.Spec)
		if err != nil {
			b.err("worker pool "+c.String(), "", "%v", err)
			return ""
		}
		// Of pools that are equally alike, the one whose name tells that it was made from this one.
		if best < 0 || len(d) < len(diff) || len(d) == len(diff) && strings.HasPrefix(c.Name, old.Name) && !strings.HasPrefix(candidates[best].Name, old.Name) {
			best, diff = i, d
		}
	}
	if best < 0 {
		how := fmt.Sprintf("clone it under a new name with the image and the pin of %s (runbook: create the new pool)", b.p.To)
		if old.Replicas == 0 {
			b.warn(object, how+" if it is to be used again", "it has no clone at %s, and no workers", b.p.To)
			return ""
		}
		msg := fmt.Sprintf("it has no clone at %s in its namespace, so its actors would find no worker there", b.p.To)
		if almost != "" {
			msg += fmt.Sprintf(" (%s is no clone: its metadata.labels differ, by which actors are matched)", almost)
		}
		b.err(object, how, "%s", msg)
		return ""
	}
	c := candidates[best]
	taken[c.String()] = old.Name
	object = "worker pool " + c.String()
	if less := shrunk(old.Spec, c.Spec); less != "" {
		b.err(object, "give it the limits of "+old.Name, "%s is below that of %s, so actors that fit there would not fit here", less, old.Name)
	} else if len(diff) > 0 {
		b.warn(object, "make sure that this is meant", "it differs from %s in more than image and pin: %s", old.Name, strings.Join(diff, ", "))
	}
	if c.Image == old.Image && c.Image != "" {
		notes.add(Warning, c.String(), "see whether the new release has a worker image of its own", "the worker image is the one of the old version")
	}
	return c.Name
}

// specDiff lists the fields in which a clone's spec differs from the original's, beyond image and pin.
func specDiff(old, clone json.RawMessage) ([]string, error) {
	a, err := withoutSides(old)
	if err != nil {
		return nil, err
	}
	c, err := withoutSides(clone)
	if err != nil {
		return nil, err
	}
	// A later release has the class in a list of its own, which the recipe for a clone fills in.
	if _, had := a["sandboxClasses"]; !had {
		if one, err := json.Marshal(c["sandboxClasses"]); err == nil && string(one) == fmt.Sprintf(`[{"name":%q}]`, class(a)) {
			delete(c, "sandboxClasses")
		}
	}
	var out []string
	differ("spec", a, c, &out)
	slices.Sort(out)
	return out, nil
}

func class(spec map[string]any) string {
	if c, ok := spec["sandboxClass"].(string); ok {
		return c
	}
	return "gvisor" // the default of the CRD
}

// withoutSides is a spec without what a clone may change.
func withoutSides(raw json.RawMessage) (map[string]any, error) {
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("its spec cannot be read: %w", err)
	}
	delete(m, "workerImage")
	delete(m, "ateomImage") // its name before it was workerImage
	if t, ok := m["template"].(map[string]any); ok {
		if ns, ok := t["nodeSelector"].(map[string]any); ok {
			delete(ns, versions.Label)
			if len(ns) == 0 {
				delete(t, "nodeSelector")
			}
		}
		if len(t) == 0 {
			delete(m, "template")
		}
	}
	return m, nil
}

func differ(path string, a, c any, out *[]string) {
	x, isMap := a.(map[string]any)
	y, alsoMap := c.(map[string]any)
	if !isMap || !alsoMap {
		if !reflect.DeepEqual(a, c) {
			*out = append(*out, path)
		}
		return
	}
	for k := range x {
		differ(path+"."+k, x[k], y[k], out)
	}
	for k := range y {
		if _, ok := x[k]; !ok {
			*out = append(*out, path+"."+k)
		}
	}
}

// shrunk names a resource limit that is lower in a clone than in the original, "" when none is.
func shrunk(old, clone json.RawMessage) string {
	type spec struct {
		Template struct {
			Resources struct {
				Limits map[string]resource.Quantity `json:"limits"`
			} `json:"resources"`
		} `json:"template"`
	}
	var a, c spec
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(clone, &c) != nil {
		return "" // specDiff has said so
	}
	for _, name := range slices.Sorted(maps.Keys(a.Template.Resources.Limits)) {
		was := a.Template.Resources.Limits[name]
		if is, ok := c.Template.Resources.Limits[name]; ok && is.Cmp(was) < 0 {
			return fmt.Sprintf("spec.template.resources.limits.%s (%s)", name, is.String())
		}
	}
	return ""
}
