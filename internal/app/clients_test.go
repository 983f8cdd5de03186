package app_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
)

// guest is an MCP client that signs people in, and the browser that it sends them with.
type guest struct {
	t    *testing.T
	s    *served
	v    *visitor
	base string

	id, verifier, state, redirect, resource string
	issued                                  tokens
}

type tokens struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	Scope   string
	Expires int64  `json:"expires_in"`
	Type    string `json:"token_type"`

	Error string
	Text  string `json:"error_description"`
}

const guestBack = "http://127.0.0.1:3333/callback"

// newGuest registers a client whose person is signed in already.
func newGuest(t *testing.T, s *served, v *visitor, agent string) *guest {
	t.Helper()
	g := &guest{t: t, s: s, v: v, base: "http://" + s.a.Addr(), redirect: guestBack, state: "st-" + agent, verifier: strings.Repeat("v", 43)}
	g.resource = g.base + "/mcp/agents/" + agent
	status, out := g.register(map[string]any{"client_name": "Guest", "redirect_uris": []string{guestBack, "https://guest.example/cb"}, "token_endpoint_auth_method": "none"})
	if status != http.StatusCreated {
		t.Fatalf("%d %v", status, out)
	}
	g.id, _ = out["client_id"].(string)
	return g
}

// local is a browser that the owner of the computer signed in.
func local(t *testing.T, s *served) *visitor {
	t.Helper()
	v := newVisitor(t)
	if code, body := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("%d %s", code, body)
	}
	return v
}

func (g *guest) register(m map[string]any) (int, map[string]any) {
	g.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := http.Post(g.base+"/oauth/register", "application/json", strings.NewReader(string(b)))
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		g.t.Fatal(err)
	}
	return resp.StatusCode, out
}

// asks is what the client sends the person with.
func (g *guest) asks(change map[string]string) string {
	sum := sha256.Sum256([]byte(g.verifier))
	q := url.Values{"response_type": {"code"}, "client_id": {g.id}, "redirect_uri": {g.redirect}, "state": {g.state}, "resource": {g.resource},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"}}
	for k, v := range change {
		q.Set(k, v)
		if v == "" {
			q.Del(k)
		}
	}
	return g.base + "/oauth/authorize?" + q.Encode()
}

var (
	hiddenRE = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)"`)
	backRE   = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]+)"`)
)

