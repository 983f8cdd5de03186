package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
	"patchbay/internal/secret"
)

// declared is what declarations come from, as it was read last.
type declared struct {
	mu       sync.Mutex
	files    []plane.Declared
	problems []registry.Problem
	sources  *registry.Sources
	from     string          // where destinations were read
	warned   map[string]bool // under reloadMu
}

func (d *declared) get() *registry.Sources {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sources == nil {
		return &registry.Sources{}
	}
	return d.sources
}

// metaPlaceholder keeps the install's own placeholder.
const metaPlaceholder = "placeholder"

var placeholderRE = regexp.MustCompile(`^[A-Za-z0-9_.-]{16,128}$`)

// placeholder is the one literal that stands for secrets: config's, else one that this
// install made at its first start.
func (a *App) placeholder(ctx context.Context) (string, error) {
	if p := a.cfg.Placeholder; p != "" {
		if !placeholderRE.MatchString(p) {
			return "", a.cfg.bad("placeholder", "placeholder is 16 to 128 letters, digits, _, . and -.")
		}
		return p, nil
	}
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	if have, err := a.store.Meta(ctx, metaPlaceholder); err != nil || have != "" {
		return have, err
	}
	err := a.store.Write(ctx, func(t plane.Tx) error {
		return a.store.FirstMeta(t, metaPlaceholder, "PATCHBAY_PLACEHOLDER_"+hex.EncodeToString(b[:]))
	})
	if err != nil {
		return "", err
	}
	return a.store.Meta(ctx, metaPlaceholder)
}

// registryDir is where the registry's files are: beside the config file, where the path
// is not absolute.
func (c *Config) registryDir() string {
	if c.Registry.Path == "" || filepath.IsAbs(c.Registry.Path) || c.path == "" {
		return c.Registry.Path
	}
	return filepath.Join(filepath.Dir(c.path), c.Registry.Path)
}

// readRegistry reads the registry's files again. What cannot be used is left out and
// said.
func (a *App) readRegistry(cfg *Config) {
	var files []plane.Declared
	var problems []registry.Problem
	if dir := cfg.registryDir(); dir != "" {
		files, problems = registry.Files(dir, a.token)
	}
	for _, p := range problems {
		a.o.Notice("The registry leaves %s out: %s", p.File, p.What)
	}
	a.declared.mu.Lock()
	defer a.declared.mu.Unlock()
	a.declared.files, a.declared.problems = files, problems
}

// leftOut names the registry's files that cannot be used, and why.
func (a *App) leftOut() string {
	a.declared.mu.Lock()
	defer a.declared.mu.Unlock()
	out := ""
	for _, p := range a.declared.problems {
		out += fmt.Sprintf("\nThe registry leaves %s out: %s", p.File, p.What)
	}
	return out
}

// destinations are the built-in ones and config's.
func (c *Config) destinations() (map[string]plane.Destination, error) {
	out := registry.BuiltIn()
	for _, name := range sortedKeys(c.Egress.Destinations) {
		cc := c.Egress.Destinations[name]
		d := plane.Destination{Name: name, Hosts: cc.Hosts, Port: cc.Port, Methods: cc.Methods, Paths: cc.Paths, Secret: cc.Secret, Needs: cc.Needs, Tunnel: cc.Tunnel,
			Inject: plane.Injection{Kind: cc.Inject.Kind, Name: cc.Inject.Name, User: cc.Inject.User, Prefix: cc.Inject.Prefix, Region: cc.Inject.Region, Service: cc.Inject.Service, Over: cc.Inject.Over, Stamp: cc.Inject.Stamp}}
		if err := registry.CheckDestination(&d); err != nil {
			return nil, c.bad("egress.destinations."+name, "%s", plane.Public(err).Message)
		}
		out[name] = d
	}
	for _, agent := range sortedKeys(c.Agents) {
		for _, name := range c.Agents[agent].Servers {
			if !plane.ValidSlug(name) {
				return nil, c.bad("agents."+agent+".servers", "agents.%s.servers: %q is no name of a declaration.", agent, name)
			}
		}
	}
	return out, nil
}

// teamSources are the teams of config with what is stored of them.
func (c *Config) teamSources(curated []plane.Proposal, repos []plane.RepoSnapshot) map[string]*registry.TeamSources {
	out := map[string]*registry.TeamSources{}
	for name, t := range c.Teams {
		out[name] = &registry.TeamSources{HasRepo: t.Repo != "", Destinations: t.Destinations}
	}
	for _, r := range repos {
		t := out[r.Team]
		if t == nil || c.Teams[r.Team].Repo != r.URL {
			continue // of a team that is gone, or of another repository
		}
		for _, d := range r.Declared {
			if d.Layer == plane.LayerSkill {
				t.Skills = append(t.Skills, d)
			} else {
				t.Repository = append(t.Repository, d)
			}
		}
		t.Wanted = r.Wanted
	}
	for _, p := range curated {
		if t := out[p.Team]; t != nil {
			t.Curated = append(t.Curated, plane.Declared{Declaration: p.Declaration, Layer: plane.LayerTeam, From: p.Source, AcceptedBy: p.DecidedBy, Admin: p.ByAdmin})
		}
	}
	return out
}

