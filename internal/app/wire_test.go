package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
)

// A client that cancels ends its call at the server too, in both eras; the effect is
// unknown. One of the legacy era that only goes away has not cancelled: its call ends,
// and is on record as it ended.
func TestCancellingReachesTheServer(t *testing.T) {
	var began, ended atomic.Int64
	url := sdkServer(t, false, func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: "wait", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			began.Add(1)
			select {
			case <-ctx.Done():
				ended.Add(1)
			case <-time.After(1500 * time.Millisecond):
			}
			return &sdk.CallToolResult{}, ctx.Err()
		})
	})
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q}}}\n", url)+allow("up", url))
	token := s.agentToken("general")
	for i, version := range []string{"2025-11-25", "2026-07-28"} {
		c := s.plug("general", token, version, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "mcp__up__wait"}); err == nil {
				t.Errorf("%s: a cancelled call was answered", version)
			}
		}()
		within(t, 5*time.Second, "the call", func() bool { return began.Load() == int64(i+1) })
		cancel()
		<-done
		within(t, 5*time.Second, "the end at the server", func() bool { return ended.Load() == int64(i+1) })
		s.settle(1)
	}
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id")
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", s.agentURL("general"), strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mcp__up__wait"}}`))
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token, "Mcp-Session-Id": id} {
		req.Header.Set(k, v)
	}
	go http.DefaultClient.Do(req)
	within(t, 5*time.Second, "the last call", func() bool { return began.Load() == 3 })
	leave()
	within(t, 10*time.Second, "its end on record", func() bool { return len(s.calls("state = 'succeeded'")) == 1 })
}

// A long list comes in pages, each tool once; a cursor is good for its list.
func TestListsComeInPages(t *testing.T) {
	var tools []string
	for i := range 600 {
		tools = append(tools, fake.Tool(fmt.Sprintf("t%03d", i), ""))
	}
	m := fake.NewMCP(t, tools...)
	s := start(t, "", "limits: {catalog_tools: 1000}\nagents: {general: {search: off}}\n"+upConfig(m))
	token := s.agentToken("general")
	seen := map[string]bool{}
	pages := 0
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id")
	list := func(cursor string) (names []string, next string, code int64) {
		t.Helper()
		params := "{}"
		if cursor != "" {
			params = fmt.Sprintf(`{"cursor":%q}`, cursor)
		}
		var got struct {
			Result struct {
				Tools      []struct{ Name string }
				NextCursor string
			}
			Error struct{ Code int64 }
		}
		if err := jsonDecode(s.post("general", token, id, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":`+params+`}`), &got); err != nil {
			t.Fatal(err)
		}
		for _, x := range got.Result.Tools {
			names = append(names, x.Name)
		}
		return names, got.Result.NextCursor, got.Error.Code
	}
	var last string
	for cursor := ""; ; pages++ {
		names, next, code := list(cursor)
		if code != 0 || pages > 10 {
			t.Fatalf("%d, %d pages", code, pages)
		}
		for _, n := range names {
			if seen[n] {
				t.Errorf("%s twice", n)
			}
			seen[n] = true
		}
		if next == "" {
			break
		}
		last, cursor = next, next
	}
	if len(seen) != 600 || pages != 2 {
		t.Errorf("%d tools in %d pages", len(seen), pages+1)
	}
	m.SetTools(tools[:500]...)
	s.refresh("up")
	if _, _, code := list(last); code != mcp.CodeInvalidParams {
		t.Errorf("a cursor of an older list: %d", code)
	}
}