// page opens the question and returns what its form holds.
func (g *guest) page(at string) (form url.Values, code int, body string) {
	g.t.Helper()
	code, body = g.v.get(at)
	form = url.Values{}
	for _, m := range hiddenRE.FindAllStringSubmatch(body, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	return form, code, body
}

// lets presses a button and returns where the browser is sent.
func (g *guest) lets(at, button string, more url.Values) url.Values {
	g.t.Helper()
	form, code, body := g.page(at)
	if code != http.StatusOK {
		g.t.Fatalf("%d %s", code, body)
	}
	maps.Copy(form, more)
	form.Set("do", button)
	code, body = g.v.post(at, form)
	m := backRE.FindStringSubmatch(body)
	if code != http.StatusOK || m == nil {
		g.t.Fatalf("%d %s", code, body)
	}
	return g.returned(html.UnescapeString(m[1]))
}

func (g *guest) returned(to string) url.Values {
	g.t.Helper()
	u, err := url.Parse(to)
	if err != nil || !strings.HasPrefix(to, g.redirect+"?") {
		g.t.Fatalf("the browser is sent to %s", to)
	}
	return u.Query()
}

// post asks for tokens.
func (g *guest) post(path string, change map[string]string) (int, tokens) {
	g.t.Helper()
	f := url.Values{"client_id": {g.id}}
	for k, v := range change {
		f.Set(k, v)
		if v == "" {
			f.Del(k)
		}
	}
	resp, err := http.PostForm(g.base+path, f)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	var out tokens
	if len(b) > 0 && b[0] == '{' {
		if err := json.Unmarshal(b, &out); err != nil {
			g.t.Fatalf("%s: %v", b, err)
		}
	}
	if resp.Header.Get("Cache-Control") != "no-store" {
		g.t.Errorf("%s may be kept", path)
	}
	return resp.StatusCode, out
}

// spend gives a code for tokens.
func (g *guest) spend(code string, change map[string]string) (int, tokens) {
	m := map[string]string{"grant_type": "authorization_code", "code": code, "redirect_uri": g.redirect, "code_verifier": g.verifier, "resource": g.resource}
	maps.Copy(m, change)
	return g.post("/oauth/token", m)
}

func (g *guest) renew(token string, change map[string]string) (int, tokens) {
	m := map[string]string{"grant_type": "refresh_token", "refresh_token": token}
	maps.Copy(m, change)
	return g.post("/oauth/token", m)
}

// code is a fresh one.
func (g *guest) code() string {
	g.t.Helper()
	q := g.lets(g.asks(nil), "allow", nil)
	if q.Get("state") != g.state || q.Get("iss") != g.base || q.Get("code") == "" || len(q) != 3 {
		g.t.Fatalf("%v", q)
	}
	return q.Get("code")
}

// signIn goes all the way.
func (g *guest) signIn() tokens {
	g.t.Helper()
	status, out := g.spend(g.code(), nil)
	if status != http.StatusOK || out.Access == "" || out.Refresh == "" || out.Type != "Bearer" {
		g.t.Fatalf("%d %+v", status, out)
	}
	g.issued = out
	return out
}

// opens is what an endpoint answers a token.
func (g *guest) opens(at, token string) int {
	g.t.Helper()
	req, err := http.NewRequest("POST", at, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden || resp.StatusCode >= 500 {
		return resp.StatusCode
	}
	return http.StatusOK // what is let in may be told that it begins wrongly
}

// A client signs its person in, calls a tool as them with what is theirs alone, goes on with
// a new token, and is out once they take it back.
func TestAClientSignsItsPersonIn(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	s := start(t, "", allow("mine", m.URL))
	s.add("mine", m.Endpoint(), nil)
	g := newGuest(t, s, local(t, s), "general")
	_, _, body := g.page(g.asks(nil))
	for _, want := range []string{"Let Guest use general?", "nobody has checked", "a program on this computer, <code>127.0.0.1:3333</code>", "1 tool, of mine (1)", "30 days", "clients revoke"} {
		if !strings.Contains(html.UnescapeString(body), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	first := g.signIn()
	if first.Scope != "mcp:read runs:write" || first.Expires != 3600 {
		t.Errorf("%+v", first)
	}
	c := s.plug("general", first.Access, mcp.Version20251125, nil)
	out, err := c.ListTools(t.Context(), nil)
	if err != nil || len(out.Tools) != 1 || out.Tools[0].Name != "mcp__mine__look" {
		t.Fatalf("%+v %v", out, err)
	}
	status, second := g.renew(first.Refresh, nil)
	if status != 200 || second.Access == first.Access || second.Refresh == first.Refresh || second.Refresh == "" {
		t.Fatalf("%d %+v", status, second)
	}
	if _, again := g.renew(first.Refresh, nil); again != second {
		t.Errorf("the answer that was lost is another: %+v %+v", again, second)
	}
	if g.opens(g.resource, second.Access) != 200 || g.opens(g.resource, first.Access) != 200 {
		t.Error("a token that is not over opens nothing")
	}
	if _, err := c.ListTools(t.Context(), nil); err != nil { // the session is not bound to the token's bytes (F076)
		t.Errorf("a refresh ends the session: %v", err)
	}
	// It was let in, so that the next time takes one button, as it is on this computer.
	_, code, body := g.page(g.asks(nil))
	if code != 200 || !strings.Contains(body, "Go on with Guest?") {
		t.Errorf("%d %s", code, body)
	}
	var l command.ClientsList
	if err := s.do("clients.list", command.ClientsListInput{}, &l); err != nil || len(l.Clients) != 1 || l.Clients[0].Agent != "general" || l.Clients[0].Returns != "127.0.0.1:3333" {
		t.Fatalf("%+v %v", l, err)
	}
	if _, body := g.v.get(g.base + "/settings/clients"); !strings.Contains(body, "Guest") || !strings.Contains(body, "Take it back") {
		t.Error(body)
	}
	if err := s.do("clients.revoke", command.ClientInput{ID: l.Clients[0].ID}, &command.ClientRow{}); err != nil {
		t.Fatal(err)
	}
	if g.opens(g.resource, second.Access) != 401 {
		t.Error("what was taken back opens still")
	}
	if status, out := g.renew(second.Refresh, nil); status != 400 || out.Error != "invalid_grant" {
		t.Errorf("%d %+v", status, out)
	}
	var trail []string
	for _, e := range s.audit() {
		if strings.HasPrefix(e.Action, "client.") {
			trail = append(trail, e.Action+" "+e.Decision)
		}
	}
	if got := strings.Join(trail, ", "); !strings.Contains(got, "client.authorize allow") || !strings.Contains(got, "client.revoke allow") {
		t.Errorf("%s", got)
	}
}

// TestAClientWorksForATeam: what a person chooses on the page comes beside what they have, of
// their own teams alone, and for as long as they are in it.
func TestAClientWorksForATeam(t *testing.T) {
	t.Parallel()
	idp := fake.NewOIDC(t, "ada@example.com")
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	config := func(members string) string {
		return fmt.Sprintf(`identity: {oidc: {issuer: %q, client_id: patchbay}, admins: [root@example.com]}
teams:
  payments: {members: [%s], connections: {pay: {url: %q}}}
  legal: {members: [bob@example.com]}
egress: {allow: [{to: %q, for: [pay]}]}
`, idp.URL, members, m.Endpoint(), m.URL)
	}
	s := start(t, "", config("ada@example.com"))
	g := newGuest(t, s, through(t, s), "general")
	tools := func(token string) (names []string) {
		out, err := s.plug("general", token, mcp.Version20251125, nil).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range out.Tools {
			names = append(names, x.Name)
		}
		return names
	}
	alone := g.signIn()
	if got := tools(alone.Access); len(got) != 0 {
		t.Errorf("without a team: %v", got)
	}
	_, with := g.spend(g.lets(g.asks(nil), "allow", url.Values{"team": {"payments"}}).Get("code"), nil)
	if got := tools(with.Access); len(got) != 1 || got[0] != "mcp__pay__look" {
		t.Errorf("with the team: %v", got)
	}
	if _, _, body := g.page(g.asks(nil)); !strings.Contains(body, "payments: 1 tool in all") || strings.Contains(body, "legal") {
		t.Errorf("the teams to choose from: %s", body)
	}
	if got := tools(alone.Access); len(got) != 0 {
		t.Errorf("the other sign-in has the team too: %v", got)
	}
	s.write(config(""))
	if got := tools(with.Access); len(got) != 0 {
		t.Errorf("out of the team: %v", got)
	}
}

// TestAClientAtTwoReplicas: what one replica gave holds at the other, a refresh that races
// itself at both has one answer, and what is taken back at one is refused at the other
// within a second, also where tokens are held in memory.
func TestAClientAtTwoReplicas(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	gate := newProxy(t, pg.URL)
	here, there := start(t, "", onPostgres(pg.URL, "")), start(t, "", onPostgres(gate.url, ""))
	g := newGuest(t, here, local(t, here), "general")
	first := g.signIn()
	other := *g
	other.s, other.base, other.resource = there, "http://"+there.a.Addr(), "http://"+there.a.Addr()+"/mcp/agents/general"
	if other.opens(other.resource, first.Access) != 200 {
		t.Fatal("the other replica does not know the token")
	}
	got := make(chan tokens, 8)
	for i := range cap(got) {
		at := g
		if i%2 == 1 {
			at = &other
		}
		go func() { _, out := at.renew(first.Refresh, nil); got <- out }()
	}
	second := <-got
	for range cap(got) - 1 {
		if out := <-got; out.Access != second.Access || out.Refresh != second.Refresh || out.Access == "" {
			t.Errorf("a refresh has two answers: %+v %+v", out, second)
		}
	}
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if other.opens(other.resource, second.Access) != 200 {
			t.Fatal("it does not open")
		}
	}
	gate.mute.Store(true) // it hears of nothing, and has to look
	var l command.ClientsList
	if err := here.do("clients.list", command.ClientsListInput{}, &l); err != nil || len(l.Clients) != 1 {
		t.Fatalf("%+v %v", l, err)
	}
	if err := here.do("clients.revoke", command.ClientInput{ID: l.Clients[0].ID}, &command.ClientRow{}); err != nil {
		t.Fatal(err)
	}
	within(t, 2*time.Second, "the other replica refuses", func() bool { return other.opens(other.resource, second.Access) == 401 })
	if status, out := other.renew(second.Refresh, nil); status != 400 || out.Error != "invalid_grant" {
		t.Errorf("%d %+v", status, out)
	}
	third := g.signIn()
	if other.opens(other.resource, third.Access) != 200 {
		t.Error("a new sign-in does not open")
	}
	gate.hold.Store(true) // who cannot know what was revoked lets nobody in
	within(t, 20*time.Second, "it lets nobody in", func() bool { return other.opens(other.resource, third.Access) == http.StatusServiceUnavailable })
	gate.hold.Store(false)
}
