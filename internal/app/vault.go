package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// VaultConfig says where secrets with a name rest.
type VaultConfig struct {
	Kind      string        `yaml:"kind"`      // database, file, memory, openbao
	Path      string        `yaml:"path"`      // of file: a directory
	Address   string        `yaml:"address"`   // of openbao
	Namespace string        `yaml:"namespace"` // of openbao
	Mount     string        `yaml:"mount"`     // of openbao: the KV v2 engine
	Prefix    string        `yaml:"prefix"`    // of openbao: before <team>/<ref>
	Login     LoginConfig   `yaml:"login"`
	Cache     time.Duration `yaml:"cache"`          // how long a secret is held that was read elsewhere
	Failures  time.Duration `yaml:"cache_failures"` // how long nobody asks again after a failure
}

// LoginConfig is how Patchbay signs in to a vault.
type LoginConfig struct {
	Kind        string `yaml:"kind"` // token, approle, kubernetes
	TokenEnv    string `yaml:"token_env"`
	RoleID      string `yaml:"role_id"`
	SecretIDEnv string `yaml:"secret_id_env"`
	Role        string `yaml:"role"`
	JWTFile     string `yaml:"jwt_file"`
	Mount       string `yaml:"mount"` // of the auth method
}

const (
	defaultCache    = time.Minute
	defaultFailures = 5 * time.Second
	podToken        = "/var/run/secrets/kubernetes.io/serviceaccount/token"
)

// checkVault holds what each kind needs.
func (c *Config) checkVault() error {
	v := c.Vault
	if v.Cache < 0 || v.Failures < 0 {
		return c.bad("vault.cache", "vault: a length of time is not negative.")
	}
	switch v.Kind {
	case "", "database", "memory":
		return nil
	case "file":
		if v.Path == "" {
			return c.bad("vault.path", "vault: kind file names a directory: path.")
		}
		return nil
	case "openbao":
	default:
		return c.bad("vault.kind", "vault.kind is database, file, memory or openbao.")
	}
	u, err := url.Parse(v.Address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackHost(u.Hostname())) {
		return c.bad("vault.address", "vault.address is an https address without user, query and fragment.")
	}
	l := v.Login
	switch {
	case l.Kind == "token" && l.TokenEnv == "":
		return c.bad("vault.login.token_env", "vault.login: kind token names the variable that holds it: token_env.")
	case l.Kind == "approle" && (l.RoleID == "" || l.SecretIDEnv == ""):
		return c.bad("vault.login.role_id", "vault.login: kind approle needs role_id and secret_id_env.")
	case l.Kind == "kubernetes" && l.Role == "":
		return c.bad("vault.login.role", "vault.login: kind kubernetes needs a role.")
	case l.Kind != "token" && l.Kind != "approle" && l.Kind != "kubernetes":
		return c.bad("vault.login.kind", "vault.login.kind is token, approle or kubernetes.")
	}
	return nil
}

// openVault makes the backend that config names.
func (a *App) openVault() error {
	v := a.cfg.Vault
	good, bad := cmp.Or(v.Cache, defaultCache), cmp.Or(v.Failures, defaultFailures)
	switch v.Kind {
	case "memory":
		a.vault = vault.NewMemory(a.store)
	case "file":
		path := v.Path
		if !filepath.IsAbs(path) && a.cfg.path != "" {
			path = filepath.Join(filepath.Dir(a.cfg.path), path)
		}
		f, err := vault.OpenFile(path, a.ring, a.store, a.o.Clock)
		if err != nil {
			return err
		}
		a.vault, a.files, a.closeVault = f, f, func() { f.Close() }
	case "openbao":
		b, err := a.cfg.openBao(a.store, func(format string, args ...any) { a.o.Log.Warn("vault: " + fmt.Sprintf(format, args...)) })
		if err != nil {
			return err
		}
		go func() { // what is wrong is better said at the start
			if err := b.Check(context.Background()); err != nil {
				a.o.Notice("%s", plane.Public(err).Message)
				a.o.Log.Warn("the vault cannot be signed in to", "err", err, "cause", errors.Unwrap(err))
			}
		}()
		a.vault, a.closeVault = vault.NewCached(b, a.o.Clock, good, bad), b.Close
	default:
		a.vault = vault.NewDatabase(a.store, a.ring)
	}
	return nil
}

