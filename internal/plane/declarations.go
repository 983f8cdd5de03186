package plane

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// Transport is how a server is spoken to.
type Transport string

// The transports of a declaration.
const (
	HTTP  Transport = "http"
	Stdio Transport = "stdio"
)

// Declaration is the portable description of a server. It carries no secret and is
// not a connection. Its JSON is what the store keeps.
type Declaration struct {
	Name        string            `json:"name"`
	Transport   Transport         `json:"transport"`
	URL         string            `json:"url,omitempty"`
	Command     string            `json:"command,omitempty"`
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"` // every value is the placeholder
	Destination string            `json:"destination,omitempty"`
	Agents      []string          `json:"agents,omitempty"` // empty: every open agent
	Auth        Auth              `json:"auth"`
	Allow       []string          `json:"allow,omitempty"` // globs of tools
	Deny        []string          `json:"deny,omitempty"`
	Default     bool              `json:"default,omitempty"` // the registry's: attached without being named
	Description string            `json:"description,omitempty"`
	Icon        string            `json:"icon,omitempty"`
	Link        string            `json:"source,omitempty"` // where to read about it
}

// Command is what starts a stdio server.
type Command struct {
	Command     string   `json:"command"`
	Args        []string `json:"args,omitempty"`
	Env         []string `json:"env,omitempty"`         // names; every value is the placeholder
	Destination string   `json:"destination,omitempty"` // all that it may reach
}

const stdioScheme = "stdio://"

// Address is where the server is: its URL or, of a stdio server, a name for exactly what
// starts it, so that another command is another address.
func (d *Declaration) Address() string {
	if d.Transport != Stdio {
		return d.URL
	}
	b, err := json.Marshal([]any{d.Command, d.Args, slices.Sorted(maps.Keys(d.Env))})
	if err != nil { // strings always marshal
		return ""
	}
	sum := sha256.Sum256(b)
	base := SlugOf(d.Command[strings.LastIndexByte(d.Command, '/')+1:])
	if base == "" {
		base = "command"
	}
	return stdioScheme + base + "/" + hex.EncodeToString(sum[:8])
}

// Starts is what starts a stdio server; nil for any other.
func (d *Declaration) Starts() *Command {
	if d.Transport != Stdio {
		return nil
	}
	return &Command{Command: d.Command, Args: d.Args, Env: slices.Sorted(maps.Keys(d.Env)), Destination: d.Destination}
}

// Layer is where a declaration was found, least specific first.
type Layer string

// The layers of the merge (design D3), in their order.
const (
	LayerRegistry   Layer = "registry"
	LayerAgent      Layer = "agent"
	LayerRepository Layer = "repository"
	LayerSkill      Layer = "skill"
	LayerTeam       Layer = "team"
)

// Declared is a declaration with where it comes from.
type Declared struct {
	Declaration
	Layer      Layer     `json:"layer"`
	From       string    `json:"from"`                  // file, commit or who said it
	At         time.Time `json:"at,omitzero"`           // when it was written
	AcceptedBy string    `json:"accepted_by,omitempty"` // the person, for a team's
	Admin      bool      `json:"admin,omitempty"`       // that was an org admin
}

// Attachment is what became of a declaration for one agent and team.
type Attachment struct {
	Name        string       `json:"name"`
	Destination string       `json:"destination,omitempty"`
	Layer       Layer        `json:"layer"`
	From        string       `json:"from"`
	AcceptedBy  string       `json:"accepted_by,omitempty"`
	Connection  ConnectionID `json:"connection,omitempty"` // what it resolves to
	Scope       Scope        `json:"-"`                    // whose connection it is
	Dropped     string       `json:"dropped,omitempty"`    // why it is not attached
	OtherAgents bool         `json:"-"`                    // which is that it is for others
	Overrides   []Layer      `json:"overrides,omitempty"`  // where else the name was declared
}

// AgentTeam is an agent at work for a team, or, where Team is empty, for none.
type AgentTeam struct{ Agent, Team string }

// ProposalState is where a team's declaration stands.
//
//	proposed -> curated | forgotten | expired
//	curated  -> forgotten
type ProposalState string

// The states.
const (
	Proposed  ProposalState = "proposed"
	Curated   ProposalState = "curated"
	Forgotten ProposalState = "forgotten"
	Expired   ProposalState = "expired"
)

