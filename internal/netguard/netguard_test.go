package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/plane"
)

func newPolicy(t testing.TB, rules ...Rule) *Policy {
	t.Helper()
	p, err := NewPolicy(rules, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestCheckURL(t *testing.T) {
	p := newPolicy(t, Rule{To: "10.1.2.3:8443", For: []string{"erp"}}, Rule{To: "http://127.0.0.1:3001", For: []string{"demo"}},
		Rule{To: "10.20.0.0/16", For: []string{"lan"}}, Rule{To: "http://192.168.7.0/24", For: []string{"lab"}})
	for _, c := range []struct {
		name, url, want string // want is part of the sentence, empty for allowed
	}{
		{"linear", "https://mcp.linear.app/mcp", ""},
		{"linear", "https://mcp.linear.app:443/mcp", ""},
		{"linear", "https://8.8.8.8/mcp", ""},
		{"linear", "http://mcp.linear.app/mcp", "plain http"},
		{"linear", "https://mcp.linear.app:8443/mcp", "port 8443"},
		{"linear", "https://user:pw@mcp.linear.app/mcp", "credentials"},
		{"linear", "https://mcp.linear.app/mcp?key=1", "query"},
		{"linear", "https://mcp.linear.app/mcp?", "query"},
		{"linear", "https://mcp.linear.app/mcp#x", "fragment"},
		{"linear", "https://mcp.linear.app/mcp#", "fragment"},
		{"linear", "ftp://mcp.linear.app/", "scheme"},
		{"linear", "mcp.linear.app/mcp", "cannot be read"},
		{"linear", "https:///mcp", "cannot be read"},
		{"linear", "https://[::1]/mcp", "not a public address"},
		{"linear", "https://127.0.0.1/mcp", "not a public address"},
		{"linear", "https://127.1/mcp", "not a public address"},
		{"linear", "https://2130706433/mcp", "not a public address"},
		{"linear", "https://0x7f000001/mcp", "not a public address"},
		{"linear", "https://0177.0.0.1/mcp", "not a public address"},
		{"linear", "https://10.0.0.1/mcp", "not a public address"},
		{"linear", "https://169.254.169.254/latest", "not a public address"},
		{"linear", "https://168.63.129.16/", "not a public address"},
		{"linear", "https://100.64.0.1/", "not a public address"},
		{"linear", "https://[::ffff:10.0.0.1]/", "not a public address"},
		{"linear", "https://[64:ff9b::a00:1]/", "not a public address"},
		{"linear", "https://[fe80::1%25eth0]/", "not a public address"},
		{"linear", "https://[2002:a00:1::]/", "not a public address"},
		{"linear", "https://localhost/mcp", "internal host"},
		{"linear", "https://metadata.google.internal/", "internal host"},
		{"linear", "https://db.internal./", "internal host"},
		{"linear", "https://intranet/", "internal host"},
		{"erp", "https://10.1.2.3:8443/mcp", ""},
		{"erp", "http://10.1.2.3:8443/mcp", "not a public address"},
		{"erp", "https://10.1.2.3/mcp", "not a public address"},
		{"other", "https://10.1.2.3:8443/mcp", "not a public address"},
		{"demo", "http://127.0.0.1:3001/mcp", ""},
		{"demo", "http://127.0.0.1:3002/mcp", "not a public address"},
		{"lan", "https://10.20.9.9:9000/mcp", ""},
		{"lan", "http://10.20.9.9:9000/mcp", "not a public address"},
		{"lab", "http://192.168.7.7:8080/mcp", ""},
		{"lab", "http://192.168.8.7:8080/mcp", "not a public address"},
	} {
		err := p.CheckURL(c.name, c.url)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %s: %v", c.name, c.url, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %s: %v, want %q", c.name, c.url, err, c.want)
		case err != nil && (plane.KindOf(err) != plane.InvalidInput || !strings.HasPrefix(err.Error(), c.name+":")):
			t.Errorf("%s %s: kind or name: %v", c.name, c.url, err)
		}
	}
	var e *plane.Error
	if errors.As(p.CheckURL("demo2", "http://127.0.0.1:9/mcp"), &e); e == nil || !strings.HasSuffix(e.Next, `egress: {allow: [{to: "http://127.0.0.1:9", for: ["demo2"]}]}`) {
		t.Errorf("the config line that would allow it: %+v", e)
	}
}

func TestRulesRefused(t *testing.T) {
	for _, r := range []Rule{{To: "x", For: []string{"a"}}, {To: "10.0.0.1:80"}, {To: ":80", For: []string{"a"}}} {
		if _, err := NewPolicy([]Rule{r}, time.Second); err == nil {
			t.Errorf("%+v: accepted", r)
		}
	}
}

