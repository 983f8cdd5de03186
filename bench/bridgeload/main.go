// Command bridgeload drives bridge sessions in this process, on command: each
// line of standard input is one measurement, each line of output its figures as
// JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	_ "net/http/pprof"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/ledger"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/upstream"
)

// Order is one measurement.
type Order struct {
	Kind     string `json:"kind"` // query, big, effect, ledger
	Sessions int    `json:"sessions"`
	Millis   int    `json:"ms"`
}

// Figures are what came of it.
type Figures struct {
	Calls   int64   `json:"calls"`
	CPU     float64 `json:"cpu_us_per_call"`
	PerS    float64 `json:"per_s"`
	Commits int64   `json:"commits"`
	Writes  int64   `json:"writes"`
	Error   string  `json:"error,omitempty"`
}

func main() {
	debug.SetGCPercent(200) // as cmd/patchbay does
	if a := os.Getenv("BENCH_PPROF"); a != "" {
		go func() { log.Println(http.ListenAndServe(a, nil)) }()
	}
	r, err := build(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	fmt.Println("ready")
	for in.Scan() {
		var o Order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			log.Fatal(err)
		}
		f, err := r.measure(o)
		if err != nil {
			f.Error = err.Error()
		}
		if err := out.Encode(f); err != nil {
			log.Fatal(err)
		}
	}
}

type rig struct {
	store  *store.Store
	ledger *ledger.Ledger
	bridge *bridge.Bridge
	conn   plane.Connection
}

// build makes the road as app does, over the given upstream and database.
func build(dir, url, database string) (*rig, error) {
	ctx := context.Background()
	o := store.Options{Path: filepath.Join(dir, "bench.db")}
	if database != "sqlite" {
		o = store.Options{URL: database}
	}
	st, err := store.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	lim := plane.DefaultLimits()
	lim.ToolsOffered = 256
	target := url[:len(url)-len("/mcp")]
	guard, err := netguard.NewPolicy([]netguard.Rule{{To: target, For: []string{"up"}}}, lim.HeaderTimeout)
	if err != nil {
		return nil, err
	}
	os.Setenv("BENCH_TOKEN", "pTq7Zk2mXw9RvLs4YhNd8JcFgB6aUe3K")
	conns := connect.New(connect.Options{Store: st, Clock: plane.SystemClock{}, Lookup: func(string) (secret.Text, bool) { return secret.New(os.Getenv("BENCH_TOKEN")), true }})
	pinned, err := conns.Pin(ctx, []plane.Connection{{Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "up", Endpoint: url, Auth: plane.AuthBearer, TokenEnv: "BENCH_TOKEN", Enabled: true}})
	if err != nil {
		return nil, err
	}
	snap, err := policy.Compile(policy.Rules{Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true}}, Connections: pinned})
	if err != nil {
		return nil, err
	}
	clock := plane.SystemClock{}
	pool := upstream.New(upstream.Options{Lender: conns, Clock: clock, Limits: lim, Info: mcp.Implementation{Name: "bench", Version: "1"},
		Transport: guard.Untrusted})
	cats, err := catalog.Load(ctx, st, pool, clock, lim)
	if err != nil {
		return nil, err
	}
	g, denial := snap.Decide(plane.Local, policy.Discover, policy.Resource{Agent: "general", Connection: pinned[0].ID})
	if denial != nil {
		return nil, denial.Err()
	}
	if err := cats.Refresh(ctx, g); err != nil {
		return nil, err
	}
	// The fixture reviews echo and big as queries.
	err = st.Write(ctx, func(t plane.Tx) error {
		for _, d := range cats.Get(pinned[0].ID).Definitions {
			if err := st.PutReview(t, &plane.Review{Connection: pinned[0].ID, Name: d.Name, Fingerprint: d.Fingerprint, Class: plane.Query, By: "bench"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if cats, err = catalog.Load(ctx, st, pool, clock, lim); err != nil {
		return nil, err
	}
	led := ledger.New(st, clock)
	r := &rig{store: st, ledger: led, conn: pinned[0]}
	r.bridge = &bridge.Bridge{Policy: func() *policy.Snapshot { return snap }, Catalogs: cats, Upstream: pool, Ledger: led, Audit: func(plane.AuditEntry) {},
		Clock: clock, Limits: lim, Tracer: noop.NewTracerProvider().Tracer("")}
	return r, nil
}

func cpu() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func (r *rig) measure(o Order) (Figures, error) {
	ctx := context.Background()
	work := make([]func() error, o.Sessions)
	for i := range work {
		if o.Kind == "ledger" {
			work[i] = func() error { return r.effect(ctx) }
			continue
		}
		s, err := r.bridge.Open(ctx, bridge.Opening{Agent: "general", Principal: plane.Local, Results: plane.Raw})
		if err != nil {
			return Figures{}, err
		}
		defer s.Close()
		in := bridge.In{Alias: "mcp__up__echo", Arguments: json.RawMessage(`{"text":"hello, world"}`)}
		if o.Kind == "big" {
			in = bridge.In{Alias: "mcp__up__big", Arguments: json.RawMessage(`{"kib":256}`)}
		}
		work[i] = func() error {
			out, err := s.Call(ctx, in)
			if err == nil && out.IsError {
				err = fmt.Errorf("the call failed: %s", out.Text)
			}
			return err
		}
		if err := work[i](); err != nil { // opens the upstream session
			return Figures{}, err
		}
	}
	before, began, stats := cpu(), time.Now(), r.store.Stats()
	end := began.Add(time.Duration(o.Millis) * time.Millisecond)
	var calls atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, fn := range work {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := fn(); err != nil {
					failed.Store(&err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	wall := time.Since(began)
	time.Sleep(120 * time.Millisecond) // what is written behind belongs to the cost
	used, after := cpu()-before, r.store.Stats()
	n := max(calls.Load(), 1)
	f := Figures{Calls: calls.Load(), CPU: float64(used.Microseconds()) / float64(n), PerS: float64(n) / wall.Seconds(),
		Commits: after.Commits - stats.Commits, Writes: after.Writes - stats.Writes}
	if err := failed.Load(); err != nil {
		return f, *err
	}
	return f, nil
}

// effect is the ledger's share of one session's effect: dispatched before the
// first byte, settled after the answer.
func (r *rig) effect(ctx context.Context) error {
	c := &plane.Call{ID: plane.NewCallID(time.Now()), Run: "ses_bench", Agent: "general", Principal: "cli:local", Connection: r.conn.ID,
		Version: r.conn.Version, Server: "up", Tool: "echo", Alias: "mcp__up__echo", Class: plane.Effect, Target: "tool:echo"}
	if err := r.ledger.Begin(ctx, c); err != nil {
		return err
	}
	return r.ledger.Settle(ctx, c, plane.Settlement{Ending: plane.Ending{Answered: true}})
}
