package plane

import (
	"encoding/json"
	"time"
)

// CallState is where a call stands in the ledger.
type CallState string

// The states of a call; see ledger for the machine.
const (
	CallPlanned         CallState = "planned"
	CallDispatched      CallState = "dispatched"
	CallAwaitingInput   CallState = "awaiting_input" // the server asked its caller for something first
	CallSucceeded       CallState = "succeeded"
	CallFailed          CallState = "failed"
	CallUnknown         CallState = "unknown"
	CallResolvedDone    CallState = "resolved_done"
	CallResolvedNotDone CallState = "resolved_not_done"
)

// Final reports that nothing but a person's resolution changes the state.
func (s CallState) Final() bool {
	return s != CallPlanned && s != CallDispatched && s != CallAwaitingInput
}

// Call is one tool call: a row in the ledger, with attempts under it.
type Call struct {
	ID          CallID
	Run         RunID // or the session, for callers that are not runs
	Agent       string
	Principal   string
	Connection  ConnectionID
	Version     int64 // of the connection, when it was offered
	Server      string
	Tool        string // the server's own name
	Alias       string // the name the model used
	ToolUse     string // the model's id of the call
	Fingerprint string
	Class       Class
	ArgsDigest  string // hex SHA-256 of the arguments; they themselves stand in the run's sealed messages
	State       CallState
	Reason      string // why it ended as it did, one sentence
	Attempts    int
	PlannedAt   time.Time
	DoneAt      time.Time
	Bytes       int    // of the server's answer
	Replaces    CallID // the unknown call that a person sent again
	Fence       int64  // of the run, when it was planned
	ResolvedBy  string
	Note        string
	Waited      bool // it asked for input once: its row is there whatever its class; not stored
}

// Attempt is one time the bytes of a call went out, or were about to.
type Attempt struct {
	Call    CallID
	N       int
	At      time.Time
	DoneAt  time.Time
	Outcome string // empty while it is under way
	Detail  string
}

// RunState is where a run stands.
type RunState string

// The states of a run.
const (
	RunQueued    RunState = "queued"
	RunRunning   RunState = "running"
	RunWaiting   RunState = "waiting"
	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// Ended reports that the run will not go on.
func (s RunState) Ended() bool {
	return s == RunSucceeded || s == RunFailed || s == RunCancelled
}

// Run is one agent's work on one request.
type Run struct {
	ID         RunID
	Agent      string
	Principal  string    // the caller's id
	Caller     Principal // whose connections it may use
	Prompt     string
	State      RunState
	WaitingFor string // reconcile, while it waits for a person
	Reason     string
	Answer     string
	Turns      int
	Fence      int64 // raised by every claim; a write under an older one is refused
	Owner      string
	LeaseUntil time.Time
	CreatedAt  time.Time
	EndedAt    time.Time
	Spent      time.Duration // at work, waiting for a person not counted
	Cancel     bool          // somebody asked it to stop
}

// Message is one entry of a run's transcript, in the model's neutral form.
type Message struct {
	Seq   int    `json:"-"`
	Role  string `json:"role"` // user or assistant
	Parts []Part `json:"parts"`
}

// Part is a piece of a message: exactly one of the three is set.
type Part struct {
	Text    string       `json:"text,omitempty"`
	ToolUse *ToolUse     `json:"tool_use,omitempty"`
	Result  *ToolOutcome `json:"result,omitempty"`
	Extra   []byte       `json:"extra,omitempty"` // a provider's own part, to be sent back as it came
}

// ToolUse is a model's wish to call a tool.
type ToolUse struct {
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	Call  CallID          `json:"call,omitempty"`
}

// ToolOutcome is what the model is told of a call.
type ToolOutcome struct {
	ID      string `json:"id"`
	Text    string `json:"text"`
	IsError bool   `json:"is_error,omitempty"`
}

// ToolSpec is a tool as a model sees it.
type ToolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"input_schema"`
}

// Event is one fact of a run, in order. A reader ignores kinds it does not know.
type Event struct {
	Seq  int64           `json:"seq,omitempty"` // absent on deltas, which are not stored
	At   time.Time       `json:"at"`
	Run  RunID           `json:"run"`
	Turn int             `json:"turn"`
	Kind string          `json:"kind"`
	Span string          `json:"span,omitempty"`
	Data json.RawMessage `json:"data"`
}

// Event kinds that this version writes.
const (
	EventRunStarted   = "run_started"
	EventRunNote      = "run_note"
	EventTurnStarted  = "turn_started"
	EventText         = "text"
	EventTextDelta    = "text_delta" // broadcast only
	EventToolCall     = "tool_call"
	EventToolResult   = "tool_result"
	EventSpanStart    = "span_start"
	EventSpanEnd      = "span_end"
	EventCallUnknown  = "call_unknown"
	EventCallResolved = "call_resolved"
	EventUsage        = "usage"
	EventRunWaiting   = "run_waiting"
	EventRunResumed   = "run_resumed"
	EventRunEnded     = "run_ended"
)

// AuditEntry is a decision that must be on record: what was decided, by whom,
// about what, and a digest of the rest.
type AuditEntry struct {
	At       time.Time
	Who      string
	Action   string
	What     string
	Decision string
	Digest   string
}