// compile reads what is declared and what agents may reach. Agents get what was
// attached to them at run time.
func (a *App) compile(ctx context.Context, cfg *Config, agents map[string]plane.Agent) (*registry.Sources, error) {
	out := &registry.Sources{Agents: agents}
	var err error
	if out.Destinations, err = cfg.destinations(); err != nil {
		return nil, err
	}
	stored, err := a.store.Destinations(ctx)
	if err != nil {
		a.fromWhere("the config file, and what was read of the database before: it cannot be read now")
		return nil, err // the policy in force stands
	}
	a.fromWhere("the config file and the database")
	for _, d := range stored {
		if _, pinned := out.Destinations[d.Name]; !pinned {
			out.Destinations[d.Name] = d
		}
	}
	curated, err := a.store.CuratedDeclarations(ctx)
	if err != nil {
		return nil, err
	}
	repos, err := a.store.Repositories(ctx)
	if err != nil {
		return nil, err
	}
	layers, err := a.store.Layers(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		agent, ok := agents[l.Agent]
		if !ok {
			continue
		}
		agent.Revision = 1 + l.Rev
		agent.Servers = slices.Clone(agent.Servers)
		for _, n := range l.Servers {
			if !slices.Contains(agent.Servers, n) {
				agent.Servers = append(agent.Servers, n)
			}
		}
		agents[l.Agent] = agent
	}
	out.Teams = cfg.teamSources(curated, repos)
	a.declared.mu.Lock()
	defer a.declared.mu.Unlock()
	out.Registry = append(out.Registry, a.declared.files...)
	for _, p := range curated {
		pinned := slices.ContainsFunc(a.declared.files, func(d plane.Declared) bool { return d.Name == p.Declaration.Name })
		if p.Team == "" && !pinned {
			out.Registry = append(out.Registry, plane.Declared{Declaration: p.Declaration, Layer: plane.LayerRegistry, From: p.Source, At: p.DecidedAt, AcceptedBy: p.DecidedBy})
		}
	}
	out.Sandbox = a.boxes.any(ctx, a, out)
	a.declared.sources = out
	return out, nil
}

// fromWhere says once where the destinations of agents' policy come from.
func (a *App) fromWhere(from string) {
	a.declared.mu.Lock()
	defer a.declared.mu.Unlock()
	if from != a.declared.from {
		a.declared.from = from
		a.o.Log.Info("the destinations of agents' policy come from " + from)
	}
}

