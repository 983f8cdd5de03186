package app

import (
	"context"
	"os"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/consent"
	"patchbay/internal/ledger"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/run"
	"patchbay/internal/secret"
	"patchbay/internal/upstream"
)

// connectAll builds the road of a call: policy, credentials, sessions, catalogs,
// the bridge, and how connections come to have credentials.
func (a *App) connectAll(ctx context.Context) error {
	var err error
	if a.guard, err = netguard.NewPolicy(a.cfg.Egress.Allow, a.cfg.Limits.HeaderTimeout); err != nil {
		return err
	}
	if err := a.openVault(); err != nil {
		return err
	}
	a.conns = connect.New(connect.Options{Store: a.store, Vault: a.vault, Apps: apps{a}, Ring: a.ring, Clock: a.o.Clock, Log: a.o.Log, OAuth: a.oauth,
		Lock:   func(ctx context.Context, name string) (connect.Lock, error) { return a.store.Lock(ctx, name) },
		Lookup: lookup,
		Changed: func() {
			if err := a.refreshPolicy(context.Background()); err != nil {
				a.o.Log.Error("the policy could not be renewed", "err", err)
			}
		}})
	if a.token, err = a.placeholder(ctx); err != nil {
		return err
	}
	if err := a.pin(ctx, a.cfg); err != nil {
		return err
	}
	a.pool = upstream.New(upstream.Options{Lender: a.conns, Clock: a.o.Clock, Limits: a.cfg.Limits,
		Transport: a.guard.Untrusted, Launch: a.launch,
		Holds: func(g policy.Grant) bool { return a.policy.Load().Holds(g) },
		Info:  mcp.Implementation{Name: "patchbay", Version: a.o.Version},
		Listed: func(ctx context.Context, g policy.Grant, l catalog.Listed) {
			if err := a.cats.Adopt(context.WithoutCancel(ctx), g, l); err != nil {
				a.o.Log.Warn("a listing could not be stored", "connection", g.ID(), "err", err)
			}
		},
		Noticed: func(n upstream.Notice) {
			if a.agents != nil {
				a.agents.Noticed(n)
			}
		}})
	if a.cats, err = catalog.Load(ctx, a.store, a.pool, a.o.Clock, a.cfg.Limits); err != nil {
		return err
	}
	a.ledger = ledger.New(a.store, a.o.Clock)
	a.auditor = &ledger.Audit{Store: a.store, Signer: a.ring, Clock: a.o.Clock, Owner: a.peers.name, Keep: a.cfg.Retention.Records}
	a.ledger.Seal = func(id plane.ApprovalID, args []byte) []byte { return a.ring.Seal(run.ApprovalBind(id), args) }
	if a.store.Kind() != "sqlite" {
		a.ledger.Owner = a.peers.name
	}
	a.ledger.Stall = min(a.ledger.Stall, a.cfg.Limits.RunLease/2)
	a.bridge = &bridge.Bridge{Policy: a.policy.Load, Catalogs: a.cats, Upstream: a.pool, Ledger: a.ledger,
		Audit: a.audit, Clock: a.o.Clock, Limits: a.cfg.Limits, Tracer: a.traces.Tracer(), Sealer: legs{a.ring}, Names: a.store}
	if a.bridge.Embeds, err = a.cfg.embedder(); err != nil {
		return err
	}
	if a.store.Kind() != "sqlite" {
		a.bridge.Fresh = a.replica.fresh
	}
	a.worker = a.newWorker()
	a.consent = consent.New(consent.Options{Store: a.store, Connections: a.conns, Upstream: asked{a.pool}, Policy: a.policy.Load, OAuth: a.oauth,
		CheckURL: a.guard.CheckURL, Adopt: a.cats.Adopt, Snapshot: a.cats.Get, Change: a.change, Reload: a.refreshPolicy, Ring: a.ring, Lookup: lookup, Clock: a.o.Clock, Log: a.o.Log, Contract: ledger.AdmitContract, Claims: a.store.ClaimsOf,
		PublicURL: a.publicURL, CIMD: a.cfg.OAuth.CIMD, LocalOnly: a.auth.LocalOnly(), TicketLife: a.cfg.Limits.TicketLife, MaxPerScope: a.cfg.Limits.ConnectionsPerScope, Limits: a.cfg.Limits})
	if err := a.openDeclared(); err != nil {
		return err
	}
	a.keys = a.newRotation()
	return nil
}

