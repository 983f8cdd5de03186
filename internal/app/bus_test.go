package app_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

type busAnswer struct {
	OK      bool     `json:"ok"`
	Text    string   `json:"text"`
	Entries []string `json:"entries"`
	Error   string   `json:"error"`
	Code    string   `json:"code"`
}

// onBus sends one request and returns every answer that comes within a moment of the first.
func onBus(t *testing.T, nc *nats.Conn, subject, body string) []busAnswer {
	t.Helper()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := nc.PublishRequest(subject, inbox, []byte(body)); err != nil {
		t.Fatal(err)
	}
	var out []busAnswer
	wait := 10 * time.Second
	for {
		m, err := sub.NextMsg(wait)
		if err != nil {
			if len(out) == 0 {
				t.Fatalf("%s %s: %v", subject, body, err)
			}
			return out
		}
		var a busAnswer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		out = append(out, a)
		wait = 150 * time.Millisecond
	}
}

const linearYAML = "name: linear\ntransport: http\nurl: https://mcp.linear.app/mcp\ndestination: linear-mcp\nroles: [general]\nauth: bearer\ntools: {allow: [\"*\"], deny: [\"delete_*\"]}\n"

func busRequest(team, source, user string, args ...string) string {
	b, err := json.Marshal(map[string]any{"command": "mcp", "team": team, "args": args, "source": source, "user": user})
	if err != nil {
		panic(err)
	}
	return strings.NewReplacer(`,"source":""`, "", `,"user":""`, "").Replace(string(b))
}

// replay is the seed's conversation, and each refusal, over one subject.
func replay(t *testing.T, nc *nats.Conn, prefix string) {
	t.Helper()
	bare := prefix + ".controller.command"
	agent := func(slug string) string { return prefix + ".agent." + slug + ".controller.command" }
	const coder, person = "agent:payments/general", "ada@example.com"
	for _, c := range []struct {
		what, subject, body string
		ok                  bool
		want                string // of text, entries or error
		code                plane.Kind
	}{
		{"an agent proposes", bare, busRequest("payments", coder, "", "propose", "linear", linearYAML), true, "linear is proposed to payments", ""},
		{"on its own subject", agent("general"), busRequest("payments", coder, "", "list"), true, "1 mcp server(s)", ""},
		{"shown", agent("general"), busRequest("payments", coder, "", "show", "linear"), true, "[proposed] linear (from agent:payments/general) {", ""},
		{"nothing is curated", bare, busRequest("payments", coder, "", "list_curated"), true, "0 mcp server(s)", ""},
		{"an agent accepts", agent("general"), busRequest("payments", coder, "", "accept", "linear"), false, "a person accepts it", plane.Forbidden},
		{"an agent forgets", bare, busRequest("payments", coder, "", "forget", "linear"), false, "a person accepts it", plane.Forbidden},
		{"both", bare, busRequest("payments", coder, person, "list"), false, "this one says both", plane.InvalidInput},
		{"neither", bare, busRequest("payments", "", "", "list"), false, "nobody asks", plane.Unauthenticated},
		{"a stranger", bare, busRequest("payments", "", "mallory@example.com", "list"), false, "no such team", plane.Forbidden},
		{"no such team", bare, busRequest("ghosts", "", person, "list"), false, "no such team", plane.Forbidden},
		{"no such team, an agent", bare, busRequest("ghosts", "agent:ghosts/general", "", "list"), false, "no such team", plane.Forbidden},
		{"another team's agent", bare, busRequest("payments", "agent:legal/general", "", "list"), false, "works for legal", plane.Forbidden},
		{"a forged source", agent("general"), busRequest("payments", "agent:payments/coding", "", "list"), false, "This subject is the agent general's", plane.Forbidden},
		{"a person on an agent's subject", agent("general"), busRequest("payments", "", person, "accept", "linear"), false, "only that agent asks", plane.Forbidden},
		{"no such agent", bare, busRequest("payments", "agent:payments/ghost", "", "list"), false, "no agent ghost", plane.Unauthenticated},
		{"source of another form", bare, busRequest("payments", "payments/general", "", "list"), false, "source is agent:<team>/<agent>", plane.InvalidInput},
		{"a member accepts", bare, busRequest("payments", "", person, "accept", "linear"), true, "linear is accepted for payments", ""},
		{"once", bare, busRequest("payments", "", person, "accept", "linear"), false, "is in force in payments already; ada@example.com decided so", plane.Conflict},
		{"curated", bare, busRequest("payments", coder, "", "list_curated"), true, `[curated] linear (from agent:payments/general)` + "\n" + `{"name":"linear","transport":"http","url":"https://mcp.linear.app/mcp","destination":"linear-mcp","roles":["general"],"auth":"bearer","tools":{"allow":["*"],"deny":["delete_*"]}}`, ""},
		{"what is not there", bare, busRequest("payments", "", person, "show", "nothing"), false, "no declaration", plane.NotFound},
		{"forgotten", bare, busRequest("payments", "", person, "forget", "linear"), true, "linear is forgotten", ""},
		{"a secret", bare, busRequest("payments", coder, "", "propose", "x", "name: x\nurl: https://u:hunter2x9@a.example.com/mcp\n"), false, "user or password", plane.InvalidInput},
		{"bad YAML", bare, busRequest("payments", coder, "", "propose", "x", "name: [\n"), false, "declaration", plane.InvalidInput},
		{"an unknown operation", bare, busRequest("payments", coder, "", "explode"), false, "it can propose, list", plane.InvalidInput},
		{"too few", bare, busRequest("payments", coder, "", "show"), false, "takes a name", plane.InvalidInput},
		{"none", bare, busRequest("payments", coder, ""), false, "Say what", plane.InvalidInput},
		{"no team", bare, busRequest("", coder, "", "list"), false, "which team", plane.InvalidInput},
		{"another command", bare, `{"command":"memory","team":"payments","args":["list"],"user":"ada@example.com"}`, false, "mcp is the one", plane.InvalidInput},
		{"no JSON", bare, `{"command":`, false, "no JSON object", plane.InvalidInput},
		{"a list", bare, `[]`, false, "no JSON object", plane.InvalidInput},
	} {
		got := onBus(t, nc, c.subject, c.body)
		if len(got) != 1 {
			t.Errorf("%s: %d answers", c.what, len(got))
			continue
		}
		a := got[0]
		all := a.Text + strings.Join(a.Entries, "\n") + a.Error
		if a.OK != c.ok || !strings.Contains(all, c.want) || a.Code != string(c.code) || strings.Contains(all, "hunter2") || c.ok == (a.Error != "") {
			t.Errorf("%s: %+v", c.what, a)
		}
	}
}

