package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
	"patchbay/internal/secret"
)

// ProposeInput is a server that somebody wants a team to have.
type ProposeInput struct {
	Declaration string `arg:"" json:"declaration" help:"The declaration, YAML or JSON; the command line reads it from standard input for -."`
	Why         string `json:"why,omitempty" help:"What it is needed for."`
	Team        string `json:"team,omitempty" help:"The team; left out, the one you are in."`
}

// ProposalInput names a team's declaration.
type ProposalInput struct {
	Name string `arg:"" json:"name" help:"Name of the server." predictor:"proposal"`
	ID   string `json:"id,omitempty" help:"The proposal that was looked at, prp_…; another one is left alone."`
	Team string `json:"team,omitempty" help:"The team; left out, the one you are in."`
}

// ProposalShowInput names a declaration and says whether to ask its server.
type ProposalShowInput struct {
	Name   string `arg:"" json:"name" help:"Name of the server." predictor:"proposal"`
	Team   string `json:"team,omitempty" help:"The team; left out, the one you are in."`
	NoLook bool   `json:"no_look,omitempty" help:"Do not ask the server what it offers."`
}

// ProposalsListInput says which.
type ProposalsListInput struct {
	Team string `json:"team,omitempty" help:"The team; left out, the one you are in."`
	All  bool   `json:"all,omitempty" help:"Those that ended too."`
}

// ProposalRow is one declaration of a team.
type ProposalRow struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Team        string            `json:"team"`
	State       string            `json:"state"`  // proposed, curated, forgotten, expired
	Source      string            `json:"source"` // agent:<team>/<agent> or person:<id>
	Why         string            `json:"why,omitempty"`
	Declaration plane.Declaration `json:"declaration"`
	CreatedAt   time.Time         `json:"created_at"`
	ExpiresAt   time.Time         `json:"expires_at,omitzero"`
	DecidedAt   time.Time         `json:"decided_at,omitzero"`
	DecidedBy   string            `json:"decided_by,omitempty"`
}

func proposalRow(p plane.Proposal) ProposalRow {
	r := ProposalRow{ID: p.ID, Name: p.Declaration.Name, Team: p.Team, State: string(p.State), Source: p.Source, Why: p.Why, Declaration: p.Declaration, CreatedAt: p.CreatedAt, DecidedAt: p.DecidedAt, DecidedBy: p.DecidedBy}
	if p.State == plane.Proposed {
		r.ExpiresAt = p.ExpiresAt
	}
	return r
}

// Text says what became of it.
func (o *ProposalRow) Text(w io.Writer, s Style) {
	if !s.Terminal {
		return
	}
	switch plane.ProposalState(o.State) {
	case plane.Proposed:
		fmt.Fprintf(w, "%s is proposed to %s. A member accepts it: patchbay mcp accept %s --team %s\n", o.Name, o.Team, o.Name, o.Team)
	case plane.Curated:
		fmt.Fprintf(w, "%s is accepted for %s.\n", o.Name, o.Team)
	default:
		fmt.Fprintf(w, "%s is %s.\n", o.Name, o.State)
	}
}

// ProposalsList are declarations of a team.
type ProposalsList struct {
	Proposals []ProposalRow `json:"proposals"`
}

// Text draws them.
func (o *ProposalsList) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, p := range o.Proposals {
		rows = append(rows, []string{p.Name, s.state(p.State), bridge.Visible(or(p.Declaration.URL, p.Declaration.Command)), bridge.Visible(p.Source), relative(s, p.CreatedAt), p.DecidedBy, bridge.Visible(oneLine(p.Why, 60))})
	}
	table(w, s, []string{"NAME", "STATE", "SERVER", "FROM", "AT", "DECIDED BY", "WHY"}, rows)
}

// ProposalShow is what a person who decides is shown.
type ProposalShow struct {
	ProposalRow
	Differs []string     `json:"differs,omitempty"` // from the registry's entry of that name
	Listed  bool         `json:"in_registry"`
	Changes []string     `json:"changes,omitempty"` // of what is in force
	Found   *plane.Found `json:"found,omitempty"`
}

