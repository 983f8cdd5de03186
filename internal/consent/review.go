package consent

import (
	"context"

	"patchbay/internal/plane"
)

// maxReviews is how many tools one change may review: as many as a catalog has.
const maxReviews = 256

// reviewed holds reviews to the definitions that are listed now. One that does
// not hold refuses them all.
func (s *Service) reviewed(ctx context.Context, who plane.Principal, c plane.Connection, in []plane.Review) ([]plane.Review, error) {
	if len(in) == 0 {
		return nil, nil
	}
	if len(in) > maxReviews {
		return nil, plane.Errorf(plane.InvalidInput, "At most %d tools are classified at once.", maxReviews).At("tool_classifications")
	}
	open, err := s.unsettled(ctx, c.ID)
	if err != nil {
		return nil, err
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
		case r.Class == plane.Query && open[r.Name] != "":
			return nil, settleFirst(c.Slug+"/"+r.Name, open[r.Name])
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

// unsettled are the tools of a connection that have a call nobody knows the outcome of,
// with that call. What holds a target is let go by a person's word on that call, and by
// nothing else that is changed.
func (s *Service) unsettled(ctx context.Context, id plane.ConnectionID) (map[string]plane.CallID, error) {
	out := map[string]plane.CallID{}
	if s.o.Claims == nil {
		return out, nil
	}
	claims, err := s.o.Claims(ctx, id)
	for _, c := range claims {
		out[c.Tool] = c.Call
	}
	return out, err
}

func settleFirst(what string, call plane.CallID) error {
	return plane.Errorf(plane.Conflict, "It is not settled what became of a call of %s (%s).", what, call).At("name").
		Then("patchbay runs resolve " + string(call) + " done|not-done")
}
