package plan

import (
	"cmp"
	"strings"
)

// Order says in which order nodes are rolled. Nodes that are half done come first in any.
type Order string

const (
	// OrderAuto is the order in which nodes were named, and OrderName when none were.
	OrderAuto Order = ""
	// OrderName goes by name, with numbers by their value: node2 before node10.
	OrderName Order = "name"
	// OrderZone goes zone by zone, and by name within one. Nodes without a zone come last.
	OrderZone Order = "zone"
	// OrderActors takes the node with the fewest actors first, and goes by name among equals.
	OrderActors Order = "actors"
)

// natural compares names as people read them: runs of digits by their value. Names that differ only in leading zeros are
// told apart by their bytes, so that the order is total.
func natural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		xd, yd := digits(x), digits(y)
		if xd > 0 && yd > 0 {
			xn, yn := strings.TrimLeft(x[:xd], "0"), strings.TrimLeft(y[:yd], "0")
			if c := cmp.Or(cmp.Compare(len(xn), len(yn)), cmp.Compare(xn, yn)); c != 0 {
				return c
			}
			x, y = x[xd:], y[yd:]
			continue
		}
		if x[0] != y[0] {
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// digits is the length of the run of digits at the beginning of s.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
