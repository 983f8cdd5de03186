package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// A dead server beside a good one: a note on the run, and the run goes on.
func TestADeadServerIsANote(t *testing.T) {
	good, dead := fake.NewMCP(t, fake.Tool("t", "")), fake.NewMCP(t)
	dead.Server.Close()
	config := fmt.Sprintf("org: {connections: {good: {url: %q}, dead: {url: %q}}}\n", good.Endpoint(), dead.Endpoint()) +
		allow("good", good.URL, "dead", dead.URL) + scripted(`[{calls: [{tool: mcp__good__t}]}, {say: fine}]`)
	s := start(t, "", config)
	show, evs := s.ask("go", "general")
	var note struct{ Kind, Server, Reason string }
	notes := 0
	for _, ev := range evs {
		if ev.Kind == plane.EventRunNote {
			notes++
			if err := json.Unmarshal(ev.Data, &note); err != nil {
				t.Fatal(err)
			}
		}
	}
	if show.Run.State != "succeeded" || notes != 1 || note.Kind != "mcp_unavailable" || note.Server != "dead" || !strings.Contains(note.Reason, "could not be reached") {
		t.Fatalf("%s, %d notes, %+v", show.Run.State, notes, note)
	}
}

// What a server may answer to a call, in a run: the ledger's word, and whether
// the run waits.
func TestBadAnswersInARun(t *testing.T) {
	body := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, text)
		}
	}
	for _, c := range []struct {
		name  string
		serve http.HandlerFunc
		call  string
		run   string
	}{
		{"HTML", body("text/html", "<p>oops"), "unknown", "waiting"},
		{"half JSON", body("application/json", `{"jsonrpc":"2.0","id":`), "unknown", "waiting"},
		{"3 MB", body("application/json", strings.Repeat(" ", 3<<20)), "unknown", "waiting"},
		{"an endless stream", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, ": "+strings.Repeat("x", 8192)+"\n"); err != nil {
					return
				}
			}
		}, "unknown", "waiting"},
		{"429", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, "failed", "succeeded"},
		{"401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "failed", "succeeded"},
		{"405", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(405) }, "failed", "succeeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fake.NewMCP(t, fake.Tool("t", ""))
			f.Wrap(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Mcp-Method") == "tools/call" {
						c.serve(w, r)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			s := start(t, "", upConfig(f)+scripted(`[{calls: [{tool: mcp__up__t}]}, {say: "went on"}]`))
			show, _ := s.ask("go", "general")
			if len(show.Calls) != 1 || show.Calls[0].State != c.call || show.Run.State != c.run || len(show.Calls[0].Attempts) != 1 {
				t.Errorf("%+v %+v", show.Run, show.Calls)
			}
		})
	}
}

func TestBudgetsOfARun(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("t", ""))
	loop := scripted(`[{calls: [{tool: mcp__up__t}]}, {calls: [{tool: mcp__up__t}]}, {calls: [{tool: mcp__up__t}]}, {say: end}]`)
	s := start(t, "", upConfig(f)+loop+"limits: {turns_per_run: 2}\n")
	if show, _ := s.ask("go", "general"); show.Run.State != "failed" || !strings.Contains(show.Run.Reason, "turns_per_run") {
		t.Errorf("turns: %+v", show.Run)
	}
	s.stop()
	s = start(t, "", upConfig(f)+loop+"limits: {calls_per_run: 1}\n")
	if show, _ := s.ask("go", "general"); show.Run.State != "succeeded" || show.Calls[1].State != "failed" || !strings.Contains(show.Calls[1].Reason, "calls_per_run") {
		t.Errorf("calls: %+v", show)
	}
	s.stop()
	f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		time.Sleep(300 * time.Millisecond)
		return fake.Text("x"), nil
	})
	s = start(t, "", upConfig(f)+loop+"limits: {run_time: 250ms}\n")
	if show, _ := s.ask("go", "general"); show.Run.State != "failed" || !strings.Contains(show.Run.Reason, "run_time") {
		t.Errorf("time: %+v", show.Run)
	}
}

// A model that gives two uses one id, or none: each is its own call.
func TestToolUsesAreToldApart(t *testing.T) {
	t.Setenv("FAKE_KEY", "k")
	f := fake.NewMCP(t, fake.Tool("t", `"annotations":{"readOnlyHint":true}`))
	l := fake.NewLLM(t, fake.Turn{Calls: []fake.ToolCall{{ID: "c0", Name: "mcp__up__t", Input: `{"x":"first"}`}, {ID: "c0", Name: "mcp__up__t", Input: `{"x":"second"}`}}}, fake.Turn{Text: "ok"})
	s := start(t, "", upConfig(f)+llmConfig(l, "openai"))
	show, _ := s.ask("go", "general")
	got := f.Calls()
	if show.Run.State != "succeeded" || len(got) != 2 || got[0].Arguments == got[1].Arguments || show.Calls[0].State != "succeeded" || show.Calls[1].State != "succeeded" {
		t.Fatalf("%+v %+v", got, show.Calls)
	}
}

// Events as JSON, from a number on, and as a stream that is taken up again.
func TestEventsCanBeReadAgain(t *testing.T) {
	s := start(t, "", "")
	show, evs := s.ask("hello", "general")
	c := &http.Client{Transport: netguard.InfraSocket(filepath.Join(s.dir, "d", app.SocketName))}
	read := func(header map[string]string, query string) string {
		req, err := http.NewRequest("GET", "http://x/api/runs/"+show.Run.ID+"/events"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var page struct{ Events []plane.Event }
	if err := json.Unmarshal([]byte(read(nil, "?after=2")), &page); err != nil || len(page.Events) == 0 || page.Events[0].Seq != 3 {
		t.Errorf("after=2: %+v %v", page, err)
	}
	stream := read(map[string]string{"Accept": "text/event-stream", "Last-Event-ID": "3"}, "")
	if !strings.HasPrefix(stream, "id: 4\n") || !strings.Contains(stream, plane.EventRunEnded) {
		t.Errorf("resumed: %s", stream)
	}
	if !strings.Contains(read(nil, "?after=x"), "invalid_input") || len(evs) == 0 {
		t.Error("a bad number is taken")
	}
	var doc map[string]any
	resp, err := c.Get("http://x/api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || len(doc["paths"].(map[string]any)) != 89 {
		t.Errorf("openapi: %d paths, %v", len(doc["paths"].(map[string]any)), err)
	}
}

// A call whose process was killed can be found and resolved.
func TestStatusNamesUnknownCalls(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("t", ""))
	f.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Method") == "tools/call" {
				w.WriteHeader(500)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	s := start(t, "", upConfig(f))
	var out command.MCPCall
	if err := s.do("mcp.call", command.MCPCallInput{Name: "up", Tool: "t"}, &out); err != nil || out.State != "unknown" {
		t.Fatalf("%+v %v", out, err)
	}
	var st command.Status
	if err := s.do("status", command.StatusInput{}, &st); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	st.Text(&text, command.Style{})
	if len(st.Unknown) != 1 || !strings.Contains(text.String(), "patchbay runs resolve "+out.Call) {
		t.Errorf("%+v\n%s", st, text.String())
	}
	if err := s.do("runs.resolve", command.ResolveInput{ID: out.Call, Outcome: "not-done"}, &command.Resolved{}); err != nil {
		t.Error(err)
	}
}
