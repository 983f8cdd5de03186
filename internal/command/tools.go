package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// ToolRow is one tool of a server.
type ToolRow struct {
	Server      string          `json:"server"`
	Connection  string          `json:"connection"` // its id
	Name        string          `json:"name"`
	Alias       string          `json:"alias,omitempty"` // what a model calls it
	Description string          `json:"description"`
	Class       string          `json:"class"`
	Reviewed    bool            `json:"reviewed,omitempty"` // a person gave the class to this definition
	Hint        string          `json:"hint"`               // read-only, may write, none
	Unsupported string          `json:"unsupported,omitempty"`
	LeftOut     string          `json:"left_out,omitempty"` // the rule that keeps it from being used
	Held        string          `json:"held,omitempty"`     // why it waits for a person; see mcp diff
	Tokens      int             `json:"tokens"`             // about what its definition takes of a model's window
	Asks        []ToolAsk       `json:"asks,omitempty"`     // agents whose calls of it wait for a person, or are blocked; of one server alone
	Note        string          `json:"note,omitempty"`
	Fingerprint string          `json:"fingerprint"`
	Target      string          `json:"target,omitempty"`              // where its arguments say what it is about
	Key         string          `json:"idempotency_key,omitempty"`     // the argument that takes the key
	Contract    string          `json:"completion_contract,omitempty"` // that it was reviewed for
	Arguments   []string        `json:"arguments"`                     // names; the required ones end in *
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
}

// ToolAsk is an agent whose calls of a tool do not simply pass.
type ToolAsk struct {
	Agent string `json:"agent"`
	Mode  string `json:"mode"` // ask or block
	Why   string `json:"why"`
}

// asks are the agents that a connection serves whose calls of a tool wait, or are blocked.
func asks(s *policy.Snapshot, conn *plane.Connection, t *plane.Definition) (out []ToolAsk) {
	for _, a := range s.Agents() {
		if len(conn.Agents) > 0 && !slices.Contains(conn.Agents, a.Slug) || len(conn.Agents) == 0 && a.Trust != plane.Open {
			continue
		}
		if mode, why := s.Approval(a.Slug, conn, t); mode != plane.Always {
			out = append(out, ToolAsk{a.Slug, string(mode), why})
		}
	}
	return out
}

// MCPToolsInput may name a server.
type MCPToolsInput struct {
	Name string `arg:"" optional:"" json:"name" help:"Only this server's tools." predictor:"server"`
}

// MCPTools is tools of servers.
type MCPTools struct {
	Tools  []ToolRow `json:"tools"`
	Offers []Offered `json:"offers,omitempty"` // what each agent's model is shown of all its servers
	// Suggest is an allow list that fits the smallest model that would be shown the
	// tools, where they do not fit.
	Suggest []string `json:"suggest,omitempty"`
	Server  string   `json:"server,omitempty"`
	Unread  []string `json:"unread,omitempty"` // servers that nobody has read yet
}

// Text draws tools.
func (o *MCPTools) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, t := range o.Tools {
		offered := t.Class
		if t.Unsupported != "" {
			offered = "not offered: " + t.Unsupported
		} else if t.LeftOut != "" {
			offered = "off: " + t.LeftOut
		} else if t.Held != "" {
			offered = "held: " + t.Held
		}
		if t.Reviewed {
			offered += ", reviewed"
		}
		rows = append(rows, []string{t.Server, bridge.Visible(t.Name), bridge.Visible(strings.Join(t.Arguments, " ")), offered, t.Hint, plane.ShortFingerprint(t.Fingerprint), strconv.Itoa(t.Tokens), bridge.Visible(strings.TrimSpace(t.Description + " " + t.Note))})
	}
	table(w, s, []string{"SERVER", "TOOL", "ARGUMENTS", "CLASS", "HINT", "FINGERPRINT", "TOKENS", "DESCRIPTION"}, rows)
	o.sizes(w, s)
}

func toolRows(a policy.Attached, c *plane.Catalog, offered int) []ToolRow {
	out := []ToolRow{}
	if c == nil {
		return out
	}
	names := bridge.Aliases(a.Slug, c.Definitions)
	for i := range c.Definitions {
		t := &c.Definitions[i]
		hint := "none"
		if t.SideEffectFree() {
			hint = "read-only"
		} else if t.Destructive {
			hint = "may write"
		}
		row := ToolRow{Server: a.Slug, Connection: string(a.ID), Name: t.Name, Alias: names[t.Name], Description: t.Description, Class: string(t.Class), Reviewed: t.Reviewed,
			Hint: hint, Unsupported: t.Unsupported, Fingerprint: t.Fingerprint, Arguments: argumentNames(t.InputSchema), InputSchema: t.InputSchema, Target: a.Target(t.Name), Key: a.KeyArgument(t.Name), Contract: t.Contract}
		row.LeftOut, row.Held, row.Tokens = leftOut(a, t.Name), t.Held, bridge.Tokens(a.Slug, t, offered)
		if t.Unsupported != "" {
			row.Alias = ""
		}
		out = append(out, row)
	}
	return out
}

