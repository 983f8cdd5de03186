// Package command holds every command of Patchbay once: typed input, typed
// output, and its text. CLI, HTTP and MCP parse into the same input and get the
// same output and refusals; they only render. Inputs carry no tags that read an
// environment or a disk, since those would be the server's.
package command

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/ledger"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/run"
)

// Style is how text is drawn.
type Style struct {
	Terminal bool // aligned and bounded; else tab-separated and whole
	Color    bool
	Width    int
	Now      time.Time
}

// Output is what a command returns: JSON by its fields, text by Text.
type Output interface {
	Text(w io.Writer, s Style)
}

// About is what a command says of itself.
type About struct {
	Name      string // "mcp.list"
	Summary   string
	ReadOnly  bool
	Right     plane.Rights // what a token needs; a person's gates are the command's own
	Example   string       // a line as a person would type it
	Alias     string       // another name of the verb
	Untrusted bool         // the output holds text that a server wrote
}

// Command is one command.
type Command struct {
	About
	Input  func() any // a pointer to the zero input
	Output func() Output
	// Run does it. A token without the command's right is refused here.
	Run func(ctx context.Context, who plane.Principal, in any) (Output, error)
	// Settle waits for what finishes later and returns the second reply, which may
	// be empty. It is nil where nothing does.
	Settle func(ctx context.Context, out Output) (string, error)
}

// Runs is the part of the runtime that commands use.
type Runs interface {
	Begin(ctx context.Context, who plane.Principal, agent, prompt string) (plane.Run, error)
	List(ctx context.Context, f plane.RunFilter) ([]plane.Run, error)
	Show(ctx context.Context, id plane.RunID) (run.View, error)
	Events(ctx context.Context, id plane.RunID, after int64, limit int) ([]plane.Event, error)
	Control
	Proven
}

// Control changes what becomes of a run.
type Control interface {
	Cancel(ctx context.Context, who plane.Principal, id plane.RunID) error
	Resolve(ctx context.Context, who plane.Principal, id plane.CallID, as ledger.Resolution, note string) error
	Decide(ctx context.Context, who plane.Principal, id plane.ApprovalID, as plane.Decision, note string) (plane.Approval, error)
}

// Catalogs are the snapshots that commands show.
type Catalogs interface {
	Get(id plane.ConnectionID) *plane.Catalog
	Refresh(ctx context.Context, g policy.Grant) error
}

// Sessions opens the bridge.
type Sessions interface {
	Open(ctx context.Context, o bridge.Opening) (*bridge.Session, error)
}

// Deps is what the commands stand on.
type Deps struct {
	Runs     Runs
	Calls    func(ctx context.Context, id plane.CallID) (plane.Call, error)
	Catalogs Catalogs
	Bridge   Sessions
	Policy   func() *policy.Snapshot
	Models   func(name string) string // describes a model for people
	Info     func(ctx context.Context, who plane.Principal) Status
	AgentURL func(slug string) string // where clients of an agent connect
	MCP      bool                     // the mcp commands answer at all
	Consent  Consent
	Registry Declarations
	Secrets  Secrets
	Gateway  Gateway
	Egress   func(ctx context.Context, f plane.EgressFilter) ([]plane.EgressRecord, error)
	Stats    func(ctx context.Context, since time.Time, slot time.Duration, f plane.CallFilter) (plane.CallStats, error)
	Tokens   Tokens
	People   People
	Clients  Clients
	Keys     Keys
	Reload   func(ctx context.Context) (string, error) // reads the config file again
	SignIn   func() (string, error)                    // a new one-time sign-in link
	Limits   plane.Limits
	Pins     func(ctx context.Context, id plane.ConnectionID) ([]plane.Pin, error)
	Reviews  func(ctx context.Context, id plane.ConnectionID) ([]plane.Review, error)
	Window   func(model string) int // of a model, in tokens
	Records  Records
	Renew    func(ctx context.Context) error           // makes the policy anew of what is stored
	Now      func() time.Time                          // the time that everything compares with
	Unseal   func(a *plane.Approval) string            // the arguments that an approval is about
	Sign     func(msg []byte) (key string, sig []byte) // by the ring
	View     func(ctx context.Context) error           // takes in what others changed; nil where nobody else is
}

// Registry is the set of commands.
type Registry struct {
	byName map[string]*Command
	names  []string
}

