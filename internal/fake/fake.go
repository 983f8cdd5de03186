// Package fake holds peers for tests that speak the real protocols in process
// and misbehave on command: an MCP server and a language model. Test code only.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/mcp"
)

// MCP is an MCP server. Its behaviour may be changed while it runs.
type MCP struct {
	*httptest.Server
	Half *mcp.Server

	mu       sync.Mutex
	tools    []json.RawMessage
	call     func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError)
	override http.HandlerFunc // serves instead, when it is set
	wrap     func(next http.Handler) http.Handler
	calls    []Seen
	token    string
	guard    func(r *http.Request) (challenge string, status int)
}

// Seen is a tools/call that arrived.
type Seen struct {
	Name      string
	Arguments string
	Header    http.Header
}

// NewMCP starts a server that offers tools, given as whole JSON objects, and
// answers each call with its arguments as text.
func NewMCP(t testing.TB, tools ...string) *MCP {
	t.Helper()
	m := &MCP{}
	for _, x := range tools {
		m.tools = append(m.tools, json.RawMessage(x))
	}
	m.Half = &mcp.Server{Info: mcp.Implementation{Name: "fake", Version: "1"}, Tools: m}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(func() {
		m.CloseClientConnections()
		m.Server.Close()
	})
	return m
}

// Endpoint is the server's URL.
func (m *MCP) Endpoint() string { return m.URL + "/mcp" }

// SetTools replaces the list and tells the listeners.
func (m *MCP) SetTools(tools ...string) {
	m.mu.Lock()
	m.tools = nil
	for _, x := range tools {
		m.tools = append(m.tools, json.RawMessage(x))
	}
	m.mu.Unlock()
	m.Half.ListChanged()
}

// OnCall replaces what a call does.
func (m *MCP) OnCall(fn func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.call = fn
}

// Override serves everything by fn; nil ends it.
func (m *MCP) Override(fn http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.override = fn
}

// Wrap puts fn around the server; nil ends it.
func (m *MCP) Wrap(fn func(next http.Handler) http.Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrap = fn
}

// Around puts fn around the server and what is around it already; the returned
// function takes it away.
func (m *MCP) Around(fn func(next http.Handler) http.Handler) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.wrap
	m.wrap = func(next http.Handler) http.Handler {
		if old != nil {
			next = old(next)
		}
		return fn(next)
	}
	return func() { m.Wrap(old) }
}

// RequireToken answers 401 to everything without that bearer.
func (m *MCP) RequireToken(token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token = token
}

// Guard asks fn about every request; a challenge refuses it with that status.
func (m *MCP) Guard(fn func(r *http.Request) (challenge string, status int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guard = fn
}

// Calls are the tools/call requests that ran.
func (m *MCP) Calls() []Seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Seen(nil), m.calls...)
}

func (m *MCP) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	override, wrap, token, guard := m.override, m.wrap, m.token, m.guard
	m.mu.Unlock()
	// With the body read, the request's context ends when the peer goes away.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if guard != nil && r.URL.Path == "/mcp" {
		if challenge, status := guard(r); status != 0 {
			w.Header().Set("WWW-Authenticate", challenge)
			w.WriteHeader(status)
			return
		}
	}
	switch {
	case override != nil:
		override(w, r)
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		http.Error(w, "no", http.StatusUnauthorized)
	case wrap != nil:
		wrap(m.Half).ServeHTTP(w, r)
	default:
		m.Half.ServeHTTP(w, r)
	}
}

// Tools lists.
func (m *MCP) Tools(context.Context, *http.Request) ([]json.RawMessage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tools, nil
}

// CallTool counts the call and runs it.
func (m *MCP) CallTool(_ context.Context, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	m.mu.Lock()
	m.calls = append(m.calls, Seen{in.Name, string(in.Arguments), in.HTTP.Header.Clone()})
	call := m.call
	m.mu.Unlock()
	if call != nil {
		return call(in)
	}
	return Text(string(in.Arguments)), nil
}

// Text is a result of one text part.
func Text(s string) json.RawMessage {
	b, err := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": s}}})
	if err != nil {
		panic(err) // a string always marshals
	}
	return b
}

