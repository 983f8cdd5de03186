package egress

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// inside serves one request of a terminated tunnel.
func (p *Proxy) inside(w http.ResponseWriter, r *http.Request) {
	t, _ := r.Context().Value(tunnelKey{}).(*tunnel)
	if t == nil {
		refuse(w, http.StatusBadRequest, plane.Errorf(plane.InvalidInput, "A request outside a tunnel."))
		return
	}
	t.served.Add(1)
	host, port, err := target(r.Host, 443)
	switch {
	case err != nil:
	case host != t.host || port != t.port:
		err = plane.Errorf(plane.Forbidden, "The request is for %s, and the tunnel goes to %s.", short(r.Host), t.host)
	case r.Method == http.MethodConnect || r.URL.IsAbs() || r.URL.Host != "" || r.URL.Opaque != "":
		err = plane.Errorf(plane.Forbidden, "A request inside a tunnel names a path and nothing else.")
	}
	if err != nil {
		p.deny(w, r, t.caller.who, t.host, t.port, err)
		return
	}
	p.forward(w, r, t.caller, "https", t.host, t.port)
}

// hopByHop are headers of one connection (RFC 9110 §7.6.1).
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// spoofed are headers that say who asks or whence: the gateway's clients do not say it.
var spoofed = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via", "X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url"}

// fit says why a request cannot be taken as it stands, or nothing: what one side might
// read otherwise than another.
func fit(r *http.Request) error {
	bad := func(what string) error {
		return plane.Errorf(plane.Forbidden, "The request cannot be taken: %s.", what)
	}
	switch {
	case !policy.CleanPath(asSent(r), r.URL.Path) && !(r.Method == http.MethodOptions && r.URL.Path == "*"):
		return bad("its path may mean something else to the server")
	case r.Method == "" || len(r.Method) > 20 || r.Method == http.MethodTrace || strings.Trim(r.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
		return bad("its method is not taken")
	case len(r.TransferEncoding) > 0 && (len(r.TransferEncoding) > 1 || r.TransferEncoding[0] != "chunked"):
		return bad("its transfer encoding is not taken")
	case len(r.Header["Content-Length"]) > 1 || len(r.Header["Host"]) > 0:
		return bad("a header that frames it stands there twice")
	}
	for _, name := range r.Header["Connection"] {
		for token := range strings.SplitSeq(name, ",") {
			switch strings.ToLower(strings.TrimSpace(token)) {
			case "", "keep-alive", "close", "upgrade", "te", "http2-settings", "proxy-connection":
			default:
				return bad("Connection names a header that the gateway would have to drop")
			}
		}
	}
	for name, values := range r.Header {
		if !token(name) {
			return bad("a header's name is none")
		}
		if slices.Contains(spoofed, name) {
			return bad(name + " is not taken")
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n\x00") {
				return bad("a header's value holds a line's end")
			}
		}
	}
	return nil
}

// asSent is the path as it stood on the wire, before anybody decoded it.
func asSent(r *http.Request) string {
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	if _, rest, ok := strings.Cut(raw, "://"); ok { // absolute form, by plain http
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
		return "/"
	}
	return raw
}

func token(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// query reports methods that change nothing.
func query(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// forward takes the four steps for one request: decide, lend, call, record.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, c caller, scheme, host string, port int) {
	if err := fit(r); err != nil {
		p.deny(w, r, c.who, host, port, err)
		return
	}
	who := c.who
	if !c.token.Empty() { // it may have been revoked since the tunnel was opened
		var err error
		if who, err = p.o.Who(r.Context(), c.token); err != nil {
			p.deny(w, r, c.who, host, port, err)
			return
		}
	}
	g, denial := p.o.Policy().DecideEgress(who, policy.EgressRequest{Agent: who.Agent, Scheme: scheme, Host: host, Port: port, Method: r.Method, Path: r.URL.Path, Only: c.only})
	if denial != nil {
		p.deny(w, r, who, host, port, denial.Err())
		return
	}
	lease, err := p.o.Lender.LendEgress(r.Context(), g)
	if err != nil {
		p.deny(w, r, who, host, port, err)
		return
	}
	out, upgrade, err := p.prepared(r, g, scheme)
	if err != nil {
		p.deny(w, r, who, host, port, err)
		return
	}
	x := &exchange{p: p, w: w, r: r, who: who, grant: g, lease: lease,
		e: &plane.EgressRecord{Destination: g.Destination().Name, Host: host, Port: port, Method: r.Method, Path: r.URL.Path, State: plane.EgressDispatched}}
	if x.e.Injected, err = lease.Inject(out, p.o.Placeholder); err != nil {
		p.deny(w, r, who, host, port, err)
		return
	}
	if lease.Redactor() != nil && !upgrade { // an answer may hold what an earlier request brought
		out.Header.Set("Accept-Encoding", injectedEncodings(r.Header.Get("Accept-Encoding")))
	}
	x.send(out, upgrade)
}

// injectedEncodings are what an answer may be encoded in that is searched for a secret.
func injectedEncodings(asked string) string {
	if strings.Contains(asked, "gzip") {
		return "gzip, identity"
	}
	return "identity"
}

// prepared is the request that goes out: of our own making, with the client's method, path,
// query, headers and body.
func (p *Proxy) prepared(r *http.Request, g policy.EgressGrant, scheme string) (*http.Request, bool, error) {
	u := *r.URL
	u.Scheme, u.Host, u.User, u.Fragment = scheme, g.Host(), nil, ""
	if def := map[string]int{"https": 443, "http": 80}[scheme]; g.Port() != def {
		u.Host = g.Address()
	}
	out := (&http.Request{Method: r.Method, URL: &u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: r.Header.Clone(), Host: u.Host, ContentLength: r.ContentLength}).WithContext(r.Context())
	upgrade := r.ProtoMajor == 1 && headerHas(r.Header, "Connection", "upgrade") && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	for _, h := range hopByHop {
		out.Header.Del(h)
	}
	if upgrade {
		out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
	if r.Header.Get("Upgrade") != "" && !upgrade {
		return nil, false, plane.Errorf(plane.Forbidden, "Of upgrades the gateway takes WebSocket over HTTP/1.1.")
	}
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		out.Body = connect.Guard(r.Body, p.o.Placeholder)
		if g.Destination().Inject.ReadsBody() && g.Destination().Secret != "" {
			out.Body = r.Body // Inject guards it, where it does not read it whole
		}
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // not net/http's
	}
	return out, upgrade, nil
}

func headerHas(h http.Header, name, word string) bool {
	for _, v := range h[name] {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), word) {
				return true
			}
		}
	}
	return false
}

