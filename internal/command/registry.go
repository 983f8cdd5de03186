package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
	"patchbay/internal/secret"
)

// Declarations are what is on offer, and what teams declare.
type Declarations interface {
	Registry() []plane.Declared
	Entry(name string) (plane.Declared, error)
	AddEntry(ctx context.Context, who plane.Principal, d plane.Declaration) (plane.Proposal, error)
	RemoveEntry(ctx context.Context, who plane.Principal, name string) (plane.Declared, error)
	Attach(ctx context.Context, who plane.Principal, agent, name string, on bool) (plane.Layered, error)
	Placeholder() string
	Proposals
	Hosts
	Mirrored
}

// Proposals are teams' declarations.
type Proposals interface {
	Propose(ctx context.Context, who plane.Principal, team, body, why string) (plane.Proposal, error)
	List(ctx context.Context, who plane.Principal, team string, states ...plane.ProposalState) ([]plane.Proposal, error)
	Review(ctx context.Context, who plane.Principal, team, name string, look bool) (registry.Review, error)
	Accept(ctx context.Context, who plane.Principal, team, name, id string) (plane.Proposal, error)
	Forget(ctx context.Context, who plane.Principal, team, name string) (plane.Proposal, error)
}

// Hosts are what agents may reach by name.
type Hosts interface {
	Destinations() []plane.Destination
	PutDestination(ctx context.Context, who plane.Principal, d plane.Destination) (plane.Destination, error)
	DropDestination(ctx context.Context, who plane.Principal, name string) error
}

// Mirrored is an upstream registry's copy.
type Mirrored interface {
	Servers(ctx context.Context, q registry.Query) (registry.Page, error)
	Mirrored(ctx context.Context, name string) (plane.Declaration, []string, error)
}

// Secrets are teams' secrets: written and never read.
type Secrets interface {
	PutSecret(ctx context.Context, who plane.Principal, team, ref string, value secret.Text) error
	DropSecret(ctx context.Context, who plane.Principal, team, ref string) error
}

// RegistryListInput says which servers.
type RegistryListInput struct {
	Search string `arg:"" optional:"" json:"search,omitempty" help:"Only those whose name or description holds it."`
	Mirror bool   `json:"mirror,omitempty" help:"Servers of the mirrored registry instead; nothing of it is attached by itself."`
	Limit  int    `json:"limit,omitempty" help:"At most so many." default:"100"`
}

// RegistryRow is one server on offer.
type RegistryRow struct {
	plane.Declaration
	From    string   `json:"from,omitempty"` // file, or who added it
	AddedBy string   `json:"added_by,omitempty"`
	Agents  []string `json:"attached_to"` // agents that have it attached
}

// RegistryList is what is on offer.
type RegistryList struct {
	Servers []RegistryRow `json:"servers"`
}

// Text draws what is on offer.
func (o *RegistryList) Text(w io.Writer, s Style) {
	if len(o.Servers) == 0 && s.Terminal {
		fmt.Fprintln(w, "Nothing is on offer. An admin adds a server:\n\n  patchbay registry add linear https://mcp.linear.app/mcp --auth oauth")
		return
	}
	var rows [][]string
	for _, r := range o.Servers {
		rows = append(rows, []string{bridge.Visible(r.Name), string(r.Transport), bridge.Visible(or(r.URL, strings.Join(append([]string{r.Command}, r.Args...), " "))), string(r.Auth), strings.Join(r.Agents, " "), bridge.Visible(oneLine(r.Description, 60))})
	}
	table(w, s, []string{"NAME", "TRANSPORT", "SERVER", "AUTH", "ATTACHED TO", "DESCRIPTION"}, rows)
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// EntryInput names a server on offer.
type EntryInput struct {
	Name string `arg:"" json:"name" help:"Name of the server in the registry." predictor:"entry"`
}

// RegistryShow is one server on offer.
type RegistryShow struct {
	RegistryRow
	Versions []string `json:"versions,omitempty"` // of the mirror
}

// Text draws it.
func (o *RegistryShow) Text(w io.Writer, _ Style) {
	io.WriteString(w, bridge.Visible(describeDeclaration(&o.Declaration)))
	if o.From != "" {
		fmt.Fprintf(w, "from\t%s\n", bridge.Visible(o.From))
	}
	if len(o.Versions) > 0 {
		fmt.Fprintf(w, "versions\t%s\n", bridge.Visible(strings.Join(o.Versions, ", ")))
	}
	if len(o.Agents) > 0 {
		fmt.Fprintf(w, "attached to\t%s\n", strings.Join(o.Agents, ", "))
	}
}

// describeDeclaration is a declaration as lines of name and value.
func describeDeclaration(d *plane.Declaration) string {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s\t%s\n", name, value)
		}
	}
	line("name", d.Name)
	line("transport", string(d.Transport))
	line("url", d.URL)
	if d.Command != "" {
		line("command", strings.Join(append([]string{d.Command}, d.Args...), " "))
	}
	for _, k := range sortedKeys(d.Env) {
		line("env", k)
	}
	line("auth", string(d.Auth))
	line("destination", d.Destination)
	line("agents", or(strings.Join(d.Agents, ", "), "every open agent"))
	line("tools.allow", strings.Join(d.Allow, ", "))
	line("tools.deny", strings.Join(d.Deny, ", "))
	if d.Default {
		line("default", "attached without being named")
	}
	line("description", d.Description)
	line("source", d.Link)
	return b.String()
}

