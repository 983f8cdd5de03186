package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"patchbay/internal/command"
	"patchbay/internal/fake"
)

// attack is one try at what is not the attacker's. It reports what came of it, "" for
// refused; a refusal must not lead the browser or a token anywhere.
type attack struct {
	name string
	try  func(t *testing.T, x *siege) string
}

// siege is an install with two people and a client that one of them let in.
type siege struct {
	*guest
	idp  *fake.OIDC
	ada  *visitor
	bob  *visitor
	evil *guest // another client, of the attacker's
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	idp := fake.NewOIDC(t, "ada@example.com")
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	s := start(t, "", allow("mine", m.URL)+fmt.Sprintf(`identity: {oidc: {issuer: %q, client_id: patchbay}, admins: [ada@example.com]}
limits: {clients_per_minute: 100000}
clients: {known: {desk: {name: Desk, redirect_uris: ["desk.example:/cb", "https://desk.example/cb"], client_secret_env: FAKE_KEY}}}
`, idp.URL))
	x := &siege{idp: idp, ada: through(t, s), evil: nil}
	idp.As("bob@example.com")
	x.bob = through(t, s)
	x.guest = newGuest(t, s, x.ada, "general")
	x.evil = newGuest(t, s, x.bob, "general")
	return x
}

// through is a browser that the issuer signed in.
func through(t *testing.T, s *served) *visitor {
	t.Helper()
	v := newVisitor(t)
	at := "http://" + s.a.Addr() + "/signin"
	for range 4 {
		req, err := http.NewRequest("GET", at, nil)
		if err != nil {
			t.Fatal(err)
		}
		code, body, h := v.do(req)
		if code == http.StatusOK {
			return v
		}
		next, err := req.URL.Parse(h.Get("Location"))
		if err != nil || h.Get("Location") == "" {
			t.Fatalf("%d %s", code, body)
		}
		at = next.String()
	}
	t.Fatal("the sign-in does not end")
	return nil
}

// led is where the browser ends up: an address of the client's, or "".
func (x *siege) led(v *visitor, at string) string {
	req, err := http.NewRequest("GET", at, nil)
	if err != nil {
		return "unreadable"
	}
	code, body, h := v.do(req)
	if to := h.Get("Location"); to != "" {
		return to
	}
	if m := backRE.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	if code == http.StatusOK {
		return "asked"
	}
	return ""
}

// asked tries an authorize request with a changed parameter: the person must not be asked,
// and no code may leave.
func asked(change map[string]string) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		to := x.led(x.ada, x.asks(change))
		if strings.HasPrefix(to, guestBack+"?error=") && !strings.Contains(to, "code=") {
			return "" // the client on this computer hears of it
		}
		return to
	}
}

// registers tries a redirect URI in a registration.
func registers(uri string) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		if code, out := x.register(map[string]any{"redirect_uris": []string{uri}, "token_endpoint_auth_method": "none"}); code != 400 || out["error"] != "invalid_redirect_uri" {
			return fmt.Sprint(code, out)
		}
		return ""
	}
}

// spends tries a code with a changed parameter, after which it is worth nothing.
func spends(change map[string]string) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		code := x.code()
		if status, out := x.spend(code, change); status == 200 || out.Access != "" {
			return fmt.Sprint(status, out)
		}
		return ""
	}
}

// got says what tokens came of something.
func got(status int, out tokens) string {
	if status < 400 || out.Access != "" || out.Error == "" {
		return fmt.Sprintf("%d %+v", status, out)
	}
	return ""
}

