package main

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/posener/complete"

	"patchbay/internal/command"
)

// completeTime is how long the shell waits for names.
const completeTime = 500 * time.Millisecond

// predictors complete names by asking the server, shortly.
func predictors() map[string]complete.Predictor {
	return map[string]complete.Predictor{
		"server": named("mcp.list", command.MCPListInput{}, func(o *command.MCPList) []command.ServerRow { return o.Servers },
			func(r command.ServerRow) string { return r.Name }),
		"tool": named("mcp.tools", command.MCPToolsInput{}, func(o *command.MCPTools) []command.ToolRow { return o.Tools },
			func(r command.ToolRow) string { return r.Name }),
		"agent": named("agents.list", command.AgentsListInput{}, func(o *command.AgentsList) []command.AgentRow { return o.Agents },
			func(r command.AgentRow) string { return r.Slug }),
		"client": named("clients.list", command.ClientsListInput{}, func(o *command.ClientsList) []command.ClientRow { return o.Clients },
			func(r command.ClientRow) string { return r.ID }),
		"person": named("people.list", command.PeopleListInput{}, func(o *command.PeopleList) []command.PersonRow { return o.People },
			func(r command.PersonRow) string { return cmp.Or(r.Email, r.ID) }),
		"approval": named("approvals.list", command.ApprovalsListInput{Limit: 20}, func(o *command.ApprovalsList) []command.ApprovalRow { return o.Approvals },
			func(r command.ApprovalRow) string { return r.ID }),
		"call": named("calls.list", command.CallsListInput{Limit: 20}, func(o *command.CallsList) []command.CallRow { return o.Calls },
			func(r command.CallRow) string { return r.ID }),
		"rule": named("rules.list", command.RulesListInput{}, func(o *command.RulesList) []command.RuleRow { return o.Rules },
			func(r command.RuleRow) string { return r.ID }),
		"run": complete.PredictOr(complete.PredictSet("last"), named("runs.list", command.RunsListInput{Limit: 20}, func(o *command.RunsList) []command.RunRow { return o.Runs },
			func(r command.RunRow) string { return r.ID })),
		"entry": named("registry.list", command.RegistryListInput{Limit: 200}, func(o *command.RegistryList) []command.RegistryRow { return o.Servers },
			func(r command.RegistryRow) string { return r.Name }),
		"proposal": named("proposals.list", command.ProposalsListInput{}, func(o *command.ProposalsList) []command.ProposalRow { return o.Proposals },
			func(r command.ProposalRow) string { return r.Name }),
	}
}

// named completes names of the rows that a command lists.
func named[T, R any](list string, in any, rows func(*T) []R, name func(R) string) complete.Predictor {
	return complete.PredictFunc(func(complete.Args) []string {
		ctx, cancel := context.WithTimeout(context.Background(), completeTime)
		defer cancel()
		e, err := newEnv(ctx, &cli{}, nil, io.Discard, io.Discard)
		if err != nil {
			return nil
		}
		var out T
		if e.client.Command(e.ctx, list, in, &out) != nil {
			return nil
		}
		var names []string
		for _, r := range rows(&out) {
			names = append(names, name(r))
		}
		return names
	})
}
