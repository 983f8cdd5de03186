package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
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
	"patchbay/internal/secret"
	"patchbay/internal/store"
)

// The listener on TCP knows nobody, and answers only to its own name.
func TestTheTCPListenerIsClosed(t *testing.T) {
	s := start(t, "", "")
	get := func(method, path string, header map[string]string) int {
		req, _ := http.NewRequest(method, "http://"+s.a.Addr()+path, strings.NewReader("{}"))
		for k, v := range header {
			if k == "Host" {
				req.Host = v
			} else {
				req.Header.Set(k, v)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		method, path string
		header       map[string]string
		want         int
	}{
		{"GET", "/healthz", nil, 200},
		{"POST", "/api/commands/status", nil, 401},
		{"GET", "/api/openapi.json", nil, 401},
		{"POST", "/mcp", nil, 401},
		{"GET", "/", nil, 401},
		{"GET", "/api/runs/run_00000000000000000000000000/events", nil, 401},
		{"GET", "/healthz", map[string]string{"Host": "evil.example"}, 403},
		{"GET", "/healthz", map[string]string{"Host": "evil.example:" + s.a.Addr()[strings.LastIndex(s.a.Addr(), ":")+1:]}, 403},
		{"GET", "/healthz", map[string]string{"Origin": "https://evil.example"}, 403},
		{"GET", "/healthz", map[string]string{"Origin": "http://" + s.a.Addr()}, 200},
		{"GET", "/healthz", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
	} {
		if got := get(c.method, c.path, c.header); got != c.want {
			t.Errorf("%s %s %v: %d, want %d", c.method, c.path, c.header, got, c.want)
		}
	}
	info, err := os.Stat(filepath.Join(s.dir, "d", app.SocketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode: %v %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "d")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory's mode: %v %v", info.Mode(), err)
	}
}

// A run that somebody cancelled just before the process died does not go on
// after the restart.
func TestACancelledRunStaysCancelled(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("pay", ""))
	dir := t.TempDir()
	s := start(t, dir, upConfig(f)+scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: paid}]`))
	s.stop()
	st, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "d", "patchbay.db")})
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "d", "keys"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := secret.ParseRing(secret.New(string(key)))
	if err != nil {
		t.Fatal(err)
	}
	r := plane.Run{ID: plane.NewRunID(time.Now()), Agent: "general", Principal: plane.Local.ID}
	err = st.Write(t.Context(), func(tx plane.Tx) error {
		seal := func(record string, b string) []byte {
			return ring.Seal(secret.Bind{Purpose: "content", Scope: string(r.ID), Record: record}, []byte(b))
		}
		if err := st.InsertRun(tx, &r, seal("prompt", "pay")); err != nil {
			return err
		}
		if err := st.AddMessage(tx, r.ID, 1, seal("message/1", `{"role":"user","parts":[{"text":"pay"}]}`)); err != nil {
			return err
		}
		if err := st.ClaimRun(tx, r.ID, "gone", tx.Now().Add(time.Hour)); err != nil {
			return err
		}
		_, err := st.AskCancel(tx, r.ID, "enough")
		return err
	})
	if err = errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir, upConfig(f)+scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: paid}]`))
	show, _ := s.follow(string(r.ID))
	if show.Run.State != "cancelled" || len(f.Calls()) != 0 {
		t.Fatalf("%+v, %d calls", show.Run, len(f.Calls()))
	}
}

// The commands at /mcp are the commands of every surface.
func TestCommandsOverMCP(t *testing.T) {
	s := start(t, "", "")
	c, err := mcp.NewClient(mcp.Options{Endpoint: "http://x/mcp", Transport: netguard.InfraSocket(filepath.Join(s.dir, "d", app.SocketName)), Info: mcp.Implementation{Name: "t", Version: "1"},
		Bounds: mcp.Bounds{Header: 5 * time.Second, Idle: 5 * time.Second, Total: 10 * time.Second, Body: 1 << 20, Tools: 100, Pages: 4}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := c.ListTools(t.Context())
	if err != nil || len(l.Tools) != 73 {
		t.Fatalf("%d tools, %v", len(l.Tools), err)
	}
	for args, want := range map[string]string{`{"limit":5}`: `"runs":[]`, `{"limit":-1}`: "invalid_input", `{"nope":1}`: "invalid_input"} {
		r, err := c.Call(t.Context(), mcp.Call{Name: "runs.list", Arguments: json.RawMessage(args)})
		if err != nil || !strings.Contains(string(r.Result), want) || r.IsError != strings.Contains(want, "invalid") {
			t.Errorf("%s: %s %v", args, r.Result, err)
		}
	}
}

// A marked secret is driven through a run whose server throws it back, and
// stands nowhere afterwards.
func TestNoSecretIsLeftAnywhere(t *testing.T) {
	const secret = "mk-9fQ2xV7bT4nR8wZ1"
	t.Setenv("UP_TOKEN", secret)
	t.Setenv("FAKE_KEY", "mk-model-3dK8sLq0PzX5")
	f := fake.NewMCP(t, fake.Tool("echo", `"title":"Bearer `+secret+`"`))
	f.RequireToken(secret)
	f.Half.Instructions = "token " + secret
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if strings.Contains(string(in.Arguments), "fail") {
			return nil, &mcp.RPCError{Code: -32602, Message: "bad " + in.HTTP.Header.Get("Authorization")}
		}
		return fake.Text("you sent " + in.HTTP.Header.Get("Authorization")), nil
	})
	l := fake.NewLLM(t, fake.Turn{Calls: []fake.ToolCall{{ID: "u1", Name: "mcp__up__echo", Input: `{}`}, {ID: "u2", Name: "mcp__up__echo", Input: `{"x":"fail"}`}}}, fake.Turn{Text: "done"})
	config := fmt.Sprintf("org: {connections: {up: {url: %q, auth: bearer, token_env: UP_TOKEN}}}\n", f.Endpoint()) + allow("up", f.URL) + llmConfig(l, "anthropic")
	s := start(t, "", config)
	show, evs := s.ask("go", "general")
	var shown command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &shown); err != nil {
		t.Fatal(err)
	}
	if show.Run.State != "succeeded" || len(f.Calls()) != 2 || f.Calls()[0].Header.Get("Authorization") != "Bearer "+secret {
		t.Fatalf("the run did not do its part: %+v", show)
	}
	s.stop()
	places := map[string]string{"log": s.log.String(), "show": fmt.Sprintf("%+v", show), "mcp show": fmt.Sprintf("%+v", shown), "model": fmt.Sprintf("%s", l.Requests())}
	for _, ev := range evs {
		places["events"] += string(ev.Data)
	}
	files, _ := filepath.Glob(filepath.Join(s.dir, "d", "*"))
	for _, p := range files {
		b, err := os.ReadFile(p)
		if err == nil {
			places[p] = string(b)
		}
	}
	if len(files) < 3 {
		t.Fatalf("files: %v", files)
	}
	for where, text := range places {
		for _, mark := range []string{secret, "mk-model-3dK8sLq0PzX5", "9fQ2xV7bT4nR8wZ1"} {
			if strings.Contains(text, mark) {
				i := strings.Index(text, mark)
				t.Errorf("%s holds %s: …%q…", where, mark, text[max(0, i-60):min(len(text), i+60)])
			}
		}
	}
	// Transcripts are sealed too.
	for _, p := range files {
		if strings.Contains(places[p], "you sent") {
			t.Errorf("%s holds a result in plaintext", p)
		}
	}
}
