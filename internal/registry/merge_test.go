package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/internal/plane"
)

func decl(name string, layer plane.Layer) plane.Declared {
	return plane.Declared{Layer: layer, From: string(layer),
		Declaration: plane.Declaration{Name: name, Transport: plane.HTTP, URL: "https://" + string(layer) + ".example.com/mcp", Auth: plane.AuthNone}}
}

// TestEveryPairOfSources puts one name into every pair of layers: the later goes before
// the earlier, and says what it overrides.
func TestEveryPairOfSources(t *testing.T) {
	layers := []plane.Layer{plane.LayerRegistry, plane.LayerAgent, plane.LayerRepository, plane.LayerSkill, plane.LayerTeam}
	in := func(list ...plane.Layer) []Merged {
		var reg []plane.Declared
		var servers []string
		team := &TeamSources{}
		for _, l := range list {
			switch l {
			case plane.LayerRegistry:
				reg = append(reg, decl("x", l))
			case plane.LayerAgent:
				servers = append(servers, "x")
			case plane.LayerRepository:
				team.Repository = append(team.Repository, decl("x", l))
			case plane.LayerSkill:
				team.Skills = append(team.Skills, decl("x", l))
			case plane.LayerTeam:
				team.Curated = append(team.Curated, decl("x", l))
			}
		}
		return Merge(reg, servers, team, false)
	}
	if got := in(plane.LayerRegistry); len(got) != 0 {
		t.Errorf("being on offer attached %+v", got)
	}
	if got := in(plane.LayerAgent); len(got) != 1 || !got[0].Missing || got[0].NamedBy != plane.LayerAgent {
		t.Errorf("a name that the registry lacks: %+v", got)
	}
	for i, early := range layers {
		for _, late := range layers[i+1:] {
			got := in(early, late)
			if len(got) != 1 {
				t.Fatalf("%s, %s: %+v", early, late, got)
			}
			m, want, by := got[0], late, late
			if early == plane.LayerRegistry && late == plane.LayerAgent {
				want = plane.LayerRegistry // named there, and still the registry's
			}
			if m.Layer != want || m.NamedBy != by || m.Missing || m.URL != "https://"+string(want)+".example.com/mcp" {
				t.Errorf("%s, %s: %+v", early, late, m)
			}
			overrides := early != plane.LayerAgent && want == late
			if slices.Contains(m.Overrides, early) != overrides {
				t.Errorf("%s, %s: overrides %v", early, late, m.Overrides)
			}
		}
	}
	all := in(layers...)
	if len(all) != 1 || all[0].Layer != plane.LayerTeam || !slices.Equal(all[0].Overrides, []plane.Layer{plane.LayerRegistry, plane.LayerRepository, plane.LayerSkill}) {
		t.Errorf("%+v", all)
	}
}

