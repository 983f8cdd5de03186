package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

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
	mode, why := s.current().policy.Approval(s.o.Agent, conn, tool.Definition)
	if t := s.taint(conn, tool.Definition); t != "" && mode == plane.Always {
		mode, why = plane.Ask, t
	}
	if mode == plane.Block {
		return s.refuse(ctx, in, call, "The tool is blocked for this agent: "+why+".", "blocked")
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
	if !s.canElicit(in, a) {
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

func (s *Session) canElicit(in In, a *plane.Approval) bool {
	return s.o.Run == "" && in.Caller.Elicits && (in.Caller.Modern || in.Caller.Ask != nil) && s.o.Principal.NamesUser() &&
		s.b.Policy().MayDecide(s.o.Principal, a.Principal, a.Agent)
}

// maxAskedArguments is how much of a call's arguments a form shows, in characters.
const maxAskedArguments = 2000

// elicitation is the form that asks for an approval.
func elicitation(a *plane.Approval, args json.RawMessage) json.RawMessage {
	shown, cut := clipRunes(Visible(string(args)), maxAskedArguments)
	if cut {
		shown += "… (" + fmt.Sprint(len(args)) + " bytes in all)"
	}
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
	if !in.Caller.Modern || in.State != "" || !s.canElicit(in, a) || s.b.Sealer == nil {
		return out, nil
	}
	l := leg{Call: call.ID, Approval: a.ID, Planned: plane.Micros(call.PlannedAt), Class: call.Class, Run: call.Run, Who: s.whose(), Method: mcp.MethodToolsCall,
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

// taint says why an outward effect of a session that read private and untrusted data
// asks a person; nothing where the agent does not enforce it.
func (s *Session) taint(conn *plane.Connection, d *plane.Definition) string {
	if s.current().agent.Taint != plane.TaintEnforce || !s.Tainted(conn, d) {
		return ""
	}
	return taintText
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
	if v[0] == '{' || v[0] == '[' || len(v) > maxTarget {
		sum := sha256.Sum256(v)
		return "arg:#" + hex.EncodeToString(sum[:]), path
	}
	if str, ok := mcp.String(v); ok {
		return "arg:" + str, path
	}
	return "arg:" + string(v), path
}

// maxTarget is the longest value that names a target as it is, in bytes.
const maxTarget = 512

// Current reports that a connection still is what it was at a version: what was read
// from another account, or before it was signed in again, is not handed on as its own.
func (s *Session) Current(id plane.ConnectionID, version int64) bool {
	conn, ok := s.b.Policy().Connection(id)
	return ok && conn.Version == version
}
