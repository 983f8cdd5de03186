package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/fake"
	"patchbay/internal/mcp"
)

// far is the server at the other end. It counts what it executed, and misbehaves by
// what a call is about, so that a schedule can be played again.
type far struct {
	*fake.MCP
	mu       sync.Mutex
	executed map[string]int
	slow     time.Time // until when every answer is slow
}

// seat lets the fakes of tests serve a program.
type seat struct{ testing.TB }

func (seat) Helper()        {}
func (seat) Cleanup(func()) {}

func newFar() *far {
	f := &far{executed: map[string]int{}}
	f.MCP = fake.NewMCP(seat{}, fake.Tool("pay", ""), fake.Tool("ask", ""), fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	f.MCP.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		x := about(in.Arguments)
		how := manner(in.Name, x)
		if how == "refuse" {
			return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "no"}
		}
		f.mu.Lock()
		f.executed[x]++
		slow := time.Until(f.slow)
		f.mu.Unlock()
		switch {
		case how == "slow", slow > 0:
			time.Sleep(time.Duration(hash(x)%400) * time.Millisecond)
		case how == "late":
			time.Sleep(idle + 300*time.Millisecond)
		case how == "fault":
			return nil, &mcp.RPCError{Code: mcp.CodeInternal, Message: "?"}
		}
		return fake.Text("did " + x), nil
	})
	f.MCP.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, next) })
	})
	return f
}

// idle is how long a replica waits for a silent server.
const idle = time.Second

func about(arguments []byte) string {
	var a struct{ X string }
	json.Unmarshal(arguments, &a)
	return a.X
}

func hash(x string) uint32 {
	h := fnv.New32a()
	io.WriteString(h, x)
	return h.Sum32()
}

// manner is how the server answers a call.
func manner(tool, x string) string {
	if tool == "look" {
		return []string{"", "", "", "slow"}[hash(x)%4]
	}
	switch n := hash(x) % 100; {
	case n < 56:
		return ""
	case n < 68:
		return "slow"
	case n < 76:
		return "reset" // executes, and closes the connection
	case n < 82:
		return "late" // executes, and answers when nobody waits any more
	case n < 86:
		return "other" // executes, and answers another id
	case n < 90:
		return "twice" // answers twice
	case n < 93:
		return "500"
	case n < 96:
		return "fault"
	}
	return "refuse" // executes nothing
}

// serve bends the answer of a call on its way out.
func (f *far) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments json.RawMessage
		}
	}
	if json.Unmarshal(body, &m) != nil || m.Method != "tools/call" {
		next.ServeHTTP(w, r)
		return
	}
	rec := &held{h: http.Header{}, code: 200}
	next.ServeHTTP(rec, r)
	switch manner(m.Params.Name, about(m.Params.Arguments)) {
	case "reset":
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
		return
	case "500":
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	case "other":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":"another","result":{"content":[]}}`)
		return
	case "twice":
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, fake.Text("did it"))
		}
		return
	}
	for k, v := range rec.h {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.code)
	w.Write(rec.b)
}

// held keeps an answer back.
type held struct {
	h    http.Header
	code int
	b    []byte
}

func (h *held) Header() http.Header         { return h.h }
func (h *held) Write(p []byte) (int, error) { h.b = append(h.b, p...); return len(p), nil }
func (h *held) WriteHeader(code int)        { h.code = code }

func (f *far) count(x string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.executed[x]
}

func (f *far) slowFor(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = time.Now().Add(d)
}
