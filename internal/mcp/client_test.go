package mcp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/plane"
)

func testBounds() Bounds {
	return Bounds{Header: 2 * time.Second, Idle: 2 * time.Second, Total: 10 * time.Second, Body: 256 << 10, Tools: 50, Pages: 5, Resumes: 2}
}

func newTestClient(t *testing.T, url string, change func(*Options)) *Client {
	t.Helper()
	o := Options{Endpoint: url, Transport: &http.Transport{}, Info: Implementation{"test", "1"}, Bounds: testBounds()}
	if change != nil {
		change(&o)
	}
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// script answers POSTs by method; what it does not name is refused.
type script map[string]func(w http.ResponseWriter, r *http.Request, id string)

func (s script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	json.Unmarshal(body, &m)
	if r.Method != http.MethodPost {
		m.Method = r.Method
	}
	switch fn := s[m.Method]; {
	case fn != nil:
		fn(w, r, string(m.ID))
	case m.Method == methodInitialize:
		w.Header().Set(headerSession, "s1")
		answer(w, string(m.ID), `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
	case m.Method == methodInitialized, m.Method == methodCancelled:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "":
		w.WriteHeader(http.StatusAccepted)
	default:
		w.WriteHeader(http.StatusBadRequest)
	}
}

func answer(w http.ResponseWriter, id, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		io.WriteString(w, e)
		w.(http.Flusher).Flush()
	}
}

func opened(t *testing.T, s script, change func(*Options)) *Client {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	c := newTestClient(t, srv.URL, change)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

const okText = `{"content":[{"type":"text","text":"ok"}]}`

func TestInitializesOnceAndKeepsTheSession(t *testing.T) {
	var seen []http.Header
	var mu sync.Mutex
	note := func(r *http.Request) { mu.Lock(); seen = append(seen, r.Header.Clone()); mu.Unlock() }
	c := opened(t, script{
		methodInitialized: func(w http.ResponseWriter, r *http.Request, _ string) { note(r); w.WriteHeader(202) },
		methodToolsCall:   func(w http.ResponseWriter, r *http.Request, id string) { note(r); answer(w, id, okText) },
		http.MethodDelete: func(w http.ResponseWriter, r *http.Request, _ string) { note(r) },
	}, nil)
	if c.Era() != EraLegacy || c.Version() != Version20251125 || c.Shareable() {
		t.Fatalf("era %v, version %s", c.Era(), c.Version())
	}
	if _, err := c.CallTool(t.Context(), Call{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if len(seen) != 3 {
		t.Fatalf("%d requests after initialize, want initialized, call and DELETE", len(seen))
	}
	for _, h := range seen {
		if h.Get(headerSession) != "s1" || h.Get(headerProtocol) != Version20251125 {
			t.Errorf("session %q, version %q", h.Get(headerSession), h.Get(headerProtocol))
		}
	}
	if got := seen[1].Get("Accept"); got != "application/json, text/event-stream" {
		t.Errorf("Accept is %q", got)
	}
}

// Each way a server may answer a call, and what is then known of it.
func TestHowACallEnds(t *testing.T) {
	raw := func(status int, header, body string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, id string) {
			for h := range strings.SplitSeq(header, "\n") {
				if k, v, ok := strings.Cut(h, ": "); ok {
					w.Header().Set(k, v)
				}
			}
			w.WriteHeader(status)
			io.WriteString(w, strings.ReplaceAll(body, "ID", id))
		}
	}
	const js, ev = "Content-Type: application/json", "Content-Type: text/event-stream"
	zip := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, s)
		z.Close()
		return b.String()
	}
	bomb := zip(strings.Repeat(" ", 64<<20))
	for _, c := range []struct {
		name  string
		serve func(http.ResponseWriter, *http.Request, string)
		want  plane.Ending
	}{
		{"JSON", raw(200, js, `{"jsonrpc":"2.0","id":ID,"result":`+okText+`}`), plane.Ending{Answered: true}},
		{"JSON with charset", raw(200, js+"; charset=utf-8", `{"jsonrpc":"2.0","id":ID,"result":`+okText+`}`), plane.Ending{Answered: true}},
		{"isError", raw(200, js, `{"jsonrpc":"2.0","id":ID,"result":{"content":[],"isError":true}}`), plane.Ending{Answered: true, IsError: true}},
		{"id as a string", raw(200, js, `{"jsonrpc":"2.0","id":"ID","result":`+okText+`}`), plane.Ending{Answered: true}},
		{"SSE", raw(200, ev, "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":"+okText+"}\n\n"), plane.Ending{Answered: true}},
		{"SSE after other frames", raw(200, ev, ": hello\n\nid: 1\ndata:\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":"+okText+"}\n\n"), plane.Ending{Answered: true}},
		{"SSE over several lines", raw(200, ev, "data: {\"jsonrpc\":\"2.0\",\r\ndata: \"id\":ID,\rdata:\"result\":"+okText+"}\n\n"), plane.Ending{Answered: true}},
		{"no content type", raw(200, "Content-Type: ", `{"jsonrpc":"2.0","id":ID,"result":`+okText+`}`), plane.Ending{Answered: true}},
		{"gzip unasked for", raw(200, js+"\nContent-Encoding: gzip", zip(`{"jsonrpc":"2.0","id":1,"result":`+okText+`}`)), plane.Ending{Fault: plane.FaultProtocol}}, // its id is another's
		{"a zip bomb", raw(200, js+"\nContent-Encoding: gzip", bomb), plane.Ending{Fault: plane.FaultTooLarge}},
		{"brotli", raw(200, js+"\nContent-Encoding: br", "xx"), plane.Ending{Fault: plane.FaultProtocol}},
		{"over the cap", raw(200, js, `{"jsonrpc":"2.0","id":ID,"result":"`+strings.Repeat("x", 300<<10)+`"}`), plane.Ending{Fault: plane.FaultTooLarge}},
		{"an endless line", raw(200, ev, "data: "+strings.Repeat("x", 300<<10)), plane.Ending{Fault: plane.FaultTooLarge}},
		{"half JSON", raw(200, js, `{"jsonrpc":"2.0","id":ID,"resu`), plane.Ending{Fault: plane.FaultProtocol}},
		{"HTML", raw(200, "Content-Type: text/html", "<!doctype html>"), plane.Ending{Fault: plane.FaultProtocol}},
		{"an empty 202", raw(202, "", ""), plane.Ending{Fault: plane.FaultProtocol}},
		{"a batch", raw(200, js, `[{"jsonrpc":"2.0","id":ID,"result":{}}]`), plane.Ending{Fault: plane.FaultProtocol}},
		{"a member twice", raw(200, js, `{"jsonrpc":"2.0","id":ID,"result":{"isError":false,"isError":true}}`), plane.Ending{Fault: plane.FaultProtocol}},
		{"another's id", raw(200, js, `{"jsonrpc":"2.0","id":77,"result":{}}`), plane.Ending{Fault: plane.FaultProtocol}},
		{"a lone surrogate in text", raw(200, js, `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\ud83d"}]}}`), plane.Ending{Answered: true}},
		{"RPC error", raw(200, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"bad"}}`), plane.Ending{RPC: true, RPCCode: -32602}},
		{"RPC error with null id", raw(200, js, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"x"}}`), plane.Ending{RPC: true, RPCCode: -32000}},
		{"401", raw(401, "WWW-Authenticate: Bearer", ""), plane.Ending{Status: 401, Challenge: true, Fault: plane.FaultHTTP}},
		{"403 with a challenge", raw(403, "WWW-Authenticate: Bearer error=\"insufficient_scope\"", ""), plane.Ending{Status: 403, Challenge: true, Fault: plane.FaultHTTP}},
		{"403 without", raw(403, "", ""), plane.Ending{Status: 403, Fault: plane.FaultHTTP}},
		{"404 of a session", raw(404, "", ""), plane.Ending{Status: 404, SessionLost: true, Fault: plane.FaultHTTP}},
		{"400 of a session", raw(400, js, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`), plane.Ending{Status: 400, SessionLost: true, Fault: plane.FaultHTTP}},
		{"another 400", raw(400, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"bad args"}}`), plane.Ending{Status: 400, RPC: true, RPCCode: -32602, Fault: plane.FaultHTTP}},
		{"header mismatch", raw(400, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32020,"message":"x"}}`), plane.Ending{Status: 400, HeaderMismatch: true, Fault: plane.FaultHTTP}},
		{"429", raw(429, "Retry-After: 7", ""), plane.Ending{Status: 429, Fault: plane.FaultHTTP}},
		{"503 session unknown proves nothing", raw(503, "", "session unknown"), plane.Ending{Status: 503, Fault: plane.FaultHTTP}},
		{"500 with an RPC error proves nothing", raw(500, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`), plane.Ending{Status: 500, Fault: plane.FaultHTTP}},
		{"a redirect", raw(307, "Location: https://elsewhere.example/", ""), plane.Ending{Status: 307, Fault: plane.FaultHTTP}},
		{"a stream that ends", raw(200, ev, ": nothing\n\n"), plane.Ending{Fault: plane.FaultTransport}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := opened(t, script{methodToolsCall: c.serve}, nil)
			reply, err := client.CallTool(t.Context(), Call{Name: "x", Arguments: json.RawMessage(`{}`)})
			got := plane.Ending{Answered: err == nil, IsError: reply.IsError}
			if err != nil {
				got = AsError(err).Ending
				if got.Detail == "" {
					t.Error("no sentence")
				}
				got.Detail = ""
			}
			if got != c.want {
				t.Errorf("got %+v\nwant %+v (%v)", got, c.want, err)
			}
		})
	}
}

