package plane_test

import (
	"testing"

	"patchbay/internal/plane"
)

func TestCanonicalToolName(t *testing.T) {
	for name, want := range map[string]string{"remember": "remember", "patchbay_remember": "remember", "mcp__patchbay__tool_call": "tool_call", "patchbay__recall": "recall",
		"patchbay_delete_issue": "patchbay_delete_issue", "linear_remember": "linear_remember", "mcp__linear__remember": "mcp__linear__remember", "": "", "patchbay_": "patchbay_", "Remember": "Remember"} {
		if got := plane.CanonicalToolName(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
