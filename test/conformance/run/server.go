package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"patchbay/bench/figures"
	"patchbay/test/peers"
)

// The suites against our server half: an agent's endpoint that fronts the official
// SDK's everything-server, which has the fixtures.

// serverSuite is one run against one agent.
type serverSuite struct {
	name, module, agent string
	args                []string
	scenarios           []string
}

var (
	always = []string{"completion-complete", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource",
		"tools-call-mixed-content", "tools-call-error", "tools-call-with-progress", "json-schema-2020-12", "server-sse-multiple-streams",
		"resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read",
		"prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image", "dns-rebinding-protection"}
	handshake = []string{"server-initialize", "logging-set-level", "ping", "tools-call-with-logging", "tools-call-sampling", "tools-call-elicitation",
		"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "server-sse-polling", "resources-subscribe", "resources-unsubscribe"}
	only2026 = []string{"server-stateless", "sep-2164-resource-not-found", "caching", "http-header-validation", "http-custom-header-server-validation",
		"input-required-result-basic-elicitation", "input-required-result-basic-sampling", "input-required-result-basic-list-roots", "input-required-result-request-state",
		"input-required-result-multiple-input-requests", "input-required-result-multi-round", "input-required-result-missing-input-response",
		"input-required-result-non-tool-request", "input-required-result-result-type", "input-required-result-unsupported-methods", "input-required-result-tampered-state",
		"input-required-result-capability-check", "input-required-result-ignore-extra-params", "input-required-result-validate-input"}
)

var serverSuites = []serverSuite{
	{"server 0.1.16", "conformance-stable", "stateful", []string{"--suite", "all"}, slices.Concat(always, handshake)},
	{"server 0.2.0-alpha.12 2025-11-25", "conformance-next", "stateful", []string{"--requirements", "2025-11-25"},
		slices.Concat(always, handshake, []string{"server-session-lifecycle"})},
	{"server 0.2.0-alpha.12 2026-07-28", "conformance-next", "stateless", []string{"--requirements", "2026-07-28"}, slices.Concat(always, only2026)},
}

// nothingToCheck has no check to make of a server that answers in JSON as long as
// nothing has to be said before the result: polling is for streams.
const nothingToCheck = "server-sse-polling"

// unscored are extensions, which no set of requirements counts.
func unscored(scenario string) bool {
	return strings.HasPrefix(scenario, "tasks-") || strings.HasPrefix(scenario, "sep-2640")
}

// gateway is a started Patchbay in front of the fixtures.
type gateway struct {
	dir   string
	procs []*exec.Cmd
	urls  map[string]string // by agent
}

func (g *gateway) start(addr string, argv ...string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	g.procs = append(g.procs, cmd)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("%s does not listen", argv[0])
}

func (g *gateway) stop() {
	for _, c := range slices.Backward(g.procs) {
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
	}
	os.RemoveAll(g.dir)
}

const configText = `listen: %s
data: %s/data
agents:
  stateful: {trust: open, names: bare, search: off}
  stateless: {trust: open, names: bare, search: off}
org:
  connections:
    fixtures: {url: "http://%s/", agents: [stateful]}
    fixtures-2026: {url: "http://%s/", agents: [stateless]}
egress: {allow: [{to: "http://%s", for: [fixtures]}, {to: "http://%s", for: [fixtures-2026]}]}
`

// newGateway starts the fixtures in both modes, and Patchbay in front of them.
func newGateway(patchbay string) (*gateway, error) {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return nil, err
	}
	g := &gateway{dir: dir, urls: map[string]string{}}
	fixtures := filepath.Join(dir, "everything-server")
	build := exec.Command("go", "build", "-o", fixtures, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	if out, err := build.CombinedOutput(); err != nil {
		return g, fmt.Errorf("%w: %s", err, out)
	}
	var addr [3]string
	for i := range addr {
		if addr[i], err = peers.FreeAddr(); err != nil {
			return g, err
		}
	}
	for i, mode := range []string{"-stateless=false", "-stateless=true"} {
		if err := g.start(addr[i], fixtures, "-http="+addr[i], mode); err != nil {
			return g, err
		}
	}
	file := filepath.Join(dir, "patchbay.yaml")
	text := fmt.Sprintf(configText, addr[2], dir, addr[0], addr[1], addr[0], addr[1])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return g, err
	}
	if err := g.start(addr[2], patchbay, "serve", "-c", file); err != nil {
		return g, err
	}
	for _, agent := range []string{"stateful", "stateless"} {
		out, err := exec.Command(patchbay, "--data", filepath.Join(dir, "data"), "tokens", "create", agent, "--agent", agent, "--json").Output()
		if err != nil {
			return g, fmt.Errorf("tokens create: %w: %s", err, out)
		}
		var made struct {
			Value string `json:"token"`
		}
		if err := json.Unmarshal(out, &made); err != nil {
			return g, err
		}
		if g.urls[agent], err = withToken(addr[2], agent, made.Value); err != nil {
			return g, err
		}
	}
	return g, nil
}

