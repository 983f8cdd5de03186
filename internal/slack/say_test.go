package slack

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestMentioned(t *testing.T) {
	for text, want := range map[string]bool{
		"<@U1> hi": true, "hi <@U1|patchbay>!": true, "hi": false, "<@U2> hi": false, "`<@U1>`": false, "```<@U1> hi```": false,
		"write `x` <@U1>": true, "```\ncode\n``` <@U1>": true, "``` <@U1>": false, "a ` b <@U1> c": false,
	} {
		if mentioned(text, "U1") != want {
			t.Errorf("%q", text)
		}
	}
}

// What a model wrote mentions nobody and hides no address.
func TestChat(t *testing.T) {
	for in, want := range map[string]string{
		"**bold** and *it*":                   "*bold* and *it*",
		"# Head\ntext":                        "*Head*\ntext",
		"[click](https://evil.example/x)":     "click (https://evil.example/x)",
		"<!channel> <@U1> <https://x|y>":      "&lt;!channel&gt; &lt;@U1&gt; &lt;https://x|y&gt;",
		"a & b":                               "a &amp; b",
		"```\n**not bold** [a](https://b)```": "```\n**not bold** [a](https://b)```",
	} {
		if got := chat(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// However long a text is, nothing of it is left out and no part is too long.
func TestPartsAreWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.StringN(0, 900, 3000), 1, 20).Draw(t, "lines"), "\n")
		got := ""
		for i, p := range parts(text) {
			if len(p) > partSize || !utf8.ValidString(p) != !utf8.ValidString(text) && utf8.ValidString(text) {
				t.Fatalf("part %d has %d bytes", i, len(p))
			}
			got += p
		}
		if strings.ReplaceAll(got, "\n", "") != strings.ReplaceAll(text, "\n", "") {
			t.Fatal("something is left out")
		}
		n := 0
		for range sections(text) {
			n++
		}
		if n > 48 {
			t.Fatalf("%d blocks", n)
		}
	})
}

// What a run is at is told, but for the names of what is the asker's own.
func TestLine(t *testing.T) {
	own := map[string]bool{"mine": true}
	for tool, want := range map[string]string{"mcp__books__pay": "Using `pay` of books", "mcp__mine__look": "Using a tool of your own", "current_time": "Using `current_time`", "": "Looking"} {
		if got := (&shown{tool: tool}).line(own); !strings.Contains(got, want) || strings.Contains(got, "mine") {
			t.Errorf("%q: %s", tool, got)
		}
	}
	if got := (&shown{tool: "mcp__mine__look", waits: "approval"}).line(own); !strings.Contains(got, "Waiting for a person") {
		t.Error(got)
	}
}
