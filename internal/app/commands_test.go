package app_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
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

// surfaces speaks to one app over HTTP and MCP.
type surfaces struct {
	t    *testing.T
	s    *served
	http *http.Client
	base string
	mcp  *mcp.Client
	def  map[string]string // a tool's description
}

func newSurfaces(t *testing.T, s *served) *surfaces {
	t.Helper()
	sock := netguard.InfraSocket(filepath.Join(s.dir, "d", app.SocketName))
	x := &surfaces{t: t, s: s, http: &http.Client{Transport: sock}, base: "http://x", def: map[string]string{}}
	c, err := mcp.NewClient(mcp.Options{Endpoint: "http://x/mcp", Transport: sock, Info: mcp.Implementation{Name: "t", Version: "1"},
		Bounds: mcp.Bounds{Header: 5 * time.Second, Idle: 5 * time.Second, Total: 20 * time.Second, Body: 4 << 20, Tools: 100, Pages: 4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := c.ListTools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range l.Tools {
		var d struct{ Name, Description string }
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		x.def[d.Name] = d.Description
	}
	x.mcp = c
	return x
}

// overHTTP returns the answer and, when it is a refusal, its code.
func (x *surfaces) overHTTP(method, name, body string) (answer json.RawMessage, code string) {
	x.t.Helper()
	req, err := http.NewRequest(method, x.base+"/api/commands/"+name, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	resp, err := x.http.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	var p struct{ Code string }
	if resp.StatusCode != 200 {
		json.Unmarshal(b, &p)
	}
	return b, p.Code
}

func (x *surfaces) overMCP(name, args string) (answer json.RawMessage, code string) {
	x.t.Helper()
	r, err := x.mcp.Call(x.t.Context(), mcp.Call{Name: name, Arguments: json.RawMessage(args)})
	if err != nil {
		x.t.Fatal(err)
	}
	var out struct {
		Structured json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal(r.Result, &out); err != nil {
		x.t.Fatal(err)
	}
	var p struct{ Error struct{ Code string } }
	if r.IsError {
		json.Unmarshal(out.Structured, &p)
	}
	return out.Structured, p.Error.Code
}

func same(t *testing.T, a, b json.RawMessage) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

func hasSensitive(cmd *command.Command) map[string]bool {
	out := map[string]bool{}
	typ := reflect.TypeOf(cmd.Input()).Elem()
	for i := range typ.NumField() {
		if what, ok := typ.Field(i).Tag.Lookup("sensitive"); ok && what == "" {
			out[typ.Field(i).Name] = true
		}
	}
	return out
}

// Every command on every surface: one parse, one JSON, one help, one set of
// refusals. What differs is found here, whichever command is added next.
func TestEveryCommandOnEverySurface(t *testing.T) {
	t.Parallel()
	f := fake.NewMCP(t, fake.Tool("get_issue", ""))
	s, sl := inSlack(t, "org: {connections: {demo: {url: \""+f.Endpoint()+"\"}}}\n"+allow("demo", f.URL)+"identity: {admins: [ada@example.com]}\n")
	x := newSurfaces(t, s)
	reg := command.New(command.Deps{})
	if len(reg.All()) != len(x.def) {
		t.Errorf("%d commands, %d tools", len(reg.All()), len(x.def))
	}
	for _, cmd := range reg.All() {
		t.Run(cmd.Name, func(t *testing.T) {
			if cmd.Example == "" || cmd.Summary == "" || cmd.Right == 0 {
				t.Fatal("it lacks an example, a summary or a scope")
			}
			typ := reflect.TypeOf(cmd.Input()).Elem()
			for i := range typ.NumField() {
				for _, tag := range []string{"env", "envars", "type", "file"} {
					if v, ok := typ.Field(i).Tag.Lookup(tag); ok {
						t.Errorf("%s reads the server's %s: %s", typ.Field(i).Name, tag, v)
					}
				}
			}
			words, err := command.Words(cmd.Example)
			if err != nil {
				t.Fatal(err)
			}
			got, typed, _, err := reg.Parse(words)
			if err != nil || got != cmd && got.Name != cmd.Name {
				t.Fatalf("the example does not parse: %v", err)
			}
			secret := false
			for name := range hasSensitive(cmd) {
				secret = secret || !reflect.ValueOf(typed).Elem().FieldByName(name).IsZero()
			}
			_, said, _, err := reg.ParseChat("<@U0BOT|patchbay> " + cmd.Example)
			switch {
			case secret && plane.KindOf(err) != plane.InvalidInput:
				t.Errorf("chat takes a secret: %v", err)
			case !secret && (err != nil || !reflect.DeepEqual(typed, said)):
				t.Errorf("chat reads %+v, the command line %+v: %v", said, typed, err)
			}
			body, err := json.Marshal(typed)
			if err != nil {
				t.Fatal(err)
			}
			back := cmd.Input()
			d := json.NewDecoder(bytes.NewReader(body))
			d.DisallowUnknownFields()
			if err := d.Decode(back); err != nil || !reflect.DeepEqual(typed, back) {
				t.Errorf("JSON %s reads as %+v, the command line as %+v: %v", body, back, typed, err)
			}

			help, err := reg.Help(cmd.Name)
			if err != nil || !strings.Contains(help, cmd.Summary) {
				t.Fatalf("help: %v", err)
			}
			var described struct{ Help string }
			if b, code := x.overHTTP("GET", cmd.Name, ""); code != "" || json.Unmarshal(b, &described) != nil || described.Help != help {
				t.Errorf("help over HTTP: %s", b)
			}
			if x.def[cmd.Name] != help {
				t.Errorf("help over MCP: %s", x.def[cmd.Name])
			}
			if _, _, chat, err := reg.ParseChat(strings.ReplaceAll(cmd.Name, ".", " ") + " —help"); err != nil || chat != help {
				t.Errorf("help in chat: %v %s", err, chat)
			}
			overSlack(t, sl, cmd, help)

			// The same refusals, and where reading changes nothing the same answer.
			for _, in := range []string{`{"no_such_field": 1}`, `[]`, `{`} {
				if _, code := x.overHTTP("POST", cmd.Name, in); code != "invalid_input" {
					t.Errorf("%s over HTTP: %s", in, code)
				}
			}
			if _, code := x.overMCP(cmd.Name, `{"no_such_field": 1}`); code != "invalid_input" {
				t.Errorf("an unknown field over MCP: %s", code)
			}
			if cmd.Name == "mcp.add" || cmd.Name == "mcp.add-json" || !cmd.ReadOnly && cmd.Name != "mcp.connect" && cmd.Name != "mcp.remove" && cmd.Name != "runs.cancel" {
				return // they would do it
			}
			overHTTP, code := x.overHTTP("POST", cmd.Name, string(body))
			overMCP, mcpCode := x.overMCP(cmd.Name, string(body))
			if code != mcpCode || code == "" && !same(t, overHTTP, overMCP) {
				t.Errorf("HTTP %s %s\nMCP %s %s", code, overHTTP, mcpCode, overMCP)
			}
			if cmd.ReadOnly && !secret {
				var refused struct{ Detail string }
				got := inThread(t, sl, "<@UBOT> "+cmd.Example)
				if json.Unmarshal(overHTTP, &refused); code != "" && !strings.Contains(squeezed(got), squeezed(refused.Detail)) || code == "" && got == "" {
					t.Errorf("HTTP %s %s\nSlack %s", code, overHTTP, got)
				}
			}
			out := cmd.Output()
			if code == "" && json.Unmarshal(overHTTP, out) != nil {
				t.Errorf("the output is of another shape: %s", overHTTP)
			}
		})
	}
}

// overSlack holds a command's help, and its refusal of a field, in Slack to the others'.
func overSlack(t *testing.T, sl *fake.Slack, cmd *command.Command, help string) {
	t.Helper()
	line := "<@UBOT> " + strings.ReplaceAll(cmd.Name, ".", " ")
	if got := inThread(t, sl, line+" --help"); squeezed(got) != squeezed(help) {
		t.Errorf("help in Slack: %s", got)
	}
	if got := inThread(t, sl, line+" --no-such-field"); !strings.Contains(got, "no-such-field") {
		t.Errorf("an unknown field in Slack: %s", got)
	}
}

// inThread says something in a channel and returns what the bot answers, whole.
func inThread(t *testing.T, sl *fake.Slack, text string) (answer string) {
	t.Helper()
	ts := sl.Say("UADA", "DADA", text, "")
	within(t, 20*time.Second, text, func() bool {
		answer = ""
		for _, m := range sl.Messages("DADA") {
			if m.User == "UBOT" && m.Thread == ts {
				answer += m.Text
			}
		}
		for _, f := range sl.Files() {
			if f.Thread == ts {
				answer += f.Content
			}
		}
		return answer != ""
	})
	return strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(answer)
}

// squeezed is text without what a chat's dialect may change of it.
func squeezed(s string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("```", "", "` ` `", "").Replace(s)), " ")
}

// Who nobody knows is told so before anything is read, and a token that lacks
// the scope is refused alike on every surface.
func TestAuthenticationComesBeforeParsing(t *testing.T) {
	s := start(t, "", "")
	tcp := "http://" + s.a.Addr()
	ask := func(path, token, body string) int {
		req, err := http.NewRequest("POST", tcp+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, cmd := range command.New(command.Deps{}).All() {
		if got := ask("/api/commands/"+cmd.Name, "", "not json"); got != 401 {
			t.Errorf("%s: %d", cmd.Name, got)
		}
	}
	for _, path := range []string{"/api/commands/no.such", "/mcp", "/api/agents/general/mcp/oauth/start"} {
		if got := ask(path, "", "not json"); got != 401 {
			t.Errorf("%s: %d", path, got)
		}
		if got := ask(path, "pbt_nobody", "not json"); got != 401 {
			t.Errorf("%s with a made-up token: %d", path, got)
		}
	}
	var reader command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "r", Scopes: []string{"runs:read"}}, &reader); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range command.New(command.Deps{}).All() {
		want := 403
		if plane.RunsRead.Has(cmd.Right) {
			want = 0 // whatever it says, it is not refused for the scope
		}
		if got := ask("/api/commands/"+cmd.Name, reader.Value, "{}"); want != 0 && got != want {
			t.Errorf("%s with runs:read: %d", cmd.Name, got)
		}
	}
	if got := ask("/api/commands/runs.list", reader.Value, "{}"); got != 200 {
		t.Errorf("runs.list: %d", got)
	}
	if err := s.do("tokens.revoke", command.TokenInput{ID: reader.ID}, &command.TokenRow{}); err != nil {
		t.Fatal(err)
	}
	if got := ask("/api/commands/runs.list", reader.Value, "{}"); got != 401 {
		t.Errorf("a revoked token: %d", got)
	}
}

// overAPI is a request to any path of the API.
func (x *surfaces) overAPI(method, path, body string) (answer []byte, status int) {
	x.t.Helper()
	req, err := http.NewRequest(method, x.base+path, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	resp, err := x.http.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		x.t.Fatal(err)
	}
	return answer, resp.StatusCode
}

func mustJSON(t *testing.T, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}
