package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/registry"
	"patchbay/internal/secret"
)

// MCPImportInput is a file of servers that people bring.
type MCPImportInput struct {
	Content string            `arg:"" name:"file" json:"content" sensitive:"" help:"The file: Claude Code's or Cursor's mcpServers, VS Code's mcp.json, a server.json, or a declaration; the command line reads it, - from standard input."`
	Values  map[string]string `kong:"-" json:"values,omitempty" sensitive:"values"`
	Env     []string          `json:"-" help:"Variables of the file that are taken from this machine's environment, by name; the rest is asked for." placeholder:"NAME"`
	Scope   string            `json:"scope,omitempty" help:"Whose they are: me, channel, team:<id>, agent:<slug> or org." default:"me"`
	Agents  []string          `json:"agents,omitempty" help:"Agents they serve; left out, every open agent." predictor:"agent"`
	Only    []string          `json:"only,omitempty" help:"Only these of the file, by name."`
	DryRun  bool              `json:"dry_run,omitempty" help:"Say what would be done."`
}

// ImportedRow is what became of one server.
type ImportedRow struct {
	Name   string `json:"name"`
	As     string `json:"as"` // as the file calls it
	URL    string `json:"url,omitempty"`
	State  string `json:"state"` // connected, awaiting_credential, would_add, refused
	Link   string `json:"link,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Imported is what became of a file.
type Imported struct {
	Servers []ImportedRow `json:"servers"`
}

// Text draws it.
func (o *Imported) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, r := range o.Servers {
		rows = append(rows, []string{r.Name, s.state(r.State), r.URL, or(r.Link, r.Detail)})
	}
	table(w, s, []string{"NAME", "STATE", "URL", "DETAIL"}, rows)
}

// Failed makes the command line exit with 1 when nothing of the file could be used.
func (o *Imported) Failed() bool {
	for _, r := range o.Servers {
		if r.State != "refused" {
			return false
		}
	}
	return true
}

// FileVariables are what a file leaves open; a command line asks for them.
func FileVariables(content []byte) ([]registry.Variable, error) { return registry.Variables(content) }

func importServers(ctx context.Context, d Deps, who plane.Principal, in *MCPImportInput) (*Imported, error) {
	if in.DryRun { // values stand for themselves: none is needed to say what would be done
		vars, err := registry.Variables([]byte(in.Content))
		if err != nil {
			return nil, err
		}
		in.Values = map[string]string{}
		for _, v := range vars {
			in.Values[v.Name] = "value"
		}
	}
	list, err := registry.Import([]byte(in.Content), in.Values)
	if err != nil {
		return nil, err
	}
	sc, err := scope(d.Policy(), who, in.Scope)
	if err != nil {
		return nil, err
	}
	out := &Imported{Servers: []ImportedRow{}}
	for _, m := range list {
		if len(in.Only) > 0 && !anyOf(in.Only, m.Name, m.As) {
			continue
		}
		row := ImportedRow{Name: m.Name, As: m.As, URL: withoutQuery(m.URL), State: "refused", Detail: m.Problem}
		if m.Problem == "" {
			importOne(ctx, d, who, m, sc, in, &row)
		}
		out.Servers = append(out.Servers, row)
	}
	if len(out.Servers) == 0 {
		return nil, plane.Errorf(plane.NotFound, "The file has none of those servers.").At("only")
	}
	return out, nil
}

func anyOf(list []string, names ...string) bool {
	for _, l := range list {
		for _, n := range names {
			if l == n {
				return true
			}
		}
	}
	return false
}

func importOne(ctx context.Context, d Deps, who plane.Principal, m registry.Imported, sc plane.Scope, in *MCPImportInput, row *ImportedRow) {
	r := consent.Request{Name: m.Name, URL: m.URL, Label: oneLine(m.Note, 80), Scope: sc, Agents: in.Agents, Auth: string(m.Auth)}
	if m.Auth == plane.AuthNone {
		r.Auth = "" // a file that says nothing means that the server is asked
	}
	if m.Header != "" {
		auth, value, err := headerAuth(m.Header)
		if err != nil {
			row.Detail = plane.Public(err).Message
			return
		}
		r.Auth, r.Secret = string(auth), secret.New(value)
	}
	if len(m.Allow)+len(m.Deny) > 0 {
		r.Declared = plane.DeclaredAs{Allow: m.Allow, Deny: m.Deny}
	}
	if in.DryRun {
		if row.State = "would_add"; strings.Contains(m.URL, "?") {
			row.State, row.Detail = "refused", "its address has a query, where tokens hide"
		}
		return
	}
	a, err := d.Consent.Add(ctx, who, r)
	if err != nil {
		row.Detail = plane.Public(err).Message
		return
	}
	row.State = string(a.Connection.State)
	if a.Link != nil {
		row.Link = a.Link.URL
	}
	if a.Outcome.Warning != "" {
		row.Detail = a.Outcome.Warning
	}
}

// MCPExportInput says what is exported.
type MCPExportInput struct {
	Format      string `json:"format,omitempty" help:"claude: mcpServers, as Claude Code and Cursor read it. vscode: VS Code's mcp.json. declarations: ours, YAML." enum:"claude,vscode,declarations" default:"claude"`
	Agent       string `json:"agent,omitempty" help:"Export the endpoint of this agent, in place of the servers." predictor:"agent"`
	FilterRegex bool   `json:"filter_regex,omitempty" help:"One pattern of the tools that are used, for frameworks that put server_ before a tool's name."`
}

// Exported is text to be written to a file. It holds no secret.
type Exported struct {
	Format  string `json:"format"`
	Content string `json:"content"`
}

// Text is the file.
func (o *Exported) Text(w io.Writer, _ Style) { io.WriteString(w, o.Content+"\n") }

func exportServers(d Deps, who plane.Principal, in *MCPExportInput) (*Exported, error) {
	var list []policy.Attached
	sight := d.Policy().Visible(who)
	if in.FilterRegex && in.Agent != "" {
		sight = d.Policy().Resolve(in.Agent, who)
	}
	taken := map[string]bool{}
	for _, a := range sight {
		if a.ShadowedBy.Kind == "" && a.Enabled && !taken[a.Slug] {
			list, taken[a.Slug] = append(list, a), true
		}
	}
	if in.FilterRegex {
		servers := map[string]plane.Preferences{}
		for _, a := range list {
			p := a.Prefs.Clone()
			if len(a.Fixed.Allow) > 0 {
				p.Allow = a.Fixed.Allow
			}
			p.Deny = append(p.Deny, a.Fixed.Deny...)
			servers[a.Slug] = p
		}
		return &Exported{"filter-regex", registry.FilterPattern(servers)}, nil
	}
	type server struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers,omitempty"`
	}
	servers := map[string]server{}
	var inputs []map[string]any
	value := func(name string) string {
		if in.Format != "vscode" {
			return "${" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_TOKEN}"
		}
		inputs = append(inputs, map[string]any{"type": "promptString", "id": name, "description": "Credential of " + name, "password": true})
		return "${input:" + name + "}"
	}
	if in.Agent != "" {
		if _, ok := d.Policy().Agent(in.Agent); !ok {
			return nil, plane.Errorf(plane.NotFound, "There is no agent %q.", oneLine(in.Agent, 40)).At("agent").Then("patchbay agents list")
		}
		servers["patchbay-"+in.Agent] = server{"http", d.AgentURL(in.Agent), map[string]string{"Authorization": "Bearer " + value("patchbay")}}
		list = nil
	}
	list = slices.DeleteFunc(list, func(a policy.Attached) bool { return a.Stdio() && in.Format != "declarations" }) // they run in a sandbox of ours
	if in.Format == "declarations" {
		return &Exported{in.Format, declarationsYAML(list)}, nil
	}
	for _, a := range list {
		s := server{Type: "http", URL: withoutQuery(a.Endpoint)}
		switch h := a.Auth.Header(); {
		case a.Auth == plane.AuthBearer:
			s.Headers = map[string]string{h: "Bearer " + value(a.Slug)}
		case a.Auth.Pasted():
			s.Headers = map[string]string{h: value(a.Slug)}
		}
		servers[a.Slug] = s
	}
	doc := map[string]any{"mcpServers": servers}
	if in.Format == "vscode" {
		doc = map[string]any{"servers": servers, "inputs": append([]map[string]any{}, inputs...)}
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	return &Exported{in.Format, string(b)}, err
}

