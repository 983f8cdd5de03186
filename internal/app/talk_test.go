package app_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// sdkServer is a server on the official SDK: of the legacy era with sessions, or of
// the modern one.
func sdkServer(t *testing.T, modern bool, setup func(*sdk.Server)) string {
	t.Helper()
	fine := func(context.Context, *sdk.SubscribeRequest) error { return nil }
	srv := sdk.NewServer(&sdk.Implementation{Name: "peer", Version: "1"}, &sdk.ServerOptions{SubscribeHandler: fine,
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "-done"}}}, nil
		}})
	setup(srv)
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return srv }, &sdk.StreamableHTTPOptions{Stateless: modern}))
	t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
	return h.URL
}

// asks is a tool that asks its caller for a name before it does anything.
func asks(done *atomic.Int64) func(*sdk.Server) {
	return func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: "greet", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			//lint:ignore SA1019 clients of the legacy era still want it
			if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: "about to ask"}); err != nil {
				return nil, err
			}
			a, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "Who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
			if err != nil {
				return nil, err
			}
			done.Add(1)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("%s %v", a.Action, a.Content["name"])}}}, nil
		})
	}
}

// plugAs is plug with what the client can be asked.
func (s *served) plugAs(agent, token, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	s.t.Helper()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "peer", Version: "1"}, o).Connect(s.t.Context(),
		&sdk.StreamableClientTransport{Endpoint: s.agentURL(agent), HTTPClient: &http.Client{Transport: bearer(token)}},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func textOf(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}

// A server of the legacy era asks the client that called, which answers by itself;
// whoever cannot be asked gets a refusal, and nothing happens.
func TestAServerAsksTheClient(t *testing.T) {
	var done atomic.Int64
	url := sdkServer(t, false, asks(&done))
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q}}}\n", url)+allow("up", url))
	token := s.agentToken("general")
	var logged atomic.Int64
	able := &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}, LoggingMessageHandler: func(context.Context, *sdk.LoggingMessageRequest) { logged.Add(1) },
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		}}
	c := s.plugAs("general", token, "2025-11-25", able)
	//lint:ignore SA1019 clients of the legacy era still want it
	if err := c.SetLoggingLevel(t.Context(), &sdk.SetLoggingLevelParams{Level: "debug"}); err != nil {
		t.Fatal(err)
	}
	res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__greet"})
	if err != nil || res.IsError || textOf(res) != "accept Ada" {
		t.Fatalf("%+v %v", res, err)
	}
	within(t, 5*time.Second, "the log message", func() bool { return logged.Load() > 0 })
	for what, o := range map[string]struct {
		version string
		opts    *sdk.ClientOptions
	}{
		"a client that cannot be asked":   {"2025-11-25", &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}}},
		"a client of the other era":       {"2026-07-28", able},
		"a client that only shows a page": {"2025-11-25", &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{URL: &sdk.URLElicitationCapabilities{}}}, ElicitationHandler: able.ElicitationHandler}},
	} {
		res, err := s.plugAs("general", token, o.version, o.opts).CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__greet"})
		if err == nil && !res.IsError {
			t.Errorf("%s: %+v", what, res)
		}
	}
	var out command.MCPCall
	if err := s.do("mcp.call", command.MCPCallInput{Name: "up", Tool: "greet"}, &out); err != nil || !out.IsError {
		t.Errorf("an own call: %+v %v", out, err)
	}
	if done.Load() != 1 {
		t.Errorf("it went on %d times", done.Load())
	}
}

// needsInput is a server of the modern era whose tool asks once, counts how often it
// went on, and gives a state of its own.
func needsInput(t *testing.T) (*fake.MCP, *atomic.Int64) {
	var ran atomic.Int64
	m := fake.NewMCP(t, fake.Tool("wire", ""))
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if in.Inputs == nil {
			in.Typed = true
			return json.RawMessage(`{"resultType":"input_required","inputRequests":{"ok":{"method":"elicitation/create","params":{"message":"Sure?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}}}}}},"requestState":"theirs"}`), nil
		}
		if in.State != "theirs" {
			return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "whose state?"}
		}
		return fake.Text(fmt.Sprintf("run %d", ran.Add(1))), nil
	})
	return m, &ran
}

// modern sends one request of 2026-07-28 and returns what came.
func (s *served) modern(token, method, name, members string) (result map[string]any, code float64) {
	s.t.Helper()
	return s.modernAs(token, `{"elicitation":{}}`, method, name, members)
}

