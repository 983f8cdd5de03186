package policy

import (
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Attachments are what became of declarations for an agent that works for p: what is
// attached and what was dropped, with the reason. It is the snapshot's own.
func (s *Snapshot) Attachments(agent string, p plane.Principal) []plane.Attachment {
	team := p.Team
	if team != "" && !s.reaches(plane.Scope{Kind: plane.ScopeTeam, Name: team}, agent, p) {
		team = ""
	}
	if list, ok := s.attached[plane.AgentTeam{Agent: agent, Team: team}]; ok {
		return list
	}
	return s.attached[plane.AgentTeam{Agent: agent}]
}

// declared says why a connection that a declaration made does not serve an agent, or
// nothing: it serves whom the declaration is attached for.
func (s *Snapshot) declared(c *plane.Connection, agent string, p plane.Principal) string {
	for _, a := range s.Attachments(agent, p) {
		switch {
		case a.Name != c.Slug:
		case a.Dropped != "":
			return a.Dropped
		case a.Connection == c.ID:
			return ""
		default:
			return "another declaration of the name goes before it: " + string(a.Layer)
		}
	}
	return "nothing declares it for this agent"
}

// instead says that a connection which people added from the same declaration is used
// in place of the one that the declaration made, or nothing.
func (s *Snapshot) instead(c *entry, agent string, p plane.Principal) string {
	if c.Origin != plane.OfDeclaration {
		return ""
	}
	a := s.agents[agent]
	from := s.addedFrom[c.Declared.Name]
	i := slices.IndexFunc(from, func(o *entry) bool {
		return o.Endpoint == c.Endpoint && o.Enabled && s.reaches(o.Scope, agent, p) && s.serves(&o.Connection, a, p) == ""
	})
	if i < 0 {
		return ""
	}
	return "replaced by " + from[i].FullName() + ", which was added from the same declaration"
}

// MayPropose is the gate of proposing a server to a team: whoever works in it.
func (s *Snapshot) MayPropose(p plane.Principal, team string) *Denial {
	if p.Kind == plane.KindAgent && p.Team == team && s.Team(team) {
		return nil
	}
	if s.InTeam(p, team) || s.Admin(p) && s.Team(team) {
		return nil
	}
	return NotInTeam(p)
}

// NotInTeam refuses whoever a team does not list; it does not tell whether there is one.
func NotInTeam(p plane.Principal) *Denial {
	return &Denial{Kind: plane.Forbidden, Reason: "There is no such team, or you are not in it.", Next: "an operator names its members in patchbay.yaml, teams.<team>.members; you are " + p.ID}
}

// InTeam reports whether a person belongs to a team; no agent does by its token.
func (s *Snapshot) InTeam(p plane.Principal, team string) bool {
	return team != "" && p.Kind != plane.KindAgent && p.Kind != plane.KindVisitor && s.belongs(p, team)
}

// MayCurate is the gate of accepting and forgetting: a member of the team; where the team
// is only a channel's, with config:write; and an org admin where the declaration names a
// guarded agent. An agent never may.
func (s *Snapshot) MayCurate(p plane.Principal, team string, d *plane.Declaration) *Denial {
	switch {
	case p.Kind == plane.KindAgent || p.Kind == plane.KindVisitor:
		return &Denial{Kind: plane.Forbidden, Reason: "An agent can propose a server; a person accepts it."}
	case s.Admin(p) && s.Team(team):
		return nil
	case !s.InTeam(p, team):
		return NotInTeam(p)
	case (strings.HasPrefix(team, impliedTeam) || !isAny(s.teams[team].Members, p)) && !isAny(s.teams[team].ConfigWrite, p): // being in a channel is not enough
		return &Denial{Kind: plane.Forbidden, Reason: "Deciding about a channel's servers needs config:write there."}
	}
	for _, a := range d.Agents {
		if agent, ok := s.agents[a]; ok && agent.Trust != plane.Open {
			return &Denial{Kind: plane.Forbidden, Reason: "The declaration names " + a + ", a guarded agent; an org admin decides about it."}
		}
	}
	return nil
}

// impliedTeam begins the name of a team that is a Slack channel and nothing more.
var impliedTeam = plane.ChannelTeam("")

// ChannelTeam is the team that a Slack channel is: as config maps it, else one of its own.
func (s *Snapshot) ChannelTeam(channel string) string {
	if t, ok := s.mapped[channel]; ok {
		return t
	}
	return plane.ChannelTeam(channel)
}

// belongs reports whether a person is of a team: by config, or by speaking in its channel.
func (s *Snapshot) belongs(p plane.Principal, team string) bool {
	return isAny(s.teams[team].Members, p) || p.Channel != "" && s.ChannelTeam(p.Channel) == team
}

// TeamsOf are the teams that a person is in, in order of their names.
func (s *Snapshot) TeamsOf(p plane.Principal) []string {
	var out []string
	for name := range s.teams {
		if s.InTeam(p, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
