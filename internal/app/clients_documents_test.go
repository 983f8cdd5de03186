package app_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/store/storetest"
)

// farClient is where a client's metadata document stands.
type farClient struct {
	*httptest.Server
	host, at        string
	hidden          *httptest.Server // what a document must not lead to
	fetched, inward atomic.Int32
	serve           atomic.Value // http.HandlerFunc
}

func newFarClient(t *testing.T) *farClient {
	t.Helper()
	c := &farClient{}
	c.hidden = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { c.inward.Add(1) }))
	t.Cleanup(c.hidden.Close)
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/other.json" { // whoever goes on finds what would do
			given(map[string]any{"client_id": c.at, "redirect_uris": []string{guestBack}})(w, r)
			return
		}
		c.fetched.Add(1)
		c.serve.Load().(http.HandlerFunc)(w, r)
	}))
	t.Cleanup(c.Close)
	trusting(t, c.Server)
	c.host, c.at = strings.TrimPrefix(c.URL, "https://"), c.URL+"/client.json"
	return c
}

// doc says what it is from now on.
func (c *farClient) doc(change func(map[string]any)) {
	m := map[string]any{"client_id": c.at, "client_name": "Far Client", "client_uri": c.URL + "/home", "redirect_uris": []string{guestBack, "https://guest.example/cb"}, "grant_types": []string{"authorization_code", "refresh_token"}}
	if change != nil {
		change(m)
	}
	c.serve.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		given(m)(w, r)
	}))
}

// TestAClientIsItsDocument: a client that is named by the address of its metadata document is
// what that says, for as long as it may be kept; where it changes, the person is asked again.
func TestAClientIsItsDocument(t *testing.T) {
	c := newFarClient(t)
	at, host, doc, fetched := c.at, c.host, c.doc, &c.fetched
	doc(nil)
	clock := storetest.NewClock()
	s := startWith(t, "", fmt.Sprintf("egress: {allow: [{to: %q, for: [\"clients:documents\"]}]}\n", host), func(o *app.Options) { o.Clock, o.Local = clock, clock })
	g := newGuest(t, s, local(t, s), "general")
	g.id = at
	_, code, body := g.page(g.asks(nil))
	for _, want := range []string{"Let Far Client use general?", "described by " + host, c.URL + "/home"} {
		if code != 200 || !strings.Contains(body, want) {
			t.Fatalf("%d, no %q in %s", code, want, body)
		}
	}
	web := map[string]string{"redirect_uri": "https://guest.example/cb"}
	g.redirect = "https://guest.example/cb"
	first := g.signIn()
	if status, out := g.renew(first.Refresh, nil); status != 200 {
		t.Fatalf("%d %+v", status, out)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("it was fetched %d times, though it may be kept", n)
	}
	silent := func() bool {
		req, err := http.NewRequest("GET", g.asks(web), nil)
		if err != nil {
			t.Fatal(err)
		}
		status, _, h := g.v.do(req)
		return status == http.StatusSeeOther && strings.HasPrefix(h.Get("Location"), "https://guest.example/cb?code=")
	}
	if !silent() { // its answer goes to the host that was let in, so that nobody is asked twice
		t.Error("who was let in is asked about again")
	}
	for name, change := range map[string]func(map[string]any){
		"another name": func(m map[string]any) { m["client_name"] = "Your Bank" },
		"one more redirect": func(m map[string]any) {
			m["redirect_uris"] = []string{guestBack, "https://guest.example/cb", "https://evil.example/cb"}
		},
	} {
		doc(change)
		clock.Pass(61 * time.Second)
		if silent() {
			t.Errorf("%s: nobody is asked", name)
		}
	}
	doc(nil)
	clock.Pass(61 * time.Second)
	if !silent() {
		t.Error("the old document is asked about anew")
	}
	for name, bad := range badDocuments(c.URL, c.hidden.URL) {
		c.serve.Store(bad)
		clock.Pass(61 * time.Second)
		if _, code, body := g.page(g.asks(nil)); code != http.StatusBadRequest || strings.Contains(body, `value="allow"`) {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	if c.inward.Load() != 0 {
		t.Error("a redirect was followed inward")
	}
	before := fetched.Load()
	for range 20 {
		g.page(g.asks(nil))
	}
	if n := fetched.Load() - before; n > 1 {
		t.Errorf("a bad document is fetched %d times in a row", n)
	}
	doc(func(m map[string]any) {
		m["logo_uri"], m["client_uri"] = "https://claude.ai/logo.png", "https://claude.ai/"
	})
	clock.Pass(61 * time.Second)
	if _, code, body := g.page(g.asks(nil)); code != 200 || strings.Contains(body, "claude.ai") {
		t.Errorf("another host's page or picture is shown: %d", code)
	}
	strangers := fetched.Load()
	clock.Pass(3600 * time.Second)
	g.v = newVisitor(t)
	if _, code, _ := g.page(g.asks(nil)); code != http.StatusUnauthorized || fetched.Load() != strangers {
		t.Errorf("a document is fetched for a stranger: %d", code)
	}
}

// badDocuments are what a client's document must not be.
func badDocuments(far, hidden string) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"a redirect inward": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, hidden, http.StatusFound)
		},
		"a redirect onward":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, far+"/other.json", http.StatusFound) },
		"a page":             func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"another client's":   given(map[string]any{"client_id": "https://claude.ai/client.json", "redirect_uris": []string{guestBack}}),
		"no id":              given(map[string]any{"redirect_uris": []string{guestBack}}),
		"no redirects":       given(map[string]any{"client_id": far + "/client.json"}),
		"a scheme":           given(map[string]any{"client_id": far + "/client.json", "redirect_uris": []string{"com.evil.app:/cb"}}),
		"a secret":           given(map[string]any{"client_id": far + "/client.json", "redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "client_secret_post"}),
		"too long":           given(map[string]any{"client_id": far + "/client.json", "client_name": strings.Repeat("x", 20_000), "redirect_uris": []string{guestBack}}),
		"a missing document": http.NotFound,
	}
}

