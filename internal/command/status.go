package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Status is what a server says of itself.
type Status struct {
	Version  string   `json:"version"`
	Listen   string   `json:"listen"`
	Data     string   `json:"data"`
	Database string   `json:"database"`
	Config   string   `json:"config"` // path of the file, or empty
	Models   []string `json:"models"`
	MCP      bool     `json:"mcp"`
	Servers  int      `json:"servers"`
	Healthy  int      `json:"servers_ok"`
	Waiting  int      `json:"runs_waiting"`
	Unknown  []string `json:"unknown_calls"`     // ids; a person must say what became of them
	Asked    []string `json:"pending_approvals"` // ids; a person must decide them
	Opens    []string `json:"egress_allow,omitempty"`
}

// StatusInput has nothing to say.
type StatusInput struct{}

// Text draws the status.
func (o *Status) Text(w io.Writer, _ Style) {
	config := o.Config
	if config == "" {
		config = "none, defaults"
	}
	fmt.Fprintf(w, "version\t%s\nlisten\t%s\n", o.Version, o.Listen)
	if o.Data != "" {
		fmt.Fprintf(w, "data\t%s\ndatabase\t%s\nconfig\t%s\n", o.Data, o.Database, config)
	}
	fmt.Fprintf(w, "models\t%s\n", strings.Join(o.Models, ", "))
	if o.MCP {
		fmt.Fprintf(w, "servers\t%d of %d ok\n", o.Healthy, o.Servers)
	} else {
		fmt.Fprintln(w, "servers\tMCP is off")
	}
	fmt.Fprintf(w, "runs waiting for a person\t%d\n", o.Waiting)
	for _, id := range o.Unknown {
		fmt.Fprintf(w, "outcome unknown\t%s\tpatchbay runs resolve %s done|not-done\n", id, id)
	}
	for _, id := range o.Asked {
		fmt.Fprintf(w, "waits for approval\t%s\tpatchbay approvals show %s\n", id, id)
	}
	for _, l := range o.Opens {
		fmt.Fprintf(w, "egress.allow opens\t%s\n", l)
	}
}

// AgentsListInput has nothing to say.
type AgentsListInput struct{}

// AgentRow is one agent.
type AgentRow struct {
	Slug        string   `json:"slug"`
	Description string   `json:"description"`
	Model       string   `json:"model"`
	Trust       string   `json:"trust"`
	Tools       []string `json:"tools"`
	MCP         bool     `json:"mcp"`
	Servers     []string `json:"servers"`
}

// AgentsList is all agents.
type AgentsList struct {
	Agents []AgentRow `json:"agents"`
}

// Text draws the agents.
func (o *AgentsList) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, a := range o.Agents {
		servers := strings.Join(a.Servers, " ")
		if !a.MCP {
			servers = "MCP off"
		} else if servers == "" {
			servers = "none"
		}
		rows = append(rows, []string{a.Slug, a.Trust, a.Model, servers, a.Description})
	}
	table(w, s, []string{"AGENT", "TRUST", "MODEL", "SERVERS", "FOR"}, rows)
}

func statusCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "status", Summary: "Says what this server is and how it stands.", ReadOnly: true, Right: plane.MCPRead, Example: "status"},
			func(ctx context.Context, who plane.Principal, _ *StatusInput) (*Status, error) {
				s := d.Info(ctx, who)
				return &s, nil
			}),
		define(About{Name: "agents.list", Summary: "Lists the agents and the servers that each may use.", ReadOnly: true, Right: plane.MCPRead, Example: "agents list", Alias: "ls"},
			func(_ context.Context, who plane.Principal, _ *AgentsListInput) (*AgentsList, error) {
				snap := d.Policy()
				out := &AgentsList{Agents: []AgentRow{}}
				for _, a := range snap.Agents() {
					row := agentRow(d, snap, who, a)
					out.Agents = append(out.Agents, row)
				}
				return out, nil
			}),
	}
}

func agentRow(d Deps, snap *policy.Snapshot, who plane.Principal, a plane.Agent) AgentRow {
	row := AgentRow{Slug: a.Slug, Description: a.Description, Model: d.Models(a.Model), Trust: string(a.Trust), Tools: a.Tools, MCP: a.MCP, Servers: []string{}}
	for _, at := range snap.Resolve(a.Slug, who) {
		if at.Why == "" {
			row.Servers = append(row.Servers, at.Slug)
		}
	}
	return row
}
