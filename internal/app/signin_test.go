package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// A restart between the start and the callback loses nothing: all that the
// exchange needs is kept with the ticket (F041, F043).
func TestARestartInMidSignIn(t *testing.T) {
	s, m, as := protected(t, "")
	out := s.add("notes", m.Endpoint(), nil)
	v := newVisitor(t)
	back := v.approve(v.start(out.Link))
	old := s.a.Addr()
	s.stop()
	b, err := os.ReadFile(filepath.Join(s.dir, "patchbay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, config, _ := strings.Cut(string(b), "data: ")
	_, config, _ = strings.Cut(config, "\n")
	s = start(t, s.dir, config)
	// The port is another one, the browser's cookie and the address are not.
	code, body := v.get(strings.Replace(back, old, s.a.Addr(), 1))
	if code != 200 || !strings.Contains(body, "notes is connected") {
		t.Fatalf("%d %s", code, body)
	}
	if got := as.Asked("/token"); len(got) != 1 || got[0].Form.Get("redirect_uri") != "http://"+old+"/mcp/oauth/callback" {
		t.Errorf("the exchange named another redirect than the authorize: %v", got)
	}
}

// An authorization server that refuses offline_access is asked once more without
// it, and it is remembered (F047).
func TestARefusedOfflineScopeIsLeftOut(t *testing.T) {
	s, m, as := protected(t, "")
	out := s.add("notes", m.Endpoint(), nil)
	v := newVisitor(t)
	as.Override("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		as.Override("/authorize", nil)
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"error": {"invalid_scope"}, "state": {q.Get("state")}, "iss": {as.URL}}.Encode(), http.StatusFound)
	})
	code, body := v.get(v.approve(v.start(out.Link)))
	next := refreshRE.FindStringSubmatch(body)
	if code != 200 || next == nil || strings.Contains(next[1], "offline_access") {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := v.get(v.approve(strings.ReplaceAll(next[1], "&amp;", "&"))); code != 200 || !strings.Contains(body, "notes is connected") {
		t.Fatalf("%d %s", code, body)
	}
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	if to := newVisitor(t).start(again.Link); strings.Contains(to, "offline_access") {
		t.Errorf("it is asked for again: %s", to)
	}
}

// A client that the server forgot: the authorize never returns, and the next
// start registers anew (F038). A metadata document that leads nowhere is replaced
// by a registration the same way.
func TestAnAuthorizeThatNeverReturns(t *testing.T) {
	s, m, as := protected(t, "oauth: {cimd: \"on\"}\n")
	as.Metadata(func(md map[string]any) { md["client_id_metadata_document_supported"] = true })
	out := s.add("notes", m.Endpoint(), nil)
	v := newVisitor(t)
	if to := v.start(out.Link); !strings.Contains(to, url.QueryEscape("/api/mcp/oauth/client")) || len(as.Asked("/register")) != 0 {
		t.Fatalf("our document is not offered: %s", to)
	}
	first := v.start(out.Link) // the person came back without an answer
	if strings.Contains(first, url.QueryEscape("/api/mcp/oauth/client")) || len(as.Asked("/register")) != 1 {
		t.Fatalf("no registration instead: %s", first)
	}
	if code, body := v.get(v.approve(first)); code != 200 {
		t.Fatal(code, body)
	}
	as.Forget()
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	v = newVisitor(t)
	dead := v.start(again.Link)
	if code, body := v.get(dead); code != http.StatusUnprocessableEntity {
		t.Fatalf("the server still knows us: %d %s", code, body)
	}
	if code, body := v.get(v.approve(v.start(again.Link))); code != 200 || len(as.Asked("/register")) != 2 {
		t.Errorf("%d %s, registered %d times", code, body, len(as.Asked("/register")))
	}
	doc, err := http.Get("http://" + s.a.Addr() + "/api/mcp/oauth/client")
	if err != nil {
		t.Fatal(err)
	}
	defer doc.Body.Close()
	var md struct {
		ID        string   `json:"client_id"`
		Redirects []string `json:"redirect_uris"`
	}
	local, err := http.Get("http://" + s.a.Addr() + "/api/mcp/oauth/client/local")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Body.Close()
	var own struct { // any port of the caller's own machine (F037)
		ID          string   `json:"client_id"`
		Redirects   []string `json:"redirect_uris"`
		Application string   `json:"application_type"`
	}
	if err := json.NewDecoder(local.Body).Decode(&own); err != nil || own.ID != "http://"+s.a.Addr()+"/api/mcp/oauth/client/local" || own.Application != "native" ||
		strings.Join(own.Redirects, " ") != "http://127.0.0.1/callback http://localhost/callback" {
		t.Errorf("%+v %v", own, err)
	}
	if err := json.NewDecoder(doc.Body).Decode(&md); err != nil || md.ID != "http://"+s.a.Addr()+"/api/mcp/oauth/client" || len(md.Redirects) != 1 {
		t.Errorf("%+v %v", md, err)
	}
}

