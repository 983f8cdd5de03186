package app_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/egress"
)

const outSecret = "s3cr3t-of-the-api/9+x"

// farEnd is a TLS server of an API: it says what it was sent, and misbehaves by path.
type farEnd struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
	auth []string
}

func newFarEnd(t *testing.T) *farEnd {
	f := &farEnd{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *farEnd) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r)
	f.auth = append(f.auth, r.Header.Get("Authorization"))
	f.mu.Unlock()
	auth := r.Header.Get("Authorization")
	switch r.URL.Path {
	case "/plain":
		fmt.Fprintf(w, "you sent %s and %s", auth, base64.StdEncoding.EncodeToString([]byte(auth)))
	case "/json":
		w.Header().Set("X-Echo", auth)
		json.NewEncoder(w).Encode(map[string]string{"auth": auth, "key": outSecret})
	case "/gzip":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, "squeezed "+auth)
		z.Close()
	case "/brotli":
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, "not looked into "+auth)
	case "/away":
		http.Redirect(w, r, "https://elsewhere.example.com/?k="+url.QueryEscape(strings.TrimPrefix(auth, "Bearer ")), http.StatusFound)
	case "/events":
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	case "/body":
		b, _ := io.ReadAll(r.Body) // an upload that is cut is what a test looks for
		fmt.Fprintf(w, "%d bytes of body", len(b))
	case "/cut":
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/slam": // executes, and ends without an answer
		panic(http.ErrAbortHandler)
	case "/500":
		w.WriteHeader(http.StatusInternalServerError)
	default:
		fmt.Fprintf(w, "%s %s with %q", r.Method, r.URL.Path, auth)
	}
}

// requests is how many came, and the last's authorization.
func (f *farEnd) requests() (n int, auth string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.auth) > 0 {
		auth = f.auth[len(f.auth)-1]
	}
	return len(f.seen), auth
}

// outward is a served app with a credential gateway and an agent's client of it.
type outward struct {
	*served
	far         *farEnd
	token       string
	placeholder string
	ca          string // file
	proxy       string // http://agent:TOKEN@host:port
	host        string // of the far end, host:port
}

func newOutward(t *testing.T, inject, more string) *outward {
	t.Helper()
	far := newFarEnd(t)
	dir, port := trusting(t, far.Server)
	host := "127.0.0.1:" + port
	s := start(t, dir, fmt.Sprintf("agents: {general: {destinations: [api]}, research: {destinations: []}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: %q, for: [api, other, api2]}]\n  destinations:\n    api: {hosts: [127.0.0.1], port: %s, inject: %s, inject_secret: \"secret:api\"%s}\n", host, port, inject, more))
	if err := s.do("secrets.put", command.SecretsPutInput{Ref: "api", Value: outSecret}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	var ca command.EgressCA
	if err := s.do("egress.ca", command.EgressCAInput{}, &ca); err != nil || !strings.Contains(ca.PEM, "BEGIN CERTIFICATE") {
		t.Fatalf("%+v %v", ca, err)
	}
	o := &outward{served: s, far: far, token: s.agentToken("general"), placeholder: ca.Placeholder, ca: filepath.Join(dir, "ca.pem"), host: host}
	if err := os.WriteFile(o.ca, []byte(ca.PEM), 0o644); err != nil {
		t.Fatal(err)
	}
	o.proxy = strings.Replace(s.a.EgressURL(), "http://", "http://agent:"+o.token+"@", 1)
	return o
}

// client is Go's, through the gateway.
func (o *outward) client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	proxy, err := url.Parse(o.proxy)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	tr := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: 20 * time.Second}
}

// sends one request with the placeholder as its bearer.
func (o *outward) sends(t *testing.T, c *http.Client, method, path, body string, change func(*http.Request)) (int, string, http.Header) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "https://"+o.host+path, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.placeholder)
	if change != nil {
		change(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, string(b) + " cut: " + err.Error(), resp.Header
	}
	return resp.StatusCode, string(b), resp.Header
}

func (o *outward) log(t *testing.T, want int) []command.EgressRow {
	t.Helper()
	var l command.EgressLog
	within(t, 5*time.Second, "the gateway's log", func() bool {
		l = command.EgressLog{}
		return o.do("egress.log", command.EgressLogInput{Limit: 1000}, &l) == nil && len(l.Requests) >= want
	})
	return l.Requests
}