// argumentNames are the top-level arguments of a schema, in order of name.
func argumentNames(schema json.RawMessage) []string {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	out := []string{}
	if json.Unmarshal(schema, &s) != nil {
		return out
	}
	for name := range s.Properties {
		if slices.Contains(s.Required, name) {
			name += "*"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func listTools(d Deps, who plane.Principal, name string) (*MCPTools, error) {
	out := &MCPTools{Tools: []ToolRow{}, Server: name}
	snap := d.Policy()
	seen := snap.Visible(who)
	if name != "" {
		a, err := connection(snap, who, name)
		if err != nil {
			return nil, err
		}
		out.Server = a.Slug
		out.Tools = toolRows(a, d.Catalogs.Get(a.ID), d.Limits.DescriptionOffered)
		out.unread(a, d.Catalogs.Get(a.ID))
		claimed(out.Tools, d, seen, a.ID)
		size(d, who, out, a)
		return out, nil
	}
	for _, a := range seen {
		out.unread(a, d.Catalogs.Get(a.ID))
		out.Tools = append(out.Tools, toolRows(a, d.Catalogs.Get(a.ID), d.Limits.DescriptionOffered)...)
	}
	size(d, who, out, policy.Attached{})
	return out, nil
}

// unread notes a server whose tools nobody knows yet.
func (o *MCPTools) unread(a policy.Attached, c *plane.Catalog) {
	if a.Enabled && a.State != plane.StateAwaiting && (c == nil || c.CapturedAt.IsZero()) {
		o.Unread = append(o.Unread, a.Slug)
	}
}

// claimed notes where a tool has the name of another connection's: aliases keep
// them apart, a model's guess may not.
func claimed(rows []ToolRow, d Deps, seen []policy.Attached, id plane.ConnectionID) {
	by := map[string]string{}
	for _, a := range seen {
		if c := d.Catalogs.Get(a.ID); c != nil && a.ID != id {
			for i := range c.Definitions {
				by[c.Definitions[i].Name] = a.Slug
			}
		}
	}
	for i := range rows {
		if other := by[rows[i].Name]; other != "" && rows[i].Name != "" {
			rows[i].Note = "[" + other + " has a tool of this name too.]"
		}
	}
}

// Offered is what one agent's model is shown.
type Offered struct {
	Agent   string `json:"agent"`
	Model   string `json:"model"`
	Window  int    `json:"window"` // tokens
	Tools   int    `json:"tools"`
	Tokens  int    `json:"tokens"`
	Warning string `json:"warning,omitempty"`
}

// Bounds above which a model tends to explore instead of acting.
const (
	manyTools   = 40
	windowShare = 10 // percent
)

// sizes draws what the offers take.
func (o *MCPTools) sizes(w io.Writer, s Style) {
	if s.Terminal || len(o.Tools) == 0 {
		for _, n := range o.Unread {
			fmt.Fprintf(w, "%s was not read yet: patchbay mcp refresh %s\n", n, n)
		}
	}
	if !s.Terminal && len(o.Suggest) == 0 {
		return
	}
	for _, f := range o.Offers {
		if f.Warning != "" {
			fmt.Fprintf(w, "\n%s (%s): %s\n", f.Agent, f.Model, f.Warning)
		}
	}
	if len(o.Suggest) > 0 {
		fmt.Fprintf(w, "\nThis allow list fits the smallest of their models; put in it what the work needs:\n  patchbay mcp tools-set %s --allow %s\n", o.Server, strings.Join(o.Suggest, ","))
	}
}

// size says what each agent that the connection serves is shown of all its
// servers; without one, every agent of the caller's.
func size(d Deps, who plane.Principal, out *MCPTools, of policy.Attached) {
	snap := d.Policy()
	smallest := 0
	others := 0 // tokens of what the tightest agent has beside this connection
	for _, agent := range snap.Agents() {
		f := Offered{Agent: agent.Slug, Model: agent.Model}
		serves, own := of.Connection == nil, 0
		for _, a := range snap.Resolve(agent.Slug, who) {
			c := d.Catalogs.Get(a.ID)
			if a.Why != "" || c == nil {
				continue
			}
			mine := of.Connection != nil && a.ID == of.ID
			serves = serves || mine
			for i := range c.Definitions {
				t := &c.Definitions[i]
				if t.Unsupported != "" || t.Held != "" || leftOut(a, t.Name) != "" {
					continue
				}
				n := bridge.Tokens(a.Slug, t, d.Limits.DescriptionOffered)
				f.Tools++
				f.Tokens += n
				if mine {
					own += n
				}
			}
		}
		if !serves || f.Tools == 0 {
			continue
		}
		f.Window = d.Window(agent.Model)
		switch {
		case f.Tools > manyTools:
			f.Warning = fmt.Sprintf("%d tools are many for a model; beyond %d it tends to explore instead of acting.", f.Tools, manyTools)
		case f.Tokens > f.Window*windowShare/100:
			f.Warning = fmt.Sprintf("the definitions take about %d tokens, more than %d %% of its window of %d.", f.Tokens, windowShare, f.Window)
		}
		if f.Warning != "" && (smallest == 0 || f.Window < smallest) {
			smallest, others = f.Window, f.Tokens-own
		}
		out.Offers = append(out.Offers, f)
	}
	if smallest > 0 && of.Connection != nil {
		out.Suggest = suggest(out.Tools, smallest*windowShare/100-others)
	}
}

// suggest takes tools while they fit: those that say they only read first, the
// small ones before the large.
func suggest(rows []ToolRow, room int) []string {
	list := slices.Clone(rows)
	slices.SortStableFunc(list, func(a, b ToolRow) int {
		if ra, rb := a.Hint == "read-only", b.Hint == "read-only"; ra != rb {
			if ra {
				return -1
			}
			return 1
		}
		return a.Tokens - b.Tokens
	})
	var out []string
	for _, r := range list {
		if r.Unsupported != "" || r.LeftOut != "" || r.Held != "" || !plainWord.MatchString(r.Name) || strings.HasPrefix(r.Name, "-") {
			continue
		}
		if room -= r.Tokens; room < 0 || len(out) == manyTools {
			break
		}
		out = append(out, r.Name)
	}
	slices.Sort(out)
	return out
}
