package app_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/connect"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
	"patchbay/internal/store"
)

// A credential that a person stored for another address is never shown to the old
// one, by whatever replica and however the old server asks for it.
func TestANewCredentialStaysOffTheOldServer(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	old, next := fake.NewMCP(t, fake.Tool("look", "")), fake.NewMCP(t, fake.Tool("look", ""))
	var leaked atomic.Int64
	var refuse atomic.Bool
	old.Guard(func(r *http.Request) (string, int) {
		if strings.Contains(r.Header.Get("Authorization"), "tok-new") {
			leaked.Add(1)
		}
		if refuse.Load() || r.Header.Get("Authorization") != "Bearer tok-old-1" {
			return "Bearer", http.StatusUnauthorized
		}
		return "", 0
	})
	next.RequireToken("tok-new-2")
	config := onPostgres(pg.URL, fmt.Sprintf("egress: {allow: [{to: %q, for: [\"agent:general/up\"]}, {to: %q, for: [\"agent:general/up\"]}]}\n", old.URL, next.URL))
	a, b := start(t, "", config), start(t, "", config)
	x := newSurfaces(t, a)
	body, code := x.overAPI("POST", "/api/agents/general/mcp/providers", fmt.Sprintf(`{"name":"Up","endpoint":%q,"token":"tok-old-1","new_account":true}`, old.Endpoint()))
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	within(t, 5*time.Second, "the account at B", func() bool { out, err := b.callOn("look"); return err == nil && !out.IsError })
	var p command.Provider
	mustJSON(t, body, &p)
	if body, code = x.overAPI("PUT", "/api/agents/general/mcp/providers/"+p.ID, fmt.Sprintf(`{"version":%d,"endpoint":%q,"token":"tok-new-2"}`, p.Version, next.Endpoint())); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	refuse.Store(true)
	for range 10 {
		old.Half.ListChanged()
		b.callOn("look")
		time.Sleep(100 * time.Millisecond)
	}
	if n := leaked.Load(); n != 0 {
		t.Errorf("the old server was shown the new credential %d times", n)
	}
	within(t, 5*time.Second, "the new address at B", func() bool { out, err := b.callOn("look"); return err == nil && !out.IsError })
}

// Replicas whose configs differ do not fence each other's addresses: a pinned
// connection serves nobody at the one that does not have what was pinned last.
func TestConfigsThatDiffer(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	old, next := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", "")), fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", ""))
	b := start(t, "", onPostgres(pg.URL, upConfig(old)))
	b.refresh("up")
	if out, err := b.callOn("change"); err != nil || out.IsError {
		t.Fatalf("%v %+v", err, out)
	}
	a := start(t, "", onPostgres(pg.URL, upConfig(next)))
	time.Sleep(1100 * time.Millisecond)
	before := len(old.Calls())
	for _, tool := range []string{"look", "change"} {
		if out, err := b.callOn(tool); err == nil && !out.IsError {
			t.Errorf("%s went out by the old config", tool)
		}
	}
	if out, err := a.callOn("change"); err != nil || out.IsError || len(old.Calls()) != before {
		t.Errorf("%v %+v, %d calls at the old address", err, out, len(old.Calls())-before)
	}
	c := start(t, "", onPostgres(pg.URL, "")) // it is in no config any more
	time.Sleep(1100 * time.Millisecond)
	before = len(next.Calls())
	if out, err := a.callOn("look"); err == nil && !out.IsError || len(next.Calls()) != before {
		t.Error("a connection that was taken out of the config was used")
	}
	c.stop()
}

// A database that stands still, without a word, makes no caller wait for long.
func TestADatabaseThatStandsStill(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", ""))
	gate := newProxy(t, pg.URL)
	s := start(t, "", onPostgres(gate.url, upConfig(m)))
	s.refresh("up")
	if out, err := s.callOn("change"); err != nil || out.IsError {
		t.Fatalf("%v %+v", err, out)
	}
	gate.hold.Store(true)
	time.Sleep(1200 * time.Millisecond)
	before := len(m.Calls())
	var wg sync.WaitGroup
	for _, tool := range []string{"look", "change", "look", "change"} {
		wg.Go(func() {
			began := time.Now()
			out, err := s.callOn(tool)
			if err == nil && !out.IsError || time.Since(began) > 8*time.Second {
				t.Errorf("%s: %v %+v after %v", tool, err, out, time.Since(began))
			}
		})
	}
	wg.Wait()
	if len(m.Calls()) != before {
		t.Error("something was sent")
	}
	gate.hold.Store(false)
	within(t, 20*time.Second, "calls again", func() bool { out, err := s.callOn("change"); return err == nil && !out.IsError })
}

// A server's notice is heard before anybody called a tool there.
func TestANoticeBeforeAnyCall(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", upConfig(m))
	s.refresh("up")
	time.Sleep(300 * time.Millisecond) // the subscription stands
	m.SetTools(fake.Tool("look", ""), fake.Tool("extra", ""))
	within(t, 5*time.Second, "the new tool", func() bool { return s.tool("up", "extra").Name != "" })
}

// Replicas that start together with a changed config all start.
func TestReplicasPinTogether(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	var wg sync.WaitGroup
	for round := range 3 {
		for range 4 {
			wg.Go(func() {
				st, err := store.Open(context.Background(), store.Options{URL: pg.URL})
				if err != nil {
					t.Error(err)
					return
				}
				defer st.Close()
				conns := connect.New(connect.Options{Store: st, Clock: plane.SystemClock{}})
				defer conns.Close()
				_, err = conns.Pin(context.Background(), []plane.Connection{{Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "up", Label: fmt.Sprint("label ", round),
					Endpoint: "https://x.example/mcp", Auth: plane.AuthNone, Enabled: true}})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// A connection that is removed while its catalog is stored leaves nothing behind,
// and nobody is refused over it.
func TestRemovingWhileReading(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	st, err := store.Open(t.Context(), store.Options{URL: pg.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for i := range 60 {
		c := plane.Connection{ID: plane.NewConnectionID(time.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: fmt.Sprint("c", i), Endpoint: "https://x.example/", Auth: plane.AuthNone,
			Enabled: true, Version: 1, Origin: plane.Added, State: plane.StateConnected}
		if err := st.Write(t.Context(), func(tx plane.Tx) error { return st.SaveConnection(tx, &c) }); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for r := range 3 {
			wg.Go(func() {
				cat := plane.Catalog{Connection: c.ID, Version: 1, Revision: int64(r + 1), Health: plane.HealthOK, CapturedAt: time.Now(),
					Definitions: []plane.Definition{{Raw: []byte(`{"name":"a"}`), Fingerprint: "f"}}}
				err := st.Write(context.Background(), func(tx plane.Tx) error { return st.SaveCatalog(tx, &cat, true) })
				if k := plane.KindOf(err); err != nil && k != plane.NotFound && k != plane.Conflict {
					t.Errorf("storing: %v", err)
				}
			})
		}
		wg.Go(func() {
			if err := st.Write(context.Background(), func(tx plane.Tx) error { return st.RemoveConnection(tx, c.ID) }); err != nil {
				t.Errorf("removing: %v", err)
			}
		})
		wg.Wait()
	}
	db, err := sql.Open("pgx", pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, table := range []string{"catalogs", "definitions"} {
		var n int
		if err := db.QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in %s (%v)", n, table, err)
		}
	}
}