var redirectAttacks = []attack{
	{"a redirect to a port of https", asked(map[string]string{"redirect_uri": "https://guest.example:8443/cb"})},
	{"a redirect in another case", asked(map[string]string{"redirect_uri": "https://guest.example/CB"})},
	{"a redirect to another host's case", asked(map[string]string{"redirect_uri": "https://Guest.example/cb"})},
	{"a slash behind the redirect", asked(map[string]string{"redirect_uri": "https://guest.example/cb/"})},
	{"a path below the redirect", asked(map[string]string{"redirect_uri": "https://guest.example/cb/../evil"})},
	{"a redirect encoded twice", asked(map[string]string{"redirect_uri": "https%3A%2F%2Fguest.example%2Fcb"})},
	{"an encoded slash", asked(map[string]string{"redirect_uri": "https://guest.example/%63b"})},
	{"an open redirector behind it", asked(map[string]string{"redirect_uri": "https://guest.example/cb?next=https://evil.example"})},
	{"a fragment behind it", asked(map[string]string{"redirect_uri": "https://guest.example/cb#x"})},
	{"a host before it", asked(map[string]string{"redirect_uri": "https://guest.example@evil.example/cb"})},
	{"a backslash", asked(map[string]string{"redirect_uri": `https://evil.example\@guest.example/cb`})},
	{"a longer host", asked(map[string]string{"redirect_uri": "https://guest.example.evil.example/cb"})},
	{"plain http to it", asked(map[string]string{"redirect_uri": "http://guest.example/cb"})},
	{"another path on this computer", asked(map[string]string{"redirect_uri": "http://127.0.0.1:3333/other"})},
	{"another name of this computer", asked(map[string]string{"redirect_uri": "http://127.0.0.2:3333/callback"})},
	{"a host that begins like this computer", asked(map[string]string{"redirect_uri": "http://127.0.0.1.evil.example:3333/callback"})},
	{"a user before this computer", asked(map[string]string{"redirect_uri": "http://127.0.0.1:3333@evil.example/callback"})},
	{"no redirect", asked(map[string]string{"redirect_uri": ""})},
	{"a redirect of another client", func(t *testing.T, x *siege) string {
		return x.led(x.ada, x.asks(map[string]string{"redirect_uri": "https://desk.example/cb"}))
	}},
	{"registered: javascript", registers("javascript:alert(1)")},
	{"registered: data", registers("data:text/html,x")},
	{"registered: http to a host", registers("http://evil.example/cb")},
	{"registered: a user", registers("https://claude.ai@evil.example/cb")},
	{"registered: a fragment", registers("https://evil.example/cb#")},
	{"registered: a backslash", registers(`https://evil.example\.claude.ai/cb`)},
	{"registered: look-alike letters", registers("https://cl\u0430ude.ai/cb")},
	{"registered: the same in punycode", registers("https://xn--clude-6ve.ai/cb")},
	{"registered: an odd number", registers("https://0x7f000001/cb")},
	{"registered: this computer by a look-alike", registers("http://localhost.evil.example/cb")},
	{"registered: this computer by a dot", registers("http://localhost.:1/cb")},
	{"registered: a scheme of its own", registers("com.evil.app:/cb")},
	{"registered: a parameter of the answer", registers("https://evil.example/cb?code=1")},
	{"registered: a line break", registers("https://evil.example/cb\r\nSet-Cookie: x=y")},
	{"registered: none", func(t *testing.T, x *siege) string {
		if code, out := x.register(map[string]any{"redirect_uris": []string{}}); code != 400 {
			return fmt.Sprint(code, out)
		}
		return ""
	}},
}