// openBao makes the backend that config names.
func (c *Config) openBao(audit vault.Writer, log func(string, ...any)) (*vault.OpenBao, error) {
	v := c.Vault
	target, err := hostPort(v.Address)
	if err != nil {
		return nil, err
	}
	l := v.Login
	login := vault.Login{Kind: l.Kind, RoleID: l.RoleID, Role: l.Role, JWTFile: cmp.Or(l.JWTFile, podToken), Mount: l.Mount}
	for name, into := range map[string]*secret.Text{l.TokenEnv: &login.Token, l.SecretIDEnv: &login.SecretID} {
		if name == "" {
			continue
		}
		value, ok := lookup(name)
		if !ok || value.Empty() {
			return nil, plane.Errorf(plane.InvalidInput, "The variable %s, which the vault is signed in to with, is not set.", name).At("vault.login").Then("export " + name + "=…")
		}
		*into = value
	}
	return vault.NewOpenBao(vault.OpenBaoOptions{Address: v.Address, Transport: netguard.Infra(target), Namespace: v.Namespace, Mount: v.Mount, Prefix: v.Prefix, Login: login, Audit: audit, Log: log})
}

// GitHubAppConfig is an app that makes tokens for teams' repositories.
type GitHubAppConfig struct {
	AppID       string            `yaml:"app_id"`
	KeyEnv      string            `yaml:"private_key_env"`
	KeyFile     string            `yaml:"private_key_file"`
	API         string            `yaml:"api"`         // of an Enterprise server; empty for https://api.github.com
	Permissions map[string]string `yaml:"permissions"` // what tokens are cut down to, as contents: write
}

const githubAPI = "https://api.github.com"

func (c *Config) checkGitHubApps() error {
	for _, name := range sortedKeys(c.GitHubApps) {
		g := c.GitHubApps[name]
		at := "github_apps." + name
		switch {
		case !plane.ValidSlug(name):
			return c.bad("github_apps", "github_apps: %q is no name; use a-z, 0-9 and -.", name)
		case g.AppID == "":
			return c.bad(at+".app_id", "%s names no app_id.", at)
		case (g.KeyEnv == "") == (g.KeyFile == ""):
			return c.bad(at+".private_key_env", "%s has its key in private_key_env or in private_key_file.", at)
		}
		u, err := url.Parse(cmp.Or(g.API, githubAPI))
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackHost(u.Hostname())) {
			return c.bad(at+".api", "%s.api is an https address.", at)
		}
	}
	return nil
}

// apps mint tokens by config's GitHub Apps.
type apps struct{ a *App }

// Mint gives a token for a team's repository.
func (x apps) Mint(ctx context.Context, team, ref string) (secret.Text, time.Time, error) {
	none := secret.Text{}
	cfg := x.a.live.Load()
	g, ok := cfg.GitHubApps[ref]
	if !ok {
		return none, time.Time{}, plane.Errorf(plane.Unavailable, "There is no GitHub App %s here.", ref).Then("An operator names it in patchbay.yaml: github_apps: {" + ref + ": {app_id: …, private_key_file: …}}")
	}
	owner, repo, ok := repoName(cfg.Teams[team].Repo, cmp.Or(g.API, githubAPI))
	if !ok {
		return none, time.Time{}, plane.Errorf(plane.Forbidden, "A GitHub App's token is for a team's repository, and this is no work for a team that has one there.").Then("teams." + cmp.Or(team, "<team>") + ".repo in patchbay.yaml")
	}
	target, err := hostPort(cmp.Or(g.API, githubAPI))
	if err != nil {
		return none, time.Time{}, err
	}
	gh := connect.GitHubApp{ID: g.AppID, API: cmp.Or(g.API, githubAPI), Permissions: g.Permissions, Client: bounded(netguard.Infra(target)), Clock: x.a.o.Clock,
		Key: func() (secret.Text, error) { return g.key() }}
	return gh.Token(ctx, owner, repo)
}

func (g *GitHubAppConfig) key() (secret.Text, error) {
	if g.KeyEnv != "" {
		v, ok := lookup(g.KeyEnv)
		if !ok {
			return v, plane.Errorf(plane.Unavailable, "The variable %s, which holds the key, is not set.", g.KeyEnv)
		}
		return v, nil
	}
	b, err := os.ReadFile(g.KeyFile)
	if err != nil {
		return secret.Text{}, plane.Errorf(plane.Unavailable, "The key file of the GitHub App cannot be read.").Because(err)
	}
	return secret.New(string(b)), nil
}

// repoName reads owner and name of a repository's address at the GitHub whose API that is:
// one of the same name elsewhere is another.
func repoName(raw, api string) (owner, repo string, ok bool) {
	u, err := url.Parse(raw)
	at, aerr := url.Parse(api)
	if err != nil || aerr != nil || u.Host == "" {
		return "", "", false
	}
	home := at.Host
	if api == githubAPI {
		home = "github.com"
	}
	if !strings.EqualFold(u.Host, home) {
		return "", "", false
	}
	parts := strings.Split(strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git"), "/")
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
		return "", "", false
	}
	return parts[0], parts[1], true
}
