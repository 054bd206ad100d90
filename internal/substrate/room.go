package substrate

import "fmt"

// Need is what an actor without a worker asks of the worker that is to take it.
type Need struct {
	Actor    string            // atespace/name, for people
	Class    string            // sandbox class; "" when it is not known, which any class satisfies
	Selector map[string]string // labels that the worker must carry
}

// Slots is the free capacity of one worker.
type Slots struct {
	Worker Worker
	Free   int32
}

// Room returns the needs that the free slots cannot take all at once, in their order. Only ACTIVE workers count: a
// DRAINING worker may look free and never takes an actor again.
//
// It is a matching and not a sum: an actor that fits everywhere must not take the only slot of one that does not.
func Room(needs []Need, slots []Slots) []Need {
	var open []*Slots
	for i := range slots {
		if s := &slots[i]; s.Worker.State == Active && s.Free > 0 {
			open = append(open, s)
		}
	}
	taken := make([][]int, len(open)) // the needs that sit on each worker
	full := func(w int) bool { return len(taken[w]) >= int(open[w].Free) }
	// Kuhn's augmenting paths: take a free slot, or else try to move one of those on a fitting worker to another.
	var seat func(need int, tried []bool) bool
	seat = func(need int, tried []bool) bool {
		for w := range open {
			if !full(w) && needs[need].fits(open[w].Worker) {
				taken[w] = append(taken[w], need)
				return true
			}
		}
		for w := range open {
			if tried[w] || !needs[need].fits(open[w].Worker) {
				continue
			}
			tried[w] = true
			for i, other := range taken[w] {
				if seat(other, tried) {
					taken[w][i] = need
					return true
				}
			}
		}
		return false
	}
	var left []int
	hopeless := map[string]bool{} // kinds of need of which one found no seat: the next one will not either
	for n := range needs {
		if kind := needs[n].kind(); hopeless[kind] || !seat(n, make([]bool, len(open))) {
			hopeless[kind] = true
			left = append(left, n)
		}
	}
	out := make([]Need, 0, len(left))
	for _, n := range left {
		out = append(out, needs[n])
	}
	return out
}

// kind is the same for needs that the same workers satisfy. Maps print in the order of their keys.
func (n Need) kind() string { return fmt.Sprint(n.Class, n.Selector) }

// fits reports whether a worker may take the actor: sandbox class and labels, as Substrate's scheduler matches them.
func (n Need) fits(w Worker) bool {
	if n.Class != "" && w.Class != "" && n.Class != w.Class {
		return false
	}
	for k, v := range n.Selector {
		if w.Labels[k] != v {
			return false
		}
	}
	return true
}
