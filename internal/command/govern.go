package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Edit changes connections.
type Edit interface {
	Edit(ctx context.Context, who plane.Principal, id plane.ConnectionID, ch consent.Change) (plane.Connection, error)
	Save(ctx context.Context, who plane.Principal, a consent.Account) (plane.Connection, error)
}

// EditInput says what changes of a connection.
type EditInput struct {
	Name    string   `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	URL     string   `json:"url,omitempty" help:"Another address; the saved credential is kept."`
	Label   string   `json:"label,omitempty" help:"What people call it."`
	Agents  []string `json:"agents,omitempty" help:"Agents it serves; 'open' for every open agent." predictor:"agent"`
	Labels  []string `json:"labels,omitempty" help:"What kind of data it brings: private, untrusted; and outward where its effects reach others. 'none' for none of them."`
	Version int64    `json:"version,omitempty" help:"The version that was looked at; a connection that changed since is left alone."`
}

// ToolsSetInput says which tools are used.
type ToolsSetInput struct {
	Name    string   `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	Allow   []string `json:"allow,omitempty" help:"Globs of the tools that are used; * for all."`
	Deny    []string `json:"deny,omitempty" help:"Globs of tools that are never used; none takes them away."`
	Exclude []string `json:"exclude,omitempty" help:"Tools to leave out, by name." predictor:"tool"`
	Include []string `json:"include,omitempty" help:"Tools to use again that were left out." predictor:"tool"`
	All     bool     `json:"all,omitempty" help:"Use every tool again, but for what is denied."`
	None    bool     `json:"none,omitempty" help:"Leave out every tool that is known now."`
	New     string   `json:"new,omitempty" help:"hold: new and changed definitions wait until they are accepted (mcp diff). use: they are used." enum:"hold,use," default:""`
	Version int64    `json:"version,omitempty" help:"The version that was looked at; a connection that changed since is left alone."`
}

// ToolSetInput says how a tool's effects are told apart.
type ToolSetInput struct {
	Name    string `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	Tool    string `arg:"" json:"tool" help:"Name of the tool, as the server says it." predictor:"tool"`
	Target  string `json:"target,omitempty" help:"Where its arguments say what it is about, as $.id: while an effect on that is unsettled, no other is sent. 'none': the whole tool."`
	Key     string `json:"idempotency_key,omitempty" help:"The argument that takes the idempotency key. 'none' takes it out."`
	Version int64  `json:"version,omitempty" help:"The version that was looked at; a connection that changed since is left alone."`
}

// sets reports whether something is said of the tool, not only taken back.
func (in *ToolSetInput) sets() bool {
	return in.Target != "" && in.Target != "none" || in.Key != "" && in.Key != "none"
}

func (in *ToolSetInput) change() consent.Change {
	set := func(m map[string]string, v string) map[string]string {
		switch {
		case v == "none":
			delete(m, in.Tool)
		case v != "" && m == nil:
			m = map[string]string{in.Tool: v}
		case v != "":
			m[in.Tool] = v
		}
		return m
	}
	return consent.Change{Version: in.Version, Prefs: func(p *plane.Preferences) {
		p.Targets, p.Keys = set(p.Targets, in.Target), set(p.Keys, in.Key)
	}}
}

// ClassifyInput is a person's word on one tool.
type ClassifyInput struct {
	Name        string `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	Tool        string `arg:"" json:"tool" help:"Name of the tool, as the server says it." predictor:"tool"`
	Class       string `arg:"" json:"class" help:"query: may be sent again when nobody knows whether it ran. effect: never." enum:"query,effect"`
	Fingerprint string `json:"fingerprint,omitempty" help:"The definition that was reviewed, at least its first 32 digits; a query needs it. 'mcp tools' shows it."`
	Contract    string `json:"completion_contract,omitempty" help:"What an effect is held to: its target is free again when an answer proves that the invocation has ended."`
	Version     int64  `json:"version,omitempty" help:"The version that was looked at; a connection that changed since is left alone."`
}

