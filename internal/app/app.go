// Package app builds the program: it is the only package that knows all the
// others. Only cmd/patchbay and end-to-end tests may import it.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"patchbay/internal/api"
	"patchbay/internal/authn"
	"patchbay/internal/authserver"
	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/command"
	"patchbay/internal/connect"
	"patchbay/internal/consent"
	"patchbay/internal/egress"
	"patchbay/internal/ingress"
	"patchbay/internal/ledger"
	"patchbay/internal/model"
	"patchbay/internal/natsbus"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/registry"
	"patchbay/internal/run"
	"patchbay/internal/secret"
	"patchbay/internal/slack"
	"patchbay/internal/store"
	"patchbay/internal/telemetry"
	"patchbay/internal/upstream"
	"patchbay/internal/vault"
	"patchbay/internal/web"
)

// Options are what is not in the config file.
type Options struct {
	Config  *Config
	Version string
	Log     *slog.Logger
	Notice  func(format string, args ...any) // a line for the person who starts it
	Clock   plane.Clock                      // nil: the database's on PostgreSQL, this machine's on SQLite
	Local   plane.Clock                      // what this machine believes; nil for its clock
	Traces  *telemetry.Traces                // nil sets up what config says
	Demo    bool
}

// App is a built program: New, Run, Close.
type App struct {
	o          Options
	cfg        *Config
	lock       *dataLock
	store      *store.Store
	guard      *netguard.Policy
	pool       *upstream.Pool
	engine     *run.Engine
	agents     *ingress.Agents
	ended      *endedSessions
	peers      *peers
	traces     *telemetry.Traces
	bridge     *bridge.Bridge
	ledger     *ledger.Ledger
	auditor    *ledger.Audit
	cats       *catalog.Catalogs
	conns      *connect.Connections
	consent    *consent.Service
	auth       *authn.Authenticator
	ring       *secret.Ring
	keys       *rotation
	policy     atomic.Pointer[policy.Snapshot]
	live       atomic.Pointer[Config] // what a reload replaces: agents, teams, people, pinned connections, models
	reloadMu   sync.Mutex             // held from reading what is stored to publishing the policy
	pinned     []plane.Connection     // with reloadMu held
	declared   declared
	registry   *registry.Service
	watcher    *registry.Watcher
	mirror     *registry.Mirror // nil for none
	bus        *natsbus.Bus
	slack      *slack.Bot
	clients    *authserver.Server
	commands   *command.Registry
	nats       *natsserver.Server // the one inside
	egress     *egress.Proxy      // nil for none
	ca         *egress.CA
	egressAt   string
	gateMu     sync.Mutex // of egress and ca, which are opened when somebody needs them
	boxes      sandboxes
	vault      vault.Vault
	files      *vault.File // where it is one
	closeVault func()
	token      string // the placeholder
	replica    *replica
	worker     *catalog.Worker
	ending     *ending
	failed     chan error
	models     map[string]lazyModel
	modelsMu   sync.Mutex
	handler    http.Handler
	servers    []*http.Server
	work       sync.WaitGroup // upkeep, ended by Run's context
	demo       *demoServer
	ready      chan struct{}
	addr       atomic.Pointer[net.Addr]
}

type lazyModel struct {
	provider model.Provider
	err      error
}