// RegistryAddInput describes a server to put on offer.
type RegistryAddInput struct {
	Name        string   `arg:"" json:"name" help:"Name to call it by: a-z, 0-9 and -."`
	Address     string   `arg:"" optional:"" name:"url" json:"url,omitempty" help:"Address of the server."`
	Declaration string   `json:"declaration,omitempty" help:"The whole declaration, YAML or JSON; the command line reads it from standard input for -." placeholder:"TEXT"`
	FromMirror  string   `name:"from" json:"from,omitempty" help:"Take it from the mirrored registry, by its name there."`
	Auth        string   `json:"auth,omitempty" help:"How it signs in: none, bearer, api_key:<header>, basic:<user> or oauth."`
	Destination string   `json:"destination,omitempty" help:"Named host whose secret signs it in."`
	Agents      []string `json:"agents,omitempty" help:"Agents it serves; left out, every open agent." predictor:"agent"`
	Allow       []string `json:"allow,omitempty" help:"Globs of its tools that are used."`
	Deny        []string `json:"deny,omitempty" help:"Globs of its tools that are never used."`
	Description string   `json:"description,omitempty" help:"What it is for."`
}

// declaration is what the input describes, held to the one parser.
func (in *RegistryAddInput) declaration(ctx context.Context, d Deps) (plane.Declaration, error) {
	if in.Declaration != "" {
		if in.Address != "" || in.FromMirror != "" {
			return plane.Declaration{}, plane.Errorf(plane.InvalidInput, "Give a declaration, an address or --from: one of them.").At("declaration")
		}
		out, err := registry.Parse("declaration", []byte(in.Declaration), d.Registry.Placeholder())
		if err == nil && out.Name != in.Name {
			err = plane.Errorf(plane.InvalidInput, "The declaration is named %s, and %s is asked for.", out.Name, oneLine(in.Name, 40)).At("name")
		}
		return out, err
	}
	doc := map[string]any{"name": in.Name, "url": in.Address}
	set := func(k string, v any, on bool) {
		if on {
			doc[k] = v
		}
	}
	if in.FromMirror != "" {
		m, _, err := d.Registry.Mirrored(ctx, in.FromMirror)
		if err != nil {
			return m, err
		}
		doc["url"] = m.URL
		set("description", m.Description, m.Description != "")
		set("source", m.Link, m.Link != "")
		set("auth", string(m.Auth), m.Auth != "")
	}
	set("auth", in.Auth, in.Auth != "")
	set("destination", in.Destination, in.Destination != "")
	set("agents", in.Agents, len(in.Agents) > 0)
	set("description", in.Description, in.Description != "")
	set("tools", map[string]any{"allow": in.Allow, "deny": in.Deny}, len(in.Allow)+len(in.Deny) > 0)
	body, err := json.Marshal(doc)
	if err != nil {
		return plane.Declaration{}, err
	}
	return registry.Parse("declaration", body, d.Registry.Placeholder())
}

// AttachInput names a server on offer and an agent.
type AttachInput struct {
	Name  string `arg:"" json:"name" help:"Name of the server in the registry." predictor:"entry"`
	Agent string `json:"agent" help:"The agent that gets it." default:"general" predictor:"agent"`
}

