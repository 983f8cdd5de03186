package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

type doctorCmd struct {
	Config string `name:"config" short:"c" placeholder:"FILE" help:"Config file to look at (default: patchbay.yaml in this folder, if there is one)."`

	listen string
}

// finding is one thing that was looked at.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Says string `json:"says"`
	Next string `json:"next,omitempty"`
}

func (c *doctorCmd) Run(e *env) error {
	return report(e, append(c.local(e), c.server(e)...))
}

// report writes what was found; something bad is a failure.
func report(e *env, fs []finding) error {
	bad := 0
	for _, f := range fs {
		if !f.OK {
			bad++
		}
		if e.json {
			continue
		}
		mark := "ok"
		if !f.OK {
			mark = "!!"
		}
		fmt.Fprintf(e.out, "%s\t%s\t%s\n", mark, f.What, f.Says)
		if f.Next != "" {
			fmt.Fprintf(e.out, "\t\tNext: %s\n", f.Next)
		}
	}
	if e.json {
		if err := writeJSON(e.out, map[string]any{"findings": fs}); err != nil {
			return err
		}
	}
	if bad > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

func found(what string, err error, fine string) finding {
	if err == nil {
		return finding{What: what, OK: true, Says: fine}
	}
	p := plane.Public(err)
	return finding{What: what, Says: p.Message, Next: p.Next}
}

// local looks at config, data directory and port.
func (c *doctorCmd) local(e *env) []finding {
	path := configPath(c.Config)
	cfg, err := app.LoadConfig(path)
	name := path
	if name == "" {
		name = "no file, defaults"
	}
	out := []finding{found("config", err, name)}
	if err != nil {
		return out
	}
	if e.dataFlag {
		cfg.Data = e.data
	}
	e.data, c.listen = cfg.Data, cfg.Listen
	info, err := os.Stat(cfg.Data)
	switch {
	case errors.Is(err, os.ErrNotExist):
		out = append(out, finding{What: "data", OK: true, Says: cfg.Data + " will be made at the first start"})
	case err != nil:
		out = append(out, finding{What: "data", Says: cfg.Data + " cannot be looked at"})
	case info.Mode().Perm()&0o077 != 0:
		out = append(out, finding{What: "data", Says: cfg.Data + " can be entered by others", Next: "chmod 700 " + cfg.Data})
	default:
		out = append(out, finding{What: "data", OK: true, Says: cfg.Data})
	}
	for _, f := range app.CheckConfig(cfg) {
		out = append(out, found(f.What, f.Err, f.Fine))
	}
	return out
}

// server looks at the running server, or at whether one could start.
func (c *doctorCmd) server(e *env) []finding {
	var st command.Status
	at, err := newEnv(e.ctx, &cli{Data: e.data}, nil, e.out, e.err)
	if err == nil {
		err = at.client.Command(e.ctx, "status", command.StatusInput{}, &st)
	}
	if err != nil {
		out := []finding{{What: "server", Says: "none answers on " + filepath.Join(e.data, app.SocketName), Next: "patchbay serve"}}
		if l, lerr := net.Listen("tcp", c.listen); c.listen != "" && lerr != nil {
			out = append(out, finding{What: "port", Says: c.listen + " is taken by another program", Next: "patchbay serve --listen 127.0.0.1:7727"})
		} else if l != nil {
			l.Close()
		}
		return out
	}
	return []finding{{What: "server", OK: true, Says: fmt.Sprintf("%s on %s, %s, %d of %d servers ok", st.Version, st.Listen, st.Database, st.Healthy, st.Servers)}}
}
