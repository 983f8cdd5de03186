package connect

import (
	"bytes"
	"io"
)

// Stream redacts what is read through it, without waiting for the end: only what may be
// the beginning of a secret is held back until it is known. What it puts in a secret's place
// has its length, so that lengths that were told before hold. Found is told once.
type Stream struct {
	r     *Redactor
	src   io.Reader
	found func()

	in   []byte // what was read of src, the held part first
	cut  int    // of in, what was handed on
	left []byte // of that, what Read has still to give
	err  error  // of src
	told bool
}

// StreamBuffer is how long a buffer should be that a Stream works in.
const StreamBuffer = 32 << 10

// NewStream redacts src, working in buf. A nil redactor passes everything on.
func (r *Redactor) NewStream(src io.Reader, buf []byte, found func()) *Stream {
	longest := 0
	if r != nil {
		longest = r.longest
	}
	if cap(buf) < longest+StreamBuffer/2 {
		buf = make([]byte, 0, longest+StreamBuffer)
	}
	return &Stream{r: r, src: src, found: found, in: buf[:0]}
}

// Next gives what is known to be clean, good until the next call.
func (s *Stream) Next() ([]byte, error) {
	for s.err == nil {
		s.in = s.in[:copy(s.in, s.in[s.cut:])]
		held := len(s.in)
		n, err := s.src.Read(s.in[held:cap(s.in)])
		s.in, s.err, s.cut = s.in[:held+n], err, held+n
		if err == nil {
			s.cut = s.known()
		}
		if s.cut > 0 {
			s.clean(s.in[:s.cut])
			return s.in[:s.cut], nil
		}
	}
	return nil, s.err
}

// Read is Next for those who bring a buffer of their own.
func (s *Stream) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		var err error
		if s.left, err = s.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// known is how much of what was read cannot be the beginning of a secret.
func (s *Stream) known() int {
	if s.r == nil || len(s.r.needles) == 0 {
		return len(s.in)
	}
	cut := len(s.in) - s.r.open(s.in)
	return max(cut, s.r.crosses(s.in, cut)) // a secret that is whole already may end behind it
}

func (s *Stream) clean(b []byte) {
	if s.r.Mask(b) && !s.told {
		s.told = true
		if s.found != nil {
			s.found()
		}
	}
}

// Mask puts something of the same length in the place of every form of the secret, and
// reports whether there was one.
func (r *Redactor) Mask(b []byte) bool {
	if !r.Found(b) {
		return false
	}
	for _, n := range r.needles {
		for at := 0; ; {
			i := bytes.Index(b[at:], n)
			if i < 0 {
				break
			}
			at += i
			fill(b[at : at+len(n)])
			at += len(n)
		}
	}
	return true
}

// fill writes Redacted, as far as it goes, and dots behind it.
func fill(b []byte) {
	for i := copy(b, Redacted); i < len(b); i++ {
		b[i] = '.'
	}
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
