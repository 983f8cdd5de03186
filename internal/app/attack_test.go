package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// A server that talks while it is being opened harms nobody.
func TestAServerTalksWhileItIsOpened(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			switch {
			case strings.Contains(string(body), "server/discover"):
				http.Error(w, "no", http.StatusBadRequest)
			case strings.Contains(string(body), `"initialize"`):
				w.Header().Set("Content-Type", "text/event-stream")
				for _, n := range []string{`notifications/message","params":{"level":"info","data":"x"}`, `notifications/resources/updated","params":{"uri":"a://b"}`, `notifications/prompts/list_changed"`} {
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"%s}\n\n", n)
				}
				fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"x\",\"version\":\"1\"}}}\n\n")
			default:
				next.ServeHTTP(w, r)
			}
		})
	})
	s := start(t, "", upConfig(m))
	var out command.MCPCall
	if err := s.do("mcp.call", command.MCPCallInput{Name: "up", Tool: "look"}, &out); err != nil || out.IsError {
		t.Errorf("%+v %v", out, err)
	}
}

// What a server says by the way is searched for the credential like what it answers.
func TestACredentialIsKeptOutOfAsides(t *testing.T) {
	const marked = "asides-5Yk2Qw8ZrL0pXc7V"
	t.Setenv("UP_TOKEN", marked)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		said, _ := json.Marshal(in.HTTP.Header.Get("Authorization"))
		in.Progress(json.RawMessage(`{"progress":1,"message":` + string(said) + `}`))
		in.Notify(mcp.MethodLog, json.RawMessage(`{"level":"info","data":`+string(said)+`}`))
		return fake.Text("done"), nil
	})
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q, token_env: UP_TOKEN}}}\n", m.Endpoint())+allow("up", m.URL))
	token := s.agentToken("general")
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id")
	resp := s.post("general", token, id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mcp__up__look","_meta":{"progressToken":"p"}}}`)
	b, _ := io.ReadAll(resp.Body)
	if text := string(b); !strings.Contains(text, `"progressToken":"p"`) || !strings.Contains(text, "notifications/message") || strings.Contains(text, marked) {
		t.Errorf("%s", b)
	}
	time.Sleep(200 * time.Millisecond)
	if !slices.ContainsFunc(s.audit(), func(e plane.AuditEntry) bool { return e.Action == "credential.echoed" }) {
		t.Error("nothing is on record")
	}
}

// A leg is sent for the definition that the call began with, or not at all.
func TestALegIsBoundToItsDefinition(t *testing.T) {
	m, ran := needsInput(t)
	s := start(t, "", upConfig(m))
	token := s.agentToken("general")
	res, _ := s.modern(token, "tools/call", "mcp__up__wire", `,"arguments":{}`)
	state, _ := res["requestState"].(string)
	m.SetTools(fake.Tool("wire", `"title":"another"`))
	s.refresh("up")
	res, code := s.modern(token, "tools/call", "mcp__up__wire", fmt.Sprintf(`,"arguments":{},"inputResponses":{"ok":{"action":"accept"}},"requestState":%q`, state))
	if res["isError"] != true && code == 0 || ran.Load() != 0 {
		t.Errorf("%v %v, ran %d", res, code, ran.Load())
	}
}

// What is denied is not subscribed to; whose token is revoked hears no more; who shares
// a server's session ends nobody else's subscription.
func TestSubscriptionsAreGoverned(t *testing.T) {
	var srv *sdk.Server
	url := sdkServer(t, true, desk("red", &srv))
	config := func(deny string) string {
		return fmt.Sprintf("org: {connections: {red: {url: %q, tools: {deny: [%q]}}}}\n", url, deny) + allow("red", url)
	}
	s := start(t, "", config("resource:note://two"))
	var created command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "a", Agent: "general"}, &created); err != nil {
		t.Fatal(err)
	}
	listen := func(token string, uris ...string) (heard *atomic.Int64, end context.CancelFunc) {
		t.Helper()
		list, _ := json.Marshal(uris)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		req, _ := http.NewRequestWithContext(ctx, "POST", s.agentURL("general"), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"resourceSubscriptions":`+string(list)+`}}}`))
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token,
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		heard = &atomic.Int64{}
		go func() {
			defer resp.Body.Close()
			buf := make([]byte, 4096)
			for {
				n, err := resp.Body.Read(buf)
				heard.Add(int64(strings.Count(string(buf[:n]), "notifications/resources/updated")))
				if err != nil {
					return
				}
			}
		}()
		return heard, cancel
	}
	var mu sync.Mutex
	changed := func(uri string) {
		mu.Lock()
		defer mu.Unlock()
		if err := srv.ResourceUpdated(context.WithoutCancel(t.Context()), &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			t.Error(err)
		}
	}
	denied, _ := listen(created.Value, "note://two")
	first, _ := listen(created.Value, "note://one")
	second, endSecond := listen(created.Value, "note://one")
	within(t, 10*time.Second, "both hear", func() bool {
		changed("note://one")
		changed("note://two")
		time.Sleep(50 * time.Millisecond)
		return first.Load() > 0 && second.Load() > 0
	})
	endSecond()
	time.Sleep(300 * time.Millisecond)
	n := first.Load()
	within(t, 5*time.Second, "the first still hears", func() bool { changed("note://one"); time.Sleep(50 * time.Millisecond); return first.Load() > n })
	if denied.Load() != 0 {
		t.Error("a denied resource was heard of")
	}
	if err := s.do("tokens.revoke", command.TokenInput{ID: created.ID}, &command.Said{}); err != nil {
		t.Fatal(err)
	}
	n = first.Load()
	changed("note://one")
	time.Sleep(300 * time.Millisecond)
	if first.Load() != n {
		t.Error("a revoked token still hears")
	}
}

// A person's own tools take no bare name, and no tool takes the form of a prefixed one.
func TestBareNamesAreNobodysToTake(t *testing.T) {
	own, org := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("mcp__org__look", "")), fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", fmt.Sprintf("agents: {general: {names: bare}}\nusers: {\"cli:local\": {connections: {own: {url: %q}}}}\norg: {connections: {org: {url: %q}, thief: {url: %q}}}\n", own.Endpoint(), org.Endpoint(), own.Endpoint())+
		allow("own", own.URL, "org", org.URL, "thief", own.URL))
	var listed struct{ Tools []struct{ Name string } }
	token := s.agentToken("general")
	resp := s.post("general", token, s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id"), `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var m struct{ Result json.RawMessage }
	if err := jsonDecode(resp, &m); err != nil || json.Unmarshal(m.Result, &listed) != nil {
		t.Fatal(err)
	}
	for _, x := range listed.Tools {
		if x.Name == "mcp__org__look" {
			t.Errorf("a tool took another's form: %+v", listed.Tools)
		}
	}
	c := s.plug("general", token, "2025-11-25", nil)
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "look"}); err != nil || r.IsError || len(org.Calls()) != 1 || len(own.Calls()) != 0 {
		t.Errorf("%+v %v, %d and %d", r, err, len(org.Calls()), len(own.Calls()))
	}
}
