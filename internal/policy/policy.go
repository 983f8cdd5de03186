// Package policy decides. It compiles what an operator wrote into an immutable
// snapshot and answers, without I/O and in one place, which connections an agent
// may use and whether a call may go out. Only it can make a Grant, and a Grant
// names the one connection, version and endpoint it is good for.
package policy

import (
	"fmt"
	"net/url"
	"slices"

	"patchbay/internal/plane"
)

// Rules are what a snapshot is compiled from.
type Rules struct {
	Agents      map[string]plane.Agent
	Connections []plane.Connection
	Teams       map[string]Team
}

// Team is who belongs to a team.
type Team struct{ Members []string }

// Snapshot is a compiled policy. It is immutable and safe for concurrent use.
type Snapshot struct {
	agents map[string]plane.Agent
	byID   map[plane.ConnectionID]entry
	order  []plane.ConnectionID // by tier, then slug
	teams  map[string]Team
}

type entry struct {
	plane.Connection
	scheme, host string
}

// Compile checks the rules against each other and freezes them.
func Compile(r Rules) (*Snapshot, error) {
	s := &Snapshot{agents: r.Agents, byID: map[plane.ConnectionID]entry{}, teams: r.Teams}
	list := slices.Clone(r.Connections)
	slices.SortStableFunc(list, func(a, b plane.Connection) int {
		if d := a.Scope.Rank() - b.Scope.Rank(); d != 0 {
			return d
		}
		if a.Slug < b.Slug {
			return -1
		}
		return 1
	})
	for _, c := range list {
		if err := s.mayName(c); err != nil {
			return nil, err
		}
		u, err := url.Parse(c.Endpoint)
		if err != nil {
			return nil, plane.Errorf(plane.InvalidInput, "%s: the URL cannot be read.", c.Slug)
		}
		s.byID[c.ID] = entry{c, u.Scheme, u.Host}
		s.order = append(s.order, c.ID)
	}
	return s, nil
}

// mayName holds the rule of who may serve whom where a connection is loaded:
// only org and agent connections may name a guarded agent.
func (s *Snapshot) mayName(c plane.Connection) error {
	for _, a := range c.Agents {
		agent, ok := s.agents[a]
		if !ok {
			var names []string
			for n := range s.agents {
				names = append(names, n)
			}
			slices.Sort(names)
			e := plane.Errorf(plane.InvalidInput, "%s names the agent %q, which does not exist.", c.Slug, a).At("agents")
			if n := plane.Nearest(a, names); n != "" {
				e.Next = fmt.Sprintf("Did you mean %s?", n)
			}
			return e
		}
		if agent.Trust != plane.Open && c.Scope.Rank() > 1 {
			return plane.Errorf(plane.InvalidInput, "%s belongs to %s and names %s, a guarded agent; only org and agent connections may serve those.",
				c.Slug, c.Scope, a).At("agents")
		}
	}
	return nil
}

// Agent returns an agent by slug.
func (s *Snapshot) Agent(slug string) (plane.Agent, bool) {
	a, ok := s.agents[slug]
	return a, ok
}

// Agents returns all agents in order of their slugs.
func (s *Snapshot) Agents() []plane.Agent {
	out := make([]plane.Agent, 0, len(s.agents))
	for _, a := range s.agents {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b plane.Agent) int {
		if a.Slug < b.Slug {
			return -1
		}
		return 1
	})
	return out
}

// Attached is a connection as one session sees it.
type Attached struct {
	plane.Connection
	ShadowedBy plane.Scope // set when a higher tier has the name
	Why        string      // why it is not served; empty when it is
}

// Resolve lists what is in reach of an agent working for p: the tiers, highest
// trust first; a lower copy of a name is reported as shadowed.
func (s *Snapshot) Resolve(agent string, p plane.Principal) []Attached {
	a, ok := s.agents[agent]
	if !ok || !a.MCP {
		return nil
	}
	taken := map[string]plane.Scope{}
	var out []Attached
	for _, id := range s.order {
		c := s.byID[id]
		if !s.reaches(c.Scope, agent, p) || s.serves(c.Connection, a) != "" {
			continue
		}
		at := Attached{Connection: c.Connection}
		if by, dup := taken[c.Slug]; dup {
			at.ShadowedBy = by
			at.Why = fmt.Sprintf("shadowed by the %s connection of the same name", by)
		} else {
			taken[c.Slug] = c.Scope
			if !c.Enabled {
				at.Why = "turned off"
			}
		}
		out = append(out, at)
	}
	return out
}

