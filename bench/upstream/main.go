// Command upstream is the fixed far end of every measurement: the official SDK's
// server with echo, note, sleep, big and fillers; /seen counts the methods
// that arrived. Big results are sent from prepared bytes:
// encoding them anew would keep the machine busy with what is not measured.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:7100", "listen here, at /mcp")
	fillers := flag.Int("fillers", 98, "tools beside those that are called")
	flag.Parse()
	srv := mcp.NewServer(&mcp.Implementation{Name: "bench-upstream", Version: "1"}, &mcp.ServerOptions{PageSize: 1000})
	add := func(name, schema string, fn func(json.RawMessage) (string, error)) {
		srv.AddTool(&mcp.Tool{Name: name, Description: "Bench tool " + name + ".", InputSchema: json.RawMessage(schema)},
			func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				text, err := fn(req.Params.Arguments)
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, err
			})
	}
	add("echo", `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`, func(raw json.RawMessage) (string, error) {
		var in struct{ Text string }
		err := json.Unmarshal(raw, &in)
		return in.Text, err
	})
	add("note", `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`, func(json.RawMessage) (string, error) { return "noted", nil })
	add("sleep", `{"type":"object","properties":{"ms":{"type":"integer"}},"required":["ms"]}`, func(raw json.RawMessage) (string, error) {
		var in struct{ Ms int }
		err := json.Unmarshal(raw, &in)
		time.Sleep(time.Duration(min(in.Ms, 1000)) * time.Millisecond)
		return "slept", err
	})
	line := strings.Repeat("Nine wires hum; \"each\" carries 0123456789 and a back\\slash.\n", 18)
	add("big", `{"type":"object","properties":{"kib":{"type":"integer"}},"required":["kib"]}`, func(raw json.RawMessage) (string, error) {
		var in struct{ Kib int }
		if err := json.Unmarshal(raw, &in); err != nil || in.Kib < 0 || in.Kib > 1024 {
			return "", fmt.Errorf("kib is 0 to 1024")
		}
		n := in.Kib << 10
		return strings.Repeat(line, n/len(line)+1)[:n], nil
	})
	// The same by the SDK's own encoder: what a result of that size costs in the field.
	add("page", `{"type":"object","properties":{"kib":{"type":"integer"}},"required":["kib"]}`, func(raw json.RawMessage) (string, error) {
		var in struct{ Kib int }
		if err := json.Unmarshal(raw, &in); err != nil || in.Kib < 0 || in.Kib > 1024 {
			return "", fmt.Errorf("kib is 0 to 1024")
		}
		n := in.Kib << 10
		return strings.Repeat(line, n/len(line)+1)[:n], nil
	})
	for i := range *fillers {
		add(fmt.Sprintf("filler_%03d", i), `{"type":"object","properties":{"query":{"type":"string","description":"What to look for, in words."},"limit":{"type":"integer","minimum":1,"maximum":500}},"required":["query"]}`,
			func(json.RawMessage) (string, error) { return "ok", nil })
	}
	mux := http.NewServeMux()
	seen := &counts{}
	mux.Handle("/mcp", seen.count(prepared(line, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, nil))))
	mux.Handle("/seen", seen)
	log.Fatal(http.ListenAndServe(*addr, mux))
}

// counts are how many requests of each method arrived, calls left out.
type counts struct {
	mu sync.Mutex
	by map[string]int
}

func (c *counts) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Method
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			if bytes.Contains(body, []byte(`"method":"tools/call"`)) {
				next.ServeHTTP(w, r)
				return
			}
			var m struct{ Method string }
			if json.Unmarshal(body, &m) == nil {
				key = m.Method
			}
		}
		c.mu.Lock()
		if c.by == nil {
			c.by = map[string]int{}
		}
		c.by[key]++
		c.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP tells the counts.
func (c *counts) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	json.NewEncoder(w).Encode(c.by)
}

// prepared answers calls of big itself, in the form that the SDK would.
func prepared(line string, next http.Handler) http.Handler {
	const n = 256 << 10
	text, err := json.Marshal(strings.Repeat(line, n/len(line)+1)[:n])
	if err != nil {
		log.Fatal(err)
	}
	result := append(append([]byte(`{"content":[{"type":"text","text":`), text...), "}]}}\n\n"...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if !bytes.Contains(body, []byte(`"name":"big"`)) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
			return
		}
		var m struct {
			ID json.RawMessage `json:"id"`
		}
		if err := json.Unmarshal(body, &m); err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":", m.ID)
		w.Write(result)
	})
}
