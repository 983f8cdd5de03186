package authn

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

func rig(t *testing.T, change func(o *Options)) (*Authenticator, *storetest.Clock) {
	t.Helper()
	clock := storetest.NewClock()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "a.db"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	o := Options{Store: s, Clock: clock, Log: slog.New(slog.DiscardHandler), Secure: func() bool { return true }}
	if change != nil {
		change(&o)
	}
	return New(o), clock
}

func request(headers ...string) *http.Request {
	r := httptest.NewRequest("GET", "https://patchbay.example/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func TestTokens(t *testing.T) {
	a, clock := rig(t, nil)
	p, err := a.identified(t.Context(), identity{issuer: "https://idp", subject: "ada", email: "ada@example.com"})
	if err != nil {
		t.Fatal(err)
	}
	make := func(n NewToken) (plane.Token, string) {
		k, v, err := a.Create(t.Context(), plane.Local, n)
		if err != nil {
			t.Fatal(err)
		}
		return k, v
	}
	_, service := make(NewToken{Rights: plane.MCPWrite, Life: time.Hour})
	_, person := make(NewToken{Rights: plane.MCPRead, Person: p.ID})
	_, agent := make(NewToken{Agent: "general", Team: "pay", Person: p.ID})
	_, local := make(NewToken{Rights: plane.RunsRead, Person: plane.Local.ID})
	for value, want := range map[string]plane.Principal{
		service: {Kind: plane.KindService, Rights: plane.MCPWrite},
		person:  {Kind: plane.KindPerson, ID: p.ID, Email: "ada@example.com", Rights: plane.MCPRead},
		agent:   {Kind: plane.KindAgent, ID: p.ID, Email: "ada@example.com", Agent: "general", Team: "pay"},
		local:   {Kind: plane.KindLocal, ID: plane.Local.ID, Rights: plane.RunsRead},
	} {
		got, err := a.Principal(request("Authorization", "Bearer "+value))
		if err != nil {
			t.Fatal(err)
		}
		if want.ID == "" {
			want.ID = got.Token
		}
		want.Token = got.Token
		if got != want || got.Token == "" {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if !strings.HasPrefix(service, APIPrefix) || !strings.HasPrefix(agent, AgentPrefix) || len(service) < 40 {
		t.Errorf("%q %q", service, agent)
	}
	for _, bad := range []string{"Bearer ", "Bearer " + service + "x", "Bearer nothing", "Basic " + service, service} {
		if _, err := a.Principal(request("Authorization", bad)); plane.KindOf(err) != plane.Unauthenticated {
			t.Errorf("%q: %v", bad, err)
		}
	}
	clock.Pass(2 * time.Hour)
	if _, err := a.Principal(request("Authorization", "Bearer "+service)); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("an expired token: %v", err)
	}
	ks, err := a.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range ks {
		if strings.Contains(fmt.Sprintf("%+v", k), service) || k.Hash == "" {
			t.Errorf("a token is stored: %+v", k)
		}
		if err := a.Revoke(t.Context(), plane.Local, k.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Principal(request("Authorization", "Bearer "+person)); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
}

// A session ends when it was idle for long; the cookie is bound to the host.
func TestSessions(t *testing.T) {
	a, clock := rig(t, nil)
	p, err := a.identified(t.Context(), identity{issuer: "https://idp", subject: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.arrive(t.Context(), p.ID)
	if err != nil || !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" {
		t.Fatalf("%+v %v", c, err)
	}
	with := func() *http.Request { r := request(); r.AddCookie(c); return r }
	if who, err := a.Principal(with()); err != nil || who.ID != "https://idp|ada" || who.Email != "" || who.Kind != plane.KindPerson {
		t.Fatalf("%+v %v", who, err)
	}
	clock.Pass(13 * time.Hour)
	if _, err := a.Principal(with()); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("after 13 hours without use: %v", err)
	}
	if c, err = a.arrive(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SignOut(t.Context(), with()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Principal(with()); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("signed out: %v", err)
	}
}

// The printed link signs one browser in, and only where nobody else can be known.
func TestThePrintedLink(t *testing.T) {
	a, _ := rig(t, func(o *Options) { o.Local, o.Secure = true, func() bool { return false } })
	old := strings.TrimPrefix(a.Print(), LocalPath)
	code := strings.TrimPrefix(a.Print(), LocalPath)
	if _, err := a.Redeem(t.Context(), old); plane.KindOf(err) != plane.Gone {
		t.Errorf("an older link: %v", err)
	}
	c, err := a.Redeem(t.Context(), code)
	if err != nil || c.Secure || c.Name != "patchbay" {
		t.Fatalf("%+v %v", c, err)
	}
	r := request()
	r.AddCookie(c)
	if who, err := a.Principal(r); err != nil || who != plane.Local {
		t.Errorf("%+v %v", who, err)
	}
	if _, err := a.Redeem(t.Context(), code); plane.KindOf(err) != plane.Gone {
		t.Errorf("twice: %v", err)
	}
	a.o.Local = false // an issuer was configured since
	if _, err := a.Principal(r); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("with an issuer: %v", err)
	}
}

// team signs assertions as Cloudflare Access does.
type team struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newTeam(t *testing.T) *team {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	x := &team{key: key}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{"kty": "RSA", "kid": "k", "alg": "RS256", "use": "sig",
			"n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())}}})
	}))
	t.Cleanup(x.Close)
	return x
}

func (x *team) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(map[string]string{"alg": "RS256", "kid": "k"}) + "." + part(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, x.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func TestAccess(t *testing.T) {
	x := newTeam(t)
	a, clock := rig(t, func(o *Options) { o.Access = &Access{Issuer: x.URL, Audience: "aud-1", Client: http.DefaultClient} })
	claims := func(change func(m map[string]any)) string {
		m := map[string]any{"iss": x.URL, "aud": []string{"aud-1"}, "sub": "7335d417", "email": "Ada@Example.com", "type": "app",
			"iat": clock.Now().Unix(), "exp": clock.Now().Add(time.Hour).Unix()}
		if change != nil {
			change(m)
		}
		return x.sign(t, m)
	}
	for range 3 {
		who, err := a.Principal(request(accessHeader, claims(nil)))
		if err != nil || who.Kind != plane.KindPerson || who.ID != x.URL+"|7335d417" || who.Email != "ada@example.com" || who.Rights != plane.AllRights {
			t.Fatalf("%+v %v", who, err)
		}
	}
	for name, c := range map[string]struct {
		change func(m map[string]any)
		want   plane.Kind
	}{
		"another audience": {func(m map[string]any) { m["aud"] = []string{"aud-2"} }, plane.Unauthenticated},
		"another team":     {func(m map[string]any) { m["iss"] = "https://other.cloudflareaccess.com" }, plane.Unauthenticated},
		"expired":          {func(m map[string]any) { m["exp"] = clock.Now().Add(-time.Hour).Unix() }, plane.Unauthenticated},
		"a service token":  {func(m map[string]any) { m["sub"], m["common_name"] = "", "ci.access"; delete(m, "email") }, plane.Forbidden},
	} {
		if who, err := a.Principal(request(accessHeader, claims(c.change))); plane.KindOf(err) != c.want || err == nil {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
	forged := claims(nil)
	if _, err := a.Principal(request(accessHeader, forged[:len(forged)-8]+"AAAAAAAA")); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("a forged one: %v", err)
	}
	plain, _ := rig(t, nil)
	if _, err := plain.Principal(request(accessHeader, claims(nil))); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("an assertion where none is expected: %v", err)
	}
}

// After a sign-in a browser goes to a page of ours and nowhere else.
func TestLocalPath(t *testing.T) {
	for in, want := range map[string]string{"/mcp/connect/abc?x=1": "/mcp/connect/abc?x=1", "": "/", "https://evil.example/": "/", "//evil.example": "/", `/\evil.example`: "/",
		"javascript:alert(1)": "/", "/a\r\nSet-Cookie: x": "/", "evil": "/"} {
		if got := localPath(in); got != want {
			t.Errorf("%q goes to %q, want %q", in, got, want)
		}
	}
	a, _ := rig(t, nil)
	if _, _, err := a.Begin(context.Background(), "/"); plane.KindOf(err) != plane.Unauthenticated {
		t.Errorf("no issuer: %v", err)
	}
}

// A workspace's word on an address is good while it stands, and changes nothing of what
// another issuer says of somebody.
func TestVouched(t *testing.T) {
	a, _ := rig(t, func(o *Options) { o.Local = false })
	vouch := func(user, email string, guest bool) plane.Principal {
		t.Helper()
		p, err := a.Vouched(t.Context(), Voucher{Issuer: "slack:T1", Subject: user, Email: email, Guest: guest})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ada, err := a.identified(t.Context(), identity{issuer: "https://idp.example", subject: "1", email: "ada@example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if p := vouch("U1", "Ada@example.com", false); p.ID != ada.ID || p.Email != "ada@example.com" {
		t.Errorf("%+v is not %+v", p, ada)
	}
	if p := vouch("U1", "new@example.com", false); p.ID == ada.ID || p.Email != "new@example.com" {
		t.Errorf("another address is the same person: %+v", p)
	}
	if p, err := a.person(t.Context(), ada.ID); err != nil || p.Email != "ada@example.com" {
		t.Errorf("her sign-in has another address now: %+v %v", p, err)
	}
	if _, err := a.identified(t.Context(), identity{issuer: "https://idp.example", subject: "1", email: "ada.l@example.com"}); err != nil {
		t.Fatal(err)
	}
	if p := vouch("U9", "ada@example.com", false); p.ID == ada.ID || p.Email != "" {
		t.Errorf("an address that she left is hers still: %+v", p)
	}
	for _, p := range []plane.Principal{vouch("U2", "", false), vouch("U2", "ada.l@example.com", true)} {
		if p.ID != "slack:T1/U2" || p.Email != "" {
			t.Errorf("%+v", p)
		}
	}
	if p := vouch("U2", "x@example.com", true); p.Rights.Has(plane.AdminRight) || p.Rights.Has(plane.ConfigWrite) {
		t.Errorf("a guest has %v", p.Rights.Names())
	}
}
