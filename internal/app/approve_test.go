package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// asking is an install whose agent asks before it pays, and a server that counts.
func asking(t *testing.T, dir, more string, m *fake.MCP, with func(*app.Options)) *served {
	t.Helper()
	return startWith(t, dir, scripted(`[{say: Paying., calls: [{tool: mcp__up__pay, input: {x: "7"}}]}, {say: "It said: {{last}}"}]`)+
		"agents: {general: {approvals: {mcp__up__pay: ask}"+more+"}}\n"+upConfig(m), with)
}

func payer(t *testing.T) (*fake.MCP, *atomic.Int64) {
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	paid := &atomic.Int64{}
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) { paid.Add(1); return fake.Text("paid 7"), nil })
	return m, paid
}

func (s *served) decide(id, decision string) error {
	s.t.Helper()
	return s.do("approvals.decide", command.DecideInput{ID: id, Decision: decision}, &command.Decided{})
}

// pending is the one approval that waits.
func (s *served) pending() command.ApprovalRow {
	s.t.Helper()
	var l command.ApprovalsList
	if err := s.do("approvals.list", command.ApprovalsListInput{Limit: 10}, &l); err != nil || len(l.Approvals) != 1 {
		s.t.Fatalf("%+v %v", l, err)
	}
	var a command.ApprovalRow
	if err := s.do("approvals.show", command.ApprovalInput{ID: l.Approvals[0].ID}, &a); err != nil {
		s.t.Fatal(err)
	}
	return a
}

// ended follows a run until it is over.
func (s *served) ended(id string) command.RunsShow {
	s.t.Helper()
	var show command.RunsShow
	within(s.t, 20*time.Second, "the run's end", func() bool {
		err := s.do("runs.show", command.RunsShowInput{RunInput: command.RunInput{Run: id}, Evidence: true}, &show)
		return err == nil && plane.RunState(show.Run.State).Ended()
	})
	return show
}

// A call that asks is not sent before a person lets it pass, over a restart too; then
// it is sent once. What was denied, has expired, or belongs to a cancelled run is never
// sent, and the run says so.
func TestARunWaitsForAnApproval(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	show, evs := s.ask("pay", "general")
	if show.Run.State != "waiting" || show.Run.Waiting != "approval" || paid.Load() != 0 || !strings.Contains(kinds(evs), "approval_requested run_waiting") {
		t.Fatalf("%+v %s, paid %d", show.Run, kinds(evs), paid.Load())
	}
	a := s.pending()
	if a.Arguments != `{"x":"7"}` || a.Tool != "pay" || a.Server != "up" || a.AskedFor != "cli:local" || a.Run != show.Run.ID || !strings.Contains(a.Why, "mcp__up__pay") {
		t.Errorf("%+v", a)
	}
	s.stop()
	s = asking(t, s.dir, "", m, nil)
	if err := s.decide(a.ID, "approve"); err != nil {
		t.Fatal(err)
	}
	show = s.ended(show.Run.ID)
	if show.Run.State != "succeeded" || paid.Load() != 1 || show.Calls[0].Approval != a.ID || !strings.Contains(show.Run.Answer, "paid 7") {
		t.Errorf("%+v, paid %d", show, paid.Load())
	}
	for _, again := range []string{"approve", "deny"} {
		if err := s.decide(a.ID, again); plane.KindOf(err) != plane.Conflict {
			t.Errorf("%s again: %v", again, err)
		}
	}
	show, _ = s.ask("pay", "general")
	if err := s.do("approvals.decide", command.DecideInput{ID: s.pending().ID, Decision: "deny", Note: "too much"}, &command.Decided{}); err != nil {
		t.Fatal(err)
	}
	if show = s.ended(show.Run.ID); show.Run.State != "succeeded" || !strings.Contains(show.Run.Answer, "denied") || !strings.Contains(show.Run.Answer, "too much") || show.Calls[0].State != "failed" {
		t.Errorf("%+v", show)
	}
	show, _ = s.ask("pay", "general")
	if err := s.do("runs.cancel", command.RunInput{Run: show.Run.ID}, &command.RunCancelled{}); err != nil {
		t.Fatal(err)
	}
	if show = s.ended(show.Run.ID); show.Calls[0].State != "failed" {
		t.Errorf("%+v", show.Calls)
	}
	var none command.ApprovalsList
	if err := s.do("approvals.list", command.ApprovalsListInput{Limit: 10}, &none); err != nil || len(none.Approvals) != 0 || paid.Load() != 1 {
		t.Errorf("%+v %v, paid %d", none, err, paid.Load())
	}
}

