package connect

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

func grant(t *testing.T) policy.Grant {
	t.Helper()
	s, err := policy.Compile(policy.Rules{Connections: []plane.Connection{{ID: "c", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "up", Endpoint: "https://mcp.example:443/mcp",
		Auth: plane.AuthBearer, TokenEnv: "T", Enabled: true, Version: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	g, denial := s.Decide(plane.Local, policy.Discover, policy.Resource{Connection: "c"})
	if denial != nil {
		t.Fatal(denial.Reason)
	}
	return g
}

func TestLendAndInject(t *testing.T) {
	c := New(Options{Clock: plane.SystemClock{}, Lookup: func(name string) (secret.Text, bool) { return secret.New("the-token-1"), name == "T" }})
	if _, err := c.Lend(t.Context(), policy.Grant{}); plane.KindOf(err) != plane.Forbidden {
		t.Fatalf("the zero grant: %v", err)
	}
	l, err := c.Lend(t.Context(), grant(t))
	if err != nil {
		t.Fatal(err)
	}
	for raw, ok := range map[string]bool{
		"https://mcp.example:443/mcp": true, "https://mcp.example:443/other": true, "http://mcp.example:443/mcp": false, "https://mcp.example/mcp": false,
		"https://mcp.example:8443/mcp": false, "https://evil.example:443/mcp": false, "https://mcp.example.evil.example:443/": false,
	} {
		u, _ := url.Parse(raw)
		req := &http.Request{URL: u, Host: u.Host, Header: http.Header{}}
		if err := l.Inject(req); (err == nil) != ok || (req.Header.Get("Authorization") == "Bearer the-token-1") != ok {
			t.Errorf("%s: %v %v", raw, err, req.Header)
		}
	}
	u, _ := url.Parse("https://mcp.example:443/mcp")
	req := &http.Request{URL: u, Host: "evil.example", Header: http.Header{}}
	if err := l.Inject(req); err == nil {
		t.Error("another Host header")
	}
	empty := New(Options{Clock: plane.SystemClock{}, Lookup: func(string) (secret.Text, bool) { return secret.Text{}, false }})
	if _, err := empty.Lend(t.Context(), grant(t)); plane.KindOf(err) != plane.Unavailable || !strings.Contains(err.Error(), "variable T") {
		t.Errorf("an unset variable: %v", err)
	}
}

// A token that config names is prepared once, and anew when it or how it is used changed.
func TestAPinnedTokenIsPreparedOnce(t *testing.T) {
	token := "the-token-1"
	c := New(Options{Clock: plane.SystemClock{}, Lookup: func(string) (secret.Text, bool) { return secret.New(token), true }})
	lend := func() *Lease {
		l, err := c.Lend(t.Context(), grant(t))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	one := lend()
	if two := lend(); one.set() != two.set() {
		t.Error("the same token was prepared twice")
	}
	token = "the-token-2"
	l := lend()
	u, _ := url.Parse("https://mcp.example:443/mcp")
	req := &http.Request{URL: u, Host: u.Host, Header: http.Header{}}
	if err := l.Inject(req); err != nil || req.Header.Get("Authorization") != "Bearer the-token-2" || !l.Redactor().Found([]byte("the-token-2")) {
		t.Errorf("the token of before: %v %v", err, req.Header)
	}
	if basic := c.pinnedSet(plane.Connection{ID: "c", Auth: "basic:ana"}, secret.New(token)); basic == l.set() {
		t.Error("another way to sign in has the header of before")
	}
}

func TestRedactorFindsEveryForm(t *testing.T) {
	const value = `s3cr/et+"K8=\zzé`
	r := NewRedactor(value)
	j, _ := json.Marshal(value)
	for name, form := range map[string]string{
		"plain": value, "JSON": strings.Trim(string(j), `"`), "URL": url.QueryEscape(value), "path": url.PathEscape(value), "hex": hex.EncodeToString([]byte(value)),
		"HEX": strings.ToUpper(hex.EncodeToString([]byte(value))), "base64": base64.StdEncoding.EncodeToString([]byte(value)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(value)),
		"basic": base64.StdEncoding.EncodeToString([]byte("user:" + value)), "basic, shifted": base64.StdEncoding.EncodeToString([]byte("us:" + value + "x")),
	} {
		for _, around := range []string{"", "a", "ab", "abc", strings.Repeat("x", 5000)} {
			in := []byte(around + form + around)
			out, hit := r.Clean(in)
			if !hit || strings.Contains(string(out), form) {
				t.Errorf("%s is not found after %d bytes", name, len(around))
			}
		}
	}
	clean := []byte(`{"nothing":"here"}`)
	if out, hit := r.Clean(clean); hit || &out[0] != &clean[0] {
		t.Error("clean bytes were touched")
	}
	var none *Redactor
	if none.Found(clean) {
		t.Error("a nil redactor finds something")
	}
	if NewRedactor("abc").Found([]byte("abc")) {
		t.Error("a value too short to mean anything is searched for")
	}
}

// The gram index finds just what a plain search finds.
func TestRedactorIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[a-z0-9]{6,40}`).Draw(t, "value")
		r := NewRedactor(value)
		before := rapid.StringMatching(`[a-z0-9]{0,80}`).Draw(t, "before")
		after := rapid.StringMatching(`[a-z0-9]{0,80}`).Draw(t, "after")
		if !r.Found([]byte(before + value + after)) {
			t.Fatalf("%q is not found in %q", value, before+value+after)
		}
		other := rapid.StringMatching(`[A-Z ]{0,200}`).Draw(t, "other")
		plain := false
		for _, n := range r.needles {
			plain = plain || strings.Contains(other, string(n))
		}
		if r.Found([]byte(other)) != plain {
			t.Fatalf("%q in %q", value, other)
		}
	})
}
