// Package egress is the credential gateway: an HTTP forward proxy for agents' own clients,
// which hold a placeholder and never a secret. It promises that a request goes out only
// where a destination of the agent's policy admits it, to the host that was dialled and no
// other, that a secret goes in only where that destination says, that it is searched for in
// what comes back, that an effect is on record before its first byte, and that nothing is
// sent twice.
package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/connect"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Lender opens secrets for grants.
type Lender interface {
	LendEgress(ctx context.Context, g policy.EgressGrant) (*connect.EgressLease, error)
}

// Records are the rows of requests.
type Records interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	WriteBehind(fn func(plane.Tx) error) error
	AddEgress(t plane.Tx, e *plane.EgressRecord) error
	SettleEgress(t plane.Tx, e *plane.EgressRecord) error
}

// Options of a Proxy.
type Options struct {
	CA          *CA
	Policy      func() *policy.Snapshot
	Lender      Lender
	Who         func(ctx context.Context, token secret.Text) (plane.Principal, error)
	Transport   func(destination string) http.RoundTripper // the untrusted lane, with the destination's exceptions
	Dial        func(ctx context.Context, destination, addr string) (net.Conn, error)
	Records     Records
	Placeholder string
	Clock       plane.Clock
	Log         *slog.Logger
	Owner       string // names this process in records
	Idle        time.Duration
}

// Proxy serves agents' clients. Close it.
type Proxy struct {
	o     Options
	outer *http.Server
	inner *http.Server
	conns chan net.Conn // terminated tunnels, for inner
	life  context.Context
	end   context.CancelFunc

	strangers *rate.Limiter // of records about who is not known

	mu      sync.Mutex
	tunnels map[*tunnel]struct{}
	plain   map[*plain]struct{} // requests by plain http that are under way
	callers map[string]*held    // what each caller holds, and how often it is refused
	closing bool
}

// Bounds of the gateway.
const (
	maxHead     = 64 << 10
	headTime    = 10 * time.Second
	maxTunnels  = 4096
	tokenEvery  = time.Second // how often open tunnels' tokens are looked at
	handshake   = 10 * time.Second
	writeStall  = 60 * time.Second // how long a client may not read
	defaultIdle = 5 * time.Minute

	maxPerCaller  = 512 // tunnels of one caller
	maxPerInsider = 64  // connections of one sandbox
	maxCallers    = 10_000
)

// New makes a proxy.
func New(o Options) *Proxy {
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
	p := &Proxy{o: o, conns: make(chan net.Conn), tunnels: map[*tunnel]struct{}{}, plain: map[*plain]struct{}{}, callers: map[string]*held{}, strangers: rate.NewLimiter(10, 100)}
	p.life, p.end = context.WithCancel(context.Background())
	quiet := slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug)
	p.outer = &http.Server{Handler: http.HandlerFunc(p.front), ReadHeaderTimeout: headTime, IdleTimeout: o.Idle, MaxHeaderBytes: maxHead, ErrorLog: quiet,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if g, ok := c.(*headGuard); ok {
				if in, ok := g.Conn.(*insider); ok {
					return context.WithValue(ctx, callerKey{}, in.c)
				}
			}
			return ctx
		}}
	p.inner = &http.Server{ConnState: p.unreadable, Handler: http.HandlerFunc(p.inside), ReadHeaderTimeout: headTime, IdleTimeout: o.Idle, MaxHeaderBytes: maxHead, ErrorLog: quiet,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, tunnelKey{}, tunnelOf(c))
		}}
	go p.inner.Serve(inbox{p, make(chan struct{}), &sync.Once{}})
	go p.watch()
	return p
}

