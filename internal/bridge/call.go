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
	Planned   *plane.Call // the row made by Plan; nil where there is none
	Progress  func(params json.RawMessage)
	// Observe joins the transaction that settles the call, for own runs. Before
	// is called ahead of that transaction.
	Observe func(t plane.Tx, o *Out) error
	Before  func()
}

// Out is how a call ended.
type Out struct {
	Call    *plane.Call // nil when the name was not offered
	Text    string      // for a model; marked when it holds a server's words
	Next    string      // what a person can do about a failure, where there is something
	Whole   string      // everything, when Text was cut
	Shown   int         // characters of Whole that Text shows
	IsError bool
	Raw     json.RawMessage // the server's own bytes, for raw sessions
	Bytes   int
	Fault   string // class of the failure for spans; empty for none
}

// Call takes one call down the road. A failure of the call is in Out; an error
// means that our own store failed or the caller's time is over, and stops the
// turn.
func (s *Session) Call(ctx context.Context, in In) (*Out, error) {
	tool, ok := s.Tool(in.Alias)
	if !ok {
		return s.refuse(ctx, in, in.Planned, "There is no tool of that name in this session.", "unknown_tool")
	}
	args := tool.back.restore(normalized(in.Arguments))
	call := in.Planned
	if call == nil {
		call = s.newCall(tool, args)
	} else if call.Fingerprint != tool.Definition.Fingerprint || call.Version != tool.Version || call.Connection != tool.Connection || call.ArgsDigest != argsDigest(args) {
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
	grant, denial := s.b.Policy().Decide(s.o.Principal, policy.Call, policy.Resource{Agent: s.o.Agent, Connection: tool.Connection, Version: tool.Version})
	if denial != nil {
		s.markStale(tool.Connection, denial.Kind)
		return s.refuse(ctx, in, call, denial.Reason, "denied")
	}
	if faults := s.b.schemas.of(tool.Definition).input.check(args); len(faults) > 0 {
		return s.refuse(ctx, in, call, "The arguments do not fit the tool's schema, and nothing was sent: "+strings.Join(faults, "; ")+".", "bad_arguments")
	}
	return s.send(ctx, in, tool, call, grant, args)
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

// send is the part of the road that touches the network.
func (s *Session) send(ctx context.Context, in In, tool *Tool, call *plane.Call, g policy.Grant, args json.RawMessage) (*Out, error) {
	ctx, span, traceparent := s.span(ctx, tool, call, g.Connection().Endpoint)
	var ours error // a failure of our own store, which must stop the turn
	res, end, sent, err := s.b.Upstream.Call(ctx, g, upstream.Request{
		Session: s.id, Definition: tool.Definition, Arguments: args, MaxAge: s.maxAge(tool.Definition), Trace: traceparent, Progress: in.Progress,
		Begin: func(ctx context.Context) error {
			err := s.b.Ledger.Begin(ctx, call)
			if err != nil && plane.KindOf(err) != plane.Conflict {
				ours = err
			}
			return err
		},
		Again: func(ctx context.Context, end plane.Ending) (bool, error) {
			again, err := s.b.Ledger.Again(ctx, call, end)
			if err != nil {
				ours = err
			}
			return again, err
		},
	})
	out := &Out{Call: call, Bytes: res.Bytes}
	if res.Redacted {
		s.b.Audit(plane.AuditEntry{Who: s.o.Principal.ID, Action: "credential.echoed", What: string(tool.Connection), Decision: "redacted", Digest: call.ArgsDigest})
	}
	switch {
	case ours != nil && !sent:
		endSpan(span, res, out, err)
		return nil, ours
	case err != nil && !sent:
		s.markStale(tool.Connection, plane.KindOf(err))
		out.IsError, out.Fault = true, faultOf(end, err)
		s.advise(out, plane.Public(err).Message, err)
	case err != nil:
		out.IsError, out.Fault = true, faultOf(end, err)
		s.advise(out, s.failureText(tool.Server, end, err), err)
	default:
		s.fill(out, tool, res, end)
	}
	call.Bytes = res.Bytes
	endSpan(span, res, out, err)
	return out, s.settle(ctx, in, out, call, end)
}

// advise tells what failed, and a model also what its person can do about it.
func (s *Session) advise(out *Out, text string, err error) {
	out.Text = text
	var e *plane.Error
	if errors.As(err, &e) && e.Next != "" {
		out.Next = e.Next
		if s.o.Results == plane.Marked && e.Kind == plane.Unauthenticated {
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
	misfit := s.misfit(tool, res, end)
	if s.o.Results == plane.Raw {
		out.Raw, out.Text = res.Raw, misfit
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
	var also func(plane.Tx) error
	if in.Observe != nil {
		also = func(t plane.Tx) error { return in.Observe(t, out) }
		if in.Before != nil {
			in.Before()
		}
	}
	if end.IsError && end.Detail == "" {
		end.Detail = "The tool reported an error."
	}
	return s.b.Ledger.Settle(context.WithoutCancel(ctx), call, end, also)
}

// refuse ends a call that nothing was sent for.
func (s *Session) refuse(ctx context.Context, in In, call *plane.Call, text, fault string) (*Out, error) {
	out := &Out{Call: call, Text: text, IsError: true, Fault: fault}
	if call == nil || in.Planned == nil {
		out.Call = nil
		return out, nil
	}
	return out, s.settle(ctx, in, out, call, plane.Ending{NothingSent: true, Detail: text})
}

// failureText is what a model is told of a call that was sent and not answered
// with a result. The server's own words stand between marks.
func (s *Session) failureText(server string, end plane.Ending, err error) string {
	text := end.Detail
	var e *mcp.Error
	if errors.As(err, &e) && e.RPC != nil && e.RPC.Message != "" && end.RPC {
		words, _ := clipRunes(Visible(e.RPC.Message), 1000)
		if s.o.Results == plane.Raw {
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

func argsDigest(args []byte) string {
	sum := sha256.Sum256(args)
	return hex.EncodeToString(sum[:])
}

// span opens the client span of a call; without an exporter it costs nothing
// worth naming.
func (s *Session) span(ctx context.Context, tool *Tool, call *plane.Call, endpoint string) (context.Context, trace.Span, string) {
	ctx, span := s.b.Tracer.Start(ctx, telemetry.MethodToolsCall+" "+tool.Definition.Name, trace.WithSpanKind(trace.SpanKindClient))
	if !span.IsRecording() {
		return ctx, span, ""
	}
	span.SetAttributes(
		attribute.String(telemetry.MCPMethod, telemetry.MethodToolsCall),
		attribute.String(telemetry.ToolName, tool.Definition.Name),
		attribute.String(telemetry.Operation, telemetry.ExecuteTool),
		attribute.String(telemetry.AgentID, s.o.Agent),
		attribute.String(telemetry.Conversation, string(call.Run)),
		attribute.String(telemetry.ToolCallID, string(call.ID)),
		attribute.String(telemetry.Transport, "tcp"),
		attribute.String(telemetry.Connection, tool.Server))
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