// modernAs is modern, at the agent general, with what the client can be asked.
func (s *served) modernAs(token, able, method, name, members string) (result map[string]any, code float64) {
	s.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s},"name":%q%s}}`, method, able, name, members)
	req, _ := http.NewRequest("POST", s.agentURL("general"), strings.NewReader(body))
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token,
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var m struct {
		Result map[string]any
		Error  struct{ Code float64 }
	}
	if err := jsonDecode(resp, &m); err != nil {
		s.t.Fatal(err)
	}
	return m.Result, m.Error.Code
}

// In the modern era a call that wants input is one call in the ledger, each leg an
// attempt. A leg is its caller's, about its own call, and good once; one that nobody
// brings back leaves the call unknown.
func TestACallWaitsForInput(t *testing.T) {
	m, ran := needsInput(t)
	s := start(t, "", upConfig(m))
	token, other := s.agentToken("general"), s.agentToken("general")
	const tool = "mcp__up__wire"
	first := func() string {
		t.Helper()
		res, code := s.modern(token, "tools/call", tool, `,"arguments":{"x":"1"}`)
		state, _ := res["requestState"].(string)
		if res["resultType"] != "input_required" || state == "" || state == "theirs" || code != 0 {
			t.Fatalf("%v %v", res, code)
		}
		return state
	}
	leg := func(token, args, state string) (map[string]any, float64) {
		return s.modern(token, "tools/call", tool, fmt.Sprintf(`,"arguments":%s,"inputResponses":{"ok":{"action":"accept","content":{"ok":true}}},"requestState":%q`, args, state))
	}
	state := first()
	for what, c := range map[string][3]string{
		"another caller's":      {other, `{"x":"1"}`, state},
		"with other arguments":  {token, `{"x":"2"}`, state},
		"the server's own":      {token, `{"x":"1"}`, "theirs"},
		"one that was tampered": {token, `{"x":"1"}`, state[:len(state)-4] + "AAAA"},
	} {
		if res, code := leg(c[0], c[1], c[2]); code != mcp.CodeInvalidParams {
			t.Errorf("%s: %v %v", what, res, code)
		}
	}
	var wg sync.WaitGroup
	var good atomic.Int64
	for range 8 { // all at once
		wg.Go(func() {
			if res, _ := leg(token, `{"x":"1"}`, state); res["isError"] == nil && res["content"] != nil {
				good.Add(1)
			}
		})
	}
	wg.Wait()
	if good.Load() != 1 || ran.Load() != 1 {
		t.Errorf("%d legs went on, the server ran %d times", good.Load(), ran.Load())
	}
	calls := s.calls("state = 'succeeded'")
	if len(calls) != 1 || calls[0].Attempts != 2 {
		t.Fatalf("%+v", calls)
	}
	// One waits for ever: after a restart much later it is unknown.
	orphan := first()
	s.stop()
	s = startWith(t, s.dir, upConfig(m), later(time.Hour))
	if calls := s.calls("state = 'unknown'"); len(calls) != 1 || !strings.Contains(calls[0].Reason, "input") {
		t.Errorf("%+v", calls)
	}
	if res, code := leg(token, `{"x":"1"}`, orphan); code == 0 {
		t.Errorf("a leg that is over: %v", res)
	}
	if ran.Load() != 1 {
		t.Errorf("it ran %d times", ran.Load())
	}
}

// A leg goes on after a restart, at any replica: what it is about is in it.
func TestALegSurvivesARestart(t *testing.T) {
	m, ran := needsInput(t)
	s := start(t, "", upConfig(m))
	token := s.agentToken("general")
	res, _ := s.modern(token, "tools/call", "mcp__up__wire", `,"arguments":{}`)
	state, _ := res["requestState"].(string)
	s.stop()
	s = start(t, s.dir, upConfig(m))
	res, code := s.modern(token, "tools/call", "mcp__up__wire", fmt.Sprintf(`,"arguments":{},"inputResponses":{"ok":{"action":"accept"}},"requestState":%q`, state))
	if code != 0 || res["isError"] != nil || ran.Load() != 1 {
		t.Errorf("%v %v, ran %d", res, code, ran.Load())
	}
	if calls := s.calls("state = 'succeeded'"); len(calls) != 1 || calls[0].Class != plane.Effect {
		t.Errorf("%+v", calls)
	}
}

// ahead is a clock that runs ahead.
type ahead time.Duration

func (a ahead) Now() time.Time { return time.Now().Add(time.Duration(a)) }

func later(d time.Duration) func(*app.Options) {
	return func(o *app.Options) { o.Clock = ahead(d) }
}

// calls reads the ledger of a SQLite install, once what is written behind is there.
func (s *served) calls(cond string) (out []plane.Call) {
	s.t.Helper()
	time.Sleep(150 * time.Millisecond)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "d", "patchbay.db")+"?mode=ro")
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT id, tool, alias, class, state, reason, attempts, principal FROM calls WHERE ` + cond + ` ORDER BY planned_at, id`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var c plane.Call
		if err := rows.Scan(&c.ID, &c.Tool, &c.Alias, &c.Class, &c.State, &c.Reason, &c.Attempts, &c.Principal); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}
