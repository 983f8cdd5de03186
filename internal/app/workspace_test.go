package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
		asked = append(asked, sl.Say("UADA", "C1", fmt.Sprintf("<@UBOT> question %d", i), ""), sl.Say("UBOB", "C1", "<@UBOT> mcp list", ""))
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

// What a workspace does not vouch for binds nothing: a guest's address, a stranger's, and
// any where the app may not read it.
func TestOnlyVouchedAddressesCount(t *testing.T) {
	sl := newWorkspace(t)
	sl.AddUser("UALIEN", "ada@example.com", "alien")
	sl.AddUser("UFAKE", "ada@example.com", "guest")
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", slackConfig(sl)+"identity: {admins: [ada@example.com]}\n"+upConfig(m))
	s.refresh("up")
	within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
	for user, want := range map[string]string{"UALIEN": "Only an org admin", "UFAKE": "Only an org admin", "UADA": "Pinned", "UGUEST": "Only an org admin"} {
		ts := sl.Say(user, "C1", "<@UBOT> mcp disable up", "")
		got := ""
		within(t, 10*time.Second, "an answer", func() bool {
			for _, x := range sl.Messages("C1") {
				if x.User == "UBOT" && x.Thread == ts {
					got = x.Text
				}
			}
			return got != ""
		})
		if user == "UADA" == strings.Contains(got, "Only an org admin") {
			t.Errorf("%s, who should hear %q: %s", user, want, got)
		}
	}
	sl.Deny("users:read.email")
	sl.AddUser("UNEW", "ada@example.com", "")
	ts := sl.Say("UNEW", "C2", "<@UBOT> mcp enable up", "")
	within(t, 10*time.Second, "an answer", func() bool {
		for _, x := range sl.Messages("C2") {
			if x.User == "UBOT" && x.Thread == ts {
				return strings.Contains(x.Text, "Only an org admin")
			}
		}
		return false
	})
}

// Being in a channel is being of its team, and not changing its settings: that is config's.
func TestAChannelIsATeam(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	sl := newWorkspace(t)
	s := start(t, "", slackConfig(sl)+fmt.Sprintf("teams: {payments: {slack_channels: [C0PAY], config_write: [ada@example.com], agent: research}, \"slack:C0FREE\": {config_write: [bob@example.com]}}\negress: {allow: [{to: %q, for: [\"team:payments/pay\", \"team:slack:C0FREE/free\"]}]}\n", m.URL)+
		scripted(`[{say: "I have what the team has."}]`))
	within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
	say := func(user, channel, text, want string) {
		t.Helper()
		ts := sl.Say(user, channel, "<@UBOT> "+text, "")
		got := ""
		within(t, 10*time.Second, "an answer", func() bool {
			for _, x := range sl.Messages(channel) {
				if x.User == "UBOT" && x.Thread == ts && !strings.Contains(x.Text, "Looking") {
					got = x.Text
				}
			}
			return got != ""
		})
		if !strings.Contains(got, want) {
			t.Errorf("%s in %s, %q: %s", user, channel, text, got)
		}
	}
	say("UBOB", "C0PAY", "mcp add pay "+m.Endpoint()+" --scope channel", "needs config:write there")
	say("UADA", "C0PAY", "mcp add pay "+m.Endpoint()+" --scope channel", "pay is connected")
	say("UADA", "C0FREE", "mcp add free "+m.Endpoint()+" --scope channel", "needs config:write there")
	say("UBOB", "C0FREE", "mcp add free "+m.Endpoint()+" --scope channel", "free is connected")
	say("UBOB", "C0PAY", "mcp list", "pay")
	say("UGUEST", "C0FREE", "mcp list", "free")
	say("UBOB", "C0ELSE", "mcp list", "No server is connected")
	say("UBOB", "C0PAY", "what do you have?", "I have what the team has.")
	var l command.RunsList
	if err := s.do("runs.list", command.RunsListInput{}, &l); err != nil || len(l.Runs) != 1 || l.Runs[0].Agent != "research" || l.Runs[0].Team != "payments" {
		t.Errorf("%+v %v", l, err)
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
