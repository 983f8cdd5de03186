package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/posener/complete"
	"github.com/willabides/kongplete"

	"patchbay/internal/app"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// version is set by the build.
var version = "dev"

// cli is the grammar; each group stands in a file of its own.
type cli struct {
	JSON bool   `name:"json" help:"Write JSON with stable field names."`
	Data string `name:"data" placeholder:"DIR" help:"Data directory of the server to speak to (default: $PATCHBAY_DATA, data of ./patchbay.yaml, or ~/.local/share/patchbay)."`

	Serve      serveCmd      `cmd:"" help:"Start the server."`
	Ask        askCmd        `cmd:"" help:"Ask an agent something and watch it answer."`
	MCP        mcpGroup      `cmd:"" name:"mcp" help:"MCP servers and their tools."`
	Runs       runsGroup     `cmd:"" help:"Runs of agents."`
	Agents     agentsGroup   `cmd:"" help:"Agents."`
	Keys       keysGroup     `cmd:"" help:"The key ring."`
	Status     statusCmd     `cmd:"" help:"Say what the server is and how it stands."`
	Doctor     doctorCmd     `cmd:"" help:"Look for what is wrong on this machine."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash, zsh or fish."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// env is what a command runs with.
type env struct {
	ctx      context.Context
	in       io.Reader
	out      io.Writer
	err      io.Writer
	json     bool
	data     string
	dataFlag bool // data was given on the command line
	style    command.Style
	client   *client.Client
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitSignIn = 4
)

// exitCode is an error that has said everything already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

type exited int

// gcPercent trades a few MB for fewer collections: the live heap is small, and
// every big result would bring one about.
const gcPercent = 300

// Main runs one command line and returns its exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(exited) // kong's way out after --help
			if !ok {
				panic(p)
			}
			code = int(e)
		}
	}()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c cli
	parser, err := kong.New(&c, kong.Name("patchbay"), kong.Description("Agents use the tools of MCP servers: governed, and on the record."),
		kong.Writers(stdout, stderr), kong.Exit(func(n int) { panic(exited(n)) }), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	kongplete.Complete(parser, kongplete.WithPredictors(predictors()), kongplete.WithExitFunc(func(n int) { panic(exited(n)) }))
	kctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "patchbay: %s\nNext: patchbay --help\n", err)
		return exitUsage
	}
	e := newEnv(ctx, &c, stdin, stdout, stderr)
	return e.report(kctx.Run(e))
}

func newEnv(ctx context.Context, c *cli, stdin io.Reader, stdout, stderr io.Writer) *env {
	e := &env{ctx: ctx, in: stdin, out: stdout, err: stderr, json: c.JSON, data: c.Data, style: styleOf(stdout)}
	e.dataFlag = c.Data != ""
	if !e.dataFlag {
		e.data = clientData()
	}
	e.client = client.New("http://patchbay", netguard.InfraSocket(filepath.Join(e.data, app.SocketName)))
	return e
}

// configPath is the config file to use: the one that was named, else
// patchbay.yaml of this folder, if there is one.
func configPath(named string) string {
	if named == "" {
		if _, err := os.Stat("patchbay.yaml"); err == nil {
			return "patchbay.yaml"
		}
	}
	return named
}

// clientData is where a server of this folder keeps its socket. A config that
// cannot be read is serve's and doctor's business.
func clientData() string {
	if cfg, err := app.LoadConfig(configPath("")); err == nil {
		return cfg.Data
	}
	return app.DefaultData()
}

// styleOf looks at where the text goes.
func styleOf(w io.Writer) command.Style {
	s := command.Style{Now: time.Now()}
	if f, ok := w.(*os.File); ok {
		s.Terminal = isTerminal(f)
		s.Width = terminalWidth(f)
	}
	s.Color = s.Terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if v := os.Getenv("CLICOLOR_FORCE"); v != "" && v != "0" {
		s.Color = true
	}
	return s
}

// report turns an error into a sentence on stderr and an exit code.
func (e *env) report(err error) int {
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case e.ctx.Err() != nil:
		fmt.Fprintln(e.err, "patchbay: cancelled")
		return exitUsage
	}
	p := plane.Public(err)
	if e.json {
		writeJSON(e.err, map[string]any{"error": map[string]any{"code": p.Kind, "message": p.Message, "next": p.Next}})
	} else {
		fmt.Fprintf(e.err, "patchbay: %s\n", p.Message)
		if p.Next != "" {
			fmt.Fprintf(e.err, "Next: %s\n", p.Next)
		}
	}
	switch p.Kind {
	case plane.InvalidInput:
		return exitUsage
	case plane.Unauthenticated:
		return exitSignIn
	}
	if p.Kind == plane.Internal && p.Cause != nil {
		fmt.Fprintf(e.err, "cause: %v\n", p.Cause)
	}
	return exitFailed
}

// command runs a command of the server and writes its output.
func (e *env) command(name string, in any, out command.Output) error {
	if err := e.client.Command(e.ctx, name, in, out); err != nil {
		return err
	}
	return e.write(out)
}

func (e *env) write(out command.Output) error {
	if e.json {
		return writeJSON(e.out, out)
	}
	out.Text(e.out, e.style)
	return nil
}

type versionCmd struct{}

func (versionCmd) Run(e *env) error {
	v := version
	rev := ""
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	if e.json {
		return writeJSON(e.out, map[string]string{"version": v, "revision": rev})
	}
	fmt.Fprintln(e.out, strings.TrimSpace("patchbay "+v+" "+rev))
	return nil
}

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c completionCmd) Run(e *env) error {
	exe, err := os.Executable()
	if err != nil {
		exe = "patchbay"
	}
	switch c.Shell {
	case "bash":
		fmt.Fprintf(e.out, "complete -C %s patchbay\n", exe)
	case "zsh":
		fmt.Fprintf(e.out, "autoload -U +X bashcompinit && bashcompinit\ncomplete -C %s patchbay\n", exe)
	case "fish":
		fmt.Fprintf(e.out, "function __complete_patchbay\n    set -lx COMP_LINE (commandline -cp)\n    test -z (commandline -ct)\n    and set COMP_LINE \"$COMP_LINE \"\n    %s\nend\ncomplete -f -c patchbay -a \"(__complete_patchbay)\"\n", exe)
	}
	return nil
}

// predictors complete names by asking the server, shortly.
func predictors() map[string]complete.Predictor {
	ask := func(fill func(e *env) []string) complete.Predictor {
		return complete.PredictFunc(func(complete.Args) []string {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			return fill(newEnv(ctx, &cli{}, nil, io.Discard, io.Discard))
		})
	}
	return map[string]complete.Predictor{
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
}
