package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// served is a running app and its client.
type served struct {
	t    *testing.T
	a    *app.App
	c    *client.Client
	dir  string
	log  *bytes.Buffer
	stop func()
	gone bool // it is expected to have ended by itself, with an error
}

type locked struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }

// start serves a config; %DIR% is a fresh data directory's parent.
func start(t *testing.T, dir, config string) *served {
	t.Helper()
	return startWith(t, dir, config, nil)
}

// startWith is start with options that config does not have.
func startWith(t *testing.T, dir, config string, with func(*app.Options)) *served {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	file := filepath.Join(dir, "patchbay.yaml")
	config = "listen: 127.0.0.1:0\ndata: " + dir + "/d\n" + config
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := app.LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, dir: dir, log: &bytes.Buffer{}}
	ctx, cancel := context.WithCancel(context.Background())
	o := app.Options{Config: cfg, Version: "test", Log: slog.New(slog.NewTextHandler(&locked{b: s.log}, nil))}
	if with != nil {
		with(&o)
	}
	s.a, err = app.New(ctx, o)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.a.Run(ctx) }()
	select {
	case <-s.a.Ready():
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; (err != nil) != s.gone {
				t.Error(err)
			}
			if err := s.a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(s.stop)
	s.c = client.New("http://x", netguard.InfraSocket(filepath.Join(dir, "d", app.SocketName)))
	return s
}

// allow is the egress rule for servers on loopback.
func allow(pairs ...string) string {
	var rules []string
	for i := 0; i < len(pairs); i += 2 {
		u, _ := url.Parse(pairs[i+1])
		rules = append(rules, fmt.Sprintf(`{to: "http://%s", for: [%s]}`, u.Host, pairs[i]))
	}
	return "egress: {allow: [" + strings.Join(rules, ", ") + "]}\n"
}

func upConfig(f *fake.MCP) string {
	return fmt.Sprintf("org: {connections: {up: {url: %q}}}\n", f.Endpoint()) + allow("up", f.URL)
}

func llmConfig(l *fake.LLM, provider string) string {
	base := l.URL
	if provider == "openai" {
		base += "/v1"
	}
	return fmt.Sprintf("models: {default: {provider: %s, model: fake-1, base_url: %q, api_key_env: FAKE_KEY}}\n", provider, base)
}

func scripted(steps string) string {
	return "models: {default: {provider: scripted, script: " + steps + "}}\n"
}

func (s *served) do(name string, in, out any) error {
	s.t.Helper()
	return s.c.Command(s.t.Context(), name, in, out)
}

// ask runs to the end, or to where the run waits, and returns its events.
func (s *served) ask(prompt, agent string) (command.RunsShow, []plane.Event) {
	s.t.Helper()
	var row command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: prompt, Agent: agent}, &row); err != nil {
		s.t.Fatal(err)
	}
	return s.follow(row.ID)
}

func (s *served) follow(id string) (command.RunsShow, []plane.Event) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	var evs []plane.Event
	if err := s.c.Events(ctx, id, 0, func(ev plane.Event) error { evs = append(evs, ev); return nil }); err != nil {
		s.t.Fatal(err)
	}
	var show command.RunsShow
	if err := s.do("runs.show", command.RunsShowInput{RunInput: command.RunInput{Run: id}}, &show); err != nil {
		s.t.Fatal(err)
	}
	return show, evs
}

func kinds(evs []plane.Event) string {
	var out []string
	for _, e := range evs {
		if e.Seq > 0 {
			out = append(out, e.Kind)
		}
	}
	return strings.Join(out, " ")
}