// review is what the input says of the definition that is listed now.
func (in *ClassifyInput) review(c *plane.Catalog) (plane.Review, error) {
	r := plane.Review{Name: in.Tool, Class: plane.Class(in.Class), Fingerprint: in.Fingerprint, Contract: in.Contract}
	d := definition(c, in.Tool)
	switch {
	case d == nil: // consent says so
	case in.Fingerprint == "" && r.Class == plane.Effect && r.Contract == "":
		r.Fingerprint = d.Fingerprint // takes nothing on trust
	case len(in.Fingerprint) < plane.ShownFingerprint:
		return r, plane.Errorf(plane.InvalidInput, "A query, or a contract, is a review of one definition: give its fingerprint, at least %d digits of it.", plane.ShownFingerprint).At("fingerprint").
			Then("patchbay mcp tools " + in.Name)
	case strings.HasPrefix(d.Fingerprint, in.Fingerprint):
		r.Fingerprint = d.Fingerprint
	}
	return r, nil
}

// change is what the input asks for; known are the names of the last listing.
func (in *ToolsSetInput) change(known []string) consent.Change {
	return consent.Change{Version: in.Version, Prefs: func(p *plane.Preferences) {
		if in.All {
			p.Allow, p.Excluded, p.Legacy = nil, nil, nil
		}
		if in.New != "" {
			p.Hold = in.New == "hold"
		}
		if in.None {
			p.Excluded = append(p.Excluded, known...)
		}
		if len(in.Allow) > 0 {
			p.Allow = in.Allow
			if slices.Equal(in.Allow, []string{"*"}) {
				p.Allow = nil
			}
		}
		if len(in.Deny) > 0 {
			p.Deny = in.Deny
			if slices.Equal(in.Deny, []string{"none"}) {
				p.Deny = nil
			}
		}
		p.Excluded = append(p.Excluded, in.Exclude...)
		p.Excluded = slices.DeleteFunc(p.Excluded, func(n string) bool { return slices.Contains(in.Include, n) })
		slices.Sort(p.Excluded)
		p.Excluded = slices.Compact(p.Excluded)
	}}
}

