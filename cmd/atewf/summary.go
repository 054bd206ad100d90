package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/atewf/atewf/gen/plan"
	"github.com/atewf/atewf/gen/workflow"
)

// summary tells people what the Workflow does.
type summary struct {
	w         io.Writer
	plan      *plan.Plan
	from      string // what was read
	yaml      int    // bytes
	namespace string // of the Workflow
	account   string // service account of the steps
	named     bool   // the Workflow has a name of its own
	terminal  bool   // the Workflow goes to a terminal and not into a pipe
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (s summary) print() {
	// One write for all of it: a table of thousands of lines is as many writes otherwise.
	out := bufio.NewWriter(s.w)
	defer out.Flush()
	s.w = out
	p := s.plan
	on := ""
	if p.Cluster != "" {
		on = " on " + p.Cluster
	}
	fmt.Fprintf(s.w, "Agent Substrate %s to %s%s, from %s\n\n", p.From, p.To, on, s.from)
	s.table()
	for _, f := range p.Findings {
		fmt.Fprintf(s.w, "%s: %s\n", f.Severity, f)
	}
	if len(p.Findings) > 0 {
		fmt.Fprintln(s.w)
	}
	if pools := s.pools(); pools != "" {
		fmt.Fprintf(s.w, "worker pools: %s\n", pools)
	}
	fmt.Fprintf(s.w, "%s, %s, %s; %s of JSON of %s at most, %s of YAML\n",
		count(p.Cost.Nodes, "node"), count(p.Cost.Gates, "gate"), count(p.Cost.Pods, "step pod"), kib(p.Cost.Bytes), kib(workflow.Budget), kib(s.yaml))
	if s.terminal {
		s.next()
	}
}

// many is how many nodes that are not rolled are told one by one; more are told together by their reason.
const many = 20

func (s summary) table() {
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "#\tNODE\tZONE\tWORKERS\tACTORS\tVERDICT\tREASON")
	rolling := s.plan.Rolling()
	rest := s.plan.Nodes[len(rolling):]
	row := func(pos string, n plan.Node) {
		actors := "?"
		if s.plan.ActorsKnown {
			actors = strconv.Itoa(n.Actors)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", pos, n.Name, or(n.Zone, "-"), n.Workers, actors, n.Verdict, n.Reason)
	}
	for i, n := range rolling {
		row(strconv.Itoa(i+1), n)
	}
	if len(rest) <= many {
		for _, n := range rest {
			row("-", n)
		}
		rest = nil
	}
	w.Flush()
	fmt.Fprintln(s.w)
	if len(rest) == 0 {
		return
	}
	type kind struct {
		verdict plan.Verdict
		reason  string
	}
	var kinds []kind
	names := map[kind][]string{}
	for _, n := range rest {
		k := kind{n.Verdict, n.Reason}
		if names[k] == nil {
			kinds = append(kinds, k)
		}
		names[k] = append(names[k], n.Name)
	}
	const shown = 5
	for _, k := range kinds {
		l := names[k]
		more := ""
		if len(l) > shown {
			more = fmt.Sprintf(" and %d more", len(l)-shown)
			l = l[:shown]
		}
		fmt.Fprintf(s.w, "%s, each %s: %s%s\n", k.verdict, k.reason, strings.Join(l, ", "), more)
	}
	fmt.Fprintln(s.w)
}

// pools tells which pool takes over from which.
func (s summary) pools() string {
	const shown = 5
	var out []string
	for _, p := range s.plan.Pools {
		if p.Clone != "" {
			out = append(out, fmt.Sprintf("%s/%s takes over from %s", p.Namespace, p.Clone, p.Name))
		}
	}
	if more := len(out) - shown; more > 0 {
		out = append(out[:shown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// namespaces are those of the worker pools.
func (s summary) namespaces() []string {
	var out []string
	for _, p := range s.plan.Pools {
		if !slices.Contains(out, p.Namespace) {
			out = append(out, p.Namespace)
		}
	}
	return out
}

// next says what to type, to somebody who sees the Workflow pass by.
func (s summary) next() {
	ns := ""
	if s.namespace == "" {
		ns = " -n NAMESPACE"
	}
	fmt.Fprintf(s.w, "next: repeat the command with  | argo submit%s -  at its end, or with  | kubectl create%s -f -\n", ns, ns)
	if ns := s.namespaces(); len(ns) > 0 {
		fmt.Fprintf(s.w, "      service account %s must be allowed to delete pods in %s (ClusterRole atewf-roll-worker-pods)\n", s.account, strings.Join(ns, ", "))
	}
	if !s.named {
		fmt.Fprintln(s.w, "      kubectl apply needs a name: pass --name")
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func kib(n int) string { return fmt.Sprintf("%.1f KiB", float64(n)/1024) }

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
