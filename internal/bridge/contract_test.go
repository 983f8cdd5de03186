package bridge_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/fake"
	"patchbay/internal/ledger"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

const (
	linear   = "https://mcp.linear.app/mcp"
	contract = "linear-atomic-append-v1"
	issueA   = "0b0e7c1e-5d3c-4f6a-9c57-3a2f3d8f1a01"
	issueB   = "0b0e7c1e-5d3c-4f6a-9c57-3a2f3d8f1a02"
)

func saveIssue() string {
	return `{"name":"save_issue","description":"Saves.","inputSchema":{"type":"object"}}`
}

func appendTo(id string) string {
	return fmt.Sprintf(`{"id":%q,"patch":{"op":"append","text":"\nMore."}}`, id)
}

// contracted is a rig with a server of Linear's shape at Linear's own address, whose
// save_issue was reviewed for the contract.
func contracted(t *testing.T, endpoint string) (*rig, *fake.MCP, *bridge.Session) {
	t.Helper()
	f := fake.NewMCP(t, saveIssue())
	r := newRig(t, nil, server{"linear", f, func(c *plane.Connection) { c.Endpoint = endpoint }})
	_, print := catalog.Identify([]byte(saveIssue()))
	review := plane.Review{Connection: r.conns[0].ID, Name: "save_issue", Fingerprint: print, Class: plane.Effect, By: "ada", Contract: contract}
	if err := r.store.Write(t.Context(), func(tx plane.Tx) error { return r.store.PutReview(tx, &review) }); err != nil {
		t.Fatal(err)
	}
	s := r.open("general")
	return r, f, s
}

func answers(f *fake.MCP, id, description, more string) {
	f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return json.RawMessage(fmt.Sprintf(`{"content":[],"structuredContent":{"issue":{"id":%q,"identifier":"ENG-7","description":%q%s}}}`, id, description, more)), nil
	})
}

