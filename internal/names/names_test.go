package names

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestSlugKeepsGoodNames(t *testing.T) {
	for _, s := range []string{"node1", "a", "gke-prod-default-pool-1a2b3c4d-x7qz"} {
		require.Equal(t, s, Slug(s, 63))
	}
}

func TestSlugTellsChangedNamesApart(t *testing.T) {
	long := strings.Repeat("a", 252)
	made := Slug("a.b", 63)
	in := []string{"a.b", "a-b", "a_b", "A-B", "a--b", "-a-b", "10-0-1-2.ec2.internal", "n-10-0-1-2-ec2-internal", long + "x", long + "y", "...", "---", "ü", made}
	seen := map[string]string{}
	for _, s := range in {
		got := Slug(s, 40)
		require.Empty(t, validation.IsDNS1035Label(got), "slug %q of %q", got, s)
		require.LessOrEqual(t, len(got), 40)
		require.NotContains(t, seen, got, "%q and %q share a slug", s, seen[got])
		seen[got] = s
	}
}

func FuzzSlug(f *testing.F) {
	for _, s := range []string{"", "a", "a.b", "A", "1", "-", "é", strings.Repeat("x", 300), "a-0123456789"} {
		f.Add(s, uint8(40))
	}
	f.Fuzz(func(t *testing.T, s string, n uint8) {
		max := int(n%48) + 16
		got := Slug(s, max)
		if errs := validation.IsDNS1035Label(got); len(errs) > 0 {
			t.Fatalf("Slug(%q, %d) = %q: %v", s, max, got, errs)
		}
		if len(got) > max {
			t.Fatalf("Slug(%q, %d) = %q is too long", s, max, got)
		}
		if again := Slug(s, max); again != got {
			t.Fatalf("Slug(%q, %d) is not stable", s, max)
		}
		if other := Slug(s+".", max); other == got {
			t.Fatalf("Slug gives %q for both %q and %q", got, s, s+".")
		}
	})
}

func ExampleSlug() {
	fmt.Println(Slug("node1", 63))
	fmt.Println(Slug("10-0-1-2.ec2.internal", 63))
	// Output:
	// node1
	// n-10-0-1-2-ec2-internal-e1c193a5ba
}
