package connect

import (
	"bytes"
	"io"
)

// Stream redacts what is read through it, without waiting for the end: only what may be
// the beginning of a secret is held back until it is known. Found is told once.
type Stream struct {
	r     *Redactor
	src   io.Reader
	found func()

	in   []byte // what was read of src, the held part first
	kept []byte // what out stands in, used again
	out  []byte // redacted, to be handed on
	err  error  // of src
	told bool
}

// streamChunk is how much is read at once.
const streamChunk = 16 << 10

// NewStream redacts src. A nil redactor passes everything on.
func (r *Redactor) NewStream(src io.Reader, found func()) io.Reader {
	if r == nil || len(r.needles) == 0 {
		return src
	}
	return &Stream{r: r, src: src, found: found, in: make([]byte, 0, streamChunk+r.longest)}
}

// Read hands on what is known to be clean.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		held := len(s.in)
		n, err := s.src.Read(s.in[held:min(cap(s.in), held+streamChunk)])
		s.in = s.in[:held+n]
		if s.err = err; err != nil {
			s.out, s.in = s.clean(s.in), nil
			continue
		}
		if n > 0 {
			s.step()
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// step hands on what was read but for a tail that may grow into a secret.
func (s *Stream) step() {
	cut := len(s.in) - s.r.open(s.in)
	if end := s.r.crosses(s.in, cut); end > cut {
		cut = end // a secret that is whole already ends behind the cut
	}
	s.out = s.clean(s.in[:cut])
	s.in = s.in[:copy(s.in, s.in[cut:])]
}

func (s *Stream) clean(b []byte) []byte {
	out, hit := s.r.Clean(b)
	if hit && !s.told {
		s.told = true
		if s.found != nil {
			s.found()
		}
	}
	if !hit { // in is used again
		s.kept = append(s.kept[:0], out...)
		return s.kept
	}
	return out
}

// open is the length of the longest tail of b that is the beginning of a needle, and not
// all of it.
func (r *Redactor) open(b []byte) int {
	longest := 0
	for _, n := range r.needles {
		for k := min(len(n)-1, len(b)); k > longest; k-- {
			if b[len(b)-k] == n[0] && bytes.Equal(b[len(b)-k:], n[:k]) {
				longest = k
				break
			}
		}
	}
	return longest
}

// crosses is where a needle ends that begins before cut and ends behind it, or cut.
func (r *Redactor) crosses(b []byte, cut int) int {
	end := cut
	from := max(0, cut-r.longest)
	for _, n := range r.needles {
		for i := from; i < cut && i+len(n) <= len(b); i++ {
			if i+len(n) > end && b[i] == n[0] && bytes.Equal(b[i:i+len(n)], n) {
				end = i + len(n)
			}
		}
	}
	return end
}