// change writes a person's change with the snapshot that goes with it, judged by
// what config says beside.
func (a *App) change(ctx context.Context, conn plane.Connection, from int64, said catalog.Saying, write func(plane.Tx) error) error {
	a.reloadMu.Lock()
	for i := range a.pinned {
		if a.pinned[i].ID == conn.ID {
			conn.Fixed = a.pinned[i].Fixed
		}
	}
	a.reloadMu.Unlock()
	return a.cats.Change(ctx, conn, from, said, write)
}

// dropChanged ends what was opened for connections that a person changed, here or
// through another replica: sessions, and credentials held in memory.
func (a *App) dropChanged(old, now *policy.Snapshot) {
	if old == nil || a.pool == nil {
		return
	}
	versions := map[plane.ConnectionID]int64{}
	for _, c := range now.All() {
		versions[c.ID] = c.Version
	}
	for _, c := range old.All() {
		if versions[c.ID] != c.Version {
			a.conns.Forget(c.ID)
			a.pool.DropOlder(c.ID, versions[c.ID])
		}
	}
}

// listsChanged tells the agents' clients that what they may use differs: of tools, and
// of what is beside, of one connection or, with none, of any.
func (a *App) listsChanged(id plane.ConnectionID, tools, beside bool) {
	if a.agents != nil {
		a.agents.Changed(id, tools, beside)
	}
}

// reaches reports that a connection is in reach of an agent that works for who.
func (a *App) reaches(who plane.Principal, agent string, id plane.ConnectionID) bool {
	_, denial := a.policy.Load().Decide(who, policy.Discover, policy.Resource{Agent: agent, Connection: id})
	return denial == nil
}

// legs seals calls that wait for input.
type legs struct{ ring *secret.Ring }

func (l legs) bind() secret.Bind { return secret.Bind{Purpose: "call leg"} }

// Seal seals.
func (l legs) Seal(value []byte) []byte { return l.ring.Seal(l.bind(), value) }

// Open opens what Seal sealed.
func (l legs) Open(blob []byte) ([]byte, error) { return l.ring.Open(l.bind(), blob) }

// lookup reads a secret that config names by its variable.
func lookup(name string) (secret.Text, bool) {
	v, ok := os.LookupEnv(name)
	return secret.New(v), ok
}

// oauth speaks to authorization servers through the lane of one connection, with
// its exceptions and no others.
func (a *App) oauth(egressName string) *oauth.Client {
	return &oauth.Client{Transport: a.guard.Untrusted(egressName), Now: a.o.Clock.Now,
		Check: func(raw string) error { return a.guard.CheckURL(egressName, raw) }}
}

// asked lets consent ask servers by the pool.
type asked struct{ *upstream.Pool }

func (x asked) Probe(ctx context.Context, g policy.Grant, lease *connect.Lease) (consent.Probed, error) {
	p, err := x.Pool.Probe(ctx, g, lease)
	return consent.Probed{Listed: p.Listed, Challenges: p.Challenges, Refused: p.Refused}, err
}

// rules are what a config, the stored connections and people's standing rules say.
func (c *Config) rules(connections []plane.Connection, standing []plane.Rule) (policy.Rules, error) {
	agents, err := c.agents()
	teams := map[string]policy.Team{}
	for name, t := range c.Teams {
		teams[name] = policy.Team{Members: t.Members, ConfigWrite: t.ConfigWrite, Channels: t.SlackChannels}
	}
	return policy.Rules{Agents: agents, Connections: connections, Teams: teams, Admins: c.Identity.Admins, Approvals: standing}, err
}

