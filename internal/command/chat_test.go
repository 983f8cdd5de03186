package command

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/internal/consent"
	"patchbay/internal/plane"
)

// What chat programs make of a line is undone, and nothing else is done to it.
func TestWords(t *testing.T) {
	for in, want := range map[string][]string{
		`mcp add linear https://mcp.linear.app/mcp`:                                     {"mcp", "add", "linear", "https://mcp.linear.app/mcp"},
		`<@U0123ABC> mcp add linear <https://mcp.linear.app/mcp>`:                       {"mcp", "add", "linear", "https://mcp.linear.app/mcp"},
		`<@U0123ABC|patchbay>: mcp list`:                                                {"mcp", "list"},
		`@patchbay, mcp add x <https://a.example/mcp?x=1&amp;y=2|a.example> —scope org`: {"mcp", "add", "x", "https://a.example/mcp?x=1&y=2", "--scope", "org"},
		`runs start “Where is order 1002?”`:                                             {"runs", "start", "Where is order 1002?"},
		`runs start ‘it’`:                                                               {"runs", "start", "it"},
		`tokens create "a \"b\" c" '' x`:                                                {"tokens", "create", `a "b" c`, "", "x"},
		`config show <mailto:a@example.com|a@example.com>`:                              {"config", "show", "a@example.com"},
		"a\u00a0b  c\td":       {"a", "b", "c", "d"},
		`runs start don't`:     {"runs", "start", "don't"},
		`a $(rm -rf /) ;b | c`: {"a", "$(rm", "-rf", "/)", ";b", "|", "c"},
		``:                     nil,
	} {
		if got, err := Words(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`a "b`, `a \`, strings.Repeat("a", maxLine+1)} {
		if got, err := Words(in); plane.KindOf(err) != plane.InvalidInput {
			t.Errorf("%.20q: %q %v", in, got, err)
		}
	}
}

func FuzzWords(f *testing.F) {
	f.Add(`<@U1> mcp add “x” <http://a|b> —scope 'org'`)
	r := New(Deps{})
	f.Fuzz(func(t *testing.T, s string) { r.ParseChat(s) })
}

// Secrets do not go through chat, and what is refused there is not repeated.
func TestNoSecretThroughChat(t *testing.T) {
	r := New(Deps{})
	for _, line := range []string{`mcp add x https://a.example --header "X-Key: the-secret"`, `mcp add-json x '{"headers":{"X-Key":"the-secret"}}'`} {
		_, _, _, err := r.ParseChat(line)
		if plane.KindOf(err) != plane.InvalidInput || strings.Contains(err.Error(), "the-secret") {
			t.Errorf("%s: %v", line, err)
		}
	}
	for alias, name := range map[string]string{"mcp ls": "mcp.list", "mcp login x": "mcp.connect", "mcp rm x": "mcp.remove", "mcp get x": "mcp.show", "runs ls": "runs.list"} {
		if cmd, _, _, err := r.ParseChat(alias); err != nil || cmd.Name != name {
			t.Errorf("%s: %v", alias, err)
		}
	}
	if _, _, help, err := r.ParseChat("mcp add —help"); err != nil || !strings.Contains(help, "--scope") {
		t.Errorf("help: %v", err)
	}
	if _, _, _, err := r.ParseChat("mcp ad x"); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("%v", err)
	}
}

// waiting answers Await.
type waiting struct {
	Consent
	end consent.Ended
	err error
}

func (w waiting) Await(context.Context, string) (consent.Ended, error) { return w.end, w.err }

// Whoever asked for a link hears what became of it, once.
func TestSettle(t *testing.T) {
	out := &MCPAdded{Server: ServerRow{Name: "vanta"}, Link: "https://x/y", ExpiresAt: time.Now(), hash: "h"}
	for name, c := range map[string]struct {
		w    waiting
		want string
	}{
		"connected":  {waiting{end: consent.Ended{State: plane.TicketCompleted, Outcome: plane.TicketOutcome{Tools: 100}}}, "vanta is connected: 100 tools. Your runs can use it now."},
		"a warning":  {waiting{end: consent.Ended{State: plane.TicketCompleted, Outcome: plane.TicketOutcome{Warning: "It could not be asked."}}}, "vanta is connected. It could not be asked."},
		"expired":    {waiting{}, "The link for vanta expired unused. patchbay mcp connect vanta makes another."},
		"superseded": {waiting{end: consent.Ended{Silent: true}}, ""},
	} {
		cmd, err := New(Deps{Consent: c.w}).Get("mcp.add")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := cmd.Settle(t.Context(), out); err != nil || got != c.want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	cmd, _ := New(Deps{Consent: waiting{err: errors.New("x")}}).Get("mcp.connect")
	if got, err := cmd.Settle(t.Context(), &MCPAdded{}); got != "" || err != nil {
		t.Errorf("nothing to wait for: %q %v", got, err)
	}
	if _, err := cmd.Settle(t.Context(), out); err == nil {
		t.Error("a failure is kept from the caller")
	}
}
