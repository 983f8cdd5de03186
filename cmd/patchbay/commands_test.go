package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"patchbay/internal/command"
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
