package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
)

// spans keeps what an exporter sends.
func spans(t *testing.T) (string, func() string) {
	var mu sync.Mutex
	var b strings.Builder
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		io.Copy(&b, r.Body)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() string { mu.Lock(); defer mu.Unlock(); return b.String() }
}

var marks = map[string]string{"bearer": "mk-bearer-7Qw2Zx9LkV4", "key": "mk-apikey-3Rt8Yp5NmB6", "password": "mk-passwd-1Hj6Gf4DsA9", "client": "mk-client-5Vb2Cn8XzM3"}

// echoing are servers that throw their credential back, one of each kind.
func echoing(t *testing.T) (map[string]*fake.MCP, *fake.MCP, *fake.AS, []string) {
	echo := func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		var got []string
		for _, h := range []string{"Authorization", "X-Api-Key"} {
			got = append(got, in.HTTP.Header.Get(h))
		}
		all := strings.Join(got, " ")
		if strings.Contains(string(in.Arguments), "fail") {
			return nil, &mcp.RPCError{Code: -32602, Message: "bad " + all}
		}
		return fake.Text("you sent " + all + " " + base64.StdEncoding.EncodeToString([]byte(all))), nil
	}
	tool := fake.Tool("echo", "")
	servers := map[string]*fake.MCP{}
	rules := []string{}
	for name, want := range map[string]string{"bearer": "Bearer " + marks["bearer"], "key": marks["key"], "password": "Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+marks["password"]))} {
		m := fake.NewMCP(t, tool)
		m.OnCall(echo)
		m.Guard(func(r *http.Request) (string, int) {
			if r.Header.Get("Authorization") != want && r.Header.Get("X-Api-Key") != want {
				return "Bearer", 401
			}
			return "", 0
		})
		servers[name] = m
		rules = append(rules, fmt.Sprintf("{to: %q, for: [%s]}", m.URL, name))
	}
	protectedBy := fake.NewMCP(t, tool)
	protectedBy.OnCall(echo)
	as := fake.NewAS(t, protectedBy)
	rules = append(rules, fmt.Sprintf("{to: %q, for: [oauth]}, {to: %q, for: [oauth]}", protectedBy.URL, as.URL))
	return servers, protectedBy, as, rules
}

// A marked secret of every kind goes through adding, signing in, calling, a
// server that throws it back, failing and showing. Afterwards none of them stands
// in any log, event, span, page, answer, database file or stack, in any form.
func TestNoSecretOfAnyKindIsLeft(t *testing.T) {
	servers, protectedBy, as, rules := echoing(t)
	otlp, traced := spans(t)
	s := start(t, "", "egress: {allow: ["+strings.Join(rules, ", ")+"]}\ntelemetry: {otlp: \""+otlp+"\"}\nmodels: {default: {provider: scripted, script: [{calls: [{tool: mcp__oauth__echo, input: {}}, {tool: mcp__bearer__echo, input: {x: fail}}]}, {say: \"{{last}}\"}]}}\n")
	as.AddClient("us", marks["client"], "client_secret_basic", "http://"+s.a.Addr()+"/mcp/oauth/callback")
	places := map[string]string{}
	note := func(where string, v any) { places[where] += fmt.Sprintf("%+v\n", v) }
	page := func(where string, code int, body string) { note(where, fmt.Sprint(code, body)) }
	v := newVisitor(t)

	for name, auth := range map[string]string{"bearer": "bearer", "key": "api_key:X-Api-Key", "password": "basic:ada"} {
		out := s.add(name, servers[name].Endpoint(), func(in *command.MCPAddInput) { in.Auth = auth })
		code, body := v.post(out.Link, url.Values{"token": {marks[name] + "\nx"}})
		page("a refused form", code, body)
		code, body = v.post(out.Link, url.Values{"token": {"x" + marks[name]}})
		page("a rejected form", code, body)
		if code, body = v.post(out.Link, url.Values{"token": {marks[name]}}); code != 200 {
			t.Fatal(code, body)
		}
		page("connected", code, body)
	}
	out := s.add("oauth", protectedBy.Endpoint(), func(in *command.MCPAddInput) { in.ClientID, in.ClientSecret = "us", marks["client"] })
	secrets := []string{}
	to := v.start(out.Link)
	asked, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	state := asked.Query().Get("state")
	_, random, _ := strings.Cut(state, ".")
	secrets = append(secrets, random)
	code, body := v.get(strings.Replace(v.approve(to), "code=", "code=x", 1)) // a code that is refused
	page("a refused callback", code, body)
	code, body = v.get(v.approve(v.start(out.Link)))
	if code != 200 {
		t.Fatal(code, body)
	}
	page("connected", code, body)
	for _, name := range []string{"bearer", "key", "password", "oauth"} {
		for _, args := range []string{`{}`, `{"x":"fail"}`} {
			var res command.MCPCall
			if err := s.do("mcp.call", command.MCPCallInput{Name: name, Tool: "echo", Arguments: command.Object(args)}, &res); err != nil {
				t.Fatal(name, err)
			}
			note("call", res)
			note("call result", string(res.Result))
		}
		var shown command.MCPShow
		if err := s.do("mcp.show", command.NameInput{Name: name}, &shown); err != nil {
			t.Fatal(err)
		}
		note("show", shown)
	}
	show, evs := s.ask("go", "general")
	note("run", show)
	for _, ev := range evs {
		note("events", string(ev.Data))
	}
	as.Expire() // a refresh, by a rejected token
	note("call", func() any { r, err := s.callTool("oauth", "echo"); return fmt.Sprint(r, err) }())
	as.Withdraw()
	note("call", func() any { r, err := s.callTool("oauth", "echo"); return fmt.Sprint(r, err) }())
	for _, in := range []command.TokensCreateInput{{Scopes: []string{"mcp:read"}}, {Agent: "general"}} {
		var k command.TokenCreated
		if err := s.do("tokens.create", in, &k); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, k.Value)
	}
	secrets = append(secrets, s.session())
	err = s.do("mcp.add", command.MCPAddInput{Name: "key2", Address: servers["key"].Endpoint(), Header: []string{"X-Api-Key: mk-header-6Tg5Rf4Ed3W"}}, &command.MCPAdded{})
	note("a refused header", err)
	secrets = append(secrets, "mk-header-6Tg5Rf4Ed3W")
	s.lists(note)
	for _, a := range as.Asked("/token") {
		if verifier := a.Form.Get("code_verifier"); verifier != "" {
			secrets = append(secrets, verifier)
		}
	}
	secrets = append(secrets, as.Issued()...)
	for _, m := range marks {
		secrets = append(secrets, m)
	}
	stacks := make([]byte, 4<<20)
	note("stacks", string(stacks[:runtime.Stack(stacks, true)]))
	nonce, _, _ := strings.Cut(state, ".")
	s.stop()
	note("log", s.log.String())
	note("spans", traced())
	files := s.files(note)
	if files < 3 || len(as.Issued()) < 6 || !strings.Contains(places["call result"], "credential removed") {
		t.Fatalf("the test did not do its part: %d files, %d values issued", files, len(as.Issued()))
	}
	// The link's nonce is in the link that its asker was given, and nowhere else.
	for _, where := range []string{"log", "spans", "events", "file patchbay.db", "file patchbay.db-wal", "stacks"} {
		if strings.Contains(places[where], nonce) {
			t.Errorf("%s holds the nonce of a link", where)
		}
	}
	lookFor(t, places, secrets)
}

