package main

import (
	"context"

	"patchbay/internal/app"
)

type slackCmd struct {
	Doctor slackDoctorCmd `cmd:"" help:"Look whether the app can do its work: tokens, scopes, the socket, a message."`
}

type slackDoctorCmd struct {
	Config string `name:"config" short:"c" placeholder:"FILE" help:"Config file to look at (default: patchbay.yaml in this folder, if there is one)."`
	To     string `name:"to" placeholder:"ADDRESS" help:"Send a direct message to the member of this address."`
}

func (c *slackDoctorCmd) Run(e *env) error {
	cfg, err := app.LoadConfig(configPath(c.Config))
	if err != nil {
		return err
	}
	var fs []finding
	for _, x := range app.SlackDoctor(context.Background(), cfg, c.To) {
		fs = append(fs, found(x.What, x.Err, x.Says))
	}
	return report(e, fs)
}
