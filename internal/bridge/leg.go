package bridge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/upstream"
)

// maxLegs is how often a call may ask for input.
const maxLegs = 16

// leg is what a call is about while its server wants input: it goes to the caller,
// sealed, and comes back with the input. Each is good once: the ledger lets one
// attempt follow the one that asked.
type leg struct {
	Call      plane.CallID       `json:"c"`
	Approval  plane.ApprovalID   `json:"y,omitempty"` // a person is asked, not the server's caller
	Planned   int64              `json:"p"`
	Since     int64              `json:"i"` // when its caller was asked
	Attempts  int                `json:"n"`
	Class     plane.Class        `json:"k"`
	Run       plane.RunID        `json:"r"`
	Who       []string           `json:"w"`
	Method    string             `json:"m"`
	Alias     string             `json:"a"`
	Tool      string             `json:"t"`
	Conn      plane.ConnectionID `json:"o"`
	Version   int64              `json:"v"`
	Print     string             `json:"f"`
	Arguments string             `json:"d"` // digest
	State     *string            `json:"s"` // the server's own, when it gave one
}

// whose is who a leg belongs to.
func (s *Session) whose() []string {
	p := s.o.Principal
	return []string{s.o.Agent, string(p.Kind), p.ID, p.Team, p.Token}
}

// wait records that the server asks its caller for something, and hands that on.
func (s *Session) wait(ctx context.Context, out *Out, call *plane.Call, res upstream.Result, method string, args json.RawMessage) error {
	if s.b.Sealer == nil || call.Attempts >= maxLegs {
		out.Raw, out.IsError, out.Text = nil, true, "The server asks for more input than is handed on."
		return s.settle(ctx, In{}, out, call, plane.Ending{Fault: plane.FaultProtocol, Detail: out.Text}) // who knows what it did by now
	}
	l := leg{Call: call.ID, Planned: plane.Micros(call.PlannedAt), Since: plane.Micros(s.b.Clock.Now()), Attempts: call.Attempts, Class: call.Class, Run: call.Run, Who: s.whose(), Method: method,
		Alias: call.Alias, Tool: call.Tool, Conn: call.Connection, Version: call.Version, Print: call.Fingerprint, Arguments: digestOf(args)}
	if raw := member(res.Raw, "requestState"); raw != nil {
		if state, ok := mcp.String(raw); ok {
			l.State = &state
		}
	}
	if err := s.b.Ledger.Wait(context.WithoutCancel(ctx), call); err != nil {
		return err
	}
	sealed, err := s.sealed(&l)
	if err != nil {
		return err
	}
	out.Raw, out.Typed = mcp.SetMember(res.Raw, "requestState", sealed), true
	out.Asks = true
	return nil
}

// resume opens what a caller brings back. It must be this caller's, about the same
// request.
func (s *Session) resume(state, method, alias string, conn plane.ConnectionID, args json.RawMessage) (*leg, error) {
	bad := plane.Errorf(plane.InvalidInput, "The requestState is not one that this call was given.").Then("Make the call anew, without it.")
	blob, err := base64.RawURLEncoding.DecodeString(state)
	if err != nil || s.b.Sealer == nil {
		return nil, bad
	}
	plain, err := s.b.Sealer.Open(blob)
	if err != nil {
		return nil, bad.Because(err)
	}
	var l leg
	d := json.NewDecoder(bytes.NewReader(plain))
	if err := d.Decode(&l); err != nil {
		return nil, bad.Because(err)
	}
	if !slices.Equal(l.Who, s.whose()) || l.Method != method || l.Alias != alias || l.Conn != conn || l.Arguments != digestOf(args) {
		return nil, bad
	}
	if s.b.Clock.Now().Sub(plane.FromMicros(l.Since)) > plane.InputLife {
		return nil, plane.Errorf(plane.Gone, "The call waited for input for too long.").Then("Make the call anew, without its requestState.")
	}
	return &l, nil
}

func badState(err error) *mcp.RPCError {
	return &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: plane.Public(err).Message}
}

// call is the call that a leg belongs to, as it stands.
func (l *leg) call(s *Session, server string) *plane.Call {
	c := &plane.Call{ID: l.Call, Run: l.Run, Agent: s.o.Agent, Principal: s.o.Principal.ID, Connection: l.Conn, Version: l.Version, Server: server,
		Tool: l.Tool, Alias: l.Alias, Fingerprint: l.Print, Class: l.Class, ArgsDigest: l.Arguments, State: plane.CallAwaitingInput, Attempts: l.Attempts,
		PlannedAt: plane.FromMicros(l.Planned), Waited: true}
	if l.Approval != "" {
		c.State, c.Waited, c.Approval = plane.CallAwaitingApproval, false, l.Approval
	}
	return c
}

// extra is what the next leg says beside the arguments.
func (l *leg) extra(inputs json.RawMessage) json.RawMessage {
	if l == nil || l.Approval != "" {
		return nil
	}
	var out []byte
	if inputs != nil {
		out = append(append(out, `"inputResponses":`...), inputs...)
	}
	if l.State != nil {
		state, _ := json.Marshal(*l.State) // a string always marshals
		if out != nil {
			out = append(out, ',')
		}
		out = append(append(out, `"requestState":`...), state...)
	}
	return out
}
