package egress

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/internal/plane"
)

// tunnel is a client's connection to one host.
type tunnel struct {
	net.Conn
	p      *Proxy
	caller caller
	host   string
	port   int
	far    net.Conn // of one that is passed through
	early  []byte
	wrong  error
	once   sync.Once

	begun, served atomic.Int64 // requests of HTTP/1.1: begun, and understood
}

type tunnelKey struct{}

// tunnelOf finds the tunnel under a TLS connection.
func tunnelOf(c net.Conn) *tunnel {
	if g, ok := c.(*headGuard); ok {
		c = g.Conn
	}
	if tc, ok := c.(*tls.Conn); ok {
		t, _ := tc.NetConn().(*tunnel)
		return t
	}
	return nil
}

// Read gives what came with the CONNECT first.
func (t *tunnel) Read(b []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(b, t.early)
		t.early = t.early[n:]
		return n, nil
	}
	return t.Conn.Read(b)
}

// Write gives up on a client that does not read.
func (t *tunnel) Write(b []byte) (int, error) {
	if err := t.Conn.SetWriteDeadline(time.Now().Add(writeStall)); err != nil {
		return 0, err
	}
	return t.Conn.Write(b)
}

// Close ends both sides.
func (t *tunnel) Close() error {
	var err error
	t.once.Do(func() {
		t.p.leave(t)
		if t.far != nil {
			t.far.Close()
		}
		err = t.Conn.Close()
	})
	return err
}

// unreadable writes down requests that are no HTTP: net/http refuses them by itself.
func (p *Proxy) unreadable(c net.Conn, s http.ConnState) {
	t := tunnelOf(c)
	if _, ok := c.(*headGuard); t == nil || !ok {
		return
	}
	switch s {
	case http.StateActive:
		t.begun.Add(1)
	case http.StateClosed:
		if t.begun.Load() > t.served.Load() {
			p.note(t.caller.who, &plane.EgressRecord{Host: t.host, Port: t.port, State: plane.EgressDenied, Reason: "The request cannot be read as HTTP."})
		}
	}
}

// carry copies until the end, or until nothing has come for the idle time; conn is what is
// read. How it ended shows in what was copied.
func (p *Proxy) carry(to io.Writer, from io.Reader, conn net.Conn) (n int64) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	b := (*buf)[:cap(*buf)]
	for {
		if conn.SetReadDeadline(time.Now().Add(p.o.Idle)) != nil {
			return n
		}
		m, err := from.Read(b)
		if m > 0 {
			if _, werr := to.Write(b[:m]); werr != nil {
				return n
			}
			n += int64(m)
		}
		if err != nil {
			return n
		}
	}
}

// enter counts a tunnel, against its caller and in all.
func (p *Proxy) enter(t *tunnel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.held(t.caller.key())
	switch {
	case p.closing || p.life.Err() != nil:
		return plane.Errorf(plane.Unavailable, "Patchbay is stopping.")
	case h.tunnels >= maxPerCaller:
		return plane.Errorf(plane.Limited, "%d tunnels of this caller are open, which is the most.", maxPerCaller).Then("Close some, or use HTTP/2: one tunnel carries many requests.")
	case len(p.tunnels) >= maxTunnels:
		return plane.Errorf(plane.Limited, "%d tunnels are open, which is the most.", maxTunnels).Then("Try again in a minute.")
	}
	h.tunnels++
	p.tunnels[t] = struct{}{}
	return nil
}

func (p *Proxy) leave(t *tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.tunnels[t]; ok {
		delete(p.tunnels, t)
		p.held(t.caller.key()).tunnels--
	}
}