func TestResultKeepsItsBytes(t *testing.T) {
	const result = `{ "content":[{"type":"text","text":"a\u00e9\ud83d\ude00"}],  "structuredContent":{"n":12345678901234567890,"z":1,"a":1.50},"unknown":{"x":[ ]}}`
	c := opened(t, script{methodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, result) }}, nil)
	r, err := c.CallTool(t.Context(), Call{Name: "x"})
	if err != nil || string(r.Result) != result {
		t.Fatalf("%s\n%v", r.Result, err)
	}
}

// The arguments' bytes are spliced; everything else is ours.
func TestCallSendsOurEnvelope(t *testing.T) {
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if bytes.Contains(b, []byte("tools/call")) {
			body = b
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		script{methodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, okText) }}.ServeHTTP(w, r)
	}))
	defer srv.Close()
	c := newTestClient(t, srv.URL, func(o *Options) { o.Era = EraLegacy })
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CallTool(t.Context(), Call{Name: `we"ird`, Arguments: json.RawMessage(`{"n":9007199254740993, "b":1}`)}); err != nil {
		t.Fatal(err)
	}
	want := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":2},"name":"we\"ird","arguments":{"n":9007199254740993, "b":1}}}`
	if string(body) != want {
		t.Errorf("sent %s\nwant %s", body, want)
	}
}

func TestTimesOut(t *testing.T) {
	for name, serve := range map[string]func(w http.ResponseWriter, r *http.Request, id string){
		"before the header": func(w http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() },
		"in the body": func(w http.ResponseWriter, r *http.Request, _ string) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"jsonrpc":`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"in a stream": func(w http.ResponseWriter, r *http.Request, _ string) { sse(w, ": x\n\n"); <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			var cancelled atomic.Bool
			c := opened(t, script{methodToolsCall: serve,
				methodCancelled: func(w http.ResponseWriter, _ *http.Request, _ string) { cancelled.Store(true); w.WriteHeader(202) }},
				func(o *Options) { o.Bounds.Idle = 150 * time.Millisecond })
			_, err := c.CallTool(t.Context(), Call{Name: "x"})
			if e := AsError(err); err == nil || e.Ending.Fault != plane.FaultTimeout || e.Ending.NothingSent || e.Error() != "The server did not answer in time." {
				t.Fatalf("%v %+v", err, AsError(err).Ending)
			}
			c.workers.Wait()
			if !cancelled.Load() {
				t.Error("the server was not told")
			}
		})
	}
}