// attach makes the connections that declarations ask for, and returns what became of
// each declaration.
func (a *App) attach(ctx context.Context, src *registry.Sources) (map[plane.AgentTeam][]plane.Attachment, []plane.Connection, error) {
	attached, wanted := src.Attach()
	list := make([]connect.Wanted, 0, len(wanted))
	for _, w := range wanted {
		list = append(list, connect.Wanted(w))
	}
	stored, err := a.store.Connections(ctx)
	if err != nil {
		return nil, nil, err
	}
	digests, changed, err := a.conns.Declare(ctx, stored, list)
	if err == nil && changed {
		stored, err = a.store.Connections(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	resolved(attached, stored, digests)
	a.warn(attached)
	return attached, stored, nil
}

// warn says what is dropped, once for as long as it is.
func (a *App) warn(attached map[plane.AgentTeam][]plane.Attachment) {
	now := map[string]bool{}
	for at, list := range attached {
		for _, x := range list {
			if x.Dropped == "" || x.OtherAgents {
				continue
			}
			key := strings.Join([]string{at.Agent, at.Team, x.Name, x.Dropped}, "\x00")
			if now[key] = true; !a.declared.warned[key] {
				a.o.Log.Warn("a declaration is left out", "agent", at.Agent, "team", at.Team, "server", x.Name, "source", x.Layer, "reason", x.Dropped)
			}
		}
	}
	a.declared.warned = now
}

// resolved writes the ids of the connections into what was attached. One that another
// replica's config declares otherwise is not ours to use.
func resolved(attached map[plane.AgentTeam][]plane.Attachment, stored []plane.Connection, digests map[string]string) {
	byName := map[string]plane.Connection{}
	for _, c := range stored {
		if c.Origin == plane.OfDeclaration {
			byName[c.FullName()] = c
		}
	}
	for _, l := range attached {
		for i := range l {
			if l[i].Dropped != "" || l[i].Connection != "" {
				continue
			}
			name := l[i].Scope.String() + "/" + l[i].Name
			c := byName[name]
			if l[i].Connection = c.ID; c.ID == "" || c.Digest != digests[name] || !c.Enabled {
				l[i].Connection, l[i].Dropped = "", "another replica declares it otherwise: their configs differ"
			}
		}
	}
}

// repos are the teams' repositories.
func (a *App) repos() map[string]string {
	out := map[string]string{}
	for name, t := range a.live.Load().Teams {
		if t.Repo != "" {
			out[name] = t.Repo
		}
	}
	return out
}

// repoClient reaches one team's repository and nothing else, with the token that config
// names.
func (a *App) repoClient(team string) (*http.Client, error) {
	t := a.live.Load().Teams[team]
	if !strings.Contains(t.Repo, "://") {
		return &http.Client{}, nil // a path
	}
	target, err := hostPort(t.Repo)
	if err != nil {
		return nil, err
	}
	c := bounded(netguard.Infra(target))
	c.Timeout = 0 // the watcher bounds it
	if t.RepoTokenEnv != "" {
		v, ok := lookup(t.RepoTokenEnv)
		if !ok {
			return nil, plane.Errorf(plane.Unavailable, "The variable %s, which holds the token of %s's repository, is not set.", t.RepoTokenEnv, team)
		}
		c.Transport = withBasic{c.Transport, v}
	}
	return c, nil
}

// withBasic signs requests to one host in, as git hosts take a token.
type withBasic struct {
	next  http.RoundTripper
	token secret.Text
}

func (b withBasic) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	b.token.Expose(func(v string) { r.SetBasicAuth("x-access-token", v) })
	return b.next.RoundTrip(r)
}

// checkTeams holds teams' repositories to what one may be.
func (c *Config) checkTeams() error {
	for _, name := range sortedKeys(c.Teams) {
		t := c.Teams[name]
		switch u, err := url.Parse(t.Repo); {
		case t.Repo == "":
			if t.RepoTokenEnv != "" {
				return c.bad("teams."+name+".repo_token_env", "teams.%s: repo_token_env goes with repo.", name)
			}
		case !strings.Contains(t.Repo, "://"):
			if !filepath.IsAbs(t.Repo) || t.RepoTokenEnv != "" {
				return c.bad("teams."+name+".repo", "teams.%s.repo is an https address, or an absolute path.", name)
			}
		case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackHost(u.Hostname())):
			return c.bad("teams."+name+".repo", "teams.%s.repo is an https address without user, query and fragment.", name)
		}
	}
	if m := c.Registry.Mirror; m.URL != "" {
		u, err := url.Parse(m.URL)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackHost(u.Hostname())) {
			return c.bad("registry.mirror.url", "registry.mirror.url is an https address.")
		}
		if m.Every != 0 && m.Every < time.Minute {
			return c.bad("registry.mirror.every", "registry.mirror.every is at least 1m.")
		}
	}
	return nil
}

// space is the namespace of our own registry entries: the public address's host,
// backwards.
func (a *App) space() string {
	u, err := url.Parse(a.publicURL())
	if err != nil || u.Hostname() == "" || loopbackHost(u.Hostname()) {
		return "local.patchbay"
	}
	parts := strings.Split(strings.ToLower(u.Hostname()), ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

// openDeclared makes what keeps declarations: the service, the repositories' watcher and
// the mirror.
func (a *App) openDeclared() error {
	a.registry = registry.New(registry.Options{Store: a.store, Policy: a.policy.Load, Sources: a.declared.get, Renew: a.refreshPolicy, Look: a.consent.Look, Clock: a.o.Clock, Log: a.o.Log,
		Placeholder: a.token, Links: a.cfg.Registry.Links, Space: a.space, Life: a.cfg.Limits.ProposalLife, PerMinute: a.cfg.Limits.ProposalsPerMinute, Waiting: a.cfg.Limits.ProposalsWaiting})
	a.watcher = &registry.Watcher{Repos: a.repos, Client: a.repoClient, Renew: a.refreshPolicy, Store: a.store, Clock: a.o.Clock, Every: repoEvery, Owner: a.peers.name, Placeholder: a.token, Scan: a.registry.Scanner(), Log: a.o.Log}
	if m := a.cfg.Registry.Mirror; m.URL != "" {
		target, err := hostPort(m.URL)
		if err != nil {
			return err
		}
		a.mirror = &registry.Mirror{URL: strings.TrimRight(m.URL, "/"), Search: m.Search, Every: cmp.Or(m.Every, time.Hour), Client: bounded(netguard.Infra(target)), Store: a.store, Clock: a.o.Clock, Owner: a.peers.name, Log: a.o.Log}
	}
	return nil
}

// repoEvery is how often a team's repository is read.
const repoEvery = 5 * time.Minute

// Declarations does what is due of declarations: repositories, the mirror, proposals that
// ran out. A test ticks by it where serve does so by itself.
func (a *App) Declarations(ctx context.Context, all bool) error {
	err := errors.Join(a.watcher.Tick(ctx, all), a.registry.Expire(ctx))
	if a.mirror != nil {
		err = errors.Join(err, a.mirror.Tick(ctx))
	}
	return err
}
