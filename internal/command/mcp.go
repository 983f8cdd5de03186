package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// MCPListInput has nothing to say.
type MCPListInput struct{}

// ServerRow is one connection.
type ServerRow struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Label      string    `json:"label,omitempty"`
	Scope      string    `json:"scope"`
	Origin     string    `json:"origin"` // pinned or added
	State      string    `json:"state"`  // awaiting_credential, connected, auth_error
	Reason     string    `json:"reason,omitempty"`
	URL        string    `json:"url"`
	Auth       string    `json:"auth"`
	Enabled    bool      `json:"enabled"`
	Health     string    `json:"health"` // pending, ok, unavailable, unauthorized
	Detail     string    `json:"detail,omitempty"`
	Tools      int       `json:"tools"`
	Held       int       `json:"held,omitempty"` // tools whose change waits for a person
	CapturedAt time.Time `json:"captured_at,omitzero"`
	FailedAt   time.Time `json:"failed_at,omitzero"`
	Shadowed   string    `json:"shadowed_by,omitempty"`
	Agents     []string  `json:"agents"` // empty: every open agent
}

// MCPList is the connections in sight.
type MCPList struct {
	Servers []ServerRow `json:"servers"`
}

// Text draws the connections.
func (o *MCPList) Text(w io.Writer, s Style) {
	if len(o.Servers) == 0 && s.Terminal {
		fmt.Fprintln(w, "No server is connected. Anyone can connect one:\n\n  patchbay mcp add linear https://mcp.linear.app/mcp")
		return
	}
	var rows [][]string
	for _, r := range o.Servers {
		rows = append(rows, []string{r.Name, tier(r.Scope), r.standing(s), fmt.Sprint(r.Tools), s.ago(r.CapturedAt), r.URL, r.about()})
	}
	table(w, s, []string{"NAME", "SCOPE", "HEALTH", "TOOLS", "READ", "URL", "DETAIL"}, rows)
}

// about is what else there is to say: what is wrong, else the label.
func (r *ServerRow) about() string {
	switch {
	case r.State == string(plane.StateAuthError):
		return plane.ReasonText(r.Reason)
	case r.Detail != "":
		return r.Detail
	}
	return r.Label
}

func (r *ServerRow) standing(s Style) string {
	switch {
	case !r.Enabled:
		return "off"
	case r.Shadowed != "":
		return "shadowed by " + r.Shadowed
	case r.State == string(plane.StateAwaiting):
		return s.state("not signed in")
	case r.State == string(plane.StateAuthError):
		return s.state("sign-in broken")
	}
	return s.state(r.Health)
}

// tier is a scope as people say it: nobody sees another person's.
func tier(scope string) string {
	if strings.HasPrefix(scope, string(plane.ScopeUser)+":") {
		return "me"
	}
	return scope
}

