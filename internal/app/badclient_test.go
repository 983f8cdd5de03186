package app_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
)

// raw writes bytes to the server as they are and returns the first answer.
func (s *served) raw(text string) (status int, body string) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.a.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
	c.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error() // it hung up, which is an answer too
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// Whatever a client sends, it gets an answer or is hung up on, no tool runs by mistake,
// and the next client is served.
func TestBadClients(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("read_issue", ""), fake.Tool("delete_repo", ""))
	s := start(t, "", upConfig(m))
	token, other := s.agentToken("general"), s.agentToken("general")
	const begin = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	session := func(token string) string {
		t.Helper()
		resp := s.post("general", token, "", begin)
		if resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		return resp.Header.Get("Mcp-Session-Id")
	}
	mine, theirs := session(token), session(other)
	call := func(params string) string {
		return `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":` + params + `}`
	}
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	for what, c := range map[string]struct {
		session, body string
		status        int
		code          int64
	}{
		"a batch":                     {mine, `[` + call(`{"name":"mcp__up__read_issue"}`) + `]`, 400, mcp.CodeParse},
		"an id that is an object":     {mine, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, 400, mcp.CodeParse},
		"no version":                  {mine, `{"id":1,"method":"ping"}`, 400, mcp.CodeParse},
		"an unknown method":           {mine, `{"jsonrpc":"2.0","id":1,"method":"tools/delete"}`, 200, mcp.CodeMethodNotFound},
		"a name twice":                {mine, call(`{"name":"mcp__up__read_issue","name":"mcp__up__delete_repo"}`), 400, mcp.CodeParse},
		"an argument twice":           {mine, call(`{"name":"mcp__up__read_issue","arguments":{"x":"1","x":"2"}}`), 400, mcp.CodeParse},
		"NAME alone":                  {mine, call(`{"NAME":"mcp__up__delete_repo"}`), 200, mcp.CodeInvalidParams},
		"arguments that are a list":   {mine, call(`{"name":"mcp__up__read_issue","arguments":[]}`), 200, mcp.CodeInvalidParams},
		"params that are a list":      {mine, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`, 400, mcp.CodeParse},
		"a lone surrogate":            {mine, call(`{"name":"mcp__up__read_issue","arguments":{"x":"\ud800"}}`), 400, mcp.CodeParse},
		"invalid UTF-8":               {mine, call("{\"name\":\"mcp__up__read_issue\",\"arguments\":{\"x\":\"\xff\"}}"), 400, mcp.CodeParse},
		"nested beyond reason":        {mine, call(`{"name":"mcp__up__read_issue","arguments":` + deep + `}`), 400, mcp.CodeParse},
		"nothing":                     {mine, ``, 400, mcp.CodeParse},
		"another user's session":      {theirs, call(`{"name":"mcp__up__read_issue"}`), 404, mcp.CodeInvalidRequest},
		"a session of nobody":         {"x.y.1.z", call(`{"name":"mcp__up__read_issue"}`), 404, mcp.CodeInvalidRequest},
		"an unknown level":            {mine, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}`, 200, mcp.CodeInvalidParams},
		"a cursor of nowhere":         {mine, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"../../etc"}}`, 200, mcp.CodeInvalidParams},
		"an answer that nobody asked": {mine, `{"jsonrpc":"2.0","id":7,"result":{}}`, 202, 0},
		"a body that is too large":    {mine, call(`{"name":"mcp__up__read_issue","arguments":{"x":"` + strings.Repeat("a", 5<<20) + `"}}`), 413, mcp.CodeInvalidRequest},
	} {
		resp := s.post("general", token, c.session, c.body)
		var got struct{ Error struct{ Code int64 } }
		b, _ := io.ReadAll(resp.Body)
		if len(b) > 0 && json.Unmarshal(b, &got) != nil {
			t.Errorf("%s: %s", what, b)
		}
		if resp.StatusCode != c.status || got.Error.Code != c.code {
			t.Errorf("%s: %d %d, %.200s", what, resp.StatusCode, got.Error.Code, b)
		}
	}
	head := "POST /mcp/agents/general HTTP/1.1\r\nHost: " + s.a.Addr() + "\r\nAuthorization: Bearer " + token + "\r\nMcp-Session-Id: " + mine + "\r\nContent-Type: application/json\r\n"
	good := call(`{"name":"mcp__up__delete_repo","arguments":{}}`)
	for what, text := range map[string]string{
		"half a body":                  head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good)+50, good),
		"a length that is too short":   head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good)-5, good),
		"two lengths":                  head + fmt.Sprintf("Content-Length: %d\r\nContent-Length: 3\r\n\r\n%s", len(good), good),
		"a negative length":            head + "Content-Length: -1\r\n\r\n" + good,
		"a length and chunks":          head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", len(good), good),
		"a line break in a header":     head + "Mcp-Protocol-Version: 2025-11-25\r\n Evil: x\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good), good) + "\x00",
		"a bare CR in a header":        head + "X-A: a\rb\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good), good),
		"a version that is not spoken": head + "Mcp-Protocol-Version: 2019-01-01\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good), good),
		"a version of the far future":  head + "Mcp-Protocol-Version: 2099-01-01\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(good), good),
	} {
		if status, body := s.raw(text); status >= 200 && status < 300 && strings.Contains(body, `"result"`) {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	if calls := m.Calls(); len(calls) != 0 {
		t.Errorf("tools ran: %+v", calls)
	}
	if resp := s.post("general", token, mine, call(`{"name":"mcp__up__read_issue","arguments":{"NAME":"x","name":"y"}}`)); resp.StatusCode != 200 || len(m.Calls()) != 1 {
		t.Errorf("a good call: %d, %d ran", resp.StatusCode, len(m.Calls()))
	}
	// Another agent's session does not open this one's.
	foreign := s.agentToken("review")
	resp := s.post("review", foreign, "", begin)
	if got := s.post("general", token, resp.Header.Get("Mcp-Session-Id"), call(`{"name":"mcp__up__read_issue"}`)); got.StatusCode != 404 {
		t.Errorf("another agent's session: %d", got.StatusCode)
	}
}

// post sends one request of the legacy era.
func (s *served) post(agent, token, session, body string) *http.Response {
	s.t.Helper()
	req, _ := http.NewRequest("POST", s.agentURL(agent), strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A server that dies in mid-stream leaves its caller with an error of its own request,
// and the effect unknown; so does one whose answer never ends.
func TestAServerThatDiesInMidStream(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("wire", ""))
	s := start(t, "", "limits: {idle_timeout: 1s}\n"+upConfig(m))
	token := s.agentToken("general")
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header.Get("Mcp-Session-Id")
	for i, end := range map[int]func(w http.ResponseWriter, r *http.Request){
		1: func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		},
		2: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		m.Wrap(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Mcp-Method") != "tools/call" {
					next.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":")
				w.(http.Flusher).Flush()
				end(w, r)
			})
		})
		began := time.Now()
		resp := s.post("general", token, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"mcp__up__wire"}}`, 40+i))
		var got struct {
			ID     int
			Result struct {
				IsError bool
				Meta    map[string]string `json:"_meta"`
			}
		}
		if err := jsonDecode(resp, &got); err != nil || got.ID != 40+i || !got.Result.IsError || got.Result.Meta["patchbay/state"] != "unknown" || time.Since(began) > 10*time.Second {
			t.Errorf("%d: %+v %v", i, got, err)
		}
		s.settle(1)
	}
	m.Wrap(nil)
	if calls := s.calls("state = 'resolved_done'"); len(calls) != 2 {
		t.Errorf("%+v", calls)
	}
}