// Visible lists the connections that a person may see: all of an install for
// its local admin, else org, the team of the request and their own.
func (s *Snapshot) Visible(p plane.Principal) []Attached {
	taken := map[string]plane.Scope{}
	var out []Attached
	for _, id := range s.order {
		c := s.byID[id]
		if p.Kind != plane.Local.Kind && !s.reaches(c.Scope, "", p) {
			continue
		}
		at := Attached{Connection: c.Connection}
		if by, dup := taken[c.Slug]; dup && by.Rank() < c.Scope.Rank() {
			at.ShadowedBy = by
		} else if !dup {
			taken[c.Slug] = c.Scope
		}
		out = append(out, at)
	}
	return out
}

// reaches says whether a scope is one that this session may see at all.
func (s *Snapshot) reaches(sc plane.Scope, agent string, p plane.Principal) bool {
	switch sc.Kind {
	case plane.ScopeOrg:
		return true
	case plane.ScopeAgent:
		return sc.Name == agent
	case plane.ScopeTeam:
		return sc.Name != "" && (sc.Name == p.Team && slices.Contains(s.teams[sc.Name].Members, p.ID))
	case plane.ScopeUser:
		return sc.Name == p.ID
	}
	return false
}

// serves is the run-time half of "who may serve whom"; it returns the reason
// against, or nothing.
func (s *Snapshot) serves(c plane.Connection, a plane.Agent) string {
	if a.Trust != plane.Open && c.Scope.Rank() > 1 {
		return "a guarded agent is served by org and agent connections only"
	}
	if c.Scope.Kind == plane.ScopeAgent && len(c.Agents) == 0 {
		return "" // an agent's own connection is for that agent
	}
	if len(c.Agents) == 0 {
		if a.Trust != plane.Open {
			return "it names no agents, so it serves open ones only"
		}
		return ""
	}
	if !slices.Contains(c.Agents, a.Slug) {
		return "it does not name this agent"
	}
	return ""
}

// Action is what somebody wants to do at a connection.
type Action string

// Actions. Discover reads what a server offers; Call runs a tool.
const (
	Discover Action = "discover"
	Call     Action = "call"
)

// Resource is what the action is about.
type Resource struct {
	Agent      string
	Connection plane.ConnectionID
	Version    int64 // as it was offered; 0 takes the current one
}

// Denial is a decision that does not allow.
type Denial struct {
	Kind   plane.Kind
	Reason string
}

// Err is the denial as an error.
func (d *Denial) Err() error { return &plane.Error{Kind: d.Kind, Message: d.Reason} }

// Decide answers for one action, now. Exactly one of the results is set. A
// Discover without an agent is an operator's look at a connection.
func (s *Snapshot) Decide(p plane.Principal, action Action, r Resource) (Grant, *Denial) {
	no := func(k plane.Kind, format string, args ...any) (Grant, *Denial) {
		return Grant{}, &Denial{k, fmt.Sprintf(format, args...)}
	}
	c, ok := s.byID[r.Connection]
	if !ok {
		return no(plane.NotFound, "There is no such connection.")
	}
	if r.Agent != "" {
		a, ok := s.agents[r.Agent]
		switch {
		case !ok:
			return no(plane.NotFound, "There is no agent %s.", r.Agent)
		case !a.MCP:
			return no(plane.Forbidden, "MCP is off for the agent %s.", r.Agent)
		case !s.reaches(c.Scope, r.Agent, p):
			return no(plane.NotFound, "There is no such connection.")
		}
		if why := s.serves(c.Connection, a); why != "" {
			return no(plane.Forbidden, "%s may not serve %s: %s.", c.Slug, r.Agent, why)
		}
	} else if action != Discover {
		return no(plane.Forbidden, "A call is made for an agent.")
	} else if p.Kind != plane.Local.Kind && !s.reaches(c.Scope, "", p) {
		return no(plane.NotFound, "There is no such connection.")
	}
	if !c.Enabled {
		return no(plane.Forbidden, "%s is turned off.", c.Slug)
	}
	if r.Version != 0 && r.Version != c.Version {
		return no(plane.Conflict, "%s was changed since its tools were offered.", c.Slug)
	}
	return Grant{conn: &c.Connection, scheme: c.scheme, host: c.host, principal: p.Kind + "|" + p.ID}, nil
}

// Grant is a decision that allows, good for one connection at one version. Only
// Decide makes one; the zero value opens nothing.
type Grant struct {
	conn         *plane.Connection
	scheme, host string
	principal    string
}

// Valid reports whether Decide made the grant.
func (g Grant) Valid() bool { return g.conn != nil }

// Connection is what the grant is good for.
func (g Grant) Connection() plane.Connection { return *g.conn }

// ID is the connection's id, without a copy of the rest.
func (g Grant) ID() plane.ConnectionID { return g.conn.ID }

// Admits reports whether a request to that scheme and host is what was granted.
func (g Grant) Admits(scheme, host string) bool {
	return g.conn != nil && scheme == g.scheme && host == g.host
}

// Principal is whom it was granted to; sessions of one are not another's.
func (g Grant) Principal() string { return g.principal }
