package workflow

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atewf/atewf/internal/substrate"
)

// Layout says in which form the nodes stand in the Workflow.
type Layout string

const (
	// LayoutAuto is LayoutNodes up to compactAbove nodes, and LayoutCompact above.
	LayoutAuto Layout = "auto"
	// LayoutNodes has one template for each node, which reads well and takes about 1 KB a node.
	LayoutNodes Layout = "nodes"
	// LayoutCompact has one template for all nodes, which takes about 0.3 KB a node.
	LayoutCompact Layout = "compact"
)

// For is the form that n nodes get.
func (l Layout) For(n int) Layout {
	switch {
	case l != LayoutAuto && l != "":
		return l
	case n > compactAbove:
		return LayoutCompact
	}
	return LayoutNodes
}

const (
	// compactAbove is the number of nodes above which LayoutAuto becomes compact. With a template for each node Argo's
	// own record of a run is comfortable to about that many.
	compactAbove = 100

	// batchTasks limits one DAG: a pass of Argo's controller or of its validation over a DAG costs the square of its tasks.
	batchTasks = 32

	// Budget is how many bytes of JSON a Workflow may have. The whole object with the record of its run must stay below
	// Argo's limit of 1 MiB; the record is compressed, but never the specification.
	Budget = 700 << 10

	// deadlineMargin is how much later than all that it may wait for a step's pod is killed. The step is meant to end by
	// itself, with a message; the deadline catches one that hangs.
	deadlineMargin = 15 * time.Minute
)

// Timeouts are how long each step waits before it ends with a message.
type Timeouts struct {
	Drain, Suspend time.Duration
	// Flip is how long flip waits for the node to be empty, and once more for the old worker pods to be gone. Between
	// those two it waits for the new atelet, for Atelet at most.
	Flip, Atelet time.Duration
	Verify       time.Duration
}

// longest is all that each step may wait.
func (t Timeouts) longest() map[string]time.Duration {
	return map[string]time.Duration{drain: t.Drain, suspend: t.Suspend, flip: 2*t.Flip + t.Atelet, verify: t.Verify}
}

// Options say how a roll is run. The zero value of a field is not its default, see Defaults.
type Options struct {
	// Name is the name of the Workflow. When empty, the API server makes one.
	Name string
	// Namespace is the namespace of the Workflow. When empty, whoever submits it decides.
	Namespace string
	// ServiceAccount runs the steps.
	ServiceAccount string
	// Image holds the step binary.
	Image string
	// Endpoint is host:port of the Control API as step pods reach it, Audience that of their token.
	Endpoint, Audience string
	// Parallelism is how many actors are suspended at once.
	Parallelism int
	Timeouts    Timeouts
	// AllowSingleNode lets flip go on although no other node is Ready.
	AllowSingleNode bool
	// AcceptFields are fields of the Control API that a step shall pass over although it does not know them.
	AcceptFields []string
	Layout       Layout
}

// repository is where releases put the image of the steps.
const repository = "ghcr.io/atewf/atewf-steps"

// ImageOf is the image of the steps that belongs to a version of the program; the latest one for a build without a
// version.
func ImageOf(version string) string {
	if !release.MatchString(version) {
		version = "latest"
	}
	return repository + ":" + version
}

// release is a version that is published; what the toolchain calls a build between two is not.
var release = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+\.?[0-9]*)?$`)

// Defaults are the options that hold unless said otherwise.
func Defaults() Options {
	return Options{
		ServiceAccount: "atewf-roll",
		Image:          ImageOf(""),
		Endpoint:       substrate.ServerName + ":443",
		Audience:       substrate.Audience,
		Parallelism:    16,
		Timeouts: Timeouts{
			Drain: 5 * time.Minute, Suspend: 2 * time.Hour, Flip: 30 * time.Minute, Verify: 15 * time.Minute, Atelet: 10 * time.Minute,
		},
		Layout: LayoutAuto,
	}
}

// check reports what no Workflow can be made of.
func (o Options) check() error {
	t := o.Timeouts
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"drain", t.Drain}, {"suspend", t.Suspend}, {"flip", t.Flip}, {"verify", t.Verify}, {"atelet", t.Atelet}} {
		if d.d < time.Second {
			return fmt.Errorf("the timeout of %s is %s; raise --%s-timeout to a second at least", d.name, d.d, d.name)
		}
	}
	for _, v := range []struct{ flag, value string }{
		{"--image", o.Image}, {"--steps-endpoint", o.Endpoint}, {"--audience", o.Audience}, {"--accept-field", strings.Join(o.AcceptFields, ",")},
	} {
		if strings.Contains(v.value, "{{") || strings.Contains(v.value, "}}") {
			return fmt.Errorf("%s: %q has {{ or }} in it, and Argo would replace it; give another", v.flag, v.value)
		}
	}
	for _, v := range []struct {
		flag, value string
		most        int
	}{{"--name", o.Name, maxWorkflowName}, {"--namespace", o.Namespace, validation.DNS1123LabelMaxLength}, {"--service-account", o.ServiceAccount, validation.DNS1123SubdomainMaxLength}} {
		if v.value == "" {
			continue
		}
		if errs := validation.IsDNS1123Subdomain(v.value); len(errs) > 0 {
			return fmt.Errorf("%s: %q is no name: %s", v.flag, v.value, strings.Join(errs, "; "))
		}
		if len(v.value) > v.most {
			return fmt.Errorf("%s: %q has %d characters; give a name of %d at most", v.flag, v.value, len(v.value), v.most)
		}
	}
	if o.Image == "" {
		return errors.New("no image of the steps is given; pass --image")
	}
	if o.Parallelism < 1 {
		return fmt.Errorf("%d actors cannot be suspended at once; pass --parallelism 1 or more", o.Parallelism)
	}
	return nil
}