// New builds everything and opens the database; nothing is served yet. On error
// whatever was opened is closed again.
func New(ctx context.Context, o Options) (a *App, err error) {
	if o.Notice == nil {
		o.Notice = func(string, ...any) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a = &App{o: o, cfg: o.Config, ready: make(chan struct{}), models: map[string]lazyModel{}, ending: newEnding(), failed: make(chan error, 3)}
	a.ended, a.peers = &endedSessions{a: a}, &peers{a: a, name: replicaName()}
	a.replica = &replica{a: a, kick: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			a.Close()
			a = nil
		}
	}()
	if o.Demo {
		if err := a.startDemo(); err != nil {
			return a, err
		}
	}
	a.live.Store(a.cfg)
	if a.ring, err = a.openStore(ctx); err != nil {
		return a, err
	}
	if a.traces = o.Traces; a.traces == nil {
		if a.traces, err = a.openTraces(ctx); err != nil {
			return a, err
		}
	}
	if err := a.openIdentity(); err != nil {
		return a, err
	}
	if err := a.connectAll(ctx); err != nil {
		return a, err
	}
	if err := a.openClients(); err != nil {
		return a, err
	}
	a.engine = run.New(run.Options{Store: a.store, Bridge: a.bridge, Ledger: a.ledger, Lease: a.lease(), Search: a.cfg.Memory.Search, Agents: agentsOf{a}, Ring: a.ring,
		Clock: a.o.Clock, Limits: a.cfg.Limits, Tracer: a.traces.Tracer(), Log: o.Log, Owner: owner(), Sole: a.store.Kind() == "sqlite"})
	a.ledger.Late = a.engine.Late
	a.surfaces()
	if err := a.openEgress(ctx); err != nil {
		return a, err
	}
	if err := a.openBus(); err != nil {
		return a, err
	}
	return a, a.openSlack()
}

func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), plane.NewSessionID(time.Now()))
}

// replicaName is this process in session ids: short, and another at every start.
func replicaName() string { return strings.ToLower(string(plane.NewSessionID(time.Now())))[20:] }

// openStore locks the data directory, opens the database and checks that the
// key ring belongs to it.
func (a *App) openStore(ctx context.Context) (*secret.Ring, error) {
	if err := os.MkdirAll(a.cfg.Data, 0o700); err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The data directory %s cannot be made.", a.cfg.Data).Because(err)
	}
	var err error
	if a.lock, err = lockData(a.cfg.Data); err != nil {
		return nil, err
	}
	so := store.Options{Clock: a.o.Clock, Local: a.o.Local, Lane: a.cfg.lane()}
	if a.cfg.Database == "sqlite" {
		so.Path = filepath.Join(a.cfg.Data, "patchbay.db")
	} else {
		so.URL = a.cfg.Database
		so.Dial = postgresDialer(a.cfg.Database)
	}
	ring, err := a.openRing()
	if err != nil {
		return nil, err
	}
	if a.store, err = store.Open(ctx, so); err != nil {
		return nil, err
	}
	a.o.Clock = a.store.Clock()
	return ring, a.checkRing(ctx, ring)
}

func (a *App) audit(e plane.AuditEntry) {
	if err := a.store.WriteBehind(func(t plane.Tx) error { return a.store.AddAudit(t, e) }); err != nil {
		a.o.Log.Error("an audit entry could not be queued", "action", e.Action, "err", err)
	}
}

func (a *App) openTraces(ctx context.Context) (*telemetry.Traces, error) {
	if a.cfg.Telemetry.OTLP == "" {
		return &telemetry.Traces{}, nil
	}
	target, err := hostPort(a.cfg.Telemetry.OTLP)
	if err != nil {
		return nil, err
	}
	return telemetry.NewTraces(ctx, a.cfg.Telemetry.OTLP, a.o.Version, &http.Client{Transport: netguard.Infra(target)})
}

// agentsOf gives the runtime its agents and models. A model is built at its
// first use: most are never used by a process.
type agentsOf struct{ a *App }

func (x agentsOf) Agent(slug string) (plane.Agent, bool) { return x.a.policy.Load().Agent(slug) }

func (x agentsOf) Model(name string) (model.Provider, error) {
	x.a.modelsMu.Lock()
	defer x.a.modelsMu.Unlock()
	m, ok := x.a.models[name]
	if !ok {
		m.provider, m.err = x.a.live.Load().provider(name)
		x.a.models[name] = m
	}
	return m.provider, m.err
}

// Attachments are what became of declarations for an agent.
func (x agentsOf) Attachments(agent string, who plane.Principal) []plane.Attachment {
	return x.a.policy.Load().Attachments(agent, who)
}

// Propose stores an agent's proposal and returns its name.
func (x agentsOf) Propose(ctx context.Context, who plane.Principal, team, declaration, why string) (string, error) {
	p, err := x.a.registry.Propose(ctx, who, team, declaration, why)
	return p.Declaration.Name, err
}

