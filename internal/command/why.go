package command

import (
	"fmt"
	"io"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// WhyInput names a tool.
type WhyInput struct {
	Tool  string `arg:"" json:"tool" help:"The tool: its alias, or server/tool." predictor:"tool"`
	Agent string `json:"agent,omitempty" help:"The agent that would call it." default:"general" predictor:"agent"`
	Team  string `json:"team,omitempty" help:"The team it would work for."`
}

// WhyStep is one check, in the order they are made.
type WhyStep struct {
	Check  string `json:"check"` // server, scope, filter, drift, credential, approval, budget
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Why is the answer and the trace that gave it.
type Why struct {
	Tool    string    `json:"tool"`
	Server  string    `json:"server"`
	Agent   string    `json:"agent"`
	Allowed bool      `json:"allowed"`
	Answer  string    `json:"answer"`
	Next    string    `json:"next,omitempty"`
	Trace   []WhyStep `json:"trace"`
}

// Text draws the trace and the answer.
func (o *Why) Text(w io.Writer, s Style) {
	for _, st := range o.Trace {
		mark := s.state("ok")
		if !st.OK {
			mark = s.state("failed")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", mark, st.Check, bridge.Visible(st.Detail))
	}
	fmt.Fprintf(w, "\n%s\n", bridge.Visible(o.Answer))
	if o.Next != "" {
		fmt.Fprintf(w, "Next: %s\n", o.Next)
	}
}

// why follows the decisions that a call would meet, on the same snapshot.
func why(d Deps, who plane.Principal, in *WhyInput) (*Why, error) {
	if err := d.off(); err != nil {
		return nil, err
	}
	snap := d.Policy()
	if _, ok := snap.Agent(in.Agent); !ok {
		return nil, plane.Errorf(plane.NotFound, "There is no agent %q.", oneLine(in.Agent, 40)).At("agent").Then("patchbay agents list")
	}
	if in.Team != "" {
		if !snap.Member(who, in.Team) {
			return nil, notInTeam(who)
		}
		who.Team = in.Team
	}
	a, tool, err := whichTool(d, who, in.Tool)
	if err != nil {
		a, tool, err = inReach(snap, who, in, err)
	}
	if err != nil {
		if out := whyDropped(snap, who, in); out != nil {
			return out, nil
		}
		return nil, err
	}
	out := &Why{Tool: tool, Server: a.Slug, Agent: in.Agent, Allowed: true}
	note := func(check, reason, next, fine string) {
		ok := reason == ""
		if ok {
			reason = fine
		}
		out.Trace = append(out.Trace, WhyStep{Check: check, OK: ok, Detail: reason})
		if !ok && out.Allowed {
			out.Allowed, out.Next = false, next
			out.Answer = fmt.Sprintf("%s cannot call %s at %s: %s", in.Agent, tool, a.Slug, strings.TrimSuffix(reason, ".")) + "."
		}
	}
	cat := d.Catalogs.Get(a.ID)
	whyDeclared(note, snap, who, in.Agent, a)
	whyServer(note, a, cat)
	_, denial := snap.Trace(who, policy.Call, policy.Resource{Agent: in.Agent, Connection: a.ID}, func(s policy.Step) {
		if s.Check != policy.CheckCredential {
			note(s.Check, s.Reason, s.Next, s.Fine)
		}
	})
	if at := shadow(snap, in.Agent, who, a.ID); at != "" {
		note(policy.CheckScope, at, "patchbay mcp list", "")
	}
	include := "patchbay mcp tools " + a.Slug
	if word, ok := shellWord(tool); ok {
		include = "patchbay mcp tools-set " + a.Slug + " --include " + word
	}
	note("filter", leftOut(a, tool), include, "it is not left out")
	whyTool(note, a, cat, tool, d.Limits)
	credential := ""
	next := ""
	if denial != nil && denial.Kind == plane.Unauthenticated {
		credential, next = denial.Reason, "patchbay mcp connect "+a.Slug
	}
	note(policy.CheckCredential, credential, next, "it is signed in, or needs no sign-in")
	whyApproval(note, snap, in.Agent, a, cat, tool)
	note("budget", "", "", fmt.Sprintf("a run may make %d remote calls", d.Limits.CallsPerRun))
	if out.Allowed {
		out.Answer = fmt.Sprintf("%s can call %s at %s.", in.Agent, tool, a.Slug)
	}
	return out, nil
}

// whyDeclared says where a server is declared that a declaration made, and why it is left
// out.
func whyDeclared(note func(check, reason, next, fine string), snap *policy.Snapshot, who plane.Principal, agent string, a policy.Attached) {
	if a.Origin != plane.OfDeclaration {
		return
	}
	for _, at := range snap.Attachments(agent, who) {
		if at.Name != a.Slug {
			continue
		}
		if at.Dropped != "" {
			note("declared", at.Dropped, "patchbay registry show "+at.Name, "")
			return
		}
		note("declared", "", "", "it is "+declaredBy(at))
		return
	}
	note("declared", "nothing declares it for "+agent, "patchbay registry attach "+a.Slug+" --agent "+agent, "")
}

// declaredBy is where a declaration stands, and what it goes before.
func declaredBy(at plane.Attachment) string {
	if at.From == "" {
		return "named by the " + string(at.Layer)
	}
	out := fmt.Sprintf("declared by the %s (%s)", at.Layer, at.From)
	if at.AcceptedBy != "" {
		out += ", accepted by " + at.AcceptedBy
	}
	for _, l := range at.Overrides {
		out += fmt.Sprintf(", in place of the one of the %s", l)
	}
	return out
}

// inReach finds a tool of the server that the agent knows by that name, where others have
// one of the name too.
func inReach(snap *policy.Snapshot, who plane.Principal, in *WhyInput, err error) (policy.Attached, string, error) {
	server, tool, ok := strings.Cut(in.Tool, "/")
	if !ok {
		return policy.Attached{}, "", err
	}
	for _, a := range snap.Resolve(in.Agent, who) {
		if a.Slug == server && a.ShadowedBy.Kind == "" {
			return a, tool, nil
		}
	}
	return policy.Attached{}, "", err
}

// whyDropped answers about a server that is declared and left out, so that there is no
// connection to ask about.
func whyDropped(snap *policy.Snapshot, who plane.Principal, in *WhyInput) *Why {
	server, tool, ok := strings.Cut(in.Tool, "/")
	if !ok {
		server, tool = in.Tool, "its tools"
		if rest, is := strings.CutPrefix(in.Tool, "mcp__"); is {
			server, tool, _ = strings.Cut(rest, "__")
		}
	}
	for _, at := range snap.Attachments(in.Agent, who) {
		if at.Name == server && at.Dropped != "" {
			next := "patchbay registry show " + server
			if at.From == "" || at.Layer != plane.LayerRegistry {
				next = "patchbay registry list, patchbay proposals list"
			}
			return &Why{Tool: tool, Server: server, Agent: in.Agent, Next: next,
				Answer: fmt.Sprintf("%s cannot call %s at %s: it is %s, and left out: %s.", in.Agent, tool, server, declaredBy(at), at.Dropped),
				Trace:  []WhyStep{{Check: "declared", Detail: at.Dropped}}}
		}
	}
	return nil
}

func whyServer(note func(check, reason, next, fine string), a policy.Attached, cat *plane.Catalog) {
	switch {
	case cat == nil:
		note("server", "", "", "it was never asked for its tools")
	case cat.Health == plane.HealthUnavailable:
		note("server", "the server is unavailable: "+cat.Detail, "patchbay mcp test "+a.Slug, "")
	case cat.CapturedAt.IsZero():
		note("server", "", "", "it never told its tools: "+cat.Detail)
	default:
		note("server", "", "", "it answered "+cat.CapturedAt.UTC().Format("2 Jan 15:04:05 MST"))
	}
}

// whyApproval says whether a person is asked, or the agent's approvals block the tool.
func whyApproval(note func(check, reason, next, fine string), snap *policy.Snapshot, agent string, a policy.Attached, cat *plane.Catalog, tool string) {
	d := &plane.Definition{Name: tool, Class: plane.Effect}
	if cat != nil {
		for i := range cat.Definitions {
			if cat.Definitions[i].Name == tool {
				d = &cat.Definitions[i]
			}
		}
	}
	switch mode, why := snap.Approval(agent, a.Connection, d); mode {
	case plane.Block:
		note("approval", why, "Change agents."+agent+".approvals in patchbay.yaml.", "")
	case plane.Ask:
		note("approval", "", "", "a person is asked first: "+why)
	default:
		note("approval", "", "", strings.TrimSpace("nobody is asked. "+why))
	}
}

func whyTool(note func(check, reason, next, fine string), a policy.Attached, cat *plane.Catalog, tool string, lim plane.Limits) {
	next := "patchbay mcp test " + a.Slug
	if a.State == plane.StateAwaiting {
		note("drift", "", "", "nobody knows what it offers before it is signed in")
		return
	}
	if cat == nil || cat.CapturedAt.IsZero() {
		note("drift", "the server was never asked, so nobody knows whether it has this tool", next, "")
		return
	}
	for _, t := range cat.Definitions {
		if t.Name != tool {
			continue
		}
		switch {
		case t.Unsupported != "":
			note("drift", "its definition cannot be offered: "+t.Unsupported, "", "")
		case t.Held != "":
			note("drift", "its definition is "+t.Held, "patchbay mcp diff "+a.Slug, "")
		case lim.ToolsOffered > 0 && len(cat.Definitions) > lim.ToolsOffered:
			note("drift", "", "", "its definition is as it was last seen; a session with more than "+fmt.Sprint(lim.ToolsOffered)+" tools finds them by tool_search")
		default:
			note("drift", "", "", "its definition is as it was last seen; it is compared again before every call")
		}
		return
	}
	note("drift", "the server does not offer it", next, "")
}

// shadow says which connection of the same name serves the agent instead.
func shadow(snap *policy.Snapshot, agent string, who plane.Principal, id plane.ConnectionID) string {
	for _, at := range snap.Resolve(agent, who) {
		if at.ID == id && at.ShadowedBy.Kind != "" {
			return at.Why
		}
	}
	return ""
}

// whichTool finds a tool by alias or by server/tool. A server that was never
// asked may still be named.
func whichTool(d Deps, who plane.Principal, name string) (policy.Attached, string, error) {
	snap := d.Policy()
	if i := strings.LastIndex(name, "/"); i > 0 {
		if a, err := connection(snap, who, name[:i]); err == nil {
			return a, name[i+1:], nil
		}
		if server, tool, ok := strings.Cut(name, "/"); ok {
			if a, err := connection(snap, who, server); err == nil {
				return a, tool, nil
			}
		}
	}
	var names []string
	for _, a := range snap.Visible(who) {
		for _, row := range toolRows(a, d.Catalogs.Get(a.ID), d.Limits.DescriptionOffered) {
			if row.Alias == name || row.Name == name {
				return a, row.Name, nil
			}
			names = append(names, row.Alias)
		}
	}
	e := plane.Errorf(plane.NotFound, "No server in sight has a tool %q.", oneLine(name, 80)).At("tool").Then("patchbay mcp tools")
	if n := plane.Nearest(name, names); n != "" {
		e.Next = "Did you mean " + n + "?"
	}
	return policy.Attached{}, "", e
}
