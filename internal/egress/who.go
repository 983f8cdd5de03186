package egress

import (
	"encoding/base64"
	"net"
	"net/http"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// caller is who a client is.
type caller struct {
	who   plane.Principal
	token secret.Text // empty of one that is known by its listener
	only  string      // the one destination that it may use; empty for any
}

// insider is a connection by a listener that one caller alone can reach.
type insider struct {
	net.Conn
	c *caller
}

type insiders struct {
	net.Listener
	c *caller
}

func (l insiders) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return insider{conn, l.c}, nil
}

type callerKey struct{}

// ServeFor takes the clients of a listener, a sandbox's socket, that who alone can reach:
// they need no token. Only names the one destination they may use.
func (p *Proxy) ServeFor(l net.Listener, who plane.Principal, only string) error {
	return p.Serve(insiders{l, &caller{who: who, only: only}})
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
