package plane_test

import (
	"testing"

	"pgregory.net/rapid"

	"patchbay/internal/plane"
)

func TestAFoldedEntryReadsBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var in []plane.AuditEntry
		for range rapid.IntRange(2, 20).Draw(rt, "n") {
			e := plane.AuditEntry{Action: plane.AuditCall, Who: rapid.String().Draw(rt, "who"), What: rapid.String().Draw(rt, "what"), Decision: "succeeded", Digest: "d"}
			if e.Foldable() {
				in = append(in, e)
			}
		}
		if len(in) < 2 {
			return
		}
		out := plane.FoldAudit(in).Unfold()
		if len(out) != len(in) {
			rt.Fatalf("%d of %d", len(out), len(in))
		}
		for i, e := range out {
			e.ID = ""
			if e != in[i] {
				rt.Fatalf("%+v, want %+v", e, in[i])
			}
		}
	})
	for _, what := range []string{"", "a\tb\n", "a\tb\tc\td\n\n", "a\tb\tc\td"} {
		e := plane.AuditEntry{ID: "x", Action: plane.AuditCalls, What: what, Decision: "2", Who: "patchbay"}
		if got := e.Unfold(); len(got) != 1 || got[0] != e {
			t.Errorf("%q: %+v", what, got)
		}
	}
}