// Attached is what an agent has attached at run time.
type Attached struct {
	Agent    string   `json:"agent"`
	Revision int64    `json:"revision"`
	Servers  []string `json:"servers"`
	Note     string   `json:"note,omitempty"`
}

// Text says it.
func (o *Attached) Text(w io.Writer, s Style) {
	if s.Terminal && o.Note != "" {
		fmt.Fprintln(w, o.Note)
	}
}

// Changed is a change that needs no words where a program reads.
type Changed struct {
	Name string `json:"name"`
	What string `json:"what"`
}

// Text says it to people.
func (o *Changed) Text(w io.Writer, s Style) {
	if s.Terminal {
		fmt.Fprintf(w, "%s is %s.\n", o.Name, o.What)
	}
}

func registryRow(d Deps, e plane.Declared) RegistryRow {
	r := RegistryRow{Declaration: e.Declaration, From: e.From, AddedBy: e.AcceptedBy, Agents: []string{}}
	for _, a := range d.Policy().Agents() {
		for _, at := range d.Policy().Attachments(a.Slug, plane.Principal{}) {
			if at.Name == e.Name && at.Dropped == "" {
				r.Agents = append(r.Agents, a.Slug)
			}
		}
	}
	return r
}

func registryCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "registry.list", Summary: "Lists the servers on offer.", ReadOnly: true, Right: plane.MCPRead, Example: "registry list", Alias: "ls", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *RegistryListInput) (*RegistryList, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				return listRegistry(ctx, d, in)
			}),
		define(About{Name: "registry.show", Summary: "Shows one server on offer.", ReadOnly: true, Right: plane.MCPRead, Example: "registry show linear", Alias: "get", Untrusted: true},
			func(ctx context.Context, _ plane.Principal, in *EntryInput) (*RegistryShow, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				if strings.Contains(in.Name, "/") {
					m, versions, err := d.Registry.Mirrored(ctx, in.Name)
					return &RegistryShow{RegistryRow: RegistryRow{Declaration: m, From: "mirror", Agents: []string{}}, Versions: versions}, err
				}
				e, err := d.Registry.Entry(in.Name)
				if err != nil {
					return nil, err
				}
				return &RegistryShow{RegistryRow: registryRow(d, e)}, nil
			}),
		define(About{Name: "registry.add", Summary: "Puts a server on offer; it attaches nothing.", Right: plane.MCPWrite, Example: "registry add linear https://mcp.linear.app/mcp --auth oauth"},
			func(ctx context.Context, who plane.Principal, in *RegistryAddInput) (*RegistryShow, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				decl, err := in.declaration(ctx, d)
				if err != nil {
					return nil, err
				}
				p, err := d.Registry.AddEntry(ctx, who, decl)
				if err != nil {
					return nil, err
				}
				return &RegistryShow{RegistryRow: RegistryRow{Declaration: p.Declaration, From: p.Source, AddedBy: p.DecidedBy, Agents: []string{}}}, nil
			}),
		define(About{Name: "registry.remove", Summary: "Takes a server off the offer.", Right: plane.MCPWrite, Example: "registry remove linear", Alias: "rm"},
			func(ctx context.Context, who plane.Principal, in *EntryInput) (*Changed, error) {
				if _, err := d.Registry.RemoveEntry(ctx, who, in.Name); err != nil {
					return nil, err
				}
				return &Changed{in.Name, "off the offer"}, nil
			}),
		attachCommand(d, "registry.attach", "Attaches a server on offer to an agent.", true),
		attachCommand(d, "registry.detach", "Takes an attached server off an agent.", false),
	}
}

