// Package policy decides. It compiles what an operator wrote into an immutable
// snapshot and answers, without I/O and in one place, which connections an agent
// may use, whether a call may go out and whether a person is asked first. Only it
// can make a Grant, and a Grant names the one connection, version and endpoint it
// is good for.
package policy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Rules are what a snapshot is compiled from. People are named by a verified
// email or by issuer|subject.
type Rules struct {
	Agents      map[string]plane.Agent
	Connections []plane.Connection
	Teams       map[string]Team
	Admins      []string
	Approvals   []plane.Rule // people's standing words
	// Attached is what became of declarations; an agent's for a team that is not there
	// is its for none.
	Attached map[plane.AgentTeam][]plane.Attachment
	// Reach are the named hosts that an agent may reach, for a team.
	Reach map[plane.AgentTeam][]plane.Destination
}

// Team is who belongs to a team, who of them may change its settings, and which Slack
// channels it is.
type Team struct{ Members, ConfigWrite, Channels []string }

// Snapshot is a compiled policy. It is immutable and safe for concurrent use.
type Snapshot struct {
	agents map[string]plane.Agent
	byID   map[plane.ConnectionID]*entry
	order  []*entry // by tier, then slug
	teams  map[string]Team
	mapped map[string]string // teams by Slack channel
	admins []string
	rules  map[ruleKey]plane.Rule

	attached  map[plane.AgentTeam][]plane.Attachment
	reach     map[plane.AgentTeam][]plane.Destination
	addedFrom map[string][]*entry // by the declaration
}

type entry struct {
	plane.Connection
	scheme, host string
	bad          string          // why it serves nobody although it was added
	twins        bool            // another connection has the slug too
	idle         bool            // a declaration made it, and none asks for it now
	sender       plane.AgentTeam // the first that it is attached for
}

// Compile checks the rules against each other and freezes them.
func Compile(r Rules) (*Snapshot, error) {
	s := &Snapshot{agents: r.Agents, byID: map[plane.ConnectionID]*entry{}, teams: r.Teams, admins: r.Admins, rules: map[ruleKey]plane.Rule{}, attached: r.Attached, reach: r.Reach, addedFrom: map[string][]*entry{}}
	s.mapped = map[string]string{}
	for name, t := range r.Teams {
		for _, ch := range t.Channels {
			s.mapped[ch] = name
		}
	}
	for _, v := range r.Approvals {
		s.rules[ruleKey{v.Agent, v.Connection, v.Tool}] = v
	}
	list := slices.Clone(r.Connections)
	slices.SortStableFunc(list, func(a, b plane.Connection) int {
		if d := a.Scope.Rank() - b.Scope.Rank(); d != 0 {
			return d
		}
		if d := strings.Compare(a.Slug, b.Slug); d != 0 {
			return d
		}
		return originRank(a.Origin) - originRank(b.Origin)
	})
	first := make(map[string]*entry, len(list))
	asked := map[plane.ConnectionID]bool{}
	senders := map[plane.ConnectionID]plane.AgentTeam{} // the first of those it is attached for
	for at, l := range r.Attached {
		for _, a := range l {
			asked[a.Connection] = asked[a.Connection] || a.Dropped == ""
			if first, ok := senders[a.Connection]; a.Dropped == "" && (!ok || at.Agent+" "+at.Team < first.Agent+" "+first.Team) {
				senders[a.Connection] = at
			}
		}
	}
	for _, c := range list {
		bad := ""
		if err := s.mayName(c); err != nil {
			if c.Origin != plane.Added {
				return nil, err
			}
			bad = plane.Public(err).Message // it was right when it was added
		}
		u, err := url.Parse(c.Endpoint)
		if err != nil {
			return nil, plane.Errorf(plane.InvalidInput, "%s: the URL cannot be read.", c.Slug)
		}
		e := &entry{Connection: c, scheme: u.Scheme, host: u.Host, bad: bad, sender: senders[c.ID]}
		if first[c.Slug] == nil {
			first[c.Slug] = e
		} else {
			e.twins, first[c.Slug].twins = true, true
		}
		e.idle = c.Origin == plane.OfDeclaration && !asked[c.ID]
		s.byID[c.ID] = e
		if c.Origin == plane.Added && c.Declared.Name != "" {
			s.addedFrom[c.Declared.Name] = append(s.addedFrom[c.Declared.Name], e)
		}
		s.order = append(s.order, e)
	}
	return s, nil
}

