package consent

import (
	"patchbay/internal/plane"
)

// maxReviews is how many tools one change may review: as many as a catalog has.
const maxReviews = 256

// reviewed holds reviews to the definitions that are listed now. One that does
// not hold refuses them all.
func (s *Service) reviewed(who plane.Principal, c plane.Connection, in []plane.Review) ([]plane.Review, error) {
	if len(in) == 0 {
		return nil, nil
	}
	if len(in) > maxReviews {
		return nil, plane.Errorf(plane.InvalidInput, "At most %d tools are classified at once.", maxReviews).At("tool_classifications")
	}
	snap := s.o.Snapshot(c.ID)
	if snap == nil || snap.Stale(c.Version) {
		return nil, plane.Errorf(plane.Conflict, "%s has not been read since it changed.", c.Slug).Then("patchbay mcp refresh " + c.Slug)
	}
	listed := make(map[string]*plane.Definition, len(snap.Definitions))
	for i := range snap.Definitions {
		listed[snap.Definitions[i].Name] = &snap.Definitions[i]
	}
	out := make([]plane.Review, 0, len(in))
	said := map[string]bool{}
	for _, r := range in {
		d := listed[r.Name]
		switch {
		case r.Class != plane.Query && r.Class != plane.Effect:
			return nil, plane.Errorf(plane.InvalidInput, "A tool is a query or an effect, not %q.", r.Class).At("class")
		case said[r.Name]:
			return nil, plane.Errorf(plane.InvalidInput, "%s is named twice.", r.Name).At("name")
		case d == nil:
			return nil, plane.Errorf(plane.Conflict, "%s does not offer a tool %q now.", c.Slug, r.Name).At("name").Then("patchbay mcp tools " + c.Slug)
		case d.Unsupported != "":
			return nil, plane.Errorf(plane.InvalidInput, "%s is not supported: %s.", r.Name, d.Unsupported).At("name")
		case r.Fingerprint != d.Fingerprint:
			return nil, plane.Errorf(plane.Conflict, "%s changed since you looked: its definition is %s now, not %s.", r.Name, d.Fingerprint, r.Fingerprint).At("fingerprint").
				Then("patchbay mcp tools " + c.Slug + " --json")
		}
		if r.Contract != "" {
			if s.o.Contract == nil {
				return nil, plane.Errorf(plane.InvalidInput, "There are no completion contracts here.").At("completion_contract")
			}
			if err := s.o.Contract(r.Contract, c.Endpoint, r.Name, r.Class); err != nil {
				return nil, err
			}
		}
		said[r.Name] = true
		r.Connection, r.By = c.ID, who.ID
		out = append(out, r)
	}
	return out, nil
}