func given(m map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(m)
	}
}

// TestManyRegister: what registers and is let in by nobody is bounded, in number and by the
// minute, and forgotten; a client that somebody let in stays.
func TestManyRegister(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := startWith(t, "", "limits: {clients_registered: 50, clients_per_minute: 30}\n", func(o *app.Options) { o.Clock, o.Local = clock, clock })
	g := newGuest(t, s, local(t, s), "general")
	g.signIn()
	one := map[string]any{"redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "none"}
	taken, limited := 0, 0
	for range 10_000 {
		switch code, out := g.register(one); code {
		case http.StatusCreated:
			taken++
		case http.StatusTooManyRequests:
			limited++
			if out["error"] != "temporarily_unavailable" {
				t.Fatal(out)
			}
		default:
			t.Fatal(code, out)
		}
	}
	if taken > 10 || limited < 9_900 {
		t.Errorf("%d registered, %d refused", taken, limited)
	}
	for range 40 { // slowly
		clock.Pass(61 * time.Second)
		for range 5 {
			g.register(one)
		}
	}
	count := func(cond string) (n int) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "d", "patchbay.db")+"?_pragma=busy_timeout(5000)")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.QueryRow("SELECT COUNT(*) FROM mcp_clients WHERE " + cond).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count("used_at = 0"); n > 50 {
		t.Errorf("%d wait", n)
	}
	clock.Pass(25 * 3600 * time.Second)
	if err := s.a.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count("1 = 1"); n != 1 {
		t.Errorf("%d are known after a day", n)
	}
	if status, out := g.renew(g.issued.Refresh, nil); status != 200 {
		t.Errorf("%d %+v", status, out)
	}
}

// TestWhoRegistersIsBounded: one network has its share and no more, whatever it says of where
// it comes from; a proxy is believed that config trusts.
func TestWhoRegistersIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		trusted string
		header  func(i int) (name, value string)
		taken   int
	}{
		{"", func(i int) (string, string) { return "X-Forwarded-For", fmt.Sprint("198.51.100.", i) }, 10},
		{"", func(i int) (string, string) { return "Origin", fmt.Sprintf("https://p%d.example", i) }, 10},
		{"trusted_proxies: [127.0.0.0/8]\n", func(i int) (string, string) { return "X-Forwarded-For", fmt.Sprint("203.0.113.9, 198.51.100.", i) }, 20},
		{"trusted_proxies: [127.0.0.1]\n", func(i int) (string, string) {
			return "X-Forwarded-For", fmt.Sprint("203.0.113.", i, ", 198.51.100.7, 127.0.0.1")
		}, 10},
	} {
		s := startWith(t, "", c.trusted+"limits: {clients_per_minute: 30}\n", func(o *app.Options) { clock := storetest.NewClock(); o.Clock, o.Local = clock, clock })
		taken := 0
		for i := range 20 {
			req, err := http.NewRequest("POST", "http://"+s.a.Addr()+"/oauth/register", strings.NewReader(`{"redirect_uris":["`+guestBack+`"],"token_endpoint_auth_method":"none"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			name, value := c.header(i)
			req.Header.Set(name, value)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusCreated {
				taken++
			}
		}
		name, value := c.header(1)
		if taken != c.taken {
			t.Errorf("%s%s: %s: %d registered, not %d", c.trusted, name, value, taken, c.taken)
		}
	}
}
