package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/fake"
	"patchbay/internal/ledger"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/upstream"
)

const token = "tok-5Yk2Qw8ZrL0pXc7V"

// rig is the whole road over a real database and real servers.
type rig struct {
	t       *testing.T
	store   *store.Store
	bridge  *bridge.Bridge
	pool    *upstream.Pool
	cats    *catalog.Catalogs
	snap    *policy.Snapshot
	conns   []plane.Connection
	spans   *tracetest.SpanRecorder
	audited []plane.AuditEntry
}

// server is a fake and how it is pinned.
type server struct {
	slug   string
	fake   *fake.MCP
	change func(*plane.Connection)
}

func newRig(t *testing.T, limits func(*plane.Limits), servers ...server) *rig {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "b.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	lim := plane.DefaultLimits()
	lim.HeaderTimeout, lim.IdleTimeout, lim.DiscoverOne, lim.DiscoverAll = 2*time.Second, time.Second, 2*time.Second, 4*time.Second
	if limits != nil {
		limits(&lim)
	}
	r := &rig{t: t, store: st, spans: tracetest.NewSpanRecorder()}
	var rules []netguard.Rule
	elsewhere := map[string]string{}
	for _, s := range servers {
		c := plane.Connection{Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: s.slug, Endpoint: s.fake.Endpoint(), Auth: plane.AuthNone, Enabled: true}
		if s.change != nil {
			s.change(&c)
		}
		u, _ := url.Parse(c.Endpoint)
		if u.Scheme == "https" { // it stands in for a server of somebody else's
			elsewhere[s.slug] = s.fake.URL
			r.conns = append(r.conns, c)
			continue
		}
		rules = append(rules, netguard.Rule{To: "http://" + u.Host, For: []string{s.slug}})
		r.conns = append(r.conns, c)
	}
	guard, err := netguard.NewPolicy(rules, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(guard.Close)
	conns := connect.New(connect.Options{Store: st, Clock: plane.SystemClock{}, Lookup: func(name string) (secret.Text, bool) {
		if name != "TOKEN" {
			return secret.Text{}, false
		}
		return secret.New(token), true
	}})
	if r.conns, err = conns.Pin(t.Context(), r.conns); err != nil {
		t.Fatal(err)
	}
	r.compile()
	r.pool = upstream.New(upstream.Options{Lender: conns, Transport: func(name string) http.RoundTripper {
		if at, ok := elsewhere[name]; ok {
			return standIn(strings.TrimPrefix(at, "http://"))
		}
		return guard.Untrusted(name)
	}, Clock: plane.SystemClock{}, Limits: lim,
		Info: mcp.Implementation{Name: "test", Version: "1"}, Listed: func(ctx context.Context, g policy.Grant, l catalog.Listed) {
			if err := r.cats.Adopt(ctx, g, l); err != nil {
				t.Error(err)
			}
		}})
	t.Cleanup(r.pool.Close)
	if r.cats, err = catalog.Load(t.Context(), st, r.pool, plane.SystemClock{}, lim); err != nil {
		t.Fatal(err)
	}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.bridge = &bridge.Bridge{Policy: func() *policy.Snapshot { return r.snap }, Catalogs: r.cats, Upstream: r.pool, Ledger: ledger.New(st, plane.SystemClock{}),
		Audit: func(e plane.AuditEntry) { r.audited = append(r.audited, e) }, Clock: plane.SystemClock{}, Limits: lim, Tracer: tp.Tracer("t")}
	return r
}

func (r *rig) compile() {
	r.t.Helper()
	snap, err := policy.Compile(policy.Rules{Connections: r.conns, Agents: map[string]plane.Agent{
		"general": {Slug: "general", Trust: plane.Open, MCP: true}, "review": {Slug: "review", Trust: plane.Guarded, MCP: true},
		"off": {Slug: "off", Trust: plane.Open}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.snap = snap
}

func (r *rig) open(agent string) *bridge.Session {
	r.t.Helper()
	s, err := r.bridge.Open(r.t.Context(), bridge.Opening{Agent: agent, Principal: plane.Local, Results: plane.Marked})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.Close)
	return s
}

func (r *rig) call(s *bridge.Session, alias, args string) *bridge.Out {
	r.t.Helper()
	out, err := s.Call(r.t.Context(), bridge.In{Alias: alias, Arguments: json.RawMessage(args)})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// state is a call's state once it is written.
func (r *rig) state(id plane.CallID) plane.Call {
	r.t.Helper()
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := r.store.CallByID(r.t.Context(), id)
		if err == nil && c.State.Final() {
			return c
		}
		if time.Now().After(end) {
			r.t.Fatalf("call %s: %+v %v", id, c, err)
		}
	}
}

func names(s *bridge.Session) string {
	var out []string
	for _, t := range s.Tools() {
		out = append(out, t.Alias)
	}
	return strings.Join(out, " ")
}

func whys(s *bridge.Session) string {
	var out []string
	for _, v := range s.Servers() {
		out = append(out, fmt.Sprintf("%s:%d:%s", v.Slug, v.Tools, v.Why))
	}
	return strings.Join(out, "\n")
}

// standIn takes requests to a server on this machine instead of the one they name.
type standIn string

func (h standIn) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", string(h)
	return http.DefaultTransport.RoundTrip(r)
}
