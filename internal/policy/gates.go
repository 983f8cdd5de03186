package policy

import (
	"maps"
	"net/url"
	"slices"

	"patchbay/internal/plane"
)

// Admin reports whether the caller is an org admin: the local one, a person that
// config names, or a service whose token says so. A person's token has what its
// person has and no more than its own rights.
func (s *Snapshot) Admin(p plane.Principal) bool {
	switch p.Kind {
	case plane.KindLocal:
		return p.Rights.Has(plane.AdminRight) // its tokens may less
	case plane.KindPerson:
		return p.Rights.Has(plane.AdminRight) && isAny(s.admins, p)
	case plane.KindService:
		return p.Rights.Has(plane.AdminRight)
	}
	return false
}

// Operator reports whether the caller operates an agent.
func (s *Snapshot) Operator(p plane.Principal, agent string) bool {
	return s.Admin(p) || p.Kind == plane.KindPerson && isAny(s.agents[agent].Operators, p)
}

// Member reports whether the caller belongs to a team.
func (s *Snapshot) Member(p plane.Principal, team string) bool {
	return p.Kind == plane.KindAgent && p.Team == team || s.belongs(p, team)
}

// Team reports whether there is a team of that name.
func (s *Snapshot) Team(name string) bool { _, ok := s.teams[name]; return ok }

// Role is what config lets people do.
type Role struct {
	Name   string // org admin, member, changes settings, operator
	Of     string // the team or the agent
	People []string
}

// Roles are those that config gives, as it names people.
func (s *Snapshot) Roles() []Role {
	out := []Role{{Name: "org admin", People: s.admins}}
	for _, t := range slices.Sorted(maps.Keys(s.teams)) {
		out = append(out, Role{"member", t, s.teams[t].Members})
		if w := s.teams[t].ConfigWrite; len(w) > 0 {
			out = append(out, Role{"changes its settings", t, w})
		}
	}
	for _, a := range s.Agents() {
		if len(a.Operators) > 0 {
			out = append(out, Role{"operator", a.Slug, a.Operators})
		}
	}
	return out
}

// Teams are all that there are, by name.
func (s *Snapshot) Teams() []string { return slices.Sorted(maps.Keys(s.teams)) }

// MayWrite is the gate of each tier: one's own is self-serve, a team's needs
// membership and config:write, an agent's its operators, the org's its admins or
// a service with mcp:write.
func (s *Snapshot) MayWrite(p plane.Principal, sc plane.Scope) *Denial {
	if !p.Rights.Has(plane.MCPWrite) {
		return &Denial{Kind: plane.Forbidden, Reason: "The token lacks the scope mcp:write."}
	}
	no := func(reason string) *Denial {
		d := &Denial{Kind: plane.Forbidden, Reason: reason}
		if p.HasUserScope() && sc.Kind != plane.ScopeUser {
			d.Next = "--scope me adds it for your own runs."
		}
		return d
	}
	switch sc.Kind {
	case plane.ScopeUser:
		if p.HasUserScope() && sc.Name == p.ID {
			return nil
		}
		return no("Only its person may change a user scope.")
	case plane.ScopeTeam:
		t, ok := s.teams[sc.Name]
		if !ok && !s.belongs(p, sc.Name) || !s.Admin(p) && !s.belongs(p, sc.Name) {
			return no(NotInTeam(p).Reason)
		}
		if s.Admin(p) || isAny(t.ConfigWrite, p) && p.Rights.Has(plane.ConfigWrite) {
			return nil
		}
		return no("Changing the team " + sc.Name + " needs config:write there.")
	case plane.ScopeAgent:
		if _, ok := s.agents[sc.Name]; !ok {
			return &Denial{Kind: plane.NotFound, Reason: "There is no agent " + sc.Name + ".", Next: "patchbay agents list"}
		}
		if s.Operator(p, sc.Name) {
			return nil
		}
		return no("Only the operators of " + sc.Name + " may change it.")
	case plane.ScopeOrg:
		if s.Admin(p) || p.Kind == plane.KindService {
			return nil
		}
		return no("Only an org admin may change the org.")
	}
	return no("There is no such scope.")
}