// Nobody decides: the approval expires, cannot be given any more, and the run goes on
// without the call.
func TestAnApprovalExpires(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	show, _ := s.ask("pay", "general")
	a := s.pending()
	s.stop()
	s = asking(t, s.dir, "", m, later(25*time.Hour))
	if err := s.decide(a.ID, "approve"); plane.KindOf(err) != plane.Gone && plane.KindOf(err) != plane.Conflict {
		t.Errorf("%v", err)
	}
	if show = s.ended(show.Run.ID); show.Run.State != "succeeded" || !strings.Contains(show.Run.Answer, "in time") || paid.Load() != 0 {
		t.Errorf("%+v, paid %d", show, paid.Load())
	}
}

// What was approved is one call as it was shown. After the connection was changed the
// approval is worth nothing.
func TestAnApprovalIsForOneVersion(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	show, _ := s.ask("pay", "general")
	a := s.pending()
	for _, f := range []func() error{
		func() error {
			return s.do("mcp.tool-set", command.ToolSetInput{Name: "up", Tool: "pay", Target: "$.x"}, &command.MCPChanged{})
		},
		func() error { return s.decide(a.ID, "approve") },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	if show = s.ended(show.Run.ID); paid.Load() != 0 || show.Calls[0].State != "failed" || !strings.Contains(show.Run.Answer, "changed") {
		t.Errorf("%+v, paid %d", show, paid.Load())
	}
}

// "Always allow" is a rule that operators see and take back; it holds for the
// definition that was looked at.
func TestAlwaysAllowIsARule(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	show, _ := s.ask("pay", "general")
	if err := s.decide(s.pending().ID, "always-allow"); err != nil {
		t.Fatal(err)
	}
	s.ended(show.Run.ID)
	if show, _ = s.ask("pay", "general"); show.Run.State != "succeeded" || paid.Load() != 2 {
		t.Fatalf("%+v, paid %d", show.Run, paid.Load())
	}
	var rules command.RulesList
	if err := s.do("rules.list", command.RulesListInput{}, &rules); err != nil || len(rules.Rules) != 1 || rules.Rules[0].Scope != "agent:general" || rules.Rules[0].Tool != "pay" || rules.Rules[0].By != "cli:local" {
		t.Fatalf("%+v %v", rules, err)
	}
	m.SetTools(strings.Replace(fake.Tool("pay", ""), "Does pay", "Pays and tells everybody", 1))
	s.refresh("up")
	if show, _ = s.ask("pay", "general"); show.Run.State != "waiting" || paid.Load() != 2 {
		t.Errorf("a changed definition: %+v, paid %d", show.Run, paid.Load())
	}
	if err := s.decide(s.pending().ID, "deny"); err != nil {
		t.Fatal(err)
	}
	m.SetTools(fake.Tool("pay", ""))
	s.refresh("up")
	if err := s.do("rules.remove", command.RuleInput{ID: rules.Rules[0].ID}, &command.RuleRemoved{}); err != nil {
		t.Fatal(err)
	}
	if show, _ = s.ask("pay", "general"); show.Run.State != "waiting" || paid.Load() != 2 {
		t.Errorf("without the rule: %+v, paid %d", show.Run, paid.Load())
	}
}

// What an agent's approvals block is never sent; agents with people at hand ask about
// what may destroy something, and about nothing that its server says is harmless.
func TestApprovalModes(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("plain", ""), fake.Tool("drop", `"annotations":{"destructiveHint":true}`), fake.Tool("note", `"annotations":{"destructiveHint":false}`),
		fake.Tool("read", `"annotations":{"readOnlyHint":true}`), fake.Tool("del_all", ""), fake.Tool("del_one", ""))
	s := start(t, "", "agents: {general: {interactive: true, approvals: {mcp__up__del_*: ask, mcp__up__del_one: always}}, quiet: {trust: open, approvals: {'mcp__*': always, mcp__up__drop: block}}}\n"+upConfig(m))
	for agent, want := range map[string]map[string]string{
		"general": {"plain": "waits", "drop": "waits", "note": "", "read": "", "del_all": "waits", "del_one": ""},
		"quiet":   {"plain": "", "drop": "blocked", "note": "", "read": "", "del_all": "", "del_one": ""},
	} {
		token := s.agentToken(agent)
		c := s.plug(agent, token, "2025-11-25", nil)
		for tool, word := range want {
			r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__" + tool})
			if err != nil {
				t.Fatal(err)
			}
			if r.IsError != (word != "") || word != "" && !strings.Contains(textOf(r), word) {
				t.Errorf("%s %s: %v %s", agent, tool, r.IsError, textOf(r))
			}
		}
	}
	if n := len(m.Calls()); n != 3+5 {
		t.Errorf("%d calls at the server", n)
	}
}

