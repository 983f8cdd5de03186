package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/test/peers"
)

// Clients that nobody here wrote use an agent's endpoint, in both eras, over two
// servers that nobody here wrote either: one of the legacy era and one of the modern.
func TestClientsOfOthersPlugIn(t *testing.T) {
	everything, ts := peers.Everything(t), peers.TS2026(t)
	port := peers.FreePort(t)
	d := serveOn(t, port, fmt.Sprintf(`agents: {general: {search: off}}
org: {connections: {everything: {url: %q}, ts: {url: %q}}}
egress: {allow: [{to: %q, for: [everything]}, {to: %q, for: [ts]}]}
`, everything, ts, strings.TrimSuffix(everything, "/mcp"), strings.TrimSuffix(ts, "/mcp")))
	out, _, _ := d.run("tokens", "create", "peer", "--agent", "general", "--json")
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/mcp/agents/general", port)
	for name, client := range map[string]func(t *testing.T, url, token string) peerView{
		"Go SDK, 2025-11-25":         func(t *testing.T, url, token string) peerView { return goClient(t, url, token, "2025-11-25") },
		"Go SDK, 2026-07-28":         func(t *testing.T, url, token string) peerView { return goClient(t, url, token, "2026-07-28") },
		"TypeScript SDK, legacy":     func(t *testing.T, url, token string) peerView { return tsClient(t, url, token, "legacy") },
		"TypeScript SDK, 2026-07-28": func(t *testing.T, url, token string) peerView { return tsClient(t, url, token, "2026-07-28") },
		"Inspector":                  inspector,
	} {
		t.Run(name, func(t *testing.T) {
			v := client(t, url, made.Token)
			for what, c := range map[string]struct {
				have []string
				want string
			}{
				"tools of the legacy server":     {v.Tools, "mcp__everything__echo"},
				"tools of the modern server":     {v.Tools, "mcp__ts__greet"},
				"resources of the legacy server": {v.Resources, "demo://resource/static/document/features.md"},
				"resources of the modern server": {v.Resources, "note://one"},
				"templates":                      {v.Templates, "demo://resource/dynamic/text/{resourceId}"},
				"prompts of the legacy server":   {v.Prompts, "mcp__everything__args-prompt"},
				"prompts of the modern server":   {v.Prompts, "mcp__ts__welcome"},
			} {
				if !slices.Contains(c.have, c.want) {
					t.Errorf("%s: %v lacks %s", what, c.have, c.want)
				}
			}
			for what, want := range map[string]string{
				"mcp__everything__echo": "Echo: over there", "mcp__ts__greet": "Hello Ada, from another SDK.",
				"demo://resource/static/document/features.md": "Everything Server", "note://one": "A note on the desk.", "demo://resource/dynamic/text/7": "Resource 7",
				"mcp__everything__args-prompt": "weather in Berlin", "mcp__ts__welcome": "Welcome Ada warmly.",
			} {
				if !strings.Contains(v.Said[what], want) {
					t.Errorf("%s: %.300s", what, v.Said[what])
				}
			}
		})
	}
}

// peerView is what a client saw.
type peerView struct {
	Tools, Resources, Templates, Prompts []string
	Said                                 map[string]string // by what was asked: the answer as JSON
}

// peerJobs are what every client does.
var peerJobs = []struct {
	Tool      string            `json:"tool,omitempty"`
	Resource  string            `json:"resource,omitempty"`
	Prompt    string            `json:"prompt,omitempty"`
	Arguments map[string]string `json:"arguments,omitempty"`
}{
	{Tool: "mcp__everything__echo", Arguments: map[string]string{"message": "over there"}},
	{Tool: "mcp__ts__greet", Arguments: map[string]string{"name": "Ada"}},
	{Resource: "demo://resource/static/document/features.md"},
	{Resource: "note://one"},
	{Resource: "demo://resource/dynamic/text/7"},
	{Prompt: "mcp__everything__args-prompt", Arguments: map[string]string{"city": "Berlin"}},
	{Prompt: "mcp__ts__welcome", Arguments: map[string]string{"name": "Ada"}},
}

type withBearer string

