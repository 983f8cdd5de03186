package bridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/telemetry"
	"patchbay/internal/upstream"
)

// MaxArguments bounds the arguments of one call, in bytes.
const MaxArguments = 1 << 20

// In is one call as a caller asks for it.
type In struct {
	Alias     string
	Arguments json.RawMessage
	Planned   *plane.Call     // the row made by Plan; nil where there is none
	Caller    Caller          // of an ingress session; the zero value takes answers alone
	Inputs    json.RawMessage // what an earlier leg of the call asked for, with
	State     string          // what that leg gave; empty for a new call
	// Observe joins the transaction that settles the call, for own runs. Before
	// is called ahead of that transaction.
	Observe func(t plane.Tx, o *Out) error
	Before  func()
	Late    func(t plane.Tx, o *Out) error // joins what settles a call that was given up
	Asked   func(a *plane.Approval)        // a person is asked
}

// Out is how a call ended.
type Out struct {
	Call    *plane.Call // nil when the name was not offered
	Text    string      // for a model; marked when it holds a server's words
	Next    string      // what a person can do about a failure, where there is something
	Whole   string      // everything, when Text was cut
	Shown   int         // characters of Whole that Text shows
	IsError bool
	Raw     json.RawMessage    // the server's own bytes, for raw sessions
	Typed   bool               // they say their resultType
	Asks    bool               // they want input before the call goes on
	RPC     *mcp.RPCError      // an error that the caller's protocol handles by itself
	SignIn  plane.ConnectionID // the connection that a person has to sign in first
	Limit   *plane.Error       // the limit that refused the call, with when to come again
	Waiting *plane.Approval    // the call waits for a person
	Warning string             // what should be told beside it
	Bytes   int
	Fault   string // class of the failure for spans; empty for none
}

// Caller is what the other end of a call can take.
type Caller = upstream.Caller

// Notice is something that a server said by itself.
type Notice = upstream.Notice

// Call takes one call down the road. A failure of the call is in Out; an error
// means that our own store failed or the caller's time is over, and stops the
// turn.
func (s *Session) Call(ctx context.Context, in In) (*Out, error) {
	if s.Searching(in.Alias) {
		return s.Search(ctx, in.Arguments)
	}
	in.Alias, in.Arguments = s.unwrap(in.Alias, in.Arguments)
	tool, ok := s.Tool(in.Alias)
	if !ok || tool.Connection == "" {
		return s.refuse(ctx, in, in.Planned, "There is no tool of that name in this session.", "unknown_tool")
	}
	args := tool.back.restore(normalized(in.Arguments))
	call := in.Planned
	var l *leg
	switch {
	case in.State != "":
		var err error
		if l, err = s.resume(in.State, mcp.MethodToolsCall, tool.Alias, tool.Connection, args); err != nil {
			return &Out{IsError: true, Text: plane.Public(err).Message, RPC: badState(err)}, nil
		}
		if d := tool.Definition; l.Print != d.Fingerprint || l.Tool != d.Name || l.Version != tool.Version || l.Class != d.Class {
			return s.refuse(ctx, in, nil, "The tool changed since this call began; look at the tool again, and make the call anew.", "changed")
		}
		call = l.call(s, tool.Server)
	case call == nil:
		call = s.newCall(tool, args)
	case call.Fingerprint != tool.Definition.Fingerprint || call.Version != tool.Version || call.Connection != tool.Connection || call.ArgsDigest != digestOf(args):
		return s.refuse(ctx, in, call, "The tool changed since this call was planned; look at the tool again.", "changed")
	}
	if len(args) > MaxArguments {
		return s.refuse(ctx, in, call, fmt.Sprintf("The arguments are larger than %d bytes.", MaxArguments), "too_large")
	}
	if args[0] != '{' || mcp.Check(args, mcp.Strict) != nil {
		return s.refuse(ctx, in, call, "The arguments are not one unambiguous JSON object.", "bad_arguments")
	}
	if s.o.Run != "" {
		if n := s.used.Add(1); n > int64(s.b.Limits.CallsPerRun) {
			return s.refuse(ctx, in, call, fmt.Sprintf("This run has made its %d remote calls (calls_per_run).", s.b.Limits.CallsPerRun), "limited")
		}
	}
	if s.b.Fresh != nil {
		if err := s.b.Fresh(ctx); err != nil {
			return s.refuse(ctx, in, call, plane.Public(err).Message, "unavailable")
		}
	}
	grant, denial := s.decide(tool)
	if denial != nil {
		s.markStale(tool.Connection, denial.Kind)
		out, err := s.refuse(ctx, in, call, denial.Reason, "denied")
		if denial.Kind == plane.Unauthenticated {
			out.SignIn = tool.Connection
		}
		return out, err
	}
	if faults := s.b.schemas.of(tool.Definition).input.check(args); len(faults) > 0 {
		return s.refuse(ctx, in, call, "The arguments do not fit the tool's schema, and nothing was sent: "+strings.Join(faults, "; ")+".", "bad_arguments")
	}
	conn := grant.Connection()
	if in.Planned == nil && call.Target == "" || call.Replaces != "" && call.Proof == "" {
		s.bind(call, &conn, tool.Definition, args)
	}
	out, err := s.permit(ctx, in, tool, call, &conn, args, l)
	if out != nil || err != nil {
		return out, err
	}
	if l == nil || l.Approval != "" {
		if call.Approval != "" { // a person took their time: decide again
			if grant, denial = s.decide(tool); denial != nil {
				return s.refuse(ctx, in, call, denial.Reason, "denied")
			}
		}
	}
	leave, err := s.b.traffic.enter(s.b.Clock.Now(), s.bounds(s.current().agent, &conn, tool.Definition.Name))
	if err != nil {
		out, refused := s.refuse(ctx, in, call, plane.Public(err).Message, "limited")
		if out != nil {
			out.Limit = plane.Public(err)
		}
		return out, refused
	}
	defer leave()
	return s.send(ctx, in, tool, call, grant, args, l)
}

