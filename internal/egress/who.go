package egress

import (
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// caller is who a client is.
type caller struct {
	who   plane.Principal
	token secret.Text // empty of one that is known by its listener
	only  string      // the one destination that it may use; empty for any
}

// key tells callers apart, for what each may hold.
func (c *caller) key() string {
	return string(c.who.Kind) + " " + c.who.ID + " " + c.who.Agent + " " + c.who.Team
}

// held is what one caller holds, and how fast its refusals are written down.
type held struct {
	tunnels  int
	refusals *rate.Limiter
	left     int // refusals that were not written down since the last one that was
}

// held is a caller's. The lock is held.
func (p *Proxy) held(key string) *held {
	h, ok := p.callers[key]
	if !ok {
		if len(p.callers) >= maxCallers {
			for k, old := range p.callers {
				if old.tunnels == 0 {
					delete(p.callers, k)
				}
			}
		}
		h = &held{refusals: rate.NewLimiter(20, 200)}
		p.callers[key] = h
	}
	return h
}

// insider is a connection by a listener that one caller alone can reach.
type insider struct {
	net.Conn
	c    *caller
	once sync.Once
	slot chan struct{}
}

// Close gives its place to another.
func (c *insider) Close() error {
	c.once.Do(func() { <-c.slot })
	return c.Conn.Close()
}

type insiders struct {
	net.Listener
	c     *caller
	slots chan struct{}
}

// Accept waits while too many are open.
func (l insiders) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &insider{Conn: conn, c: l.c, slot: l.slots}, nil
}

// guarded looks at the heads of what a listener accepts, and gives up on clients that do
// not read.
type guarded struct {
	net.Listener
	p *Proxy
}

func (l guarded) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	who := plane.Principal{}
	if in, ok := conn.(*insider); ok {
		who = in.c.who
	} else {
		conn = patient{conn}
	}
	return newHeadGuard(conn, func(err *plane.Error) {
		if who.ID != "" || l.p.strangers.Allow() {
			l.p.note(who, &plane.EgressRecord{State: plane.EgressDenied, Reason: err.Message})
		}
	}), nil
}

// patient gives up on a client that does not read for a while.
type patient struct{ net.Conn }

// Write sets its own end.
func (c patient) Write(b []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(writeStall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

type callerKey struct{}

// ServeFor takes the clients of a listener, a sandbox's socket, that who alone can reach:
// they need no token. Only names the one destination they may use.
func (p *Proxy) ServeFor(l net.Listener, who plane.Principal, only string) error {
	return p.Serve(insiders{l, &caller{who: who, only: only}, make(chan struct{}, maxPerInsider)})
}

// identify reads the agent token of a client: as a bearer, or as the password of basic,
// which is what clients send for http://any:TOKEN@proxy.
func (p *Proxy) identify(r *http.Request) (caller, error) {
	if c, ok := r.Context().Value(callerKey{}).(*caller); ok {
		return *c, nil
	}
	kind, rest, _ := strings.Cut(r.Header.Get("Proxy-Authorization"), " ")
	token := ""
	switch {
	case strings.EqualFold(kind, "Bearer"):
		token = rest
	case strings.EqualFold(kind, "Basic"):
		if b, err := base64.StdEncoding.DecodeString(rest); err == nil {
			user, password, _ := strings.Cut(string(b), ":")
			if token = password; token == "" {
				token = user
			}
		}
	}
	if token == "" || len(r.Header["Proxy-Authorization"]) != 1 {
		return caller{}, plane.Errorf(plane.Unauthenticated, "The credential gateway takes an agent token.").Then("patchbay egress run -- COMMAND sets it, or http://agent:TOKEN@the gateway's address as the proxy.")
	}
	c := caller{token: secret.New(token)}
	var err error
	if c.who, err = p.o.Who(r.Context(), c.token); err != nil {
		return c, err
	}
	if c.who.Kind != plane.KindAgent {
		return c, plane.Errorf(plane.Forbidden, "The credential gateway takes agent tokens.").Then("patchbay tokens create gateway --agent NAME")
	}
	return c, nil
}
