package web

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/a-h/templ"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

func (p *Pages) overviewPages() {
	p.page("/{$}", pageDef{at: "/", show: overview})
}

// attention is one thing that needs a person, and where it is dealt with.
type attention struct{ state, text, note, href, button string }

// overviewView is the overview.
type overviewView struct {
	attention []attention
	stats     *command.Stats
	period    string
	agent     string
	agents    []command.AgentRow
	off       bool // MCP is
	servers   int
	runs      []command.RunRow
	withheld  string // why there are no numbers
}

// maxAttention is how many things are listed.
const maxAttention = 20

func overview(v *visit) (templ.Component, error) {
	v.title = "Overview"
	q := v.r.URL.Query()
	x := overviewView{period: q.Get("period"), agent: q.Get("agent")}
	if x.period == "" {
		x.period = "24h"
	}
	st, err := ask[command.Status](v, "status", &command.StatusInput{})
	if err != nil {
		return nil, err
	}
	l, err := ask[command.MCPList](v, "mcp.list", &command.MCPListInput{})
	if err != nil && plane.KindOf(err) != plane.Unavailable { // MCP is off
		return nil, err
	}
	x.off = l == nil
	if l != nil {
		x.servers = len(l.Servers)
	}
	x.attention = append(needs(st, l), proposed(v)...)
	if a, err := ask[command.AgentsList](v, "agents.list", &command.AgentsListInput{}); err == nil {
		x.agents = a.Agents
	}
	x.stats, err = ask[command.Stats](v, "stats", &command.StatsInput{Period: x.period, Agent: x.agent})
	if plane.KindOf(err) == plane.Forbidden {
		x.withheld, x.stats = plane.Public(err).Message, nil
	} else if err != nil {
		return nil, err
	}
	if r, err := ask[command.RunsList](v, "runs.list", &command.RunsListInput{Limit: 5}); err == nil {
		x.runs = r.Runs
	}
	return overviewPage(v, x), nil
}

// needs are what waits for a person, gravest first.
func needs(st *command.Status, l *command.MCPList) []attention {
	var out []attention
	if n := len(st.Unknown); n > 0 {
		out = append(out, attention{"unknown", count(n, "call") + " whose outcome nobody knows", "They may have happened. Nothing is sent again until somebody says.", "/calls", "Say what happened"})
	}
	if n := len(st.Asked); n > 0 {
		out = append(out, attention{"awaiting_approval", count(n, "call") + " to approve or deny", "", "/approvals", "Look at them"})
	}
	if l != nil {
		for _, s := range l.Servers {
			if s.Held > 0 && s.Enabled && len(out) < maxAttention {
				out = append(out, attention{"held", nameOf(s) + " changed " + count(s.Held, "tool"), "What changed is kept out until a person has looked at it.", "/connections/" + s.ID + "#changes", "Look at it"})
			}
			if t := troubleOf(s); s.Enabled && t.text != "" && len(out) < maxAttention {
				out = append(out, attention{stateOf(s), nameOf(s), t.text, "/connections/" + s.ID, t.button})
			}
		}
	}
	return out
}

// proposed are the declarations that wait for the viewer's word.
func proposed(v *visit) (out []attention) {
	teams, err := proposalsOf(v, false)
	if err != nil {
		return nil // MCP is off
	}
	for _, t := range teams {
		n := 0
		for _, p := range t.list {
			if p.State == string(plane.Proposed) {
				n++
			}
		}
		if n > 0 {
			out = append(out, attention{"proposed", count(n, "server") + " proposed to " + t.team, "", "/proposals", "Look at them"})
		}
	}
	return out
}

// rate is a part of a whole, in percent.
func rate(part, whole int) string {
	if whole == 0 {
		return "0"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64)
}

// bars are a chart's: x, y and height of each, in a box of 240 by 36.
type bar struct{ x, y, w, h string }

func bars(s *command.Stats, of func(command.StatSlot) int64) []bar {
	most := int64(1)
	for _, t := range s.Slots {
		most = max(most, of(t))
	}
	step := 240 / float64(max(len(s.Slots), 1))
	var out []bar
	for i, t := range s.Slots {
		h := 36 * float64(of(t)) / float64(most)
		out = append(out, bar{f1(float64(i) * step), f1(36 - h), f1(step * .82), f1(h)})
	}
	return out
}

func f1(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }

func slotCalls(t command.StatSlot) int64  { return int64(t.Calls) }
func slotFailed(t command.StatSlot) int64 { return int64(t.Failed) }
func slotP50(t command.StatSlot) int64    { return t.P50 }
func slotP95(t command.StatSlot) int64    { return t.P95 }

func ms(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10) + " ms"
	}
	return strconv.FormatFloat(float64(n)/1000, 'f', 1, 64) + " s"
}

func overviewHref(period, agent string) string {
	q := url.Values{"period": {period}}
	if agent != "" {
		q.Set("agent", agent)
	}
	return "/?" + q.Encode()
}

func periodWords(p string) string {
	return strings.NewReplacer("24h", "24 hours", "7d", "7 days", "30d", "30 days").Replace(p)
}
