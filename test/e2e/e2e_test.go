// Package e2e drives the built binary against servers that nobody here wrote.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/internal/fake"
	"patchbay/test/peers"
)

var binary string

func TestMain(m *testing.M) {
	os.Unsetenv("PATCHBAY_DATA") // it would go before the tests' configs
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "patchbay")
	build := exec.Command("go", "build", "-o", binary, "patchbay/cmd/patchbay")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// daemon is a running `patchbay serve`.
type daemon struct {
	launch func()
	t      *testing.T
	data   string
	cmd    *exec.Cmd
	log    *bytes.Buffer
}

func serve(t *testing.T, config string, env ...string) *daemon {
	t.Helper()
	return serveOn(t, peers.FreePort(t), config, env...)
}

func serveOn(t *testing.T, port int, config string, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, data: filepath.Join(dir, "d"), log: &bytes.Buffer{}}
	file := filepath.Join(dir, "patchbay.yaml")
	config = fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\n", port, d.data) + config
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.launch = func() {
		d.cmd = exec.Command(binary, "serve", "-c", file)
		d.cmd.Env = append(os.Environ(), env...)
		d.cmd.Stderr = d.log
		if err := d.cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	d.launch()
	t.Cleanup(func() {
		d.cmd.Process.Signal(syscall.SIGTERM)
		if err := d.cmd.Wait(); err != nil {
			t.Errorf("serve ended with %v\n%s", err, d.log)
		}
	})
	d.ready()
	return d
}

func (d *daemon) ready() {
	d.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, _, code := d.run("status"); code == 0 {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("not ready\n%s", d.log)
		}
	}
}

// killed ends the server without a word, and starts it again.
func (d *daemon) killed() {
	d.t.Helper()
	d.cmd.Process.Kill()
	d.cmd.Wait() // it was killed, and says so
	d.launch()
	d.ready()
}

func (d *daemon) run(args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"--data", d.data}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (d *daemon) must(args ...string) string {
	d.t.Helper()
	out, errs, code := d.run(args...)
	if code != 0 {
		d.t.Fatalf("patchbay %v: exit %d\n%s%s\n%s", args, code, out, errs, d.log)
	}
	return out
}

// collector takes OTLP spans by HTTP and keeps their bytes, which hold names
// and attributes as plain text.
type collector struct {
	*httptest.Server
	mu sync.Mutex
	b  bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.b.ReadFrom(r.Body)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) String() string { c.mu.Lock(); defer c.mu.Unlock(); return c.b.String() }

