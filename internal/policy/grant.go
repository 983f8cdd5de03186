package policy

import (
	"strings"

	"patchbay/internal/plane"
)

// Upkeep is a grant to read each connection that can be read, for whoever keeps
// the catalogs. It calls no tool: a call is decided for an agent.
func (s *Snapshot) Upkeep() []Grant {
	out := make([]Grant, 0, len(s.order))
	for _, c := range s.order {
		if c.bad == "" && !c.idle && c.Enabled && c.State != plane.StateAwaiting && c.State != plane.StateAuthError {
			out = append(out, Grant{conn: &c.Connection, scheme: c.scheme, host: c.host, principal: "upkeep", sender: s.sender(c, "", plane.Principal{}), look: true})
		}
	}
	return out
}

// Holds reports that a grant is still what the connection is: same version, on, and
// signed in.
func (s *Snapshot) Holds(g Grant) bool {
	c, ok := s.byID[g.ID()]
	return ok && g.conn != nil && c.Version == g.conn.Version && c.Enabled && c.bad == "" && c.State != plane.StateAwaiting && c.State != plane.StateAuthError
}

func (s *Snapshot) grant(c *entry, agent string, p plane.Principal) Grant {
	return Grant{conn: &c.Connection, scheme: c.scheme, host: c.host, principal: string(p.Kind) + "|" + p.ID, sender: s.sender(c, agent, p), look: agent == ""}
}

// sender is in whose name a server is used that is not the same for all: a stdio server,
// which sends for somebody, and one that is signed in for one team's repository. That is the
// agent that uses it, at work for a team; where nobody does yet, the first that it is
// attached for.
func (s *Snapshot) sender(c *entry, agent string, p plane.Principal) plane.AgentTeam {
	switch {
	case !c.Stdio() && !strings.HasPrefix(c.Declared.Secret, "github_app:"):
		return plane.AgentTeam{}
	case agent == "":
		return c.sender
	case c.Scope.Kind == plane.ScopeTeam:
		return plane.AgentTeam{Agent: agent, Team: c.Scope.Name}
	}
	return plane.AgentTeam{Agent: agent, Team: s.teamOf(agent, p)}
}

// Grant is a decision that allows, good for one connection at one version. Only
// Decide makes one; the zero value opens nothing.
type Grant struct {
	conn         *plane.Connection
	scheme, host string
	principal    string
	sender       plane.AgentTeam
	look         bool // to read what is offered, for nobody's work
}

// Valid reports whether Decide made the grant.
func (g Grant) Valid() bool { return g.conn != nil }

// Connection is what the grant is good for.
func (g Grant) Connection() plane.Connection { return *g.conn }

// ID is the connection's id, without a copy of the rest.
func (g Grant) ID() plane.ConnectionID { return g.conn.ID }

// Version is the connection's version, without a copy of the rest.
func (g Grant) Version() int64 { return g.conn.Version }

// Admits reports whether a request to that scheme and host is what was granted.
func (g Grant) Admits(scheme, host string) bool {
	return g.conn != nil && scheme == g.scheme && host == g.host
}

// Look reports a grant to read what a server offers, for nobody's work: it calls no tool.
func (g Grant) Look() bool { return g.look }

// Sender is in whose name the server is used, where that makes a difference.
func (g Grant) Sender() plane.AgentTeam { return g.sender }

// Principal is whom it was granted to; sessions of one are not another's.
func (g Grant) Principal() string { return g.principal }
