package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// echoArguments answers with the arguments' bytes, and waits where it is told to.
type echoArguments struct{ wait chan struct{} }

func (echoArguments) Tools(context.Context, *http.Request) ([]json.RawMessage, error) {
	return []json.RawMessage{json.RawMessage(`{"name":"echo","inputSchema":{"type":"object"}}`)}, nil
}

func (e echoArguments) CallTool(ctx context.Context, in *Incoming) (json.RawMessage, *RPCError) {
	if in.Name == "wait" {
		select {
		case <-ctx.Done():
			return nil, &RPCError{Code: CodeInternal, Message: "cancelled"}
		case <-e.wait:
		}
	}
	return json.RawMessage(`{"content":[],"structuredContent":` + string(in.Arguments) + `}`), nil
}

// What clients in the field send, and what the server half makes of it.
func TestTheServerHalfInTheField(t *testing.T) {
	half := &Server{Info: Implementation{"s", "1"}, Tools: echoArguments{}, Sessions: true}
	srv := httptest.NewServer(half)
	defer srv.Close()
	send := func(method, session, version, accept, body string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequest(method, srv.URL, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		for k, v := range map[string]string{headerSession: session, headerProtocol: version} {
			if v != "" {
				req.Header.Set(k, v)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp, string(b)
	}
	const both = "application/json, text/event-stream"
	open := func(version string) (session, said string) {
		t.Helper()
		resp, b := send("POST", "", "", both, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{}}}`)
		return resp.Header.Get(headerSession), b
	}
	// F100: what is asked for and not spoken is answered with what is.
	for asked, got := range map[string]string{"2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25", "2024-11-05": "2025-11-25", "tomorrow": "2025-11-25"} {
		if _, said := open(asked); !strings.Contains(said, `"protocolVersion":"`+got+`"`) {
			t.Errorf("asked for %s: %s", asked, said)
		}
	}
	session, _ := open("2025-11-25")
	call := func(id, args string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"echo","arguments":` + args + `}}`
	}
	for what, c := range map[string]struct{ accept, body, want string }{
		"F097: the id keeps its type":                      {both, call(`"7"`, `{}`), `"id":"7"`},
		"F097: a number stays one":                         {both, call(`7`, `{}`), `"id":7,`},
		"F125: big integers keep their text":               {both, call(`9007199254740993`, `{"n":12345678901234567890,"f":1.10}`), `"id":9007199254740993,"result":{"content":[],"structuredContent":{"n":12345678901234567890,"f":1.10}}`},
		"F103: a ping is answered":                         {both, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `"result":{}`},
		"F133: whoever takes JSON alone gets JSON":         {"application/json", call(`1`, `{}`), `"result"`},
		"F133: whoever says nothing too":                   {"*/*", call(`1`, `{}`), `"result"`},
		"F098: a batch is an error of its own":             {both, `[` + call(`1`, `{}`) + `]`, `"code":-32700`},
		"F107: an error for what has no id names none":     {both, `{"jsonrpc":"2.0","id":[],"method":"ping"}`, `"id":null`},
		"a member of another spelling changes nothing":     {both, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","NAME":"wait","arguments":{}}}`, `"result"`},
		"a progress token that is an object is left alone": {both, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"_meta":{"progressToken":{}}}}`, `"result"`},
	} {
		if _, b := send("POST", session, "2025-11-25", c.accept, c.body); !strings.Contains(b, c.want) {
			t.Errorf("%s: %s", what, b)
		}
	}
	// F085: a session that is not known is 404, whatever is asked; the next begins anew.
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if resp, b := send(method, "gone", "2025-11-25", both, call(`1`, `{}`)); resp.StatusCode != 404 {
			t.Errorf("F085: %s %d %s", method, resp.StatusCode, b)
		}
	}
	// F122: notifications and answers are taken, and have no body.
	for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":99,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/nobody/knows"}`} {
		if resp, b := send("POST", session, "2025-11-25", both, body); resp.StatusCode != 202 || b != "" {
			t.Errorf("F122: %d %q", resp.StatusCode, b)
		}
	}
	// F101: the modern probe is told apart, and a client of it is told what is spoken.
	resp, b := send("POST", "", "2031-01-01", both, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if resp.StatusCode != 400 || !strings.Contains(b, `"code":-32022`) || !strings.Contains(b, Version20260728) {
		t.Errorf("F101: %d %s", resp.StatusCode, b)
	}
	// F131: a body without end is cut off.
	half.MaxBody = 1000
	if resp, _ := send("POST", session, "2025-11-25", both, call(`1`, `{"x":"`+strings.Repeat("a", 5000)+`"}`)); resp.StatusCode != 413 {
		t.Errorf("F131: %d", resp.StatusCode)
	}
}
