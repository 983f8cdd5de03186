package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/egress"
	"patchbay/internal/plane"
)

// egressRunCmd runs a command whose requests go through the credential gateway.
type egressRunCmd struct {
	Agent   string   `help:"The agent whose policy holds." default:"general" predictor:"agent"`
	Team    string   `help:"The team it is for, whose secrets it may use."`
	Command []string `arg:"" optional:"" passthrough:"" placeholder:"COMMAND" help:"The command and its arguments, after --."`
}

// Run runs it with the proxy, the certificate and the placeholder set, and with a token
// that ends with it.
func (c *egressRunCmd) Run(e *env) error {
	words := c.Command
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return plane.Errorf(plane.InvalidInput, "Say what to run.").Then("patchbay egress run -- curl https://api.example.com/")
	}
	path, err := exec.LookPath(words[0])
	if err != nil {
		return plane.Errorf(plane.NotFound, "There is no command %s.", words[0]).Because(err)
	}
	var ca command.EgressCA
	if err := e.client.Command(e.ctx, "egress.ca", command.EgressCAInput{}, &ca); err != nil {
		return err
	}
	var token command.TokenCreated
	if err := e.client.Command(e.ctx, "tokens.create", command.TokensCreateInput{Label: "egress run", Agent: c.Agent, Team: c.Team, Expires: "24h"}, &token); err != nil {
		return err
	}
	defer func() { // it is of no use to anybody afterwards
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), 10*time.Second)
		defer cancel()
		if err := e.client.Command(ctx, "tokens.revoke", command.TokenInput{ID: token.ID}, &struct{}{}); err != nil {
			fmt.Fprintf(e.err, "patchbay: The token %s of this command could not be revoked; it ends within a day.\n", token.ID)
		}
	}()
	dir, err := os.MkdirTemp("", "patchbay-egress-")
	if err != nil {
		return plane.Errorf(plane.Unavailable, "A folder for the gateway's certificate cannot be made.").Because(err)
	}
	defer os.RemoveAll(dir)
	env, err := gatewayEnv(dir, &ca, token.Value)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(e.ctx, path, words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = e.in, e.out, e.err, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	began := time.Now()
	err = cmd.Run()
	c.refused(e, began)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if sig, ok := exit.Sys().(syscall.WaitStatus); ok && sig.Signaled() {
			return exitCode(128 + int(sig.Signal())) // as a shell says it
		}
		return exitCode(max(exit.ExitCode(), 1))
	}
	return err
}

// maxRefused is how many refusals a command is told of.
const maxRefused = 3

// refused says what the gateway refused of the command: many clients do not show it. Who
// may not read the log is told nothing.
func (c *egressRunCmd) refused(e *env, since time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), 5*time.Second)
	defer cancel()
	time.Sleep(100 * time.Millisecond) // records are written behind
	var log command.EgressLog
	if e.client.Command(ctx, "egress.log", command.EgressLogInput{Agent: c.Agent, State: string(plane.EgressDenied), Limit: 50}, &log) != nil {
		return
	}
	told := map[string]bool{}
	for _, r := range log.Requests {
		line := fmt.Sprintf("%s %s:%d%s: %s", r.Method, r.Host, r.Port, r.Path, r.Reason)
		if r.At.Before(since.Add(-time.Second)) || told[line] || len(told) == maxRefused {
			continue
		}
		told[line] = true
		fmt.Fprintf(e.err, "patchbay: refused %s\n", line)
	}
	if len(told) > 0 {
		fmt.Fprintf(e.err, "patchbay: all of them: patchbay egress log --state denied --agent %s\n", c.Agent)
	}
}

// gatewayEnv writes what clients read to a directory, and returns the variables that name
// it.
func gatewayEnv(dir string, ca *command.EgressCA, token string) ([]string, error) {
	for name, text := range egress.ClientFiles(ca.PEM) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, plane.Errorf(plane.Unavailable, "The gateway's certificate cannot be written.").Because(err)
		}
	}
	out := egress.ClientEnv(dir, strings.Replace(ca.URL, "http://", "http://agent:"+token+"@", 1), ca.Placeholder, os.Getenv("NODE_OPTIONS"))
	if os.Getenv("NO_PROXY") == "" && os.Getenv("no_proxy") == "" {
		out = append(out, "NO_PROXY="+egress.Near, "no_proxy="+egress.Near)
	}
	return out, nil
}