// Candidate decides whether p may add a connection. The grant is good for trying
// it out before it is stored.
func (s *Snapshot) Candidate(p plane.Principal, c plane.Connection) (Grant, error) {
	if d := s.MayWrite(p, c.Scope); d != nil {
		return Grant{}, d.Err()
	}
	if err := s.mayName(c); err != nil {
		return Grant{}, err
	}
	if err := s.nameFree(p, c); err != nil {
		return Grant{}, err
	}
	return s.try(p, c)
}

// Retry is a grant for a connection that stands in the snapshot and whose new
// credential is tried out.
func (s *Snapshot) Retry(p plane.Principal, c plane.Connection) (Grant, error) { return s.try(p, c) }

func (s *Snapshot) try(p plane.Principal, c plane.Connection) (Grant, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return Grant{}, plane.Errorf(plane.InvalidInput, "The URL cannot be read.").At("url").Because(err)
	}
	return s.grant(&entry{Connection: c, scheme: u.Scheme, host: u.Host}, "", p), nil
}

// nameFree refuses a name that stands in the same tier, or in a higher one that
// the caller's runs would see: it could never serve. A higher tier may take a
// lower one's name.
func (s *Snapshot) nameFree(p plane.Principal, c plane.Connection) error {
	for _, have := range s.order {
		if have.Slug != c.Slug || have.ID == c.ID || have.idle || have.Origin == plane.OfDeclaration && have.Declared.Name == c.Declared.Name {
			continue
		}
		same := have.Scope == c.Scope || c.Scope.Kind == plane.ScopeUser && have.Scope.Kind == plane.ScopeUser && p.Is(have.Scope.Name)
		higher := have.Scope.Rank() < c.Scope.Rank() && s.overlaps(p, have.Scope, c)
		if !same && !higher {
			continue
		}
		e := plane.Errorf(plane.Conflict, "%s is taken: %s has a connection of that name.", c.Slug, have.Scope).At("name")
		if same && have.Origin == plane.Added {
			return e.Then("patchbay mcp connect " + c.Slug + " signs it in again; patchbay mcp remove " + c.Slug + " takes it away.")
		}
		return e.Then("Choose another name.")
	}
	return nil
}

// overlaps reports whether runs that c would serve also see the scope sc.
func (s *Snapshot) overlaps(p plane.Principal, sc plane.Scope, c plane.Connection) bool {
	switch sc.Kind {
	case plane.ScopeOrg:
		return true
	case plane.ScopeAgent:
		a := s.agents[sc.Name]
		return len(c.Agents) == 0 && a.Trust == plane.Open || slices.Contains(c.Agents, sc.Name)
	case plane.ScopeTeam:
		return isAny(s.teams[sc.Name].Members, p)
	}
	return false
}

// Count is how many connections a scope has that were added at run time.
func (s *Snapshot) Count(sc plane.Scope) int {
	n := 0
	for _, c := range s.byID {
		if c.Scope == sc && c.Origin == plane.Added {
			n++
		}
	}
	return n
}

// MaySee reports whether the caller may see a run and act on it: its own, as an
// operator those of the agent, as an org admin all.
func (s *Snapshot) MaySee(p plane.Principal, r plane.Run) bool {
	return p.ID != "" && r.Principal == p.ID && p.Kind != plane.KindVisitor || s.Operator(p, r.Agent)
}

// Connection returns a connection as it is in force: with what only config holds.
func (s *Snapshot) Connection(id plane.ConnectionID) (plane.Connection, bool) {
	if c, ok := s.byID[id]; ok {
		return c.Connection, true
	}
	return plane.Connection{}, false
}

// All returns every connection, for upkeep and never for a caller.
func (s *Snapshot) All() []plane.Connection {
	out := make([]plane.Connection, 0, len(s.order))
	for _, c := range s.order {
		out = append(out, c.Connection)
	}
	return out
}