// Text draws the declaration, who asks and why, what the server offers, and what differs
// from the registry's.
func (o *ProposalShow) Text(w io.Writer, s Style) {
	io.WriteString(w, bridge.Visible(describeDeclaration(&o.Declaration)))
	fmt.Fprintf(w, "state\t%s\nasked for by\t%s, %s\n", s.state(o.State), bridge.Visible(o.Source), s.ago(o.CreatedAt))
	if o.Why != "" {
		fmt.Fprintf(w, "why, in its words\t%s\n", bridge.Visible(oneLine(o.Why, 0)))
	}
	if o.DecidedBy != "" {
		fmt.Fprintf(w, "decided by\t%s, %s\n", o.DecidedBy, s.ago(o.DecidedAt))
	}
	switch {
	case !o.Listed:
		fmt.Fprintln(w, "registry\thas no server of that name")
	case len(o.Differs) == 0:
		fmt.Fprintln(w, "registry\thas the same")
	}
	for _, d := range o.Changes {
		fmt.Fprintf(w, "changes\t%s\n", bridge.Visible(d))
	}
	for _, d := range o.Differs {
		fmt.Fprintf(w, "differs\t%s\n", bridge.Visible(d))
	}
	if f := o.Found; f != nil {
		fmt.Fprintf(w, "asked\t%s: %s %s\n", s.ago(f.At), s.state(string(f.Health)), bridge.Visible(f.Detail))
		if f.Next != "" {
			fmt.Fprintf(w, "next\t%s\n", bridge.Visible(f.Next))
		}
		if f.SignIn != "" {
			fmt.Fprintf(w, "signs in by\t%s %s\n", f.SignIn, bridge.Visible(strings.Join(f.Scopes, " ")))
		}
		for _, t := range f.Tools {
			fmt.Fprintf(w, "tool\t%s\t%s\t%s\n", bridge.Visible(t.Name), t.Hint, bridge.Visible(oneLine(strings.Join(append(t.Flags, t.Description), "; "), 100)))
		}
	}
	if o.State == string(plane.Proposed) {
		fmt.Fprintf(w, "\nIt runs out %s. patchbay mcp accept %s --team %s --id %s, or patchbay mcp forget %s --team %s\n", o.ExpiresAt.UTC().Format("2 Jan 2006"), o.Name, o.Team, o.ID, o.Name, o.Team)
	}
}

// team is the one that is meant: what was said, the request's own, or the only one that
// the caller is in.
func team(d Deps, who plane.Principal, said string) (string, error) {
	if said != "" {
		return said, nil
	}
	if who.Team != "" {
		return who.Team, nil
	}
	switch teams := d.Policy().TeamsOf(who); len(teams) {
	case 1:
		return teams[0], nil
	case 0:
		return "", plane.Errorf(plane.InvalidInput, "You are in no team; say which with --team.").At("team")
	default:
		return "", plane.Errorf(plane.InvalidInput, "You are in several teams; say which.").At("team").Then("--team " + strings.Join(teams, " or --team "))
	}
}

func proposalCommands(d Deps) []*Command {
	decide := func(name, summary string, do func(context.Context, plane.Principal, string, *ProposalInput) (plane.Proposal, error)) *Command {
		return define(About{Name: name, Summary: summary, Right: plane.MCPWrite, Example: strings.ReplaceAll(name, ".", " ") + " linear --team payments"},
			func(ctx context.Context, who plane.Principal, in *ProposalInput) (*ProposalRow, error) {
				t, err := team(d, who, in.Team)
				if err != nil {
					return nil, err
				}
				p, err := do(ctx, who, t, in)
				if err != nil {
					return nil, err
				}
				r := proposalRow(p)
				return &r, nil
			})
	}
	return []*Command{
		define(About{Name: "mcp.propose", Summary: "Proposes a server to a team; a member accepts it.", Right: plane.MCPWrite, Example: `mcp propose "{name: linear, url: https://mcp.linear.app/mcp, auth: oauth}" --team payments`},
			func(ctx context.Context, who plane.Principal, in *ProposeInput) (*ProposalRow, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				t, err := team(d, who, in.Team)
				if err != nil {
					return nil, err
				}
				p, err := d.Registry.Propose(ctx, who, t, in.Declaration, in.Why)
				if err != nil {
					return nil, err
				}
				r := proposalRow(p)
				return &r, nil
			}),
		decide("mcp.accept", "Accepts a proposed server for a team.", func(ctx context.Context, who plane.Principal, t string, in *ProposalInput) (plane.Proposal, error) {
			return d.Registry.Accept(ctx, who, t, in.Name, in.ID)
		}),
		decide("mcp.forget", "Turns a proposed server down, or ends a team's.", func(ctx context.Context, who plane.Principal, t string, in *ProposalInput) (plane.Proposal, error) {
			return d.Registry.Forget(ctx, who, t, in.Name)
		}),
		define(About{Name: "proposals.list", Summary: "Lists the servers that a team has, and those proposed to it.", ReadOnly: true, Right: plane.MCPRead, Example: "proposals list --team payments", Alias: "ls", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *ProposalsListInput) (*ProposalsList, error) {
				t, err := team(d, who, in.Team)
				if err != nil {
					return nil, err
				}
				var states []plane.ProposalState
				if in.All {
					states = []plane.ProposalState{plane.Proposed, plane.Curated, plane.Forgotten, plane.Expired}
				}
				list, err := d.Registry.List(ctx, who, t, states...)
				out := &ProposalsList{Proposals: []ProposalRow{}}
				for _, p := range list {
					out.Proposals = append(out.Proposals, proposalRow(p))
				}
				return out, err
			}),
		define(About{Name: "proposals.show", Summary: "Shows a proposed server, what it offers, and what differs from the registry's.", Right: plane.MCPRead, Example: "proposals show linear --team payments", Alias: "get", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *ProposalShowInput) (*ProposalShow, error) {
				t, err := team(d, who, in.Team)
				if err != nil {
					return nil, err
				}
				r, err := d.Registry.Review(ctx, who, t, in.Name, !in.NoLook)
				if err != nil {
					return nil, err
				}
				return &ProposalShow{ProposalRow: proposalRow(r.Proposal), Differs: r.Differs, Listed: r.Against != nil, Changes: r.Changes, Found: r.Found}, nil
			}),
	}
}