// TestTheGatewayInjects: the far end gets the secret, the client never does, in whatever
// form the far end throws it back.
func TestTheGatewayInjects(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	for _, h2 := range []bool{false, true} {
		c := o.client(t, h2)
		for path, want := range map[string]string{"/hello": "GET /hello with \"Bearer [credential removed", "/plain": "you sent Bearer [credential removed", "/json": "[credential removed", "/gzip": "squeezed Bearer [credential removed", "/brotli": "cannot be searched"} {
			status, body, h := o.sends(t, c, "GET", path, "", nil)
			_, auth := o.far.requests()
			if auth != "Bearer "+outSecret {
				t.Errorf("%s: the far end got %q", path, auth)
			}
			all := body + fmt.Sprint(h)
			if path == "/brotli" {
				if status != http.StatusBadGateway {
					t.Errorf("%s: %d %s", path, status, body)
				}
			} else if status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", path, status, body)
			}
			for _, form := range []string{outSecret, url.QueryEscape(outSecret), base64.StdEncoding.EncodeToString([]byte("Bearer " + outSecret)), strings.ReplaceAll(outSecret, "/", `\/`)} {
				if strings.Contains(all, form) {
					t.Errorf("%s: the secret came back as %q: %s", path, form, all)
				}
			}
		}
		if status, _, h := o.sends(t, c, "GET", "/away", "", nil); status != http.StatusFound || strings.Contains(h.Get("Location"), url.QueryEscape(outSecret)) || !strings.HasPrefix(h.Get("Location"), "https://elsewhere.example.com/") {
			t.Errorf("a redirect: %d %s", status, h.Get("Location"))
		}
		if status, body, _ := o.sends(t, c, "GET", "/hello", "", func(r *http.Request) { r.Header.Del("Authorization") }); status != 200 || !strings.Contains(body, `with ""`) {
			t.Errorf("without a placeholder: %d %s", status, body)
		}
		if _, auth := o.far.requests(); auth != "" {
			t.Errorf("a secret went in that nobody asked for: %s", auth)
		}
	}
	rows := o.log(t, 14)
	for _, r := range rows {
		if r.State != "succeeded" && !(r.Path == "/brotli" && r.State == "failed") || r.Destination != "api" || r.Agent != "general" {
			t.Errorf("%+v", r)
		}
	}
	if b, err := os.ReadFile(filepath.Join(o.dir, "d", "patchbay.db")); err != nil || bytes.Contains(b, []byte(outSecret)) || strings.Contains(o.served.log.String(), outSecret) {
		t.Errorf("the secret rests in the clear (%v)", err)
	}
}

// TestTheGatewayStreams: an event comes when it is sent, an upload is not held, and what
// is uncertain is on record as that.
func TestTheGatewayStreams(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	c := o.client(t, false)
	req, err := http.NewRequest("GET", "https://"+o.host+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.placeholder)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var at []time.Time
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data:") {
			at = append(at, time.Now())
		}
	}
	resp.Body.Close()
	if len(at) != 3 || at[2].Sub(at[0]) < 60*time.Millisecond {
		t.Errorf("events came at once: %v", at)
	}
	if status, body, _ := o.sends(t, c, "POST", "/body", strings.Repeat("x", 3<<20), nil); status != 200 || body != "3145728 bytes of body" {
		t.Errorf("%d %s", status, body)
	}
	n, _ := o.far.requests()
	for path, want := range map[string]string{"/cut": "unknown", "/500": "unknown", "/slam": "unknown"} {
		status, body, _ := o.sends(t, c, "POST", path, "x", func(r *http.Request) { r.Header.Set("Idempotency-Key", "1") })
		if path == "/cut" && !strings.Contains(body, "cut") {
			t.Errorf("%s: %d %s", path, status, body)
		}
		within(t, 5*time.Second, path, func() bool {
			for _, r := range o.log(t, 1) {
				if r.Path == path && r.State == want {
					return true
				}
			}
			return false
		})
	}
	if now, _ := o.far.requests(); now != n+3 {
		t.Errorf("%d requests came of three", now-n)
	}
	if status, body, _ := o.sends(t, c, "POST", "/body", strings.Repeat("y", 100<<10)+o.placeholder+strings.Repeat("y", 100<<10), nil); status != http.StatusForbidden || !strings.Contains(body, "placeholder stands in the request's body") {
		t.Errorf("a placeholder in the body: %d %s", status, body)
	}
}

