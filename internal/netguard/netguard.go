// Package netguard holds the only dialers and http.Transports of the program.
// It promises that the untrusted lane reaches public addresses by https on 443
// and what egress.allow opens for that name, judged on the address dialled, with
// no redirect, no environment proxy and no retry of its own; and that the
// infrastructure lane reaches exactly the endpoint that config named.
package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"patchbay/internal/plane"
)

// Rule is one entry of egress.allow: an exact host and port, or a CIDR, opened
// for the names that it lists and nobody else.
type Rule struct {
	To  string   `yaml:"to" json:"to"`
	For []string `yaml:"for" json:"for"`
}

type rule struct {
	plain  bool   // http allowed
	host   string // exact host, lower case; empty for a CIDR
	port   string // empty for any port of a CIDR
	prefix netip.Prefix
	names  []string
	text   string
}

// Policy is the compiled egress policy. Its rules can be replaced as a whole.
type Policy struct {
	held  atomic.Pointer[[]rule]
	guard *ssrf.Guardian

	dialFor time.Duration

	mu   sync.Mutex
	open map[string]*http.Transport
}

// 168.63.129.16 is a cloud provider's metadata and DNS service on a public
// address, so no registry of special addresses lists it.
var alsoDenied = netip.MustParsePrefix("168.63.129.16/32")

// NewPolicy compiles the rules. dialTimeout bounds one connect.
func NewPolicy(rules []Rule, dialTimeout time.Duration) (*Policy, error) {
	p := &Policy{
		guard:   ssrf.New(ssrf.WithPorts(443), ssrf.WithDeniedV4Prefixes(alsoDenied)),
		dialFor: dialTimeout, open: map[string]*http.Transport{},
	}
	return p, p.Replace(rules)
}

// Replace puts other rules in place. Bad ones change nothing.
func (p *Policy) Replace(rules []Rule) error {
	var out []rule
	for i, r := range rules {
		c, err := compile(r)
		if err != nil {
			return plane.Errorf(plane.InvalidInput, "egress.allow[%d]: %s.", i, err.Error()).At("egress.allow")
		}
		out = append(out, c)
	}
	p.held.Store(&out)
	// What was open under the old rules is not used again: a lane looks its
	// transport up at every request.
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.open {
		t.CloseIdleConnections()
	}
	p.open = map[string]*http.Transport{}
	return nil
}

func (p *Policy) rules() []rule {
	if held := p.held.Load(); held != nil {
		return *held
	}
	return nil
}

func compile(r Rule) (rule, error) {
	c := rule{names: r.For, text: r.To}
	if len(r.For) == 0 {
		return c, errors.New("name the connections it is for, as in for: [erp]")
	}
	to := r.To
	if rest, ok := strings.CutPrefix(to, "http://"); ok {
		c.plain, to = true, rest
	} else {
		to = strings.TrimPrefix(to, "https://")
	}
	if prefix, err := netip.ParsePrefix(to); err == nil {
		c.prefix = prefix.Masked()
		return c, nil
	}
	host, port, err := net.SplitHostPort(to)
	if err != nil || host == "" || atoi(port) == 0 || strings.ContainsAny(host, "/?#@") {
		return c, fmt.Errorf("%q is neither host:port nor a CIDR; leave the path out", r.To)
	}
	c.host, c.port = canonicalHost(host), port
	return c, nil
}

func canonicalHost(h string) string { return strings.TrimSuffix(strings.ToLower(h), ".") }

// Opens lists what egress.allow opens, one line each, for the start-up notice.
func (p *Policy) Opens() []string {
	var out []string
	for _, r := range p.rules() {
		out = append(out, fmt.Sprintf("%s for %s", r.text, strings.Join(r.names, ", ")))
	}
	return out
}

// CheckURL judges an endpoint before anything is dialled: its form, and, where
// the host is an address, the address. name is whose exceptions apply.
func (p *Policy) CheckURL(name, raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return plane.Errorf(plane.InvalidInput, "%s: the URL cannot be read; give one like https://mcp.example.com/mcp.", name)
	}
	bad := func(format string, args ...any) error {
		return plane.Errorf(plane.InvalidInput, "%s: "+format, append([]any{name}, args...)...)
	}
	switch {
	case u.User != nil:
		return bad("the URL carries credentials; take them out and name a token variable instead.")
	case u.RawQuery != "" || u.ForceQuery:
		return bad("the URL carries a query; servers are named by scheme, host and path.")
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return bad("the URL carries a fragment; take it out.")
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("the URL's scheme is %q; only https is spoken, and http where egress.allow says so.", u.Scheme)
	case strings.ContainsAny(raw, "\\ \t\r\n"):
		return bad("the URL holds white space or a backslash.")
	}
	host, port := canonicalHost(u.Hostname()), u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	if host == "" {
		return bad("the URL names no host.")
	}
	return p.judge(name, u.Scheme, host, port)
}