// Serve takes clients of a listener until it ends.
func (p *Proxy) Serve(l net.Listener) error {
	err := p.outer.Serve(guarded{l, p})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close takes no more, waits for what is under way at most so long, and ends every tunnel.
func (p *Proxy) Close(drain time.Duration) {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	p.outer.Shutdown(ctx) // what is not done by then is cut
	p.inner.Shutdown(ctx)
	p.outer.Close()
	p.end()
	p.inner.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.tunnels {
		t.Conn.Close()
	}
}

// inbox hands terminated tunnels to the inner server.
type inbox struct {
	p    *Proxy
	shut chan struct{}
	once *sync.Once
}

func (b inbox) Accept() (net.Conn, error) {
	select {
	case c := <-b.p.conns:
		return c, nil
	case <-b.shut:
	case <-b.p.life.Done():
	}
	return nil, net.ErrClosed
}

func (b inbox) Close() error {
	b.once.Do(func() { close(b.shut) })
	return nil
}

func (inbox) Addr() net.Addr { return &net.TCPAddr{} }

// front serves the proxy's own port: CONNECT, and absolute-form requests by plain http.
func (p *Proxy) front(w http.ResponseWriter, r *http.Request) {
	c, err := p.identify(r)
	if err != nil {
		w.Header().Set("Proxy-Authenticate", `Basic realm="patchbay"`)
		asked := len(r.Header["Proxy-Authorization"]) > 0 // clients that were not challenged yet say nothing
		if asked && p.strangers.Allow() {                 // nobody fills the log from outside
			p.note(c.who, &plane.EgressRecord{Host: short(r.Host), Method: short(r.Method), State: plane.EgressDenied, Reason: plane.Public(err).Message})
		}
		refuse(w, http.StatusProxyAuthRequired, err)
		return
	}
	r.Header.Del("Proxy-Authorization")
	if r.Method == http.MethodConnect {
		p.connect(w, r, c)
		return
	}
	if !r.URL.IsAbs() || r.URL.Scheme != "http" {
		p.deny(w, r, c.who, r.Host, 0, plane.Errorf(plane.InvalidInput, "This is a forward proxy: https goes by CONNECT.").Then("Set its address as HTTPS_PROXY."))
		return
	}
	host, port, err := target(r.URL.Host, 80)
	if err == nil && (r.Host != r.URL.Host || r.URL.User != nil) {
		err = plane.Errorf(plane.Forbidden, "The request names two hosts.")
	}
	if err != nil {
		p.deny(w, r, c.who, r.URL.Host, 80, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	x := &plain{c, cancel}
	p.mu.Lock()
	p.plain[x] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.plain, x)
	}()
	p.forward(w, r.WithContext(ctx), c, "http", host, port)
}

// plain is a request by plain http that is under way; its token may be revoked meanwhile.
type plain struct {
	caller
	cancel context.CancelFunc
}

// target reads host:port as it is dialled and compared: lower case, no trailing dot, an
// address in its one form.
func target(hostport string, port int) (string, int, error) {
	host := hostport
	if h, ps, err := net.SplitHostPort(hostport); err == nil {
		n, err := strconv.ParseUint(ps, 10, 16)
		if err != nil || n == 0 {
			return "", 0, plane.Errorf(plane.InvalidInput, "The request names no port.")
		}
		host, port = h, int(n)
	}
	host = strings.ToLower(host)
	if host == "" || len(host) > 253 || strings.HasSuffix(host, ".") || strings.ContainsAny(host, "%/@\\ \t\x00[]") {
		return "", 0, plane.Errorf(plane.Forbidden, "The host's name is not in the form that is compared.")
	}
	for i := range len(host) {
		if host[i] > 0x7e || host[i] < 0x21 {
			return "", 0, plane.Errorf(plane.Forbidden, "The host's name is not in the form that is compared.")
		}
	}
	if ip := net.ParseIP(host); ip != nil {
		host = ip.String()
	}
	return host, port, nil
}

// connect opens a tunnel to one host: what is inside is looked at request by request.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request, c caller) {
	host, port, err := target(r.Host, 443)
	if err == nil && r.URL.Host != r.Host {
		err = plane.Errorf(plane.Forbidden, "The request names two hosts.")
	}
	if err != nil {
		p.deny(w, r, c.who, r.Host, 443, err)
		return
	}
	g, denial := p.o.Policy().DecideEgress(c.who, policy.EgressRequest{Agent: c.who.Agent, Scheme: "https", Host: host, Port: port, Only: c.only})
	if denial != nil {
		p.deny(w, r, c.who, host, port, denial.Err())
		return
	}
	if g.Destination().Tunnel {
		p.pass(w, r, c, g)
		return
	}
	cert, err := p.o.CA.Leaf(host)
	if err != nil {
		p.deny(w, r, c.who, host, port, err)
		return
	}
	t := &tunnel{caller: c, host: host, port: port}
	if err := p.enter(t); err != nil {
		p.deny(w, r, c.who, host, port, err)
		return
	}
	raw, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.leave(t)
		refuse(w, http.StatusInternalServerError, plane.Errorf(plane.Internal, "The connection cannot be taken over.").Because(err))
		return
	}
	if g, ok := raw.(*headGuard); ok {
		g.raw() // what follows is TLS
	}
	t.Conn, t.p = raw, p
	if n := rw.Reader.Buffered(); n > 0 { // the client did not wait for the answer
		b, _ := rw.Reader.Peek(n) // that many are there
		t.early = append([]byte(nil), b...)
	}
	raw.SetDeadline(time.Time{})
	if _, err := io.WriteString(raw, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		t.Close()
		return
	}
	p.terminate(t, cert)
}