// A call that lacks a scope is refused, and the next sign-in asks for it besides
// what was granted; what is granted already is not asked for again.
func TestStepUp(t *testing.T) {
	s, m, as := protected(t, "")
	signedIn(t, s, m)
	m.Guard(func(r *http.Request) (string, int) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(b)))
		if strings.Contains(string(b), "tools/call") {
			return `Bearer error="insufficient_scope", scope="admin read"`, 403
		}
		return "", 0
	})
	got, err := s.callTool("notes", "write")
	if err != nil || !got.IsError {
		t.Fatalf("%+v %v", got, err)
	}
	if row := s.row("notes"); row.State != "connected" {
		t.Errorf("%+v", row)
	}
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	newVisitor(t).start(again.Link)
	to, err := url.Parse(newVisitorStart(t, s))
	if err != nil {
		t.Fatal(err)
	}
	scopes := strings.Fields(to.Query().Get("scope"))
	for _, want := range []string{"read", "write", "offline_access", "admin"} {
		if !strings.Contains(" "+strings.Join(scopes, " ")+" ", " "+want+" ") {
			t.Errorf("the next sign-in asks for %q, not %s", scopes, want)
		}
	}
	grown := func() (out string) {
		var d command.MCPDiff
		if err := s.do("mcp.diff", command.DiffInput{Name: "notes"}, &d); err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Other {
			out += string(c.Kind) + " " + c.Where + " " + c.After + ";"
		}
		return out
	}
	if got := grown(); got != "scopes_grown asked for admin;" {
		t.Errorf("what is asked for is not told: %q", got)
	}
	m.Guard(nil)
	v := newVisitor(t)
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	if code, body := v.get(v.approve(v.start(again.Link))); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if got := grown(); got != "scopes_grown granted admin;" {
		t.Errorf("what was granted beyond the last sign-in is not told: %q", got)
	}
	_ = as
}

func newVisitorStart(t *testing.T, s *served) string {
	t.Helper()
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	return newVisitor(t).start(again.Link)
}