func (b withBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func asJSON(t *testing.T, v any, err error) string {
	t.Helper()
	if err != nil {
		t.Error(err)
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func goClient(t *testing.T, url, token, version string) peerView {
	c, err := sdk.NewClient(&sdk.Implementation{Name: "peer", Version: "1"}, nil).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: withBearer(token)}}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v := peerView{Said: map[string]string{}}
	ctx := t.Context()
	for x, err := range c.Tools(ctx, nil) {
		v.Tools = append(v.Tools, peerName(t, err, func() string { return x.Name }))
	}
	for x, err := range c.Resources(ctx, nil) {
		v.Resources = append(v.Resources, peerName(t, err, func() string { return x.URI }))
	}
	for x, err := range c.ResourceTemplates(ctx, nil) {
		v.Templates = append(v.Templates, peerName(t, err, func() string { return x.URITemplate }))
	}
	for x, err := range c.Prompts(ctx, nil) {
		v.Prompts = append(v.Prompts, peerName(t, err, func() string { return x.Name }))
	}
	for _, j := range peerJobs {
		switch {
		case j.Tool != "":
			r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: j.Tool, Arguments: j.Arguments})
			v.Said[j.Tool] = asJSON(t, r, err)
		case j.Resource != "":
			r, err := c.ReadResource(ctx, &sdk.ReadResourceParams{URI: j.Resource})
			v.Said[j.Resource] = asJSON(t, r, err)
		default:
			r, err := c.GetPrompt(ctx, &sdk.GetPromptParams{Name: j.Prompt, Arguments: j.Arguments})
			v.Said[j.Prompt] = asJSON(t, r, err)
		}
	}
	return v
}

func peerName(t *testing.T, err error, name func() string) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return name()
}

// node runs a program of the peers' folder and returns what it printed.
func node(t *testing.T, env []string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, peers.Node(), args...)
	cmd.Dir, cmd.Env = peers.Dir(), append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s %s", err, out, errs.String())
	}
	return out
}

func tsClient(t *testing.T, url, token, era string) peerView {
	jobs, err := json.Marshal(peerJobs)
	if err != nil {
		t.Fatal(err)
	}
	out := node(t, []string{"MCP_URL=" + url, "MCP_TOKEN=" + token, "MCP_ERA=" + era, "MCP_JOBS=" + string(jobs)}, "agent.mjs")
	var v peerView
	var all map[string]json.RawMessage
	if err := json.Unmarshal(out, &v); err != nil || json.Unmarshal(out, &all) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	v.Said = map[string]string{}
	for k, raw := range all {
		v.Said[k] = string(raw)
	}
	return v
}

func inspector(t *testing.T, url, token string) peerView {
	v := peerView{Said: map[string]string{}}
	ask := func(args ...string) []byte {
		return node(t, []string{"HOME=" + t.TempDir()}, append([]string{filepath.Join("node_modules", ".bin", "mcp-inspector"), "--cli", url, "--transport", "http",
			"--header", "Authorization: Bearer " + token}, args...)...)
	}
	names := func(method, list, member string) (out []string) {
		var got map[string][]map[string]any
		if raw := ask("--method", method); json.Unmarshal(raw, &got) != nil {
			t.Fatalf("%s: %s", method, raw)
		}
		for _, x := range got[list] {
			out = append(out, fmt.Sprint(x[member]))
		}
		return out
	}
	v.Tools, v.Resources = names("tools/list", "tools", "name"), names("resources/list", "resources", "uri")
	v.Templates, v.Prompts = names("resources/templates/list", "resourceTemplates", "uriTemplate"), names("prompts/list", "prompts", "name")
	for _, j := range peerJobs {
		var args []string
		switch {
		case j.Tool != "":
			args = []string{"--method", "tools/call", "--tool-name", j.Tool}
			for k, x := range j.Arguments {
				args = append(args, "--tool-arg", k+"="+x)
			}
		case j.Resource != "":
			args = []string{"--method", "resources/read", "--uri", j.Resource}
		default:
			args = []string{"--method", "prompts/get", "--prompt-name", j.Prompt}
			for k, x := range j.Arguments {
				args = append(args, "--prompt-args", k+"="+x)
			}
		}
		v.Said[j.Tool+j.Resource+j.Prompt] = string(ask(args...))
	}
	return v
}
