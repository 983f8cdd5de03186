package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// Approvals ask people, and take their word.
type Approvals interface {
	Ask(ctx context.Context, c *plane.Call, arguments []byte, why string) (*plane.Approval, error)
	Word(ctx context.Context, c *plane.Call) (*plane.Approval, error)
	Asked(ctx context.Context, c *plane.Call) (*plane.Approval, error)
	Decide(ctx context.Context, who plane.Principal, id plane.ApprovalID, as plane.Decision, note string, also func(plane.Tx, plane.Approval) error) (plane.Approval, error)
}

// permit lets a call pass, or returns what its caller is told: it is blocked, was
// denied, or waits for a person. A caller that can be asked is.
func (s *Session) permit(ctx context.Context, in In, tool *Tool, call *plane.Call, conn *plane.Connection, args json.RawMessage, l *leg) (*Out, error) {
	mode, why := s.mode(conn, tool.Definition)
	if mode == plane.Block {
		return s.blocked(ctx, in, call, why)
	}
	if l != nil && l.Approval == "" {
		return nil, nil // it was let pass before its server asked for more
	}
	if mode == plane.Always && call.State != plane.CallAwaitingApproval {
		return nil, nil
	}
	word, err := s.word(ctx, call, in, l)
	if err != nil {
		return nil, err
	}
	if word == nil {
		if word, err = s.b.Ledger.Ask(ctx, call, args, why); err != nil {
			if plane.KindOf(err) == plane.Limited {
				return s.refuse(ctx, in, call, plane.Public(err).Message, "limited")
			}
			return nil, err
		}
		s.noteAsked(in, word)
	}
	if word.State == plane.ApprovalPending {
		if word, err = s.elicit(ctx, in, call, word, args, l); err != nil {
			return nil, err
		}
	}
	switch word.State {
	case plane.ApprovalApproved:
		if !word.Fits(call) {
			return s.refuse(ctx, in, call, "The approval was for another call; nothing was sent.", "approval")
		}
		if mode, why := s.mode(conn, tool.Definition); mode == plane.Block {
			return s.blocked(ctx, in, call, why)
		}
		call.Approval = word.ID
		return nil, nil
	case plane.ApprovalPending:
		return s.waiting(ctx, in, call, word, args)
	case plane.ApprovalDenied:
		if s.o.Run == "" {
			return &Out{IsError: true, Text: word.Refusal(), Fault: "denied"}, nil // it is settled
		}
		return s.refuse(ctx, in, call, word.Refusal(), "denied")
	}
	return s.refuse(ctx, in, call, "Nobody approved the call in time; it was not sent.", "approval")
}

// mode is what policy says now, with what the session has read.
func (s *Session) mode(conn *plane.Connection, d *plane.Definition) (plane.ApprovalMode, string) {
	mode, why := s.b.Policy().Approval(s.o.Agent, conn, d)
	if mode == plane.Always && s.taintUse() == plane.TaintEnforce && s.Tainted(conn, d) {
		return plane.Ask, taintText
	}
	return mode, why
}

// taintUse is what the agent's config says now.
func (s *Session) taintUse() plane.TaintUse {
	a, _ := s.b.Policy().Agent(s.o.Agent)
	return a.Taint
}

func (s *Session) blocked(ctx context.Context, in In, call *plane.Call, why string) (*Out, error) {
	return s.refuse(ctx, in, call, "The tool is blocked for this agent: "+why+".", "blocked")
}

// word is what was said of the call before: of a run's by its row, of a client's by
// what it brings or by the same request.
func (s *Session) word(ctx context.Context, call *plane.Call, in In, l *leg) (*plane.Approval, error) {
	if in.Planned != nil || l != nil && l.Approval != "" || call.State == plane.CallAwaitingApproval {
		return s.b.Ledger.Word(ctx, call)
	}
	return s.b.Ledger.Asked(ctx, call)
}

// noteAsked tells who follows a run.
func (s *Session) noteAsked(in In, a *plane.Approval) {
	if in.Asked != nil {
		in.Asked(a)
	}
}