// A newer link supersedes an older one, silently; a removed connection cancels
// its link.
func TestNewerLinksWin(t *testing.T) {
	s, m, _ := protected(t, "")
	old := s.add("notes", m.Endpoint(), nil)
	var newer command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &newer); err != nil {
		t.Fatal(err)
	}
	if code, body := newVisitor(t).get(old.Link); code != 410 || !strings.Contains(body, "replaced by a newer one") {
		t.Errorf("%d %s", code, body)
	}
	if err := s.do("mcp.remove", command.NameInput{Name: "notes"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if code, _ := newVisitor(t).post(newer.Link, url.Values{"action": {"start"}}); code != 410 {
		t.Errorf("the removed connection's link: %d", code)
	}
}

// The redirect on the caller's own machine, and the pasted one.
func TestASignInOnTheCallersOwnMachine(t *testing.T) {
	s, m, _ := protected(t, "")
	s.add("notes", m.Endpoint(), nil)
	for _, bad := range []string{"https://evil.example/callback", "http://evil.example:1/callback", "http://127.0.0.1:1/other", "http://127.0.0.1/callback", "http://u@127.0.0.1:1/callback"} {
		err := s.do("mcp.connect", command.ConnectInput{Name: "notes", Local: true, Redirect: bad}, &command.MCPAdded{})
		if plane.KindOf(err) != plane.InvalidInput {
			t.Errorf("%s: %v", bad, err)
		}
	}
	var begun, done command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes", Local: true}, &begun); err != nil || begun.Link != "" {
		t.Fatalf("%+v %v", begun, err)
	}
	back := newVisitor(t).approve(begun.SignInURL)
	if !strings.HasPrefix(back, command.DefaultRedirect) {
		t.Fatal(back)
	}
	if err := s.do("mcp.finish", command.FinishInput{URL: strings.Replace(back, "code=", "code=x", 1)}, &done); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("a wrong code: %v", err)
	}
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes", Local: true}, &begun); err != nil {
		t.Fatal(err)
	}
	back = newVisitor(t).approve(begun.SignInURL)
	if err := s.do("mcp.finish", command.FinishInput{URL: back}, &done); err != nil || done.Tools != 2 || done.Server.State != "connected" {
		t.Fatalf("%+v %v", done, err)
	}
	if err := s.do("mcp.finish", command.FinishInput{URL: back}, &done); plane.KindOf(err) != plane.Gone {
		t.Errorf("twice: %v", err)
	}
}

// A page that has a browser at hand goes straight to the sign-in.
func TestStartOverTheAPI(t *testing.T) {
	s, m, _ := protected(t, "")
	added := s.add("notes", m.Endpoint(), nil)
	c := &http.Client{Transport: netguard.InfraSocket(filepath.Join(s.dir, "d", app.SocketName))}
	post := func(body string) (int, map[string]string) {
		resp, err := c.Post("http://x/api/agents/general/mcp/oauth/start", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out := map[string]string{}
		json.NewDecoder(resp.Body).Decode(&out)
		return resp.StatusCode, out
	}
	code, out := post(fmt.Sprintf(`{"provider_id":%q}`, added.Server.ID))
	if code != 200 || out["provider_id"] != added.Server.ID || !strings.Contains(out["authorization_url"], "code_challenge=") {
		t.Errorf("%d %v", code, out)
	}
	code, out = post(fmt.Sprintf(`{"name":"Notes, kitchen","endpoint":%q,"new_account":true}`, m.Endpoint()))
	if code != 400 || s.c.Command(t.Context(), "mcp.show", command.NameInput{Name: "notes-kitchen"}, &command.MCPShow{}) == nil { // its address is not open to that name
		t.Errorf("%d %v", code, out)
	}
	for body, want := range map[string]int{fmt.Sprintf(`{"provider_id":%q,"new_account":true}`, added.Server.ID): 400, `{"provider_id":"con_00000000000000000000000000"}`: 404, `{"provider_id":"x"}`: 400, `{"x":1}`: 400} {
		if code, _ := post(body); code != want {
			t.Errorf("%s: %d", body, code)
		}
	}
	if code, _ := newVisitor(t).get(added.Link); code != 410 { // superseded
		t.Errorf("the older link: %d", code)
	}
}

// Over the network a token is somebody, with what it may do and no more.
func TestARemoteCallerByToken(t *testing.T) {
	s, m, _ := protected(t, "")
	remote := func(token string) *client.Client {
		return client.New("http://"+s.a.Addr(), authorized{token})
	}
	create := func(in command.TokensCreateInput) string {
		var out command.TokenCreated
		if err := s.do("tokens.create", in, &out); err != nil {
			t.Fatal(err)
		}
		return out.Value
	}
	service := remote(create(command.TokensCreateInput{Service: true, Scopes: []string{"mcp:read", "mcp:write"}}))
	add := command.MCPAddInput{Name: "notes", Address: m.Endpoint()}
	if err := service.Command(t.Context(), "mcp.add", add, &command.MCPAdded{}); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("a service in a scope of its own: %v", err)
	}
	add.Scope = "org"
	var out command.MCPAdded
	if err := service.Command(t.Context(), "mcp.add", add, &out); err != nil || out.Link == "" || out.Server.Scope != "org" {
		t.Errorf("%+v %v", out, err)
	}
	reader := remote(create(command.TokensCreateInput{Scopes: []string{"mcp:read"}}))
	if err := reader.Command(t.Context(), "mcp.remove", command.NameInput{Name: "notes"}, &command.MCPChanged{}); plane.KindOf(err) != plane.Forbidden {
		t.Errorf("a reader removes: %v", err)
	}
	var list command.MCPList
	if err := reader.Command(t.Context(), "mcp.list", command.MCPListInput{}, &list); err != nil || len(list.Servers) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	if err := reader.Command(t.Context(), "tokens.create", command.TokensCreateInput{Scopes: []string{"admin"}}, &command.TokenCreated{}); plane.KindOf(err) != plane.Forbidden {
		t.Errorf("a token makes a token: %v", err)
	}
	agent := remote(create(command.TokensCreateInput{Agent: "general"}))
	if err := agent.Command(t.Context(), "mcp.list", command.MCPListInput{}, &list); plane.KindOf(err) != plane.Forbidden {
		t.Errorf("an agent token runs commands: %v", err)
	}
	// A token cannot use the page that is for people.
	req, _ := http.NewRequest("GET", out.Link, nil)
	req.Header.Set("Authorization", "Bearer "+create(command.TokensCreateInput{Scopes: []string{"admin"}}))
	if code, _, _ := newVisitor(t).do(req); code != 403 {
		t.Errorf("a token on the connect page: %d", code)
	}
}

