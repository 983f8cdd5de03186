package app_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
)

// inSlack serves a config in a workspace with Ada and Bob.
func inSlack(t *testing.T, config string) (*served, *fake.Slack) {
	t.Helper()
	sl := newWorkspace(t)
	s := start(t, "", slackConfig(sl)+config)
	within(t, 10*time.Second, "the socket", func() bool { return sl.Sockets() == 1 })
	return s, sl
}

func newWorkspace(t *testing.T) *fake.Slack {
	t.Helper()
	sl := fake.NewSlack(t)
	sl.AddUser("UADA", "ada@example.com", "")
	sl.AddUser("UBOB", "bob@example.com", "")
	sl.AddUser("UGUEST", "guest@example.com", "guest")
	return sl
}

func slackConfig(sl *fake.Slack) string {
	return fmt.Sprintf("slack: {app_token_env: SLACK_APP, bot_token_env: SLACK_BOT, api_url: %q}\n", sl.API())
}

// A mention is a run whose one message becomes its answer; the thread is context.
func TestAMentionIsARun(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	llm := fake.NewLLM(t, fake.Turn{Text: "Looking.", Calls: []fake.ToolCall{{Name: "mcp__up__look"}}}, fake.Turn{Text: "There are **three** invoices; see [the list](https://x.example/l)."}, fake.Turn{Text: "As I said."})
	s, sl := inSlack(t, upConfig(m)+llmConfig(llm, "anthropic"))
	s.refresh("up")
	sl.Say("UADA", "C1", "We wait for invoices", "")
	q := sl.Say("UADA", "C1", "<@UBOT> how many invoices are there?", "")
	got := sl.Until("C1", "*three* invoices")
	if got.Thread != q || got.Edits == 0 || got.Unfurl || !strings.Contains(string(got.Blocks), "?evidence=1") || !strings.Contains(got.Text, "the list (https://x.example/l)") {
		t.Errorf("%+v", got)
	}
	n := 0
	for _, x := range sl.Messages("C1") {
		if x.User == "UBOT" && x.Thread == q {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d messages of one run", n)
	}
	sl.Say("UBOB", "C1", "and <@UBOT> again?", q)
	sl.Until("C1", "As I said.")
	var before string
	for _, b := range llm.Requests() {
		before = string(b)
	}
	for _, want := range []string{"what people said in this thread before", "how many invoices are there?", "*three* invoices", "again?"} {
		if !strings.Contains(before, strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("the model is not told %q: %s", want, before)
		}
	}
}

// adasNotes is a server in a workspace, and an MCP server with a sign-in that Ada may add.
func adasNotes(t *testing.T) (*fake.Slack, *fake.MCP) {
	t.Helper()
	m := fake.NewMCP(t, fake.Tool("read", `"annotations":{"readOnlyHint":true}`))
	as := fake.NewAS(t, m)
	_, sl := inSlack(t, fmt.Sprintf("egress: {allow: [{to: %q, for: [%q]}, {to: %q, for: [%q]}]}\n", m.URL, adas("notes"), as.URL, adas("notes")))
	return sl, m
}

// adas is a connection of Ada's own, as egress.allow names it.
func adas(name string) string { return "user:slack:T1/UADA/" + name }

var connectRE = regexp.MustCompile(`https?://[^"\\\s>|]+/mcp/connect/[A-Za-z0-9_-]+`)

// A server is added in a thread: the link goes to the asker alone, and the thread hears how
// it ended, once.
func TestConnectFromSlack(t *testing.T) {
	t.Parallel()
	sl, m := adasNotes(t)
	q := sl.Say("UADA", "C1", "<@UBOT> mcp add notes <"+m.Endpoint()+">", "")
	told := sl.Until("C1", "was sent to <@UADA> alone")
	if told.Thread != q || connectRE.MatchString(told.Text+string(told.Blocks)) {
		t.Errorf("%+v", told)
	}
	link := ""
	for _, x := range sl.Messages("C1") {
		if l := connectRE.FindString(x.Text); l != "" {
			if x.Only != "UADA" || x.Unfurl || link != "" {
				t.Errorf("%+v", x)
			}
			link = l
		}
	}
	bot := newVisitor(t)
	if code, _ := bot.get(link); code != 200 {
		t.Errorf("a link that is only looked at: %d", code)
	}
	v := newVisitor(t)
	if code, body := v.get(v.approve(v.start(link))); code != 200 || !strings.Contains(body, "notes is connected") {
		t.Fatalf("%d %s", code, body)
	}
	if done := sl.Until("C1", "notes is connected"); done.Thread != q {
		t.Errorf("%+v", done)
	}
	time.Sleep(300 * time.Millisecond)
	if n := strings.Count(sl.All(), "notes is connected"); n != 1 {
		t.Errorf("told %d times", n)
	}
	sl.Say("UADA", "DADA", "mcp list", "")
	sl.Until("DADA", "notes")
	sl.Say("UBOB", "DBOB", "mcp list", "")
	if got := sl.Until("DBOB", "No server is connected"); strings.Contains(got.Text, "notes") {
		t.Error("another person's connection is told")
	}
}

// What a command says is whole: a file where it is long, parts where files are refused.
func TestLongOutputIsWhole(t *testing.T) {
	var tools []string
	for i := range 90 {
		tools = append(tools, fake.Tool(fmt.Sprintf("tool_number_%03d", i), ""))
	}
	m := fake.NewMCP(t, tools...)
	s, sl := inSlack(t, upConfig(m))
	s.refresh("up")
	q := sl.Say("UADA", "C1", "<@UBOT> mcp show up", "")
	within(t, 20*time.Second, "the file", func() bool { return len(sl.Files()) == 1 })
	f := sl.Files()[0]
	if f.Thread != q || f.Channel != "C1" || f.Name != "mcp-show.md" || !strings.Contains(f.Content, "tool_number_089") || !strings.Contains(f.Comment, "up") || sl.Asked("files.upload") != 0 {
		t.Errorf("%+v", f)
	}
	sl.Deny("files:write")
	q = sl.Say("UADA", "C2", "<@UBOT> mcp show up", "")
	sl.Until("C2", "tool_number_089")
	whole := ""
	for _, x := range sl.Messages("C2") {
		if x.Thread == q {
			whole += x.Text + "\n"
		}
	}
	for i := range 90 {
		if !strings.Contains(whole, fmt.Sprintf("tool_number_%03d", i)) {
			t.Errorf("tool %d is missing", i)
		}
	}
}

// A call that asks is a card for whoever may decide; its buttons are good once.
func TestApproveInSlack(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("pay", `"annotations":{"destructiveHint":true}`))
	s, sl := inSlack(t, upConfig(m)+"identity: {admins: [bob@example.com]}\nagents: {general: {approvals: {mcp__up__pay: ask}}}\n"+
		scripted(`[{calls: [{tool: mcp__up__pay, input: {x: "invoice 7"}}]}, {say: paid}]`))
	s.refresh("up")
	sl.Say("UADA", "C1", "<@UBOT> pay invoice 7", "")
	card, bobs := sl.Until("DADA", "wants to call `pay`"), sl.Until("DBOB", "wants to call `pay`")
	if !strings.Contains(string(card.Blocks), "invoice 7") || strings.Contains(string(card.Blocks), "apr_") {
		t.Errorf("%s", card.Blocks)
	}
	sl.Until("C1", "Waiting for a person")
	sl.Press("UADA", bobs, "approve") // another's button
	sl.Press("UADA", card, "approve", "forged")
	sl.Until("DADA", "This button is over")
	if len(m.Calls()) != 0 {
		t.Fatal("it was sent")
	}
	sl.Press("UADA", card, "approve")
	sl.Until("C1", "paid")
	if got := sl.Until("DBOB", "Approved by"); got.TS != bobs.TS || strings.Contains(string(got.Blocks), `"button"`) {
		t.Errorf("%+v", got)
	}
	before := len(sl.Messages("DADA"))
	sl.Press("UADA", card, "deny") // again
	within(t, 10*time.Second, "an answer", func() bool { return len(sl.Messages("DADA")) > before })
	if len(m.Calls()) != 1 {
		t.Errorf("%d calls", len(m.Calls()))
	}
}