var requestAttacks = []attack{
	{"no PKCE", asked(map[string]string{"code_challenge": "", "code_challenge_method": ""})},
	{"PKCE in the clear", asked(map[string]string{"code_challenge_method": "plain"})},
	{"PKCE without its method", asked(map[string]string{"code_challenge_method": ""})},
	{"a short challenge", asked(map[string]string{"code_challenge": "abc"})},
	{"an implicit grant", asked(map[string]string{"response_type": "token"})},
	{"a hybrid answer", asked(map[string]string{"response_type": "code id_token"})},
	{"an answer in the fragment", asked(map[string]string{"response_mode": "fragment"})},
	{"an answer by a form", asked(map[string]string{"response_mode": "form_post"})},
	{"a request object", asked(map[string]string{"request": "e30."})},
	{"a request by reference", asked(map[string]string{"request_uri": "http://169.254.169.254/"})},
	{"no resource", asked(map[string]string{"resource": ""})},
	{"a foreign resource", asked(map[string]string{"resource": "https://evil.example/mcp"})},
	{"a resource that begins like ours", func(t *testing.T, x *siege) string {
		return asked(map[string]string{"resource": x.base + ".evil.example/mcp"})(t, x)
	}},
	{"a resource below an agent's", func(t *testing.T, x *siege) string {
		return asked(map[string]string{"resource": x.resource + "/x"})(t, x)
	}},
	{"a resource with a query", func(t *testing.T, x *siege) string {
		return asked(map[string]string{"resource": x.resource + "?x=1"})(t, x)
	}},
	{"an agent that is not there", func(t *testing.T, x *siege) string {
		return asked(map[string]string{"resource": x.base + "/mcp/agents/nobody"})(t, x)
	}},
	{"two resources", func(t *testing.T, x *siege) string {
		return x.led(x.ada, x.asks(nil)+"&resource="+url.QueryEscape(x.base+"/mcp"))
	}},
	{"two redirects", func(t *testing.T, x *siege) string {
		return x.led(x.ada, x.asks(nil)+"&redirect_uri="+url.QueryEscape("https://guest.example/cb"))
	}},
	{"a client that nobody knows", asked(map[string]string{"client_id": "clt_01hzzzzzzzzzzzzzzzzzzzzzzz"})},
	{"no client", asked(map[string]string{"client_id": ""})},
	{"a document at an internal address", asked(map[string]string{"client_id": "https://169.254.169.254/client.json"})},
	{"a document at an internal name", asked(map[string]string{"client_id": "https://localhost/client.json"})},
	{"a document by plain http", asked(map[string]string{"client_id": "http://client.example/client.json"})},
	{"a document at a root", asked(map[string]string{"client_id": "https://client.example/"})},
	{"a document by a path with dots", asked(map[string]string{"client_id": "https://client.example/a/../client.json"})},
	{"a silent question", asked(map[string]string{"prompt": "none"})},
	{"an error sent on to a host that anybody registered", func(t *testing.T, x *siege) string {
		return x.led(x.ada, x.asks(map[string]string{"redirect_uri": "https://guest.example/cb", "response_type": "token"}))
	}},
}