// pin makes a config the one in force: its rules are checked before anything is
// written.
func (a *App) pin(ctx context.Context, cfg *Config) error {
	pinned, err := cfg.connections()
	if err != nil {
		return err
	}
	trial, err := netguard.NewPolicy(cfg.Egress.Allow, cfg.Limits.HeaderTimeout)
	if err != nil {
		return err
	}
	for _, c := range pinned {
		if err := trial.CheckURL(c.EgressName(), c.Endpoint); err != nil {
			return err
		}
		if c.TokenEnv != "" && os.Getenv(c.TokenEnv) == "" {
			a.o.Notice("%s is unavailable: the variable %s, which holds its token, is not set.", c.Slug, c.TokenEnv)
		}
	}
	if _, err := cfg.destinations(); err != nil {
		return err
	}
	rules, err := cfg.rules(pinned, nil)
	if err != nil {
		return err
	}
	if _, err := policy.Compile(rules); err != nil {
		return err
	}
	if pinned, err = a.conns.Pin(ctx, pinned); err != nil {
		return err
	}
	a.reloadMu.Lock()
	a.pinned = pinned
	a.live.Store(cfg)
	a.reloadMu.Unlock()
	a.readRegistry(cfg)
	if err := a.guard.Replace(cfg.Egress.Allow); err != nil {
		return err
	}
	if err := a.refreshPolicy(ctx); err != nil {
		return err
	}
	a.dropClosed()
	return nil
}

// dropClosed ends the sessions of connections whose address the rules in force
// no longer open.
func (a *App) dropClosed() {
	if a.pool == nil {
		return
	}
	for _, c := range a.policy.Load().All() {
		if c.Stdio() {
			continue // it has no address
		}
		if err := a.guard.CheckURL(c.EgressName(), c.Endpoint); err != nil {
			a.pool.Drop(c.ID)
			a.o.Notice("%s is closed: %s", c.Slug, plane.Public(err).Message)
		}
	}
}

// refreshPolicy compiles the policy anew from what is stored now.
func (a *App) refreshPolicy(ctx context.Context) error {
	a.reloadMu.Lock()
	defer a.reloadMu.Unlock()
	rules, err := a.live.Load().rules(nil, nil)
	if err != nil {
		return err
	}
	src, err := a.compile(ctx, a.live.Load(), rules.Agents)
	if err != nil {
		return err
	}
	attached, stored, err := a.attach(ctx, src)
	if err != nil {
		return err
	}
	state := map[plane.ConnectionID]plane.Connection{}
	var all []plane.Connection
	for _, c := range stored {
		if c.Origin != plane.Pinned {
			c.Fixed.Allow, c.Fixed.Deny = c.Declared.Allow, c.Declared.Deny
			all = append(all, c)
		}
		state[c.ID] = c
	}
	for _, p := range a.pinned {
		if s, ok := state[p.ID]; ok { // what a sign-in changed of it
			p.Version, p.Prefs = s.Version, s.Prefs
			// Where another process pinned it by another config, ours is not what the
			// database fences: it serves nobody here until the configs agree.
			p.Enabled = p.Enabled && s.Enabled && p.Digest == s.Digest
			if p.Auth == plane.AuthOAuth {
				p.State, p.Reason = s.State, s.Reason
				id, how := p.OAuth.ClientID, p.OAuth.ClientAuth
				p.OAuth = s.OAuth
				p.OAuth.ClientID, p.OAuth.ClientAuth = id, how
			}
		}
		all = append(all, p)
	}
	rules.Connections, rules.Attached, rules.Reach = all, attached, src.Reaches()
	if rules.Approvals, err = a.store.Rules(ctx); err != nil {
		return err
	}
	snap, err := policy.Compile(rules)
	if err != nil {
		return err
	}
	a.conns.ForgetSecrets()
	a.renewedAuthority(ctx)
	old := a.policy.Swap(snap)
	a.dropChanged(old, snap)
	a.listsChanged("", true, true)
	return nil
}

// reload reads the config file again. A bad one changes nothing.
func (a *App) reload(ctx context.Context) (string, error) {
	path := a.cfg.path
	if _, err := os.Stat("patchbay.yaml"); path == "" && err == nil {
		path = "patchbay.yaml" // written since the start
	}
	cfg, err := LoadConfig(path)
	if err != nil {
		return "", err
	}
	if a.demo != nil {
		cfg = a.withDemo(cfg)
	}
	if err := a.pin(ctx, cfg); err != nil {
		return "", err
	}
	a.modelsMu.Lock()
	a.models = map[string]lazyModel{}
	a.modelsMu.Unlock()
	if err := a.watcher.Tick(ctx, true); err != nil {
		a.o.Log.Warn("the teams' repositories could not be looked at", "err", err)
	}
	if path == "" {
		return "There is no config file; the defaults stand.", nil
	}
	return path + " is read again: agents, teams, people, models, pinned connections, destinations, egress.allow and the registry's files. Everything else takes a restart." + a.leftOut(), nil
}
