package plane

import (
	"slices"
	"strings"
	"time"
)

// Preferences say which of a connection's tools are used. All supported ones are,
// but for what is left out; deny wins. They belong to the connection and outlive
// its credential, its endpoint and its being off.
type Preferences struct {
	Allow    []string `json:"allow,omitempty"`    // globs; empty: every tool
	Deny     []string `json:"deny,omitempty"`     // globs
	Excluded []string `json:"excluded,omitempty"` // exact names, also of tools that vanished
}

// Out is the rule that leaves a tool out, or "".
func (p *Preferences) Out(name string) string {
	for _, g := range p.Deny {
		if Glob(g, name) {
			return "denied by " + g
		}
	}
	if slices.Contains(p.Excluded, name) {
		return "excluded"
	}
	if len(p.Allow) == 0 {
		return ""
	}
	for _, g := range p.Allow {
		if Glob(g, name) {
			return ""
		}
	}
	return "matched by no allow rule"
}

// Glob reports whether name matches pattern, where * stands for any run of
// characters and everything else for itself.
func Glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	last := parts[len(parts)-1]
	return strings.HasSuffix(rest, last)
}

// Bounds of preferences.
const (
	maxRules    = 256
	maxRuleSize = 1024
)

// Validate bounds the rules.
func (p *Preferences) Validate() error {
	for field, list := range map[string][]string{"allow": p.Allow, "deny": p.Deny, "exclude": p.Excluded} {
		if len(list) > maxRules {
			return Errorf(InvalidInput, "There may be %d rules of a kind.", maxRules).At(field)
		}
		for _, r := range list {
			if r == "" || len(r) > maxRuleSize || strings.Count(r, "*") > 8 {
				return Errorf(InvalidInput, "A rule names a tool, with up to eight * in it.").At(field)
			}
		}
	}
	return nil
}

// Review is a person's word on the class of one exact definition.
type Review struct {
	Connection  ConnectionID
	Name        string
	Fingerprint string
	Class       Class
	By          string
	At          time.Time
}