// terminate speaks TLS with the client and hands what is inside to the inner server.
func (p *Proxy) terminate(t *tunnel, cert *tls.Certificate) {
	conn := tls.Server(t, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			// An address has no SNI; everything else must be the host that was asked for.
			if sni, _, err := target(h.ServerName, t.port); h.ServerName != "" && (err != nil || sni != t.host) || h.ServerName == "" && net.ParseIP(t.host) == nil {
				t.wrong = plane.Errorf(plane.Forbidden, "The tunnel was opened to another host than the client speaks to inside.")
				return nil, errors.New("egress: SNI differs from CONNECT")
			}
			return cert, nil
		}})
	ctx, cancel := context.WithTimeout(p.life, handshake)
	err := conn.HandshakeContext(ctx)
	cancel()
	if err != nil {
		reason := t.wrong
		if reason == nil {
			reason = plane.Errorf(plane.InvalidInput, "The client did not speak TLS inside its tunnel, or does not know the gateway's certificate.").Because(err)
		}
		p.note(t.caller.who, &plane.EgressRecord{Host: t.host, Port: t.port, Method: http.MethodConnect, State: plane.EgressDenied, Reason: plane.Public(reason).Message})
		conn.Close()
		return
	}
	var inside net.Conn = conn
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		inside = newHeadGuard(conn, func(err *plane.Error) {
			t.served.Store(t.begun.Load()) // it is written down here
			p.note(t.caller.who, &plane.EgressRecord{Host: t.host, Port: t.port, State: plane.EgressDenied, Reason: err.Message})
		})
	}
	select {
	case p.conns <- inside:
	case <-p.life.Done():
		conn.Close()
	}
}

// pass lets a tunnel through that is marked so: not looked into, and nothing injected.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, c caller, g policy.EgressGrant) {
	e := &plane.EgressRecord{Destination: g.Destination().Name, Host: g.Host(), Port: g.Port(), Method: http.MethodConnect, State: plane.EgressDispatched}
	ctx, cancel := context.WithTimeout(p.life, handshake)
	far, err := p.o.Dial(ctx, g.Destination().Name, g.Address())
	cancel()
	if err != nil {
		e.State, e.Reason = plane.EgressFailed, "the host does not answer, or is not allowed"
		p.note(c.who, e)
		refuse(w, http.StatusBadGateway, plane.Errorf(plane.Unavailable, "%s cannot be reached.", g.Address()).Because(err))
		return
	}
	t := &tunnel{caller: c, host: g.Host(), port: g.Port(), far: far, p: p}
	if err := p.enter(t); err != nil {
		far.Close()
		p.deny(w, r, c.who, g.Host(), g.Port(), err)
		return
	}
	raw, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.leave(t)
		far.Close()
		return
	}
	if g, ok := raw.(*headGuard); ok {
		g.raw()
	}
	t.Conn = raw
	defer t.Close()
	if err := p.begin(r.Context(), c.who, e); err != nil {
		return
	}
	raw.SetDeadline(time.Time{})
	if _, err := io.WriteString(raw, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan int64, 1)
	go func() {
		n := p.carry(far, rw.Reader, raw)
		if c, ok := far.(interface{ CloseWrite() error }); ok {
			c.CloseWrite()
		}
		done <- n
	}()
	e.Received = p.carry(t, far, far)
	raw.Close()
	e.Sent = <-done
	e.State = plane.EgressSucceeded
	p.settle(e)
}

// watch ends the tunnels of tokens that are no longer good.
func (p *Proxy) watch() {
	tick := time.NewTicker(tokenEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		open := make([]*tunnel, 0, len(p.tunnels))
		for t := range p.tunnels {
			if t.Conn != nil && !t.caller.token.Empty() {
				open = append(open, t)
			}
		}
		var requests []*plain
		for x := range p.plain {
			if !x.token.Empty() {
				requests = append(requests, x)
			}
		}
		p.mu.Unlock()
		for _, x := range requests {
			if p.revoked(x.caller) {
				x.cancel()
			}
		}
		for _, t := range open {
			if p.revoked(t.caller) {
				t.Close()
			}
		}
	}
}

func (p *Proxy) revoked(c caller) bool {
	ctx, cancel := context.WithTimeout(p.life, tokenEvery)
	defer cancel()
	_, err := p.o.Who(ctx, c.token)
	return plane.KindOf(err) == plane.Unauthenticated
}

// refuse answers a client, in words.
func refuse(w http.ResponseWriter, status int, err error) {
	e := plane.Public(err)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Patchbay", string(e.Kind))
	w.WriteHeader(status)
	b := bufio.NewWriter(w)
	b.WriteString(e.Message + "\n")
	if e.Next != "" {
		b.WriteString("Next: " + e.Next + "\n")
	}
	b.Flush()
}