// approvalKey names the question among a call's input requests.
const approvalKey = "patchbay_approval"

// answerOf is an answered elicitation.
type answerOf struct {
	Action  string `json:"action"`
	Content struct {
		Approve bool `json:"approve"`
	} `json:"content"`
}

// elicit asks the client's user, where the client can be asked in its own era and its
// token names a user who may decide. Whatever is no plain yes or no leaves the
// approval open for others.
func (s *Session) elicit(ctx context.Context, in In, call *plane.Call, a *plane.Approval, args json.RawMessage, l *leg) (*plane.Approval, error) {
	if !s.canElicit(in, a, args) {
		return a, nil
	}
	var raw json.RawMessage
	switch {
	case in.Caller.Modern:
		if l == nil || l.Approval != a.ID {
			return a, nil // asked by the result
		}
		raw = member(in.Inputs, approvalKey)
	case in.Caller.Ask != nil:
		var rpcErr *mcp.RPCError
		if raw, rpcErr = in.Caller.Ask(ctx, mcp.MethodElicit, elicitation(a, args)); rpcErr != nil {
			return a, nil
		}
	}
	var said answerOf
	if json.Unmarshal(raw, &said) != nil {
		return a, nil
	}
	as := plane.Deny
	switch {
	case said.Action == "accept" && said.Content.Approve:
		as = plane.Approve
	case said.Action == "cancel" || said.Action != "accept" && said.Action != "decline":
		return a, nil
	}
	decided, err := s.b.Ledger.Decide(context.WithoutCancel(ctx), s.o.Principal, a.ID, as, "", nil)
	if k := plane.KindOf(err); err != nil && (k == plane.Conflict || k == plane.Gone) {
		return s.b.Ledger.Word(ctx, call) // somebody else was first
	}
	return &decided, err
}

// canElicit says whether the caller's user can be asked by a form that shows everything.
func (s *Session) canElicit(in In, a *plane.Approval, args json.RawMessage) bool {
	return len(args) <= maxAskedArguments && s.o.Run == "" && in.Caller.Elicits && (in.Caller.Modern || in.Caller.Ask != nil) && s.o.Principal.NamesUser() &&
		s.b.Policy().MayDecide(s.o.Principal, a.Principal, a.Agent)
}

// maxAskedArguments is how large arguments may be that a form shows, in bytes: what is
// approved is shown whole.
const maxAskedArguments = 2000

// elicitation is the form that asks for an approval.
func elicitation(a *plane.Approval, args json.RawMessage) json.RawMessage {
	shown := Visible(string(args))
	b, _ := json.Marshal(map[string]any{ // strings always marshal
		"mode":    "form",
		"message": fmt.Sprintf("Allow the agent %s to call %s at %s, once? It is asked because %s. Arguments: %s", a.Agent, Visible(a.Tool), a.Server, a.Why, shown),
		"requestedSchema": map[string]any{"type": "object", "required": []string{"approve"},
			"properties": map[string]any{"approve": map[string]any{"type": "boolean", "title": "Allow this call", "description": "The call is sent once, exactly as shown."}}}})
	return b
}

// waiting tells a caller that the call waits for a person: a modern client is asked
// by it, a run is left, and any other client comes again.
func (s *Session) waiting(ctx context.Context, in In, call *plane.Call, a *plane.Approval, args json.RawMessage) (*Out, error) {
	out := &Out{Call: call, Waiting: a, IsError: true, Fault: "approval",
		Text: fmt.Sprintf("The call waits for a person's approval (%s): %s. It was not sent.", a.ID, a.Why),
		Next: "patchbay approvals decide " + string(a.ID) + " approve|deny; then make the same call again."}
	if !in.Caller.Modern || in.State != "" || !s.canElicit(in, a, args) || s.b.Sealer == nil {
		return out, nil
	}
	l := leg{Call: call.ID, Approval: a.ID, Planned: plane.Micros(call.PlannedAt), Since: plane.Micros(s.b.Clock.Now()), Class: call.Class, Run: call.Run, Who: s.whose(), Method: mcp.MethodToolsCall,
		Alias: call.Alias, Tool: call.Tool, Conn: call.Connection, Version: call.Version, Print: call.Fingerprint, Arguments: call.ArgsDigest}
	state, err := s.sealed(&l)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(map[string]any{"resultType": "input_required", "requestState": state,
		"inputRequests": map[string]any{approvalKey: map[string]any{"method": mcp.MethodElicit, "params": elicitation(a, args)}}})
	if err != nil {
		return nil, err
	}
	out.Raw, out.Typed, out.Asks, out.IsError = b, true, true, false
	return out, nil
}