func (s *Session) decide(tool *Tool) (policy.Grant, *policy.Denial) {
	return s.b.Policy().Decide(s.o.Principal, policy.Call, policy.Resource{Agent: s.o.Agent, Connection: tool.Connection, Version: tool.Version})
}

func (s *Session) markStale(id plane.ConnectionID, k plane.Kind) {
	if k == plane.Conflict {
		s.mu.Lock()
		s.stale[id] = true
		s.mu.Unlock()
	}
}

// normalized makes left-out arguments an empty object.
func normalized(args json.RawMessage) json.RawMessage {
	if len(args) == 0 || string(args) == "null" {
		return json.RawMessage(`{}`)
	}
	return args
}

// send is the part of a tool call that touches the network.
func (s *Session) send(ctx context.Context, in In, tool *Tool, call *plane.Call, g policy.Grant, args json.RawMessage, l *leg) (*Out, error) {
	conn, d := g.Connection(), tool.Definition
	req := upstream.Request{Session: s.id, Definition: d, Arguments: args, Extra: l.extra(in.Inputs), MaxAge: s.maxAge(d), Caller: in.Caller}
	if call.Approval != "" {
		req.MaxAge = 0
	}
	if call.Class == plane.Effect {
		if req.Key = call.Key(); conn.KeyArgument(d.Name) != "" {
			req.Arguments = mcp.SetMember(args, conn.KeyArgument(d.Name), req.Key)
		}
	}
	warn := s.taintUse() != plane.TaintOff && s.Tainted(&conn, d)
	t := s.travel(ctx, g, call, req)
	out := &Out{Call: call, Bytes: t.res.Bytes}
	if warn && t.sent {
		out.Warning = "The call went out although " + taintText + "."
		s.b.Audit(plane.AuditEntry{Who: s.o.Principal.ID, Action: "taint.outward", What: string(call.ID), Decision: "warn", Digest: call.ArgsDigest})
	}
	switch {
	case t.ours != nil && !t.sent:
		t.end(out)
		return nil, t.ours
	case t.err != nil && !t.sent:
		var held *plane.HeldError
		if !errors.As(t.err, &held) {
			s.markStale(tool.Connection, plane.KindOf(t.err))
		}
		out.IsError, out.Fault = true, faultOf(t.ending, t.err)
		s.advise(out, plane.Public(t.err).Message, t.err)
		if plane.KindOf(t.err) == plane.Unauthenticated {
			out.SignIn = tool.Connection
		}
		if call.State != plane.CallDispatched && (l != nil || in.Planned == nil && call.State == plane.CallAwaitingApproval) { // the call still waits
			t.end(out)
			return out, nil
		}
	case t.err != nil:
		s.AddLabels(conn.Labels()) // the server's words are handed on
		out.IsError, out.Fault = true, faultOf(t.ending, t.err)
		s.advise(out, s.failureText(tool.Server, t.ending, t.err), t.err)
		out.RPC = handledBy(in.Caller, t.err)
		if plane.KindOf(t.err) == plane.Unauthenticated {
			out.SignIn = tool.Connection
		}
	case t.res.Asks:
		t.end(out)
		return out, s.wait(ctx, out, call, t.res, mcp.MethodToolsCall, args)
	default:
		s.fill(out, tool, t.res, t.ending)
		s.observed(call, &conn, d, args, t)
	}
	call.Bytes = t.res.Bytes
	t.end(out)
	return out, s.settle(ctx, in, out, call, t.ending)
}

