package connect

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// pieces reads a text in pieces of given sizes.
type pieces struct {
	b    []byte
	size func() int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), max(1, p.size()))], p.b)
	p.b = p.b[n:]
	return n, nil
}

// TestAStreamIsRedacted: in whatever pieces a text comes, the same is left of it as of the
// whole, and no form of the secret.
func TestAStreamIsRedacted(t *testing.T) {
	const key = "s3cr3t/value+9"
	r := NewRedactor(key, "ada:"+key)
	var forms []string
	for _, n := range r.needles {
		forms = append(forms, string(n))
	}
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		for range rapid.IntRange(0, 8).Draw(rt, "parts") {
			switch rapid.IntRange(0, 2).Draw(rt, "kind") {
			case 0:
				text.WriteString(rapid.StringMatching(`[a-z0-9/+:%]{0,12}`).Draw(rt, "text"))
			case 1:
				text.WriteString(rapid.SampledFrom(forms).Draw(rt, "form"))
			case 2:
				f := rapid.SampledFrom(forms).Draw(rt, "part of")
				text.WriteString(f[:rapid.IntRange(0, len(f)-1).Draw(rt, "length")])
			}
		}
		whole := []byte(text.String())
		found := 0
		src := &pieces{bytes.Clone(whole), func() int { return rapid.IntRange(1, 9).Draw(rt, "size") }}
		got, err := io.ReadAll(r.NewStream(src, nil, func() { found++ }))
		if err != nil {
			rt.Fatal(err)
		}
		if len(got) != len(whole) {
			rt.Fatalf("%q became longer or shorter: %q", whole, got)
		}
		if r.Found(got) {
			rt.Fatalf("%q is left of %q", got, whole)
		}
		if hit := r.Found(whole); (found == 1) != hit {
			rt.Fatalf("told %d times of %q", found, whole)
		}
		if !r.Found(whole) && !bytes.Equal(got, whole) {
			rt.Fatalf("%q became %q", whole, got)
		}
	})
	for _, k := range forms { // nothing is held back that cannot be one
		s := r.NewStream(io.MultiReader(strings.NewReader("clean text. "), iotest.ErrReader(io.ErrUnexpectedEOF)), nil, nil)
		b := make([]byte, 100)
		if n, err := s.Read(b); err != nil || string(b[:n]) != "clean text. " {
			t.Fatalf("%q %v (%s)", b[:n], err, k)
		}
	}
}

func BenchmarkStream(b *testing.B) {
	r := NewRedactor("ada:s3cr3t/value+9")
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 1<<20/45)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, r.NewStream(bytes.NewReader(text), nil, nil)); err != nil {
			b.Fatal(err)
		}
	}
}
