package plane

import (
	"maps"
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
	Hold     bool     `json:"hold,omitempty"`     // new and changed definitions stay out until a person accepts them
	// Legacy is a full selection from before exclusions; the first listing turns
	// what it leaves out into exclusions.
	Legacy *[]string `json:"legacy,omitempty"`

	Targets map[string]string `json:"targets,omitempty"` // tool: argument path, as $.id, of what its effects are about
	Keys    map[string]string `json:"keys,omitempty"`    // tool: argument that takes the idempotency key
	Labels  *Labels           `json:"labels,omitempty"`  // nil for DefaultLabels
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
	if p.Legacy != nil && !slices.Contains(*p.Legacy, name) {
		return "outside the selection"
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
	maxNames    = 1024 // of tools left out, those that vanished too
)

// Validate bounds the rules.
func (p *Preferences) Validate() error {
	for field, list := range map[string][]string{"allow": p.Allow, "deny": p.Deny, "exclude": p.Excluded, "tools": p.legacy()} {
		most := maxRules
		if field == "exclude" || field == "tools" {
			most = maxNames
		}
		if len(list) > most {
			return Errorf(InvalidInput, "There may be %d rules of a kind.", most).At(field)
		}
		for _, r := range list {
			if r == "" || len(r) > maxRuleSize || strings.Count(r, "*") > 8 {
				return Errorf(InvalidInput, "A rule names a tool, with up to eight * in it.").At(field)
			}
		}
	}
	return p.validateCalls()
}

// validateCalls holds what is said of a tool's arguments.
func (p *Preferences) validateCalls() error {
	if len(p.Targets) > maxRules || len(p.Keys) > maxRules {
		return Errorf(InvalidInput, "There may be %d rules of a kind.", maxRules).At("target")
	}
	for tool, path := range p.Targets {
		if _, ok := ArgumentPath(path); tool == "" || !ok {
			return Errorf(InvalidInput, "A target is a path into a tool's arguments, as $.id or $.issue.id; %q is none.", path).At("target")
		}
	}
	for tool, name := range p.Keys {
		if tool == "" || name == "" || len(name) > maxRuleSize || strings.ContainsAny(name, ".$[]\"") {
			return Errorf(InvalidInput, "An idempotency key goes into an argument of the tool, by its name; %q is none.", name).At("idempotency_key")
		}
		if path, ok := ArgumentPath(p.Targets[tool]); ok && path[0] == name {
			return Errorf(InvalidInput, "%s of %s says what its effects are about; the idempotency key needs an argument of its own.", name, tool).At("idempotency_key")
		}
	}
	return nil
}

// ArgumentPath reads a path as $.issue.id into its members.
func ArgumentPath(path string) ([]string, bool) {
	rest, ok := strings.CutPrefix(path, "$.")
	if !ok || len(path) > maxRuleSize {
		return nil, false
	}
	parts := strings.Split(rest, ".")
	for _, p := range parts {
		if p == "" || strings.ContainsAny(p, "[]*\"'$") {
			return nil, false
		}
	}
	return parts, true
}

func (p *Preferences) legacy() []string {
	if p.Legacy == nil {
		return nil
	}
	return *p.Legacy
}

// Convert turns a legacy selection into exclusions of what is listed and was not
// selected. It reports whether there was one.
func (p *Preferences) Convert(listed []string) bool {
	if p.Legacy == nil {
		return false
	}
	for _, n := range listed {
		if n != "" && !slices.Contains(*p.Legacy, n) && !slices.Contains(p.Excluded, n) {
			p.Excluded = append(p.Excluded, n)
		}
	}
	slices.Sort(p.Excluded)
	p.Legacy = nil
	return true
}

// Clone copies the rules, so that a change leaves these alone.
func (p *Preferences) Clone() Preferences {
	c := Preferences{Allow: slices.Clone(p.Allow), Deny: slices.Clone(p.Deny), Excluded: slices.Clone(p.Excluded), Hold: p.Hold,
		Targets: maps.Clone(p.Targets), Keys: maps.Clone(p.Keys), Labels: p.Labels}
	if p.Legacy != nil {
		l := slices.Clone(*p.Legacy)
		c.Legacy = &l
	}
	return c
}

// Pin is a definition that was adopted, by the tool's name. It outlives the
// tool's absence: what returns with other bytes has changed.
type Pin struct {
	Connection  ConnectionID
	Name        string
	Fingerprint string
	Raw         []byte
	At          time.Time // when it was adopted
	Before      []byte    // what it replaced; empty for nothing
	ChangedAt   time.Time // when it replaced that, or came; zero for what was there at first
	AcceptedBy  string    // who looked at it and let it in
	BlockedBy   string    // who keeps the tool out
}

// Review is a person's word on the class of one exact definition.
type Review struct {
	Connection  ConnectionID
	Name        string
	Fingerprint string
	Class       Class
	By          string
	At          time.Time
	Contract    string // the completion contract that was reviewed with it; empty for none
}
