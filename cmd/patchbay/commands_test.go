package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/netguard"
)

// The command line reads every command as every other surface does, and its
// --help is theirs, with the flags of the program itself before it.
func TestTheCommandLineIsOneOfTheSurfaces(t *testing.T) {
	reg := command.New(command.Deps{})
	for _, cmd := range reg.All() {
		words, err := command.Words(cmd.Example)
		if err != nil {
			t.Fatal(err)
		}
		_, want, _, err := reg.Parse(words)
		if err != nil {
			t.Fatal(err)
		}
		grammar := reg.Grammar()
		c := cli{Plugins: kong.Plugins{grammar.Root()}}
		parser, err := kong.New(&c, kong.Name("patchbay"))
		if err != nil {
			t.Fatal(err)
		}
		k, err := parser.Parse(append([]string{"--json"}, words...))
		if err != nil {
			t.Fatalf("%s: %v", cmd.Name, err)
		}
		if got, in := grammar.Selected(k); got == nil || got.Name != cmd.Name || !reflect.DeepEqual(in, want) {
			t.Errorf("%s reads as %+v, elsewhere as %+v", cmd.Name, in, want)
		}
		help, err := reg.Help(cmd.Name)
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		if code := Main(append(strings.Split(cmd.Name, "."), "--help"), nil, &out, &errs); code != exitOK {
			t.Fatalf("%s --help: exit %d %s", cmd.Name, code, &errs)
		}
		shown := strings.Join(strings.Fields(out.String()), " ")
		for _, line := range strings.Split(help, "\n\n") {
			if line = strings.Join(strings.Fields(strings.Replace(line, "Flags:\n  -h, --help", "", 1)), " "); !strings.Contains(line, "Show context-sensitive help.") && !strings.Contains(shown, line) {
				t.Errorf("%s: the command line's help lacks %q", cmd.Name, line)
			}
		}
	}
}

// A refusal has the same code in every place, and its own exit code here.
func TestRefusalsHaveTheirExitCodes(t *testing.T) {
	t.Setenv("PATCHBAY_DATA", t.TempDir())
	for want, args := range map[int][]string{exitUsage: {"mcp", "add"}, exitFailed: {"--json", "mcp", "list"}} {
		var out, errs bytes.Buffer
		if code := Main(args, strings.NewReader(""), &out, &errs); code != want || out.Len() != 0 {
			t.Errorf("%q: exit %d, want %d; %s%s", args, code, want, &out, &errs)
		}
		if want == exitFailed {
			var p struct {
				Error struct{ Code, Message, Next string }
			}
			if json.Unmarshal(errs.Bytes(), &p) != nil || p.Error.Code != "unavailable" || p.Error.Next == "" {
				t.Errorf("%s", &errs)
			}
		}
	}
}

// serving is the directory of a server that runs until the test ends; its data are in d.
func serving(t *testing.T, config string, demo bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "patchbay.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:0\ndata: "+dir+"/d\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := app.LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a, err := app.New(ctx, app.Options{Config: cfg, Version: "test", Demo: demo, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	<-a.Ready()
	t.Cleanup(func() { cancel(); <-done; a.Close() })
	return dir
}

// What the command line prints as JSON is what the server answers, and a refusal
// has the same code and sentence.
func TestTheCommandLineAnswersLikeTheServer(t *testing.T) {
	dir := serving(t, "", false)
	c := &http.Client{Transport: netguard.InfraSocket(filepath.Join(dir, "d", app.SocketName))}
	for _, cmd := range command.New(command.Deps{}).All() {
		if !cmd.ReadOnly && cmd.Name != "mcp.remove" && cmd.Name != "mcp.connect" && cmd.Name != "runs.cancel" {
			continue // it would do it twice
		}
		words, err := command.Words(cmd.Example)
		if err != nil {
			t.Fatal(err)
		}
		_, in, _, err := command.New(command.Deps{}).Parse(words)
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Post("http://x/api/commands/"+cmd.Name, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var want any
		err = json.NewDecoder(resp.Body).Decode(&want)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		code := Main(append([]string{"--json", "--data", filepath.Join(dir, "d")}, words...), strings.NewReader(""), &out, &errs)
		if resp.StatusCode == http.StatusOK {
			var got any
			if json.Unmarshal(out.Bytes(), &got) != nil || !reflect.DeepEqual(got, want) || code != exitOK {
				t.Errorf("%s: exit %d\n%s\nwant %v", cmd.Name, code, &out, want)
			}
			continue
		}
		var p struct {
			Error struct{ Code, Message string }
		}
		problem := want.(map[string]any)
		if json.Unmarshal(errs.Bytes(), &p) != nil || p.Error.Code != problem["code"] || p.Error.Message != problem["detail"] || code == exitOK {
			t.Errorf("%s: exit %d %s, the server says %v", cmd.Name, code, &errs, problem)
		}
	}
}
