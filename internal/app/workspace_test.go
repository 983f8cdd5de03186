package app_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
	"patchbay/internal/slack"
)

// Two replicas with one app: every event is handled once, whoever hears it, and the work of
// one that goes is gone on with by the other.
func TestTwoReplicasInOneWorkspace(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	sl := newWorkspace(t)
	sl.Both = true
	llm := fake.NewLLM(t)
	llm.Script(func(n int, _ string) fake.Turn { return fake.Turn{Text: fmt.Sprintf("answer %d", n)} })
	m := fake.NewMCP(t, fake.Tool("look", ""))
	config := onPostgres(pg.URL, slackConfig(sl)+llmConfig(llm, "anthropic")+upConfig(m))
	one, _ := start(t, "", config), start(t, "", config)
	within(t, 20*time.Second, "two sockets", func() bool { return sl.Sockets() == 2 })
	var asked []string
	for i := range 12 {
		asked = append(asked, sl.Say("UADA", "C1", fmt.Sprintf("<@UBOT> question %d", i), ""), sl.Say("UBOB", "C1", "<@UBOT> agents list", ""))
	}
	answers := func(ts string) (n int) {
		for _, x := range sl.Messages("C1") {
			if x.User == "UBOT" && x.Thread == ts && !strings.Contains(x.Text, "Looking") {
				n++
			}
		}
		return n
	}
	within(t, 60*time.Second, "every answer", func() bool {
		for _, ts := range asked {
			if answers(ts) == 0 {
				return false
			}
		}
		return true
	})
	time.Sleep(time.Second)
	for _, ts := range asked {
		if answers(ts) != 1 {
			t.Errorf("%d answers to one message", answers(ts))
		}
	}
	var l command.RunsList
	if err := one.do("runs.list", command.RunsListInput{Limit: 100}, &l); err != nil {
		t.Fatal(err)
	}
	if n := len(llm.Requests()); n != 12 {
		t.Errorf("%d runs of 12 questions", n)
	}
	one.stop()
	within(t, 20*time.Second, "one socket", func() bool { return sl.Sockets() == 1 })
	ts := sl.Say("UADA", "C1", "<@UBOT> and now?", "")
	within(t, 20*time.Second, "an answer", func() bool { return answers(ts) == 1 })
}

// answerTo says something and returns what the bot answers, to all or to the asker alone.
func answerTo(t *testing.T, sl *fake.Slack, user, channel, text string) (got fake.SlackMessage) {
	t.Helper()
	ts := sl.Say(user, channel, "<@UBOT> "+text, "")
	within(t, 15*time.Second, text, func() bool {
		for _, x := range sl.Messages(channel) {
			if x.User == "UBOT" && (x.Thread == ts || x.Only == user && x.TS > ts) && !strings.Contains(x.Text, "Looking") {
				got = x
				return true
			}
		}
		return false
	})
	return got
}

// Who is not of the workspace is not answered, a guest only where config says so, and an
// address counts where the workspace made the account and somebody confirmed it.
func TestOnlyVouchedAddressesCount(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("look", ""))
	for guests, want := range map[string]map[string]string{
		"":                  {"UADA": "inned", "UBOB": "Only an org admin", "UALIEN": "Only people of this workspace", "UFAKE": "slack.guests", "UNSURE": "Only an org admin"},
		", guests: true}\n": {"UADA": "inned", "UALIEN": "Only people of this workspace", "UFAKE": "Only an org admin"},
	} {
		sl := newWorkspace(t)
		for _, kind := range []string{"alien", "guest", "unsure"} {
			sl.AddUser(map[string]string{"alien": "UALIEN", "guest": "UFAKE", "unsure": "UNSURE"}[kind], "ada@example.com", kind)
		}
		config := slackConfig(sl)
		if guests != "" {
			config = strings.Replace(config, "}\n", guests, 1)
		}
		s := start(t, "", config+"identity: {admins: [ada@example.com]}\n"+upConfig(m))
		s.refresh("up")
		within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
		for user, says := range want {
			if got := answerTo(t, sl, user, "C1", "mcp disable up"); !strings.Contains(got.Text, says) && !(says == "inned" && !strings.Contains(got.Text, "Only an org admin")) {
				t.Errorf("%s is told %q, not %q", user, got.Text, says)
			}
		}
		if guests != "" {
			if got := answerTo(t, sl, "UFAKE", "C2", "tokens create mine --scopes mcp:read"); !strings.Contains(got.Text, "lacks the scope") {
				t.Errorf("a guest makes a token: %s", got.Text)
			}
			continue
		}
		sl.Deny("users:read.email")
		sl.AddUser("UNEW", "ada@example.com", "")
		if got := answerTo(t, sl, "UNEW", "C2", "mcp enable up"); !strings.Contains(got.Text, "Only an org admin") {
			t.Errorf("where addresses are hidden: %s", got.Text)
		}
	}
}