// TestEveryWayOfInjection: each kind puts the secret where the destination says.
func TestEveryWayOfInjection(t *testing.T) {
	for _, c := range []struct {
		inject string
		change func(o *outward, r *http.Request)
		got    func(r *http.Request) string
		want   string
	}{
		{"{kind: header, name: X-Key}", func(o *outward, r *http.Request) { r.Header.Set("X-Key", o.placeholder) }, func(r *http.Request) string { return r.Header.Get("X-Key") }, outSecret},
		{"{kind: header, name: X-Key, prefix: \"token \"}", func(o *outward, r *http.Request) { r.Header.Set("X-Key", "token "+o.placeholder) }, func(r *http.Request) string { return r.Header.Get("X-Key") }, "token " + outSecret},
		{"{kind: basic, user: x-access-token}", func(o *outward, r *http.Request) { r.SetBasicAuth("me", o.placeholder) }, func(r *http.Request) string { u, p, _ := r.BasicAuth(); return u + ":" + p }, "x-access-token:" + outSecret},
		{"{kind: query, name: key}", func(o *outward, r *http.Request) { r.URL.RawQuery = "a=1&key=" + o.placeholder }, func(r *http.Request) string { return r.URL.Query().Get("key") }, outSecret},
	} {
		o := newOutward(t, c.inject, "")
		status, body, _ := o.sends(t, o.client(t, false), "GET", "/hello", "", func(r *http.Request) { r.Header.Del("Authorization"); c.change(o, r) })
		if status != 200 {
			t.Errorf("%s: %d %s", c.inject, status, body)
			continue
		}
		o.far.mu.Lock()
		got := c.got(o.far.seen[len(o.far.seen)-1])
		o.far.mu.Unlock()
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.inject, got, c.want)
		}
		if status, body, _ := o.sends(t, o.client(t, false), "GET", "/hello", "", nil); status != http.StatusForbidden || !strings.Contains(body, "header Authorization") {
			t.Errorf("%s: a placeholder astray: %d %s", c.inject, status, body)
		}
	}
	o := newOutward(t, "{kind: body, name: api_key}", "")
	got := make(chan string, 1)
	o.far.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // what came is what is looked at
		got <- string(b)
	})
	body := `{"api_key": "` + o.placeholder + `", "n": 12345678901234567890}`
	status, text, _ := o.sends(t, o.client(t, false), "POST", "/x", body, func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("Content-Type", "application/json") })
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if b := <-got; b != `{"api_key": "`+outSecret+`", "n": 12345678901234567890}` {
		t.Errorf("%s", b)
	}
}

// TestRealClients: curl, git, Python and Node go through the gateway with what egress run
// sets for them.
func TestRealClients(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	ca, err := os.ReadFile(o.ca)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range egress.ClientFiles(string(ca)) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append(append(os.Environ(), egress.ClientEnv(dir, o.proxy, o.placeholder, "")...), "NO_PROXY=", "no_proxy=", "PLACEHOLDER="+o.placeholder)
	at := "https://" + o.host
	for what, args := range map[string][]string{
		"curl":           {"curl", "-sS", "-H", "Authorization: Bearer " + o.placeholder, at + "/hello"},
		"curl, HTTP/1.1": {"curl", "-sS", "--http1.1", "-H", "Authorization: Bearer " + o.placeholder, at + "/hello"},
		"Node's fetch":   {"node", "-e", "fetch('" + at + "/hello',{headers:{Authorization:'Bearer '+process.env.PLACEHOLDER}}).then(r=>r.text()).then(console.log)"},
		"Node's https":   {"node", "-e", "require('https').get('" + at + "/hello',{headers:{Authorization:'Bearer '+process.env.PLACEHOLDER}},r=>r.pipe(process.stdout))"},
		"Python":         {"python3", "-c", "import os,urllib.request as u; r=u.Request('" + at + "/hello',headers={'Authorization':'Bearer '+os.environ['PLACEHOLDER']}); print(u.urlopen(r).read().decode())"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "GET /hello with \"Bearer [credential removed") {
			t.Errorf("%s: %v %s", what, err, out)
		}
		if _, auth := o.far.requests(); auth != "Bearer "+outSecret {
			t.Errorf("%s: the far end got %q", what, auth)
		}
	}
	// A host of no destination is refused, and said.
	cmd := exec.Command("curl", "-sS", "-o", "/dev/null", "https://example.com/")
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "403") {
		t.Errorf("another host: %v %s", err, out)
	}
}

