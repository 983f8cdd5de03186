package consent

import (
	"context"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Accepted is a definition that a person lets in. Without a fingerprint it is the
// one that is listed now; a part of one, at its beginning, is enough.
type Accepted struct {
	Name        string
	Fingerprint string
}

// drifted turns what a person says of changed definitions into pins. One that does
// not hold refuses them all.
func (s *Service) drifted(ctx context.Context, who plane.Principal, c plane.Connection, ch Change) ([]plane.Pin, error) {
	if len(ch.Accept)+len(ch.Block) == 0 {
		return nil, nil
	}
	if len(ch.Accept)+len(ch.Block) > maxReviews {
		return nil, plane.Errorf(plane.InvalidInput, "At most %d tools are decided on at once.", maxReviews).At("accept")
	}
	snap := s.o.Snapshot(c.ID)
	if snap == nil || snap.Stale(c.Version) {
		return nil, plane.Errorf(plane.Conflict, "%s has not been read since it changed.", c.Slug).Then("patchbay mcp refresh " + c.Slug)
	}
	have, err := s.o.Store.Pins(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	pins := make(map[string]plane.Pin, len(have))
	for _, p := range have {
		pins[p.Name] = p
	}
	accept := ch.Accept
	if len(accept) == 1 && accept[0].Name == "*" {
		accept = nil
		for i := range snap.Definitions {
			if d := &snap.Definitions[i]; d.Held != "" && pins[d.Name].BlockedBy == "" {
				accept = append(accept, Accepted{Name: d.Name, Fingerprint: d.Fingerprint})
			}
		}
	}
	var out []plane.Pin
	add := func(name string, decide func(p *plane.Pin, d *plane.Definition) error) error {
		i := slices.IndexFunc(snap.Definitions, func(d plane.Definition) bool { return d.Name == name && name != "" })
		p, pinned := pins[name]
		if i < 0 {
			return plane.Errorf(plane.Conflict, "%s does not offer a tool %q now.", c.Slug, bounded(name)).At("name").Then("patchbay mcp tools " + c.Slug)
		}
		if slices.ContainsFunc(out, func(q plane.Pin) bool { return q.Name == name }) {
			return plane.Errorf(plane.InvalidInput, "%s is named twice.", bounded(name)).At("name")
		}
		d := &snap.Definitions[i]
		if !pinned {
			p = plane.Pin{Connection: c.ID, Name: name, Fingerprint: d.Fingerprint, Raw: d.Raw, At: s.o.Clock.Now(), ChangedAt: s.o.Clock.Now()}
		}
		if err := decide(&p, d); err != nil {
			return err
		}
		out = append(out, p)
		return nil
	}
	for _, a := range accept {
		err := add(a.Name, func(p *plane.Pin, d *plane.Definition) error {
			if a.Fingerprint != "" && len(a.Fingerprint) < plane.ShownFingerprint {
				return plane.Errorf(plane.InvalidInput, "Give at least %d digits of the fingerprint.", plane.ShownFingerprint).At("fingerprint")
			}
			if !strings.HasPrefix(d.Fingerprint, a.Fingerprint) {
				return plane.Errorf(plane.Conflict, "%s changed since you looked: its definition is %s now.", bounded(a.Name), plane.ShortFingerprint(d.Fingerprint)).At("fingerprint").
					Then("patchbay mcp diff " + c.Slug)
			}
			if p.Fingerprint != d.Fingerprint {
				p.Before, p.Raw, p.Fingerprint = p.Raw, d.Raw, d.Fingerprint
				p.At, p.ChangedAt = s.o.Clock.Now(), s.o.Clock.Now()
			}
			p.AcceptedBy, p.BlockedBy = who.ID, ""
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, name := range ch.Block {
		if err := add(name, func(p *plane.Pin, _ *plane.Definition) error { p.AcceptedBy, p.BlockedBy = "", who.ID; return nil }); err != nil {
			return nil, err
		}
	}
	return out, nil
}