// surfaces mounts the API, the command endpoint and the pages.
func (a *App) surfaces() {
	deps := command.Deps{Runs: a.engine, Calls: a.store.CallByID, Catalogs: a.cats, Bridge: a.bridge, Policy: a.policy.Load, Models: a.describeModel,
		Info: a.info, AgentURL: func(slug string) string { return a.publicURL() + ingress.AgentsPath + slug }, MCP: a.cfg.MCP.On(), Consent: a.consent, Registry: a.registry, Secrets: a.conns, Gateway: authority{a}, Egress: a.store.Egress, Stats: a.store.CallStats, Tokens: a.auth, People: a.auth, Clients: a.clients, Keys: a.keys, Reload: a.reload, SignIn: a.signInLink, Limits: a.cfg.Limits,
		Records: records{a.store, a}, Renew: a.refreshPolicy, Now: a.o.Clock.Now, Unseal: a.unseal, Sign: a.ring.SignBy,
		Pins: a.store.Pins, Reviews: a.store.Reviews, Window: a.window, View: a.replica.look}
	reg := command.New(deps)
	a.commands = reg
	mcpServer := ingress.New(reg, a.o.Version, a.principal, a.clients.Metadata)
	pages := web.New(web.Options{Limits: limitRows(a.cfg.Limits), Auth: a.auth, Clients: a.clients, Consent: a.consent, Commands: reg, Log: a.o.Log, PublicURL: a.publicURL, MCP: a.cfg.MCP.On(), Ending: a.ending.streams})
	rest := api.New(api.Options{Teams: command.NewTeamServers(deps, a.registry), Gallery: a.registry, Open: a.cfg.Registry.Public || a.cfg.localOnly(), Keys: a.signingKeys, Providers: command.NewProviders(deps), Ending: a.ending.streams, Commands: reg, Runs: a.engine, SignIn: a.consent, Log: a.o.Log, Version: a.o.Version, Who: a.principal, MCP: a.cfg.MCP.On(),
		MaySee: func(who plane.Principal, r plane.Run) bool { return a.policy.Load().MaySee(who, r) }})
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcpServer)
	pass := a.peers.Pass
	if a.cfg.Cluster.Advertise == "" {
		pass = nil
	}
	a.agents = ingress.NewAgents(ingress.AgentsOptions{Bridge: a.bridge, Agent: func(slug string) (plane.Agent, bool) { return a.policy.Load().Agent(slug) }, Who: a.principal, Metadata: a.clients.Metadata,
		MAC: a.ring.MAC, Check: a.ring.CheckMAC, Clock: a.o.Clock, Log: a.o.Log, Ended: a.ended, Reaches: a.reaches, Stopping: a.ending.streams, Life: a.ending.calls, Link: a.connectionPage, Version: a.o.Version, Replica: a.peers.name, Pass: pass, Idle: a.cfg.Limits.IngressIdle, PerWho: a.cfg.Limits.IngressSessions})
	mux.Handle(ingress.AgentsPath, a.agents)
	if a.cfg.Cluster.Advertise != "" {
		mux.Handle(peerPath, a.peers)
	}
	a.cats.Changed, a.cats.Converted = a.listsChanged, a.refreshPolicy
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if pages.Serves(r) {
			pages.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
	a.handler = a.ending.closing(a.forClients(mux))
}

// connectionPage is where a person looks at a connection and signs it in.
func (a *App) connectionPage(id plane.ConnectionID) string {
	return a.publicURL() + "/connections/" + string(id)
}

// signInLink is a new one-time link for the local admin's browser.
func (a *App) signInLink() (string, error) {
	if !a.auth.LocalOnly() {
		return "", plane.Errorf(plane.Unavailable, "People sign in at the issuer that config names.").Then("Open " + a.publicURL() + authn.SignInPath)
	}
	return a.publicURL() + a.auth.Print(), nil
}

// window is how much a model takes, in tokens: as config says, else what is common
// for its kind.
func (a *App) window(name string) int {
	m := a.live.Load().models()[name]
	switch {
	case m.Window > 0:
		return m.Window
	case m.Provider == "openai" && m.BaseURL != "":
		return 32_000 // a model of one's own
	case m.Provider == "openai":
		return 128_000
	}
	return 200_000
}