// An append to one issue, answered by that issue, leaves a receipt and frees the issue
// in one step. Nothing else does: arguments and answers that the contract does not
// cover keep the target held until a person says what became of it.
func TestLinearAtomicAppend(t *testing.T) {
	r, f, s := contracted(t, linear)
	held := func(call *plane.Call) string {
		t.Helper()
		claims, err := r.store.Claims(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claims {
			if c.Call == call.ID {
				return c.Target + " " + c.Why
			}
		}
		return ""
	}
	free := func(call *plane.Call) {
		t.Helper()
		if _, err := ledger.New(r.store, plane.SystemClock{}).Resolve(t.Context(), plane.Local, call.ID, ledger.Done, "looked", nil); err != nil {
			t.Fatal(err)
		}
	}
	answers(f, issueA, "Text.\nMore.", "")
	out := r.call(s, "mcp__linear__save_issue", appendTo(issueA))
	row := r.state(out.Call.ID)
	var p ledger.Proof
	if err := json.Unmarshal([]byte(row.Proof), &p); err != nil || row.State != plane.CallSucceeded || held(out.Call) != "" || p.Subject != issueA || p.Receipt == nil || !p.Receipt.Verified ||
		p.Receipt.Result != row.Result || p.Arguments != row.ArgsDigest || p.Call != string(row.ID) || p.Version != row.Version || p.Fingerprint != row.Fingerprint {
		t.Fatalf("%+v %s %v", row, held(out.Call), err)
	}
	answers(f, issueA, "Text…", "") // an excerpt: ended, not verified
	out = r.call(s, "mcp__linear__save_issue", fmt.Sprintf(`{"id":%q,"patch":{"op":"append","text":"Even more."}}`, issueA))
	if row = r.state(out.Call.ID); json.Unmarshal([]byte(row.Proof), &p) != nil || p.Receipt == nil || p.Receipt.Verified || held(out.Call) != "" {
		t.Errorf("%+v", row)
	}
	for what, c := range map[string]struct{ args, id, more string }{
		"a creation":            {`{"title":"New"}`, issueA, ""},
		"another patch":         {fmt.Sprintf(`{"id":%q,"patch":{"op":"replace","text":"x"}}`, issueA), issueA, ""},
		"two patches":           {fmt.Sprintf(`{"id":%q,"patch":[{"op":"append","text":"x"},{"op":"append","text":"y"}]}`, issueA), issueA, ""},
		"an empty patch":        {fmt.Sprintf(`{"id":%q,"patch":{"op":"append","text":" "}}`, issueA), issueA, ""},
		"a list of one":         {fmt.Sprintf(`{"id":%q,"patch":[{"op":"append","text":"x"}]}`, issueA), issueA, ""},
		"a relation":            {fmt.Sprintf(`{"id":%q,"patch":{"op":"append","text":"x"},"parentId":"y"}`, issueA), issueA, ""},
		"an identifier":         {`{"id":"ENG-1","patch":{"op":"append","text":"x"}}`, issueA, ""},
		"an upper-case UUID":    {fmt.Sprintf(`{"id":%q,"patch":{"op":"append","text":"x"}}`, strings.ToUpper(issueA)), issueA, ""},
		"another issue":         {appendTo(issueB), issueA, ""},
		"an answer without one": {appendTo(issueB), "", ""},
		"accepted for later":    {appendTo(issueB), issueB, `,"asyncStatus":"queued"`},
	} {
		answers(f, c.id, "Text.", c.more)
		out := r.call(s, "mcp__linear__save_issue", c.args)
		row := r.state(out.Call.ID)
		within(t, func() bool { return held(out.Call) != "" }, what+" let the target go")
		if row.State != plane.CallSucceeded || strings.Contains(row.Proof, "receipt") || !strings.Contains(held(out.Call), "nothing proves") {
			t.Errorf("%s: %+v %s", what, row, held(out.Call))
		}
		if again := r.call(s, "mcp__linear__save_issue", c.args); !again.IsError || !strings.Contains(again.Text, "not settled") {
			t.Errorf("%s: sent again beside it: %+v", what, again)
		}
		free(out.Call)
	}
}

func within(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// The contract is for Linear's own address: the same definition elsewhere gets none.
func TestAContractBelongsToItsEndpoint(t *testing.T) {
	r, f, s := contracted(t, "https://mcp.linear.app.example.com/mcp")
	answers(f, issueB, "x", "")
	out := r.call(s, "mcp__linear__save_issue", appendTo(issueA))
	if row := r.state(out.Call.ID); row.Proof != "" || row.State != plane.CallSucceeded {
		t.Errorf("%+v", row)
	}
	if claims, err := r.store.Claims(t.Context()); err != nil || len(claims) != 0 {
		t.Errorf("%v %v", claims, err)
	}
	for what, err := range map[string]error{
		"another endpoint": ledger.AdmitContract(contract, linear+"/readonly", "save_issue", plane.Effect),
		"another tool":     ledger.AdmitContract(contract, linear, "create_issue", plane.Effect),
		"a query":          ledger.AdmitContract(contract, linear, "save_issue", plane.Query),
		"another contract": ledger.AdmitContract("linear-atomic-append-v2", linear, "save_issue", plane.Effect),
	} {
		if plane.KindOf(err) != plane.InvalidInput {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := ledger.AdmitContract(contract, linear, "save_issue", plane.Effect); err != nil {
		t.Error(err)
	}
}

// An uncertain answer under a contract is unknown as any other, and holds the issue.
func TestAContractDoesNotGuess(t *testing.T) {
	r, f, s := contracted(t, linear)
	f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32603, Message: "?"}
	})
	out := r.call(s, "mcp__linear__save_issue", appendTo(issueA))
	if row := r.state(out.Call.ID); row.State != plane.CallUnknown || strings.Contains(row.Proof, "receipt") || row.Target != "subject:"+issueA {
		t.Errorf("%+v", row)
	}
	answers(f, issueB, "x\nMore.", "")
	if out := r.call(s, "mcp__linear__save_issue", appendTo(issueB)); out.IsError {
		t.Errorf("another issue is held: %+v", out)
	}
	if out := r.call(s, "mcp__linear__save_issue", appendTo(issueA)); !out.IsError || len(f.Calls()) != 2 {
		t.Errorf("%+v", out)
	}
}

// An answer counts that is one final issue and nothing else.
func TestWhatIsAFinalIssue(t *testing.T) {
	l := ledger.New(nil, plane.SystemClock{})
	ends := func(result string) bool {
		c := &plane.Call{ID: "cal_x", Class: plane.Effect, Tool: "save_issue", Target: "tool:save_issue"}
		l.Under(c, contract, linear, []byte(appendTo(issueA)))
		l.Prove(c, contract, linear, []byte(appendTo(issueA)), []byte(result))
		return c.Hold == "" && strings.Contains(c.Proof, `"receipt"`)
	}
	issue := fmt.Sprintf(`{"id":%q,"identifier":"ENG-7","status":"In Progress","description":"x"}`, issueA)
	text := func(s string) string { return fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, s) }
	for _, good := range []string{`{"content":[],"structuredContent":` + issue + `}`, `{"content":[],"structuredContent":{"issue":` + issue + `},"isError":false}`, text(issue), text(`{"issue":` + issue + `}`),
		fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"structuredContent":%s}`, issue, issue)} {
		if !ends(good) {
			t.Errorf("no receipt for %s", good)
		}
	}
	for _, bad := range []string{text(appendTo(issueA)), text(fmt.Sprintf(`{"success":false,"error":"denied","issue":%s}`, issue)), text(fmt.Sprintf(`{"id":%q,"identifier":"E","error":"denied"}`, issueA)),
		text(fmt.Sprintf(`{"status":"queued","jobId":"j","issue":%s}`, issue)), text(fmt.Sprintf(`{"asyncStatus":"pending","issue":%s}`, issue)), text(fmt.Sprintf(`{"id":%q,"identifier":"E","asyncStatus":"pending"}`, issueA)),
		fmt.Sprintf(`{"task":{"id":"1"},"content":[],"structuredContent":%s}`, issue), text(fmt.Sprintf(`{"id":%q,"id":%q,"identifier":"E"}`, issueB, issueA)), text(fmt.Sprintf(`{"ID":%q,"identifier":"E"}`, issueA)),
		text(`{"ISSUE":` + issue + `}`), fmt.Sprintf(`{"content":[{"type":"text","text":"Queued; not applied yet"}],"structuredContent":%s}`, issue), text(fmt.Sprintf(`{"id":%q}`, issueA)), text(issue + issue),
		fmt.Sprintf(`{"content":[],"isError":true,"structuredContent":%s}`, issue), `{"content":[],"resultType":"input_required","structuredContent":` + issue + `}`, `{}`, ``} {
		if ends(bad) {
			t.Errorf("a receipt for %s", bad)
		}
	}
}

// An answer that comes after its call was given up frees the target only if it fulfils
// the contract.
func TestALateAnswerIsHeldToTheContract(t *testing.T) {
	for more, frees := range map[string]bool{"": true, `,"asyncStatus":"queued"`: false} {
		r, f, s := contracted(t, linear)
		f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
			l := ledger.New(r.store, plane.SystemClock{})
			if err := l.RecoverSessions(t.Context(), time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
			return json.RawMessage(fmt.Sprintf(`{"content":[],"structuredContent":{"issue":{"id":%q,"identifier":"ENG-7"%s}}}`, issueA, more)), nil
		})
		out := r.call(s, "mcp__linear__save_issue", appendTo(issueA))
		row, err := r.store.CallByID(t.Context(), out.Call.ID)
		if err != nil || row.State != plane.CallResolvedDone || row.ResolvedBy != "patchbay" || out.IsError {
			t.Errorf("%q: %+v %v", more, row, err)
		}
		claims, err := r.store.Claims(t.Context())
		if err != nil || (len(claims) == 0) != frees {
			t.Errorf("%q: %+v %v", more, claims, err)
		}
	}
}

// What an operator blocks in mid-session is not sent, whatever was offered.
func TestABlockHoldsAtOnce(t *testing.T) {
	f := fake.NewMCP(t, fake.Tool("pay", ""))
	r := newRig(t, nil, server{"up", f, nil})
	s := r.open("general")
	if out := r.call(s, "mcp__up__pay", `{}`); out.IsError {
		t.Fatalf("%+v", out)
	}
	snap, err := policy.Compile(policy.Rules{Connections: r.conns, Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true,
		Approvals: []plane.ToolMode{{Pattern: "mcp__up__*", Mode: plane.Block}}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.snap = snap
	if out := r.call(s, "mcp__up__pay", `{}`); !out.IsError || !strings.Contains(out.Text, "blocked") || len(f.Calls()) != 1 {
		t.Errorf("%+v", out)
	}
}
