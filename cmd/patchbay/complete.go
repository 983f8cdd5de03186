package main

import (
	"context"
	"io"
	"time"

	"github.com/posener/complete"

	"patchbay/internal/command"
)

// predictors complete names by asking the server, shortly.
func predictors() map[string]complete.Predictor {
	ask := func(fill func(e *env) []string) complete.Predictor {
		return complete.PredictFunc(func(complete.Args) []string {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			e, err := newEnv(ctx, &cli{}, nil, io.Discard, io.Discard)
			if err != nil {
				return nil
			}
			return fill(e)
		})
	}
	out := map[string]complete.Predictor{
		"server": ask(func(e *env) []string {
			var out command.MCPList
			if e.client.Command(e.ctx, "mcp.list", command.MCPListInput{}, &out) != nil {
				return nil
			}
			var names []string
			for _, s := range out.Servers {
				names = append(names, s.Name)
			}
			return names
		}),
		"tool": ask(func(e *env) []string {
			var out command.MCPTools
			if e.client.Command(e.ctx, "mcp.tools", command.MCPToolsInput{}, &out) != nil {
				return nil
			}
			var names []string
			for _, t := range out.Tools {
				names = append(names, t.Name)
			}
			return names
		}),
		"agent": ask(func(e *env) []string {
			var out command.AgentsList
			if e.client.Command(e.ctx, "agents.list", command.AgentsListInput{}, &out) != nil {
				return nil
			}
			var names []string
			for _, a := range out.Agents {
				names = append(names, a.Slug)
			}
			return names
		}),
		"approval": ask(func(e *env) []string {
			var out command.ApprovalsList
			if e.client.Command(e.ctx, "approvals.list", command.ApprovalsListInput{Limit: 20}, &out) != nil {
				return nil
			}
			var names []string
			for _, a := range out.Approvals {
				names = append(names, a.ID)
			}
			return names
		}),
		"call": ask(func(e *env) []string {
			var out command.CallsList
			if e.client.Command(e.ctx, "calls.list", command.CallsListInput{Limit: 20}, &out) != nil {
				return nil
			}
			var names []string
			for _, c := range out.Calls {
				names = append(names, c.ID)
			}
			return names
		}),
		"rule": ask(func(e *env) []string {
			var out command.RulesList
			if e.client.Command(e.ctx, "rules.list", command.RulesListInput{}, &out) != nil {
				return nil
			}
			var names []string
			for _, r := range out.Rules {
				names = append(names, r.ID)
			}
			return names
		}),
		"run": ask(func(e *env) []string {
			var out command.RunsList
			if e.client.Command(e.ctx, "runs.list", command.RunsListInput{Limit: 20}, &out) != nil {
				return nil
			}
			names := []string{"last"}
			for _, r := range out.Runs {
				names = append(names, r.ID)
			}
			return names
		}),
	}
	offered(out, ask)
	return out
}

// offered completes names of the registry and of teams' proposals.
func offered(out map[string]complete.Predictor, ask func(func(e *env) []string) complete.Predictor) {
	out["entry"] = ask(func(e *env) []string {
		var out command.RegistryList
		if e.client.Command(e.ctx, "registry.list", command.RegistryListInput{Limit: 200}, &out) != nil {
			return nil
		}
		var names []string
		for _, r := range out.Servers {
			names = append(names, r.Name)
		}
		return names
	})
	out["proposal"] = ask(func(e *env) []string {
		var out command.ProposalsList
		if e.client.Command(e.ctx, "proposals.list", command.ProposalsListInput{}, &out) != nil {
			return nil
		}
		var names []string
		for _, r := range out.Proposals {
			names = append(names, r.Name)
		}
		return names
	})
}
