package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/willabides/kongplete"

	"patchbay/internal/app"
	"patchbay/internal/bridge"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// version is set by the build.
var version = "dev"

// cli is the grammar; each group stands in a file of its own.
type cli struct {
	JSON bool   `name:"json" help:"Write JSON with stable field names."`
	Data string `name:"data" placeholder:"DIR" help:"Data directory of the server to speak to (default: $PATCHBAY_DATA, data of ./patchbay.yaml, or ~/.local/share/patchbay; $PATCHBAY_URL and $PATCHBAY_TOKEN reach a server elsewhere)."`

	Serve      serveCmd      `cmd:"" help:"Start the server."`
	Ask        askCmd        `cmd:"" help:"Ask an agent something and watch it answer."`
	Doctor     doctorCmd     `cmd:"" help:"Look for what is wrong on this machine."`
	Slack      slackCmd      `cmd:"" help:"The Slack workspace that config names."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash, zsh or fish."`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	kong.Plugins // the commands of the registry
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

// gcPercent is how much garbage a collection waits for. More saves little: small calls
// make little of it, and memory is what a fleet of replicas pays for.
const gcPercent = 200

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
	grammar := command.New(command.Deps{}).Grammar(command.Extra{Group: "keys", Name: "generate", Help: "Print a new key for the ring.", Value: &keysGenerateCmd{}},
		command.Extra{Group: "egress", Name: "run", Help: "Run a command whose requests go through the credential gateway.", Value: &egressRunCmd{}})
	c := cli{Plugins: kong.Plugins{grammar.Root()}}
	parser, err := kong.New(&c, kong.Name("patchbay"), kong.Description("Agents use the tools of MCP servers: governed, and on the record."),
		kong.Writers(stdout, stderr), kong.Exit(func(n int) { panic(exited(n)) }), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	kongplete.Complete(parser, kongplete.WithPredictors(predictors()), kongplete.WithExitFunc(func(n int) { panic(exited(n)) }))
	kctx, err := parser.Parse(command.Spoken(args))
	if err != nil {
		fmt.Fprintf(stderr, "patchbay: %s\nNext: %s\n", err, helpFor(args))
		return exitUsage
	}
	e, err := newEnv(ctx, &c, stdin, stdout, stderr)
	if err != nil {
		return e.report(err)
	}
	if cmd, in := grammar.Selected(kctx); cmd != nil {
		return e.report(e.run(cmd, in))
	}
	return e.report(kctx.Run(e))
}

// helpFor names the help of what was being typed.
func helpFor(args []string) string {
	words := []string{"patchbay"}
	for _, a := range args {
		if strings.HasPrefix(a, "-") || len(words) == 3 || len(a) > 20 {
			break
		}
		words = append(words, a)
	}
	reg := command.New(command.Deps{})
	for len(words) > 1 {
		if _, err := reg.Get(strings.Join(words[1:], ".")); err == nil {
			break
		}
		words = words[:len(words)-1]
	}
	return strings.Join(words, " ") + " --help"
}

// newEnv says where the server is: at PATCHBAY_URL, else at the socket in its
// data directory.
func newEnv(ctx context.Context, c *cli, stdin io.Reader, stdout, stderr io.Writer) (*env, error) {
	e := &env{ctx: ctx, in: stdin, out: stdout, err: stderr, json: c.JSON, data: c.Data, style: styleOf(stdout)}
	e.dataFlag = c.Data != ""
	if !e.dataFlag {
		e.data = clientData()
	}
	base := os.Getenv("PATCHBAY_URL")
	if base == "" || e.dataFlag {
		e.client = client.New("http://patchbay", netguard.InfraSocket(filepath.Join(e.data, app.SocketName))).At(filepath.Join(e.data, app.SocketName))
		return e, nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return e, plane.Errorf(plane.InvalidInput, "PATCHBAY_URL is no address of a server.").Then("export PATCHBAY_URL=https://patchbay.example.com")
	}
	token := secret.New(os.Getenv("PATCHBAY_TOKEN"))
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	e.client = client.New(base, bearer{netguard.Infra(net.JoinHostPort(u.Hostname(), port)), token})
	return e, nil
}

// bearer shows the token to the one server that PATCHBAY_URL names.
type bearer struct {
	to    http.RoundTripper
	token secret.Text
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if !b.token.Empty() {
		r = r.Clone(r.Context())
		b.token.Expose(func(s string) { r.Header.Set("Authorization", "Bearer "+s) })
	}
	return b.to.RoundTrip(r)
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
	if !e.json {
		p = &plane.Error{Kind: p.Kind, Message: bridge.Visible(p.Message), Next: bridge.Visible(p.Next), Cause: p.Cause}
	}
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
