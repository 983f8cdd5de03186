package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/store"
	"patchbay/internal/upstream"
)

// noNetwork fails whoever asks a server.
type noNetwork struct{ tb testing.TB }

func (n noNetwork) List(context.Context, policy.Grant) (catalog.Listed, error) {
	n.tb.Error("a server was asked")
	return catalog.Listed{}, plane.Errorf(plane.Unavailable, "no network")
}

func (n noNetwork) Call(context.Context, policy.Grant, upstream.Request) (upstream.Result, plane.Ending, bool, error) {
	n.tb.Error("a server was called")
	return upstream.Result{}, plane.Ending{}, false, plane.Errorf(plane.Unavailable, "no network")
}

func (noNetwork) End(plane.SessionID) {}

func (n noNetwork) Subscribe(context.Context, policy.Grant, plane.SessionID, string, bool) error {
	n.tb.Error("a server was asked")
	return nil
}

// aTool is of the size of real ones.
func aTool(i int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"name":"do_thing_%d","description":"Does the thing number %d for whoever asks, with care, and tells what came of it in a few words.","inputSchema":{"type":"object","properties":{"id":{"type":"string","description":"Which one."},"limit":{"type":"integer","minimum":1,"maximum":100},"fields":{"type":"array","items":{"type":"string"}}},"required":["id"]},"annotations":{"readOnlyHint":true}}`, i, i))
}

// manyTools stores catalogs of n connections with m tools each.
func manyTools(tb testing.TB, path string, n, m int) []plane.Connection {
	tb.Helper()
	ctx := context.Background()
	st, err := store.Open(ctx, store.Options{Path: path})
	if err != nil {
		tb.Fatal(err)
	}
	defer st.Close()
	cats, err := catalog.Load(ctx, st, noNetwork{tb}, plane.SystemClock{}, plane.DefaultLimits())
	if err != nil {
		tb.Fatal(err)
	}
	var conns []plane.Connection
	for i := range n {
		conns = append(conns, plane.Connection{ID: plane.NewConnectionID(time.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: fmt.Sprintf("server-%d", i),
			Endpoint: fmt.Sprintf("https://s%d.example/mcp", i), Auth: plane.AuthNone, Enabled: true, Version: 1, State: plane.StateConnected, Origin: plane.Added})
	}
	snap := compiled(tb, conns)
	for _, g := range snap.Upkeep() {
		c := g.Connection()
		if err := st.Write(ctx, func(t plane.Tx) error { return st.SaveConnection(t, &c) }); err != nil {
			tb.Fatal(err)
		}
		var l catalog.Listed
		for j := range m {
			l.Tools = append(l.Tools, aTool(j))
		}
		if err := cats.Adopt(ctx, g, l); err != nil {
			tb.Fatal(err)
		}
	}
	return conns
}

func compiled(tb testing.TB, conns []plane.Connection) *policy.Snapshot {
	tb.Helper()
	snap, err := policy.Compile(policy.Rules{Connections: conns, Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true}}})
	if err != nil {
		tb.Fatal(err)
	}
	return snap
}

// An agent's offer of 100 connections with 100 tools each, from snapshots alone.
// "first" is after a start, "again" for every session after it, "changed" when one
// catalog is new.
func BenchmarkOffer(b *testing.B) {
	path := filepath.Join(b.TempDir(), "b.db")
	conns := manyTools(b, path, 100, 100)
	st, err := store.Open(b.Context(), store.Options{Path: path})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	cats, err := catalog.Load(b.Context(), st, noNetwork{b}, plane.SystemClock{}, plane.DefaultLimits())
	if err != nil {
		b.Fatal(err)
	}
	snap := compiled(b, conns)
	fresh := func() *bridge.Bridge {
		return &bridge.Bridge{Policy: func() *policy.Snapshot { return snap }, Catalogs: cats, Upstream: noNetwork{b}, Clock: plane.SystemClock{}, Limits: plane.DefaultLimits()}
	}
	open := func(b *testing.B, br *bridge.Bridge) {
		s, err := br.Open(b.Context(), bridge.Opening{Agent: "general", Principal: plane.Local, Dialect: bridge.DialectAnthropic})
		if err != nil || len(s.Tools()) != 40 {
			b.Fatal(err)
		}
		s.Close()
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			open(b, fresh())
		}
	})
	b.Run("again", func(b *testing.B) {
		br := fresh()
		open(b, br)
		b.ReportAllocs()
		for b.Loop() {
			open(b, br)
		}
	})
	b.Run("changed", func(b *testing.B) {
		br := fresh()
		open(b, br)
		g := snap.Upkeep()[0]
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			l := catalog.Listed{Tools: []json.RawMessage{aTool(i)}}
			for j := range 99 {
				l.Tools = append(l.Tools, aTool(1_000_000+j))
			}
			if err := cats.Adopt(b.Context(), g, l); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			open(b, br)
		}
	})
}

// Reading 10,000 stored tools at the start, and the memory they take.
func BenchmarkStartWith10000Tools(b *testing.B) {
	path := filepath.Join(b.TempDir(), "b.db")
	manyTools(b, path, 100, 100)
	if fi, err := os.Stat(path); err == nil {
		b.Logf("the file has %d MB", fi.Size()>>20)
	}
	var held uint64
	for b.Loop() {
		before := heap()
		st, err := store.Open(b.Context(), store.Options{Path: path})
		if err != nil {
			b.Fatal(err)
		}
		cats, err := catalog.Load(b.Context(), st, noNetwork{b}, plane.SystemClock{}, plane.DefaultLimits())
		if err != nil {
			b.Fatal(err)
		}
		held = heap() - before
		runtime.KeepAlive(cats)
		st.Close()
	}
	b.ReportMetric(float64(held)/1e6, "MB")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The offer of the benchmark asks no server; this runs with the other tests.
func TestAnOfferIsMadeOfSnapshots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.db")
	conns := manyTools(t, path, 20, 10)
	st, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cats, err := catalog.Load(t.Context(), st, noNetwork{t}, plane.SystemClock{}, plane.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	snap := compiled(t, conns)
	br := &bridge.Bridge{Policy: func() *policy.Snapshot { return snap }, Catalogs: cats, Upstream: noNetwork{t}, Clock: plane.SystemClock{}, Limits: plane.DefaultLimits()}
	for range 2 {
		s, err := br.Open(t.Context(), bridge.Opening{Agent: "general", Principal: plane.Local})
		if err != nil || len(s.Tools()) != 2 || s.Tools()[0].Alias != "tool_search" || s.Tools()[1].Alias != "tool_call" {
			t.Fatalf("%v", err)
		}
		n := 0
		for _, v := range s.Servers() {
			n += v.Tools
		}
		if tool, ok := s.Tool("mcp__server-19__do_thing_9"); n != 200 || !ok || tool.Server != "server-19" {
			t.Errorf("%d tools, %v", n, ok)
		}
		s.Close()
	}
}