// New makes the commands.
func New(d Deps) *Registry {
	r := &Registry{byName: map[string]*Command{}}
	for _, c := range slices.Concat(statusCommands(d), runCommands(d), mcpCommands(d), connectCommands(d), manageCommands(d), governCommands(d), driftCommands(d), adminCommands(d), clientCommands(d), peopleCommands(d), approvalCommands(d), callCommands(d), auditCommands(d), evidenceCommands(d), registryCommands(d), proposalCommands(d), destinationCommands(d), importCommands(d), egressCommands(d), []*Command{statsCommand(d)}) {
		r.byName[c.Name] = c
		r.names = append(r.names, c.Name)
	}
	slices.Sort(r.names)
	return r
}

// Get finds a command.
func (r *Registry) Get(name string) (*Command, error) {
	c, ok := r.byName[name]
	if !ok {
		e := plane.Errorf(plane.NotFound, "There is no command %q.", name)
		if n := plane.Nearest(name, r.names); n != "" {
			e.Next = "Did you mean " + n + "?"
		}
		return nil, e
	}
	return c, nil
}

// Perform runs a command whose output is a *T: every surface but those that only hand bytes
// on does so here.
func Perform[T any](ctx context.Context, r *Registry, who plane.Principal, name string, in any) (*T, error) {
	cmd, err := r.Get(name)
	if err != nil {
		return nil, err
	}
	out, err := cmd.Run(ctx, who, in)
	if err != nil {
		return nil, err
	}
	got, ok := any(out).(*T)
	if !ok {
		return nil, plane.Errorf(plane.Internal, "The command %s gives something else.", name)
	}
	return got, nil
}

// All returns the commands in order of their names.
func (r *Registry) All() []*Command {
	out := make([]*Command, 0, len(r.names))
	for _, n := range r.names {
		out = append(out, r.byName[n])
	}
	return out
}

// define makes a Command of a typed function.
func define[I, O any, PO interface {
	*O
	Output
}](about About, fn func(ctx context.Context, who plane.Principal, in *I) (PO, error)) *Command {
	return &Command{About: about,
		Input:  func() any { return new(I) },
		Output: func() Output { return PO(new(O)) },
		Run: func(ctx context.Context, who plane.Principal, in any) (Output, error) {
			if !who.Rights.Has(about.Right) {
				e := plane.Errorf(plane.Forbidden, "The token lacks the scope %s.", strings.Join(about.Right.Names(), " ")).
					Then("A person makes one that has it: patchbay tokens create --scopes " + strings.Join(about.Right.Names(), ","))
				if who.Kind == plane.KindAgent {
					e.Message, e.Next = "An agent token runs no commands; it opens its agent's MCP endpoint.", "Use an API token, pbt_…"
				}
				return nil, e
			}
			if err := normalize(in); err != nil {
				return nil, err
			}
			out, err := fn(ctx, who, in.(*I))
			if err != nil {
				return nil, err
			}
			return out, nil
		}}
}

// connection finds what an operator or an agent's user means by a server's
// name: "linear", or "scope/linear" where one name stands in several scopes.
func connection(s *policy.Snapshot, who plane.Principal, name string) (policy.Attached, error) {
	var found []policy.Attached
	var names []string
	for _, a := range s.Visible(who) {
		full := a.Scope.String() + "/" + a.Slug
		names = append(names, a.Slug)
		own := a.Scope.Kind == plane.ScopeUser && "me/"+a.Slug == name
		if a.Slug == name || full == name || own || string(a.ID) == name {
			found = append(found, a)
		}
	}
	switch {
	case len(found) == 1, len(found) > 1 && (found[0].Scope.Rank() < found[1].Scope.Rank() || found[0].Scope == found[1].Scope):
		return found[0], nil
	case len(found) > 1:
		return policy.Attached{}, plane.Errorf(plane.InvalidInput, "%s stands in several scopes; say which, as in %s/%s.", name, found[0].Scope, name).At("name")
	}
	e := plane.Errorf(plane.NotFound, "There is no server %q.", name).At("name").Then("patchbay mcp list")
	if n := plane.Nearest(name, names); n != "" {
		e.Next = "Did you mean " + n + "?"
	}
	return policy.Attached{}, e
}

func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	r := []rune(s)
	if n > 0 && len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
