//go:build long

package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"patchbay/test/peers"
)

const useNotes = `models: {default: {provider: scripted, script: [{say: "Looking.", calls: [{tool: mcp__notes__latest_note, input: {}}]}, {say: "{{last}}"}]}}
`

// server is one row of mcp show --json.
type server struct {
	Server struct {
		ID, State, Reason, Label, Auth string
		Tools                          int
	}
	Version int64
}

func (d *daemon) show(name string) server {
	d.t.Helper()
	var s server
	if err := json.Unmarshal([]byte(d.must("mcp", "show", name, "--json")), &s); err != nil {
		d.t.Fatal(err)
	}
	return s
}

// A person adds a protected server with one link, signs in there with a browser,
// and asks; the token renews itself; a withdrawn grant says why, and one click
// signs in again with the preferences kept.
func TestSignInAtOIDCProvider(t *testing.T) {
	p := peers.OIDC(t, "ACCESS_TTL=5")
	d := serve(t, useNotes+allow("notes", p.Issuer, p.MCP))
	out := d.must("mcp", "add", "notes", p.MCP, "--label", "Kitchen notes")
	if !strings.Contains(out, "how it signs in: oauth") {
		t.Errorf("what was detected: %q", out)
	}
	b := newBrowser(t)
	b.open(link(t, out))
	b.until("Connect Kitchen notes")
	for _, want := range []string{"It asks for no scope of its own.", p.MCP, "Link works until", "10 minutes"} {
		if !strings.Contains(b.text(), want) {
			t.Errorf("the connect page lacks %q:\n%s", want, b.text())
		}
	}
	b.press("Continue to sign in")
	b.until("On to")
	b.signIn(p.Issuer, "ada")
	b.until("Kitchen notes is connected")
	if !strings.Contains(b.text(), "2 tools are on offer to runs that you ask for yourself") {
		t.Errorf("the last page: %s", b.text())
	}
	if out := d.must("ask", "What", "did", "I", "note?"); !strings.Contains(out, "buy oat milk") {
		t.Errorf("answered %q", out)
	}
	before := d.show("notes")

	time.Sleep(6 * time.Second) // the access token lives five
	if out := d.must("mcp", "call", "notes", "latest_note"); !strings.Contains(out, "buy oat milk") {
		t.Errorf("after the token's life: %q", out)
	}
	if now := d.show("notes"); now.Version != before.Version || now.Server.State != "connected" {
		t.Errorf("a refresh changed the connection: %+v, was %+v", now, before)
	}

	if resp, err := http.Get(p.Issuer + "/test/withdraw"); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	time.Sleep(6 * time.Second)
	said, errs, code := d.run("mcp", "call", "notes", "latest_note")
	errs += said
	if code == 0 || !strings.Contains(errs, "withdrew") || !strings.Contains(errs, "patchbay mcp connect notes") {
		t.Errorf("after the grant was withdrawn: exit %d, %q", code, errs)
	}
	if now := d.show("notes"); now.Server.State != "auth_error" || now.Server.Reason != "revoked" {
		t.Errorf("the connection does not say why: %+v", now)
	}
	b.open(link(t, d.must("mcp", "connect", "notes")))
	b.press("Continue to sign in")
	b.until("On to")
	b.signIn(p.Issuer, "ada")
	b.until("Kitchen notes is connected")
	now := d.show("notes")
	if now.Server.ID != before.Server.ID || now.Server.Label != "Kitchen notes" || now.Server.State != "connected" || now.Version <= before.Version {
		t.Errorf("after signing in again: %+v, was %+v", now, before)
	}
	if out := d.must("mcp", "call", "notes", "latest_note"); !strings.Contains(out, "buy oat milk") {
		t.Errorf("after signing in again: %q", out)
	}
	d.must("mcp", "remove", "notes")
	if _, errs, code := d.run("mcp", "show", "notes"); code == 0 {
		t.Errorf("removed, and still there: %s", errs)
	}
}