// governCommands decide what of a connection is used.
func governCommands(d Deps) []*Command {
	edit := func(name, done string, ch func(*plane.Catalog) consent.Change) func(ctx context.Context, who plane.Principal) (*MCPChanged, error) {
		return func(ctx context.Context, who plane.Principal) (*MCPChanged, error) {
			return changed(ctx, d, who, name, done, func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
				return d.Consent.Edit(ctx, who, id, ch(d.Catalogs.Get(id)))
			})
		}
	}
	turn := func(on bool, done string) func(ctx context.Context, who plane.Principal, in *NameInput) (*MCPChanged, error) {
		return func(ctx context.Context, who plane.Principal, in *NameInput) (*MCPChanged, error) {
			return edit(in.Name, done, func(*plane.Catalog) consent.Change { return consent.Change{Enabled: &on} })(ctx, who)
		}
	}
	return []*Command{
		define(About{Name: "mcp.enable", Summary: "Turns a connection on again, with its preferences.", Right: plane.MCPWrite, Example: "mcp enable linear"}, turn(true, "%s is on.")),
		define(About{Name: "mcp.disable", Summary: "Turns a connection off; no server is asked.", Right: plane.MCPWrite, Example: "mcp disable linear"}, turn(false, "%s is off. Its credential and preferences are kept.")),
		define(About{Name: "mcp.edit", Summary: "Changes a connection's address, label or agents.", Right: plane.MCPWrite, Example: "mcp edit linear --label Tickets"},
			func(ctx context.Context, who plane.Principal, in *EditInput) (*MCPChanged, error) {
				ch := consent.Change{Version: in.Version}
				if in.URL != "" {
					ch.Endpoint = &in.URL
				}
				if in.Label != "" {
					ch.Label = &in.Label
				}
				if len(in.Agents) > 0 {
					agents := in.Agents
					if slices.Equal(agents, []string{"open"}) {
						agents = nil
					}
					ch.Agents = &agents
				}
				if len(in.Labels) > 0 {
					labels, err := plane.ParseLabels(in.Labels)
					if err != nil {
						return nil, err
					}
					ch.Prefs = func(p *plane.Preferences) { p.Labels = &labels }
				}
				if ch.Endpoint == nil && ch.Label == nil && ch.Agents == nil && ch.Prefs == nil {
					return nil, plane.Errorf(plane.InvalidInput, "Say what changes: --url, --label, --agents or --labels.").At("url")
				}
				return edit(in.Name, "%s is changed.", func(*plane.Catalog) consent.Change { return ch })(ctx, who)
			}),
		define(About{Name: "mcp.tool-set", Summary: "Says what a tool's effects are about, and where their idempotency key goes.", Right: plane.MCPWrite, Example: "mcp tool-set linear save_issue --target $.id"},
			func(ctx context.Context, who plane.Principal, in *ToolSetInput) (*MCPChanged, error) {
				if in.Target == "" && in.Key == "" {
					return nil, plane.Errorf(plane.InvalidInput, "Say the target, or the argument of the idempotency key.").At("target")
				}
				return changed(ctx, d, who, in.Name, "%s is changed.", func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
					if c := d.Catalogs.Get(id); c != nil && in.sets() && definition(c, in.Tool) == nil {
						return plane.Connection{}, plane.Errorf(plane.NotFound, "%s has no tool %s.", in.Name, bridge.Visible(in.Tool)).At("tool").Then("patchbay mcp tools " + in.Name)
					}
					return d.Consent.Edit(ctx, who, id, in.change())
				})
			}),
		define(About{Name: "mcp.tools-set", Summary: "Says which tools of a connection are used; also written 'mcp tools set'.", Right: plane.MCPWrite, Example: "mcp tools-set linear --exclude delete_issue"},
			func(ctx context.Context, who plane.Principal, in *ToolsSetInput) (*MCPChanged, error) {
				if in.All && in.None {
					return nil, plane.Errorf(plane.InvalidInput, "All and none at once cannot be.").At("all")
				}
				return edit(in.Name, "The tools of %s are set.", func(c *plane.Catalog) consent.Change { return in.change(names(c)) })(ctx, who)
			}),
		define(About{Name: "mcp.classify", Summary: "Says whether a tool may be repeated, of the very definition that was reviewed.", Right: plane.MCPWrite,
			Example: "mcp classify linear get_issue query --fingerprint 3f9a1c7e5b20d1846a7bc3295e08f41d"},
			func(ctx context.Context, who plane.Principal, in *ClassifyInput) (*MCPChanged, error) {
				out, err := changed(ctx, d, who, in.Name, "%s is reviewed.", func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
					r, err := in.review(d.Catalogs.Get(id))
					if err != nil {
						return plane.Connection{}, err
					}
					return d.Consent.Edit(ctx, who, id, consent.Change{Version: in.Version, Reviews: []plane.Review{r}})
				})
				if err == nil {
					out.Done = fmt.Sprintf("%s/%s is a %s now.", out.Server.Name, bridge.Visible(in.Tool), in.Class)
				}
				return out, err
			}),
		define(About{Name: "mcp.refresh", Summary: "Reads a server's tools again, now.", Right: plane.MCPRead, Example: "mcp refresh linear"},
			func(ctx context.Context, who plane.Principal, in *NameInput) (*MCPTest, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				return testServer(ctx, d, who, in.Name)
			}),
	}
}

// definition is what the last listing says of a tool; nil when it says nothing.
func definition(c *plane.Catalog, tool string) *plane.Definition {
	if c != nil {
		for i := range c.Definitions {
			if c.Definitions[i].Name == tool {
				return &c.Definitions[i]
			}
		}
	}
	return nil
}

func names(c *plane.Catalog) []string {
	var out []string
	if c != nil {
		for i := range c.Definitions {
			out = append(out, c.Definitions[i].Name)
		}
	}
	return out
}

// leftOut says which rule keeps a tool from being used.
func leftOut(a policy.Attached, tool string) string { return a.Out(tool) }
