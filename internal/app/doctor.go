package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/registry"
	"patchbay/internal/sandbox"
)

// Checked is one thing that CheckConfig looked at.
type Checked struct {
	What string
	Err  error
	Fine string
}

// checkedVault asks the vault that config names, where that is somewhere else.
func (c *Config) checkedVault() error {
	if c.Vault.Kind != "openbao" {
		return nil
	}
	v, err := c.openBao(nil, func(string, ...any) {})
	if err != nil {
		return err
	}
	defer v.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return v.Check(ctx)
}

// checkedSandbox tries the sandbox, and tells which limits are in force. Where config asks
// for none, none is missed.
func (c *Config) checkedSandbox() Checked {
	out := Checked{What: "sandbox"}
	if c.Sandbox.Kind == "none" {
		out.Fine = "none: stdio servers are left out"
		return out
	}
	o := c.sandboxOptions()
	o.Log = slog.New(slog.DiscardHandler)
	r, err := sandbox.New(context.Background(), o)
	switch {
	case err == nil:
		out.Fine = strings.Join(r.Force(), "; ")
		r.Close()
	case c.Sandbox.Kind == "":
		out.Fine = "none here, so stdio servers are left out: " + err.Error()
	default:
		out.Err = plane.Errorf(plane.Unavailable, "stdio servers are left out: %s", firstLine(err.Error())).Then("docs/stdio.md")
	}
	return out
}

// CheckConfig looks at what a config asks for, without opening the database.
func CheckConfig(c *Config) []Checked {
	var out []Checked
	add := func(what string, err error, fine string) { out = append(out, Checked{what, err, fine}) }
	guard, err := netguard.NewPolicy(c.Egress.Allow, c.Limits.HeaderTimeout)
	add("egress", err, fmt.Sprintf("%d openings", len(c.Egress.Allow)))
	if err != nil {
		return out
	}
	agents, err := c.agents()
	add("agents", err, fmt.Sprintf("%d agents", len(agents)))
	pinned, perr := c.connections()
	if perr != nil {
		add("connections", perr, "")
		return out
	}
	if err == nil {
		_, err = policy.Compile(policy.Rules{Agents: agents, Connections: pinned})
		add("connections", err, fmt.Sprintf("%d pinned", len(pinned)))
	}
	for _, p := range pinned {
		err := guard.CheckURL(p.Slug, p.Endpoint)
		if err == nil && p.Auth == plane.AuthBearer && os.Getenv(p.TokenEnv) == "" {
			err = plane.Errorf(plane.Unavailable, "the variable %s, which holds its token, is not set.", p.TokenEnv).Then("export " + p.TokenEnv + "=…")
		}
		add("server "+p.Slug, err, p.Endpoint)
	}
	out = append(out, c.checkedSandbox())
	if dir := c.registryDir(); dir != "" {
		files, problems := registry.Files(dir, c.Placeholder)
		for _, p := range problems {
			if c.Placeholder != "" || !strings.Contains(p.What, "must be the placeholder") { // the install's own is in its database
				add("registry "+p.File, plane.Errorf(plane.InvalidInput, "%s", p.What), "")
			}
		}
		add("registry", nil, fmt.Sprintf("%d servers in %s", len(files), dir))
	}
	add("vault", c.checkedVault(), cmp.Or(c.Vault.Kind, "database"))
	for _, name := range sortedKeys(c.models()) {
		_, err := c.provider(name)
		m := c.models()[name]
		fine := m.Provider + " " + m.Model
		if m.Provider == "scripted" {
			fine = "scripted stand-in: no model key is set"
		}
		add("model "+name, err, fine)
	}
	return out
}