func get(tr http.RoundTripper, url string) (string, error) {
	req, _ := http.NewRequestWithContext(context.Background(), "GET", url, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestDialJudgesTheAddress(t *testing.T) {
	var hits atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hits.Add(1); io.WriteString(w, "hello") }))
	defer srv.Close()
	addr := srv.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	p := newPolicy(t, Rule{To: "http://" + addr, For: []string{"demo"}}, Rule{To: "http://127.0.0.0/8", For: []string{"net"}})
	if body, err := get(p.Untrusted("demo"), "http://"+addr); err != nil || body != "hello" {
		t.Fatalf("the exception: %q, %v", body, err)
	}
	if body, err := get(p.Untrusted("net"), "http://"+addr); err != nil || body != "hello" {
		t.Fatalf("the CIDR exception: %q, %v", body, err)
	}
	before := hits.Load()
	for _, c := range [][2]string{
		{"other", "http://" + addr}, {"other", "https://" + addr}, {"demo", "https://" + addr},
		// A name that resolves inward is refused where it is dialled.
		{"other", "http://localhost:" + port}, {"demo", "http://localhost:" + port}, {"other", "https://localhost:" + port},
	} {
		_, err := get(p.Untrusted(c[0]), c[1])
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%v: %v, want a refusal", c, err)
		}
		var f *Failure
		if !errors.As(err, &f) || !f.NothingSent() || !f.Refused() {
			t.Errorf("%v: a refused dial is proof that nothing was sent", c)
		}
	}
	if hits.Load() != before {
		t.Error("a refused request arrived")
	}
}

func TestInfraDialsOneTarget(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	defer srv.Close()
	tr := Infra(srv.Listener.Addr().String())
	if body, err := get(tr, srv.URL); err != nil || body != "ok" {
		t.Fatal(body, err)
	}
	if _, err := get(tr, "http://127.0.0.1:1/"); !errors.Is(err, ErrRefused) {
		t.Errorf("another target: %v", err)
	}
}

// A server that acts, answers nothing and closes a reused connection makes
// net/http send a request with an Idempotency-Key again. The lane does not.
func TestALaneSendsOnce(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		var acted atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/warm" {
				return
			}
			if acted.Add(1) == 1 {
				c, _, _ := w.(http.Hijacker).Hijack()
				c.Close()
			}
		}))
		addr := srv.Listener.Addr().String()
		var tr http.RoundTripper = &http.Transport{}
		if guarded {
			tr = newPolicy(t, Rule{To: "http://" + addr, For: []string{"x"}}).Untrusted("x")
		}
		get(tr, srv.URL+"/warm")
		for _, body := range []io.Reader{strings.NewReader("{}"), nil} {
			acted.Store(0)
			req, _ := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/act", body)
			req.Header.Set("Idempotency-Key", "k")
			resp, err := tr.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			var f *Failure
			if n := acted.Load(); guarded && (n != 1 || !errors.As(err, &f) || f.NothingSent()) || !guarded && n != 2 {
				t.Errorf("guarded %v: acted %d times, %v", guarded, n, err)
			}
			get(tr, srv.URL+"/warm")
		}
		srv.Close()
	}
}

// What proves that nothing ran, and what only looks like it: the peer writes
// parts of these texts.
func TestNothingSentIsProof(t *testing.T) {
	const after = "] after Request.Body was written; define Request.GetBody to avoid this error"
	for text, want := range map[string]bool{
		"stream error: stream ID 7; REFUSED_STREAM; received from peer":                                                                  true,
		"http2: Transport: cannot retry err [stream error: stream ID 7; REFUSED_STREAM; received from peer" + after:                      true,
		"http2: Transport: cannot retry err [http2: Transport received Server's graceful shutdown GOAWAY" + after:                        true,
		"http2: Transport: cannot retry err [stream error: stream ID 1; PROTOCOL_ERROR; received from peer" + after:                      false,
		"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, debug=\"upstream REFUSED_STREAM\"": false,
		"net/http: HTTP/1.x transport connection broken: malformed HTTP response \"REFUSED_STREAM\"":                                     false,
		"net/http: HTTP/1.x transport connection broken: malformed HTTP status code \"http2: Transport: cannot retry err [\"":            false,
		"EOF": false,
	} {
		if got := nothingSent(errors.New(text), true); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if !nothingSent(errors.New("anything"), false) {
		t.Error("a header that was never written")
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{"https://a.example/mcp", "https://127.0.0.1", "https://[::ffff:7f00:1]/", "https://0x7f.1/", "http://a:b@c?d#e", "https://1.2.3.4\\@5.6.7.8/"} {
		f.Add(s)
	}
	p := newPolicy(f)
	f.Fuzz(func(t *testing.T, s string) {
		if p.CheckURL("x", s) != nil {
			return
		}
		// Whatever passes must be a request that net/http would send to a
		// public https host on 443, without anything extra in it.
		req, err := http.NewRequest("POST", s, nil)
		if err != nil {
			t.Fatalf("%q passed and is no request: %v", s, err)
		}
		u := req.URL
		if u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Port() != "" && u.Port() != "443") {
			t.Fatalf("%q passed as %+v", s, u)
		}
		if ip := net.ParseIP(u.Hostname()); ip != nil && (ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast()) {
			t.Fatalf("%q passed", s)
		}
	})
}

// An exception that is taken away is closed at once, for lanes that are held and
// connections that are kept alive too.
func TestAnExceptionTakenAwayIsClosed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	p, err := NewPolicy([]Rule{{To: s.URL, For: []string{"erp"}}}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held := p.Untrusted("erp")
	ask := func() error {
		req, _ := http.NewRequest("POST", s.URL, nil)
		resp, err := held.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := p.Replace([]Rule{{To: "http://127.0.0.1:1/mcp", For: []string{"erp"}}}); err == nil {
		t.Error("a rule with a path was taken")
	}
	if err := ask(); err != nil {
		t.Fatalf("a bad rule changed something: %v", err)
	}
	if err := p.Replace(nil); err != nil {
		t.Fatal(err)
	}
	var f *Failure
	if err := ask(); !errors.As(err, &f) || !f.Refused() || !f.NothingSent() {
		t.Errorf("after the exception was taken away: %v", err)
	}
}