// Progress keeps a long call alive past the idle bound.
func TestProgressResetsTheIdleTimer(t *testing.T) {
	c := opened(t, script{methodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) {
		for range 5 {
			sse(w, `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`+"\n\n")
			time.Sleep(100 * time.Millisecond)
		}
		sse(w, `data: {"jsonrpc":"2.0","id":`+id+`,"result":`+okText+"}\n\n")
	}}, func(o *Options) { o.Bounds.Idle = 250 * time.Millisecond })
	var progress atomic.Int32
	if _, err := c.CallTool(t.Context(), Call{Name: "x", Progress: func(json.RawMessage) { progress.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	if progress.Load() != 5 {
		t.Errorf("%d notices of progress", progress.Load())
	}
}

func TestCancellationIsUncertain(t *testing.T) {
	arrived := make(chan struct{})
	c := opened(t, script{methodToolsCall: func(w http.ResponseWriter, r *http.Request, _ string) { close(arrived); <-r.Context().Done() }}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := c.CallTool(ctx, Call{Name: "x"})
	if e := AsError(err).Ending; e.Fault != plane.FaultCancelled || e.NothingSent {
		t.Fatalf("%+v", e)
	}
}

// A cut stream is taken up by GET with the last event's id; the POST happens
// once, and the retry time is kept.
func TestCutStreamIsResumed(t *testing.T) {
	var posts, gets atomic.Int32
	var id atomic.Value
	var waited time.Duration
	cut := time.Now()
	c := opened(t, script{
		methodToolsCall: func(w http.ResponseWriter, _ *http.Request, i string) {
			posts.Add(1)
			id.Store(i)
			sse(w, "id: 7\nretry: 80\ndata:\n\n")
			cut = time.Now()
		},
		http.MethodGet: func(w http.ResponseWriter, r *http.Request, _ string) {
			waited = time.Since(cut)
			if gets.Add(1) == 1 {
				if r.Header.Get("Last-Event-Id") != "7" {
					t.Errorf("Last-Event-ID is %q", r.Header.Get("Last-Event-Id"))
				}
				sse(w, "id: 8\ndata:\n\n")
				return
			}
			sse(w, "id: 9\ndata: {\"jsonrpc\":\"2.0\",\"id\":"+id.Load().(string)+",\"result\":"+okText+"}\n\n")
		},
	}, nil)
	if _, err := c.CallTool(t.Context(), Call{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if posts.Load() != 1 || gets.Load() != 2 || waited < 75*time.Millisecond {
		t.Errorf("%d posts, %d gets, waited %v", posts.Load(), gets.Load(), waited)
	}
}

func TestServerRequestsAreAnswered(t *testing.T) {
	answers := make(chan string, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var m struct {
			ID     json.RawMessage
			Method string
		}
		json.Unmarshal(b, &m)
		switch {
		case m.Method == "" && r.Method == http.MethodPost:
			answers <- string(b)
			w.WriteHeader(202)
		case m.Method == methodToolsCall:
			sse(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"p1\",\"method\":\"ping\"}\n\n", "data: {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"sampling/createMessage\",\"params\":{}}\n\n")
			for range 2 {
				a := <-answers
				if a != `{"jsonrpc":"2.0","id":"p1","result":{}}` && !strings.Contains(a, `"id":5,"error":{"code":-32601`) {
					t.Errorf("answered %s", a)
				}
			}
			sse(w, "data: {\"jsonrpc\":\"2.0\",\"id\":"+string(m.ID)+",\"result\":"+okText+"}\n\n")
		default:
			r.Body = io.NopCloser(bytes.NewReader(b))
			script{}.ServeHTTP(w, r)
		}
	}))
	defer srv.Close()
	c := newTestClient(t, srv.URL, nil)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CallTool(t.Context(), Call{Name: "x"}); err != nil {
		t.Fatal(err)
	}
}

func TestListFollowsPagesToTheCaps(t *testing.T) {
	page := func(next string, n int) string {
		var tools []string
		for i := range n {
			tools = append(tools, fmt.Sprintf(`{"name":"t%s%d"}`, next, i))
		}
		return fmt.Sprintf(`{"tools":[%s],"nextCursor":%q}`, strings.Join(tools, ","), next)
	}
	for _, c := range []struct {
		name  string
		pages func(n int) string
		tools int
		note  string
	}{
		{"two pages", func(n int) string { return []string{page("b", 3), `{"tools":[{"name":"last"}]}`}[n] }, 4, ""},
		{"an empty cursor ends a legacy list", func(int) string { return page("", 2) }, 2, ""},
		{"a repeated cursor", func(int) string { return page("x", 2) }, 4, "repeat"},
		{"a circle of cursors", func(n int) string { return page([]string{"x", "y"}[n%2], 1) }, 3, "repeat"},
		{"too many pages", func(n int) string { return page(fmt.Sprint(n), 1) }, 5, "catalog_pages"},
		{"too many tools", func(n int) string { return page(fmt.Sprint(n), 40) }, 50, "catalog_tools"},
		{"no tools", func(int) string { return `{"tools":[]}` }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			client := opened(t, script{methodToolsList: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, c.pages(n)); n++ }}, nil)
			l, err := client.ListTools(t.Context())
			if err != nil || len(l.Tools) != c.tools || (c.note != "") != (len(l.Notes) == 1) || c.note != "" && !strings.Contains(l.Notes[0], c.note) {
				t.Fatalf("%d tools, notes %v, %v", len(l.Tools), l.Notes, err)
			}
		})
	}
	c := opened(t, script{methodToolsList: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, `{}`) }}, nil)
	if _, err := c.ListTools(t.Context()); err == nil {
		t.Error("a list without tools was taken")
	}
}