// NameInput names a server.
type NameInput struct {
	Name string `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
}

// MCPShow is one connection with its tools.
type MCPShow struct {
	Server       ServerRow `json:"server"`
	Version      int64     `json:"version"`
	Revision     int64     `json:"revision"`
	Implements   string    `json:"implementation,omitempty"` // the server's own name
	Instructions string    `json:"instructions,omitempty"`
	Resources    []string  `json:"resources,omitempty"` // their URIs, as the server wrote them
	Prompts      []string  `json:"prompts,omitempty"`   // their names
	Tools        []ToolRow `json:"tools"`
	MayNot       string    `json:"may_not,omitempty"` // why the caller may not change it
}

// Text draws one connection. What the server wrote is shown with its invisible
// characters made visible.
func (o *MCPShow) Text(w io.Writer, s Style) {
	r := &o.Server
	fmt.Fprintf(w, "name\t%s\nscope\t%s\nurl\t%s\nauth\t%s\nhealth\t%s\n", r.Name, tier(r.Scope), r.URL, r.Auth, r.standing(s))
	if r.Label != "" {
		fmt.Fprintf(w, "label\t%s\n", r.Label)
	}
	if r.State == string(plane.StateAuthError) {
		fmt.Fprintf(w, "sign-in\t%s; patchbay mcp connect %s\n", plane.ReasonText(r.Reason), r.Name)
	} else if r.State == string(plane.StateAwaiting) {
		fmt.Fprintf(w, "sign-in\tnobody has yet; patchbay mcp connect %s\n", r.Name)
	}
	if r.Detail != "" {
		fmt.Fprintf(w, "detail\t%s\n", r.Detail)
	}
	fmt.Fprintf(w, "read\t%s\n", s.ago(r.CapturedAt))
	if o.Implements != "" {
		fmt.Fprintf(w, "server says it is\t%s\n", bridge.Visible(o.Implements))
	}
	for _, x := range []struct {
		what string
		list []string
	}{{"resources", o.Resources}, {"prompts", o.Prompts}} {
		if len(x.list) > 0 {
			fmt.Fprintf(w, "%s\t%d: %s\n", x.what, len(x.list), bridge.Visible(oneLine(strings.Join(x.list, ", "), 200)))
		}
	}
	fmt.Fprintln(w)
	(&MCPTools{Tools: o.Tools}).Text(w, s)
}

// MCPTest is how a server answered just now.
type MCPTest struct {
	Name   string `json:"name"`
	Health string `json:"health"`
	Detail string `json:"detail,omitempty"`
	Tools  int    `json:"tools"`
	Millis int64  `json:"ms"`
}

// Text draws the answer.
func (o *MCPTest) Text(w io.Writer, s Style) {
	fmt.Fprintf(w, "%s\t%s\t%d tools\t%s\n", o.Name, s.state(o.Health), o.Tools, took(time.Duration(o.Millis)*time.Millisecond))
	if o.Detail != "" {
		fmt.Fprintln(w, o.Detail)
	}
}

// MCPCallInput is one call of a tool.
type MCPCallInput struct {
	Name      string `arg:"" json:"name" help:"Name of the server." predictor:"server"`
	Tool      string `arg:"" json:"tool" help:"The server's own name of the tool, or the alias." predictor:"tool"`
	Arguments Object `arg:"" optional:"" json:"arguments,omitempty" help:"Arguments as a JSON object; the command line reads it from standard input for -."`
	// Pairs are arguments as text; the tool's schema says which are strings.
	Pairs map[string]string `name:"arg" short:"a" placeholder:"KEY=VALUE" mapsep:"none" json:"pairs,omitempty" help:"One argument, typed by the tool's schema. May be repeated."`
	Agent string            `json:"agent,omitempty" help:"The agent to call as." default:"general" predictor:"agent"`
}

// MCPCall is what a tool answered.
type MCPCall struct {
	Call    string          `json:"call,omitempty"`
	State   string          `json:"state"`
	IsError bool            `json:"is_error"`
	Message string          `json:"message,omitempty"` // why it failed
	Next    string          `json:"next,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"` // the server's result, its members and numbers as they came
}

// Text draws the text of the answer.
func (o *MCPCall) Text(w io.Writer, _ Style) {
	if o.Message != "" {
		fmt.Fprintln(w, bridge.Visible(o.Message))
	}
	if o.Next != "" {
		fmt.Fprintf(w, "Next: %s\n", o.Next)
	}
	if o.State == string(plane.CallUnknown) {
		fmt.Fprintf(w, "Whether the call took effect is not known. Look at the service, then say so: patchbay runs resolve %s done|not-done\n", o.Call)
	}
	if len(o.Result) > 0 {
		fmt.Fprintln(w, bridge.ResultText(o.Result))
	}
}

func mcpCommands(d Deps) []*Command {
	off := d.off
	return []*Command{
		define(About{Name: "mcp.list", Summary: "Lists the MCP servers in sight and how they stand.", ReadOnly: true, Right: plane.MCPRead, Example: "mcp list", Alias: "ls", Untrusted: true},
			func(_ context.Context, who plane.Principal, _ *MCPListInput) (*MCPList, error) {
				if err := off(); err != nil {
					return nil, err
				}
				out := &MCPList{Servers: []ServerRow{}}
				for _, a := range d.Policy().Visible(who) {
					out.Servers = append(out.Servers, serverRow(a, d.Catalogs.Get(a.ID)))
				}
				return out, nil
			}),
		define(About{Name: "mcp.show", Summary: "Shows one MCP server with its tools.", ReadOnly: true, Right: plane.MCPRead, Example: "mcp show linear", Alias: "get", Untrusted: true},
			func(_ context.Context, who plane.Principal, in *NameInput) (*MCPShow, error) {
				if err := off(); err != nil {
					return nil, err
				}
				return showServer(d, who, in.Name)
			}),
		define(About{Name: "mcp.tools", Summary: "Lists the tools of one MCP server or of all.", ReadOnly: true, Right: plane.MCPRead, Example: "mcp tools linear", Untrusted: true},
			func(_ context.Context, who plane.Principal, in *MCPToolsInput) (*MCPTools, error) {
				if err := off(); err != nil {
					return nil, err
				}
				return listTools(d, who, in.Name)
			}),
		define(About{Name: "mcp.test", Summary: "Asks an MCP server for its tools now.", Right: plane.MCPRead, Example: "mcp test linear"},
			func(ctx context.Context, who plane.Principal, in *NameInput) (*MCPTest, error) {
				if err := off(); err != nil {
					return nil, err
				}
				return testServer(ctx, d, who, in.Name)
			}),
		define(About{Name: "mcp.call", Summary: "Calls a tool of an MCP server, on the record.", Right: plane.MCPWrite | plane.RunsWrite, Example: "mcp call linear get_issue --arg id=1", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *MCPCallInput) (*MCPCall, error) {
				if err := off(); err != nil {
					return nil, err
				}
				return callTool(ctx, d, who, in)
			}),
	}
}

func serverRow(a policy.Attached, c *plane.Catalog) ServerRow {
	r := ServerRow{ID: string(a.ID), Name: a.Slug, Label: a.Label, Scope: a.Scope.String(), Origin: string(a.Origin), State: string(a.State), Reason: a.Reason, URL: withoutQuery(a.Endpoint), Auth: string(a.Auth), Enabled: a.Enabled,
		Health: string(plane.HealthPending), Agents: a.Agents}
	if r.Agents == nil {
		r.Agents = []string{}
	}
	if a.ShadowedBy.Kind != "" {
		r.Shadowed = a.ShadowedBy.String()
	}
	if c != nil && (!c.Stale(a.Version) || c.CapturedAt.IsZero() && c.Version == a.Version) {
		r.Health, r.Detail, r.Tools, r.CapturedAt, r.FailedAt = string(c.Health), c.Detail, len(c.Definitions), c.CapturedAt, c.FailedAt
		for i := range c.Definitions {
			if c.Definitions[i].Held != "" {
				r.Held++
			}
		}
	}
	return r
}

// members are one text member of each object that has it.
func members(list []json.RawMessage, name string) []string {
	var out []string
	for _, raw := range list {
		var m map[string]json.RawMessage
		var s string
		if json.Unmarshal(raw, &m) == nil && json.Unmarshal(m[name], &s) == nil && s != "" {
			out = append(out, s)
		}
	}
	return out
}

func withoutQuery(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

func showServer(d Deps, who plane.Principal, name string) (*MCPShow, error) {
	snap := d.Policy()
	a, err := connection(snap, who, name)
	if err != nil {
		return nil, err
	}
	c := d.Catalogs.Get(a.ID)
	out := &MCPShow{Server: serverRow(a, c), Version: a.Version, Tools: toolRows(a, c, d.Limits.DescriptionOffered)}
	if den := snap.MayWrite(who, a.Scope); den != nil {
		out.MayNot = den.Reason
	}
	if c != nil {
		for i := range out.Tools {
			out.Tools[i].Asks = asks(snap, a.Connection, &c.Definitions[i])
		}
		out.Revision, out.Implements, out.Instructions = c.Revision, c.Server, c.Instructions
		out.Resources, out.Prompts = members(c.Resources, "uri"), members(c.Prompts, "name")
	}
	return out, nil
}

func testServer(ctx context.Context, d Deps, who plane.Principal, name string) (*MCPTest, error) {
	snap := d.Policy()
	a, err := connection(snap, who, name)
	if err != nil {
		return nil, err
	}
	g, denial := snap.Decide(who, policy.Discover, policy.Resource{Connection: a.ID})
	if denial != nil {
		return nil, denial.Err()
	}
	began := time.Now()
	err = d.Catalogs.Refresh(ctx, g)
	out := &MCPTest{Name: a.Slug, Millis: time.Since(began).Milliseconds(), Health: string(plane.HealthOK)}
	if c := d.Catalogs.Get(a.ID); c != nil {
		out.Health, out.Detail, out.Tools = string(c.Health), c.Detail, len(c.Definitions)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// callTool makes one call through the bridge, as an agent's session would.
func callTool(ctx context.Context, d Deps, who plane.Principal, in *MCPCallInput) (*MCPCall, error) {
	if in.Agent == "" {
		in.Agent = "general"
	}
	switch a, ok := d.Policy().Agent(in.Agent); {
	case !ok:
		return nil, plane.Errorf(plane.NotFound, "There is no agent %q.", in.Agent).At("agent").Then("patchbay agents list")
	case !a.MCP:
		return nil, plane.Errorf(plane.Unavailable, "MCP is off for the agent %s.", in.Agent).Then("Set agents." + in.Agent + ".mcp.enabled: true in patchbay.yaml.")
	}
	s, err := d.Bridge.Open(ctx, bridge.Opening{Agent: in.Agent, Principal: who, Results: plane.Raw, Search: plane.SearchOff})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	tool, err := findTool(d, who, s, in)
	if err != nil {
		return nil, err
	}
	args, err := withPairs(json.RawMessage(in.Arguments), in.Pairs, tool.Definition.InputSchema)
	if err != nil {
		return nil, err
	}
	out, err := s.Call(ctx, bridge.In{Alias: tool.Alias, Arguments: args})
	if err != nil {
		return nil, err
	}
	res := &MCPCall{IsError: out.IsError, Message: out.Text, Next: out.Next, Result: out.Raw, State: string(plane.CallFailed)}
	if out.Call != nil {
		res.Call, res.State = string(out.Call.ID), string(out.Call.State)
	}
	return res, nil
}

// withPairs adds text arguments to an object: as a string where the schema says
// so, else as the JSON it is, else as a string.
func withPairs(args json.RawMessage, pairs map[string]string, schema json.RawMessage) (json.RawMessage, error) {
	if len(pairs) == 0 {
		return args, nil // as it was written, numbers and all
	}
	obj := map[string]json.RawMessage{}
	if len(args) > 0 {
		if err := json.Unmarshal(args, &obj); err != nil {
			return nil, plane.Errorf(plane.InvalidInput, "The arguments are not a JSON object.").At("arguments")
		}
	}
	var s struct {
		Properties map[string]struct {
			Type json.RawMessage `json:"type"`
		} `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		s.Properties = nil // a schema of another form says nothing here
	}
	for k, v := range pairs {
		raw := json.RawMessage(v)
		if string(s.Properties[k].Type) == `"string"` || !json.Valid(raw) {
			quoted, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			raw = quoted
		}
		obj[k] = raw
	}
	return json.Marshal(obj)
}