func (s *Session) sealed(l *leg) (string, error) {
	plain, err := json.Marshal(l)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(s.b.Sealer.Seal(plain)), nil
}

const taintText = "it reaches outside, and this session has read private and untrusted data"

// Tainted reports an effect at an outward connection after private and untrusted data
// was read.
func (s *Session) Tainted(conn *plane.Connection, d *plane.Definition) bool {
	const both = plane.Private | plane.Untrusted
	return d.Class == plane.Effect && conn.Labels()&plane.Outward != 0 && s.Labels()&both == both
}

// Labels are those of everything the session has read.
func (s *Session) Labels() plane.Labels { return plane.Labels(s.labels.Load()) }

// AddLabels adds the labels of something that was read.
func (s *Session) AddLabels(l plane.Labels) {
	s.labels.Or(uint32(l & (plane.Private | plane.Untrusted)))
}

// targetOf names what an effect is about: what the operator's path finds in its
// arguments, else the tool itself.
func targetOf(conn *plane.Connection, tool string, args json.RawMessage) (target, spec string) {
	whole := "tool:" + tool
	path := conn.Target(tool)
	if path == "" {
		return whole, ""
	}
	parts, ok := plane.ArgumentPath(path)
	if !ok {
		return whole, ""
	}
	v := args
	for _, p := range parts {
		if v = member(v, p); v == nil {
			return whole, "" // left out: anything of the tool may be meant
		}
	}
	key := canonicalValue(v)
	if key == "" {
		return whole, "" // it names nothing
	}
	// A digest: arguments do not rest in the record.
	sum := sha256.Sum256([]byte(key))
	return "arg:" + hex.EncodeToString(sum[:16]), path
}

// canonicalValue is one text for all ways to write a value; "" for one that says nothing.
// A number and a string of the same digits are one: servers take either.
func canonicalValue(v json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	var x any
	if d.Decode(&x) != nil {
		return ""
	}
	switch x := x.(type) {
	case nil:
		return ""
	case string:
		s := strings.TrimSpace(x)
		if n := canonicalNumber(s); n != "" {
			return n
		}
		return s
	case json.Number:
		if n := canonicalNumber(x.String()); n != "" {
			return n
		}
		return x.String()
	}
	b, err := json.Marshal(x) // with sorted keys
	if err != nil {
		return ""
	}
	return string(b)
}

// canonicalNumber writes a number of moderate size in one way; "" for what is none.
func canonicalNumber(s string) string {
	if len(s) == 0 || len(s) > 64 || strings.Trim(s, "+-.0123456789eE") != "" {
		return ""
	}
	if exponent(s) > 64 {
		return ""
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return ""
	}
	return r.RatString()
}

// exponent is a number's, or more than any that is taken.
func exponent(s string) int {
	_, e, ok := strings.Cut(strings.ToLower(s), "e")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(e)
	if err != nil {
		return 1 << 20
	}
	return max(n, -n)
}

// Current reports that a connection still is what it was at a version: what was read
// from another account, or before it was signed in again, is not handed on as its own.
func (s *Session) Current(id plane.ConnectionID, version int64) bool {
	conn, ok := s.b.Policy().Connection(id)
	return ok && conn.Version == version
}

// Shared reports that a connection is the org's or the agent's, so that what it says
// belongs to the whole agent, and to nobody in particular.
func (s *Session) Shared(id plane.ConnectionID) bool {
	conn, ok := s.b.Policy().Connection(id)
	return ok && conn.Scope.Rank() <= 1
}
