package roll

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStampSurvivesTheAnnotation(t *testing.T) {
	in := &Stamp{Roll: "ns/wf/uid", From: "v1", To: "v2", Phase: Suspending, At: time.Unix(1, 0).UTC(),
		Suspended: []Waiting{{Actor: "s/a", Class: "gvisor"}}, OldWorkers: map[string]int{"ns/pool": 4}}
	out, err := ParseStamp(map[string]string{StampAnnotation: in.String()})
	require.NoError(t, err)
	require.Equal(t, in, out)
	require.True(t, out.InProgress())

	none, err := ParseStamp(nil)
	require.NoError(t, err)
	require.Nil(t, none)
	require.False(t, none.InProgress())

	_, err = ParseStamp(map[string]string{StampAnnotation: `{"phase"`})
	require.ErrorContains(t, err, StampAnnotation)
}

func TestHolder(t *testing.T) {
	h := Holder{"ns", "wf", "uid"}
	got, err := ParseHolder(h.String())
	require.NoError(t, err)
	require.Equal(t, h, got)
	for _, bad := range []string{"", "wf", "ns/wf", "ns/wf/", "/wf/uid", "a/b/c/d"} {
		_, err := ParseHolder(bad)
		require.Error(t, err, bad)
	}
}

func TestBaseline(t *testing.T) {
	b := NewBaseline([]string{"s/b", "s/a"})
	require.Empty(t, b.Lost([]string{"s/a", "s/b"}))
	require.Empty(t, b.Lost(nil), "a crashed actor that was reverted is no loss")
	require.Equal(t, []string{"s/c"}, b.Lost([]string{"s/c"}), "the number is the same or less, and yet one more is lost")
	require.Equal(t, []string{"s/x"}, NewBaseline(nil).Lost([]string{"s/x"}))

	var many []string
	for i := range MaxBaseline + 1 {
		many = append(many, fmt.Sprintf("s/%d", i))
	}
	big := NewBaseline(many)
	require.Nil(t, big.Actors)
	require.Empty(t, big.Lost(many))
	require.NotEmpty(t, big.Lost(append(many, "s/new")))
}