// Proposal is a declaration that somebody stored: in the registry, where Team is empty,
// or for a team.
type Proposal struct {
	ID          string
	Team        string
	Declaration Declaration
	State       ProposalState
	Source      string // agent:<team>/<agent> or person:<id>
	Why         string // in the words of who proposed it
	Found       json.RawMessage
	CreatedAt   time.Time
	ExpiresAt   time.Time // of one that waits
	DecidedAt   time.Time
	DecidedBy   string // the person
	ByAdmin     bool   // who was an org admin
}

// Found is what a look at a proposed server told.
type Found struct {
	At     time.Time   `json:"at"`
	Health Health      `json:"health"`
	Detail string      `json:"detail,omitempty"`
	Next   string      `json:"next,omitempty"` // what to do where it could not be asked
	Tools  []FoundTool `json:"tools,omitempty"`
	SignIn Auth        `json:"sign_in,omitempty"` // how it wants to be signed in to
	Scopes []string    `json:"scopes,omitempty"`  // that it will ask for
}

// FoundTool is one tool of it.
type FoundTool struct {
	Name        string   `json:"name"`
	Hint        string   `json:"hint"` // read-only, may write, may destroy, none
	Flags       []string `json:"flags,omitempty"`
	Description string   `json:"description,omitempty"`
}

// Injection is where a destination's secret goes.
type Injection struct {
	Kind   string `json:"kind"`             // bearer, header, basic, query, body, aws_sigv4, hmac
	Name   string `json:"name,omitempty"`   // of the header or parameter
	User   string `json:"user,omitempty"`   // of basic
	Prefix string `json:"prefix,omitempty"` // before the secret, or the signature, in a header

	Region  string   `json:"region,omitempty"`  // of aws_sigv4: the only one; empty for any
	Service string   `json:"service,omitempty"` // the same
	Over    []string `json:"over,omitempty"`    // of hmac: method, path, query, timestamp, body
	Stamp   string   `json:"stamp,omitempty"`   // of hmac: the header that tells the timestamp
}

// ReadsBody reports that a request's body is read before it is sent.
func (in *Injection) ReadsBody() bool {
	return in.Kind == "body" || in.Kind == "aws_sigv4" || in.Kind == "hmac"
}

// Destination is a named host that an agent's policy may let it reach, and how the
// secret gets into a request to it.
type Destination struct {
	Name    string    `json:"name"`
	Hosts   []string  `json:"hosts"`
	Port    int       `json:"port"`
	Methods []string  `json:"methods,omitempty"` // empty: every one
	Paths   []string  `json:"paths,omitempty"`   // globs; empty: every one
	Inject  Injection `json:"inject"`
	Secret  string    `json:"inject_secret,omitempty"` // secret:<ref>, connection:<id>, github_app:<ref>
	Needs   []string  `json:"needs,omitempty"`         // repo
	Tunnel  bool      `json:"tunnel,omitempty"`        // passed through, not looked into, nothing injected
	Built   bool      `json:"built_in,omitempty"`
}

// NeedsRepo reports that a team without a repository cannot use it.
func (d *Destination) NeedsRepo() bool {
	for _, n := range d.Needs {
		if n == "repo" {
			return true
		}
	}
	return false
}

// TeamSecret is a secret that a destination names by its ref, sealed.
type TeamSecret struct {
	Team, Ref string // Team is empty for the org's own
	Rev       int64
	Blob      []byte
	By        string
	At        time.Time
}

// Layered is what was set at run time over an agent's config.
type Layered struct {
	Agent   string
	Servers []string // names of declarations, beside those of config
	Rev     int64
	By      string
	At      time.Time
}

// RepoSnapshot is what a team's repository declares, at one commit of its default
// branch.
type RepoSnapshot struct {
	Team     string
	URL      string // that it was read from
	Branch   string
	Commit   string
	Declared []Declared
	Wanted   []string // names of registry entries that skills want
	Problems []string // files that could not be used, and why
	Mark     string   // the placeholder that env was held to
	At       time.Time
	Detail   string // why the last look failed; empty when it did not
}

// MirrorEntry is a server of an upstream registry, as it came.
type MirrorEntry struct {
	Name, Version string
	Latest        bool
	Body          []byte // the entry, server and _meta
	UpdatedAt     time.Time
}

// NewProposalID makes an id; now gives its time part.
func NewProposalID(now time.Time) string { return newID("prp_", now) }
