package connect

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
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
type Redactor struct {
	needles [][]byte
	stride  int                 // every occurrence has one of its grams at a multiple of it
	longest int                 // length of the longest needle
	grams   map[uint32]struct{} // every run of four bytes of every needle
	bits    *[1 << 10]uint64    // the same by hash: a first, fast no
}

const gram = 4

// maxParts bounds how many parts of a secret are searched for by themselves.
const maxParts = 5

// NewRedactor prepares the forms of secrets, and of their parts where colons divide
// one.
func NewRedactor(values ...string) *Redactor {
	r := &Redactor{}
	seen := map[string]bool{}
	add := func(s string) {
		if len(s) >= minNeedle && !seen[s] {
			seen[s] = true
			r.needles = append(r.needles, []byte(s))
		}
	}
	forms := func(s string) {
		if len(s) < minNeedle {
			return
		}
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
	for _, value := range values {
		forms(value)
		// user:password, or ID:KEY:SESSION: each part after the first goes out by itself too.
		parts := strings.Split(value, ":")
		for i := 1; i < min(len(parts), maxParts) && parts[0] != ""; i++ {
			forms(strings.Join(parts[i:], ":"))
			forms(parts[i])
		}
	}
	slices.SortFunc(r.needles, func(a, b []byte) int { return len(b) - len(a) })
	r.prepare()
	return r
}

// prepare indexes the needles' grams. A text that holds a needle of n bytes
// holds one of its grams at every stride of n-gram+1, so that looking there is
// enough.
func (r *Redactor) prepare() {
	if len(r.needles) == 0 {
		return
	}
	r.longest = len(r.needles[0])
	r.stride = len(r.needles[len(r.needles)-1]) - gram + 1
	r.grams, r.bits = map[uint32]struct{}{}, new([1 << 10]uint64)
	for _, n := range r.needles {
		for i := 0; i+gram <= len(n); i++ {
			g := binary.LittleEndian.Uint32(n[i:])
			r.grams[g] = struct{}{}
			h := gramHash(g)
			r.bits[h>>6] |= 1 << (h & 63)
		}
	}
}

func gramHash(g uint32) uint32 { return g * 2654435761 >> 16 }

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
	if r == nil || len(r.needles) == 0 {
		return false
	}
	for i := 0; i+gram <= len(b); i += r.stride {
		g := binary.LittleEndian.Uint32(b[i:])
		if h := gramHash(g); r.bits[h>>6]&(1<<(h&63)) == 0 {
			continue
		}
		if _, ok := r.grams[g]; ok && r.around(b, i) {
			return true
		}
	}
	return false
}

// around looks for every needle near a gram that one of them has.
func (r *Redactor) around(b []byte, i int) bool {
	window := b[max(0, i-r.longest):min(len(b), i+r.longest)]
	for _, n := range r.needles {
		if bytes.Contains(window, n) {
			return true
		}
	}
	return false
}

// CleanJSON is Clean for JSON text, where a character may stand escaped: a hit
// that shows only after \u and \/ escapes are resolved is found too.
func (r *Redactor) CleanJSON(b []byte) ([]byte, bool) {
	out, hit := r.Clean(b)
	if r == nil || !bytes.Contains(out, []byte(`\u00`)) && !bytes.Contains(out, []byte(`\/`)) {
		return out, hit
	}
	if plain := unescaped(out); r.Found(plain) {
		out, _ = r.Clean(plain)
		return out, true
	}
	return out, hit
}

// unescaped resolves the escapes of JSON text that stand for printable ASCII and
// need none. It is the same JSON.
func unescaped(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 >= len(b) {
			out = append(out, b[i])
			continue
		}
		if b[i+1] == '/' {
			out = append(out, '/')
			i++
			continue
		}
		if b[i+1] == 'u' && i+6 <= len(b) {
			if n, err := strconv.ParseUint(string(b[i+2:i+6]), 16, 16); err == nil && n >= 0x20 && n < 0x7f && n != '"' && n != '\\' {
				out = append(out, byte(n))
				i += 5
				continue
			}
		}
		out = append(out, b[i], b[i+1])
		i++
	}
	return out
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