// TeamServers are a team's servers for the REST surface: the seed's Console.
type TeamServers struct {
	d Deps
	r interface {
		Curate(ctx context.Context, who plane.Principal, team, body string, only registry.Only) (plane.Proposal, error)
	}
}

// NewTeamServers makes them.
func NewTeamServers(d Deps, r *registry.Service) *TeamServers { return &TeamServers{d, r} }

// List lists what a team has.
func (t *TeamServers) List(ctx context.Context, who plane.Principal, team string) ([]ProposalRow, error) {
	if err := t.may(who, plane.MCPRead); err != nil {
		return nil, err
	}
	list, err := t.d.Registry.List(ctx, who, team)
	out := []ProposalRow{}
	for _, p := range list {
		out = append(out, proposalRow(p))
	}
	return out, err
}

// Put stores a declaration, curated at once.
func (t *TeamServers) Put(ctx context.Context, who plane.Principal, team, name string, body json.RawMessage, fresh bool) (ProposalRow, error) {
	if err := t.may(who, plane.MCPWrite); err != nil {
		return ProposalRow{}, err
	}
	only := registry.Whatever
	if fresh {
		only = registry.NoneYet
	}
	d, err := registry.Parse("declaration", body, t.d.Registry.Placeholder())
	if err == nil && name != "" && d.Name != name {
		err = plane.Errorf(plane.InvalidInput, "The declaration is named %s, and its address says %s.", d.Name, oneLine(name, 40)).At("name")
	}
	if err != nil {
		return ProposalRow{}, err
	}
	p, err := t.r.Curate(ctx, who, team, string(body), only)
	return proposalRow(p), err
}

// Accept accepts a proposal.
func (t *TeamServers) Accept(ctx context.Context, who plane.Principal, team, name, id string) (ProposalRow, error) {
	if err := t.may(who, plane.MCPWrite); err != nil {
		return ProposalRow{}, err
	}
	p, err := t.d.Registry.Accept(ctx, who, team, name, id)
	return proposalRow(p), err
}

// Drop forgets a declaration.
func (t *TeamServers) Drop(ctx context.Context, who plane.Principal, team, name string) (ProposalRow, error) {
	if err := t.may(who, plane.MCPWrite); err != nil {
		return ProposalRow{}, err
	}
	p, err := t.d.Registry.Forget(ctx, who, team, name)
	return proposalRow(p), err
}

func (t *TeamServers) may(who plane.Principal, r plane.Rights) error {
	if err := t.d.off(); err != nil {
		return err
	}
	if !who.Rights.Has(r) || who.Kind == plane.KindAgent {
		return plane.Errorf(plane.Forbidden, "The token lacks the scope %s.", strings.Join(r.Names(), " "))
	}
	return nil
}

// PutSecret stores a secret that a destination of the team names.
func (t *TeamServers) PutSecret(ctx context.Context, who plane.Principal, team, ref string, value secret.Text) error {
	if err := t.may(who, plane.MCPWrite); err != nil {
		return err
	}
	if err := maySecret(t.d, who, team, ref); err != nil {
		return err
	}
	if err := t.d.Secrets.PutSecret(ctx, who, team, ref, value); err != nil {
		return err
	}
	return t.d.Renew(ctx)
}

// DropSecret takes one away.
func (t *TeamServers) DropSecret(ctx context.Context, who plane.Principal, team, ref string) error {
	if err := t.may(who, plane.MCPWrite); err != nil {
		return err
	}
	if err := maySecret(t.d, who, team, ref); err != nil {
		return err
	}
	if err := t.d.Secrets.DropSecret(ctx, who, team, ref); err != nil {
		return err
	}
	return t.d.Renew(ctx)
}

// RunServer is a declared server that a run had.
type RunServer struct {
	Server     string `json:"server"` // name (destination)
	Source     string `json:"source"` // registry, agent, repository, skill, team
	From       string `json:"from"`   // file, commit, or who said it
	AcceptedBy string `json:"accepted_by,omitempty"`
}

// String is the line of a record.
func (r RunServer) String() string {
	out := fmt.Sprintf("%s, declared by the %s: %s", r.Server, r.Source, r.From)
	if r.AcceptedBy != "" {
		out += ", accepted by " + r.AcceptedBy
	}
	return out
}

func runServers(list []plane.Attachment) []RunServer {
	var out []RunServer
	for _, a := range list {
		r := RunServer{Server: a.Name, Source: string(a.Layer), From: a.From, AcceptedBy: a.AcceptedBy}
		if a.Destination != "" {
			r.Server += " (" + a.Destination + ")"
		}
		out = append(out, r)
	}
	return out
}