// A call that nobody knows the end of is a card, too.
func TestResolveInSlack(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Mcp-Method") == "tools/call" {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	s, sl := inSlack(t, upConfig(m)+scripted(`[{calls: [{tool: mcp__up__pay, input: {x: "invoice 7"}}]}, {say: settled}]`))
	s.refresh("up")
	sl.Say("UADA", "C1", "<@UBOT> pay invoice 7", "")
	card := sl.Until("DADA", "Nobody knows whether `pay`")
	sl.Press("UADA", card, "done")
	sl.Until("C1", "settled")
	if got := sl.Until("DADA", "Done, says"); got.TS != card.TS {
		t.Errorf("%+v", got)
	}
}

// What draws on somebody's own connection is shown in a public channel when they say so.
func TestAPrivateAnswerAsksItsOwner(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	_, sl := inSlack(t, allow(`"`+adas("mine")+`"`, m.URL)+scripted(`[{calls: [{tool: mcp__mine__look}]}, {say: "Your salary is 1,000."}]`))
	sl.Private("C2")
	sl.Say("UADA", "DADA", "mcp add mine "+m.Endpoint(), "")
	sl.Until("DADA", "mine is connected")
	sl.Say("UADA", "C1", "<@UBOT> what is my salary?", "")
	card := sl.Until("DADA", "Show it there")
	sl.Until("C1", "own connections")
	for _, x := range sl.Messages("C1") {
		if strings.Contains(x.Text+string(x.Blocks), "1,000") {
			t.Fatalf("%+v", x)
		}
	}
	sl.Press("UBOB", card, "show") // whose it is not
	sl.Press("UADA", card, "show")
	sl.Until("C1", "Your salary is 1,000.")
	sl.Say("UADA", "C2", "<@UBOT> and here?", "") // a private channel
	sl.Until("C2", "Your salary is 1,000.")
	sl.Say("UADA", "C3", "<@UBOT> and here?", "")
	within(t, 20*time.Second, "the second card", func() bool { return strings.Count(sl.All(), "Show it there") == 1 }) // the first has none any more
	sl.Press("UADA", sl.Until("DADA", "<#C3>"), "keep")
	sl.Until("C3", "kept the answer to themselves")
}

