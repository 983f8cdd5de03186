package web

import (
	"net/url"
	"slices"
	"strings"

	"github.com/a-h/templ"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

func (p *Pages) agentPages() {
	p.page("/agents", pageDef{at: "/agents", show: func(v *visit) (templ.Component, error) {
		v.title = "Agents"
		l, err := ask[command.AgentsList](v, "agents.list", &command.AgentsListInput{})
		if err != nil {
			return nil, err
		}
		return agentsPage(v, l), nil
	}})
	p.page("/agents/{slug}", pageDef{at: "/agents", show: showAgent})
	p.page("/agents/{slug}/runs", pageDef{at: "/agents", show: showAgentRuns})
	p.page("/agents/{slug}/settings", pageDef{at: "/agents", show: showAgentSettings})
	p.page("/registry", pageDef{at: "/registry", show: func(v *visit) (templ.Component, error) {
		v.title = "Registry"
		q := strings.TrimSpace(v.r.URL.Query().Get("q"))
		l, err := ask[command.RegistryList](v, "registry.list", &command.RegistryListInput{Search: q, Limit: 1000})
		if err != nil {
			return nil, err
		}
		return registryPage(v, l, q), nil
	}})
	p.page("/proposals", pageDef{at: "/proposals", show: showProposals})
	p.page("/proposals/{team}/{name}", pageDef{at: "/proposals", show: func(v *visit) (templ.Component, error) {
		s, err := ask[command.ProposalShow](v, "proposals.show", &command.ProposalShowInput{Name: v.r.PathValue("name"), Team: v.r.PathValue("team")})
		if err != nil {
			return nil, err
		}
		v.title = s.Name
		return proposalPage(v, s), nil
	}, act: func(v *visit, f url.Values) (string, string, error) {
		in := &command.ProposalInput{Name: v.r.PathValue("name"), Team: v.r.PathValue("team"), ID: f.Get("id")}
		switch f.Get("do") {
		case "accept":
			if in.ID == "" {
				return "", "", plane.Errorf(plane.InvalidInput, "The form lacks the proposal that was looked at.")
			}
			return in.Name + " is accepted for " + in.Team + ".", "/proposals", do(v, "mcp.accept", in)
		case "forget":
			return in.Name + " is forgotten.", "/proposals", do(v, "mcp.forget", in)
		}
		return "", "", unknownForm()
	}})
	p.page("/why", pageDef{at: "/why", show: why})
}

// agentView is an agent on one of its pages.
type agentView struct {
	show  *command.AgentShow
	tab   string
	tools []command.ToolRow
	reach []plane.Destination
}

func agentOf(v *visit, tab string) (agentView, error) {
	a, err := ask[command.AgentShow](v, "agents.show", &command.AgentInput{Agent: v.r.PathValue("slug")})
	v.title = v.r.PathValue("slug")
	return agentView{show: a, tab: tab}, err
}

// showAgent is what an agent has: its servers, and their tools as its model sees them.
func showAgent(v *visit) (templ.Component, error) {
	x, err := agentOf(v, "")
	if err != nil {
		return nil, err
	}
	l, err := ask[command.MCPTools](v, "mcp.tools", &command.MCPToolsInput{})
	if err != nil && plane.KindOf(err) != plane.Unavailable {
		return nil, err
	}
	has := map[string]bool{}
	for _, s := range x.show.Servers {
		has[s.ID] = s.Why == ""
	}
	if l != nil {
		x.tools = slices.DeleteFunc(l.Tools, func(t command.ToolRow) bool { return !has[t.Connection] })
	}
	return agentPage(v, x, agentTools(v, x)), nil
}

func showAgentRuns(v *visit) (templ.Component, error) {
	x, err := agentOf(v, "runs")
	if err != nil {
		return nil, err
	}
	l, err := ask[command.RunsList](v, "runs.list", &command.RunsListInput{Agent: x.show.Agent.Slug, Limit: pageRuns, Before: v.r.URL.Query().Get("before")})
	if err != nil {
		return nil, err
	}
	return agentPage(v, x, agentRuns(v, x, l.Runs)), nil
}

func showAgentSettings(v *visit) (templ.Component, error) {
	x, err := agentOf(v, "settings")
	if err != nil {
		return nil, err
	}
	d, err := ask[command.DestinationsList](v, "destinations.list", &command.DestinationsInput{})
	if err == nil {
		x.reach = d.Destinations
	} else if plane.KindOf(err) != plane.Forbidden && plane.KindOf(err) != plane.Unavailable {
		return nil, err
	}
	return agentPage(v, x, agentSettings(v, x)), nil
}

// teamProposals are one team's.
type teamProposals struct {
	team string
	list []command.ProposalRow
}

func showProposals(v *visit) (templ.Component, error) {
	v.title = "Proposals"
	all := v.r.URL.Query().Get("all") != ""
	teams, err := proposalsOf(v, all)
	if err != nil {
		return nil, err
	}
	return proposalsPage(v, teams, all), nil
}

// proposalsOf are the declarations of the teams that the viewer is in.
func proposalsOf(v *visit, all bool) ([]teamProposals, error) {
	c, err := ask[command.ConfigShow](v, "config.show", &command.ConfigInput{})
	if err != nil {
		return nil, err
	}
	var teams []teamProposals
	for _, name := range c.Teams {
		l, err := ask[command.ProposalsList](v, "proposals.list", &command.ProposalsListInput{Team: name, All: all})
		if plane.KindOf(err) == plane.Forbidden || plane.KindOf(err) == plane.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		teams = append(teams, teamProposals{name, l.Proposals})
	}
	return teams, nil
}

func why(v *visit) (templ.Component, error) {
	v.title = "Why?"
	q := v.r.URL.Query()
	tool, agent := strings.TrimSpace(q.Get("tool")), q.Get("agent")
	if agent == "" {
		agent = "general"
	}
	a, err := ask[command.AgentsList](v, "agents.list", &command.AgentsListInput{})
	if err != nil {
		return nil, err
	}
	if tool == "" {
		return whyPage(v, nil, a.Agents, tool, agent, ""), nil
	}
	w, err := ask[command.Why](v, "mcp.why", &command.WhyInput{Tool: tool, Agent: agent})
	if err != nil {
		e := plane.Public(err)
		return whyPage(v, nil, a.Agents, tool, agent, strings.TrimSpace(e.Message+" "+e.Next)), nil
	}
	return whyPage(v, w, a.Agents, tool, agent, ""), nil
}
