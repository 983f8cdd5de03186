package app

import (
	"context"
	"net"
	"time"

	"patchbay/internal/egress"
	"patchbay/internal/plane"
)

// DefaultEgress is where the credential gateway listens beside DefaultListen.
const DefaultEgress = "127.0.0.1:7718"

// egressAddr is where the gateway listens, "" for nowhere. Beside the default port of the
// server it has its own default; elsewhere it is named.
func (c *Config) egressAddr() (addr string, named bool) {
	switch {
	case c.Egress.Listen == "off" || !c.MCP.On():
		return "", false
	case c.Egress.Listen != "":
		return c.Egress.Listen, true
	case c.Listen == DefaultListen:
		return DefaultEgress, false
	}
	return "", false
}

// checkEgress holds where the gateway may listen.
func (c *Config) checkEgress() error {
	addr, named := c.egressAddr()
	if !named {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	if err != nil || port == "" || ip == nil || !ip.IsLoopback() && !ip.IsPrivate() {
		return c.bad("egress.listen", "egress.listen is an address of loopback or of a private network, as %s: clients send their tokens there by plain http.", DefaultEgress)
	}
	return nil
}

// openEgress starts the credential gateway.
func (a *App) openEgress(ctx context.Context) error {
	addr, named := a.cfg.egressAddr()
	if addr == "" {
		return nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		if !named {
			a.o.Notice("The credential gateway is off: %s is taken. Set egress.listen.", addr)
			return nil
		}
		return plane.Errorf(plane.Unavailable, "The credential gateway cannot listen on %s.", addr).Then("Set egress.listen to a free address, or to off.").Because(err)
	}
	gate, err := a.gateway(ctx)
	if err != nil {
		l.Close()
		return err
	}
	a.gateMu.Lock()
	a.egressAt = "http://" + l.Addr().String()
	a.gateMu.Unlock()
	go gate.Serve(l)
	return nil
}

// gateway is the credential gateway, opened for the first who needs it: its port, or a
// sandbox's socket.
func (a *App) gateway(ctx context.Context) (*egress.Proxy, error) {
	a.gateMu.Lock()
	defer a.gateMu.Unlock()
	if a.egress != nil {
		return a.egress, nil
	}
	ca, err := egress.OpenCA(ctx, a.store, a.ring, a.o.Clock)
	if ca == nil {
		return nil, err
	}
	if err != nil { // what else this key did not seal goes on
		a.o.Notice("The credential gateway looks into no tunnel: %s %s", plane.Public(err).Message, plane.Public(err).Next)
		a.o.Log.Warn("the credential gateway's authority cannot be used", "err", err)
	}
	if a.store.Kind() == "sqlite" { // nobody else holds any
		if err := a.store.Write(ctx, func(t plane.Tx) error { return a.store.StrandEgress(t, t.Now().Add(time.Second)) }); err != nil {
			return nil, err
		}
	}
	a.ca = ca
	a.egress = egress.New(egress.Options{CA: a.ca, Policy: a.policy.Load, Lender: a.conns, Who: a.auth.Token, Transport: a.guard.Untrusted, Dial: a.guard.DialFor, Records: a.store,
		Placeholder: a.token, Clock: a.o.Clock, Log: a.o.Log, Owner: a.ledger.Owner})
	return a.egress, nil
}

// EgressURL is where the credential gateway listens, or "".
func (a *App) EgressURL() string {
	a.gateMu.Lock()
	defer a.gateMu.Unlock()
	return a.egressAt
}

// renewedAuthority takes in an authority that another replica put in place.
func (a *App) renewedAuthority(ctx context.Context) {
	a.gateMu.Lock()
	ca := a.ca
	a.gateMu.Unlock()
	if ca == nil {
		return
	}
	if err := ca.Reload(ctx); err != nil {
		a.o.Log.Warn("the credential gateway's authority cannot be read again", "err", err)
	}
}

// strandEvery is after how long a request that nobody settled is unknown, whoever holds it.
const strandEvery = 24 * time.Hour

// authority is the gateway's, for commands.
type authority struct{ a *App }

// Certificate is the authority's, for clients, and until when it is good.
func (x authority) Certificate() (string, time.Time, error) {
	ca := x.authority()
	if ca == nil {
		return "", time.Time{}, plane.Errorf(plane.Unavailable, "The credential gateway is off on this server.").Then("Set egress.listen in patchbay.yaml.")
	}
	cert, until := ca.PEM()
	if cert == "" {
		return "", time.Time{}, plane.Errorf(plane.Unavailable, "The gateway's authority does not open: the key that it was sealed with is missing.").Then("patchbay egress ca --renew makes another.")
	}
	return cert, until, nil
}

// Renew puts another authority in place.
func (x authority) Renew(ctx context.Context, who plane.Principal) error {
	ca := x.authority()
	if ca == nil {
		_, _, err := x.Certificate()
		return err
	}
	return ca.Renew(ctx, who)
}

// URL is where clients send their requests.
func (x authority) URL() string { return x.a.EgressURL() }

// authority is nil where nobody reaches the gateway: a sandbox's socket is no client's.
func (x authority) authority() *egress.CA {
	x.a.gateMu.Lock()
	defer x.a.gateMu.Unlock()
	if x.a.egressAt == "" {
		return nil
	}
	return x.a.ca
}