func TestEraIsNegotiated(t *testing.T) {
	modern := &Server{Info: Implementation{"m", "1"}, Tools: echoSet{}}
	refuse := func(status int, body string) http.Handler {
		return script{methodDiscover: func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			io.WriteString(w, strings.ReplaceAll(body, "ID", id))
		}}
	}
	for _, c := range []struct {
		name string
		h    http.Handler
		era  Era
	}{
		{"both at one URL", modern, EraModern},
		{"400 without a body", refuse(400, ""), EraLegacy},
		{"404", refuse(404, "not here"), EraLegacy},
		{"method not found", refuse(200, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`), EraLegacy},
		{"401 that means an unknown method", refuse(401, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`), EraLegacy},
		{"only legacy versions", refuse(400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"x","data":{"supported":["2025-06-18"]}}}`), EraLegacy},
		{"discovery of a legacy server", refuse(200, `{"jsonrpc":"2.0","id":ID,"result":{"supportedVersions":["2025-11-25"]}}`), EraLegacy},
		{"a 500", refuse(500, ""), EraLegacy},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(c.h)
			defer srv.Close()
			client := newTestClient(t, srv.URL, nil)
			if err := client.Open(t.Context()); err != nil || client.Era() != c.era {
				t.Fatalf("era %v, %v", client.Era(), err)
			}
		})
	}
	srv := httptest.NewServer(refuse(400, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"x","data":{"supported":["2031-01-01"]}}}`))
	defer srv.Close()
	if err := newTestClient(t, srv.URL, nil).Open(t.Context()); err == nil {
		t.Error("a version of the future was taken")
	}
	old := httptest.NewServer(script{methodInitialize: func(w http.ResponseWriter, _ *http.Request, id string) {
		answer(w, id, `{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"o","version":"1"}}`)
	}})
	defer old.Close()
	if err := newTestClient(t, old.URL, nil).Open(t.Context()); err == nil || !strings.Contains(err.Error(), "2024-11-05") || !strings.Contains(err.Error(), Version20251125) {
		t.Errorf("an old version: %v", err)
	}
}