// Being in a channel is being of its team, and not changing its settings or deciding for it:
// that is config's.
func TestAChannelIsATeam(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("look", ""))
	sl := newWorkspace(t)
	s := start(t, "", slackConfig(sl)+fmt.Sprintf("teams: {payments: {members: [ada@example.com], slack_channels: [C0PAY], config_write: [ada@example.com], agent: research}, \"slack:C0FREE\": {config_write: [bob@example.com]}}\negress: {allow: [{to: %q, for: [\"team:payments/pay\", \"team:slack:C0FREE/free\"]}]}\n", m.URL)+
		scripted(`[{say: "I have what the team has."}]`))
	within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
	for _, c := range []struct{ user, channel, text, want string }{
		{"UBOB", "C0PAY", "mcp add pay " + m.Endpoint() + " --scope channel", "needs config:write there"},
		{"UADA", "C0PAY", "mcp add pay " + m.Endpoint() + " --scope channel", "pay is connected"},
		{"UADA", "C0FREE", "mcp add free " + m.Endpoint() + " --scope channel", "needs config:write there"},
		{"UBOB", "C0FREE", "mcp add free " + m.Endpoint() + " --scope channel", "free is connected"},
		{"UBOB", "C0PAY", "mcp list", "pay"},
		{"UADA", "C0FREE", "mcp list", "free"},
		{"UBOB", "C0ELSE", "mcp list", "No server is connected"},
		{"UBOB", "C0PAY", "what do you have?", "I have what the team has."},
		{"UBOB", "C0PAY", `mcp propose '{"name":"evil","url":"https://evil.example/mcp","auth":"none"}' --team payments`, "evil"},
		{"UBOB", "C0PAY", "mcp accept evil --team payments", "needs config:write there"},
	} {
		if got := answerTo(t, sl, c.user, c.channel, c.text); !strings.Contains(got.Text, c.want) {
			t.Errorf("%s in %s, %q: %s", c.user, c.channel, c.text, got.Text)
		}
	}
	var l command.RunsList
	if err := s.do("runs.list", command.RunsListInput{}, &l); err != nil || len(l.Runs) != 1 || l.Runs[0].Agent != "research" || l.Runs[0].Team != "payments" {
		t.Errorf("%+v %v", l, err)
	}
}

// What is the asker's own is said to them alone, wherever they ask: results, lists, what
// others asked.
func TestOnesOwnIsWhispered(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	_, sl := inSlack(t, allow(`"`+adas("mine")+`"`, m.URL)+"identity: {admins: [ada@example.com]}\n"+scripted(`[{say: "nothing secret"}]`))
	answerTo(t, sl, "UADA", "C1", "mcp add mine "+m.Endpoint())
	for _, line := range []string{"mcp call mine look -a x=4711", "mcp list", "mcp tools", "config show", "runs list", "audit list", "tokens create t --agent general", "status"} {
		if got := answerTo(t, sl, "UADA", "C1", line); got.Only != "UADA" && !strings.Contains(got.Text, "direct messages") {
			t.Errorf("%q is said to all: %+v", line, got)
		}
	}
	for _, x := range sl.Messages("C1") {
		if x.Only == "" && x.User == "UBOT" && (strings.Contains(x.Text, "4711") || strings.Contains(x.Text, "pba_")) {
			t.Errorf("%+v", x)
		}
	}
}