func findTool(d Deps, who plane.Principal, s *bridge.Session, in *MCPCallInput) (*bridge.Tool, error) {
	var names []string
	for _, t := range s.Tools() {
		if t.Server != in.Name {
			continue
		}
		if t.Definition.Name == in.Tool || t.Alias == in.Tool {
			return t, nil
		}
		names = append(names, t.Definition.Name)
	}
	for _, srv := range s.Servers() {
		if srv.Slug != in.Name {
			continue
		}
		if srv.Why != "" {
			return nil, plane.Errorf(plane.Unavailable, "%s is not available to %s: %s.", in.Name, in.Agent, strings.TrimSuffix(srv.Why, "."))
		}
		if a, err := connection(d.Policy(), who, in.Name); err == nil && a.ID == srv.ID {
			for _, row := range toolRows(a, d.Catalogs.Get(a.ID), d.Limits.DescriptionOffered) {
				if why := cmp.Or(row.Unsupported, row.LeftOut, row.Held); why != "" && (row.Name == in.Tool || row.Alias == in.Tool) {
					return nil, plane.Errorf(plane.NotFound, "%s offers no tool %q to %s: %s.", in.Name, in.Tool, in.Agent, why).At("tool").Then("patchbay mcp tools " + in.Name)
				}
			}
		}
		e := plane.Errorf(plane.NotFound, "%s offers no tool %q to %s.", in.Name, in.Tool, in.Agent).At("tool").Then("patchbay mcp tools " + in.Name)
		if n := plane.Nearest(in.Tool, names); n != "" {
			e.Next = "Did you mean " + n + "?"
		}
		return nil, e
	}
	return nil, plane.Errorf(plane.NotFound, "%s has no server %q.", in.Agent, in.Name).At("name").Then("patchbay mcp list")
}