// session signs a browser in by the printed link and returns its cookie.
func (s *served) session() string {
	s.t.Helper()
	var said command.Said
	if err := s.do("signin", command.ConfigInput{}, &said); err != nil {
		s.t.Fatal(err)
	}
	v := newVisitor(s.t)
	if code, _ := v.get(said.Text_); code != 200 {
		s.t.Fatal(code)
	}
	if code, _ := v.post(said.Text_, nil); code != http.StatusSeeOther {
		s.t.Fatal(code)
	}
	u, err := url.Parse(said.Text_)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range v.c.Jar.Cookies(u) {
		if c.Name == "patchbay" {
			if code, body := v.get("http://" + s.a.Addr() + "/"); code != 200 || !strings.Contains(body, "cli:local") {
				s.t.Errorf("signed in: %d %.300s", code, body)
			}
			return c.Value
		}
	}
	s.t.Fatal("no session")
	return ""
}

// lists notes what the listing commands answer, byte for byte.
func (s *served) lists(note func(where string, v any)) {
	for name, in := range map[string]any{"mcp.list": command.MCPListInput{}, "tokens.list": command.TokensListInput{}, "config.show": command.ConfigInput{}, "keys.status": command.KeysStatusInput{}} {
		c := &http.Client{Transport: netguard.InfraSocket(filepath.Join(s.dir, "d", "patchbay.sock"))}
		b, _ := json.Marshal(in)
		resp, err := c.Post("http://x/api/commands/"+name, "application/json", strings.NewReader(string(b)))
		if err != nil {
			s.t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		note(name, string(answer))
	}
}

// files notes every file of the data directory.
func (s *served) files(note func(where string, v any)) (n int) {
	filepath.WalkDir(filepath.Join(s.dir, "d"), func(p string, d os.DirEntry, err error) error {
		if b, rerr := os.ReadFile(p); err == nil && rerr == nil {
			note("file "+filepath.Base(p), string(b))
			n++
		}
		return nil
	})
	return n
}

// lookFor wants none of the secrets in any place, however they are written.
func lookFor(t *testing.T, places map[string]string, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte("Bearer " + secret)), url.QueryEscape(secret)} {
			for where, text := range places {
				if i := strings.Index(text, form); i >= 0 {
					t.Errorf("%s holds %s: …%q…", where, secret, text[max(0, i-80):min(len(text), i+80)])
				}
			}
		}
	}
}
