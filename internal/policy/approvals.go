package policy

import (
	"strings"

	"patchbay/internal/plane"
)

// Approval says whether an agent's call of a tool waits for a person, and why. What
// config blocks stays blocked; a person's rule for the very definition lets a call
// pass; then the most specific pattern of config decides. Of agents with people at
// hand, an effect asks that may destroy something, as far as its server tells.
func (s *Snapshot) Approval(agent string, conn *plane.Connection, d *plane.Definition) (plane.ApprovalMode, string) {
	a := s.agents[agent]
	name := plane.Permission(conn.Slug, d.Name)
	var best *plane.ToolMode
	for i := range a.Approvals {
		m := &a.Approvals[i]
		if !plane.Glob(m.Pattern, name) {
			continue
		}
		if m.Mode == plane.Block {
			return plane.Block, "the agent's approvals block " + m.Pattern
		}
		if best == nil || specific(m.Pattern) > specific(best.Pattern) {
			best = m
		}
	}
	if r, ok := s.rules[ruleKey{agent, conn.ID, d.Name}]; ok && r.Fingerprint == d.Fingerprint && r.Mode == plane.Always {
		return plane.Always, "a rule of " + r.By + " allows it (" + r.ID + ")"
	}
	if best != nil {
		return best.Mode, "the agent's approvals say " + string(best.Mode) + " for " + best.Pattern
	}
	if a.Interactive && d.Class == plane.Effect && !d.Harmless {
		if d.Destructive {
			return plane.Ask, "its server says that it may destroy something"
		}
		return plane.Ask, "its server does not say that it is harmless"
	}
	return plane.Always, ""
}

// specific orders patterns: a name without * before all others, then by how much they
// spell out.
func specific(pattern string) int {
	n := len(pattern) - strings.Count(pattern, "*")
	if !strings.Contains(pattern, "*") {
		n += 1 << 16
	}
	return n
}

type ruleKey struct {
	agent string
	conn  plane.ConnectionID
	tool  string
}

// MayDecide reports whether the caller may give or refuse approvals of an agent's call
// that was asked for by a principal, and say what became of an unknown one: the person
// who asked, the agent's operators, org admins.
func (s *Snapshot) MayDecide(p plane.Principal, principal, agent string) bool {
	own := p.ID == principal && (p.HasUserScope() || p.Kind == plane.KindAgent && p.NamesUser())
	return own || s.Operator(p, agent)
}