var codeAttacks = []attack{
	{"no verifier", spends(map[string]string{"code_verifier": ""})},
	{"another verifier", spends(map[string]string{"code_verifier": strings.Repeat("w", 43)})},
	{"the challenge for the verifier", func(t *testing.T, x *siege) string {
		u, err := url.Parse(x.asks(nil))
		if err != nil {
			t.Fatal(err)
		}
		return spends(map[string]string{"code_verifier": u.Query().Get("code_challenge")})(t, x)
	}},
	{"another redirect at the exchange", spends(map[string]string{"redirect_uri": "https://guest.example/cb"})},
	{"another port at the exchange", spends(map[string]string{"redirect_uri": "http://127.0.0.1:4444/callback"})},
	{"another resource at the exchange", func(t *testing.T, x *siege) string {
		return spends(map[string]string{"resource": x.base + "/mcp/agents/research"})(t, x)
	}},
	{"another client at the exchange", func(t *testing.T, x *siege) string {
		return spends(map[string]string{"client_id": x.evil.id})(t, x)
	}},
	{"a guessed code", func(t *testing.T, x *siege) string { return got(x.spend(strings.Repeat("A", 43), nil)) }},
	{"a code shown twice ends what it gave", func(t *testing.T, x *siege) string {
		code := x.code()
		_, out := x.spend(code, nil)
		if r := got(x.spend(code, nil)); r != "" || out.Access == "" {
			return r + "!"
		}
		if x.opens(x.resource, out.Access) != 401 {
			return "the token opens still"
		}
		return got(x.renew(out.Refresh, nil))
	}},
	{"a code injected from another session", func(t *testing.T, x *siege) string {
		// Bob's code, in the session of Ada's client: its verifier is another.
		x.evil.verifier = strings.Repeat("b", 43)
		code := x.evil.lets(x.evil.asks(map[string]string{"client_id": x.id}), "allow", nil).Get("code")
		return got(x.spend(code, nil))
	}},
	{"a code for a refresh token", func(t *testing.T, x *siege) string { return got(x.renew(x.code(), nil)) }},
	{"a password", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "password", "username": "ada", "password": "x"}))
	}},
	{"client credentials", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "client_credentials", "client_id": "desk", "client_secret": "k"}))
	}},
	{"a secret of a client that has none", spends(map[string]string{"client_secret": "x"})},
	{"a client with a secret, without it", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "refresh_token", "refresh_token": "x", "client_id": "desk"}))
	}},
	{"a client with a secret, with another", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "refresh_token", "refresh_token": "x", "client_id": "desk", "client_secret": "kk"}))
	}},
	{"a parameter twice at the exchange", func(t *testing.T, x *siege) string {
		f := url.Values{"grant_type": {"authorization_code"}, "client_id": {x.id, x.evil.id}, "code": {x.code()}, "redirect_uri": {x.redirect}, "code_verifier": {x.verifier}}
		resp, err := http.PostForm(x.base+"/oauth/token", f)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || strings.Contains(string(b), "access_token") {
			return string(b)
		}
		return ""
	}},
	{"a code by the address line", func(t *testing.T, x *siege) string {
		resp, err := http.Get(x.base + "/oauth/token?" + url.Values{"grant_type": {"authorization_code"}, "client_id": {x.id}, "code": {x.code()}, "redirect_uri": {x.redirect}, "code_verifier": {x.verifier}}.Encode())
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			return resp.Status
		}
		return ""
	}},
	{"a code as JSON", func(t *testing.T, x *siege) string {
		b, err := json.Marshal(map[string]string{"grant_type": "authorization_code", "client_id": x.id, "code": x.code(), "redirect_uri": x.redirect, "code_verifier": x.verifier})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(x.base+"/oauth/token", "application/json", strings.NewReader(string(b)))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != 400 {
			return resp.Status
		}
		return ""
	}},
}