// trusting has the server trust a far end's own authority, as it trusts public ones, and
// returns a directory for it.
func trusting(t *testing.T, far *httptest.Server) (dir, port string) {
	t.Helper()
	u, err := url.Parse(far.URL)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	roots := filepath.Join(dir, "roots.pem")
	writePEM(t, roots, far.Certificate())
	t.Setenv("SSL_CERT_FILE", roots)
	return dir, u.Port()
}

func writePEM(t *testing.T, file string, cert *x509.Certificate) {
	t.Helper()
	b := "-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(cert.Raw) + "\n-----END CERTIFICATE-----\n"
	if err := os.WriteFile(file, []byte(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestAWebSocketAndATunnel: an upgrade is spliced with the secret in its head, and a host
// that is marked so is passed through unseen.
func TestAWebSocketAndATunnel(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	o.far.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+outSecret || r.Header.Get("Upgrade") != "websocket" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, err := rw.ReadString('\n')
		if err == nil {
			io.WriteString(conn, "echo "+line+"and "+outSecret+"!\n")
		}
	})
	in := o.opens(t, "Bearer "+o.token)
	fmt.Fprintf(in, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\nAuthorization: Bearer %s\r\n\r\nhello\n", o.host, o.placeholder)
	r := bufio.NewReader(in)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v %v", resp, err)
	}
	said, err := io.ReadAll(r)
	if err != nil || string(said) != "echo hello\nand [credential removed b!\n" {
		t.Errorf("%q %v", said, err)
	}
	within(t, 5*time.Second, "the socket's record", func() bool {
		l := o.log(t, 1)
		return l[0].Path == "/socket" && l[0].State == "succeeded" && l[0].Injected
	})
}

// TestATunnelIsPassedThrough: a host that is marked so is not looked into and gets no
// secret; what went there is on record by its bytes.
func TestATunnelIsPassedThrough(t *testing.T) {
	far := newFarEnd(t)
	u, err := url.Parse(far.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "", fmt.Sprintf("agents: {general: {destinations: [api]}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: %q, for: [api]}]\n  destinations: {api: {hosts: [127.0.0.1], port: %s, tunnel: true}}\n", u.Host, u.Port()))
	proxy, err := url.Parse(strings.Replace(s.a.EgressURL(), "http://", "http://agent:"+s.agentToken("general")+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(far.Certificate()) // the far end's own: nobody stands between
	c := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: pool}}}
	req, err := http.NewRequest("GET", far.URL+"/hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer PATCHBAY_PLACEHOLDER_00000000")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), "Bearer PATCHBAY_PLACEHOLDER_00000000") {
		t.Errorf("%s %v", b, err)
	}
	resp.Body.Close()
	c.CloseIdleConnections()
	var l command.EgressLog
	within(t, 5*time.Second, "the tunnel's record", func() bool {
		l = command.EgressLog{}
		return s.do("egress.log", command.EgressLogInput{Limit: 5}, &l) == nil && len(l.Requests) == 1 && l.Requests[0].State == "succeeded" && l.Requests[0].Sent > 0 && l.Requests[0].Received > 0 && l.Requests[0].Method == "CONNECT" && !l.Requests[0].Injected
	})
}

// TestTheGatewaySigns: a destination whose secret signs gets a signature in place of the
// placeholder, and the secret stays here.
func TestTheGatewaySigns(t *testing.T) {
	o := newOutward(t, "{kind: hmac, name: X-Signature, prefix: \"v1=\", over: [method, path, body]}", "")
	status, body, _ := o.sends(t, o.client(t, true), "POST", "/body", `{"n":1}`, func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("X-Signature", "v1="+o.placeholder)
	})
	mac := hmac.New(sha256.New, []byte(outSecret))
	mac.Write([]byte("POST\n/body\n{\"n\":1}"))
	o.far.mu.Lock()
	got := o.far.seen[len(o.far.seen)-1].Header.Get("X-Signature")
	o.far.mu.Unlock()
	if want := "v1=" + hex.EncodeToString(mac.Sum(nil)); status != 200 || body != "7 bytes of body" || got != want {
		t.Errorf("%d %q; signed %q, want %q", status, body, got, want)
	}
	if status, body, _ := o.sends(t, o.client(t, false), "POST", "/body", "x"+o.placeholder, func(r *http.Request) { r.Header.Del("Authorization") }); status != http.StatusForbidden || !strings.Contains(body, "placeholder") {
		t.Errorf("a placeholder in the body: %d %s", status, body)
	}
}
