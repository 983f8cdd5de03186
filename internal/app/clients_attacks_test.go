package app_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

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
clients: {known: {pad: {name: Pad, redirect_uris: ["pad.example:/cb"]}, desk: {name: Desk, redirect_uris: ["desk.example:/cb", "https://desk.example/cb"], client_secret_env: FAKE_KEY}}}
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
	switch {
	case code == http.StatusOK:
		return "asked"
	case code >= 500:
		return body
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
		if r := got(x.spend(code, change)); r != "" {
			return r
		}
		return got(x.spend(code, nil))
	}
}

// got says what tokens came of something.
func got(status int, out tokens) string {
	if status != 400 && status != 401 || out.Access != "" || out.Error == "" {
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
	{"registered: a query that hides one", registers("https://evil.example/cb?code=1;a=b")},
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

// command runs a command at /mcp, as the stateless clients do.
func (x *siege) command(token, name, args string) string {
	x.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, name, args)
	req, err := http.NewRequest("POST", x.base+"/mcp", strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	if h := resp.Header.Get("WWW-Authenticate"); resp.StatusCode == http.StatusForbidden && (!strings.Contains(h, `error="insufficient_scope"`) || !strings.Contains(h, `resource_metadata="`+x.base+`/.well-known/oauth-protected-resource/mcp"`)) {
		x.t.Errorf("the client is not told what to ask for: %s", h)
	}
	return string(b)
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