// A client is asked by a form, in its own era; its user's yes sends the call once. A
// token of nobody's, and a client that cannot be asked, send nothing until somebody else
// decides; then the same call goes through.
func TestAClientIsAskedForApproval(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	var tok command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "mine", Agent: "general", Me: true}, &tok); err != nil {
		t.Fatal(err)
	}
	token := tok.Value
	var asked []string
	answer := "accept"
	o := &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		asked = append(asked, r.Params.Message)
		return &sdk.ElicitResult{Action: answer, Content: map[string]any{"approve": true}}, nil
	}}
	for i, version := range []string{"2025-11-25", "2026-07-28"} {
		c := s.plugAs("general", token, version, o)
		answer = "accept"
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay", Arguments: map[string]any{"x": fmt.Sprint("ok", i)}})
		if err != nil || r.IsError || paid.Load() != int64(i+1) || len(asked) != 2*i+1 || !strings.Contains(asked[2*i], fmt.Sprint("ok", i)) {
			t.Fatalf("%s: %v %+v, paid %d, asked %v", version, err, r, paid.Load(), asked)
		}
		answer = "decline"
		r, err = c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay", Arguments: map[string]any{"x": fmt.Sprint("no", i)}})
		if err != nil || !r.IsError || !strings.Contains(textOf(r), "denied") || paid.Load() != int64(i+1) {
			t.Errorf("%s declined: %v %+v, paid %d", version, err, r, paid.Load())
		}
	}
	if calls := s.calls("state = 'succeeded' AND approval <> ''"); len(calls) != 2 {
		t.Errorf("%+v", calls)
	}
	// One that cannot be asked comes again after somebody decided.
	c := s.plug("general", token, "2025-11-25", nil)
	call := func() *sdk.CallToolResult {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay", Arguments: map[string]any{"x": "later"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 2 {
		if r := call(); !r.IsError || !strings.Contains(textOf(r), "waits for a person's approval") {
			t.Fatalf("%+v", r)
		}
	}
	a := s.pending()
	if err := s.decide(a.ID, "approve"); err != nil {
		t.Fatal(err)
	}
	if r := call(); r.IsError || paid.Load() != 3 {
		t.Errorf("%+v, paid %d", r, paid.Load())
	}
	if r := call(); !r.IsError || paid.Load() != 3 {
		t.Errorf("the approval was good twice: %+v", r)
	}
	if err := s.decide(s.pending().ID, "deny"); err != nil {
		t.Fatal(err)
	}
	if r := call(); !r.IsError || !strings.Contains(textOf(r), "denied") {
		t.Errorf("%+v", r)
	}
}

// An agent token that names nobody cannot approve for itself.
func TestATokenOfNobodyCannotApprove(t *testing.T) {
	m, paid := payer(t)
	s := asking(t, "", "", m, nil)
	c := s.plugAs("general", s.agentToken("general"), "2025-11-25", &sdk.ClientOptions{ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"approve": true}}, nil
	}})
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay"})
	if err != nil || !r.IsError || paid.Load() != 0 {
		t.Errorf("%v %+v, paid %d", err, r, paid.Load())
	}
}
