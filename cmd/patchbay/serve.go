package main

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"patchbay/internal/app"
	"patchbay/internal/secret"
)

type serveCmd struct {
	Config string `name:"config" short:"c" placeholder:"FILE" help:"Config file (default: patchbay.yaml in this folder, if there is one)."`
	Demo   bool   `help:"Also start a demo MCP server on loopback, with a few orders to ask about."`
	Listen string `placeholder:"ADDR" help:"Listen here instead of where the config says."`
}

func (c *serveCmd) Run(e *env) error {
	cfg, err := app.LoadConfig(configPath(c.Config))
	if err != nil {
		return err
	}
	if c.Listen != "" {
		if err := cfg.SetListen(c.Listen); err != nil {
			return err
		}
	}
	if e.dataFlag {
		cfg.Data = e.data
	}
	e.data = cfg.Data
	syscall.Umask(0o077) // database, socket and keys are the owner's alone
	// net/http writes stray bytes of a server into the standard log, and a server
	// may echo a credential.
	log.SetOutput(io.Discard)
	notice := func(format string, args ...any) { fmt.Fprintf(e.err, format+"\n", args...) }
	a, err := app.New(e.ctx, app.Options{Config: cfg, Version: version, Demo: c.Demo, Notice: notice,
		Log: slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-a.Ready():
			c.greet(e, a)
		case <-e.ctx.Done():
		}
	}()
	err = a.Run(e.ctx)
	fmt.Fprintln(e.err, "Stopping.")
	if cerr := a.Close(); err == nil {
		err = cerr
	}
	return err
}

// greet says what runs and what to do next.
func (c *serveCmd) greet(e *env, a *app.App) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nPatchbay serves on http://%s and on the socket in its data directory.\n", a.Addr())
	if link := a.SignInLink(); link != "" {
		fmt.Fprintf(&b, "Sign a browser in as the local admin, once: %s\n", link)
	}
	if at := a.EgressURL(); at != "" {
		fmt.Fprintf(&b, "The credential gateway is on %s (docs/egress.md).\n", at)
	}
	for _, l := range a.Opens() {
		fmt.Fprintf(&b, "egress.allow opens %s.\n", l)
	}
	if a.Scripted() {
		fmt.Fprint(&b, "\nNo model key is set, so a scripted stand-in answers: it calls one tool and repeats what it said.\nSet ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model in patchbay.yaml, for a real one.\n")
	}
	exe := "patchbay"
	if p := os.Args[0]; strings.Contains(p, "/") {
		exe = p
	}
	data := ""
	if e.data != clientData() {
		data = " --data " + e.data // another terminal would look elsewhere
	}
	fmt.Fprint(&b, "\nNow, in a second terminal:\n\n")
	if c.Demo {
		fmt.Fprintf(&b, "  %s%s ask \"Where is order 1002?\"\n  %s%s runs show last\n  %s%s mcp list\n", exe, data, exe, data, exe, data)
	} else {
		fmt.Fprintf(&b, "  %s%s mcp add linear https://mcp.linear.app/mcp\n  %s%s ask \"…\"\n", exe, data, exe, data)
	}
	fmt.Fprintln(e.err, b.String())
}

type keysGenerateCmd struct{}

func (keysGenerateCmd) Run(e *env) error {
	secret.GenerateKey().Expose(func(k string) { fmt.Fprintln(e.out, k) })
	return nil
}