var tokenAttacks = []attack{
	{"a refresh token that was replaced", func(t *testing.T, x *siege) string {
		a := x.signIn()
		_, b := x.renew(a.Refresh, nil)
		_, c := x.renew(b.Refresh, nil)
		if r := got(x.renew(a.Refresh, nil)); r != "" || c.Access == "" {
			return r + "!"
		}
		if x.opens(x.resource, c.Access) != 401 {
			return "the newest token opens still"
		}
		return got(x.renew(c.Refresh, nil))
	}},
	{"a refresh token of another client", func(t *testing.T, x *siege) string {
		a := x.signIn()
		if r := got(x.evil.renew(a.Refresh, nil)); r != "" {
			return r
		}
		return got(x.renew(a.Refresh, nil)) // somebody else had it
	}},
	{"a refresh for another resource", func(t *testing.T, x *siege) string {
		return got(x.renew(x.signIn().Refresh, map[string]string{"resource": x.base + "/mcp/agents/research"}))
	}},
	{"an access token for a refresh token", func(t *testing.T, x *siege) string { return got(x.renew(x.signIn().Access, nil)) }},
	{"a token at another agent", opensNot("/mcp/agents/research")},
	{"a token at the commands", opensNot("/mcp")},
	{"a token at the API", opensNot("/api/commands/status")},
	{"a token at a page", opensNot("/settings")},
	{"a token at another path of its agent", opensNot("/mcp/agents/general/")},
	{"a refresh token as a token", func(t *testing.T, x *siege) string {
		if code := x.opens(x.resource, x.signIn().Refresh); code != 401 {
			return fmt.Sprint(code)
		}
		return ""
	}},
	{"a token of another install", func(t *testing.T, x *siege) string {
		other := newSiege(t)
		if code := x.opens(x.resource, other.signIn().Access); code != 401 {
			return fmt.Sprint(code)
		}
		return ""
	}},
	{"a token in the address line", func(t *testing.T, x *siege) string {
		resp, err := http.Post(x.resource+"?access_token="+x.signIn().Access, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != 401 {
			return resp.Status
		}
		return ""
	}},
	{"a scope beyond what was allowed", func(t *testing.T, x *siege) string {
		_, out := x.renew(x.signIn().Refresh, map[string]string{"scope": "admin config:write mcp:write"})
		if out.Scope != "mcp:read runs:write" {
			return out.Scope
		}
		return ""
	}},
	{"an admin's right for who is none", func(t *testing.T, x *siege) string {
		x.evil.resource = x.base + "/mcp"
		_, _, body := x.evil.page(x.evil.asks(map[string]string{"scope": "admin mcp:read"}))
		if strings.Contains(body, `value="admin"`) {
			return "offered"
		}
		code := x.evil.lets(x.evil.asks(map[string]string{"scope": "admin mcp:read"}), "allow", url.Values{"scope": {"admin", "mcp:read"}}).Get("code")
		_, out := x.evil.spend(code, nil)
		if out.Scope != "mcp:read" {
			return out.Scope
		}
		return ""
	}},
	{"a token of somebody who was shut out", func(t *testing.T, x *siege) string {
		code := x.evil.lets(x.evil.asks(nil), "allow", nil).Get("code")
		_, out := x.evil.spend(code, nil)
		if x.opens(x.resource, out.Access) != 200 {
			return "it did not open"
		}
		if err := x.s.do("people.revoke", command.PersonInput{Person: "bob@example.com"}, &command.PersonRow{}); err != nil {
			return err.Error()
		}
		if x.opens(x.resource, out.Access) != 401 {
			return "it opens still"
		}
		if to := x.led(x.bob, x.evil.asks(nil)); !strings.HasPrefix(to, "/signin?") {
			return "asked: " + to
		}
		return got(x.evil.renew(out.Refresh, nil))
	}},
	{"a revocation by another client", func(t *testing.T, x *siege) string {
		a := x.signIn()
		x.evil.post("/oauth/revoke", map[string]string{"token": a.Access})
		if x.opens(x.resource, a.Access) != 200 {
			return "it was revoked"
		}
		x.post("/oauth/revoke", map[string]string{"token": a.Access})
		if x.opens(x.resource, a.Access) != 401 {
			return "it was not revoked"
		}
		return ""
	}},
}

func opensNot(path string) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		a := x.signIn()
		if code := x.opens(x.base+path, a.Access); code != 401 {
			return fmt.Sprint(code)
		}
		if x.opens(x.resource, a.Access) != 200 {
			return "its own is closed"
		}
		return ""
	}
}

// presses tries to have the button pressed by somebody else.
func presses(change func(form url.Values, h http.Header)) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil))
		form.Set("do", "allow")
		h := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Sec-Fetch-Site": {"same-origin"}}
		change(form, h)
		req, err := http.NewRequest("POST", x.asks(nil), strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		code, body, head := x.ada.do(req)
		if code < 400 || head.Get("Location") != "" || strings.Contains(body, "code=") {
			return fmt.Sprint(code, body)
		}
		return ""
	}
}