// originRank orders connections of one name in one scope: what people added, what config
// pins, what a declaration made.
func originRank(o plane.Origin) int {
	switch o {
	case plane.Added:
		return 0
	case plane.Pinned:
		return 1
	}
	return 2
}

// mayName holds the rule of who may serve whom where a connection is loaded:
// only org and agent connections may name a guarded agent.
func (s *Snapshot) mayName(c plane.Connection) error {
	if c.Origin == plane.OfDeclaration {
		return nil // what it serves is judged declaration by declaration
	}
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

// Attached is a connection as one session sees it. The connection is the
// snapshot's own: it must not be changed.
type Attached struct {
	*plane.Connection
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
	for _, c := range s.order {
		if !s.reaches(c.Scope, agent, p) || s.serves(&c.Connection, a, p) != "" {
			continue
		}
		at := Attached{Connection: &c.Connection}
		if other := s.instead(c, agent, p); other != "" {
			at.Why = other
			out = append(out, at)
			continue
		}
		if by, dup := taken[c.Slug]; dup {
			at.ShadowedBy = by
			at.Why = shadowed(by, c.Scope)
		} else {
			if c.twins {
				taken[c.Slug] = c.Scope
			}
			at.Why = c.unusable()
		}
		out = append(out, at)
	}
	return out
}

func shadowed(by, own plane.Scope) string {
	if sameOwner(by, own) {
		return "replaced by the connection of the same name that was added or pinned"
	}
	return fmt.Sprintf("shadowed by the %s connection of the same name", by)
}

// sameOwner reports whether two scopes of one caller's view are one tier: their
// own may be named by id and, in config, by address.
func sameOwner(a, b plane.Scope) bool {
	return a == b || a.Kind == plane.ScopeUser && b.Kind == plane.ScopeUser
}

// unusable says why a connection cannot be used whoever asks, or nothing.
func (c *entry) unusable() string {
	switch {
	case c.bad != "":
		return c.bad
	case !c.Enabled:
		return "turned off"
	case c.State == plane.StateAwaiting:
		return "nobody has signed it in yet; patchbay mcp connect " + c.Slug
	case c.State == plane.StateAuthError:
		return plane.ReasonText(c.Reason) + "; patchbay mcp connect " + c.Slug
	}
	return ""
}

// Visible lists the connections that a caller may see: org's, those of the
// agents and teams that are theirs, and their own; never another person's.
func (s *Snapshot) Visible(p plane.Principal) []Attached {
	taken := map[string]plane.Scope{}
	var out []Attached
	for _, c := range s.order {
		if c.idle || !s.sees(c.Scope, p) {
			continue
		}
		at := Attached{Connection: &c.Connection}
		if by, dup := taken[c.Slug]; dup && (sameOwner(by, c.Scope) || by.Rank() < c.Scope.Rank()) {
			at.ShadowedBy = by
		} else if !dup && c.twins {
			taken[c.Slug] = c.Scope
		}
		at.Why = c.unusable()
		out = append(out, at)
	}
	return out
}

// sees says whether a caller may know of a scope's connections.
func (s *Snapshot) sees(sc plane.Scope, p plane.Principal) bool {
	switch sc.Kind {
	case plane.ScopeOrg:
		return p.Kind != plane.KindVisitor
	case plane.ScopeAgent:
		return p.Agent == sc.Name || s.Admin(p) || isAny(s.agents[sc.Name].Operators, p)
	case plane.ScopeTeam:
		return s.reaches(sc, "", p) || s.Admin(p) || p.Kind == plane.KindPerson && isAny(s.teams[sc.Name].Members, p)
	}
	return s.reaches(sc, "", p)
}

func isAny(entries []string, p plane.Principal) bool {
	return slices.ContainsFunc(entries, p.Is)
}

// reaches says whether a scope's connections serve an agent that works for p.
func (s *Snapshot) reaches(sc plane.Scope, agent string, p plane.Principal) bool {
	switch sc.Kind {
	case plane.ScopeOrg:
		return p.Kind != plane.KindVisitor
	case plane.ScopeAgent:
		return sc.Name == agent
	case plane.ScopeTeam:
		if sc.Name == "" || sc.Name != p.Team {
			return false
		}
		return p.Kind == plane.KindAgent || s.belongs(p, sc.Name)
	case plane.ScopeUser:
		return p.Kind != plane.KindService && p.Is(sc.Name)
	}
	return false
}

// serves is the run-time half of "who may serve whom"; it returns the reason
// against, or nothing.
func (s *Snapshot) serves(c *plane.Connection, a plane.Agent, p plane.Principal) string {
	if c.Origin == plane.OfDeclaration {
		return s.declared(c, a.Slug, p)
	}
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
	Next   string // what to do instead, where there is something
}

// Err is the denial as an error.
func (d *Denial) Err() error { return &plane.Error{Kind: d.Kind, Message: d.Reason, Next: d.Next} }

// Names of the checks that a decision makes, in their order.
const (
	CheckScope      = "scope"
	CheckServer     = "server"
	CheckCredential = "credential"
)

// Step is one check of a decision. Reason is empty when it passed.
type Step struct {
	Check        string
	Kind         plane.Kind
	Reason, Next string
	Fine         string // what it found, when it passed
}

// Decide answers for one action, now. Exactly one of the results is set. A
// Discover without an agent is an operator's look at a connection.
func (s *Snapshot) Decide(p plane.Principal, action Action, r Resource) (Grant, *Denial) {
	return s.Trace(p, action, r, nil)
}

// Trace is Decide, and tells note of every check up to the one that decided, so
// that there is one answer to "why".
func (s *Snapshot) Trace(p plane.Principal, action Action, r Resource, note func(Step)) (Grant, *Denial) {
	c, ok := s.byID[r.Connection]
	if !ok {
		return refused(note, CheckScope, plane.NotFound, "There is no such connection.")
	}
	if kind, reason := s.within(p, action, r, c); reason != "" {
		return refused(note, CheckScope, kind, reason)
	}
	if note != nil {
		passed(note, CheckScope, "it belongs to "+c.Scope.String()+" and may serve the agent")
	}
	switch {
	case c.bad != "":
		return refused(note, CheckServer, plane.Forbidden, c.Slug+" serves nobody: "+c.bad)
	case !c.Enabled:
		return refused(note, CheckServer, plane.Forbidden, c.Slug+" is turned off.")
	}
	passed(note, CheckServer, "the connection is on")
	if c.State == plane.StateAwaiting || c.State == plane.StateAuthError && r.Agent != "" {
		return refused(note, CheckCredential, plane.Unauthenticated, c.Slug+" cannot be used: "+c.unusable()+".")
	}
	if r.Version != 0 && r.Version != c.Version {
		return refused(note, "drift", plane.Conflict, c.Slug+" was changed since its tools were offered.")
	}
	return s.grant(c, r.Agent, p), nil
}

func refused(note func(Step), check string, k plane.Kind, reason string) (Grant, *Denial) {
	if note != nil {
		note(Step{Check: check, Kind: k, Reason: reason})
	}
	return Grant{}, &Denial{Kind: k, Reason: reason}
}

func passed(note func(Step), check, fine string) {
	if note != nil {
		note(Step{Check: check, Fine: fine})
	}
}

// within says why a connection is out of reach of a caller and agent, or
// nothing.
func (s *Snapshot) within(p plane.Principal, action Action, r Resource, c *entry) (plane.Kind, string) {
	const unknown = "There is no such connection."
	if r.Agent == "" {
		switch {
		case action != Discover:
			return plane.Forbidden, "A call is made for an agent."
		case !s.sees(c.Scope, p):
			return plane.NotFound, unknown
		}
		return "", ""
	}
	a, ok := s.agents[r.Agent]
	switch {
	case !ok:
		return plane.NotFound, "There is no agent " + r.Agent + "."
	case !a.MCP:
		return plane.Forbidden, "MCP is off for the agent " + r.Agent + "."
	case !s.reaches(c.Scope, r.Agent, p):
		return plane.NotFound, unknown
	case p.Kind == plane.KindAgent && p.Agent != r.Agent:
		return plane.Forbidden, "The token is for the agent " + p.Agent + "."
	}
	if why := s.serves(&c.Connection, a, p); why != "" {
		return plane.Forbidden, fmt.Sprintf("%s may not serve %s: %s.", c.Slug, r.Agent, why)
	}
	if why := s.instead(c, r.Agent, p); why != "" {
		return plane.Conflict, fmt.Sprintf("%s is %s.", c.Slug, why)
	}
	return "", ""
}
