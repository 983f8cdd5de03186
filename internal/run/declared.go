package run

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"patchbay/internal/plane"
)

// maxNotes bounds what one run says of declarations that were left out.
const maxNotes = 10

// attribute writes down, once, which declared servers the run has: where each was
// declared and who accepted it. What was dropped is noted with its reason.
func (w *worker) attribute(ctx context.Context) error {
	if len(w.run.Attached) > 0 {
		return nil
	}
	served := map[plane.ConnectionID]bool{}
	for _, s := range w.session.Servers() {
		served[s.ID] = served[s.ID] || s.Why == ""
	}
	var list []plane.Attachment
	var notes []pending
	for _, a := range w.e.o.Agents.Attachments(w.agent.Slug, w.run.Caller) {
		if a.Dropped == "" {
			if served[a.Connection] {
				list = append(list, a) // and not one that another goes before, or that does not answer
			}
			continue
		}
		if a.OtherAgents {
			continue // it is not for this one
		}
		notes = append(notes, pending{kind: plane.EventRunNote, data: map[string]any{"kind": "mcp_dropped", "server": a.Name, "source": a.Layer, "reason": clipText(a.Dropped, 300)}})
	}
	if w.run.Fence > 1 {
		notes = nil // they stand there from the first time
	}
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes], pending{kind: plane.EventRunNote, data: map[string]any{"kind": "mcp_dropped", "reason": fmt.Sprintf("and %d more", more)}})
	}
	if len(list) == 0 && len(notes) == 0 && w.agent.Revision <= 1 {
		return nil
	}
	if len(list) > 0 {
		notes = append(notes, pending{kind: plane.EventRunNote, data: map[string]any{"kind": "mcp_attached", "servers": list, "reason": clipText(names(list), 300)}})
	}
	w.run.Attached = list
	return w.commit(ctx, func(t plane.Tx) error {
		if list == nil {
			list = []plane.Attachment{}
		}
		return w.e.o.Store.AttachRun(t, w.run.ID, w.run.Fence, w.agent.Revision, list)
	}, notes...)
}

// names are the servers as a record names them: name (destination).
func names(list []plane.Attachment) string {
	var out []string
	for _, a := range list {
		n := a.Name
		if a.Destination != "" {
			n += " (" + a.Destination + ")"
		}
		out = append(out, n)
	}
	return strings.Join(out, ", ")
}

// proposeTool asks the team's people for a server that the agent found.
var proposeTool = ownTool{plane.ToolSpec{Name: "mcp_propose",
	Description: "Proposes an MCP server to the team's people. Give its declaration as YAML (name, transport: http, url, auth, description) and why the task needs it. Nothing is connected before a person accepts it. A declaration carries no secret.",
	Schema:      json.RawMessage(`{"type":"object","properties":{"declaration":{"type":"string","maxLength":65536},"why":{"type":"string","maxLength":2000}},"required":["declaration","why"]}`)},
	func(ctx context.Context, w *worker, u plane.ToolUse) (string, error) {
		var in struct{ Declaration, Why string }
		if err := json.Unmarshal(u.Input, &in); err != nil || in.Declaration == "" {
			return "", plane.Errorf(plane.InvalidInput, "Give a declaration, and why.")
		}
		team := w.run.Caller.Team
		if team == "" {
			return "", plane.Errorf(plane.InvalidInput, "This run is for no team, so there is nobody to propose a server to.")
		}
		who := plane.Principal{Kind: plane.KindAgent, Agent: w.agent.Slug, Team: team, ID: "agent:" + team + "/" + w.agent.Slug}
		name, err := w.e.o.Agents.Propose(ctx, who, team, in.Declaration, in.Why)
		if err != nil {
			return "", err
		}
		return name + " is proposed to " + team + ". It can be used once a person accepts it.", nil
	}}