// judge says whether the rules in force let name reach an origin. What a name
// resolves to is judged at the dial.
func (p *Policy) judge(name, scheme, host, port string) error {
	allow := func() *plane.Error {
		to := net.JoinHostPort(host, port)
		if scheme == "http" {
			to = "http://" + to
		}
		return plane.Errorf(plane.InvalidInput, "").At("url").Then(fmt.Sprintf("An operator opens it in patchbay.yaml, then patchbay config reload: egress: {allow: [{to: %q, for: [%q]}]}", to, name))
	}
	if p.matchHost(name, host, port, scheme == "http") {
		return nil
	}
	e := allow()
	addr, isAddr := parseAddr(host)
	switch {
	case isAddr && p.matchAddr(name, netip.AddrPortFrom(addr, atoi(port)), scheme == "http"):
		return nil
	case isAddr && p.guard.SafeAddr(addr) != nil:
		e.Message = fmt.Sprintf("%s: %s is not a public address.", name, host)
	case !isAddr && internalName(host):
		e.Message = fmt.Sprintf("%s: %s names an internal host.", name, host)
	case scheme == "http":
		e.Message = fmt.Sprintf("%s: plain http is not spoken to %s.", name, host)
	case port != "443":
		e.Message = fmt.Sprintf("%s: port %s is not open; servers are reached on 443.", name, port)
	default:
		return nil
	}
	return e
}

// parseAddr reads an address, also in the forms that resolvers accept and
// netip does not: decimal, octal and hexadecimal IPv4.
func parseAddr(host string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.WithZone(""), true
	}
	return legacyIPv4(host)
}

// internalName reports hosts that can only be local ones.
func internalName(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range []string{".internal", ".local", ".localhost", ".localdomain", ".lan", ".home.arpa", ".intranet", ".corp"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

func (p *Policy) matchHost(name, host, port string, plainHTTP bool) bool {
	for _, r := range p.rules() {
		if r.host == host && r.port == port && r.plain == plainHTTP && slices.Contains(r.names, name) {
			return true
		}
	}
	return false
}

func (p *Policy) matchAddr(name string, ap netip.AddrPort, plainHTTP bool) bool {
	for _, r := range p.rules() {
		if r.host == "" && r.plain == plainHTTP && r.prefix.Contains(ap.Addr().Unmap()) && slices.Contains(r.names, name) {
			return true
		}
	}
	return false
}

// ErrRefused marks a dial that policy refused: nothing left this machine.
var ErrRefused = errors.New("netguard: the address is not allowed")

// Untrusted is the lane for what a person, a server or metadata named, with the
// exceptions of name. It follows no redirect, since it is a RoundTripper, reads
// no environment, sends nothing twice, and its errors say whether anything was
// sent (see Failure).
func (p *Policy) Untrusted(name string) http.RoundTripper { return lane{p, name} }

// transport is the pool of a name: its own where it has exceptions.
func (p *Policy) transport(name string) *http.Transport {
	key := ""
	for _, r := range p.rules() {
		if slices.Contains(r.names, name) {
			key = name
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.open[key]; ok {
		return t
	}
	t := tuned()
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return p.dial(ctx, key, network, addr)
	}
	p.open[key] = t
	return t
}

// schemeKey marks requests by plain http for the dialer, which sees only the
// address. Without it https is assumed.
type schemeKey struct{}

// dial resolves and connects; every address is judged in Control, after
// resolution and immediately before the connect, so a rebinding name gains
// nothing.
func (p *Policy) dial(ctx context.Context, name, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrRefused, addr)
	}
	plainHTTP, _ := ctx.Value(schemeKey{}).(bool)
	byHost := name != "" && p.matchHost(name, canonicalHost(host), port, plainHTTP)
	d := net.Dialer{Timeout: p.dialFor, KeepAlive: 30 * time.Second}
	d.Control = func(network, address string, c syscall.RawConn) error {
		if byHost {
			return nil
		}
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %s", ErrRefused, address)
		}
		ap = netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port())
		if name != "" && p.matchAddr(name, ap, plainHTTP) {
			return nil
		}
		if plainHTTP {
			return fmt.Errorf("%w: plain http to %s", ErrRefused, address)
		}
		if err := p.guard.Safe(network, ap.String(), c); err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil
	}
	return d.DialContext(ctx, network, addr)
}

// DialFor connects to host:port on the untrusted lane, for a stream that is not HTTP's, with
// the exceptions of name.
func (p *Policy) DialFor(ctx context.Context, name, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrRefused, addr)
	}
	if err := p.judge(name, "https", canonicalHost(host), port); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return p.dial(ctx, name, "tcp", addr)
}

// Close drops all idle connections.
func (p *Policy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.open {
		t.CloseIdleConnections()
	}
}