func busTeams(more string) string {
	return "teams: {payments: {members: [ada@example.com]}, legal: {members: [ada@example.com]}}\nnats: {prefix: kapelle, " + more + "}\n"
}

// TestTheBusInside replays the seed's requests at the embedded server, which takes
// Patchbay's tokens and lets an agent's publish on its own subject alone.
func TestTheBusInside(t *testing.T) {
	s := start(t, "", busTeams("embedded: true, listen: \"127.0.0.1:0\", trusted_publishers: true, allow_decisions: true"))
	url := "nats://" + s.a.BusAddr()
	if _, err := nats.Connect(url, nats.Timeout(5*time.Second)); err == nil {
		t.Error("nobody got in")
	}
	if _, err := nats.Connect(url, nats.Token("pbt_wrong"), nats.Timeout(5*time.Second)); err == nil {
		t.Error("a wrong token got in")
	}
	var admin command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Scopes: []string{"admin"}, Service: true}, &admin); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, nats.Token(admin.Value))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	replay(t, nc, "kapelle")
	refused := make(chan error, 4)
	var key command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Agent: "general", Team: "payments"}, &key); err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect(url, nats.Token(s.agentToken("general")), nats.Timeout(5*time.Second)); err == nil {
		t.Error("a token of no team got in")
	}
	agent, err := nats.Connect(url, nats.Token(key.Value), nats.CustomInboxPrefix("_INBOX_"+key.ID), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	if got := onBus(t, agent, "kapelle.agent.general.payments.controller.command", busRequest("payments", "agent:payments/general", "", "list")); !got[0].OK {
		t.Errorf("%+v", got)
	}
	if got := onBus(t, agent, "kapelle.agent.general.payments.controller.command", busRequest("legal", "agent:legal/general", "", "list")); got[0].OK || !strings.Contains(got[0].Error, "is for the team payments") {
		t.Errorf("another team's: %+v", got)
	}
	for _, subject := range []string{"kapelle.controller.command", "kapelle.agent.general.controller.command", "kapelle.agent.general.legal.controller.command", "kapelle.agent.coding.payments.controller.command"} {
		if err := agent.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
				t.Errorf("%s: %v", subject, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("an agent published on %s", subject)
		}
	}
	if _, err := agent.SubscribeSync("_INBOX_other.>"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-refused:
		if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			t.Errorf("%v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("an agent hears what another is answered")
	}
	if err := s.do("tokens.revoke", command.TokenInput{ID: key.ID}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the end of a revoked token's connection", func() bool { return !agent.IsConnected() })
}