// An agent calls a tool and uses what it said, with both providers' wires.
func TestARunUsesATool(t *testing.T) {
	t.Setenv("FAKE_KEY", "sk-test-marker-1234567890")
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1") // the SDK must not read it
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
	for _, provider := range []string{"anthropic", "openai"} {
		t.Run(provider, func(t *testing.T) {
			f := fake.NewMCP(t, fake.Tool("lookup", `"annotations":{"readOnlyHint":true}`))
			f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) { return fake.Text("the answer is 42"), nil })
			l := fake.NewLLM(t, fake.Turn{Text: "Let me look.", Calls: []fake.ToolCall{{ID: "use_1", Name: "mcp__up__lookup", Input: `{"x":"deep thought"}`}}}, fake.Turn{Text: "It is 42."})
			s := start(t, "", upConfig(f)+llmConfig(l, provider))
			show, evs := s.ask("What is the answer?", "general")
			if show.Run.State != "succeeded" || show.Run.Answer != "It is 42." || len(show.Calls) != 1 || show.Calls[0].State != "succeeded" {
				t.Fatalf("%+v\n%s", show, s.log)
			}
			if got := kinds(evs); got != "run_started turn_started usage text tool_call span_start span_end tool_result turn_started usage text run_ended" {
				t.Errorf("events: %s", got)
			}
			if c := f.Calls(); len(c) != 1 || c[0].Arguments != `{"x":"deep thought"}` {
				t.Errorf("the server saw %+v", c)
			}
			reqs := l.Requests()
			if len(reqs) != 2 || !strings.Contains(string(reqs[1]), "the answer is 42") || !strings.Contains(string(reqs[1]), `u003c\u003c\u003cdata`) && !strings.Contains(string(reqs[1]), `<<<data`) {
				t.Errorf("the next request: %s", reqs[len(reqs)-1])
			}
			if !strings.Contains(string(reqs[0]), `"properties":{"x":{"type":"string"}}`) {
				t.Errorf("the schema's bytes: %s", reqs[0])
			}
			for _, ev := range evs {
				if strings.HasPrefix(ev.Kind, "span_") && (ev.Span != "mcp.up.lookup" || strings.Contains(string(ev.Data), "deep thought") || strings.Contains(string(ev.Data), "answer is")) {
					t.Errorf("span event %s %s", ev.Span, ev.Data)
				}
			}
			h := l.Headers()[0]
			if h.Get("X-Api-Key") != "sk-test-marker-1234567890" && h.Get("Authorization") != "Bearer sk-test-marker-1234567890" {
				t.Error("the key travels nowhere")
			}
		})
	}
}

// With MCP off a request to the model is, byte for byte, one without it.
func TestMCPOffLeavesNoTrace(t *testing.T) {
	t.Setenv("FAKE_KEY", "k")
	f := fake.NewMCP(t, fake.Tool("lookup", ""))
	body := func(config string) string {
		l := fake.NewLLM(t, fake.Turn{Text: "Hello."})
		s := start(t, "", config+llmConfig(l, "anthropic"))
		s.ask("Hi", "general")
		s.stop()
		return string(l.Requests()[0])
	}
	off, none := body(upConfig(f)+"mcp: {enabled: false}\n"), body("mcp: {enabled: false}\n")
	perAgent := body(upConfig(f) + "agents: {general: {mcp: {enabled: false}}}\n")
	if off != none || off != perAgent || strings.Contains(strings.ToLower(off), "mcp") || strings.Contains(off, "result_read") {
		t.Errorf("off:\n%s\nnone:\n%s\nper agent:\n%s", off, none, perAgent)
	}
	on, empty := body(upConfig(f)), body("")
	if !strings.Contains(on, "up (1 tools)") || !strings.Contains(empty, "MCP servers: none is connected") {
		t.Errorf("on:\n%s\nnothing connected:\n%s", on, empty)
	}
	s := start(t, "", "mcp: {enabled: false}\n")
	var out command.MCPList
	if err := s.do("mcp.list", command.MCPListInput{}, &out); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("mcp list: %v", err)
	}
}

// Side-effect-free calls run beside each other; the rest alone and in order.
func TestConcurrencyFollowsTheHints(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("read", `"annotations":{"readOnlyHint":true}`), fake.Tool("write", ""))
	var mu sync.Mutex
	now, most, order := map[string]int{}, map[string]int{}, []string{}
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		mu.Lock()
		now[in.Name]++
		most[in.Name] = max(most[in.Name], now[in.Name])
		if now["read"] > 0 && now["write"] > 0 {
			t.Error("a read ran beside a write")
		}
		order = append(order, string(in.Arguments))
		mu.Unlock()
		time.Sleep(250 * time.Millisecond)
		mu.Lock()
		now[in.Name]--
		mu.Unlock()
		return fake.Text("ok"), nil
	})
	call := func(tool, x string) string { return fmt.Sprintf("{tool: mcp__up__%s, input: {x: %s}}", tool, x) }
	s := start(t, "", upConfig(f)+scripted("[{calls: ["+strings.Join([]string{call("read", "r1"), call("read", "r2"), call("read", "r3"), call("write", "w1"), call("write", "w2"), call("read", "r4")}, ", ")+"]}, {say: done}]"))
	show, _ := s.ask("go", "general")
	if show.Run.State != "succeeded" || most["read"] != 3 || most["write"] != 1 || strings.Join(order[3:], "") != `{"x":"w1"}{"x":"w2"}{"x":"r4"}` {
		t.Fatalf("%s: most %v, order %v", show.Run.State, most, order)
	}
}

