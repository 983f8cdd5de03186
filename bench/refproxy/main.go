// Command refproxy is the yardstick: the barest gateway that still governs. It
// reads the JSON-RPC envelope, refuses some tools by name, relays the request,
// streams the answer unread and writes one audit line a call.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

type pool struct{ p sync.Pool }

func (b *pool) Get() []byte  { return *b.p.Get().(*[]byte) }
func (b *pool) Put(s []byte) { b.p.Put(&s) }

func main() {
	addr := flag.String("addr", "127.0.0.1:7200", "listen here, at /mcp")
	up := flag.String("upstream", "http://127.0.0.1:7100/mcp", "relay to here")
	flag.Parse()
	u, err := url.Parse(*up)
	if err != nil {
		log.Fatal(err)
	}
	audit, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		log.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.Path = u.Scheme, u.Host, u.Path
		},
		Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: 90 * time.Second,
			DisableCompression: true, WriteBufferSize: 8 << 10, ReadBufferSize: 32 << 10},
		FlushInterval: -1,
		BufferPool:    &pool{sync.Pool{New: func() any { s := make([]byte, 32<<10); return &s }}},
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", governed(proxy, audit))
	log.Fatal(http.ListenAndServe(*addr, mux))
}

type auditLine struct {
	Time    time.Time       `json:"time"`
	Session string          `json:"session"`
	ID      json.RawMessage `json:"id"`
	Tool    string          `json:"tool"`
	Bytes   int             `json:"request_bytes"`
	Micros  int64           `json:"micros"`
}

func governed(next http.Handler, audit io.Writer) http.Handler {
	lines := make(chan []byte, 4096)
	go func() {
		w := bufio.NewWriterSize(audit, 64<<10)
		for l := range lines {
			w.Write(l)
			if len(lines) == 0 {
				w.Flush()
			}
		}
	}()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		began := time.Now()
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
		if err != nil {
			http.Error(w, "body", http.StatusRequestEntityTooLarge)
			return
		}
		var env struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(body, &env); err != nil {
			http.Error(w, "parse error", http.StatusBadRequest)
			return
		}
		tool := ""
		if env.Method == "tools/call" {
			var p struct {
				Name string `json:"name"`
			}
			if err := json.Unmarshal(env.Params, &p); err != nil || strings.HasPrefix(p.Name, "forbidden_") {
				http.Error(w, "denied", http.StatusForbidden)
				return
			}
			tool = p.Name
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
		if tool == "" {
			return
		}
		line, err := json.Marshal(auditLine{began, r.Header.Get("Mcp-Session-Id"), env.ID, tool, len(body), time.Since(began).Microseconds()})
		if err != nil {
			return
		}
		select {
		case lines <- append(line, '\n'):
		default:
		}
	})
}