// exchange is one request under way.
type exchange struct {
	p     *Proxy
	w     http.ResponseWriter
	r     *http.Request
	who   plane.Principal
	grant policy.EgressGrant
	lease *connect.EgressLease
	e     *plane.EgressRecord
	begun bool // its row was written before it was sent

	sent, received atomic.Int64 // a transport may read a body after its answer
}

// counted counts what passes.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// send sends the request once and hands the answer back.
func (x *exchange) send(out *http.Request, upgrade bool) {
	p := x.p
	if !query(x.r.Method) || upgrade {
		if err := p.begin(x.r.Context(), x.who, x.e); err != nil {
			refuse(x.w, http.StatusServiceUnavailable, err)
			return
		}
		x.begun = true
	} else {
		p.stamp(x.who, x.e)
	}
	if out.Body != nil {
		out.Body = counted{out.Body, &x.sent}
	}
	resp, err := p.o.Transport(x.grant.Destination().Name).RoundTrip(out)
	if err != nil {
		x.failed(err)
		return
	}
	defer resp.Body.Close()
	x.e.Status = resp.StatusCode
	if x.e.Injected {
		x.lease.Answered(x.r.Context(), resp.StatusCode, resp.Header["Www-Authenticate"])
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.splice(resp)
		return
	}
	err = x.answer(resp)
	x.e.State = judged(x.r.Method, resp.StatusCode, err)
	if err != nil {
		x.e.Reason = "the answer was cut"
	}
	if errors.Is(err, errUnread) {
		x.e.Reason = "the answer was in an encoding that cannot be searched"
	}
	x.settle()
	if err != nil && !errors.Is(err, errUnread) {
		panic(http.ErrAbortHandler) // the client must not take a cut answer for a whole one
	}
}

// judged says how a request ended: an effect that may have happened is unknown.
func judged(method string, status int, cut error) plane.EgressState {
	switch {
	case status < 400 && (cut == nil || query(method)):
		if cut != nil {
			return plane.EgressFailed
		}
		return plane.EgressSucceeded
	case status < 400, status >= 500 && !query(method):
		return plane.EgressUnknown
	}
	return plane.EgressFailed
}

// failed answers a request that got no answer.
func (x *exchange) failed(err error) {
	var f interface {
		NothingSent() bool
		Refused() bool
	}
	status, reason := http.StatusBadGateway, plane.Errorf(plane.Unavailable, "%s did not answer.", x.e.Host).Because(err)
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		reason = plane.Errorf(plane.Unavailable, "The certificate of %s is not trusted.", x.e.Host).Then("A private authority is trusted where SSL_CERT_FILE of the server names it.").Because(err)
	}
	x.e.State = plane.EgressUnknown
	switch {
	case errors.Is(err, connect.ErrPlaceholder):
		status, reason = http.StatusForbidden, connect.ErrPlaceholder
		x.e.State = plane.EgressDenied
		if !query(x.r.Method) {
			x.e.State = plane.EgressFailed // its row is there already, and its body never ended
		}
	case errors.As(err, &f) && f.Refused():
		status, reason = http.StatusForbidden, plane.Errorf(plane.Forbidden, "%s is at an address that the gateway does not reach.", x.e.Host).Then("An operator opens it in patchbay.yaml: egress.allow, for: ["+x.e.Destination+"]").Because(err)
		x.e.State = plane.EgressDenied
	case errors.As(err, &f) && f.NothingSent(), query(x.r.Method):
		x.e.State = plane.EgressFailed
	}
	x.e.Reason = reason.Message
	if x.e.State == plane.EgressUnknown {
		x.e.Reason = "no answer came; it may have been done"
	}
	x.settle()
	if x.r.Context().Err() == nil {
		refuse(x.w, status, reason)
	}
}

