package egress

import (
	"bytes"
	"net"
	"net/http"
	"strconv"

	"patchbay/internal/plane"
)

// headGuard looks at what a client of HTTP/1.1 writes before anybody reads it: net/http
// makes one request of heads that two readers would take for two (RFC 9112 §6.3, §5.2). It
// keeps count of bodies only to find the next head.
type headGuard struct {
	net.Conn
	bad func(err *plane.Error) // told once

	state             headState
	line              []byte // of a head, that has not ended
	n, total          int    // lines and bytes of the head
	left              int64  // of a body or a chunk
	length            int64  // Content-Length, -1 for none
	chunked, switches bool
	err               *plane.Error
}

type headState int

const (
	inHead headState = iota
	inBody
	inSize
	inChunk
	inTrailer
	inRaw // what follows is no HTTP/1.1, or somebody else's to look at
)

func newHeadGuard(c net.Conn, bad func(*plane.Error)) *headGuard {
	return &headGuard{Conn: c, bad: bad, length: -1}
}

// errHead ends a connection whose head cannot be taken.
func errHead(what string) *plane.Error {
	return plane.Errorf(plane.Forbidden, "The request cannot be taken: %s.", what)
}

// Read passes on what is fit.
func (g *headGuard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.Conn.Read(p)
	if n > 0 {
		if e := g.feed(p[:n]); e != nil {
			g.err = e
			g.bad(e)
			body := e.Message + "\n"
			g.Conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)) // it may be gone
			return 0, e
		}
	}
	return n, err
}

// raw lets everything pass from here on.
func (g *headGuard) raw() { g.state = inRaw }

func (g *headGuard) feed(b []byte) *plane.Error {
	for len(b) > 0 {
		switch g.state {
		case inRaw:
			return nil
		case inBody, inChunk:
			n := min(int64(len(b)), g.left)
			g.left -= n
			b = b[n:]
			if g.left > 0 {
				continue
			}
			if g.state == inChunk {
				g.state = inSize
			} else {
				g.next()
			}
		default:
			i := bytes.IndexByte(b, '\n')
			if g.total += i + 1; i < 0 {
				g.total += len(b)
			}
			if g.total > maxHead {
				return errHead("its head is too long")
			}
			if i < 0 {
				g.line = append(g.line, b...)
				return nil
			}
			line := b[:i+1]
			if len(g.line) > 0 {
				line = append(g.line, line...)
			}
			b = b[i+1:]
			err := g.take(line)
			g.line = g.line[:0]
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *headGuard) next() {
	g.state, g.n, g.total, g.left, g.length, g.chunked, g.switches = inHead, 0, 0, 0, -1, false, false
}

// take looks at one line of a head, a chunk's size, or a trailer.
func (g *headGuard) take(line []byte) *plane.Error {
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(text, '\r') >= 0 || bytes.IndexByte(text, 0) >= 0 {
		return errHead("a line of it does not end as lines do")
	}
	switch g.state {
	case inSize:
		size, _, _ := bytes.Cut(text, []byte(";"))
		n, err := strconv.ParseUint(string(size), 16, 40)
		if err != nil {
			return errHead("a chunk's size is none")
		}
		g.total = 0
		if g.left, g.state = int64(n)+2, inChunk; n == 0 {
			g.state = inTrailer
		}
		return nil
	case inTrailer:
		if len(text) == 0 {
			g.next()
		}
		return nil
	}
	if g.n == 0 {
		if len(text) > 0 {
			g.n = 1
			g.switches = bytes.HasPrefix(text, []byte(http.MethodConnect+" "))
		}
		return nil // an empty line before a request is let be
	}
	if len(text) > 0 {
		return g.field(text)
	}
	switch {
	case g.chunked && g.length >= 0:
		return errHead("it says twice how long it is")
	case g.switches:
		g.state = inRaw
	case g.chunked:
		g.state, g.total = inSize, 0
	case g.length > 0:
		g.state, g.left = inBody, g.length
	default:
		g.next()
	}
	return nil
}

// field looks at one header.
func (g *headGuard) field(text []byte) *plane.Error {
	if text[0] == ' ' || text[0] == '\t' {
		return errHead("a header goes on in the next line")
	}
	name, value, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
		return errHead("a header's name is none")
	}
	value = bytes.TrimSpace(value)
	switch http.CanonicalHeaderKey(string(name)) {
	case "Content-Length":
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil || g.length >= 0 {
			return errHead("its length is none, or is told twice")
		}
		g.length = int64(n)
	case "Transfer-Encoding":
		if g.chunked || !bytes.EqualFold(value, []byte("chunked")) {
			return errHead("its transfer encoding is not taken")
		}
		g.chunked = true
	case "Upgrade":
		g.switches = true
	}
	return nil
}