type authorized struct{ token string }

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return http.DefaultTransport.RoundTrip(r)
}

// Without an address that browsers use, what needs a link creates nothing; with
// MCP off its commands and pages say so.
func TestWhatNeedsALinkWithoutOne(t *testing.T) {
	s, m, _ := protected(t, "identity: {access: {team: acme, audience: a}}\n")
	var out command.MCPAdded
	if err := s.do("mcp.add", command.MCPAddInput{Name: "notes", Address: m.Endpoint()}, &out); err != nil || out.Link == "" {
		t.Fatalf("on loopback the address is its own: %v", err)
	}
	off := start(t, "", "mcp: {enabled: false}\n")
	if err := off.do("mcp.add", command.MCPAddInput{Name: "x", Address: "https://x.example/mcp"}, &out); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("MCP off: %v", err)
	}
	if code, _ := newVisitor(t).get("http://" + off.a.Addr() + "/mcp/connect/" + strings.Repeat("a", 43)); code != 503 {
		t.Errorf("the page with MCP off: %d", code)
	}
}

// Config is read again while serving; a bad one keeps the old and says so.
func TestReload(t *testing.T) {
	m := newPlain(t)
	s := start(t, "", allow("up", m.URL))
	file := filepath.Join(s.dir, "patchbay.yaml")
	head := "listen: 127.0.0.1:0\ndata: " + s.dir + "/d\n" + allow("up", m.URL)
	write := func(more string) {
		if err := os.WriteFile(file, []byte(head+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("org: {connections: {up: {url: \"" + m.Endpoint() + "\"}}}\nteams: {pay: {members: [x]}}\n")
	var said command.Said
	if err := s.do("config.reload", command.ConfigInput{}, &said); err != nil {
		t.Fatal(err)
	}
	if got, err := s.callTool("up", "a"); err != nil || got.IsError {
		t.Errorf("%+v %v", got, err)
	}
	if err := s.do("mcp.remove", command.NameInput{Name: "up"}, &command.MCPChanged{}); plane.KindOf(err) != plane.Conflict {
		t.Errorf("a pinned entry was removed: %v", err)
	}
	if err := s.do("mcp.connect", command.ConnectInput{Name: "up"}, &command.MCPAdded{}); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("a pinned entry was re-keyed: %v", err)
	}
	for _, bad := range []string{"nonsense: 1\n", "org: {connections: {up: {url: \"http://127.0.0.1:1/mcp\"}}}\n", "egress: {allow: [{to: x}]}\n"} {
		write(bad)
		if err := s.do("config.reload", command.ConfigInput{}, &said); err == nil {
			t.Errorf("%q was taken", bad)
		}
		if got, err := s.callTool("up", "a"); err != nil || got.IsError {
			t.Errorf("after %q: %+v %v", bad, got, err)
		}
	}
	write("")
	p, _ := os.FindProcess(os.Getpid())
	p.Signal(hangup)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var list command.MCPList
		if err := s.do("mcp.list", command.MCPListInput{}, &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Servers) == 1 && !list.Servers[0].Enabled || len(list.Servers) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("SIGHUP read nothing: %+v", list)
		}
	}
}

