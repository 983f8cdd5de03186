package catalog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
)

type jsonRaw = json.RawMessage

// verdict is what a listing changes beside the snapshot.
type verdict struct {
	gone   []plane.Review // of definitions that are no more
	pins   []plane.Pin    // adopted
	audits []plane.AuditEntry
	drop   []string           // pins of tools that were absent for longest, beyond the bound
	prefs  *plane.Preferences // a legacy selection, turned into exclusions
}

// pinsKept bounds how many definitions are remembered of one connection.
const pinsKept = 1024

// noted is how long a definition that keeps changing is not put on record again.
const noted = time.Minute

// judge decides of every definition of next: its class, whether a person looked
// at it, and whether it is held back. A definition is adopted by its pin: the
// first listing of a connection pins all of it, later ones what is not held.
func (c *Catalogs) judge(ctx context.Context, conn plane.Connection, next, old *plane.Catalog, said Saying) (verdict, error) {
	var v verdict
	reviews, err := c.store.Reviews(ctx, conn.ID)
	if err != nil {
		return v, storeError{err}
	}
	pins, err := c.store.Pins(ctx, conn.ID)
	if err != nil {
		return v, storeError{err}
	}
	for _, r := range said.Reviews {
		reviews = slices.DeleteFunc(reviews, func(o plane.Review) bool { return o.Name == r.Name })
	}
	for _, p := range said.Pins {
		pins = slices.DeleteFunc(pins, func(o plane.Pin) bool { return o.Name == p.Name })
	}
	reviews, pins = append(reviews, said.Reviews...), append(pins, said.Pins...)
	v.gone = review(next.Definitions, reviews)
	if next.CapturedAt.IsZero() {
		return v, nil
	}
	prefs := conn.Prefs.Clone()
	if next.Health == plane.HealthOK && prefs.Convert(supported(next)) {
		v.prefs = &prefs
	}
	j := judging{v: &v, conn: conn, at: next.CapturedAt, first: len(pins) == 0, pins: make(map[string]*plane.Pin, len(pins)), was: map[string]string{}, listed: map[string]bool{}}
	for i := range pins {
		j.pins[pins[i].Name] = &pins[i]
	}
	if old != nil {
		for i := range old.Definitions {
			j.was[old.Definitions[i].Name] = old.Definitions[i].Fingerprint
		}
	}
	for i := range next.Definitions {
		j.definition(&next.Definitions[i])
	}
	v.drop = j.surplus()
	if old != nil && next.InstructionsAt.After(old.InstructionsAt) {
		j.note("instructions.changed", "", "adopted")
	}
	return v, nil
}

func supported(c *plane.Catalog) []string {
	var out []string
	for i := range c.Definitions {
		if c.Definitions[i].Unsupported == "" {
			out = append(out, c.Definitions[i].Name)
		}
	}
	return out
}

type judging struct {
	v      *verdict
	conn   plane.Connection
	at     time.Time
	first  bool
	pins   map[string]*plane.Pin
	was    map[string]string // name -> fingerprint, as the last snapshot had it
	listed map[string]bool
}

// Why a definition is held.
const (
	heldNew     = "new, and nobody has accepted it"
	heldChanged = "changed, and nobody has accepted it"
	heldBlocked = "kept out by a person"
)

func (j *judging) definition(d *plane.Definition) {
	d.Held = ""
	if d.Name == "" || d.Unsupported != "" {
		return // it cannot be offered; what it becomes is new
	}
	j.listed[d.Name] = true
	p := j.pins[d.Name]
	fresh := plane.Pin{Connection: j.conn.ID, Name: d.Name, Fingerprint: d.Fingerprint, Raw: d.Raw, At: j.at}
	switch {
	case p == nil && j.first:
		j.v.pins = append(j.v.pins, fresh)
	case p == nil && j.conn.Holds():
		d.Held = heldNew
		j.noteOnce("definition.new", d, "held")
	case p == nil:
		fresh.ChangedAt = j.at
		j.v.pins = append(j.v.pins, fresh)
		j.note("definition.new", d.Name, "adopted", d.Fingerprint)
	case p.BlockedBy != "":
		d.Held = heldBlocked
	case p.Fingerprint == d.Fingerprint:
		d.Reviewed = d.Reviewed || p.AcceptedBy != ""
	case j.conn.Holds():
		d.Held = heldChanged
		j.noteOnce("definition.changed", d, "held: "+Kinds(Grade(p.Raw, d.Raw, nil)))
	default:
		fresh.Before, fresh.ChangedAt = p.Raw, j.at
		j.v.pins = append(j.v.pins, fresh)
		if j.at.Sub(p.ChangedAt) >= noted {
			j.note("definition.changed", d.Name, "adopted: "+Kinds(Grade(p.Raw, d.Raw, nil)), d.Fingerprint)
		}
	}
}

