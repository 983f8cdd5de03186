package app_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// While it is not known what became of an effect, no other on the same target is sent,
// whoever asks and whatever the tool is called; others are. A person's word frees it.
func TestAnUnknownEffectHoldsItsTarget(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("move", ""), fake.Tool("close", ""))
	lose := atomic.Bool{}
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if lose.Load() {
			return nil, &mcp.RPCError{Code: -32603, Message: "who knows"}
		}
		return fake.Text("ok"), nil
	})
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q, targets: {move: $.x}}}}\n", m.Endpoint())+allow("up", m.URL))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	call := func(tool, x string) string {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__" + tool, Arguments: map[string]any{"x": x}})
		if err != nil {
			t.Fatal(err)
		}
		return textOf(r)
	}
	lose.Store(true)
	call("move", "1")
	lose.Store(false)
	before := len(m.Calls())
	for _, again := range []string{call("move", "1"), call("move", "1")} {
		if !strings.Contains(again, "not settled") || !strings.Contains(again, "patchbay runs resolve cal_") {
			t.Errorf("%s", again)
		}
	}
	for _, same := range []string{" 1", "1.0", "1e0", "01", "", "  "} { // ways to write it, and none at all
		if said := call("move", same); !strings.Contains(said, "not settled") {
			t.Errorf("%q: %s", same, said)
		}
	}
	s.refresh("up")
	err := s.do("mcp.classify", command.ClassifyInput{Name: "up", Tool: "move", Class: "query", Fingerprint: s.tool("up", "move").Fingerprint}, &command.MCPChanged{})
	if plane.KindOf(err) != plane.Conflict || !strings.Contains(err.Error(), "not settled") {
		t.Errorf("reviewed as a query: %v", err)
	}
	if call("move", "2") != "ok" || call("close", "1") != "ok" {
		t.Error("another target is held")
	}
	// No target in the arguments, and another way to name it: anything may be meant.
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__move"}); err != nil || !strings.Contains(textOf(r), "not settled") {
		t.Errorf("%v %v", r, err)
	}
	// Its class changes nothing about it.
	if err := s.do("mcp.classify", command.ClassifyInput{Name: "up", Tool: "move", Class: "effect"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(call("move", "1"), "not settled") {
		t.Error("a review released the target")
	}
	if n := len(m.Calls()) - before; n != 2 {
		t.Errorf("%d calls were sent", n)
	}
	s.settle(1)
	if call("move", "1") != "ok" {
		t.Error("the target is not free")
	}
}

// An own run's model is told how its person frees a held target, and a target is set
// only for a tool that is there.
func TestAHeldTargetOfARun(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32603, Message: "?"}
	})
	s := start(t, "", scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: "it said {{last}}"}]`)+upConfig(m))
	if show, _ := s.ask("pay", "general"); show.Run.Waiting != "reconcile" {
		t.Fatalf("%+v", show.Run)
	}
	show, _ := s.ask("pay again", "general")
	if show = s.ended(show.Run.ID); !strings.Contains(show.Run.Answer, "not settled") || !strings.Contains(show.Run.Answer, "Tell the person: patchbay runs resolve cal_") {
		t.Errorf("%+v", show.Run)
	}
	if err := s.do("mcp.tool-set", command.ToolSetInput{Name: "up", Tool: "pays", Target: "$.x"}, &command.MCPChanged{}); plane.KindOf(err) != plane.NotFound {
		t.Errorf("%v", err)
	}
	for _, target := range []string{"$.x", "none"} {
		if err := s.do("mcp.tool-set", command.ToolSetInput{Name: "up", Tool: "pay", Target: target}, &command.MCPChanged{}); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// A connection is not removed while it is not settled what became of a call there.
func TestAConnectionWithAnOpenCallStays(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32603, Message: "?"}
	})
	s := start(t, "", "egress: {allow: [{to: \""+m.URL+"\", for: [mine]}]}\n")
	s.add("mine", m.Endpoint(), nil)
	if _, err := s.callTool("mine", "pay"); err != nil {
		t.Fatal(err)
	}
	err := s.do("mcp.remove", command.NameInput{Name: "mine"}, &command.MCPChanged{})
	if plane.KindOf(err) != plane.Conflict || !strings.Contains(err.Error(), "not settled") {
		t.Fatalf("%v", err)
	}
	s.settle(1)
	if err := s.do("mcp.remove", command.NameInput{Name: "mine"}, &command.MCPChanged{}); err != nil {
		t.Error(err)
	}
}

// Two effects on one named target do not go out beside each other: the second waits.
func TestEffectsOnOneTargetTakeTurns(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("move", ""))
	var now, most atomic.Int64
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(30 * time.Millisecond)
		now.Add(-1)
		return fake.Text("ok"), nil
	})
	s := start(t, "", fmt.Sprintf("org: {connections: {up: {url: %q, targets: {move: $.x}}}}\n", m.Endpoint())+allow("up", m.URL))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	done := make(chan string)
	for range 4 {
		go func() {
			r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__move", Arguments: map[string]any{"x": "same"}})
			if err != nil {
				done <- err.Error()
				return
			}
			done <- textOf(r)
		}()
	}
	for range 4 {
		if got := <-done; got != "ok" {
			t.Error(got)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d beside each other", most.Load())
	}
}

// The idempotency key is made once for each effect, travels in _meta, and goes into the
// argument that an operator named; a call that is sent again keeps it.
func TestTheIdempotencyKey(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("pay", ""), fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	var bodies []string
	fail := atomic.Bool{}
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(b)))
			if strings.Contains(string(b), `"tools/call"`) {
				bodies = append(bodies, string(b))
			}
			next.ServeHTTP(w, r)
		})
	})
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if fail.Swap(false) {
			return nil, &mcp.RPCError{Code: -32603, Message: "?"}
		}
		return fake.Text("ok"), nil
	})
	fail.Store(true)
	s := start(t, "", scripted(`[{calls: [{tool: mcp__up__pay, input: {x: "1"}}]}, {say: done}]`)+
		fmt.Sprintf("org: {connections: {up: {url: %q, idempotency_keys: {pay: request}}}}\n", m.Endpoint())+allow("up", m.URL))
	show, _ := s.ask("pay", "general")
	if show.Run.Waiting != "reconcile" {
		t.Fatalf("%+v", show.Run)
	}
	if err := s.do("runs.resolve", command.ResolveInput{ID: show.Run.ID, Outcome: "send-again"}, &command.Resolved{}); err != nil {
		t.Fatal(err)
	}
	show = s.ended(show.Run.ID)
	first := show.Calls[0].ID
	if len(bodies) != 2 || show.Run.State != "succeeded" || show.Calls[1].Replaces != first {
		t.Fatalf("%v %+v", bodies, show)
	}
	for _, b := range bodies {
		if !strings.Contains(b, `"patchbay/idempotencyKey":"`+first+`"`) || !strings.Contains(b, `"request":"`+first+`"`) || !strings.Contains(b, `"x":"1"`) {
			t.Errorf("%s", b)
		}
	}
	c := s.plug("general", s.agentToken("general"), "2026-07-28", nil)
	if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay"}); err != nil {
		t.Fatal(err)
	}
	if last := bodies[len(bodies)-1]; strings.Contains(last, first) || !strings.Contains(last, `"patchbay/idempotencyKey":"cal_`) {
		t.Errorf("%s", last)
	}
}