// One event is one answer, however often and to whomever it comes.
func TestEventsOfAllKinds(t *testing.T) {
	t.Parallel()
	llm := fake.NewLLM(t)
	llm.Script(func(int, string) fake.Turn { return fake.Turn{Text: "here is your answer"} })
	_, sl := inSlack(t, llmConfig(llm, "anthropic"))
	answers := func(ch string) (n int) {
		for _, x := range sl.Messages(ch) {
			if x.User == "UBOT" {
				n++
			}
		}
		return n
	}
	for _, ev := range map[string]map[string]any{
		"a bot":             {"type": "app_mention", "bot_id": "B9", "user": "UX", "text": "<@UBOT> hi", "ts": "1.1", "channel": "C8"},
		"ourselves":         {"type": "app_mention", "user": "UBOT", "text": "<@UBOT> hi", "ts": "1.2", "channel": "C8"},
		"an edit":           {"type": "message", "subtype": "message_changed", "user": "UADA", "text": "<@UBOT> hi", "ts": "1.3", "channel": "C8", "channel_type": "im"},
		"a mention in code": {"type": "app_mention", "user": "UADA", "text": "write `<@UBOT> mcp list` or ```\n<@UBOT> hi\n```", "ts": "1.4", "channel": "C8"},
		"a stranger's bot":  {"type": "app_mention", "user": "", "text": "<@UBOT> hi", "ts": "1.5", "channel": "C8"},
		"no known event":    {"type": "team_join", "user": "UADA"},
	} {
		sl.Event(ev)
	}
	sl.Lost = true // every event comes four times
	sl.Say("UADA", "C1", "<@UBOT> "+strings.Repeat("long ", 2400), "")
	sl.Until("C1", "here is your answer")
	time.Sleep(1500 * time.Millisecond)
	sl.Lost = false
	if answers("C1") != 1 {
		t.Errorf("%d answers to one question", answers("C1"))
	}
	if last := llm.Requests(); !strings.Contains(string(last[len(last)-1]), strings.TrimSpace(strings.Repeat("long ", 2400))) {
		t.Error("the model does not have the whole question")
	}
	if n := answers("C8"); n != 0 {
		t.Errorf("%d answers to nobody: %+v", n, sl.Messages("C8"))
	}
	sl.Slow("chat.postMessage", 2)
	sl.Slow("chat.update", 1)
	sl.Say("UADA", "C2", "<@UBOT> hello", "")
	sl.Until("C2", "here is your answer")
	sl.Drop()
	within(t, 10*time.Second, "a new socket", func() bool { return sl.Sockets() == 1 })
	sl.Say("UADA", "C3", "<@UBOT> still there?", "")
	sl.Until("C3", "here is your answer")
	sl.Say("UADA", "C4", "<@UBOT> mcp frobnicate", "")
	sl.Until("C4", "frobnicate")
	sl.Say("UADA", "C5", "<@UBOT> mcp add x --header “Authorization: Bearer s3cret-in-chat”", "")
	if got := sl.Until("C5", "A secret does not go through chat"); strings.Contains(got.Text, "s3cret-in-chat") {
		t.Errorf("%+v", got)
	}
}