// A workspace that fails for a while loses nothing: not at the start, not at the answer, not
// at a card, however often the server is started anew.
func TestNothingIsLostWhileSlackFails(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	config := upConfig(m) + "agents: {general: {approvals: {mcp__up__pay: ask}}}\n" + scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: "it is paid"}]`)
	sl := newWorkspace(t)
	s := start(t, "", slackConfig(sl)+config)
	s.refresh("up")
	within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
	sl.Slow("conversations.open", 8) // a card's way
	q := sl.Say("UADA", "C1", "<@UBOT> pay", "")
	sl.Until("C1", "Waiting for a person")
	for range 7 {
		s.stop()
		s = start(t, s.dir, slackConfig(sl)+config)
	}
	s.stop()
	sl.Slow("auth.test", 2)
	start(t, s.dir, slackConfig(sl)+config)
	card := sl.Until("DADA", "wants to call `pay`")
	sl.Fail("chat.update", "internal_error", 3)
	sl.Press("UADA", card, "approve")
	got := sl.Until("C1", "it is paid")
	if got.Thread != q {
		t.Errorf("%+v", got)
	}
	n := 0
	for _, x := range sl.Messages("C1") {
		if x.User == "UBOT" && x.Thread == q {
			n++
		}
	}
	if n != 1 || len(m.Calls()) != 1 {
		t.Errorf("%d messages, %d calls", n, len(m.Calls()))
	}
}

// The doctor says what is wrong, with what to do.
func TestTheSlackDoctor(t *testing.T) {
	sl := newWorkspace(t)
	file := filepath.Join(t.TempDir(), "patchbay.yaml")
	if err := os.WriteFile(file, []byte(slackConfig(sl)), 0o600); err != nil {
		t.Fatal(err)
	}
	look := func(to string) (fine []string, bad string) {
		cfg, err := app.LoadConfig(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range app.SlackDoctor(t.Context(), cfg, to) {
			if c.Err == nil {
				fine = append(fine, c.What)
				continue
			}
			p := plane.Public(c.Err)
			bad += c.What + ": " + p.Message + " " + p.Next + "\n"
		}
		return fine, bad
	}
	if fine, bad := look("ada@example.com"); bad != "" || strings.Join(fine, ", ") != "bot token, scopes, socket, member, a message" {
		t.Errorf("%v %s", fine, bad)
	}
	sl.Until("DADA", "messages arrive")
	sl.Deny("files:write")
	if _, bad := look(""); !strings.Contains(bad, "files:write (long output comes in parts)") || !strings.Contains(bad, "slack.yaml") {
		t.Error(bad)
	}
	sl.Deny("connections:write")
	if _, bad := look(""); !strings.Contains(bad, "app-level token") {
		t.Error(bad)
	}
	t.Setenv("SLACK_BOT", "xoxb-of-nobody")
	if fine, bad := look(""); !strings.Contains(bad, "Slack refuses the bot token") || len(fine) != 0 {
		t.Errorf("%v %s", fine, bad)
	}
	t.Setenv("SLACK_BOT", "")
	if _, bad := look(""); !strings.Contains(bad, "SLACK_BOT") {
		t.Error(bad)
	}
}

// The manifest asks for what the bot needs, no more and no less.
func TestTheManifestNamesTheScopes(t *testing.T) {
	b, err := os.ReadFile("../../slack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		OAuth struct {
			Scopes struct{ Bot []string }
		} `yaml:"oauth_config"`
		Settings struct {
			Events struct {
				Bot []string `yaml:"bot_events"`
			} `yaml:"event_subscriptions"`
			Socket bool `yaml:"socket_mode_enabled"`
		}
	}
	if err := yaml.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range slack.Scopes {
		want = append(want, s[0])
	}
	if !slices.Equal(m.OAuth.Scopes.Bot, want) || !m.Settings.Socket || !slices.Contains(m.Settings.Events.Bot, "message.im") {
		t.Errorf("%+v, not %v", m, want)
	}
}

// What an agent keeps of one person's in a thread is not recalled for another's question
// there, and for their own it is private again.
func TestAMemoryStaysItsPersons(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	llm := fake.NewLLM(t)
	llm.Script(func(_ int, request string) fake.Turn {
		tell := strings.Contains(request, "tell me")
		switch {
		case tell && !strings.Contains(request, "use_recall"):
			return fake.Turn{Calls: []fake.ToolCall{{ID: "use_recall", Name: "recall", Input: `{"query":"salary"}`}}}
		case !tell && !strings.Contains(request, "use_look"):
			return fake.Turn{Calls: []fake.ToolCall{{ID: "use_look", Name: "mcp__mine__look"}}}
		case !tell && !strings.Contains(request, "use_keep"):
			return fake.Turn{Calls: []fake.ToolCall{{ID: "use_keep", Name: "remember", Input: `{"text":"the salary is 4711"}`}}}
		case strings.Contains(request, "4711"):
			return fake.Turn{Text: "It is 4711."}
		}
		return fake.Turn{Text: "I know nothing of that."}
	})
	_, sl := inSlack(t, allow(`"`+adas("mine")+`"`, m.URL)+"agents: {general: {tools: [memory]}}\n"+llmConfig(llm, "anthropic"))
	answerTo(t, sl, "UADA", "C1", "mcp add mine "+m.Endpoint())
	q := sl.Say("UADA", "C1", "<@UBOT> keep it", "")
	sl.Press("UADA", sl.Until("DADA", "Keep it here"), "keep")
	sl.Until("C1", "kept the answer to themselves")
	sl.Say("UBOB", "C1", "<@UBOT> tell me", q)
	sl.Until("C1", "I know nothing of that.")
	before := strings.Count(sl.All(), "Show it there")
	sl.Say("UADA", "C1", "<@UBOT> tell me", q)
	within(t, 20*time.Second, "her own is asked about", func() bool { return strings.Count(sl.All(), "Show it there") > before })
	for _, x := range sl.Messages("C1") {
		if strings.Contains(x.Text+string(x.Blocks), "4711") {
			t.Errorf("%+v", x)
		}
	}
}

// A link that expires is told once, with what makes another; one that a newer replaced, or
// that cannot be whispered, is not lost.
func TestALinkThatEndsOtherwise(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("read", ""))
	as := fake.NewAS(t, m)
	_, sl := inSlack(t, fmt.Sprintf("limits: {ticket_life: 5s}\negress: {allow: [{to: %q, for: [%q]}, {to: %q, for: [%q]}]}\n", m.URL, adas("notes"), as.URL, adas("notes")))
	q := sl.Say("UADA", "C1", "<@UBOT> mcp add notes "+m.Endpoint(), "")
	sl.Until("C1", "was sent to <@UADA> alone")
	sl.Fail("chat.postEphemeral", "user_not_in_channel", 1)
	again := sl.Say("UADA", "C1", "<@UBOT> mcp connect notes", "")
	if l := connectRE.FindString(sl.Until("DADA", "Connect notes").Text); l == "" {
		t.Error("no link came by direct message")
	}
	got := sl.Until("C1", "expired unused")
	if got.Thread != again || !strings.Contains(got.Text, "mcp connect notes") {
		t.Errorf("%+v", got)
	}
	time.Sleep(4 * time.Second) // the first one's turn
	for _, x := range sl.Messages("C1") {
		if x.Thread == q && strings.Contains(x.Text, "expired") {
			t.Errorf("a link that was replaced is told of: %+v", x)
		}
		if x.Only == "" && connectRE.MatchString(x.Text) {
			t.Errorf("%+v", x)
		}
	}
}

// Every button does what it says.
func TestEveryButton(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	broken := atomic.Bool{}
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Method") == "tools/call" && broken.Load() {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	s, sl := inSlack(t, upConfig(m)+"identity: {admins: [ada@example.com]}\nagents: {general: {approvals: {mcp__up__pay: ask}}}\n"+scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: "that is the end"}]`))
	s.refresh("up")
	press := func(ch, words, action string) {
		t.Helper()
		sl.Say("UADA", ch, "<@UBOT> pay", "")
		sl.Press("UADA", sl.Until("DADA", words), action)
	}
	press("C1", "wants to call `pay`", "deny")
	sl.Until("DADA", "Denied by")
	sl.Until("C1", "that is the end")
	if len(m.Calls()) != 0 {
		t.Error("a denied call was sent")
	}
	press("C2", "wants to call `pay`", "always-allow")
	sl.Until("C2", "that is the end")
	sl.Say("UADA", "C3", "<@UBOT> pay", "")
	sl.Until("C3", "that is the end") // nobody is asked any more
	if len(m.Calls()) != 2 {
		t.Errorf("%d calls", len(m.Calls()))
	}
	broken.Store(true)
	press("C4", "Nobody knows whether `pay`", "not-done")
	sl.Until("DADA", "Not done, says")
	sl.Until("C4", "that is the end")
	sl.Say("UADA", "C5", "<@UBOT> pay", "")
	card := sl.Until("DADA", "Nobody knows whether `pay`")
	broken.Store(false)
	sl.Press("UADA", card, "send-again")
	sl.Until("C5", "that is the end")
	if len(m.Calls()) != 3 {
		t.Errorf("%d calls", len(m.Calls()))
	}
}