func listRegistry(ctx context.Context, d Deps, in *RegistryListInput) (*RegistryList, error) {
	out := &RegistryList{Servers: []RegistryRow{}}
	if in.Mirror {
		q := registry.Query{Search: in.Search, Latest: true, Limit: min(max(in.Limit, 1), 1000), MirrorOnly: true}
		page, err := d.Registry.Servers(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Servers {
			out.Servers = append(out.Servers, RegistryRow{Declaration: e.Declaration(), From: "mirror", Agents: []string{}})
		}
		return out, nil
	}
	for _, e := range d.Registry.Registry() {
		if in.Search != "" && !strings.Contains(strings.ToLower(e.Name+" "+e.Description), strings.ToLower(in.Search)) {
			continue
		}
		if len(out.Servers) < max(in.Limit, 1) {
			out.Servers = append(out.Servers, registryRow(d, e))
		}
	}
	return out, nil
}

func attachCommand(d Deps, name, summary string, on bool) *Command {
	return define(About{Name: name, Summary: summary, Right: plane.MCPWrite, Example: strings.ReplaceAll(name, ".", " ") + " linear --agent research"},
		func(ctx context.Context, who plane.Principal, in *AttachInput) (*Attached, error) {
			if err := d.off(); err != nil {
				return nil, err
			}
			l, err := d.Registry.Attach(ctx, who, in.Agent, in.Name, on)
			if err != nil {
				return nil, err
			}
			out := &Attached{Agent: in.Agent, Revision: 1 + l.Rev, Servers: l.Servers}
			if out.Servers == nil {
				out.Servers = []string{}
			}
			out.Note = attachedNote(d, in, on)
			return out, nil
		})
}

// attachedNote says what is left to do.
func attachedNote(d Deps, in *AttachInput, on bool) string {
	if !on {
		return in.Name + " is no longer attached to " + in.Agent + "."
	}
	for _, a := range d.Policy().Attachments(in.Agent, plane.Principal{}) {
		if a.Name != in.Name {
			continue
		}
		if a.Dropped != "" {
			return in.Name + " is attached to " + in.Agent + ", and left out: " + a.Dropped + "."
		}
		if c, ok := d.Policy().Connection(a.Connection); ok && c.State != plane.StateConnected {
			return in.Name + " is attached to " + in.Agent + ". Sign it in: patchbay mcp connect " + c.FullName()
		}
	}
	return in.Name + " is attached to " + in.Agent + "."
}

// DestinationsInput takes nothing.
type DestinationsInput struct{}

// DestinationsList are named hosts.
type DestinationsList struct {
	Destinations []plane.Destination `json:"destinations"`
	Placeholder  string              `json:"placeholder"` // that stands for their secrets
}

// Text draws them.
func (o *DestinationsList) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, d := range o.Destinations {
		rows = append(rows, []string{d.Name, fmt.Sprintf("%s:%d", strings.Join(d.Hosts, ","), d.Port), strings.Join(d.Methods, ","), strings.Join(d.Paths, ","), d.Inject.Kind, d.Secret, strings.Join(d.Needs, ",")})
	}
	table(w, s, []string{"NAME", "HOSTS", "METHODS", "PATHS", "INJECT", "SECRET", "NEEDS"}, rows)
	if s.Terminal {
		fmt.Fprintf(w, "\nThe placeholder, which stands for a secret: %s\n", o.Placeholder)
	} else {
		fmt.Fprintf(w, "placeholder\t%s\n", o.Placeholder)
	}
}

// DestinationsSetInput describes a named host.
type DestinationsSetInput struct {
	Name    string   `arg:"" json:"name" help:"Name to call it by."`
	Hosts   []string `json:"hosts" help:"Its hosts, as api.example.com or *.example.com."`
	Port    int      `json:"port,omitempty" help:"Its port." default:"443"`
	Methods []string `json:"methods,omitempty" help:"Methods that are let through; left out, every one."`
	Paths   []string `json:"paths,omitempty" help:"Globs of paths that are let through; left out, every one."`
	Inject  string   `json:"inject,omitempty" help:"How the secret goes in: bearer, header:<name>, basic:<user>, query:<name> or body:<name>; or signs: aws_sigv4, hmac:<header>." default:"bearer"`
	Secret  string   `name:"inject-secret" json:"inject_secret,omitempty" help:"Which secret: secret:<ref>, connection:<id> or github_app:<ref>."`
	Needs   []string `json:"needs,omitempty" help:"What a team must have: repo."`
	Tunnel  bool     `json:"tunnel,omitempty" help:"Pass it through the credential gateway unseen, without a secret."`
}

func (in *DestinationsSetInput) destination() plane.Destination {
	d := plane.Destination{Name: in.Name, Hosts: in.Hosts, Port: in.Port, Methods: in.Methods, Paths: in.Paths, Secret: in.Secret, Needs: in.Needs, Tunnel: in.Tunnel}
	kind, arg, _ := strings.Cut(in.Inject, ":")
	if d.Inject.Kind = kind; kind == "basic" {
		d.Inject.User = arg
	} else {
		d.Inject.Name = arg
	}
	return d
}