// A run is stopped by a reaction, a button, or by taking the question back.
func TestStopInSlack(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("wait", ""))
	s, sl := inSlack(t, upConfig(m)+"agents: {general: {approvals: {mcp__up__wait: ask}}}\n"+scripted(`[{calls: [{tool: mcp__up__wait}]}, {say: never}]`))
	s.refresh("up")
	for i, stop := range []func(q string, got fake.SlackMessage){
		func(q string, got fake.SlackMessage) { sl.React("UADA", got.Channel, got.TS, "x") },
		func(q string, got fake.SlackMessage) { sl.Press("UADA", got, "stop") },
		func(q string, got fake.SlackMessage) { sl.Delete("UADA", got.Channel, q) },
	} {
		ch := fmt.Sprintf("C%d", i+1)
		q := sl.Say("UADA", ch, "<@UBOT> wait", "")
		got := sl.Until(ch, "Waiting for a person")
		sl.React("UBOB", ch, got.TS, "x") // not his to stop
		stop(q, got)
		sl.Until(ch, "Stopped.")
	}
	var l command.RunsList
	if err := s.do("runs.list", command.RunsListInput{}, &l); err != nil {
		t.Fatal(err)
	}
	for _, r := range l.Runs {
		if r.State != "cancelled" || strings.Contains(r.Reason, "UBOB") {
			t.Errorf("%+v", r)
		}
	}
}

// The home shows a person's connections, each with one button.
func TestTheHome(t *testing.T) {
	sl, m := adasNotes(t)
	sl.OpenHome("UADA")
	within(t, 10*time.Second, "the home", func() bool { return strings.Contains(sl.Home("UADA"), "None yet") })
	sl.Say("UADA", "DADA", "mcp add notes "+m.Endpoint(), "")
	sl.Until("DADA", "notes")
	sl.OpenHome("UADA")
	within(t, 10*time.Second, "the connection", func() bool { return strings.Contains(sl.Home("UADA"), "nobody has signed in yet") })
	before := len(connectRE.FindAllString(sl.All(), -1))
	sl.PressHome("UADA", "fix")
	within(t, 10*time.Second, "a link", func() bool { return len(connectRE.FindAllString(sl.All(), -1)) > before })
}