var pageAttacks = []attack{
	{"a form of another site", presses(func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") })},
	{"a form of a neighbour", presses(func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "same-site") })},
	{"a form that does not say where it is from", presses(func(_ url.Values, h http.Header) { h.Del("Sec-Fetch-Site") })},
	{"a form of another origin", presses(func(_ url.Values, h http.Header) {
		h.Del("Sec-Fetch-Site")
		h.Set("Origin", "https://evil.example")
	})},
	{"a form without the question", presses(func(f url.Values, _ http.Header) { f.Del("print") })},
	{"a form with another's question", presses(func(f url.Values, _ http.Header) { f.Set("print", strings.Repeat("0", 64)) })},
	{"a form for a team of others", presses(func(f url.Values, _ http.Header) { f.Set("team", "payments") })},
	{"a form that allows nothing", presses(func(f url.Values, _ http.Header) { f["scope"] = []string{"admin"} })},
	{"a form that neither allows nor denies", presses(func(f url.Values, _ http.Header) { f.Set("do", "") })},
	{"a question shown to one and answered by another", func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil)) // Ada's
		form.Set("do", "allow")
		if code, body := x.bob.post(x.asks(nil), form); code != http.StatusConflict || strings.Contains(body, "code=") {
			return fmt.Sprint(code, body)
		}
		return ""
	}},
	{"a frame around the page", func(t *testing.T, x *siege) string {
		req, err := http.NewRequest("GET", x.asks(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _, h := x.ada.do(req)
		if h.Get("X-Frame-Options") != "DENY" || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			return fmt.Sprint(h)
		}
		return ""
	}},
	{"an answer by GET", func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil))
		return strings.TrimPrefix(x.led(x.ada, x.asks(nil)+"&do=allow&print="+form.Get("print")), "asked")
	}},
	{"a person who is not signed in", func(t *testing.T, x *siege) string {
		to := x.led(newVisitor(t), x.asks(nil))
		return strings.TrimPrefix(to, "/signin?next="+url.QueryEscape(strings.TrimPrefix(x.asks(nil), x.base)))
	}},
	{"a token for a person", func(t *testing.T, x *siege) string {
		var made command.TokenCreated
		if err := x.s.do("tokens.create", command.TokensCreateInput{Label: "t", Scopes: []string{"mcp:read", "runs:write"}, Expires: "1d"}, &made); err != nil {
			return err.Error()
		}
		req, err := http.NewRequest("GET", x.asks(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+made.Value)
		if code, body, h := newVisitor(t).do(req); code != 403 || h.Get("Location") != "" {
			return fmt.Sprint(code, body)
		}
		return ""
	}},
	{"a name that moves about on the page", func(t *testing.T, x *siege) string {
		_, out := x.register(map[string]any{"client_name": "Evil\u202e\u200b\"><script>alert(1)</script>" + strings.Repeat("x", 300), "redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "none",
			"logo_uri": "https://evil.example/claude.png", "client_uri": "javascript:alert(1)"})
		x.id, _ = out["client_id"].(string)
		_, _, body := x.page(x.asks(nil))
		for _, bad := range []string{"<script>alert", "\u202e", "evil.example/claude.png", "javascript:", strings.Repeat("x", 100)} {
			if strings.Contains(body, bad) {
				return bad
			}
		}
		return ""
	}},
	{"a secret that rests", func(t *testing.T, x *siege) string {
		code := x.code()
		_, out := x.spend(code, nil)
		found := "no file was read"
		x.s.files(func(where string, v any) {
			for _, secret := range []string{code, out.Access, out.Refresh, base64.RawURLEncoding.EncodeToString([]byte(out.Access))} {
				if found == "no file was read" {
					found = ""
				}
				if strings.Contains(fmt.Sprint(v), secret) {
					found = where
				}
			}
		})
		return found
	}},
}

// TestNobodyGetsInUnasked: every way in that RFC 9700 and the field know, each refused.
func TestNobodyGetsInUnasked(t *testing.T) {
	t.Parallel()
	x := newSiege(t)
	n := 0
	for _, list := range [][]attack{redirectAttacks, requestAttacks, codeAttacks, pageAttacks, tokenAttacks} {
		for _, a := range list {
			n++
			own := *x.guest
			evil := *x.evil
			y := &siege{guest: &own, idp: x.idp, ada: x.ada, bob: x.bob, evil: &evil}
			if r := a.try(t, y); r != "" {
				t.Errorf("%s: %s", a.name, r)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d attacks", n)
	}
	t.Logf("%d attacks", n)
}