func (a *App) describeModel(name string) string {
	m := a.live.Load().models()[name]
	if m.Provider == "scripted" {
		return "scripted"
	}
	return m.Provider + " " + m.Model
}

// info is how the server stands, as far as the caller may know: paths and what
// the network lets through are the admins', calls those of who may see them.
func (a *App) info(ctx context.Context, who plane.Principal) command.Status {
	snap := a.policy.Load()
	s := command.Status{Version: a.o.Version, Listen: a.cfg.Listen, Data: a.cfg.Data, Database: a.store.Kind(), Config: a.cfg.path,
		MCP: a.cfg.MCP.On(), Opens: a.guard.Opens(), Models: []string{}}
	if addr := a.addr.Load(); addr != nil {
		s.Listen = (*addr).String()
	}
	for _, name := range sortedKeys(a.live.Load().models()) {
		s.Models = append(s.Models, name+": "+a.describeModel(name))
	}
	for _, c := range snap.Visible(who) {
		s.Servers++
		if cat := a.cats.Get(c.ID); c.Enabled && cat != nil && cat.Health == plane.HealthOK && !cat.Stale(c.Version) {
			s.Healthy++
		}
	}
	unknown, err := a.store.UnknownCalls(ctx)
	if err != nil {
		a.o.Log.Warn("the status lacks unknown calls", "err", err)
	}
	waiting := map[plane.RunID]bool{}
	s.Unknown = []string{}
	for _, c := range unknown {
		if !snap.MaySee(who, plane.Run{Principal: c.Principal, Agent: c.Agent}) {
			continue
		}
		if c.Fence == 0 && c.PlannedAt.Before(a.o.Clock.Now().Add(-command.Attention)) {
			continue
		}
		s.Unknown = append(s.Unknown, string(c.ID))
		if r, err := a.engine.Get(ctx, c.Run); err == nil && r.State == plane.RunWaiting {
			waiting[c.Run] = true
		}
	}
	s.Asked = []string{}
	asked, err := a.store.Approvals(ctx, true, 1000)
	if err != nil {
		a.o.Log.Warn("the status lacks approvals", "err", err)
	}
	for _, p := range asked {
		if snap.MaySee(who, plane.Run{Principal: p.Principal, Agent: p.Agent}) && a.o.Clock.Now().Before(p.ExpiresAt) {
			s.Asked = append(s.Asked, string(p.ID))
			if plane.IsRunID(string(p.Run)) {
				waiting[p.Run] = true
			}
		}
	}
	s.Waiting = len(waiting)
	if !snap.Admin(who) {
		s.Data, s.Config, s.Opens = "", "", nil
	}
	return s
}

// Close stops everything in the order that loses nothing.
func (a *App) Close() error {
	var errs []error
	for _, s := range a.servers {
		s.Close() // Run has drained it; New that failed has none
	}
	a.closeSlack()
	a.closeBus()
	if a.egress != nil {
		a.egress.Close(a.cfg.Limits.Drain)
	}
	if a.ledger != nil {
		a.ledger.Close()
	}
	if a.engine != nil {
		a.engine.Close()
	}
	if a.agents != nil {
		a.agents.Close()
	}
	a.work.Wait()
	if a.pool != nil {
		a.pool.Close()
	}
	a.boxes.close()
	if a.conns != nil {
		a.conns.Close() // a token that was presented is stored first
	}
	if a.closeVault != nil {
		a.closeVault()
	}
	if a.guard != nil {
		a.guard.Close()
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.traces != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		errs = append(errs, a.traces.Close(ctx))
		cancel()
	}
	if a.demo != nil {
		a.demo.close()
	}
	if a.lock != nil {
		a.lock.release()
	}
	return errors.Join(errs...)
}

// postgresDialer reaches the database's host and nothing else.
func postgresDialer(raw string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == "unix" || strings.HasPrefix(addr, "/") {
			return netguard.DialOnly("unix", addr)(ctx, "unix", addr)
		}
		target := addr
		if u, err := url.Parse(raw); err == nil && u.Hostname() != "" {
			target = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "5432"))
		}
		return netguard.DialOnly("tcp", target)(ctx, "tcp", addr)
	}
}
