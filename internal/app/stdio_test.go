package app_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// declares writes registry files, name: content, under dir/reg.
func declares(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "reg"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, more := range files {
		if err := os.WriteFile(filepath.Join(dir, "reg", name+".yaml"), []byte("name: "+name+"\ntransport: stdio\n"+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func peersDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../test/peers")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules/.bin/mcp-server-memory")); err != nil {
		t.Fatalf("the npm peers are not installed: make deps (%v)", err)
	}
	return dir
}

// TestThirdPartyServersInTheSandbox: two servers from npm are connections of an agent like
// any other, for a run of its own and for a client from elsewhere.
func TestThirdPartyServersInTheSandbox(t *testing.T) {
	dir := t.TempDir()
	declares(t, dir, map[string]string{"memory": "command: env\nargs: [MEMORY_FILE_PATH=/home/agent/memory.jsonl, mcp-server-memory]\n", "files": "command: mcp-server-filesystem\nargs: [/home/agent]\n"})
	steps := `[{calls: [{tool: mcp__memory__create_entities, input: {entities: [{name: Ada, entityType: person, observations: [wrote the first program]}]}}]},
 {calls: [{tool: mcp__files__write_file, input: {path: /home/agent/note.txt, content: kept here}}]},
 {calls: [{tool: mcp__files__read_text_file, input: {path: /home/agent/note.txt}}, {tool: mcp__files__read_text_file, input: {path: /etc/passwd}}, {tool: mcp__memory__read_graph}]}, {say: "{{last}}"}]`
	s := start(t, dir, fmt.Sprintf("registry: {path: reg}\nsandbox: {kind: bubblewrap, read: [%q]}\nagents: {general: {servers: [memory, files]}}\n", peersDir(t))+scripted(steps))
	run, events := s.ask("Remember Ada", "general")
	if run.Run.State != string(plane.RunSucceeded) || servers(run) != "registry:files registry:memory" {
		t.Fatalf("%+v\n%s", run.Run, s.log.String())
	}
	all := fmt.Sprint(events)
	for _, e := range events {
		all += string(e.Data)
	}
	for _, want := range []string{"kept here", `\"Ada\"`, "outside allowed directories"} {
		if !strings.Contains(all, want) {
			t.Errorf("the run did not show %q", want)
		}
	}
	if row := s.row("memory"); row.Health != string(plane.HealthOK) || row.Tools != 9 || !strings.HasPrefix(row.URL, "stdio://env/") {
		t.Errorf("%+v", row)
	}
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 23 {
		t.Fatalf("%d tools, %v", len(tools.Tools), err)
	}
	res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__memory__read_graph"})
	if err != nil || res.IsError || !strings.Contains(res.Content[0].(*sdk.TextContent).Text, "Ada") {
		t.Errorf("%+v %v", res, err)
	}
	var calls command.CallsList
	if err := s.do("calls.list", command.CallsListInput{}, &calls); err != nil || len(calls.Calls) != 6 {
		t.Errorf("%d calls on record, %v", len(calls.Calls), err)
	}
}

// insider serves an app with a stdio server of ours that may send to the destination api
// and to no other of its agent's.
func insider(t *testing.T, more string) *outward {
	t.Helper()
	far := newFarEnd(t)
	dir, port := trusting(t, far.Server)
	tools := filepath.Join(dir, "tools")
	script, err := os.ReadFile("testdata/insider.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tools, "insider.py"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	const mark = "STANDS_FOR_A_SECRET"
	declares(t, dir, map[string]string{"inside": "command: insider.py\ndestination: api\nenv: {API_KEY: " + mark + "}\n", "shut": "command: insider.py\nargs: [shut]\n"})
	s := start(t, dir, fmt.Sprintf(`registry: {path: reg}
placeholder: %s
sandbox: {kind: bubblewrap, read: [%q]}
agents: {general: {servers: [inside, shut], destinations: [api, other]}}
egress:
  allow: [{to: "127.0.0.1:%s", for: [api, other]}]
  destinations:
    api: {hosts: [127.0.0.1], port: %s, paths: ["/hello", "/plain"], inject: {kind: bearer}, inject_secret: "secret:api"}
    other: {hosts: [127.0.0.1], port: %s, inject: {kind: bearer}, inject_secret: "secret:api"}
%s`, mark, tools, port, port, port, more))
	if err := s.do("secrets.put", command.SecretsPutInput{Ref: "api", Value: outSecret}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	return &outward{served: s, far: far, placeholder: mark, host: "127.0.0.1:" + port}
}

// says calls a tool of the server inside and returns its text.
func (o *outward) says(t *testing.T, server, tool string, args map[string]any) (string, command.MCPCall) {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	var out command.MCPCall
	if err := o.do("mcp.call", command.MCPCallInput{Name: server, Tool: tool, Arguments: command.Object(raw)}, &out); err != nil {
		return err.Error(), out
	}
	var r struct{ Content []struct{ Text string } }
	if len(out.Result) > 0 {
		if err := json.Unmarshal(out.Result, &r); err != nil || len(r.Content) != 1 {
			t.Fatalf("%s %v", out.Result, err)
		}
		return r.Content[0].Text, out
	}
	return out.Message, out
}

// TestFromInside: a stdio server reads no file of the host, holds no secret, and reaches
// the one destination that its declaration names, where the secret goes in on the way.
func TestFromInside(t *testing.T) {
	o := insider(t, "")
	env, _ := o.says(t, "inside", "env", nil)
	if !strings.Contains(env, `"API_KEY": "`+o.placeholder+`"`) || strings.Contains(env, outSecret) || strings.Contains(env, "PATCHBAY_KEYS") {
		t.Errorf("its environment: %s", env)
	}
	bearer := "Bearer " + o.placeholder
	if got, _ := o.says(t, "inside", "fetch", map[string]any{"url": "https://" + o.host + "/hello", "auth": bearer}); !strings.Contains(got, "GET /hello with") || strings.Contains(got, outSecret) {
		t.Errorf("its destination: %s\n%s", got, o.served.log.String())
	}
	if _, auth := o.far.requests(); auth != "Bearer "+outSecret {
		t.Errorf("the far end got %q", auth)
	}
	before, _ := o.far.requests()
	host, port, _ := strings.Cut(o.host, ":")
	for name, c := range map[string]struct {
		server, tool string
		args         map[string]any
		want         string
	}{
		"another destination of the agent": {"inside", "fetch", map[string]any{"url": "https://" + o.host + "/json", "auth": bearer}, "403"},
		"an address of nobody's":           {"inside", "fetch", map[string]any{"url": "https://example.com/", "auth": bearer}, "403"},
		"past the proxy":                   {"inside", "straight", map[string]any{"host": host, "port": port}, "failed"},
		"Patchbay itself":                  {"inside", "straight", map[string]any{"host": "127.0.0.1", "port": o.a.Addr()[strings.LastIndex(o.a.Addr(), ":")+1:]}, "failed"},
		"the host's files":                 {"inside", "read", map[string]any{"path": filepath.Join(o.dir, "patchbay.yaml")}, "failed"},
		"the keys":                         {"inside", "read", map[string]any{"path": filepath.Join(o.dir, "d", "keys.json")}, "failed"},
		"other processes":                  {"inside", "shell", map[string]any{"line": "cat /proc/*/cmdline | tr '\\0' ' ' | grep -c '[p]atchbay.yaml'"}, "0"},
		"without a destination":            {"shut", "fetch", map[string]any{"url": "https://" + o.host + "/hello", "auth": bearer}, "failed"},
	} {
		if got, _ := o.says(t, c.server, c.tool, c.args); !strings.Contains(got, c.want) || strings.Contains(got, outSecret) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if n, _ := o.far.requests(); n != before {
		t.Errorf("%d requests arrived that should not", n-before)
	}
	log := o.log(t, 3)
	for _, r := range log {
		if r.Agent != "general" || !strings.HasPrefix(r.By, "server:con_") {
			t.Errorf("%+v", r)
		}
	}
}

// TestWhatOneTeamLeftReachesNoOther: two teams use one declared server, each in a process
// of its own, and neither what one keeps there nor how its tools look then shows to the
// other, or in the catalog.
func TestWhatOneTeamLeftReachesNoOther(t *testing.T) {
	o := insider(t, "teams: {payments: {members: [\"cli:local\"]}, legal: {members: [\"cli:local\"]}}\n")
	plugged := func(team string) *sdk.ClientSession {
		var token command.TokenCreated
		if err := o.do("tokens.create", command.TokensCreateInput{Label: "x", Agent: "general", Team: team}, &token); err != nil {
			t.Fatal(err)
		}
		return o.plug("general", token.Value, "2025-11-25", nil)
	}
	call := func(c *sdk.ClientSession, tool string, args map[string]any) string {
		res, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__inside__" + tool, Arguments: args})
		if err != nil || len(res.Content) == 0 {
			return fmt.Sprint(err)
		}
		return res.Content[0].(*sdk.TextContent).Text
	}
	payments, legal := plugged("payments"), plugged("legal")
	const private = "PRIVATE-OF-PAYMENTS"
	if got := call(payments, "remember", map[string]any{"text": private}); got != "kept" {
		t.Fatal(got)
	}
	if got := call(legal, "notes", nil); strings.Contains(got, private) {
		t.Errorf("the process is shared: %s", got)
	}
	time.Sleep(time.Second) // notices are followed by a listing
	if err := o.do("mcp.refresh", command.NameInput{Name: "inside"}, &command.MCPTest{}); err != nil {
		t.Fatal(err)
	}
	for who, c := range map[string]*sdk.ClientSession{"legal": legal, "payments": payments} {
		tools, err := c.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range tools.Tools {
			if strings.Contains(tool.Description, private) {
				t.Errorf("%s is shown %s", who, tool.Description)
			}
		}
	}
	var tools command.MCPTools
	if err := o.do("mcp.tools", command.MCPToolsInput{Name: "inside"}, &tools); err != nil || strings.Contains(fmt.Sprint(tools), private) {
		t.Errorf("the catalog holds it: %v", err)
	}
}

// TestAStdioServerMisbehaves: every end is named, an effect that may have happened is
// unknown, and the next call has a fresh process. The other server never notices.
func TestAStdioServerMisbehaves(t *testing.T) {
	o := insider(t, "limits: {sandbox_memory: 134217728, idle_timeout: 12s}\n")
	if got, _ := o.says(t, "shut", "ok", nil); got != "fine" {
		t.Fatalf("%s", got)
	}
	pid, _ := o.says(t, "shut", "shell", map[string]any{"line": "cat /proc/sys/kernel/random/uuid > id; cat id"})
	for tool, want := range map[string]string{"crash": "status 9", "hang": "did not answer in time", "hog": "MiB of memory", "garbage": "something other than JSON-RPC", "flood": "flooded"} {
		t.Run(tool, func(t *testing.T) {
			got, call := o.says(t, "inside", tool, map[string]any{"mib": 600})
			state := plane.CallUnknown
			if tool == "flood" {
				state = plane.CallSucceeded
			}
			if !strings.Contains(got, want) || call.State != string(state) {
				t.Errorf("%s: %s", call.State, got)
			}
			if got, call := o.says(t, "inside", "ok", nil); got != "fine" {
				t.Errorf("the next call: %s %+v", got, call)
			}
		})
	}
	if again, _ := o.says(t, "shut", "shell", map[string]any{"line": "cat id"}); again != pid {
		t.Errorf("the other server was started anew: %q, %q", pid, again)
	}
}

// TestWithoutASandbox: a stdio declaration is left out, with a warning, and nothing runs.
func TestWithoutASandbox(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	for name, kind := range map[string]string{"none": "none", "not installed": "bubblewrap"} {
		t.Run(name, func(t *testing.T) {
			if kind == "bubblewrap" {
				t.Setenv("PATH", t.TempDir())
			}
			dir := t.TempDir()
			declares(t, dir, map[string]string{"shell": "command: touch\nargs: [" + ran + "]\n"})
			s := start(t, dir, "registry: {path: reg}\nsandbox: "+kind+"\nagents: {general: {servers: [shell]}}\n"+scripted(`[{say: done}]`))
			if run, _ := s.ask("Look", "general"); servers(run) != "" {
				t.Errorf("%s", servers(run))
			}
			var why command.Why
			if err := s.do("mcp.why", command.WhyInput{Tool: "shell/run", Agent: "general"}, &why); err != nil || !strings.Contains(why.Answer, "no sandbox") {
				t.Errorf("%+v %v", why, err)
			}
			if log := s.log.String(); !strings.Contains(log, "a declaration is left out") || !strings.Contains(log, "there is no sandbox") {
				t.Errorf("%s", log)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := os.Stat(ran); err == nil {
		t.Error("it ran on the host")
	}
}