// Where an answer comes from goes with it: reserved before the call, observed by its
// answer, and handed on as PROV-JSON and as a signed statement.
func TestAnAnswerKnowsItsSources(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`), fake.Tool("bad", ""))
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if in.Name == "bad" {
			return nil, &mcp.RPCError{Code: -32602, Message: "no"}
		}
		return fake.Text("seen"), nil
	})
	s := start(t, "", scripted(`[{calls: [{tool: mcp__up__look, input: {x: "1"}}, {tool: mcp__up__bad}]}, {say: done}]`)+upConfig(m))
	show, _ := s.ask("look", "general")
	show = s.ended(show.Run.ID)
	if len(show.Evidence) != 2 || len(show.Sources) != 2 || show.Evidence[0].ObservedAt.IsZero() || !show.Evidence[1].ObservedAt.IsZero() ||
		show.Evidence[0].Digest != show.Calls[0].ResultDigest || show.Evidence[0].Provider != m.Endpoint() || show.Sources[0] != show.Evidence[0].ID || show.Sources[1] != "message:person:cli:local" {
		t.Fatalf("%+v %v %+v", show.Evidence, show.Sources, show.Calls)
	}
	if e := show.Evidence[0]; e.ReservedAt.After(e.ObservedAt) || len(e.Fingerprint) != 64 || fmt.Sprint(e.Labels) != "[untrusted]" {
		t.Errorf("%+v", e)
	}
	var doc command.Export
	if err := s.do("runs.export", command.ExportInput{Run: show.Run.ID, Format: "prov"}, &doc); err != nil {
		t.Fatal(err)
	}
	var p struct {
		WasDerivedFrom, WasGeneratedBy map[string]map[string]any
	}
	if err := json.Unmarshal(doc.Document, &p); err != nil || p.WasDerivedFrom["_:d0"]["prov:usedEntity"] != "pb:"+show.Sources[0] || p.WasGeneratedBy["_:"+show.Evidence[0].ID]["prov:activity"] != "pb:"+show.Calls[0].ID {
		t.Errorf("%v %s", err, doc.Document)
	}
	if err := s.do("runs.export", command.ExportInput{Run: show.Run.ID, Format: "intoto"}, &doc); err != nil {
		t.Fatal(err)
	}
	var env struct {
		PayloadType, Payload string
		Signatures           []struct{ KeyID, Sig string }
	}
	if err := json.Unmarshal(doc.Document, &env); err != nil {
		t.Fatal(err)
	}
	payload, _ := base64.StdEncoding.DecodeString(env.Payload)
	sig, _ := base64.StdEncoding.DecodeString(env.Signatures[0].Sig)
	resp, err := http.Get("http://" + s.a.Addr() + "/api/keys/signing")
	if err != nil {
		t.Fatal(err)
	}
	var keys struct {
		Keys []struct {
			KeyID, Algorithm string
			PEM              string `json:"public_key"`
			Active           bool
		}
	}
	if err := jsonDecode(resp, &keys); err != nil || len(keys.Keys) != 1 || !keys.Keys[0].Active || keys.Keys[0].KeyID != env.Signatures[0].KeyID {
		t.Fatalf("%+v %v", keys, err)
	}
	block, _ := pem.Decode([]byte(keys.Keys[0].PEM))
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	covered := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(env.PayloadType), env.PayloadType, len(payload), payload)
	if !ed25519.Verify(pub.(ed25519.PublicKey), covered, sig) {
		t.Error("the signature is not of the payload")
	}
	var st struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
	}
	if err := json.Unmarshal(payload, &st); err != nil || st.Type != "https://in-toto.io/Statement/v1" || len(st.Subject) != 1 || st.Subject[0].Name != show.Calls[0].ID || st.Subject[0].Digest.SHA256 != show.Calls[0].ResultDigest {
		t.Errorf("%s %v", payload, err)
	}
}

// A run that read private data and outsiders' words asks before it lets anything out,
// where its agent enforces it, says so where it warns, and nothing where it is off.
func TestTaint(t *testing.T) {
	mail := fake.NewMCP(t, fake.Tool("read", `"annotations":{"readOnlyHint":true}`))
	chat := fake.NewMCP(t, fake.Tool("post", ""))
	cfg := func(taint string) string {
		return scripted(`[{calls: [{tool: mcp__chat__post, input: {x: first}}]}, {calls: [{tool: mcp__mail__read}]}, {calls: [{tool: mcp__chat__post, input: {x: second}}]}, {say: "done: {{last}}"}]`) +
			"agents: {general: {taint: " + taint + "}}\n" +
			fmt.Sprintf("org: {connections: {mail: {url: %q, labels: [private, untrusted]}, chat: {url: %q, labels: [outward]}}}\n", mail.Endpoint(), chat.Endpoint()) + allow("mail", mail.URL, "chat", chat.URL)
	}
	s := start(t, "", cfg("enforce"))
	show, _ := s.ask("go", "general")
	if show.Run.Waiting != "approval" || len(chat.Calls()) != 1 {
		t.Fatalf("%+v, %d posts", show.Run, len(chat.Calls()))
	}
	if a := s.pending(); !strings.Contains(a.Why, "private and untrusted") {
		t.Errorf("%+v", a)
	}
	id := s.pending().ID
	s.stop() // what was read stays read
	s = start(t, s.dir, cfg("enforce"))
	if err := s.decide(id, "approve"); err != nil {
		t.Fatal(err)
	}
	if show = s.ended(show.Run.ID); show.Run.State != "succeeded" || len(chat.Calls()) != 2 {
		t.Errorf("%+v, %d posts", show.Run, len(chat.Calls()))
	}
	s.stop()
	for taint, want := range map[string]bool{"warn": true, "off": false} {
		s := start(t, "", cfg(taint))
		_, evs := s.ask("go", "general")
		if warned := strings.Contains(kinds(evs), "run_note"); warned != want {
			t.Errorf("%s: %s", taint, kinds(evs))
		}
	}
	// The words of a failure are read too.
	mail.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "private words"}
	})
	s = start(t, "", cfg("enforce"))
	if show, _ := s.ask("go", "general"); show.Run.Waiting != "approval" {
		t.Errorf("after a failure: %+v", show.Run)
	}
	mail.OnCall(nil)
	// A client's session counts as a run.
	s = start(t, "", cfg("enforce"))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	for _, tool := range []string{"mcp__chat__post", "mcp__mail__read"} {
		if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: tool}); err != nil || r.IsError {
			t.Fatalf("%s: %v %v", tool, r, err)
		}
	}
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__chat__post", Arguments: map[string]any{"x": "out"}}); err != nil || !r.IsError || !strings.Contains(textOf(r), "approval") {
		t.Errorf("%v %v", r, err)
	}
}

// A round that gets no tools carries no trace of MCP; one that gets some carries the line.
func TestRoundsWithoutToolsCarryNoLine(t *testing.T) {
	t.Setenv("FAKE_KEY", "sk-test-marker-1234567890")
	m := fake.NewMCP(t, fake.Tool("edit", ""))
	l := fake.NewLLM(t, fake.Turn{Text: "Fine."})
	s := start(t, "", llmConfig(l, "anthropic")+"agents: {ship: {rounds: [coding, review]}}\n"+fmt.Sprintf("org: {connections: {up: {url: %q, agents: [coding]}}}\n", m.Endpoint())+allow("up", m.URL))
	show, _ := s.ask("ship it", "ship")
	if show = s.ended(show.Run.ID); show.Run.State != "succeeded" || len(l.Requests()) != 2 {
		t.Fatalf("%+v", show)
	}
	for i, want := range []bool{true, false} {
		r := string(l.Requests()[i])
		if strings.Contains(r, "MCP server") != want || strings.Contains(r, "mcp__up__edit") != want || strings.Contains(r, "result_read") != want {
			t.Errorf("round %d: %s", i+1, r)
		}
	}
}

// A pipeline's rounds are runs of other agents, each with its own tools; it goes on
// between and within them after a restart, and ends with the last one's answer.
func TestAPipelineShips(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("edit", ""))
	cfg := scripted(`[{say: Working., calls: [{tool: mcp__up__edit}]}, {say: "round said {{last}}"}]`) +
		"agents: {coding: {approvals: {mcp__up__edit: ask}}}\n" +
		fmt.Sprintf("org: {connections: {up: {url: %q, agents: [coding]}}}\n", m.Endpoint()) + allow("up", m.URL)
	s := start(t, "", cfg)
	var row command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "ship it", Agent: "ship"}, &row); err != nil {
		t.Fatal(err)
	}
	for round := 1; round <= 3; round += 2 {
		var show command.RunsShow
		within(t, 20*time.Second, "the round", func() bool {
			err := s.do("runs.show", command.RunsShowInput{RunInput: command.RunInput{Run: row.ID}}, &show)
			return err == nil && len(show.Rounds) == round && show.Rounds[round-1].Waiting == "approval"
		})
		if show.Run.Waiting != "round" || !strings.Contains(show.Run.Reason, "coding") {
			t.Errorf("%+v", show.Run)
		}
		s.stop()
		s = start(t, s.dir, cfg)
		if err := s.decide(s.pending().ID, "approve"); err != nil {
			t.Fatal(err)
		}
	}
	show := s.ended(row.ID)
	if show.Run.State != "succeeded" || len(show.Rounds) != 3 || show.Rounds[1].Agent != "review" || len(m.Calls()) != 2 || !strings.Contains(show.Run.Answer, "round said") {
		t.Errorf("%+v, %d edits", show, len(m.Calls()))
	}
	if !strings.Contains(show.Rounds[2].Prompt, "ship it") || !strings.Contains(show.Rounds[2].Prompt, "Round 2, review, said:") {
		t.Errorf("%s", show.Rounds[2].Prompt)
	}
	if len(show.Sources) != 3 { // two edits, and what the person said
		t.Errorf("%v", show.Sources)
	}
	// A cancelled pipeline takes its round with it.
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "again", Agent: "ship"}, &row); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "the round", func() bool {
		var l command.ApprovalsList
		return s.do("approvals.list", command.ApprovalsListInput{Limit: 5}, &l) == nil && len(l.Approvals) == 1
	})
	if err := s.do("runs.cancel", command.RunInput{Run: row.ID}, &command.RunCancelled{}); err != nil {
		t.Fatal(err)
	}
	if show = s.ended(row.ID); show.Run.State != "cancelled" || show.Rounds[0].State != "cancelled" {
		t.Errorf("%+v", show)
	}
}

// Unknown calls of clients leave the view after seven days; what they hold stays held.
func TestUnknownCallsLeaveTheView(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32603, Message: "?"}
	})
	s := start(t, "", upConfig(m))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay", Arguments: map[string]any{"x": "secret-of-ours"}}); err != nil {
		t.Fatal(err)
	}
	list := func(all bool) []command.CallRow {
		t.Helper()
		var l command.CallsList
		if err := s.do("calls.list", command.CallsListInput{Unknown: true, All: all, Limit: 10}, &l); err != nil {
			t.Fatal(err)
		}
		return l.Calls
	}
	rows := list(false)
	if len(rows) != 1 || rows[0].State != "unknown" || rows[0].Agent != "general" {
		t.Fatalf("%+v", rows)
	}
	var row command.CallRow
	if err := s.do("calls.show", command.CallInput{ID: rows[0].ID}, &row); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	row.Text(&b, command.Style{Now: time.Now()})
	for _, want := range []string{"pay was asked of up at ", "for tok_", "It may have happened", "resolve " + row.ID + " done", "resolve " + row.ID + " not-done", "no other effect on the same target"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "send-again") || strings.Contains(b.String(), "secret-of-ours") {
		t.Errorf("%s", b.String())
	}
	s.stop()
	s = startWith(t, s.dir, upConfig(m), later(8*24*time.Hour))
	if len(list(false)) != 0 || len(list(true)) != 1 {
		t.Errorf("%+v %+v", list(false), list(true))
	}
	if err := s.do("runs.resolve", command.ResolveInput{ID: row.ID, Outcome: "send-again"}, &command.Resolved{}); plane.KindOf(err) != plane.Conflict {
		t.Errorf("%v", err)
	}
}
