package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// DiffInput asks what changed at a server, and may decide on it.
type DiffInput struct {
	Name        string   `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	Accept      []string `json:"accept,omitempty" help:"Tools to let in with their present definition; * for all that are held." predictor:"tool"`
	Block       []string `json:"block,omitempty" help:"Tools to keep out until they are accepted." predictor:"tool"`
	Fingerprint string   `json:"fingerprint,omitempty" help:"The definition that was looked at, its first digits; with one accepted tool."`
	Version     int64    `json:"version,omitempty" help:"The version that was looked at; a connection that changed since is left alone."`
}

// DiffRow is what happened to one tool's definition.
type DiffRow struct {
	Tool    string           `json:"tool"`
	State   string           `json:"state"` // adopted, accepted, held, blocked, absent
	At      time.Time        `json:"at"`
	From    string           `json:"from,omitempty"` // fingerprints
	To      string           `json:"to,omitempty"`
	Renamed string           `json:"renamed_from,omitempty"`
	By      string           `json:"by,omitempty"` // who accepted or blocked it
	Changes []catalog.Change `json:"changes"`
}

// MCPDiff is what changed at a server since it was connected.
type MCPDiff struct {
	Server  string           `json:"server"`
	Version int64            `json:"version"`
	Hold    bool             `json:"hold"` // new and changed definitions wait for a person
	Tools   []DiffRow        `json:"tools"`
	Other   []catalog.Change `json:"other"`            // instructions, and what the server asks for
	Unread  bool             `json:"unread,omitempty"` // nobody has read it yet
	Done    string           `json:"done,omitempty"`
}

// Text draws the changes. What the server wrote is made visible.
func (o *MCPDiff) Text(w io.Writer, s Style) {
	if o.Done != "" {
		fmt.Fprintln(w, o.Done)
		return
	}
	if o.Unread {
		fmt.Fprintf(w, "%s was not read yet: patchbay mcp refresh %s\n", o.Server, o.Server)
		return
	}
	if len(o.Tools)+len(o.Other) == 0 {
		fmt.Fprintf(w, "Nothing changed at %s since it was connected.\n", o.Server)
		return
	}
	for _, r := range o.Tools {
		when := ""
		if !r.At.IsZero() {
			when = s.ago(r.At)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s", bridge.Visible(oneLine(r.Tool, 80)), s.state(r.State), catalog.Kinds(r.Changes), when)
		if r.From != "" && r.To != r.From {
			fmt.Fprintf(w, "\t%s -> %s", plane.ShortFingerprint(r.From), plane.ShortFingerprint(r.To))
		}
		fmt.Fprintln(w)
		drawChanges(w, r.Changes)
	}
	drawChanges(w, o.Other)
	for _, r := range o.Tools {
		if r.State == "held" || r.State == "blocked" {
			if word, ok := shellWord(r.Tool); ok {
				fmt.Fprintf(w, "\nLet it in: patchbay mcp diff %s --accept %s --fingerprint %s\n", o.Server, word, plane.ShortFingerprint(r.To))
				return
			}
		}
	}
}

func drawChanges(w io.Writer, changes []catalog.Change) {
	for _, c := range changes {
		fmt.Fprintf(w, "  %s\t%s\n", c.Kind, bridge.Visible(oneLine(c.Where, 120)))
		if c.Before != "" {
			fmt.Fprintf(w, "    - %s\n", bridge.Visible(oneLine(c.Before, 200)))
		}
		if c.After != "" {
			fmt.Fprintf(w, "    + %s\n", bridge.Visible(oneLine(c.After, 200)))
		}
	}
}

func driftCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "mcp.diff", Summary: "Shows what changed at a server, and lets held definitions in or keeps tools out.", Right: plane.MCPRead,
			Example: "mcp diff linear --accept get_issue", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *DiffInput) (*MCPDiff, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				done, err := decideDrift(ctx, d, who, in)
				if err != nil {
					return nil, err
				}
				out, err := diff(ctx, d, who, in.Name)
				if err == nil {
					out.Done = done
				}
				return out, err
			}),
	}
}

// decideDrift does what the input says of definitions, and says so.
func decideDrift(ctx context.Context, d Deps, who plane.Principal, in *DiffInput) (string, error) {
	if len(in.Accept)+len(in.Block) == 0 {
		return "", nil
	}
	if !who.Rights.Has(plane.MCPWrite) {
		return "", plane.Errorf(plane.Forbidden, "The token lacks the scope %s.", strings.Join(plane.MCPWrite.Names(), " "))
	}
	if in.Fingerprint != "" && (len(in.Accept) != 1 || in.Accept[0] == "*") {
		return "", plane.Errorf(plane.InvalidInput, "A fingerprint goes with one tool that is accepted.").At("fingerprint")
	}
	ch := consent.Change{Version: in.Version, Block: in.Block}
	for _, t := range in.Accept {
		ch.Accept = append(ch.Accept, consent.Accepted{Name: t, Fingerprint: in.Fingerprint})
	}
	_, err := changed(ctx, d, who, in.Name, "%s", func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
		return d.Consent.Edit(ctx, who, id, ch)
	})
	if err != nil {
		return "", err
	}
	var said []string
	if len(in.Accept) > 0 {
		said = append(said, bridge.Visible(oneLine(strings.Join(in.Accept, ", "), 200))+" accepted")
	}
	if len(in.Block) > 0 {
		said = append(said, bridge.Visible(oneLine(strings.Join(in.Block, ", "), 200))+" kept out")
	}
	return in.Name + ": " + strings.Join(said, ", ") + ".", nil
}

// diff compares what is listed now with what was adopted before.
func diff(ctx context.Context, d Deps, who plane.Principal, name string) (*MCPDiff, error) {
	a, err := connection(d.Policy(), who, name)
	if err != nil {
		return nil, err
	}
	pins, err := d.Pins(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	out := &MCPDiff{Server: a.Slug, Version: a.Version, Hold: a.Holds(), Tools: []DiffRow{}, Other: []catalog.Change{}}
	c := d.Catalogs.Get(a.ID)
	if c == nil || c.CapturedAt.IsZero() {
		out.Unread = true
		return out, nil
	}
	listed := map[string]*plane.Definition{}
	for i := range c.Definitions {
		listed[c.Definitions[i].Name] = &c.Definitions[i]
	}
	absent := map[string][]byte{}
	pinned := map[string]bool{}
	for i := range pins {
		p := &pins[i]
		pinned[p.Name] = true
		if listed[p.Name] == nil {
			absent[p.Name] = p.Raw
		}
	}
	others := otherTools(d, who, a)
	for i := range pins {
		if row, ok := driftRow(&pins[i], listed[pins[i].Name], others, absent, c.CapturedAt); ok {
			out.Tools = append(out.Tools, row)
		}
	}
	for i := range c.Definitions {
		if t := &c.Definitions[i]; t.Name != "" && !pinned[t.Name] && t.Held != "" {
			out.Tools = append(out.Tools, DiffRow{Tool: t.Name, State: "held", At: c.CapturedAt, To: t.Fingerprint,
				Renamed: catalog.Renamed(t.Raw, absent), Changes: fresh(t.Raw, others, absent)})
		}
	}
	slices.SortFunc(out.Tools, func(x, y DiffRow) int { return strings.Compare(x.Tool, y.Tool) })
	if !c.InstructionsAt.IsZero() {
		out.Other = append(out.Other, catalog.Change{Kind: catalog.KindInstructions, Before: oneLine(c.InstructionsBefore, 300), After: oneLine(c.Instructions, 300)})
	}
	if a.OAuth.Grown != "" {
		out.Other = append(out.Other, catalog.Change{Kind: catalog.KindScopes, Where: "granted", After: oneLine(a.OAuth.Grown, 300)})
	}
	if a.OAuth.StepUp != "" {
		out.Other = append(out.Other, catalog.Change{Kind: catalog.KindScopes, Where: "asked for", After: oneLine(a.OAuth.StepUp, 300)})
	}
	return out, nil
}

// fresh grades a definition that replaces none.
func fresh(raw []byte, others []string, absent map[string][]byte) []catalog.Change {
	changes := catalog.Grade(nil, raw, others)
	if from := catalog.Renamed(raw, absent); from != "" {
		changes = append(changes, catalog.Change{Kind: catalog.KindRenamed, Where: "/name", Before: from})
	}
	return changes
}

// driftRow says what became of one adopted definition; not ok where nothing did.
func driftRow(p *plane.Pin, now *plane.Definition, others []string, absent map[string][]byte, at time.Time) (DiffRow, bool) {
	row := DiffRow{Tool: p.Name, State: "adopted", At: p.ChangedAt, From: p.Fingerprint, To: p.Fingerprint, Changes: []catalog.Change{}}
	switch {
	case now == nil:
		row.State, row.At, row.To = "absent", at, ""
		return row, true
	case p.BlockedBy != "":
		row.State, row.By, row.To = "blocked", p.BlockedBy, now.Fingerprint
	case now.Held != "":
		row.State, row.At, row.To = "held", at, now.Fingerprint
	case p.AcceptedBy != "":
		row.State, row.By = "accepted", p.AcceptedBy
	case p.ChangedAt.IsZero():
		return row, false
	}
	switch {
	case now.Fingerprint != p.Fingerprint:
		row.Changes = catalog.Grade(p.Raw, now.Raw, others)
	case p.ChangedAt.IsZero():
	case len(p.Before) == 0:
		row.From, row.Renamed = "", catalog.Renamed(p.Raw, absent)
		row.Changes = fresh(p.Raw, others, absent)
	default:
		row.From, _ = catalog.Fingerprint(p.Before) // it was read once
		row.Changes = catalog.Grade(p.Before, p.Raw, others)
	}
	return row, true
}

// otherTools are the names of tools of other connections in the caller's sight,
// but for those that this one has too.
func otherTools(d Deps, who plane.Principal, of policy.Attached) []string {
	own := names(d.Catalogs.Get(of.ID))
	var out []string
	for _, a := range d.Policy().Visible(who) {
		if a.ID == of.ID {
			continue
		}
		for _, n := range names(d.Catalogs.Get(a.ID)) {
			if !slices.Contains(own, n) && strings.ContainsAny(n, "_-./") && len(out) < maxOthers {
				out = append(out, n)
			}
		}
	}
	return out
}

// maxOthers bounds the names that a text is searched for.
const maxOthers = 2000
