package plane

import "strings"

// MaxSlug is the longest slug.
const MaxSlug = 32

// ValidSlug reports whether s is [a-z0-9][a-z0-9-]*, at most MaxSlug long.
func ValidSlug(s string) bool {
	if s == "" || len(s) > MaxSlug || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// SlugOf makes a slug of a label: "Linear, Support" is linear-support. It is ""
// when nothing is left.
func SlugOf(label string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(label) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	s := b.String()
	return strings.Trim(s[:min(len(s), MaxSlug)], "-")
}

// Placeholder is the first {name} or ${name} in a text: what a registry leaves for
// a person to fill in. It is empty where there is none.
func Placeholder(s string) string {
	i := strings.IndexByte(s, '{')
	if i < 0 {
		return ""
	}
	n := strings.IndexByte(s[i:], '}')
	if n < 2 {
		return ""
	}
	start := i
	if i > 0 && s[i-1] == '$' {
		start--
	}
	return s[start : i+n+1]
}

// Nearest is the candidate most like word, or "" when none is near enough to be
// what somebody meant.
func Nearest(word string, candidates []string) string {
	best, score := "", 1+len(word)/3
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < score || d == score && best == "" {
			best, score = c, d
		}
	}
	return best
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := prev
			if a[i] != b[j] {
				cost = 1 + min(prev, row[j], row[j+1])
			}
			prev, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