// observed notes what an answer is for the record: its digest, what kind of data it
// is, and whether it fulfils the tool's contract.
func (s *Session) observed(call *plane.Call, conn *plane.Connection, d *plane.Definition, args json.RawMessage, t *trip) {
	call.Result = digestOf(t.res.Raw)
	s.AddLabels(conn.Labels())
	if d.Contract != "" && !t.ending.IsError {
		s.b.Ledger.Prove(call, d.Contract, conn.Endpoint, args, t.res.Raw)
	}
}

// trip is what came of taking a request to its server.
type trip struct {
	res    upstream.Result
	ending plane.Ending
	sent   bool
	err    error
	ours   error // a failure of our own store, which must stop the turn
	span   trace.Span
}

func (t *trip) end(out *Out) { endSpan(t.span, t.res, out, t.err) }

// travel lends, calls and records each attempt.
func (s *Session) travel(ctx context.Context, g policy.Grant, call *plane.Call, req upstream.Request) *trip {
	t := &trip{}
	method := cmp.Or(req.Method, telemetry.MethodToolsCall)
	ctx, t.span, req.Trace = s.span(ctx, method, call, g.Connection().Endpoint)
	req.Begin = func(ctx context.Context) error {
		err := s.b.Ledger.Begin(ctx, call)
		if err != nil && plane.KindOf(err) != plane.Conflict {
			t.ours = err
		}
		return err
	}
	req.Again = func(ctx context.Context, end plane.Ending) (bool, error) {
		again, err := s.b.Ledger.Again(ctx, call, end)
		if err != nil {
			t.ours = err
		}
		return again, err
	}
	t.res, t.ending, t.sent, t.err = s.b.Upstream.Call(ctx, g, req)
	if t.res.Redacted {
		s.b.Audit(plane.AuditEntry{Who: s.o.Principal.ID, Action: "credential.echoed", What: string(call.Connection), Decision: "redacted", Digest: call.ArgsDigest})
	}
	return t
}

// handledBy is a server's error that a client of the same era answers by itself:
// it lacks a capability, or a person has to go somewhere first.
func handledBy(c Caller, err error) *mcp.RPCError {
	var e *mcp.Error
	if c.Capabilities == nil || !errors.As(err, &e) || e.RPC == nil || !e.Ending.RPC {
		return nil
	}
	if code := e.RPC.Code; code == mcp.CodeMissingCapability && c.Modern || code == mcp.CodeElicitationNeeded && !c.Modern {
		return e.RPC
	}
	return nil
}

// advise tells what failed, and a model also what its person can do about it.
func (s *Session) advise(out *Out, text string, err error) {
	out.Text = text
	var e *plane.Error
	if errors.As(err, &e) && e.Next != "" {
		out.Next = e.Next
		var held *plane.HeldError
		if s.results() == plane.Marked && (e.Kind == plane.Unauthenticated || errors.As(err, &held)) {
			out.Text += " Tell the person: " + e.Next
		}
	}
}

// fill puts a server's answer into out.
func (s *Session) fill(out *Out, tool *Tool, res upstream.Result, end plane.Ending) {
	out.IsError = end.IsError
	if end.IsError {
		out.Fault = telemetry.ErrorTool
	}
	if res.Raw == nil { // it wanted what nobody here gives
		out.Text = end.Detail
		return
	}
	misfit := s.misfit(tool, res, end)
	if s.results() == plane.Raw {
		out.Raw, out.Typed, out.Text = res.Raw, res.Typed, misfit
		return
	}
	r := render(res.Raw)
	text, notice := r.fit(s.b.Limits.ResultChars)
	if notice != "" {
		out.Whole, out.Shown = r.whole(), utf8.RuneCountInString(text)
	}
	if r.flagged != "" {
		notice = joinNonEmpty("["+r.flagged+"]", notice)
	}
	if r.onlyOthers {
		out.IsError = true
		notice = joinNonEmpty("[The result has no text; other parts are not handed on.]", notice)
	}
	notice = joinNonEmpty(misfit, notice)
	if end.Detail != "" {
		notice = joinNonEmpty("["+end.Detail+"]", notice)
	}
	out.Text = Mark(tool.Server, text, notice)
}

// misfit says how a result differs from what the tool promised. A failure promised
// nothing, and what was done is done: it is a note, not an error.
func (s *Session) misfit(tool *Tool, res upstream.Result, end plane.Ending) string {
	c := s.b.schemas.of(tool.Definition).output
	if end.IsError || c.schema == nil {
		return ""
	}
	structured := member(res.Raw, "structuredContent")
	if structured == nil {
		return "[The tool promised a structured result and gave none.]"
	}
	if faults := c.check(structured); len(faults) > 0 {
		return "[The structured result is not what the tool promised.]"
	}
	return ""
}