// The protected example server of the TypeScript SDK: registration, opaque
// tokens, an issuer with a slash at its end, no refresh.
func TestSignInAtTheSDKsExample(t *testing.T) {
	p := peers.SDKDemo(t)
	d := serve(t, "models: {default: {provider: scripted, script: [{calls: [{tool: mcp__notes__greet, input: {name: Ada}}]}, {say: \"{{last}}\"}]}}\n"+allow("notes", p.Issuer, p.MCP))
	b := newBrowser(t)
	b.open(link(t, d.must("mcp", "add", "notes", p.MCP)))
	b.press("Continue to sign in")
	b.until("notes is connected")
	if !strings.Contains(b.text(), "tools are on offer") {
		t.Errorf("the last page: %s", b.text())
	}
	if out := d.must("ask", "Greet", "me"); !strings.Contains(out, "Hello, Ada") {
		t.Errorf("answered %q", out)
	}
}

// An authorization server that registers nobody and fetches our client ID
// metadata document, at an install behind TLS whose people sign in by OIDC: the
// link belongs to whoever signs in first.
func TestSignInByMetadataDocument(t *testing.T) {
	const origin = "https://patchbay.example"
	port := peers.FreePort(t)
	client := fmt.Sprintf(`{"client_id":"patchbay","client_secret":"s3cret-of-the-dashboard","redirect_uris":["%s/signin/callback"],"token_endpoint_auth_method":"client_secret_basic"}`, origin)
	idp := peers.OIDC(t, "CLIENT="+client)
	p := peers.OIDC(t, "CIMD="+origin, fmt.Sprintf("CIMD_AT=http://127.0.0.1:%d", port), "ACCESS_TTL=60")
	d := serveOn(t, port, useNotes+allow("notes", p.Issuer, p.MCP)+fmt.Sprintf(`public_url: %s
oauth: {cimd: "on"}
identity: {oidc: {issuer: %q, client_id: patchbay, client_secret_env: OIDC_SECRET}, admins: [ada@example.com]}
`, origin, idp.Issuer), "OIDC_SECRET=s3cret-of-the-dashboard")
	target, err := url.Parse(fmt.Sprintf("http://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host }})
	t.Cleanup(front.Close)
	flags := []string{"ignore-certificate-errors", "host-resolver-rules=MAP patchbay.example " + strings.TrimPrefix(front.URL, "https://")}
	oneLink := link(t, d.must("mcp", "add", "notes", p.MCP, "--scope", "org"))

	// Whatever fetches links has no session, and spends nothing.
	bot := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, _ := http.NewRequest("GET", front.URL+strings.TrimPrefix(oneLink, origin), nil)
	req.Host = "patchbay.example"
	resp, err := bot.Do(req)
	if err != nil || resp.StatusCode != http.StatusSeeOther {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("a bot sees %d %v %s", resp.StatusCode, err, body)
	}

	ada := newBrowser(t, flags...)
	ada.open(oneLink)
	ada.signIn(idp.Issuer, "ada")
	ada.until("Connect notes")
	grace := newBrowser(t, flags...)
	grace.open(oneLink)
	grace.signIn(idp.Issuer, "grace")
	grace.until("This is not yours")
	if strings.Contains(grace.text(), "notes") || strings.Contains(grace.text(), "ada@example.com") {
		t.Errorf("a stranger is told something: %s", grace.text())
	}
	ada.press("Continue to sign in")
	ada.until("On to")
	ada.signIn(p.Issuer, "ada")
	ada.until("notes is connected")
	page := origin + "/connections/" + d.show("notes").Server.ID
	ada.open(page)
	ada.says("Save which are used")
	if strings.Contains(ada.text(), "Only an org admin") {
		t.Errorf("an admin is told that she may not:\n%s", ada.text())
	}
	grace.open(page)
	grace.says("You may look at it and not change it. Only an org admin may change the org.")
	if free := grace.eval(`String([...document.querySelectorAll('fieldset.governed button, fieldset.governed input')].filter((e) => !e.matches(':disabled') && e.type !== 'hidden').length)`); free != "0" || !strings.Contains(grace.text(), "Save which are used") {
		t.Errorf("%s controls are free for who may not:\n%s", free, grace.text())
	}
	if out := d.must("ask", "What", "did", "I", "note?"); !strings.Contains(out, "buy oat milk") {
		t.Errorf("answered %q", out)
	}
	ada.open(oneLink)
	ada.until("This link is over")
}
