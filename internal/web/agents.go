package web

import (
	"net/url"
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
			return in.Name + " is accepted for " + in.Team + ".", "/proposals", do(v, "mcp.accept", in)
		case "forget":
			return in.Name + " is forgotten.", "/proposals", do(v, "mcp.forget", in)
		}
		return "", "", unknownForm()
	}})
	p.page("/why", pageDef{at: "/why", show: why})
}

func showAgent(v *visit) (templ.Component, error) {
	slug := v.r.PathValue("slug")
	a, err := ask[command.AgentShow](v, "agents.show", &command.AgentInput{Agent: slug})
	if err != nil {
		return nil, err
	}
	v.title = slug
	l, err := ask[command.RunsList](v, "runs.list", &command.RunsListInput{Limit: pageRuns})
	if err != nil {
		return nil, err
	}
	var runs []command.RunRow
	for _, r := range l.Runs {
		if r.Agent == slug && len(runs) < 20 {
			runs = append(runs, r)
		}
	}
	return agentPage(v, a, runs), nil
}

// teamProposals are one team's.
type teamProposals struct {
	team string
	list []command.ProposalRow
}

func showProposals(v *visit) (templ.Component, error) {
	v.title = "Proposals"
	all := v.r.URL.Query().Get("all") != ""
	c, err := ask[command.ConfigShow](v, "config.show", &command.ConfigInput{})
	if err != nil {
		return nil, err
	}
	var teams []teamProposals
	for _, t := range c.Tiers {
		name, ok := strings.CutPrefix(t.Scope, "team:")
		if !ok {
			continue
		}
		l, err := ask[command.ProposalsList](v, "proposals.list", &command.ProposalsListInput{Team: name, All: all})
		if plane.KindOf(err) == plane.Forbidden || plane.KindOf(err) == plane.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		teams = append(teams, teamProposals{name, l.Proposals})
	}
	return proposalsPage(v, teams, all), nil
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