// declarationsYAML writes connections as declarations, a document each.
func declarationsYAML(list []policy.Attached) string {
	var docs []string
	for _, a := range list {
		var b strings.Builder
		if run := a.Declared.Run; run != nil {
			args, _ := json.Marshal(run.Args) // strings always marshal
			fmt.Fprintf(&b, "name: %s\ntransport: stdio\ncommand: %q\nargs: %s\n", a.Slug, run.Command, args)
			if run.Destination != "" {
				fmt.Fprintf(&b, "destination: %s\n", run.Destination)
			}
		} else {
			fmt.Fprintf(&b, "name: %s\ntransport: http\nurl: %q\nauth: %q\n", a.Slug, withoutQuery(a.Endpoint), string(a.Auth))
		}
		if len(a.Agents) > 0 {
			fmt.Fprintf(&b, "agents: [%s]\n", strings.Join(a.Agents, ", "))
		}
		if allow, deny := append(append([]string{}, a.Fixed.Allow...), a.Prefs.Allow...), append(append([]string{}, a.Fixed.Deny...), a.Prefs.Deny...); len(allow)+len(deny) > 0 {
			aj, _ := json.Marshal(allow) // strings always marshal
			dj, _ := json.Marshal(deny)
			fmt.Fprintf(&b, "tools: {allow: %s, deny: %s}\n", aj, dj)
		}
		docs = append(docs, strings.TrimSpace(b.String()))
	}
	return strings.Join(docs, "\n---\n")
}

func importCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "mcp.import", Summary: "Adds the servers of a file; literal secrets in it are sealed.", Right: plane.MCPWrite, Example: "mcp import .mcp.json"},
			func(ctx context.Context, who plane.Principal, in *MCPImportInput) (*Imported, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				return importServers(ctx, d, who, in)
			}),
		define(About{Name: "mcp.export", Summary: "Writes servers as other programs read them, without their secrets.", ReadOnly: true, Right: plane.MCPRead, Example: "mcp export --format vscode"},
			func(_ context.Context, who plane.Principal, in *MCPExportInput) (*Exported, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				return exportServers(d, who, in)
			}),
	}
}
