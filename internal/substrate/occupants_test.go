package substrate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOccupants(t *testing.T) {
	here := Worker{Name: "w1", PodUID: "u1", Node: "n1", State: Draining}
	site := Site{Node: "n1", Workers: []Worker{here}}
	flipped := Site{Node: "n1", Workers: []Worker{here}, Flipped: true}
	claims := func(n int32) Site {
		w := here
		w.Claimed = n
		return Site{Node: "n1", Workers: []Worker{w}}
	}
	actor := func(s ActorState, change ...func(*Actor)) Actor {
		a := Actor{Ref: Ref{"space", "a"}, State: s}
		for _, c := range change {
			c(&a)
		}
		return a
	}
	onW1 := func(a *Actor) { a.Worker = "w1" }
	byUID := func(a *Actor) { a.WorkerPodUID = "u1" }
	elsewhere := func(a *Actor) { a.Worker = "w9" }
	onNode := func(a *Actor) { a.WorkerNode = "n1" }
	lies := func(a *Actor) { a.SnapshotNodes = []string{"n0", "n1"} }
	nowhere := func(a *Actor) { a.SnapshotNodes = []string{""} }
	assigned := func(a *Actor) { a.AssignedNode = "n1" }

	for name, tc := range map[string]struct {
		site  Site
		actor Actor
		want  Reason // "" for none
	}{
		"running on a worker of the node":                     {site, actor(Running, onW1), OnWorker},
		"bound by the UID of the pod alone":                   {site, actor(Running, byUID), OnWorker},
		"bound to a record that was missed":                   {site, actor(Running, elsewhere, onNode), OnWorker},
		"running elsewhere":                                   {site, actor(Running, elsewhere), ""},
		"running elsewhere with a stale snapshot record":      {site, actor(Running, elsewhere, lies), ""},
		"running elsewhere with a stale assigned node":        {site, actor(Running, elsewhere, assigned), ""},
		"resuming here":                                       {site, actor(Resuming, onW1), InBetween},
		"pausing here":                                        {site, actor(Pausing, onW1), InBetween},
		"suspending here":                                     {site, actor(Suspending, onW1), InBetween},
		"reverting here":                                      {site, actor(Reverting, onW1), InBetween},
		"deleting here":                                       {site, actor(Deleting, onW1), InBetween},
		"suspended, but still bound":                          {site, actor(Suspended, onW1), InBetween},
		"paused here":                                         {site, actor(Paused, lies), PausedHere},
		"paused here, as the latest generation says it":       {site, actor(Paused, assigned), PausedHere},
		"paused elsewhere":                                    {site, actor(Paused), ""},
		"paused with an empty node name":                      {site, actor(Paused, nowhere), ""},
		"upload of a paused actor that stalled":               {site, actor(Suspending, lies), InBetween},
		"resuming from a snapshot here, no worker yet":        {site, actor(Resuming, lies), InBetween},
		"suspended with a stale snapshot record":              {site, actor(Suspended, lies), ""},
		"crashed with a stale snapshot record":                {site, actor(Crashed, lies, assigned), ""},
		"unknown state, here":                                 {site, actor("DREAMING", onW1), Unknown},
		"unknown state, anywhere":                             {site, actor("DREAMING"), Unknown},
		"no state":                                            {site, actor(""), Unknown},
		"after the flip, running on an old worker":            {flipped, actor(Running, onW1), OnWorker},
		"after the flip, paused here belongs to the new side": {flipped, actor(Paused, lies), ""},
		"after the flip, running on a new worker of the node": {flipped, actor(Running, elsewhere, onNode), ""},
		"a worker claims one and the list shows it":           {claims(1), actor(Running, onW1), OnWorker},
		"a worker claims one that the list does not show":     {claims(1), actor(Running, elsewhere), Unseen},
	} {
		t.Run(name, func(t *testing.T) {
			got := Occupants(tc.site, []Actor{tc.actor, tc.actor}) // a soft list may repeat itself
			if tc.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, tc.want, got[0].Reason)
			require.NotEmpty(t, got[0].String())
		})
	}
}

func TestOccupantsOfAWorkerWithSeveralActors(t *testing.T) {
	w := Worker{Name: "w1", Claimed: 3, State: Draining}
	got := Occupants(Site{Node: "n1", Workers: []Worker{w}}, []Actor{
		{Ref: Ref{"s", "b"}, State: Running, Worker: "w1"},
		{Ref: Ref{"s", "a"}, State: Pausing, Worker: "w1"},
	})
	require.Len(t, got, 3, "the third one is claimed and unseen")
	require.Equal(t, Unseen, got[0].Reason)
	require.Equal(t, []string{"s/a", "s/b"}, []string{got[1].Actor.String(), got[2].Actor.String()})
}

func TestRoom(t *testing.T) {
	gold := map[string]string{"tier": "gold"}
	slot := func(class string, free int32, state WorkerState, labels map[string]string) Slots {
		return Slots{Worker: Worker{Name: class, Class: class, State: state, Labels: labels}, Free: free}
	}
	for name, tc := range map[string]struct {
		needs []Need
		slots []Slots
		left  []string
	}{
		"nobody waits": {nil, nil, nil},
		"no worker":    {[]Need{{Actor: "a"}}, nil, []string{"a"}},
		"one slot, two actors": {[]Need{{Actor: "a"}, {Actor: "b"}},
			[]Slots{slot("gvisor", 1, Active, nil)}, []string{"b"}},
		"a draining worker looks free": {[]Need{{Actor: "a"}}, []Slots{slot("gvisor", 5, Draining, nil)}, []string{"a"}},
		"another class":                {[]Need{{Actor: "a", Class: "microvm"}}, []Slots{slot("gvisor", 5, Active, nil)}, []string{"a"}},
		"missing label":                {[]Need{{Actor: "a", Selector: gold}}, []Slots{slot("gvisor", 5, Active, nil)}, []string{"a"}},
		"overfull worker":              {[]Need{{Actor: "a"}}, []Slots{slot("gvisor", -1, Active, nil)}, []string{"a"}},
		"the easy one makes room for the picky one": {
			[]Need{{Actor: "easy"}, {Actor: "picky", Selector: gold}},
			[]Slots{slot("gvisor", 1, Active, gold), slot("gvisor", 1, Active, nil)}, nil},
		"a chain of moves": {
			[]Need{{Actor: "a"}, {Actor: "b", Class: "x"}, {Actor: "c", Class: "x", Selector: gold}},
			[]Slots{slot("x", 1, Active, gold), slot("x", 1, Active, nil), slot("y", 1, Active, nil)}, nil},
		"several actors to a worker": {[]Need{{Actor: "a"}, {Actor: "b"}, {Actor: "c"}}, []Slots{slot("gvisor", 2, Active, nil)}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var left []string
			for _, n := range Room(tc.needs, tc.slots) {
				left = append(left, n.Actor)
			}
			require.Equal(t, tc.left, left)
		})
	}
}

func BenchmarkRoom(b *testing.B) {
	var needs []Need
	for range 500 {
		needs = append(needs, Need{Class: "gvisor"})
	}
	var slots []Slots
	for i := range 20000 {
		slots = append(slots, Slots{Worker: Worker{State: Active, Class: "gvisor"}, Free: int32(i % 2 * (i / 19000))})
	}
	for b.Loop() {
		if left := Room(needs, slots); len(left) != 0 {
			b.Fatal(len(left))
		}
	}
}