// member is one member of an object that was checked already, or nil.
func member(raw json.RawMessage, name string) (v json.RawMessage) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil
	}
	if err := mcp.Members(raw, mcp.Answer, func(key string, m []byte) error {
		if key == name {
			v = m
		}
		return nil
	}); err != nil {
		return nil
	}
	return v
}

func joinNonEmpty(a, b string) string {
	if a == "" {
		return b
	}
	if b == "" {
		return a
	}
	return a + "\n" + b
}

// settle records the end. The caller's context may be over; the record is made
// all the same.
func (s *Session) settle(ctx context.Context, in In, out *Out, call *plane.Call, end plane.Ending) error {
	how := plane.Settlement{}
	if in.Observe != nil {
		how.Observe = func(t plane.Tx) error { return in.Observe(t, out) }
		if in.Before != nil {
			in.Before()
		}
	}
	if in.Late != nil {
		how.Late = func(t plane.Tx) error { return in.Late(t, out) }
	}
	if end.IsError && end.Detail == "" {
		end.Detail = "The tool reported an error."
	}
	how.Ending = end
	return s.b.Ledger.Settle(context.WithoutCancel(ctx), call, how)
}

// refuse ends a call that nothing was sent for.
func (s *Session) refuse(ctx context.Context, in In, call *plane.Call, text, fault string) (*Out, error) {
	out := &Out{Call: call, Text: text, IsError: true, Fault: fault}
	if call == nil || in.Planned == nil {
		out.Call = nil
		return out, nil
	}
	return out, s.settle(ctx, in, out, call, plane.Ending{NothingSent: true, Detail: text, Kind: plane.Forbidden})
}

// failureText is what a model is told of a call that was sent and not answered
// with a result. The server's own words stand between marks.
func (s *Session) failureText(server string, end plane.Ending, err error) string {
	text := end.Detail
	var e *mcp.Error
	if errors.As(err, &e) && e.RPC != nil && e.RPC.Message != "" && end.RPC {
		words, _ := clipRunes(Visible(e.RPC.Message), 1000)
		if s.results() == plane.Raw {
			return fmt.Sprintf("%s Code %d: %s", text, end.RPCCode, words)
		}
		return fmt.Sprintf("%s Code %d.\n%s", text, end.RPCCode, Mark(server, words, ""))
	}
	return text
}

func faultOf(end plane.Ending, err error) string {
	switch {
	case end.Fault == plane.FaultTimeout:
		return "timeout"
	case end.RPC:
		return "rpc"
	case end.Status > 0:
		return fmt.Sprintf("http_%d", end.Status)
	case end.Fault != "":
		return string(end.Fault)
	}
	return string(plane.KindOf(err))
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// span opens the client span of a call; without an exporter it costs nothing
// worth naming.
func (s *Session) span(ctx context.Context, method string, call *plane.Call, endpoint string) (context.Context, trace.Span, string) {
	ctx, span := s.b.Tracer.Start(ctx, method+" "+call.Tool, trace.WithSpanKind(trace.SpanKindClient))
	if !span.IsRecording() {
		return ctx, span, ""
	}
	span.SetAttributes(
		attribute.String(telemetry.MCPMethod, method),
		attribute.String(telemetry.ToolName, call.Tool),
		attribute.String(telemetry.Operation, telemetry.ExecuteTool),
		attribute.String(telemetry.AgentID, s.o.Agent),
		attribute.String(telemetry.Conversation, string(call.Run)),
		attribute.String(telemetry.ToolCallID, string(call.ID)),
		attribute.String(telemetry.Transport, "tcp"),
		attribute.String(telemetry.Connection, call.Server))
	if u, err := url.Parse(endpoint); err == nil {
		span.SetAttributes(attribute.String(telemetry.ServerAddress, u.Hostname()))
		if port, err := strconv.Atoi(cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])); err == nil {
			span.SetAttributes(attribute.Int(telemetry.ServerPort, port))
		}
	}
	return ctx, span, telemetry.Traceparent(span.SpanContext())
}

func endSpan(span trace.Span, res upstream.Result, out *Out, err error) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int(telemetry.Bytes, out.Bytes))
		if res.Version != "" {
			span.SetAttributes(attribute.String(telemetry.MCPVersion, res.Version))
		}
		if res.Session != "" {
			span.SetAttributes(attribute.String(telemetry.MCPSession, res.Session))
		}
		if out.Fault != "" || err != nil {
			span.SetAttributes(attribute.String(telemetry.ErrorType, out.Fault))
			span.SetStatus(codes.Error, out.Fault)
		}
	}
	span.End()
}
