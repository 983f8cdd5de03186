package plane

import "time"

// ApprovalMode says whether a call of a tool waits for a person.
type ApprovalMode string

// Always lets a call pass, Ask has it wait, Block refuses it.
const (
	Always ApprovalMode = "always"
	Ask    ApprovalMode = "ask"
	Block  ApprovalMode = "block"
)

// ToolMode is what an agent's config says of the tools that a pattern names:
// mcp__<server>__<tool>, where * stands for any run of characters.
type ToolMode struct {
	Pattern string
	Mode    ApprovalMode
}

// Permission is the name by which patterns know a tool.
func Permission(server, tool string) string { return "mcp__" + server + "__" + tool }

// Rule is a person's standing word on one tool, made by "always allow". It holds
// for the definition that was looked at and for no other.
type Rule struct {
	ID          string
	Agent       string
	Connection  ConnectionID
	Server      string
	Tool        string
	Fingerprint string
	Mode        ApprovalMode
	By          string
	At          time.Time
}

// ApprovalState is where an approval stands:
//
//	pending ──approve──> approved ──spend──> spent
//	   │ └──deny──> denied    └──expire──> expired
//	   └──expire──> expired
type ApprovalState string

// The states of an approval.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalDenied   ApprovalState = "denied"
	ApprovalExpired  ApprovalState = "expired"
	ApprovalSpent    ApprovalState = "spent"
)

// Approval is a person's word on one call, asked for and given. It is good once,
// for exactly what it says: the dispatch that spends it holds every field to the
// call's.
type Approval struct {
	ID          ApprovalID
	Call        CallID
	Run         RunID // or the session
	Agent       string
	Principal   string // who asked for the run
	Connection  ConnectionID
	Version     int64
	Server      string
	Tool        string
	Alias       string
	Fingerprint string
	ArgsDigest  string
	Arguments   []byte // sealed in the store
	Why         string // why somebody is asked
	State       ApprovalState
	AskedAt     time.Time
	ExpiresAt   time.Time
	DecidedAt   time.Time
	DecidedBy   string
	Note        string
}

// Fits reports whether the approval is about this very call.
func (a *Approval) Fits(c *Call) bool {
	return a.Call == c.ID && a.Connection == c.Connection && a.Version == c.Version && a.Tool == c.Tool &&
		a.Fingerprint == c.Fingerprint && a.ArgsDigest == c.ArgsDigest && a.Agent == c.Agent
}

// Decision is what a person says of a call that waits for them.
type Decision string

// Decisions, as people write them. AlwaysAllow approves and makes a rule.
const (
	Approve     Decision = "approve"
	Deny        Decision = "deny"
	AlwaysAllow Decision = "always-allow"
)

// Refusal is what a caller is told of a call that a person denied.
func (a *Approval) Refusal() string {
	text := "A person denied this call; it was not sent."
	if a.Note != "" {
		text += " Their note: " + a.Note
	}
	return text
}

// Claim keeps a target from further effects: of a call under way on a target that an
// operator named, or of one whose outcome nobody knows.
type Claim struct {
	Connection ConnectionID
	Target     string
	Call       CallID
	Tool       string
	Spec       string // the argument path that named the target; empty for the tool itself
	Why        string
	At         time.Time
}

// HeldError says that a claim keeps a call from being sent.
type HeldError struct {
	Claim
	State CallState // of the call that holds it
}

// Error is for the log.
func (e *HeldError) Error() string { return "held by " + string(e.Call) }