// A tool whose connection has to be signed in again is still listed; its call says
// where, by a page that the client shows, where it can.
func TestASignInIsAskedForByURL(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.RequireToken("first-token-5Yk2Qw8Z")
	t.Setenv("UP_TOKEN", "first-token-5Yk2Qw8Z")
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q, token_env: UP_TOKEN}}}\n", m.Endpoint())+allow("up", m.URL))
	var test command.MCPTest
	if err := s.do("mcp.test", command.NameInput{Name: "up"}, &test); err != nil || test.Tools != 1 {
		t.Fatalf("%+v %v", test, err)
	}
	m.RequireToken("another")
	token := s.agentToken("general")
	res, code := s.modernAs(token, `{"elicitation":{"url":{}}}`, "tools/call", "mcp__up__look", "")
	if text := fmt.Sprint(res); code != 0 || !strings.Contains(text, "input_required") || !strings.Contains(text, "/connections/con_") || !strings.Contains(text, "url") {
		t.Errorf("%v %v", res, code)
	}
	res, _ = s.modernAs(token, `{}`, "tools/call", "mcp__up__look", "")
	if text := fmt.Sprint(res); res["isError"] != true || !strings.Contains(text, "/connections/con_") {
		t.Errorf("without: %v", res)
	}
	id := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"url":{}}}}}`).Header.Get("Mcp-Session-Id")
	resp := s.post("general", token, id, `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"mcp__up__look"}}`)
	b, _ := io.ReadAll(resp.Body)
	if !strings.Contains(string(b), "-32042") || !strings.Contains(string(b), `"elicitations"`) {
		t.Errorf("2025-11-25: %s", b)
	}
}

// Clients that open sessions and leave cost no more than the bound on sessions allows:
// what is over it ends, at the server too.
func TestSessionsThatAreLeft(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.Half.Sessions = true
	s := start(t, "", "limits: {ingress_sessions: 10}\n"+upConfig(m))
	token := s.agentToken("general")
	open := func(n int) {
		t.Helper()
		for range n {
			resp := s.post("general", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
			call := s.post("general", token, resp.Header.Get("Mcp-Session-Id"), `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mcp__up__look"}}`)
			if b, _ := io.ReadAll(call.Body); !strings.Contains(string(b), `"content"`) {
				t.Fatalf("%s", b)
			}
			resp.Body.Close()
			call.Body.Close()
		}
	}
	open(20)
	time.Sleep(200 * time.Millisecond)
	before := runtime.NumGoroutine()
	open(300)
	within(t, 10*time.Second, "the sessions' end", func() bool { return runtime.NumGoroutine() < before+20 })
}
