// Package names makes names that Argo and Kubernetes accept out of names that people chose.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// hashLen is the length of the hash that marks a changed name: 40 bits, so that ten thousand names collide once in
// twenty thousand fleets.
const hashLen = 10

// Slug turns s into a lower-case DNS label of at most max characters that starts with a letter: the alphabet that task,
// template and pod names share. A name that already is one stays as it is; any other gets a short hash of the whole
// original at its end, so that two names which differ only in what was changed (a.b and a-b) stay different.
//
// max must leave room for the hash: at least 16.
func Slug(s string, max int) string {
	if isSlug(s) && len(s) <= max && !looksHashed(s) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	hash := hex.EncodeToString(sum[:])[:hashLen]

	var b strings.Builder
	dash := true // swallows leading dashes and runs of them
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
			dash = false
			continue
		}
		if !dash {
			b.WriteByte('-')
			dash = true
		}
	}
	base := strings.Trim(b.String(), "-")
	if base == "" || base[0] < 'a' || base[0] > 'z' {
		base = strings.TrimSuffix("n-"+base, "-")
	}
	if room := max - hashLen - 1; len(base) > room {
		base = strings.TrimRight(base[:room], "-")
	}
	return base + "-" + hash
}

// isSlug reports whether s is a lower-case DNS label that starts with a letter.
func isSlug(s string) bool {
	if s == "" || s[0] < 'a' || s[0] > 'z' || s[len(s)-1] == '-' {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-') {
			return false
		}
	}
	return true
}

// looksHashed reports whether s ends like a name that Slug made. Such a name gets a hash of its own, or it could be the
// very name that Slug makes of another.
func looksHashed(s string) bool {
	i := len(s) - hashLen - 1
	if i < 1 || s[i] != '-' {
		return false
	}
	for _, r := range s[i+1:] {
		if !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f') {
			return false
		}
	}
	return true
}
