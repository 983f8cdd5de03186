package app_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"patchbay/internal/app"
	"patchbay/internal/command"
)

// resolveBy has this process ask a name server of ours, whose answer each question changes.
func resolveBy(t *testing.T, answer func() netip.Addr) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = old; conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, Questions: m.Questions}
			head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class} // TTL 0
			switch a := answer(); {
			case q.Type == dnsmessage.TypeA && a.Is4():
				out.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: a.As4()}}}
			case q.Type == dnsmessage.TypeAAAA && !a.Is4():
				out.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
			}
			if b, err := out.Pack(); err == nil {
				conn.WriteTo(b, from) // one that is lost is asked for again
			}
		}
	}()
}

// TestARebindingName: a destination's name that turns to an address inside is dialled
// nowhere, whatever it turned to before: what is judged is the address that is dialled.
func TestARebindingName(t *testing.T) {
	inside := []string{"127.0.0.1", "::1", "169.254.169.254", "10.1.2.3", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "192.168.0.1", "168.63.129.16", "0.0.0.0"}
	var asked atomic.Int64
	at := atomic.Pointer[netip.Addr]{}
	resolveBy(t, func() netip.Addr { asked.Add(1); return *at.Load() })
	config := "agents: {general: {destinations: [turns, passed]}}\negress:\n  listen: 127.0.0.1:0\n  destinations:\n    turns: {hosts: [turns.example.com], inject: {kind: bearer}, inject_secret: \"secret:api\"}\n    passed: {hosts: [passed.example.com], tunnel: true}\n"
	first := netip.MustParseAddr(inside[0])
	at.Store(&first)
	o := reaching(t, config, "", nil)
	if err := o.do("secrets.put", command.SecretsPutInput{Ref: "api", Value: outSecret}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range inside {
		addr := netip.MustParseAddr(a)
		at.Store(&addr)
		before := asked.Load()
		o.host = "turns.example.com"
		status, body, _ := o.sends(t, o.client(t, false), "GET", "/", "", nil)
		if status != http.StatusForbidden || !strings.Contains(body, "an address that the gateway does not reach") {
			t.Errorf("%s: %d %s", a, status, body)
		}
		if asked.Load() == before {
			t.Errorf("%s: the name was not asked for", a)
		}
		o.host = "passed.example.com"
		if _, body, _ := o.sends(t, o.client(t, false), "GET", "/", "", nil); !strings.Contains(body, "Bad Gateway") {
			t.Errorf("a tunnel to %s: %s", a, body)
		}
	}
	for _, r := range o.log(t, 2*len(inside)) {
		if r.State == "succeeded" || r.Status != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// TestAnExpiredAuthority: clients are told, and another authority serves them.
func TestAnExpiredAuthority(t *testing.T) {
	clock := &moved{}
	o := reaching(t, "agents: {general: {destinations: [api]}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: \"127.0.0.1:%PORT%\", for: [api]}]\n  destinations: {api: {hosts: [127.0.0.1], port: %PORT%}}\n", "", func(op *app.Options) { op.Clock = clock })
	plain := func(r *http.Request) { r.Header.Del("Authorization") }
	if status, body, _ := o.sends(t, o.client(t, false), "GET", "/hello", "", plain); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	clock.pass(11 * 365 * 24 * time.Hour)
	o.forTeam(t, "") // the other token has expired too
	if _, body, _ := o.sends(t, o.client(t, false), "GET", "/hello", "", plain); !strings.Contains(body, "Service Unavailable") {
		t.Errorf("an expired authority: %s", body)
	}
	denied := o.log(t, 2)[0]
	if !strings.Contains(denied.Reason, "authority has expired") {
		t.Errorf("%+v", denied)
	}
	var ca command.EgressCA
	if err := o.do("egress.ca", command.EgressCAInput{Renew: true}, &ca); err != nil {
		t.Fatal(err)
	}
	c := o.client(t, false)
	tr := c.Transport.(*http.Transport)
	tr.TLSClientConfig.Time = clock.Now
	if _, body, _ := o.sends(t, c, "GET", "/hello", "", plain); !strings.Contains(body, "unknown authority") {
		t.Errorf("with the old certificate: %s", body)
	}
	if err := os.WriteFile(o.ca, []byte(ca.PEM), 0o644); err != nil {
		t.Fatal(err)
	}
	tr.TLSClientConfig.RootCAs = x509.NewCertPool()
	tr.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(ca.PEM))
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", plain); status != 200 {
		t.Errorf("after the renewal: %d %s", status, body)
	}
}
