package main

import "patchbay/internal/command"

type runsGroup struct {
	List    runsListCmd    `cmd:"" aliases:"ls" help:"List the latest runs."`
	Show    runsShowCmd    `cmd:"" aliases:"get" help:"Show one run: its calls and its timeline."`
	Cancel  runsCancelCmd  `cmd:"" help:"Stop a run."`
	Resolve runsResolveCmd `cmd:"" help:"Say what became of a call whose outcome is unknown."`
}

type runsListCmd struct{ command.RunsListInput }

func (c *runsListCmd) Run(e *env) error {
	return e.command("runs.list", c.RunsListInput, &command.RunsList{})
}

type runsShowCmd struct {
	Run_ string `arg:"" name:"run" help:"Id of the run, or 'last'." predictor:"run"`
}

func (c *runsShowCmd) Run(e *env) error {
	return e.command("runs.show", command.RunInput{Run: c.Run_}, &command.RunsShow{})
}

type runsCancelCmd struct {
	Run_ string `arg:"" name:"run" help:"Id of the run, or 'last'." predictor:"run"`
}

func (c *runsCancelCmd) Run(e *env) error {
	var out command.RunRow
	if err := e.client.Command(e.ctx, "runs.cancel", command.RunInput{Run: c.Run_}, &out); err != nil || !e.json {
		return err
	}
	return e.write(&out)
}

type runsResolveCmd struct{ command.ResolveInput }

func (c *runsResolveCmd) Run(e *env) error {
	return e.command("runs.resolve", c.ResolveInput, &command.Resolved{})
}

type agentsGroup struct {
	List agentsListCmd `cmd:"" aliases:"ls" help:"List the agents and the servers that each may use."`
}

type agentsListCmd struct{}

func (agentsListCmd) Run(e *env) error {
	return e.command("agents.list", command.AgentsListInput{}, &command.AgentsList{})
}

type statusCmd struct{}

func (statusCmd) Run(e *env) error {
	return e.command("status", command.StatusInput{}, &command.Status{})
}
