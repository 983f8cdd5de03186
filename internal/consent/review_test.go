package consent

import (
	"testing"

	"patchbay/internal/plane"
)

// One review that does not hold refuses all that came with it.
func TestReviewsAreAllOrNothing(t *testing.T) {
	c := plane.Connection{ID: "con_a", Slug: "up", Version: 3}
	snap := &plane.Catalog{Connection: "con_a", Version: 3, CapturedAt: at, Definitions: []plane.Definition{{Name: "a", Fingerprint: "fa"}, {Name: "b", Fingerprint: "fb"},
		{Name: "odd", Fingerprint: "fo", Unsupported: "it is odd"}}}
	good := []plane.Review{{Name: "a", Fingerprint: "fa", Class: plane.Query}, {Name: "b", Fingerprint: "fb", Class: plane.Effect}}
	s := &Service{o: Options{Snapshot: func(plane.ConnectionID) *plane.Catalog { return snap }}}
	out, err := s.reviewed(t.Context(), ada, c, good)
	if err != nil || len(out) != 2 || out[0].By != ada.ID || out[1].Connection != "con_a" {
		t.Fatalf("%+v %v", out, err)
	}
	for what, bad := range map[string]plane.Review{
		"the same tool twice": {Name: "a", Fingerprint: "fa", Class: plane.Query},
		"another fingerprint": {Name: "b", Fingerprint: "fa", Class: plane.Query},
		"an unknown tool":     {Name: "c", Fingerprint: "fc", Class: plane.Query},
		"an unsupported one":  {Name: "odd", Fingerprint: "fo", Class: plane.Query},
		"an unknown class":    {Name: "b", Fingerprint: "fb", Class: "mutation"},
		"no class":            {Name: "b", Fingerprint: "fb"},
		"no fingerprint":      {Name: "b", Class: plane.Query},
	} {
		if out, err := s.reviewed(t.Context(), ada, c, []plane.Review{good[0], bad}); err == nil || out != nil {
			t.Errorf("%s: %+v %v", what, out, err)
		}
	}
	if _, err := s.reviewed(t.Context(), ada, c, make([]plane.Review, maxReviews+1)); plane.KindOf(err) != plane.InvalidInput {
		t.Error("more than a catalog has:", err)
	}
	snap.Version = 2
	if _, err := s.reviewed(t.Context(), ada, c, good); plane.KindOf(err) != plane.Conflict {
		t.Error("a listing from before a change:", err)
	}
}
