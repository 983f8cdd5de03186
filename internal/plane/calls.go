package plane

import (
	"encoding/json"
	"time"
)

// CallState is where a call stands in the ledger.
type CallState string

// The states of a call; see ledger for the machine.
const (
	CallPlanned          CallState = "planned"
	CallDispatched       CallState = "dispatched"
	CallAwaitingApproval CallState = "awaiting_approval" // a person is asked first
	CallAwaitingInput    CallState = "awaiting_input"    // the server asked its caller for something first
	CallSucceeded        CallState = "succeeded"
	CallFailed           CallState = "failed"
	CallUnknown          CallState = "unknown"
	CallResolvedDone     CallState = "resolved_done"
	CallResolvedNotDone  CallState = "resolved_not_done"
)

// Final reports that nothing but a person's resolution changes the state.
func (s CallState) Final() bool {
	return s != CallPlanned && s != CallDispatched && s != CallAwaitingInput && s != CallAwaitingApproval
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
	Bytes       int           // of the server's answer
	Origin      ErrorOrigin   // of its failure
	Upstream    time.Duration // how long the server was waited for
	Replaces    CallID        // the unknown call that a person sent again
	Fence       int64         // of the run, when it was planned
	ResolvedBy  string
	Note        string
	Target      string     // what an effect is about; a claim on it holds others
	Spec        string     // the argument path that named the target; empty for the tool itself
	Idem        string     // the idempotency key; empty for the id
	Approval    ApprovalID // that the dispatch spends
	Evidence    EvidenceID // the reservation of its source, of own runs
	Result      string     // hex SHA-256 of what the server answered
	Proof       string     // what a completion contract recorded, as JSON
	Owner       string     // the process that sends a session's call
	Hold        string     // why a settled effect keeps its claim; not stored
	Nonce       string     // of its open attempt; not stored with it
	Waited      bool       // it asked for input once: its row is there whatever its class; not stored
}

// Key is the idempotency key of the logical call: one that a person had sent again
// keeps that of the call it replaces.
func (c *Call) Key() string {
	if c.Idem != "" {
		return c.Idem
	}
	return string(c.ID)
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

	Parent       RunID // the pipeline's run that it is a round of
	Round        int   // counted from 1; 0 for a run of its own
	Conversation string
	Labels       Labels // of what it has read

	Revision int64        // of the agent, when the run began
	Attached []Attachment // the declared servers that it had
}

// ThreadOf is the conversation of a run that belongs to no thread: its caller's own.
func ThreadOf(who Principal) string {
	return "person:" + who.ID
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
	EventRunStarted        = "run_started"
	EventRunNote           = "run_note"
	EventTurnStarted       = "turn_started"
	EventText              = "text"
	EventTextDelta         = "text_delta" // broadcast only
	EventToolCall          = "tool_call"
	EventToolResult        = "tool_result"
	EventSpanStart         = "span_start"
	EventSpanEnd           = "span_end"
	EventApprovalRequested = "approval_requested"
	EventApprovalDecided   = "approval_decided"
	EventCallUnknown       = "call_unknown"
	EventCallResolved      = "call_resolved"
	EventUsage             = "usage"
	EventRunWaiting        = "run_waiting"
	EventRunResumed        = "run_resumed"
	EventRunEnded          = "run_ended"
)

// CallFilter says which calls; the zero value of a field is any. Before pages: only
// calls with lower ids.
type CallFilter struct {
	Agent, Server, State string
	Connection           ConnectionID
	Run                  RunID
	Before               CallID
	Since                time.Time // zero for all
	Limit                int
}

// RunFilter says which runs are listed; what is empty lets all through.
type RunFilter struct {
	Principal, Agent string
	State            RunState
	Before           RunID
	Limit            int
}
