package substrate

import "sort"

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
	free := make([]int32, len(slots))
	taken := make([][]int, len(slots)) // the needs that sit on each worker
	for i, s := range slots {
		if s.Worker.State == Active && s.Free > 0 {
			free[i] = s.Free
		}
	}
	// Kuhn's augmenting paths: try to seat a need, and where a fitting worker is full, try to move one of those on it.
	var seat func(need int, tried map[int]bool) bool
	seat = func(need int, tried map[int]bool) bool {
		for w := range slots {
			if tried[w] || free[w] == 0 && len(taken[w]) == 0 || !needs[need].fits(slots[w].Worker) {
				continue
			}
			tried[w] = true
			if free[w] > 0 {
				free[w]--
				taken[w] = append(taken[w], need)
				return true
			}
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
	for n := range needs {
		if !seat(n, map[int]bool{}) {
			left = append(left, n)
		}
	}
	sort.Ints(left)
	out := make([]Need, 0, len(left))
	for _, n := range left {
		out = append(out, needs[n])
	}
	return out
}

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
