package mcp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
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
	case m.Method == MethodInitialize:
		w.Header().Set(headerSession, "s1")
		answer(w, string(m.ID), `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
	case m.Method == MethodInitialized, m.Method == MethodCancelled:
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
		MethodInitialized: func(w http.ResponseWriter, r *http.Request, _ string) { note(r); w.WriteHeader(202) },
		MethodToolsCall:   func(w http.ResponseWriter, r *http.Request, id string) { note(r); answer(w, id, okText) },
		http.MethodDelete: func(w http.ResponseWriter, r *http.Request, _ string) { note(r) },
	}, nil)
	if c.Era() != EraLegacy || c.Version() != Version20251125 || c.Shareable() {
		t.Fatalf("era %v, version %s", c.Era(), c.Version())
	}
	if _, err := c.Call(t.Context(), Call{Name: "x"}); err != nil {
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
		{"a 400 that talks of some session", raw(400, "", "payment taken; the checkout session could not be stored"), plane.Ending{Status: 400, Fault: plane.FaultHTTP}},
		{"another 400", raw(400, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"bad args"}}`), plane.Ending{Status: 400, RPC: true, RPCCode: -32602, Fault: plane.FaultHTTP}},
		{"header mismatch", raw(400, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32020,"message":"x"}}`), plane.Ending{Status: 400, HeaderMismatch: true, Fault: plane.FaultHTTP}},
		{"429", raw(429, "Retry-After: 7", ""), plane.Ending{Status: 429, Fault: plane.FaultHTTP}},
		{"503 session unknown proves nothing", raw(503, "", "session unknown"), plane.Ending{Status: 503, Fault: plane.FaultHTTP}},
		{"500 with an RPC error proves nothing", raw(500, js, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}`), plane.Ending{Status: 500, Fault: plane.FaultHTTP}},
		{"a redirect", raw(307, "Location: https://elsewhere.example/", ""), plane.Ending{Status: 307, Fault: plane.FaultHTTP}},
		{"a stream that ends", raw(200, ev, ": nothing\n\n"), plane.Ending{Fault: plane.FaultTransport}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := opened(t, script{MethodToolsCall: c.serve}, nil)
			reply, err := client.Call(t.Context(), Call{Name: "x", Arguments: json.RawMessage(`{}`)})
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
	c := opened(t, script{MethodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, result) }}, nil)
	r, err := c.Call(t.Context(), Call{Name: "x"})
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
		script{MethodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) { answer(w, id, okText) }}.ServeHTTP(w, r)
	}))
	defer srv.Close()
	c := newTestClient(t, srv.URL, func(o *Options) { o.Era = EraLegacy })
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), Call{Name: `we"ird`, Arguments: json.RawMessage(`{"n":9007199254740993, "b":1}`)}); err != nil {
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
			c := opened(t, script{MethodToolsCall: serve,
				MethodCancelled: func(w http.ResponseWriter, _ *http.Request, _ string) { cancelled.Store(true); w.WriteHeader(202) }},
				func(o *Options) { o.Bounds.Idle = 150 * time.Millisecond })
			_, err := c.Call(t.Context(), Call{Name: "x"})
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
	c := opened(t, script{MethodToolsCall: func(w http.ResponseWriter, _ *http.Request, id string) {
		for range 5 {
			sse(w, `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`+"\n\n")
			time.Sleep(250 * time.Millisecond)
		}
		sse(w, `data: {"jsonrpc":"2.0","id":`+id+`,"result":`+okText+"}\n\n")
	}}, func(o *Options) { o.Bounds.Idle = time.Second })
	var progress atomic.Int32
	if _, err := c.Call(t.Context(), Call{Name: "x", Progress: func(json.RawMessage) { progress.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	if progress.Load() != 5 {
		t.Errorf("%d notices of progress", progress.Load())
	}
}

func TestCancellationIsUncertain(t *testing.T) {
	arrived := make(chan struct{})
	c := opened(t, script{MethodToolsCall: func(w http.ResponseWriter, r *http.Request, _ string) { close(arrived); <-r.Context().Done() }}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := c.Call(ctx, Call{Name: "x"})
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
		MethodToolsCall: func(w http.ResponseWriter, _ *http.Request, i string) {
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
	if _, err := c.Call(t.Context(), Call{Name: "x"}); err != nil {
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
		case m.Method == MethodToolsCall:
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
	if _, err := c.Call(t.Context(), Call{Name: "x"}); err != nil {
		t.Fatal(err)
	}
}