// Two tiers with one name, and what each caller sees of it.
func TestTiers(t *testing.T) {
	s, m, _ := protected(t, "")
	mine := s.add("notes", m.Endpoint(), nil)
	err := s.do("mcp.add", command.MCPAddInput{Name: "notes", Address: m.Endpoint()}, &command.MCPAdded{})
	if plane.KindOf(err) != plane.Conflict || !strings.Contains(plane.Public(err).Next, "mcp connect notes") {
		t.Errorf("the same tier: %v", err)
	}
	org := s.add("notes", m.Endpoint(), func(in *command.MCPAddInput) { in.Scope = "org" })
	var list command.MCPList
	if err := s.do("mcp.list", command.MCPListInput{}, &list); err != nil || len(list.Servers) != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	for _, r := range list.Servers {
		if (r.ID == mine.Server.ID) != (r.Shadowed == "org") || r.ID != mine.Server.ID && r.ID != org.Server.ID {
			t.Errorf("%+v", r)
		}
	}
	var cfg command.ConfigShow
	if err := s.do("config.show", command.ConfigInput{}, &cfg); err != nil || len(cfg.Tiers) != 2 || !cfg.Admin {
		t.Errorf("%+v %v", cfg, err)
	}
	if err := s.do("mcp.rename", command.RenameInput{Name: "me/notes", To: "mine", Label: "Mine"}, &command.MCPChanged{}); err == nil {
		t.Error("the new name's address is not open to it, and it was renamed")
	}
	if err := s.do("mcp.rename", command.RenameInput{Name: "me/notes", To: "other", Label: "Mine"}, &command.MCPChanged{}); err != nil {
		t.Error(err)
	}
	if row := s.row("other"); row.ID != mine.Server.ID || row.Label != "Mine" {
		t.Errorf("%+v", row)
	}
	var why command.Why
	if err := s.do("mcp.why", command.WhyInput{Tool: "other/read"}, &why); err != nil || why.Allowed || !strings.Contains(why.Answer, "nobody has signed it in yet") || why.Next != "patchbay mcp connect other" {
		t.Errorf("%+v %v", why, err)
	}
	for _, bad := range []command.MCPAddInput{{Name: "Bad Name", Address: "https://x.example"}, {Name: "x", Address: "http://10.0.0.1/mcp"}, {Name: "x", Address: "https://u:p@x.example/"},
		{Name: "x", Address: "https://x.example", Auth: "magic"}, {Name: "x", Address: "https://x.example", Auth: "api_key:Host"}, {Name: "x"}, {Name: "x", Address: "https://x.example", Scope: "team"},
		{Name: "x", Address: "https://x.example", Agents: []string{"nobody"}}, {Name: "x", Address: "https://x.example", Agents: []string{"coding"}}, {Name: "x", Address: "https://x.example", Header: []string{"Host: y"}},
		{Name: "x", Address: "https://x.example", Header: []string{"X-Key: a\r\nY: b"}}} {
		if err := s.do("mcp.add", bad, &command.MCPAdded{}); plane.KindOf(err) != plane.InvalidInput {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