// What one era says of a result is not said to a client of the other, and added for one
// that wants it.
func TestResultsFitTheClientsEra(t *testing.T) {
	newer := fake.NewMCP(t, fake.Tool("look", ""))
	newer.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		in.Typed = true
		return json.RawMessage(`{"content":[],"resultType":"complete","n":12345678901234567890}`), nil
	})
	older := sdkServer(t, false, func(s *sdk.Server) {
		s.AddTool(&sdk.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{}}, nil
		})
	})
	s := start(t, "", fmt.Sprintf("org: {connections: {newer: {url: %q}, older: {url: %q}}}\n", newer.Endpoint(), older)+allow("newer", newer.URL, "older", older))
	token := s.agentToken("general")
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id")
	b, _ := io.ReadAll(s.post("general", token, id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mcp__newer__look"}}`).Body)
	if text := string(b); strings.Contains(text, "resultType") || !strings.Contains(text, `"n":12345678901234567890`) {
		t.Errorf("an older client: %s", text)
	}
	for _, tool := range []string{"mcp__newer__look", "mcp__older__look"} {
		if res, code := s.modern(token, "tools/call", tool, ""); res["resultType"] != "complete" || code != 0 {
			t.Errorf("a newer client of %s: %v %v", tool, res, code)
		}
	}
}

// Some servers show more tools to a client that says what it may be asked. What all are
// offered does not hang on who called last.
func TestAListingIsNobodysInParticular(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.Half.Sessions = true
	var able atomic.Value
	able.Store("")
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			if strings.Contains(string(body), "server/discover") {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			rec := httptest.NewRecorder()
			if strings.Contains(string(body), `"tools/list"`) && able.Load() == r.Header.Get("Mcp-Session-Id") {
				id := strings.TrimSuffix(strings.SplitN(strings.SplitN(string(body), `"id":`, 2)[1], ",", 2)[0], "}")
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s,%s]}}`, id, fake.Tool("look", ""), fake.Tool("ask_me", ""))
				return
			}
			if !strings.Contains(string(body), `"initialize"`) {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(rec, r)
			if strings.Contains(string(body), "elicitation") {
				able.Store(rec.Header().Get("Mcp-Session-Id"))
			}
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.Write(rec.Body.Bytes())
		})
	})
	s := start(t, "", "limits: {fingerprint_max_age: 0s}\n"+upConfig(m))
	c := s.plugAs("general", s.agentToken("general"), "2025-11-25", &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{},
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept"}, nil
		}})
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__look"}); err != nil || r.IsError || able.Load() == "" {
		t.Fatalf("%+v %v", r, err)
	}
	if row := s.row("up"); row.Tools != 1 {
		t.Errorf("%d tools are offered", row.Tools)
	}
}

// The endpoint for embeddings that config names is asked, and only it.
func TestEmbeddingsAreAsked(t *testing.T) {
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Input []string
			Model string
		}
		if r.URL.Path != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer embed-key-5Yk2" || json.NewDecoder(r.Body).Decode(&in) != nil || in.Model != "small" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		asked.Add(1)
		type vector struct {
			Object    string    `json:"object"`
			Index     int       `json:"index"`
			Embedding []float64 `json:"embedding"`
		}
		var data []vector
		for i, text := range in.Input {
			v := vector{"embedding", i, []float64{0, 1}}
			if strings.Contains(text, "refund") || strings.Contains(text, "regret") {
				v.Embedding = []float64{1, 0}
			}
			data = append(data, v)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data, "model": "small", "usage": map[string]int{"prompt_tokens": 1, "total_tokens": 1}})
	}))
	defer srv.Close()
	t.Setenv("EMBED_KEY", "embed-key-5Yk2")
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("refund", ""), fake.Tool("wire", ""))
	s := start(t, "", fmt.Sprintf("embeddings: {base_url: %q, model: small, api_key_env: EMBED_KEY}\nagents: {general: {search: on}}\n", srv.URL+"/v1")+upConfig(m))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	within(t, 10*time.Second, "the tool that is meant", func() bool {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "tool_search", Arguments: map[string]any{"query": "I regret it", "limit": 1}})
		return err == nil && !r.IsError && strings.Contains(textOf(r), `"name":"mcp__up__refund"`)
	})
	if asked.Load() == 0 {
		t.Error("it was not asked")
	}
}

// settle waits for n unknown calls and says of each that it was done, so that others
// may follow on the same target.
func (s *served) settle(n int) {
	s.t.Helper()
	var unknown command.CallsList
	within(s.t, 5*time.Second, "the record", func() bool {
		return s.do("calls.list", command.CallsListInput{Unknown: true, Limit: 10}, &unknown) == nil && len(unknown.Calls) == n
	})
	for _, c := range unknown.Calls {
		if err := s.do("runs.resolve", command.ResolveInput{ID: c.ID, Outcome: "done"}, &command.Resolved{}); err != nil {
			s.t.Fatal(err)
		}
	}
}
