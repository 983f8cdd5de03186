package mcp

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"
)

// sseEvent is one server-sent event. Data is valid until the next read.
type sseEvent struct {
	Data  []byte
	ID    string
	HasID bool
	Retry time.Duration // 0 when the server named none
}

// errTooLarge is returned when a bound on bytes is passed.
var errTooLarge = errors.New("mcp: over the response cap")

// sseReader frames an event stream on bytes: CR, LF and CRLF end a line, one
// leading BOM is dropped, comments are skipped, data lines join with LF, and an
// event may be as large as the cap and no larger.
type sseReader struct {
	r      io.Reader
	max    int // bytes of one event
	buf    []byte
	lo, hi int   // unread bytes of buf
	err    error // what ended the reading
	begun  bool  // the BOM was looked for
	skipLF bool  // the last line ended in CR at the end of the buffer
	grow   func(n int) error
}

const (
	sseChunk = 4 << 10
	sseKept  = 2 << 20 // larger buffers are left to the collector
)

// Read buffers are kept between streams: growing one anew for every big result
// costs more than reading it. Big ones are kept in a list of their own, since a
// sync.Pool is emptied by the very collections that big results bring about.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, sseChunk); return &b }}
	bigBuffers   = make(chan []byte, 8)
)

func newSSE(r io.Reader, maxEvent int) *sseReader {
	return &sseReader{r: r, max: maxEvent, buf: *smallBuffers.Get().(*[]byte)}
}

// enlarge replaces the buffer by one of at least size bytes.
func (s *sseReader) enlarge(size int) {
	var next []byte
	if size > bigBody {
		select {
		case next = <-bigBuffers:
		default:
		}
	}
	if len(next) < size {
		next = make([]byte, size)
	}
	copy(next, s.buf[s.lo:s.hi])
	s.free()
	s.buf = next
}

// free gives the buffer back. Nothing that points into it may be used after.
func (s *sseReader) free() {
	switch n := len(s.buf); {
	case n == sseChunk:
		b := s.buf
		smallBuffers.Put(&b)
	case n > bigBody && n <= sseKept:
		select {
		case bigBuffers <- s.buf:
		default:
		}
	}
	s.buf = nil
}

// next returns the next event that carries data, an id or a retry time. An
// event cut off by the end of the stream is dropped, as the specification says.
func (s *sseReader) next() (sseEvent, error) {
	var ev sseEvent
	var joined []byte
	lines, size := 0, 0
	for {
		line, err := s.line()
		if err != nil {
			return sseEvent{}, err
		}
		if len(line) == 0 {
			if lines > 0 || ev.HasID || ev.Retry > 0 {
				if lines > 1 {
					ev.Data = joined
				}
				return ev, nil
			}
			size = 0
			continue
		}
		if size += len(line) + 1; size > s.max {
			return sseEvent{}, errTooLarge
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "data":
			lines++
			switch lines {
			case 1:
				ev.Data = s.hold(value)
			case 2:
				joined = append(append(append(joined, ev.Data...), '\n'), value...)
			default:
				joined = append(append(joined, '\n'), value...)
			}
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				ev.ID, ev.HasID = string(value), true
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				ev.Retry = max(time.Duration(ms)*time.Millisecond, time.Nanosecond)
			}
		}
	}
}

// hold keeps the first data line of an event valid while its other lines are
// read: if its end is already in the buffer nothing moves, else it is copied.
func (s *sseReader) hold(value []byte) []byte {
	rest := s.buf[s.lo:s.hi]
	if len(rest) > 0 && (rest[0] == '\n' || rest[0] == '\r' && len(rest) > 1) {
		return value
	}
	return bytes.Clone(value)
}

// line returns the next line without its end.
func (s *sseReader) line() ([]byte, error) {
	from := 0 // offset from lo that was searched already
	for {
		if s.skipLF && s.hi > s.lo {
			if s.buf[s.lo] == '\n' {
				s.lo++
			}
			s.skipLF = false
		}
		if !s.begun && (s.hi-s.lo >= 3 || s.err != nil) {
			s.begun = true
			if bytes.HasPrefix(s.buf[s.lo:s.hi], []byte("\xef\xbb\xbf")) {
				s.lo += 3
			}
		}
		if s.begun && s.hi > s.lo+from {
			if line, ok := s.cut(from); ok {
				return line, nil
			}
			from = s.hi - s.lo
		}
		if s.err != nil {
			return nil, s.err
		}
		if s.hi-s.lo > s.max {
			return nil, errTooLarge
		}
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
}

// cut takes a line off the buffer if one ends at or after lo+from.
func (s *sseReader) cut(from int) ([]byte, bool) {
	w := s.buf[s.lo+from : s.hi]
	n := bytes.IndexByte(w, '\n')
	c := -1
	if n >= 0 {
		c = bytes.IndexByte(w[:n], '\r')
	} else {
		c = bytes.IndexByte(w, '\r')
	}
	switch {
	case c >= 0:
		line := s.buf[s.lo : s.lo+from+c]
		s.lo += from + c + 1
		if s.lo < s.hi {
			if s.buf[s.lo] == '\n' {
				s.lo++
			}
		} else {
			s.skipLF = true
		}
		return line, true
	case n >= 0:
		line := s.buf[s.lo : s.lo+from+n]
		s.lo += from + n + 1
		return line, true
	}
	return nil, false
}

// fill reads more, first making room.
func (s *sseReader) fill() error {
	if s.hi == len(s.buf) || s.lo == s.hi {
		used := s.hi - s.lo
		size := len(s.buf)
		if used*2 > size {
			size *= 4
			if s.grow != nil && size > bigBody {
				if err := s.grow(size); err != nil {
					return err
				}
			}
		}
		// Nothing points into the buffer here: hold copied what might.
		if size != len(s.buf) {
			s.enlarge(size)
		} else {
			copy(s.buf, s.buf[s.lo:s.hi])
		}
		s.lo, s.hi = 0, used
	}
	n, err := s.r.Read(s.buf[s.hi:])
	s.hi += n
	if err != nil {
		s.err = err
	}
	return nil
}