// withToken serves the endpoint to clients that cannot send a token, as the suites.
func withToken(addr, agent, token string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	target := &url.URL{Scheme: "http", Host: addr}
	go http.Serve(l, &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		// What the suites try on Host and Origin is for Patchbay to judge, but for the
		// proxy's own address.
		if r.In.Host != l.Addr().String() {
			r.Out.Host = r.In.Host
		}
		if r.In.Header.Get("Origin") == "http://"+l.Addr().String() {
			r.Out.Header.Set("Origin", "http://"+addr)
		}
		r.Out.Header.Set("Authorization", "Bearer "+token)
	}})
	return fmt.Sprintf("http://%s/mcp/agents/%s", l.Addr(), agent), nil
}

func (s serverSuite) run(g *gateway, refused []string, sheet *figures.Sheet) error {
	out, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	args := append([]string{filepath.Join(peers.Dir(), "node_modules", s.module, "dist", "index.js"), "server", "--url", g.urls[s.agent], "-o", out}, s.args...)
	cmd := exec.Command(peers.Node(), args...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if file := os.Getenv("CONFORMANCE_LOG"); file != "" {
		if err := os.WriteFile(file+"."+s.agent+"."+s.module, b.Bytes(), 0o600); err != nil {
			return err
		}
	}
	got := map[string][]string{}
	for _, m := range line.FindAllStringSubmatch(b.String(), -1) {
		got[m[1]] = m[2:]
	}
	for name := range got {
		if !slices.Contains(s.scenarios, name) && !unscored(name) {
			sheet.Passed(s.name+" "+name, "not known here", "in the list", false)
		}
	}
	for _, name := range s.scenarios {
		m, ok := got[name]
		if !ok {
			sheet.Passed(s.name+" "+name, "did not run", "0 failed", false)
			continue
		}
		fine := (m[0] != "0" || name == nothingToCheck) && m[1] == "0" && (m[2] == "" || m[2] == "0")
		bar := "0 failed"
		if slices.Contains(refused, s.name+" "+name) { // the list and the run say the same
			fine, bar = !fine, "refused on purpose"
		}
		sheet.Passed(s.name+" "+name, fmt.Sprintf("%s passed, %s failed", m[0], m[1]), bar, fine)
	}
	return nil
}

// refusedList reads the scenarios that fail on purpose.
func refusedList(file string) ([]string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for l := range strings.Lines(string(raw)) {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
			out = append(out, l)
		}
	}
	return out, nil
}

func runServers(patchbay string, sheet *figures.Sheet) error {
	refused, err := refusedList("test/conformance/refused.txt")
	if err != nil {
		return err
	}
	g, err := newGateway(patchbay)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return err
	}
	for _, s := range serverSuites {
		if err := s.run(g, refused, sheet); err != nil {
			return err
		}
	}
	return nil
}