// An unknown effect makes the run wait; what a person says ends it.
func TestAnUnknownCallWaitsForAPerson(t *testing.T) {
	for outcome, want := range map[string]struct {
		said  string
		calls int
	}{
		"done":       {"A person confirmed that this call took effect.", 1},
		"not-done":   {"A person confirmed that this call did not take effect.", 1},
		"send-again": {"second time lucky", 2},
	} {
		t.Run(outcome, func(t *testing.T) {
			f := fake.NewMCP(t, fake.Tool("pay", ""))
			broken := true
			f.Wrap(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Mcp-Method") == "tools/call" && broken {
						broken = false
						next.ServeHTTP(&discard{h: http.Header{}}, r) // it ran, and nobody hears of it
						w.WriteHeader(http.StatusBadGateway)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) { return fake.Text("second time lucky"), nil })
			s := start(t, "", upConfig(f)+scripted(`[{calls: [{tool: mcp__up__pay, input: {x: once}}]}, {say: "{{last}}"}]`))
			show, evs := s.ask("pay", "general")
			if show.Run.State != "waiting" || show.Run.Waiting != "reconcile" || show.Calls[0].State != "unknown" || !strings.HasSuffix(kinds(evs), "call_unknown run_waiting") {
				t.Fatalf("%+v %s", show.Run, kinds(evs))
			}
			var text bytes.Buffer
			show.Text(&text, command.Style{})
			if !strings.Contains(text.String(), "patchbay runs resolve "+show.Calls[0].ID) {
				t.Errorf("runs show does not say what to do:\n%s", text.String())
			}
			if err := s.do("runs.resolve", command.ResolveInput{ID: show.Run.ID, Outcome: outcome, Note: "I looked."}, &command.Resolved{}); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(10 * time.Second)
			for show.Run.State != "succeeded" && time.Now().Before(deadline) {
				time.Sleep(20 * time.Millisecond)
				if err := s.do("runs.show", command.RunInput{Run: show.Run.ID}, &show); err != nil {
					t.Fatal(err)
				}
			}
			if show.Run.State != "succeeded" || !strings.Contains(show.Run.Answer, want.said) || len(f.Calls()) != want.calls {
				t.Fatalf("%s: %q, %d calls\n%s", show.Run.State, show.Run.Answer, len(f.Calls()), s.log)
			}
			err := s.do("runs.resolve", command.ResolveInput{ID: show.Calls[0].ID, Outcome: "done"}, &command.Resolved{})
			if plane.KindOf(err) != plane.Conflict {
				t.Errorf("resolved twice: %v", err)
			}
		})
	}
}

type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// A run goes on where a stopped server left it.
func TestARunIsResumedAfterARestart(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("step", ""))
	reached, release := make(chan struct{}, 4), make(chan struct{})
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if strings.Contains(string(in.Arguments), "two") {
			reached <- struct{}{}
			<-release
		}
		return fake.Text("did " + string(in.Arguments)), nil
	})
	config := upConfig(f) + scripted(`[{calls: [{tool: mcp__up__step, input: {x: one}}]}, {calls: [{tool: mcp__up__step, input: {x: two}}]}, {say: "all done: {{last}}"}]`)
	dir := t.TempDir()
	s := start(t, dir, config)
	var row command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "go", Agent: "general"}, &row); err != nil {
		t.Fatal(err)
	}
	<-reached
	go func() { time.Sleep(100 * time.Millisecond); close(release) }()
	s.stop() // gracefully: the call under way may end
	again := start(t, dir, config)
	show, evs := again.follow(row.ID)
	if show.Run.State != "succeeded" || len(f.Calls()) != 2 || !strings.Contains(kinds(evs), "run_resumed") || !strings.Contains(show.Run.Answer, "two") {
		t.Fatalf("%+v, %d calls, %s\n%s", show.Run, len(f.Calls()), kinds(evs), again.log)
	}
}

