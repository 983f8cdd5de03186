package app

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/internal/egress"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/registry"
	"patchbay/internal/sandbox"
	"patchbay/internal/upstream"
)

// SandboxConfig says what stdio servers run in: a word, or the word as kind with what goes
// with it.
type SandboxConfig struct {
	Kind   string   `yaml:"kind"`   // bubblewrap, container or none; empty: bubblewrap where it is installed
	Read   []string `yaml:"read"`   // directories of the host that are shown inside, read-only
	Image  string   `yaml:"image"`  // of container
	Engine string   `yaml:"engine"` // of container: docker or podman
}

// UnmarshalYAML takes both forms.
func (s *SandboxConfig) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&s.Kind) == nil {
		return nil
	}
	type form SandboxConfig
	return unmarshal((*form)(s))
}

// checkSandbox holds what a sandbox may be shown.
func (c *Config) checkSandbox() error {
	s := c.Sandbox
	switch s.Kind {
	case "", "bubblewrap", "none":
		if s.Image != "" || s.Engine != "" {
			return c.bad("sandbox.image", "sandbox: image and engine go with kind: container.")
		}
	case "container":
		if s.Image == "" {
			return c.bad("sandbox.image", "sandbox: a container needs an image.")
		}
		if s.Engine != "" && s.Engine != "docker" && s.Engine != "podman" {
			return c.bad("sandbox.engine", "sandbox.engine is docker or podman.")
		}
	default:
		return c.bad("sandbox", "sandbox is bubblewrap, container or none.")
	}
	hidden := map[string]string{"the data directory, where the keys are": c.Data, "the config file": c.path, "the directory of secrets": c.Vault.Path, "the vault's sign-in": c.Vault.Login.JWTFile, "the key ring": c.Keys.File}
	for name, g := range c.GitHubApps {
		hidden["the key of the GitHub App "+name] = g.KeyFile
	}
	for _, dir := range s.Read {
		real := resolvedPath(dir)
		switch {
		case !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || strings.ContainsAny(dir, ":,"):
			return c.bad("sandbox.read", "sandbox.read: %s is no absolute path without detours.", dir)
		case slices.Contains([]string{"/", "/proc", "/sys", "/dev", "/run", "/etc", "/root", "/home", "/var"}, real):
			return c.bad("sandbox.read", "sandbox.read: %s would show what no server may see; name the directory that the servers are in.", dir)
		}
		for _, what := range sortedKeys(hidden) {
			if p := resolvedPath(hidden[what]); hidden[what] != "" && (within(p, real) || what != "the config file" && within(real, p)) {
				return c.bad("sandbox.read", "sandbox.read: %s would show %s.", dir, what)
			}
		}
	}
	return nil
}

// resolvedPath is a path without links, as far as it is there.
func resolvedPath(p string) string {
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}

// within reports that a path is dir or lies in it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// sandboxOptions are what config says of sandboxes.
func (c *Config) sandboxOptions() sandbox.Options {
	l := c.Limits
	return sandbox.Options{Kind: c.Sandbox.Kind, Read: c.Sandbox.Read, Image: c.Sandbox.Image, Engine: c.Sandbox.Engine, Most: l.Sandboxes,
		Limits: sandbox.Limits{Memory: int64(l.SandboxMemory), Processes: l.SandboxProcesses, Files: l.SandboxFiles, FileBytes: int64(l.SandboxFileBytes), CPU: l.SandboxCPU}}
}

// sandboxes is the runner of stdio servers, made when the first is declared.
type sandboxes struct {
	mu     sync.Mutex
	tried  bool
	runner *sandbox.Runner
	err    error
}

// get makes the runner, once. Where there can be none it says why.
func (s *sandboxes) get(ctx context.Context, a *App) (*sandbox.Runner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried {
		return s.runner, s.err
	}
	s.tried = true
	o := a.cfg.sandboxOptions()
	o.Log = a.o.Log
	if o.Kind == "none" {
		s.err = errors.New("sandbox is none in the config")
	} else {
		s.runner, s.err = sandbox.New(context.WithoutCancel(ctx), o)
	}
	if s.err != nil {
		a.o.Notice("Stdio servers are left out, for want of a sandbox: %v.", s.err)
		a.o.Log.Warn("stdio servers are left out: there is no sandbox", "err", s.err)
		return nil, s.err
	}
	a.o.Log.Info("stdio servers run in a sandbox", "in_force", strings.Join(s.runner.Force(), "; "))
	return s.runner, nil
}

// any reports whether stdio servers can be run; it looks only where one is declared.
func (s *sandboxes) any(ctx context.Context, a *App, src *registry.Sources) bool {
	if !src.HasStdio() {
		return false
	}
	_, err := s.get(ctx, a)
	return err == nil
}

func (s *sandboxes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runner != nil {
		s.runner.Close()
	}
}

// stdioServer is a process in its sandbox.
type stdioServer struct {
	*mcp.Stdio
	proc *sandbox.Process
}

func (s stdioServer) Close() {
	s.Stdio.Close()
	s.proc.Close()
}

// maxStrays is how many lines that are no message a stdio server may print.
const maxStrays = 1000

// launch starts a connection's stdio server. What it sends goes to the destination that its
// declaration names, in the name of the agent that uses it, and nowhere else.
func (a *App) launch(ctx context.Context, g policy.Grant) (upstream.Process, error) {
	conn := g.Connection()
	run := conn.Declared.Run
	if run == nil {
		return nil, plane.Errorf(plane.Internal, "%s names no command.", conn.Slug)
	}
	r, err := a.boxes.get(ctx, a)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "There is no sandbox to run %s in.", conn.Slug).Then("patchbay doctor").Because(err)
	}
	spec := sandbox.Spec{Name: conn.FullName(), Command: run.Command, Args: run.Args}
	at := g.Sender()
	if run.Destination != "" && at.Agent != "" {
		gate, err := a.gateway(ctx)
		if err != nil {
			return nil, err
		}
		a.gateMu.Lock()
		cert, _ := a.ca.PEM()
		a.gateMu.Unlock()
		spec.Files = egress.ClientFiles(cert)
		spec.Env = egress.ClientEnv(sandbox.Inside, sandbox.Proxy, a.token, "")
		who := plane.Principal{Kind: plane.KindAgent, ID: "server:" + string(conn.ID), Agent: at.Agent, Team: at.Team}
		spec.Gateway = func(l net.Listener) {
			if err := gate.ServeFor(l, who, run.Destination); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
				a.o.Log.Warn("a sandbox's way out ended", "server", spec.Name, "err", err)
			}
		}
	}
	for _, name := range run.Env {
		spec.Env = append(spec.Env, name+"="+a.token)
	}
	proc, err := r.Start(ctx, spec)
	var limited *plane.Error
	if errors.As(err, &limited) {
		return nil, limited
	}
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "%s does not start in its sandbox.", conn.Slug).Then("patchbay doctor; what went wrong is in Patchbay's log.").Because(err)
	}
	body := a.cfg.Limits.ResponseBytes
	if conn.MaxBytes > 0 {
		body = conn.MaxBytes
	}
	s := mcp.NewStdio(proc.Stdin, proc.Stdout, mcp.StdioOptions{Message: body, Strays: maxStrays,
		Stray: func(line []byte) {
			a.o.Log.Debug("a stdio server prints something else than JSON-RPC", "server", spec.Name, "bytes", len(line))
		},
		Why: func() (string, error) {
			select {
			case <-proc.Done():
			case <-time.After(time.Second):
			}
			return proc.Reason(), proc.Why()
		}})
	return stdioServer{s, proc}, nil
}
