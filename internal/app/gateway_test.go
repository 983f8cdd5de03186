package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// agentToken makes a token for an agent.
func (s *served) agentToken(agent string) string {
	s.t.Helper()
	var out command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "a", Agent: agent}, &out); err != nil {
		s.t.Fatal(err)
	}
	return out.Value
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (s *served) agentURL(agent string) string {
	return "http://" + s.a.Addr() + "/mcp/agents/" + agent
}

// plug connects the Go SDK's client to an agent's endpoint.
func (s *served) plug(agent, token, version string, changed func()) *sdk.ClientSession {
	s.t.Helper()
	o := &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}}
	if changed != nil {
		o.ToolListChangedHandler = func(context.Context, *sdk.ToolListChangedRequest) { changed() }
	}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "peer", Version: "1"}, o).Connect(s.t.Context(),
		&sdk.StreamableClientTransport{Endpoint: s.agentURL(agent), HTTPClient: &http.Client{Transport: bearer(token)}},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// An agent from elsewhere plugs in with the Go SDK, in both eras: it sees the
// tools its agent may use and no other, calls them on the record, hears of
// changes, and an uncertain effect says which call it was.
func TestAnAgentPlugsIn(t *testing.T) {
	a, b := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true},"x-vendor":{"n":12345678901234567890}`)), fake.NewMCP(t, fake.Tool("secret", ""))
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q}, hidden: {url: %q, agents: [review]}}}\n", a.Endpoint(), b.Endpoint())+allow("up", a.URL, "hidden", b.URL))
	token := s.agentToken("general")
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(version, func(t *testing.T) {
			var heard atomic.Int64
			c := s.plug("general", token, version, func() { heard.Add(1) })
			tools, err := c.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "mcp__up__look" {
				t.Fatalf("%+v %v", tools, err)
			}
			res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__look", Arguments: map[string]any{"x": "1"}})
			if err != nil || res.IsError || !strings.Contains(fmt.Sprint(res.Content[0].(*sdk.TextContent).Text), `"x":"1"`) {
				t.Fatalf("%+v %v", res, err)
			}
			if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__hidden__secret"}); err == nil {
				t.Error("a tool of another agent was called")
			}
			time.Sleep(200 * time.Millisecond) // the subscription stands
			a.SetTools(fake.Tool("look", fmt.Sprintf(`"title":%q`, version)))
			s.refresh("up")
			within(t, 5*time.Second, "the notice of a changed list", func() bool { return heard.Load() > 0 })
		})
	}
	a.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32000, Message: "half way"}
	})
	c := s.plug("general", token, "2025-11-25", nil)
	res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__look"})
	if err != nil || !res.IsError || res.Meta["patchbay/state"] != string(plane.CallUnknown) || res.Meta["patchbay/call"] == "" {
		t.Errorf("%+v %v", res, err)
	}
}

// Whoever may not use an agent's endpoint is told so, and nothing of what exists.
func TestTheAgentsEndpointIsClosed(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", upConfig(m))
	general, review := s.agentToken("general"), s.agentToken("review")
	var narrow command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "n", Scopes: []string{"mcp:read"}}, &narrow); err != nil {
		t.Fatal(err)
	}
	const begin = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	post := func(agent, token, session, body string) *http.Response {
		req, _ := http.NewRequest("POST", s.agentURL(agent), strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for what, c := range map[string]struct {
		agent, token string
		status       int
		challenge    string
	}{
		"nobody":                    {"general", "", 401, `Bearer realm="patchbay"`},
		"an unknown token":          {"general", "pba_nothing", 401, `error="invalid_token"`},
		"another agent's":           {"general", review, 404, ""},
		"an agent that is not":      {"nobody", general, 404, ""},
		"a token that may not call": {"general", narrow.Value, 403, `error="insufficient_scope"`},
	} {
		resp := post(c.agent, c.token, "", begin)
		if resp.StatusCode != c.status || !strings.Contains(resp.Header.Get("WWW-Authenticate"), c.challenge) {
			t.Errorf("%s: %d %q", what, resp.StatusCode, resp.Header.Get("WWW-Authenticate"))
		}
	}
	// A session is its caller's own, and survives a restart.
	first := post("general", general, "", begin)
	id := first.Header.Get("Mcp-Session-Id")
	if first.StatusCode != 200 || strings.Count(id, ".") != 3 {
		t.Fatalf("%d %q", first.StatusCode, id)
	}
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	if resp := post("general", general, id, list); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	other := s.agentToken("general")
	for what, c := range map[string][2]string{"another token of the agent": {other, id}, "a forged one": {general, id[:len(id)-2] + "AA"}, "none": {general, ""}, "nonsense": {general, "x"}} {
		if resp := post("general", c[0], c[1], list); resp.StatusCode != 404 {
			t.Errorf("%s: %d", what, resp.StatusCode)
		}
	}
	addr := s.a.Addr()
	s.stop()
	s = start(t, s.dir, strings.Replace(upConfig(m), "org:", "org:", 1))
	if addr == s.a.Addr() {
		t.Log("the same port")
	}
	if resp := post("general", general, id, list); resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Errorf("after a restart: %d %s", resp.StatusCode, b)
	}
	req, _ := http.NewRequest("DELETE", s.agentURL("general"), nil)
	req.Header.Set("Authorization", "Bearer "+general)
	req.Header.Set("Mcp-Session-Id", id)
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != 204 {
		t.Errorf("DELETE: %v", err)
	}
	if resp := post("general", general, id, list); resp.StatusCode != 404 {
		t.Errorf("a deleted session: %d", resp.StatusCode)
	}
}
