package connect

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// Redacted stands where a credential was found.
const Redacted = "[credential removed by Patchbay]"

// minNeedle is the shortest form that is searched for: shorter ones would hit
// ordinary text.
const minNeedle = 6

// Redactor searches bytes for every rendered form of one secret: as it is, as
// JSON, URL, hexadecimal and base64 write it, whatever its offset in the
// encoded text.
type Redactor struct{ needles [][]byte }

// NewRedactor prepares the forms of a secret, and of its parts where it has the
// shape user:password.
func NewRedactor(value string) *Redactor {
	r := &Redactor{}
	add := func(s string) {
		if len(s) >= minNeedle && !slices.ContainsFunc(r.needles, func(n []byte) bool { return string(n) == s }) {
			r.needles = append(r.needles, []byte(s))
		}
	}
	forms := func(s string) {
		add(s)
		if j, err := json.Marshal(s); err == nil {
			add(strings.Trim(string(j), `"`))
		}
		add(strings.ReplaceAll(s, "/", `\/`))
		add(url.QueryEscape(s))
		add(url.PathEscape(s))
		add(hex.EncodeToString([]byte(s)))
		add(strings.ToUpper(hex.EncodeToString([]byte(s))))
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			for shift := range 3 {
				add(inBase64(enc, s, shift))
			}
		}
	}
	forms(value)
	if user, password, ok := strings.Cut(value, ":"); ok && len(user) > 0 {
		forms(password)
	}
	slices.SortFunc(r.needles, func(a, b []byte) int { return len(b) - len(a) })
	return r
}

// inBase64 is the part of the encoding of s that does not depend on what stands
// around it, when s begins shift bytes into a group of three.
func inBase64(enc *base64.Encoding, s string, shift int) string {
	padded := strings.Repeat("\x00", shift) + s
	out := enc.EncodeToString([]byte(padded))
	from := 0
	if shift > 0 {
		from = shift + 1 // these digits mix with the bytes before
	}
	to := len(padded) / 3 * 4
	if rest := len(padded) % 3; rest > 0 {
		to += rest // the last digit mixes with the bytes after
	}
	return out[from:max(from, to)]
}

// Found reports whether b holds the secret in any form.
func (r *Redactor) Found(b []byte) bool {
	if r == nil {
		return false
	}
	for _, n := range r.needles {
		if bytes.Contains(b, n) {
			return true
		}
	}
	return false
}

// Clean returns b without the secret. b itself is returned, untouched, when
// there is nothing to replace.
func (r *Redactor) Clean(b []byte) ([]byte, bool) {
	if !r.Found(b) {
		return b, false
	}
	for _, n := range r.needles {
		b = bytes.ReplaceAll(b, n, []byte(Redacted))
	}
	return b, true
}
