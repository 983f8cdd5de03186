package command

import (
	"context"
	"slices"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Providers are an agent's own accounts for a client of the administration API:
// the same use cases as the commands, in the form that such clients know.
type Providers struct{ d Deps }

// NewProviders makes them.
func NewProviders(d Deps) *Providers { return &Providers{d} }

// presets are addresses that people would otherwise look up.
var presets = map[string]string{"linear": "https://mcp.linear.app/mcp"}

func (p *Providers) may(who plane.Principal, agent string, right plane.Rights) (*policy.Snapshot, error) {
	if err := p.d.off(); err != nil {
		return nil, err
	}
	if !who.Rights.Has(right) {
		return nil, plane.Errorf(plane.Forbidden, "The token lacks the scope %s.", strings.Join(right.Names(), " "))
	}
	snap := p.d.Policy()
	if _, ok := snap.Agent(agent); !ok {
		return nil, plane.Errorf(plane.NotFound, "There is no agent %q.", oneLine(agent, 40))
	}
	return snap, nil
}

// List returns the accounts of an agent that the caller may see.
func (p *Providers) List(ctx context.Context, who plane.Principal, agent string) (*ProviderList, error) {
	snap, err := p.may(who, agent, plane.MCPRead)
	if err != nil {
		return nil, err
	}
	out := &ProviderList{Providers: []Provider{}, Presets: presets}
	for _, a := range snap.Visible(who) {
		if a.Scope == (plane.Scope{Kind: plane.ScopeAgent, Name: agent}) {
			row, err := p.row(ctx, a.Connection, false)
			if err != nil {
				return nil, err
			}
			out.Providers = append(out.Providers, row)
		}
	}
	return out, nil
}

// One returns one account with all that its server lists.
func (p *Providers) One(ctx context.Context, who plane.Principal, agent, id string) (*Provider, error) {
	snap, err := p.may(who, agent, plane.MCPRead)
	if err != nil {
		return nil, err
	}
	c, err := account(snap, who, agent, id)
	if err != nil {
		return nil, err
	}
	row, err := p.row(ctx, c, true)
	return &row, err
}

// Now is One as the database has it, for whoever lost a race.
func (p *Providers) Now(ctx context.Context, who plane.Principal, agent, id string) (*Provider, error) {
	if p.d.View != nil {
		if err := p.d.View(ctx); err != nil {
			return nil, err
		}
	}
	return p.One(ctx, who, agent, id)
}

// Standing is a connection by the name that a command was given, as the database
// has it, for whoever lost a race.
func (p *Providers) Standing(ctx context.Context, who plane.Principal, name string) (*Provider, error) {
	if p.d.View != nil {
		if err := p.d.View(ctx); err != nil {
			return nil, err
		}
	}
	a, err := connection(p.d.Policy(), who, name)
	if err != nil {
		return nil, err
	}
	row, err := p.row(ctx, a.Connection, false)
	return &row, err
}

// Named is the connection that an editing command was given, or "".
func Named(in any) string {
	switch in := in.(type) {
	case *EditInput:
		return in.Name
	case *ToolsSetInput:
		return in.Name
	case *ClassifyInput:
		return in.Name
	case *DiffInput:
		return in.Name
	}
	return ""
}

func account(snap *policy.Snapshot, who plane.Principal, agent, id string) (*plane.Connection, error) {
	for _, a := range snap.Visible(who) {
		if string(a.ID) == id && a.Scope == (plane.Scope{Kind: plane.ScopeAgent, Name: agent}) {
			return a.Connection, nil
		}
	}
	return nil, plane.Errorf(plane.NotFound, "The agent has no such account.").At("provider_id")
}

// Save saves an account and reads what it offers; that this fails is said by the
// catalog's health.
func (p *Providers) Save(ctx context.Context, who plane.Principal, agent string, in *SaveRequest) (*Provider, error) {
	if _, err := p.may(who, agent, plane.MCPWrite); err != nil {
		return nil, err
	}
	c, err := p.d.Consent.Save(ctx, who, consent.Account{Agent: agent, Label: in.Name, Endpoint: in.Endpoint, Token: secret.New(strings.TrimSpace(in.Token)), New: in.NewAccount})
	if err != nil {
		return nil, err
	}
	return p.look(ctx, who, agent, string(c.ID))
}

// Update edits an account.
func (p *Providers) Update(ctx context.Context, who plane.Principal, agent, id string, in *UpdateRequest) (*Provider, error) {
	ch := consent.Change{Version: in.Version, Token: secret.New(strings.TrimSpace(in.Token))}
	if in.Name != "" {
		ch.Label = &in.Name
	}
	if in.Endpoint != "" {
		ch.Endpoint = &in.Endpoint
	}
	if err := p.edit(ctx, who, agent, id, ch); err != nil {
		return nil, err
	}
	return p.look(ctx, who, agent, id)
}

// Discover reads what an account offers, now.
func (p *Providers) Discover(ctx context.Context, who plane.Principal, agent, id string) (*Provider, error) {
	if _, err := p.may(who, agent, plane.MCPRead); err != nil {
		return nil, err
	}
	return p.look(ctx, who, agent, id)
}

// Enable says what is used of an account, all or nothing.
func (p *Providers) Enable(ctx context.Context, who plane.Principal, agent, id string, in *EnableRequest) (*Provider, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	snap, err := p.may(who, agent, plane.MCPWrite)
	if err != nil {
		return nil, err
	}
	c, err := account(snap, who, agent, id)
	if err != nil {
		return nil, err
	}
	ch := consent.Change{Version: in.Version}
	if !in.KeepState {
		on := true
		ch.Enabled = &on
	}
	for _, k := range in.Classes {
		ch.Reviews = append(ch.Reviews, plane.Review{Name: k.Name, Fingerprint: k.Fingerprint, Class: plane.Class(k.Class), Contract: k.Contract})
	}
	switch {
	case in.DisabledTools != nil:
		ch.Prefs = func(f *plane.Preferences) {
			f.Excluded, f.Legacy = slices.Clone(*in.DisabledTools), nil
			slices.Sort(f.Excluded)
			f.Excluded = slices.Compact(f.Excluded)
		}
	case in.Tools != nil:
		if err := p.legacy(c, *in.Tools, &ch); err != nil {
			return nil, err
		}
	}
	if err := p.edit(ctx, who, agent, id, ch); err != nil {
		return nil, err
	}
	return p.One(ctx, who, agent, id)
}

// check refuses what does not go together.
func (in *EnableRequest) check() error {
	bad := func(field, text string) error { return plane.Errorf(plane.InvalidInput, "%s", text).At(field) }
	switch {
	case in.Version == 0:
		return bad("version", "Say which version you looked at.")
	case in.Tools != nil && (in.DisabledTools != nil || len(in.Classes) > 0):
		return bad("tools", "tools is a full selection; it goes with neither disabled_tools nor tool_classifications.")
	case in.KeepPreferences && (in.DisabledTools != nil || in.Tools != nil):
		return bad("keep_preferences", "keep_preferences keeps the selection; leave disabled_tools and tools out.")
	case in.DisabledTools == nil && in.Tools == nil && !in.KeepPreferences && len(in.Classes) == 0:
		return bad("disabled_tools", "Say what is used: disabled_tools, keep_preferences or tool_classifications.")
	}
	return nil
}

// legacy turns a full selection into exclusions, where the present listing is
// known; else it is kept until the first one.
func (p *Providers) legacy(c *plane.Connection, tools []Selected, ch *consent.Change) error {
	chosen := make([]string, 0, len(tools))
	for _, t := range tools {
		if t.Name == "" || slices.Contains(chosen, t.Name) {
			return plane.Errorf(plane.InvalidInput, "A tool is named once, by its name.").At("tools")
		}
		chosen = append(chosen, t.Name)
	}
	cat := p.d.Catalogs.Get(c.ID)
	if cat == nil || cat.Stale(c.Version) {
		if slices.ContainsFunc(tools, func(t Selected) bool { return t.Class != "" }) {
			return plane.Errorf(plane.Conflict, "%s has not been read since it changed, so nothing can be reviewed.", c.Slug).At("tools").Then("POST discover")
		}
		ch.Prefs = func(f *plane.Preferences) { f.Legacy = &chosen }
		return nil
	}
	listed := map[string]*plane.Definition{}
	for i := range cat.Definitions {
		if d := &cat.Definitions[i]; d.Unsupported == "" {
			listed[d.Name] = d
		}
	}
	given := map[string]bool{}
	for _, t := range tools {
		d := listed[t.Name]
		switch {
		case d == nil:
			return plane.Errorf(plane.Conflict, "%s does not offer a tool %q now.", c.Slug, oneLine(t.Name, 60)).At("tools")
		case t.Fingerprint != "" && t.Fingerprint != d.Fingerprint:
			return plane.Errorf(plane.Conflict, "%s changed since you looked: its definition is %s now.", oneLine(t.Name, 60), d.Fingerprint).At("tools")
		case t.Class != "":
			given[t.Name] = true
			ch.Reviews = append(ch.Reviews, plane.Review{Name: t.Name, Fingerprint: t.Fingerprint, Class: plane.Class(t.Class), Contract: t.Contract})
		}
	}
	for _, d := range listed { // what the selection does not review is reviewed no more
		if (d.Class == plane.Query || d.Contract != "") && !given[d.Name] {
			ch.Reviews = append(ch.Reviews, plane.Review{Name: d.Name, Fingerprint: d.Fingerprint, Class: plane.Effect})
		}
	}
	ch.Prefs = func(f *plane.Preferences) {
		kept := slices.DeleteFunc(slices.Clone(f.Excluded), func(n string) bool { return listed[n] != nil })
		f.Excluded, f.Legacy = kept, &chosen
		f.Convert(slices.Collect(func(yield func(string) bool) {
			for n := range listed {
				if !yield(n) {
					return
				}
			}
		}))
	}
	return nil
}

// Disable turns an account off; no server is asked.
func (p *Providers) Disable(ctx context.Context, who plane.Principal, agent, id string, in *DisableRequest) (*Provider, error) {
	off := false
	if err := p.edit(ctx, who, agent, id, consent.Change{Version: in.Version, Enabled: &off}); err != nil {
		return nil, err
	}
	return p.One(ctx, who, agent, id)
}

// Drift says what changed at an account.
func (p *Providers) Drift(ctx context.Context, who plane.Principal, agent, id string) (*MCPDiff, error) {
	snap, err := p.may(who, agent, plane.MCPRead)
	if err != nil {
		return nil, err
	}
	if _, err := account(snap, who, agent, id); err != nil {
		return nil, err
	}
	return diff(ctx, p.d, who, id)
}

// Decide lets changed definitions in, or keeps tools out.
func (p *Providers) Decide(ctx context.Context, who plane.Principal, agent, id string, in *DriftRequest) (*MCPDiff, error) {
	ch := consent.Change{Version: in.Version, Block: in.Block}
	for _, a := range in.Accept {
		if len(a.Fingerprint) < plane.ShownFingerprint {
			return nil, plane.Errorf(plane.InvalidInput, "Say which definition you looked at.").At("fingerprint")
		}
		ch.Accept = append(ch.Accept, consent.Accepted{Name: a.Name, Fingerprint: a.Fingerprint})
	}
	if len(ch.Accept)+len(ch.Block) == 0 {
		return nil, plane.Errorf(plane.InvalidInput, "Say what is accepted or blocked.").At("accept")
	}
	if err := p.edit(ctx, who, agent, id, ch); err != nil {
		return nil, err
	}
	return p.Drift(ctx, who, agent, id)
}

func (p *Providers) edit(ctx context.Context, who plane.Principal, agent, id string, ch consent.Change) error {
	snap, err := p.may(who, agent, plane.MCPWrite)
	if err != nil {
		return err
	}
	c, err := account(snap, who, agent, id)
	if err != nil {
		return err
	}
	if ch.Version == 0 && ch.Enabled == nil {
		return plane.Errorf(plane.InvalidInput, "Say which version you looked at.").At("version")
	}
	_, err = p.d.Consent.Edit(ctx, who, c.ID, ch)
	return err
}

// look reads an account's server and returns how the account stands then.
func (p *Providers) look(ctx context.Context, who plane.Principal, agent, id string) (*Provider, error) {
	snap := p.d.Policy()
	c, err := account(snap, who, agent, id)
	if err != nil {
		return nil, err
	}
	if g, denial := snap.Decide(who, policy.Discover, policy.Resource{Connection: c.ID}); denial == nil {
		if err := p.d.Catalogs.Refresh(ctx, g); err != nil && ctx.Err() != nil {
			return nil, err
		}
	}
	return p.One(ctx, who, agent, id)
}

// row is an account as clients see it; whole with all that its server lists.
func (p *Providers) row(ctx context.Context, c *plane.Connection, whole bool) (Provider, error) {
	kind, _, _ := strings.Cut(string(c.Auth), ":")
	out := Provider{ID: string(c.ID), Name: c.Label, Slug: c.Slug, Endpoint: withoutQuery(c.Endpoint), AuthKind: kind, State: string(c.State), Enabled: c.Enabled,
		Pinned: c.Origin != plane.Added, NewAccount: !c.Slot, Version: c.Version, NewTools: "auto", Disabled: append([]string{}, c.Prefs.Excluded...), LegacyTools: c.Prefs.Legacy,
		Tools: []ProviderTool{}, Classes: []Classification{}}
	if c.Label == "" {
		out.Name = c.Slug
	}
	if c.Holds() {
		out.NewTools = "hold"
	}
	if c.State == plane.StateAuthError {
		out.AuthError = plane.ReasonText(c.Reason)
	}
	reviews, err := p.d.Reviews(ctx, c.ID)
	if err != nil {
		return out, err
	}
	for _, r := range reviews {
		out.Classes = append(out.Classes, Classification{Name: r.Name, Fingerprint: r.Fingerprint, Class: string(r.Class), Contract: r.Contract})
	}
	cat := p.d.Catalogs.Get(c.ID)
	if cat == nil {
		return out, nil
	}
	out.Catalog = &ProviderCatalog{Health: string(cat.Health), Detail: cat.Detail, CapturedAt: cat.CapturedAt, FailedAt: cat.FailedAt, Revision: cat.Revision,
		Stale: cat.Stale(c.Version), Resources: len(cat.Resources), Prompts: len(cat.Prompts)}
	for _, t := range toolRows(policy.Attached{Connection: c}, cat, p.d.Limits.DescriptionOffered) {
		tool := ProviderTool{Name: t.Name, Description: bridge.Visible(t.Description), Fingerprint: t.Fingerprint, Class: t.Class, Reviewed: t.Reviewed, Hint: t.Hint,
			Supported: t.Unsupported == ""}
		tool.Reason = t.Unsupported
		for _, why := range []string{t.LeftOut, t.Held} {
			if tool.Reason == "" {
				tool.Reason = why
			}
		}
		tool.Enabled = tool.Reason == ""
		if tool.Enabled && c.Enabled {
			out.Tools = append(out.Tools, tool)
		}
		if whole {
			tool.InputSchema = t.InputSchema
			out.Discovered = append(out.Discovered, tool)
		}
	}
	return out, nil
}
