package app_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// A connection that is off is not contacted any more, however often its server
// says that its list changed.
func TestOffMeansOff(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", allow("up", m.URL))
	s.add("up", m.Endpoint(), func(in *command.MCPAddInput) { in.Scope = "org" })
	var seen atomic.Int64
	m.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // a memory of bytes
			if strings.Contains(string(body), `"tools/list"`) {
				seen.Add(1)
				time.AfterFunc(50*time.Millisecond, m.Half.ListChanged)
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			next.ServeHTTP(w, r)
		})
	})
	if out, err := s.callOn("look"); err != nil || out.IsError {
		t.Fatalf("%v %+v", err, out)
	}
	m.Half.ListChanged()
	within(t, 5*time.Second, "the notices", func() bool { return seen.Load() > 2 })
	if err := s.do("mcp.disable", command.NameInput{Name: "up"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond) // what was under way ends
	before := seen.Load()
	time.Sleep(1500 * time.Millisecond)
	if n := seen.Load() - before; n != 0 {
		t.Errorf("it was listed %d times while it was off", n)
	}
}

// Who may not write an agent's accounts learns nothing of them.
func TestAccountsOfOthersAreNotTold(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", fmt.Sprintf("egress: {allow: [{to: %q, for: [\"agent:coding/up\"]}]}\n", m.URL))
	x := newSurfaces(t, s)
	if body, code := x.overAPI("POST", "/api/agents/coding/mcp/providers", fmt.Sprintf(`{"name":"Up","endpoint":%q}`, m.Endpoint())); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	var narrow command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "n", Scopes: []string{"mcp:read", "mcp:write"}}, &narrow); err != nil {
		t.Fatal(err)
	}
	ask := func(path, body string) string {
		req, _ := http.NewRequest("POST", "http://"+s.a.Addr()+path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+narrow.Value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body) // an answer of ours
		return fmt.Sprint(resp.StatusCode, string(b))
	}
	for _, path := range []string{"/api/agents/coding/mcp/providers", "/api/agents/coding/mcp/oauth/start"} {
		there := ask(path, fmt.Sprintf(`{"name":"x","endpoint":%q}`, m.Endpoint()))
		not := ask(path, `{"name":"x","endpoint":"https://nowhere.example/mcp"}`)
		if there != not || !strings.HasPrefix(there, "403") {
			t.Errorf("%s tells them apart:\n%s\n%s", path, there, not)
		}
	}
}

// A server that invents definitions fills neither the record nor the memory of
// what was adopted.
func TestAFloodOfDefinitions(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", upConfig(m))
	s.refresh("up")
	for round := range 12 {
		tools := []string{fake.Tool("look", "")}
		for i := range 200 {
			tools = append(tools, fake.Tool(fmt.Sprintf("t%d_%d", round, i), ""))
		}
		m.SetTools(tools...)
		s.refresh("up")
	}
	n := 0
	for _, e := range s.audit() {
		if strings.HasPrefix(e.Action, "definition.") {
			n++
		}
	}
	if n == 0 || n > 80 {
		t.Errorf("%d entries on record", n)
	}
	m.SetTools(fake.Tool("look", `"title":"changed"`))
	s.refresh("up")
	if r := s.drift("look"); kindsOf(r) != "text" || r.From == "" {
		t.Errorf("what the tool was is forgotten: %+v", r)
	}
}

// A tool's name that would do something in a shell stands in no line to paste.
func TestNamesInLinesToPaste(t *testing.T) {
	const evil = "x; touch /tmp/pwned #"
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", strings.Replace(upConfig(m), "url:", "new_tools: hold, url:", 1))
	s.refresh("up")
	m.SetTools(fake.Tool("look", ""), fake.Tool(evil, ""), `{"name":"a\nlook\taccepted","inputSchema":{"type":"object"}}`)
	s.refresh("up")
	out, err := s.diff(command.DiffInput{})
	if err != nil || len(out.Tools) != 2 {
		t.Fatalf("%+v %v", out, err)
	}
	var b strings.Builder
	out.Text(&b, command.Style{Now: time.Now()})
	if strings.Contains(b.String(), "--accept x;") || !strings.Contains(b.String(), "--accept 'x; touch /tmp/pwned #'") || strings.Contains(b.String(), "\nlook\taccepted") {
		t.Errorf("%s", b.String())
	}
}

// Numbers whose exact value is endless cost no caller anything, and an approval
// names a definition by more digits than a server can collide.
func TestEndlessNumbers(t *testing.T) {
	m := fake.NewMCP(t, `{"name":"look","inputSchema":{"type":"object","properties":{"ids":{"type":"array","items":{"type":"integer","maximum":5}}}}}`)
	s := start(t, "", upConfig(m))
	s.refresh("up")
	args := `{"ids":[` + strings.Repeat("1e999999,", 900) + `1]}`
	began := time.Now()
	var out command.MCPCall
	if err := s.do("mcp.call", command.MCPCallInput{Name: "up", Tool: "look", Arguments: command.Object(args)}, &out); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	if _, err := s.diff(command.DiffInput{Accept: []string{"look"}, Fingerprint: s.tool("up", "look").Fingerprint[:31]}); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("an approval by 31 digits: %v", err)
	}
}