// NamedInput names something.
type NamedInput struct {
	Name string `arg:"" json:"name" help:"Its name."`
}

// SecretsPutInput is a secret that a destination names.
type SecretsPutInput struct {
	Ref   string `arg:"" json:"ref" help:"What destinations call it: the ref of secret:<ref>."`
	Team  string `json:"team,omitempty" help:"Whose it is; left out, the organisation's, for agents' own servers."`
	Value string `kong:"-" json:"value" sensitive:"value"`
}

// SecretsDropInput names a secret.
type SecretsDropInput struct {
	Ref  string `arg:"" json:"ref" help:"What destinations call it."`
	Team string `json:"team,omitempty" help:"Whose it is; left out, the organisation's."`
}

// maySecret is the gate of a team's secrets: its config:write; the organisation's are the
// admins'.
func maySecret(d Deps, who plane.Principal, team, ref string) error {
	if !registry.ValidRef(ref) {
		return plane.Errorf(plane.InvalidInput, "%q cannot be the name of a secret; use letters, digits, -, _ and dots.", oneLine(ref, 40)).At("ref")
	}
	sc := plane.Scope{Kind: plane.ScopeTeam, Name: team}
	if team == "" {
		sc = plane.Scope{Kind: plane.ScopeOrg}
	}
	if team == "" && !d.Policy().Admin(who) {
		return plane.Errorf(plane.Forbidden, "The organisation's secrets are the org admins'; name your team.").At("team")
	}
	if den := d.Policy().MayWrite(who, sc); den != nil {
		return den.Err()
	}
	return nil
}

func destinationCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "destinations.list", Summary: "Lists the hosts that agents may reach by name.", ReadOnly: true, Right: plane.MCPRead, Example: "destinations list", Alias: "ls"},
			func(context.Context, plane.Principal, *DestinationsInput) (*DestinationsList, error) {
				return &DestinationsList{Destinations: d.Registry.Destinations(), Placeholder: d.Registry.Placeholder()}, nil
			}),
		define(About{Name: "destinations.set", Summary: "Names a host, and how its secret goes in.", Right: plane.AdminRight, Example: "destinations set linear-mcp --hosts mcp.linear.app --inject-secret secret:linear"},
			func(ctx context.Context, who plane.Principal, in *DestinationsSetInput) (*Changed, error) {
				if _, err := d.Registry.PutDestination(ctx, who, in.destination()); err != nil {
					return nil, err
				}
				return &Changed{in.Name, "named"}, nil
			}),
		define(About{Name: "destinations.remove", Summary: "Takes a named host away.", Right: plane.AdminRight, Example: "destinations remove linear-mcp", Alias: "rm"},
			func(ctx context.Context, who plane.Principal, in *NamedInput) (*Changed, error) {
				return &Changed{in.Name, "gone"}, d.Registry.DropDestination(ctx, who, in.Name)
			}),
		define(About{Name: "secrets.put", Summary: "Stores a secret that a destination names; nobody reads it again.", Right: plane.MCPWrite, Example: "secrets put linear --team payments"},
			func(ctx context.Context, who plane.Principal, in *SecretsPutInput) (*Changed, error) {
				if err := maySecret(d, who, in.Team, in.Ref); err != nil {
					return nil, err
				}
				if err := d.Secrets.PutSecret(ctx, who, in.Team, in.Ref, secret.New(in.Value)); err != nil {
					return nil, err
				}
				return &Changed{in.Ref, "stored"}, d.Renew(ctx)
			}),
		define(About{Name: "secrets.remove", Summary: "Takes a secret away.", Right: plane.MCPWrite, Example: "secrets remove linear --team payments", Alias: "rm"},
			func(ctx context.Context, who plane.Principal, in *SecretsDropInput) (*Changed, error) {
				if err := maySecret(d, who, in.Team, in.Ref); err != nil {
					return nil, err
				}
				if err := d.Secrets.DropSecret(ctx, who, in.Team, in.Ref); err != nil {
					return nil, err
				}
				return &Changed{in.Ref, "gone"}, d.Renew(ctx)
			}),
	}
}

// relative is a time as a row shows it.
func relative(s Style, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return s.ago(t)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
