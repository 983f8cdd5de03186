package app_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// The secret of a client that an operator made goes to the authorization server
// that it was first used at, whatever the MCP server names later.
func TestAClientsSecretStaysWithItsServer(t *testing.T) {
	s, m, as := protected(t, "")
	as.AddClient("us", "mk-the-clients-secret", "client_secret_basic", "http://"+s.a.Addr()+"/mcp/oauth/callback")
	out := s.add("notes", m.Endpoint(), func(in *command.MCPAddInput) { in.ClientID, in.ClientSecret = "us", "mk-the-clients-secret" })
	v := newVisitor(t)
	if code, body := v.get(v.approve(v.start(out.Link))); code != 200 {
		t.Fatal(code, body)
	}
	evil := fake.NewAS(t, fake.NewMCP(t, fake.Tool("x", "")))
	as.PRM(func(md map[string]any) { md["authorization_servers"] = []string{evil.URL} })
	var rules string
	b, err := os.ReadFile(filepath.Join(s.dir, "patchbay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules = strings.Replace(string(b), "egress: {allow: [", "egress: {allow: [{to: \""+evil.URL+"\", for: [notes]}, ", 1)
	if err := os.WriteFile(filepath.Join(s.dir, "patchbay.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.do("config.reload", command.ConfigInput{}, &command.Said{}); err != nil {
		t.Fatal(err)
	}
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	code, body := newVisitor(t).post(again.Link, url.Values{"action": {"start"}})
	if code != 502 || !strings.Contains(body, "its secret goes nowhere else") {
		t.Errorf("%d %s", code, body)
	}
	if len(evil.Asked("/token"))+len(evil.Asked("/authorize")) != 0 {
		t.Error("the other server was asked")
	}
}

// What status tells a caller is theirs to know.
func TestStatusTellsEachCallerTheirOwn(t *testing.T) {
	s, _, _ := protected(t, "")
	var mine, theirs command.Status
	if err := s.do("status", command.StatusInput{}, &mine); err != nil || mine.Data == "" || len(mine.Opens) == 0 {
		t.Fatalf("%+v %v", mine, err)
	}
	var k command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Service: true, Scopes: []string{"mcp:read"}}, &k); err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: authorized{k.Value}}).Post("http://"+s.a.Addr()+"/api/commands/status", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := jsonDecode(resp, &theirs); err != nil || theirs.Data != "" || theirs.Config != "" || len(theirs.Opens) != 0 {
		t.Errorf("%+v %v", theirs, err)
	}
}

// A person's limits: how many connections, however fast they come, and how much
// each may hold.
func TestAddIsBounded(t *testing.T) {
	m := newPlain(t)
	m.Override(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	s := start(t, "", "limits: {connections_per_scope: 3}\negress: {allow: [{to: \""+m.URL+"\", for: [a, b, c, d, e, f, g, h]}]}\n")
	errs := make(chan error, 8)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		go func() {
			errs <- s.do("mcp.add", command.MCPAddInput{Name: name, Address: m.Endpoint(), Auth: "bearer"}, &command.MCPAdded{})
		}()
	}
	fine := 0
	for range 8 {
		if err := <-errs; err == nil {
			fine++
		} else if plane.KindOf(err) != plane.Limited || plane.Public(err).Limit != "connections_per_scope" {
			t.Error(err)
		}
	}
	if fine != 3 {
		t.Errorf("%d were added", fine)
	}
	for name, in := range map[string]command.MCPAddInput{
		"a long address": {Name: "x", Address: "https://x.example/" + strings.Repeat("a", 3000), Auth: "bearer"},
		"many agents":    {Name: "x", Address: "https://x.example/", Auth: "bearer", Agents: strings.Split(strings.Repeat("general,", 70), ",")},
		"a label in two": {Name: "x", Address: "https://x.example/", Auth: "bearer", Label: "a\u009bb"},
		"a header value": {Name: "x", Address: "https://x.example/", Header: []string{"X-Key: t\x01k"}},
	} {
		if err := s.do("mcp.add", in, &command.MCPAdded{}); plane.KindOf(err) != plane.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Which tools are used, by exclusion and by rule; it outlives edits, renames and
// being off, and the catalog needs no new listing.
func TestPreferences(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("get_a", ""), fake.Tool("get_b", ""), fake.Tool("delete_a", ""))
	s := start(t, "", "egress: {allow: [{to: \""+m.URL+"\", for: [up, down]}]}\n")
	s.add("up", m.Endpoint(), nil)
	used := func(name string) string {
		var out command.MCPTools
		if err := s.do("mcp.tools", command.MCPToolsInput{Name: name}, &out); err != nil {
			t.Fatal(err)
		}
		var on []string
		for _, row := range out.Tools {
			if row.LeftOut == "" {
				on = append(on, row.Name)
			}
		}
		return strings.Join(on, " ")
	}
	set := func(in command.ToolsSetInput) {
		t.Helper()
		if err := s.do("mcp.tools-set", in, &command.MCPChanged{}); err != nil {
			t.Fatal(err)
		}
	}
	set(command.ToolsSetInput{Name: "up", Exclude: []string{"get_b", "not_there_yet"}})
	if got := used("up"); got != "get_a delete_a" {
		t.Errorf("%q", got)
	}
	if _, err := s.callTool("up", "get_b"); plane.KindOf(err) != plane.NotFound {
		t.Errorf("an excluded tool was called: %v", err)
	}
	var why command.Why
	if err := s.do("mcp.why", command.WhyInput{Tool: "up/get_b"}, &why); err != nil || why.Allowed || !strings.Contains(why.Answer, "excluded") {
		t.Errorf("%+v %v", why, err)
	}
	set(command.ToolsSetInput{Name: "up", Deny: []string{"delete_*"}})
	for what, in := range map[string]any{"mcp.disable": command.NameInput{Name: "up"}, "mcp.edit": command.EditInput{Name: "up", Label: "L"}} {
		if err := s.do(what, in, &command.MCPChanged{}); err != nil {
			t.Fatal(what, err)
		}
	}
	if _, err := s.callTool("up", "get_a"); err == nil {
		t.Error("a tool of a connection that is off was called")
	}
	if err := s.do("mcp.enable", command.NameInput{Name: "up"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if err := s.do("mcp.rename", command.RenameInput{Name: "up", To: "down"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if got := used("down"); got != "get_a" || s.row("down").Health != "ok" {
		t.Errorf("after it all: %q, %+v", got, s.row("down"))
	}
	err := s.do("mcp.tools-set", command.ToolsSetInput{Name: "down", All: true, Version: 1}, &command.MCPChanged{})
	if plane.KindOf(err) != plane.Conflict {
		t.Errorf("an edit of what changed since: %v", err)
	}
	m.SetTools(fake.Tool("get_a", ""), fake.Tool("not_there_yet", ""), fake.Tool("get_new", ""))
	if err := s.do("mcp.refresh", command.NameInput{Name: "down"}, &command.MCPTest{}); err != nil {
		t.Fatal(err)
	}
	if got := used("down"); got != "get_a get_new" {
		t.Errorf("a tool that came back: %q", got)
	}
	set(command.ToolsSetInput{Name: "down", All: true})
	if got := used("down"); got != "get_a not_there_yet get_new" {
		t.Errorf("all: %q", got)
	}
	set(command.ToolsSetInput{Name: "down", None: true})
	if got := used("down"); got != "" {
		t.Errorf("none: %q", got)
	}
}