// Tool is a definition with an empty object schema and more members.
func Tool(name, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"name":%q,"description":"Does %s.","inputSchema":{"type":"object","properties":{"x":{"type":"string"}}}%s}`, name, name, more)
}

// Turn is one answer of the fake model.
type Turn struct {
	Text  string
	Calls []ToolCall
	// Status answers with an HTTP error instead.
	Status int
	// Cut ends the stream half way.
	Cut bool
	// Wait holds the answer back.
	Wait time.Duration
}

// ToolCall is a tool use of a turn.
type ToolCall struct {
	ID, Name, Input string
}

// LLM is a model endpoint that speaks Anthropic's and OpenAI's streaming wire.
type LLM struct {
	*httptest.Server
	mu       sync.Mutex
	turns    []Turn
	script   func(n int, request string) Turn
	requests []json.RawMessage
	headers  []http.Header
}

// NewLLM starts an endpoint that gives the turns in order, the last for ever.
func NewLLM(t testing.TB, turns ...Turn) *LLM {
	t.Helper()
	l := &LLM{turns: turns}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, anthropicStream) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, openaiStream) })
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Server.Close)
	return l
}

// Script decides each turn by its number, from 0, and the request.
func (l *LLM) Script(fn func(n int, request string) Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.script = fn
}

// Requests are the bodies that arrived.
func (l *LLM) Requests() []json.RawMessage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]json.RawMessage(nil), l.requests...)
}

// Headers are the headers that arrived.
func (l *LLM) Headers() []http.Header {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]http.Header(nil), l.headers...)
}

func (l *LLM) serve(w http.ResponseWriter, r *http.Request, stream func(t Turn) []string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var compact bytes.Buffer
	if json.Compact(&compact, body) == nil {
		body = compact.Bytes()
	}
	l.mu.Lock()
	var turn Turn
	if l.script != nil {
		turn = l.script(len(l.requests), string(body))
	} else {
		turn = l.turns[min(len(l.requests), len(l.turns)-1)]
	}
	l.requests = append(l.requests, body)
	l.headers = append(l.headers, r.Header.Clone())
	l.mu.Unlock()
	select {
	case <-time.After(turn.Wait):
	case <-r.Context().Done():
		return
	}
	if turn.Status != 0 {
		http.Error(w, `{"error":{"type":"error","message":"as told"}}`, turn.Status)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	events := stream(turn)
	if turn.Cut {
		events = events[:len(events)/2]
	}
	for _, e := range events {
		io.WriteString(w, e)
		w.(http.Flusher).Flush()
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(b)
}

func anthropicStream(t Turn) []string {
	var out []string
	add := func(kind, data string) { out = append(out, "event: "+kind+"\ndata: "+data+"\n\n") }
	add("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"fake","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":7,"output_tokens":1}}}`)
	i := 0
	if t.Text != "" {
		add("content_block_start", fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"text","text":""}}`, i))
		for word := range strings.SplitAfterSeq(t.Text, " ") {
			add("content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%s}}`, i, quote(word)))
		}
		add("content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
		i++
	}
	stop := "end_turn"
	for _, c := range t.Calls {
		stop = "tool_use"
		add("content_block_start", fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":%q,"name":%q,"input":{}}}`, i, c.ID, c.Name))
		half := len(c.Input) / 2
		for _, part := range []string{c.Input[:half], c.Input[half:]} {
			add("content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%s}}`, i, quote(part)))
		}
		add("content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
		i++
	}
	add("message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":9}}`, stop))
	add("message_stop", `{"type":"message_stop"}`)
	return out
}

func openaiStream(t Turn) []string {
	var out []string
	chunk := func(delta, finish string) {
		out = append(out, fmt.Sprintf("data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"fake\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", delta, finish))
	}
	chunk(`{"role":"assistant","content":""}`, "null")
	if t.Text != "" {
		for word := range strings.SplitAfterSeq(t.Text, " ") {
			chunk(fmt.Sprintf(`{"content":%s}`, quote(word)), "null")
		}
	}
	stop := `"stop"`
	for i, c := range t.Calls {
		stop = `"tool_calls"`
		half := len(c.Input) / 2
		chunk(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}]}`, i, c.ID, c.Name, quote(c.Input[:half])), "null")
		chunk(fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, i, quote(c.Input[half:])), "null")
	}
	chunk(`{}`, stop)
	out = append(out, "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"fake\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,\"total_tokens\":16}}\n\n", "data: [DONE]\n\n")
	return out
}