func TestWhoNamesARegistryEntry(t *testing.T) {
	offered := decl("x", plane.LayerRegistry)
	always := offered
	always.Default = true
	for _, c := range []struct {
		what    string
		reg     []plane.Declared
		servers []string
		team    *TeamSources
		by      plane.Layer
	}{
		{"default: true", []plane.Declared{always}, nil, nil, plane.LayerRegistry},
		{"default: true, and the agent's list", []plane.Declared{always}, []string{"x"}, nil, plane.LayerAgent},
		{"the agent's list", []plane.Declared{offered}, []string{"x"}, nil, plane.LayerAgent},
		{"a skill's mcp_tools", []plane.Declared{offered}, nil, &TeamSources{Wanted: []string{"x"}}, plane.LayerSkill},
	} {
		got := Merge(c.reg, c.servers, c.team, false)
		if len(got) != 1 || got[0].NamedBy != c.by || got[0].Layer != plane.LayerRegistry || got[0].Missing {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
	// A skill's word for a name is no declaration: it takes no other's place.
	got := Merge([]plane.Declared{offered}, nil, &TeamSources{Repository: []plane.Declared{decl("x", plane.LayerRepository)}, Wanted: []string{"x"}}, false)
	if len(got) != 1 || got[0].Layer != plane.LayerRepository {
		t.Errorf("%+v", got)
	}
}

// TestEveryReasonToDrop holds each reason, in the words that people read.
func TestEveryReasonToDrop(t *testing.T) {
	open := plane.Agent{Slug: "general", Trust: plane.Open}
	guarded := plane.Agent{Slug: "coding", Trust: plane.Guarded}
	reach := Reach{"linear-mcp": {Name: "linear-mcp", Hosts: []string{"mcp.linear.app"}, Port: 443}, "github-mcp": BuiltIn()["github-mcp"],
		"tenant": {Name: "tenant", Hosts: []string{"mcp.example.com"}, Port: 443, Paths: []string{"/acme/*"}, Secret: "secret:x", Inject: plane.Injection{Kind: "bearer"}},
		"reads":  {Name: "reads", Hosts: []string{"mcp.example.com"}, Port: 443, Methods: []string{"GET"}}}
	at := func(layer, by plane.Layer, change func(*plane.Declared)) *Merged {
		d := decl("x", layer)
		d.URL = "https://mcp.linear.app/mcp"
		if change != nil {
			change(&d)
		}
		return &Merged{Declared: d, NamedBy: by}
	}
	github := func(d *plane.Declared) { d.URL, d.Destination = "https://api.githubcopilot.com/mcp/", "github-mcp" }
	named := func(d *plane.Declared) { d.Agents, d.Admin, d.Destination = []string{"coding"}, true, "linear-mcp" }
	for _, c := range []struct {
		what  string
		m     *Merged
		agent plane.Agent
		team  string
		repo  bool
		want  string
	}{
		{"fine", at(plane.LayerTeam, plane.LayerTeam, nil), open, "payments", false, ""},
		{"missing", &Merged{Declared: decl("x", plane.LayerAgent), Missing: true}, open, "", false, "the registry has no x"},
		{"stdio", at(plane.LayerRegistry, plane.LayerAgent, func(d *plane.Declared) { d.Transport = plane.Stdio }), open, "", false, "no sandbox"},
		{"other agents", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { d.Agents = []string{"planner", "reviewer"} }), open, "payments", false, "it names other agents: planner, reviewer"},
		{"an agent's own list keeps to it", at(plane.LayerRegistry, plane.LayerAgent, func(d *plane.Declared) { d.Agents = []string{"planner"} }), open, "", false, "it names other agents"},
		{"guarded and unnamed", at(plane.LayerRegistry, plane.LayerRegistry, nil), guarded, "", false, "serves open ones only"},
		{"guarded, in its own list", at(plane.LayerRegistry, plane.LayerAgent, nil), guarded, "", false, ""},
		{"guarded, named by default: true", at(plane.LayerRegistry, plane.LayerRegistry, func(d *plane.Declared) { d.Agents = []string{"coding"} }), guarded, "", false, ""},
		{"guarded, a repository's", at(plane.LayerRepository, plane.LayerRepository, named), guarded, "payments", true, "only what an org admin accepted"},
		{"guarded, a skill's", at(plane.LayerSkill, plane.LayerSkill, named), guarded, "payments", true, "only what an org admin accepted"},
		{"guarded, a member's", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { named(d); d.Admin = false }), guarded, "payments", false, "only what an org admin accepted"},
		{"guarded, an admin's", at(plane.LayerTeam, plane.LayerTeam, named), guarded, "payments", false, ""},
		{"guarded, an admin's without a destination", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { named(d); d.Destination = "" }), guarded, "payments", false, "a destination of its policy"},
		{"guarded, an admin's of another destination", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { named(d); d.Destination = "vanta" }), guarded, "payments", false, "a destination of its policy"},
		{"absent destination", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { d.Destination = "vanta" }), open, "payments", false, "the destination vanta is not in the policy of general"},
		{"another host", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { d.Destination, d.URL = "linear-mcp", "https://evil.example.com/mcp" }), open, "payments", false, "none of the destination linear-mcp"},
		{"another tenant's path", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { d.Destination, d.URL = "tenant", "https://mcp.example.com/mallory/mcp" }), open, "payments", false, "none of the destination tenant"},
		{"another way to sign in", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) {
			d.Destination, d.URL, d.Auth = "tenant", "https://mcp.example.com/acme/mcp", "api_key:X-Mine"
		}), open, "payments", false, "is not how the secret of the destination tenant goes in"},
		{"the tenant's own", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) {
			d.Destination, d.URL, d.Auth = "tenant", "https://mcp.example.com/acme/mcp", "bearer"
		}), open, "payments", false, ""},
		{"a reading destination", at(plane.LayerTeam, plane.LayerTeam, func(d *plane.Declared) { d.Destination, d.URL = "reads", "https://mcp.example.com/mcp" }), open, "payments", false, "none of the destination reads"},
		{"no repository", at(plane.LayerRegistry, plane.LayerAgent, github), open, "payments", false, "needs a team's repository"},
		{"no team", at(plane.LayerRegistry, plane.LayerAgent, github), open, "", false, "needs a team's repository"},
		{"a repository", at(plane.LayerRegistry, plane.LayerAgent, github), open, "payments", true, ""},
	} {
		got := Drop(c.m, &c.agent, c.team, c.repo, false, reach)
		if c.want == "" && got != "" || c.want != "" && !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestAttachments holds whose connection a declaration becomes, and that a team's own list
// of destinations stands in place of the agents'.
func TestAttachments(t *testing.T) {
	linear := decl("linear", plane.LayerRegistry)
	linear.URL, linear.Destination, linear.Auth = "https://mcp.linear.app/mcp", "linear-mcp", plane.AuthBearer
	mine := decl("notes", plane.LayerTeam)
	none := []string{}
	s := Sources{Registry: []plane.Declared{linear},
		Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true, Servers: []string{"linear"}, Destinations: []string{"linear-mcp"}},
			"off": {Slug: "off", Trust: plane.Open}},
		Teams:        map[string]*TeamSources{"payments": {Curated: []plane.Declared{mine}}, "quiet": {}, "closed": {Destinations: &none}},
		Destinations: map[string]plane.Destination{"linear-mcp": {Name: "linear-mcp", Hosts: []string{"mcp.linear.app"}, Port: 443, Secret: "secret:linear", Inject: plane.Injection{Kind: "bearer"}}}}
	got, wanted := s.Attach()
	show := func(agent, team string) string {
		var out []string
		for _, a := range got[plane.AgentTeam{Agent: agent, Team: team}] {
			out = append(out, fmt.Sprintf("%s %s %s", a.Name, a.Scope, a.Dropped))
		}
		return strings.Join(out, "; ")
	}
	for team, want := range map[string]string{"": "linear agent:general ", "payments": "linear agent:general ; notes team:payments ", "closed": "linear : the destination linear-mcp is not in the policy of general"} {
		if text := strings.ReplaceAll(show("general", team), "linear  the", "linear : the"); text != want {
			t.Errorf("%q: %q, want %q", team, text, want)
		}
	}
	if _, there := got[plane.AgentTeam{Agent: "general", Team: "quiet"}]; there {
		t.Error("a team that declares nothing has an entry of its own")
	}
	if show("off", "") != "" {
		t.Error("an agent without MCP has servers")
	}
	if len(wanted) != 2 || wanted[0].Secret != "secret:linear" || wanted[1].Scope.String() != "team:payments" {
		t.Errorf("%+v", wanted)
	}
}

// TestAGuardedAgentKeepsItsOwn: what it could never take from a team takes nothing away
// from it.
func TestAGuardedAgentKeepsItsOwn(t *testing.T) {
	own, byAdmin := decl("x", plane.LayerRegistry), decl("x", plane.LayerTeam)
	byAdmin.Admin = true
	for what, c := range map[string]struct {
		team *TeamSources
		want plane.Layer
	}{
		"a repository's": {&TeamSources{Repository: []plane.Declared{decl("x", plane.LayerRepository)}}, plane.LayerRegistry},
		"a skill's":      {&TeamSources{Skills: []plane.Declared{decl("x", plane.LayerSkill)}}, plane.LayerRegistry},
		"a member's":     {&TeamSources{Curated: []plane.Declared{decl("x", plane.LayerTeam)}}, plane.LayerRegistry},
		"an admin's":     {&TeamSources{Curated: []plane.Declared{byAdmin}}, plane.LayerTeam},
	} {
		if got := Merge([]plane.Declared{own}, []string{"x"}, c.team, true); len(got) != 1 || got[0].Layer != c.want {
			t.Errorf("%s: %+v", what, got)
		}
	}
}
