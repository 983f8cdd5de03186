package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Sources are all declarations there are, and what agents may reach.
type Sources struct {
	Registry     []plane.Declared // of files and of run time; by name, run time last
	Agents       map[string]plane.Agent
	Teams        map[string]*TeamSources
	Destinations map[string]plane.Destination // with the built-in ones
	Sandbox      bool
}

// Wanted is a connection that declarations ask for.
type Wanted struct {
	Scope       plane.Scope
	Declaration plane.Declared
	Secret      string // secret:<ref> that signs it in, "" for a person
}

// HasStdio reports that a stdio server is declared anywhere.
func (s *Sources) HasStdio() bool {
	any := func(list []plane.Declared) bool {
		return slices.ContainsFunc(list, func(d plane.Declared) bool { return d.Transport == plane.Stdio })
	}
	for _, t := range s.Teams {
		if any(t.Repository) || any(t.Skills) || any(t.Curated) {
			return true
		}
	}
	return any(s.Registry)
}

// maxInScope bounds the declared servers of one agent, and of one team.
const maxInScope = 200

// reach is what an agent may reach by name for a team: what is built in, and the
// agent's own list or the team's in its place.
func (s *Sources) reach(a *plane.Agent, team *TeamSources) Reach {
	out := Reach{}
	for name, d := range s.Destinations {
		if d.Built {
			out[name] = d
		}
	}
	names := a.Destinations
	if team != nil && team.Destinations != nil {
		names = *team.Destinations
	}
	for _, n := range names {
		if d, ok := s.Destinations[n]; ok {
			out[n] = d
		}
	}
	return out
}

// Reach is what an agent may reach for a team, in order of names: what needs a repository
// only where there is one.
func (s *Sources) Reach(agent, team string) []plane.Destination {
	a := s.Agents[agent]
	var out []plane.Destination
	for _, d := range s.reach(&a, s.Teams[team]) {
		out = append(out, d)
	}
	repo := s.Teams[team] != nil && s.Teams[team].HasRepo
	out = slices.DeleteFunc(out, func(d plane.Destination) bool { return d.NeedsRepo() && !repo })
	slices.SortFunc(out, func(a, b plane.Destination) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Reaches is Reach for every agent, and for every team whose list differs.
func (s *Sources) Reaches() map[plane.AgentTeam][]plane.Destination {
	out := map[plane.AgentTeam][]plane.Destination{}
	for slug := range s.Agents {
		out[plane.AgentTeam{Agent: slug}] = s.Reach(slug, "")
		for name, t := range s.Teams {
			if t.special() {
				out[plane.AgentTeam{Agent: slug, Team: name}] = s.Reach(slug, name)
			}
		}
	}
	return out
}

// special reports that runs for a team see something else than runs for none.
func (t *TeamSources) special() bool {
	return t.HasRepo || t.Destinations != nil || len(t.Repository)+len(t.Skills)+len(t.Wanted)+len(t.Curated) > 0
}

// Attach says what is attached for every agent and team, and which connections that
// takes. A team of its own entry is one whose runs differ from those of no team.
func (s *Sources) Attach() (map[plane.AgentTeam][]plane.Attachment, []Wanted) {
	out := map[plane.AgentTeam][]plane.Attachment{}
	wanted := map[string]Wanted{}
	inScope := map[string]int{}
	var offered []string
	for _, d := range s.Registry {
		offered = append(offered, d.Name)
	}
	for _, slug := range slices.Sorted(maps.Keys(s.Agents)) {
		a := s.Agents[slug]
		if !a.MCP {
			continue
		}
		pair := func(team string, t *TeamSources) {
			at := plane.AgentTeam{Agent: slug, Team: team}
			reach := s.reach(&a, t)
			list := Merge(s.Registry, a.Servers, t, a.Trust != plane.Open)
			out[at] = make([]plane.Attachment, 0, len(list))
			for i := range list {
				m := &list[i]
				att := plane.Attachment{Name: m.Name, Destination: m.Destination, Layer: m.Layer, From: m.From, AcceptedBy: m.AcceptedBy, Overrides: m.Overrides}
				att.Dropped = Drop(m, &a, team, t != nil && t.HasRepo, s.Sandbox, reach)
				if like := looksLike(m.Name, offered); att.Dropped == "" && m.Layer != plane.LayerRegistry && like != "" {
					att.Dropped = "its name looks like the registry's " + like
				}
				sc := m.scope(slug, team)
				if _, have := wanted[sc.String()+"/"+m.Name]; att.Dropped == "" && !have {
					if inScope[sc.String()]++; inScope[sc.String()] > maxInScope {
						att.Dropped = fmt.Sprintf("%s has %d declared servers, which is the most", sc, maxInScope)
					}
				}
				if att.Dropped == "" {
					w := Wanted{Scope: sc, Declaration: m.Declared, Secret: reach[m.Destination].Secret}
					att.Scope = sc
					if m.Transport == plane.Stdio {
						w.Secret = "" // it holds the placeholder, and its requests get the secret on their way
					}
					if id, ok := strings.CutPrefix(w.Secret, "connection:"); ok {
						att.Connection = plane.ConnectionID(id) // that one, and none of its own
					} else {
						wanted[sc.String()+"/"+m.Name] = w
					}
				}
				att.OtherAgents = att.Dropped != "" && !m.Missing && (m.forOthers(&a) || m.forOpen(&a))
				out[at] = append(out[at], att)
			}
		}
		pair("", nil)
		for _, name := range slices.Sorted(maps.Keys(s.Teams)) {
			if t := s.Teams[name]; t.special() {
				pair(name, t)
			}
		}
	}
	list := make([]Wanted, 0, len(wanted))
	for _, w := range wanted {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b Wanted) int {
		if d := strings.Compare(a.Scope.String(), b.Scope.String()); d != 0 {
			return d
		}
		return strings.Compare(a.Declaration.Name, b.Declaration.Name)
	})
	return out, list
}
