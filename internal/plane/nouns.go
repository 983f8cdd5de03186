package plane

import (
	"encoding/json"
	"time"
)

// ScopeKind is the kind of owner of a setting, highest trust first.
type ScopeKind string

// The tiers, in order of trust.
const (
	ScopeOrg   ScopeKind = "org"
	ScopeAgent ScopeKind = "agent"
	ScopeTeam  ScopeKind = "team"
	ScopeUser  ScopeKind = "user"
)

// Scope says who owns a setting: org, agent:<slug>, team:<id> or user:<person>.
type Scope struct {
	Kind ScopeKind
	Name string // empty for org
}

// String is the scope as people write it.
func (s Scope) String() string {
	if s.Kind == ScopeOrg {
		return string(ScopeOrg)
	}
	return string(s.Kind) + ":" + s.Name
}

// Rank orders scopes by trust; a lower rank wins a name.
func (s Scope) Rank() int {
	switch s.Kind {
	case ScopeOrg:
		return 0
	case ScopeAgent:
		return 1
	case ScopeTeam:
		return 2
	}
	return 3
}

// Trust says how far an agent may be reached by connections that admins did not
// choose for it.
type Trust string

// An agent that does not say otherwise is guarded.
const (
	Open    Trust = "open"
	Guarded Trust = "guarded"
)

// Agent is a slug, a model, a prompt, a toolset and a trust.
type Agent struct {
	Slug        string
	Model       string
	Prompt      string
	Trust       Trust
	Tools       []string // built-in tools
	MCP         bool     // D17: off makes its model requests free of every trace of MCP
	Description string
	Operators   []string // who may write its scope: a verified email, or iss|sub

	Throttle Throttle

	Servers      []string // names of declarations that are attached
	Destinations []string // named hosts that it may reach
	Revision     int64    // raised by what people attach at run time; 1 for config alone

	Interactive bool       // people are at hand: effects that may destroy ask first
	Approvals   []ToolMode // by pattern
	Taint       TaintUse   // empty for warn
	Rounds      []string   // agents of a pipeline's child runs, in order

	// What clients from elsewhere get of it.
	Results Results   // empty for raw
	Names   Names     // empty for prefixed
	Search  SearchUse // empty for auto
}

// Names says under which names an agent's clients see tools.
type Names string

// Prefixed names say the server; a bare one is the tool's own where it is free.
const (
	Prefixed Names = "prefixed"
	Bare     Names = "bare"
)

// BareName is a name that a tool keeps for an agent's clients.
type BareName struct {
	Name       string
	Connection ConnectionID
	Tool       string
}

// SearchUse says when an agent is offered a search over its tools instead of the
// tools.
type SearchUse string

// Auto is above the limit on offered tools.
const (
	SearchAuto SearchUse = "auto"
	SearchOn   SearchUse = "on"
	SearchOff  SearchUse = "off"
)

// Results is the form in which a session hands on what a server said.
type Results string

// Own runs are always marked; an ingress agent chooses.
const (
	Marked Results = "marked"
	Raw    Results = "raw"
)

// Class says whether a tool may be repeated.
type Class string

// Anything that nobody reviewed is an effect.
const (
	Effect Class = "effect"
	Query  Class = "query"
)

// Definition is one tool exactly as the server sent it, with what we read of it.
type Definition struct {
	Name         string // the server's own name
	Raw          json.RawMessage
	Fingerprint  string // lower-case hex SHA-256 over the canonical form
	Description  string // clipped to the stored bound
	InputSchema  json.RawMessage
	OutputSchema json.RawMessage
	ReadOnly     bool // readOnlyHint: true
	Destructive  bool // destructiveHint: true
	Harmless     bool // destructiveHint: false, or a plain readOnlyHint
	Class        Class
	Reviewed     bool   // a person looked at this very definition
	Contract     string // the completion contract that a person reviewed it for
	Held         string // why it is kept out until a person accepts it; empty for offered
	Unsupported  string // why it is shown and not offered; empty for supported
	ParamHeaders []ParamHeader
}

// SideEffectFree says that a call may run beside others: the server claims it
// only reads. It never says that a call may be repeated.
func (d *Definition) SideEffectFree() bool { return d.ReadOnly && !d.Destructive }

// ShownFingerprint is how many digits of a fingerprint people are shown, and the
// least that they give: 128 bits. A server writes both definitions, so that with
// fewer it could find two alike and have the second accepted for the first.
const ShownFingerprint = 32

// ShortFingerprint is a fingerprint as people are shown it.
func ShortFingerprint(f string) string { return f[:min(ShownFingerprint, len(f))] }

// ParamHeader is an argument that 2026-07-28 mirrors into a request header.
type ParamHeader struct {
	Path []string // property names from the root of the arguments
	Name string   // the part after Mcp-Param-
	Type string   // string, number, integer, boolean
}

// Health is what the last discovery of a connection gave.
type Health string

// Catalog health.
const (
	HealthPending      Health = "pending"
	HealthOK           Health = "ok"
	HealthUnavailable  Health = "unavailable"
	HealthUnauthorized Health = "unauthorized"
)

// Catalog is what one connection offers: a stored snapshot with its health.
type Catalog struct {
	Connection   ConnectionID
	Version      int64 // of the connection it was captured under
	Revision     int64
	Health       Health
	Detail       string
	CapturedAt   time.Time
	FailedAt     time.Time
	Instructions string
	Server       string // name and version the server gave itself
	Definitions  []Definition
	Resources    []json.RawMessage
	Templates    []json.RawMessage // of resources
	Prompts      []json.RawMessage

	InstructionsBefore string    // what they were before they changed
	InstructionsAt     time.Time // when they changed; zero for never
}

// Stale reports that the catalog was captured under an older configuration.
func (c *Catalog) Stale(version int64) bool { return c.CapturedAt.IsZero() || c.Version != version }