// answer hands an answer back, without the secret.
func (x *exchange) answer(resp *http.Response) error {
	red := x.lease.Redactor()
	h := x.w.Header()
	for name, values := range resp.Header {
		if slices.Contains(hopByHop, name) {
			continue
		}
		for _, v := range values {
			h[name] = append(h[name], x.clean(red, v))
		}
	}
	body := io.Reader(counted{resp.Body, &x.received})
	if red != nil {
		switch resp.Header.Get("Content-Encoding") {
		case "", "identity":
		case "gzip", "x-gzip":
			resp.ContentLength = -1
			h.Del("Content-Length")
			h.Del("Content-Encoding")
			if x.r.Method != http.MethodHead && resp.StatusCode != http.StatusNotModified && resp.StatusCode != http.StatusNoContent {
				z, err := gzip.NewReader(body)
				if err != nil {
					return x.unread()
				}
				body = z
			}
		default: // it was not asked for, and cannot be searched
			return x.unread()
		}
	}
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	x.w.WriteHeader(resp.StatusCode)
	if err := x.copy(red, body, resp.ContentLength); err != nil {
		return err
	}
	for name, values := range resp.Trailer {
		for _, v := range values {
			h.Add(name, x.clean(red, v))
		}
	}
	return nil
}

// errUnread is an answer in an encoding that was not asked for and cannot be searched.
var errUnread = errors.New("egress: an answer that cannot be searched")

// unread answers in place of one that cannot be searched.
func (x *exchange) unread() error {
	clear(x.w.Header())
	refuse(x.w, http.StatusBadGateway, plane.Errorf(plane.Unavailable, "The answer of %s is in an encoding that cannot be searched for the secret, so it is kept back.", x.e.Host))
	return errUnread
}

func (x *exchange) clean(red *connect.Redactor, v string) string {
	if red == nil {
		return v
	}
	b, hit := red.Clean([]byte(v))
	if hit {
		x.redacted()
	}
	return string(b)
}

func (x *exchange) redacted() {
	if x.e.Reason == "" {
		x.e.Reason = "the secret came back and was taken out"
	}
}

// buffers are what bodies pass through.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, connect.StreamBuffer); return &b }}

// aWrite is what net/http gathers before it writes.
const aWrite = 4 << 10

// copy hands a body on as it comes: a client of a stream waits for each event. One that is
// small, and as long as was told, goes with its head.
func (x *exchange) copy(red *connect.Redactor, body io.Reader, length int64) error {
	client := http.NewResponseController(x.w)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	s := red.NewStream(body, *buf, x.redacted)
	h2 := x.r.ProtoMajor == 2
	for passed := int64(0); ; {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h2 { // only this ends a stream whose client does not read; of HTTP/1.1 the tunnel does
			if err := client.SetWriteDeadline(time.Now().Add(writeStall)); err != nil {
				return err
			}
		}
		if _, err := x.w.Write(b); err != nil {
			return err
		}
		passed += int64(len(b))
		if passed != length && len(b) < aWrite || length < 0 || h2 {
			if err := client.Flush(); err != nil {
				return err
			}
		}
		if h2 {
			if err := client.SetWriteDeadline(time.Time{}); err != nil {
				return err
			}
		}
	}
}

// splice joins the two ends of a WebSocket.
func (x *exchange) splice(resp *http.Response) {
	far, ok := resp.Body.(io.ReadWriteCloser)
	conn, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil || !ok {
		x.e.State, x.e.Reason = plane.EgressUnknown, "the connection cannot be taken over"
		x.settle()
		return
	}
	defer conn.Close()
	if g, ok := conn.(*headGuard); ok {
		g.raw()
	}
	defer context.AfterFunc(x.r.Context(), func() { conn.Close(); far.Close() })()
	head := "HTTP/1.1 101 Switching Protocols\r\n"
	for name, values := range resp.Header {
		for _, v := range values {
			head += textproto.CanonicalMIMEHeaderKey(name) + ": " + x.clean(x.lease.Redactor(), v) + "\r\n"
		}
	}
	conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, head+"\r\n"); err == nil {
		done := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(far, rw.Reader) // how it ended shows in what was copied
			far.Close()
			done <- n
		}()
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		n, _ := io.Copy(conn, x.lease.Redactor().NewStream(far, *buf, x.redacted))
		conn.Close()
		x.e.Received, x.e.Sent = n, <-done
	}
	x.e.State = plane.EgressSucceeded
	x.settle()
}

func (x *exchange) settle() {
	x.e.Sent, x.e.Received = x.e.Sent+x.sent.Load(), x.e.Received+x.received.Load()
	if !x.begun {
		x.p.later(x.e)
		return
	}
	x.p.settle(x.e)
}