// The main job: an agent answers with tools of servers that nobody here wrote,
// in both eras of the protocol and with both providers' wires.
func TestAgentUsesThirdPartyServers(t *testing.T) {
	everything, ts := peers.Everything(t), peers.TS2026(t)
	servers := fmt.Sprintf("org: {connections: {everything: {url: %q}, ts: {url: %q}}}\negress: {allow: [{to: %q, for: [everything]}, {to: %q, for: [ts]}]}\nlimits: {result_chars: 600}\n",
		everything, ts, host(everything), host(ts))
	for _, provider := range []string{"anthropic", "openai"} {
		t.Run(provider, func(t *testing.T) {
			llm := fake.NewLLM(t,
				fake.Turn{Text: "Looking.", Calls: []fake.ToolCall{
					{ID: "u1", Name: "mcp__everything__echo", Input: `{"message":"over the wire ` + strings.Repeat("é", 900) + `"}`},
					{ID: "u2", Name: "mcp__ts__greet", Input: `{"name":"Ada"}`},
					{ID: "u3", Name: "mcp__everything__get-sum", Input: `{"a":19,"b":23}`}}},
				fake.Turn{Text: "All three answered."})
			base := llm.URL
			if provider == "openai" {
				base += "/v1"
			}
			spans := newCollector(t)
			d := serve(t, servers+fmt.Sprintf("models: {default: {provider: %s, model: m, base_url: %q, api_key_env: E2E_KEY}}\ntelemetry: {otlp: %q}\n", provider, base, spans.URL), "E2E_KEY=k-e2e")
			if out := d.must("ask", "Ask", "them", "all"); !strings.Contains(out, "All three answered.") {
				t.Fatalf("answered %q\n%s", out, d.log)
			}
			reqs := llm.Requests()
			if len(reqs) != 2 {
				t.Fatalf("%d model requests", len(reqs))
			}
			second := string(reqs[1])
			for _, want := range []string{"Echo: over the wire é", "of 920 characters are shown", "Hello Ada, from another SDK.", "42", "data that the external MCP server"} {
				if !strings.Contains(second, want) {
					t.Errorf("the next model request lacks %q", want)
				}
			}
			if strings.Contains(second, strings.Repeat("é", 900)+"\\ndata") {
				t.Error("the result was not clipped")
			}
			var show struct {
				Calls []struct {
					Tool, State string
					Attempts    []struct{ Outcome string }
				}
			}
			if err := json.Unmarshal([]byte(d.must("runs", "show", "last", "--json")), &show); err != nil {
				t.Fatal(err)
			}
			for _, c := range show.Calls {
				if c.State != "succeeded" || len(c.Attempts) != 1 || c.Attempts[0].Outcome != "answered" {
					t.Errorf("ledger: %+v", c)
				}
			}
			text := d.must("runs", "show", "last")
			for _, span := range []string{"mcp.everything.echo", "mcp.ts.greet", "mcp.everything.get-sum"} {
				if !strings.Contains(text, span) {
					t.Errorf("the timeline lacks %s:\n%s", span, text)
				}
			}
			if out := d.must("mcp", "list"); !strings.Contains(out, "everything\torg\tok\t") || !strings.Contains(out, "ts\torg\tok\t2\t") {
				t.Errorf("mcp list:\n%s", out)
			}
			for end := time.Now().Add(15 * time.Second); !strings.Contains(spans.String(), "invoke_agent general"); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("no spans arrived")
				}
			}
			for _, want := range []string{"tools/call echo", "tools/call greet", "gen_ai.tool.name", "mcp.protocol.version", "2026-07-28", "2025-11-25", "invoke_agent general"} {
				if !strings.Contains(spans.String(), want) {
					t.Errorf("the spans lack %q", want)
				}
			}
			if strings.Contains(spans.String(), "over the wire") || strings.Contains(spans.String(), "Ada") {
				t.Error("the spans hold arguments or results")
			}
		})
	}
}

// A call from the command line, against both eras.
func TestCallFromTheCommandLine(t *testing.T) {
	everything, ts := peers.Everything(t), peers.TS2026(t)
	d := serve(t, fmt.Sprintf("org: {connections: {everything: {url: %q}, ts: {url: %q}}}\negress: {allow: [{to: %q, for: [everything]}, {to: %q, for: [ts]}]}\n",
		everything, ts, host(everything), host(ts)))
	if out := d.must("mcp", "call", "ts", "count"); out != "The count is 1.\n" {
		t.Errorf("%q", out)
	}
	if out := d.must("mcp", "call", "everything", "get-sum", `{"a": 2}`, "-a", "b=40"); !strings.Contains(out, "42") {
		t.Errorf("%q", out)
	}
	_, errs, code := d.run("mcp", "call", "everything", "get-summ")
	if code != 1 || !strings.Contains(errs, "Did you mean get-sum?") {
		t.Errorf("exit %d: %s", code, errs)
	}
	out, _, code := d.run("mcp", "call", "everything", "get-sum", `{"a":"x"}`)
	if code != 1 || out == "" {
		t.Errorf("bad arguments: exit %d, %q", code, out)
	}
	if out := d.must("mcp", "test", "ts"); !strings.HasPrefix(out, "ts\tok\t2 tools\t") {
		t.Errorf("%q", out)
	}
}

// host is a URL's origin.
func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// allow opens addresses for one connection.
func allow(name string, urls ...string) string {
	var out []string
	for _, u := range urls {
		out = append(out, fmt.Sprintf("{to: %q, for: [%s]}", host(u), name))
	}
	return "egress: {allow: [" + strings.Join(out, ", ") + "]}\n"
}

// publicURL is where the server listens.
func (d *daemon) publicURL(t *testing.T) string {
	t.Helper()
	var st struct{ Listen string }
	if err := json.Unmarshal([]byte(d.must("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	return "http://" + st.Listen
}