func TestCancel(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("slow", ""))
	reached := make(chan struct{}, 1)
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		reached <- struct{}{}
		<-in.HTTP.Context().Done()
		return fake.Text("late"), nil
	})
	s := start(t, "", upConfig(f)+scripted(`[{calls: [{tool: mcp__up__slow}]}, {say: x}]`))
	var row command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "go"}, &row); err != nil {
		t.Fatal(err)
	}
	<-reached
	if err := s.do("runs.cancel", command.RunInput{Run: row.ID}, &command.RunRow{}); err != nil {
		t.Fatal(err)
	}
	show, _ := s.follow(row.ID)
	if show.Run.State != "cancelled" || show.Calls[0].State != "unknown" {
		t.Fatalf("%+v %+v", show.Run, show.Calls)
	}
	if err := s.do("runs.cancel", command.RunInput{Run: row.ID}, &command.RunRow{}); plane.KindOf(err) != plane.Conflict {
		t.Errorf("cancelled twice: %v", err)
	}
}

func TestModelFailures(t *testing.T) {
	t.Setenv("FAKE_KEY", "k")
	for _, c := range []struct {
		name  string
		turns []fake.Turn
		state string
		want  string
	}{
		{"a wrong key", []fake.Turn{{Status: 401}}, "failed", "rejected the API key"},
		{"overload that passes", []fake.Turn{{Status: 529}, {Text: "fine"}}, "succeeded", "fine"},
		{"a cut stream that passes", []fake.Turn{{Text: "half of it", Cut: true}, {Text: "fine"}}, "succeeded", "fine"},
		{"a refusal", []fake.Turn{{Status: 400}}, "failed", "refused the request"},
		{"a tool that is not there", []fake.Turn{{Calls: []fake.ToolCall{{ID: "u", Name: "rm_rf", Input: `{}`}}}, {Text: "sorry"}}, "succeeded", "sorry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := fake.NewLLM(t, c.turns...)
			s := start(t, "", llmConfig(l, "anthropic"))
			show, _ := s.ask("hi", "general")
			if show.Run.State != c.state || !strings.Contains(show.Run.Answer+show.Run.Reason, c.want) {
				t.Errorf("%+v", show.Run)
			}
		})
	}
}

// A cut result can be read to its end, from where the cut says, also where
// structured content was dropped.
func TestResultReadGoesOn(t *testing.T) {
	for name, result := range map[string]string{
		"text":       fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, strings.Repeat("a", 40_000)+"THE END"),
		"structured": fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"structuredContent":{"x":%q}}`, strings.Repeat("s", 200), strings.Repeat("b", 29_900)+"THE END"),
	} {
		t.Run(name, func(t *testing.T) { readOn(t, result) })
	}
}

func readOn(t *testing.T, result string) {
	f := fake.NewMCP(t, fake.Tool("big", ""))
	f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) { return json.RawMessage(result), nil })
	t.Setenv("FAKE_KEY", "k")
	l := fake.NewLLM(t)
	l.Script(func(n int, request string) fake.Turn {
		switch n {
		case 0:
			return fake.Turn{Calls: []fake.ToolCall{{ID: "u1", Name: "mcp__up__big", Input: `{}`}}}
		case 1:
			m := regexp.MustCompile(`Read on with result_read, result \\"(res_[a-z0-9]+)\\", from (\d+)\.`).FindStringSubmatch(request)
			if m == nil || strings.Contains(request, "THE END") {
				t.Errorf("not cut as it should be: …%s", request[max(0, len(request)-300):])
				return fake.Turn{Text: "lost"}
			}
			return fake.Turn{Calls: []fake.ToolCall{{ID: "u2", Name: "result_read", Input: fmt.Sprintf(`{"result":%q,"from":%s}`, m[1], m[2])}}}
		}
		return fake.Turn{Text: "read"}
	})
	s := start(t, "", upConfig(f)+llmConfig(l, "anthropic"))
	show, _ := s.ask("go", "general")
	reqs := l.Requests()
	last := string(reqs[len(reqs)-1])
	if show.Run.Answer != "read" || !strings.Contains(last, "THE END") {
		t.Fatalf("%+v …%s", show.Run, last[max(0, len(last)-300):])
	}
}

func newPlain(t *testing.T) *fake.MCP { return fake.NewMCP(t, fake.Tool("a", "")) }

const hangup = syscall.SIGHUP

func jsonDecode(resp *http.Response, into any) error { return json.NewDecoder(resp.Body).Decode(into) }