// surplus are the pins to forget: of absent tools that no person said anything of,
// the oldest first. A server that invents names pushes no listed tool out.
func (j *judging) surplus() []string {
	over := len(j.pins) + len(j.v.pins) - pinsKept
	for _, p := range j.v.pins {
		if j.pins[p.Name] != nil {
			over-- // in place of one
		}
	}
	if over <= 0 {
		return nil
	}
	var absent []*plane.Pin
	for _, p := range j.pins {
		if !j.listed[p.Name] && p.BlockedBy == "" && p.AcceptedBy == "" {
			absent = append(absent, p)
		}
	}
	slices.SortFunc(absent, func(a, b *plane.Pin) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Name, b.Name)) })
	var out []string
	for _, p := range absent[:min(over, len(absent))] {
		out = append(out, p.Name)
	}
	return out
}

// noteOnce is for what stays as it is from one listing to the next.
func (j *judging) noteOnce(action string, d *plane.Definition, decision string) {
	if j.was[d.Name] != d.Fingerprint {
		j.note(action, d.Name, decision, d.Fingerprint)
	}
}

func (j *judging) note(action, name, decision string, digest ...string) {
	j.v.audits = append(j.v.audits, plane.AuditEntry{Who: "server", Action: action, What: strings.TrimSpace(string(j.conn.ID) + " " + clip(name, 200)),
		Decision: decision, Digest: strings.Join(digest, "")})
}

// review gives each definition the class that a person gave to its very bytes,
// and every other one effect. It returns the reviews of tools that are listed
// with other bytes now. A tool that is not listed keeps its review.
func review(defs []plane.Definition, reviews []plane.Review) (gone []plane.Review) {
	by := make(map[string]*plane.Review, len(reviews))
	for i := range reviews {
		by[reviews[i].Name] = &reviews[i]
	}
	for i := range defs {
		d := &defs[i]
		d.Class, d.Reviewed, d.Contract = plane.Effect, false, ""
		switch r := by[d.Name]; {
		case r == nil:
		case r.Fingerprint == d.Fingerprint:
			d.Class, d.Reviewed, d.Contract = r.Class, true, r.Contract
		default:
			gone = append(gone, *r)
		}
	}
	return gone
}

// Bounds of what a server can put on record by changing its definitions.
const (
	notesAtOnce = 16 // of one listing; more are one entry
	notesHour   = 64 // of one connection
)

type noting struct {
	since time.Time
	n     int
}

// worthNoting bounds what goes on record of one connection's changes: many at once
// are one entry, and beyond an hour's share there is one that says so.
func (c *Catalogs) worthNoting(id plane.ConnectionID, audits []plane.AuditEntry) []plane.AuditEntry {
	if len(audits) > notesAtOnce {
		audits = append(slices.Clip(audits[:notesAtOnce-1]), plane.AuditEntry{Who: "server", Action: "definition.many", What: string(id), Decision: fmt.Sprintf("%d more definitions changed at once", len(audits)-notesAtOnce+1)})
	}
	if len(audits) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, now := c.notes[id], c.clock.Now()
	if n == nil || now.Sub(n.since) > time.Hour {
		n = &noting{since: now}
		c.notes[id] = n
	}
	before := n.n
	n.n += len(audits)
	switch {
	case n.n <= notesHour:
		return audits
	case before < notesHour:
		return append(slices.Clip(audits[:notesHour-before]), plane.AuditEntry{Who: "server", Action: "definition.flood", What: string(id), Decision: "it changes too often to be put on record this hour"})
	}
	return nil
}

// record writes a verdict down: the reviews of definitions that changed are
// withdrawn, whoever looks at the new one says it again.
func (c *Catalogs) record(t plane.Tx, id plane.ConnectionID, v verdict) error {
	for i := range v.gone {
		r := &v.gone[i]
		if err := c.store.DropReview(t, r); err != nil {
			return err
		}
		e := plane.AuditEntry{Who: "server", Action: "review.withdrawn", What: string(r.Connection) + " " + clip(r.Name, 200), Decision: "changed", Digest: r.Fingerprint}
		if err := c.store.AddAudit(t, e); err != nil {
			return err
		}
	}
	for i := range v.pins {
		if err := c.store.PutPin(t, &v.pins[i]); err != nil {
			return err
		}
	}
	for _, name := range v.drop {
		if err := c.store.DropPin(t, id, name); err != nil {
			return err
		}
	}
	for _, e := range c.worthNoting(id, v.audits) {
		if err := c.store.AddAudit(t, e); err != nil {
			return err
		}
	}
	return nil
}