func TestCookiesStayWithTheSession(t *testing.T) {
	var got string
	c := opened(t, script{
		methodInitialize: func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Set-Cookie", "LB=1; Path=/")
			answer(w, id, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`)
		},
		methodToolsCall: func(w http.ResponseWriter, r *http.Request, id string) {
			got = r.Header.Get("Cookie")
			answer(w, id, okText)
		},
	}, nil)
	if _, err := c.CallTool(t.Context(), Call{Name: "x"}); err != nil || got != "LB=1" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestListenHearsOfChanges(t *testing.T) {
	for _, era := range []Era{EraLegacy, EraModern} {
		half := &Server{Info: Implementation{"m", "1"}, Tools: echoSet{}, Sessions: true}
		srv := httptest.NewServer(half)
		heard := make(chan struct{}, 1)
		c := newTestClient(t, srv.URL, func(o *Options) {
			o.Era = era
			o.ListChanged = func() {
				select {
				case heard <- struct{}{}:
				default:
				}
			}
		})
		if err := c.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Listen()
		deadline := time.After(5 * time.Second)
		for ok := false; !ok; {
			half.ListChanged()
			select {
			case <-heard:
				ok = true
			case <-time.After(10 * time.Millisecond):
			case <-deadline:
				t.Fatalf("era %v heard nothing", era)
			}
		}
		c.Close()
		srv.CloseClientConnections()
		srv.Close()
	}
}

func TestInjectFailureSendsNothing(t *testing.T) {
	var hits atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer srv.Close()
	c := newTestClient(t, srv.URL, func(o *Options) { o.Inject = func(*http.Request) error { return errors.New("no key") } })
	err := c.Open(t.Context())
	if e := AsError(err); err == nil || !e.Ending.NothingSent || hits.Load() != 0 {
		t.Fatalf("%v, %d requests", err, hits.Load())
	}
}

type echoSet struct{}

func (echoSet) Tools(context.Context, *http.Request) ([]json.RawMessage, error) {
	return []json.RawMessage{json.RawMessage(`{"name":"echo","inputSchema":{"type":"object"}}`)}, nil
}

func (echoSet) CallTool(_ context.Context, in *Incoming) (json.RawMessage, *RPCError) {
	if in.Progress != nil {
		in.Progress(1, 2, "half")
	}
	return json.RawMessage(`{"content":[{"type":"text","text":` + string(appendString(nil, string(in.Arguments))) + `}]}`), nil
}

// Client and server halves through the in-memory pair, in both eras.
func TestPair(t *testing.T) {
	for _, era := range []Era{EraLegacy, EraModern} {
		for _, sessions := range []bool{false, true} {
			half := &Server{Info: Implementation{"m", "1"}, Instructions: "be kind", Tools: echoSet{}, Sessions: sessions}
			c := newTestClient(t, "http://pair/mcp", func(o *Options) { o.Transport, o.Era = Pipe(half), era })
			if err := c.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.Server.Name != "m" || c.Instructions != "be kind" || c.Shareable() == (sessions && era == EraLegacy) {
				t.Errorf("%+v %q shareable %v", c.Server, c.Instructions, c.Shareable())
			}
			if l, err := c.ListTools(t.Context()); err != nil || len(l.Tools) != 1 {
				t.Fatal(l, err)
			}
			r, err := c.CallTool(t.Context(), Call{Name: "echo", Arguments: json.RawMessage(`{"n":9007199254740993}`)})
			if err != nil || !strings.Contains(string(r.Result), `{\"n\":9007199254740993}`) {
				t.Fatalf("%s %v", r.Result, err)
			}
			_, err = c.Request(t.Context(), "resources/list", "", nil)
			if e := AsError(err).Ending; !e.RPC || e.RPCCode != CodeMethodNotFound {
				t.Errorf("another method: %+v", e)
			}
			if sessions && era == EraLegacy {
				half.DropSession("")
				if _, err := c.CallTool(t.Context(), Call{Name: "echo"}); !AsError(err).Ending.SessionLost {
					t.Errorf("a dropped session: %v", err)
				}
			}
		}
	}
}
