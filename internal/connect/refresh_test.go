package connect_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/fake"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

// rig is one connection signed in at a fake authorization server, seen by some
// replicas that share a database.
type rig struct {
	t        *testing.T
	clock    *storetest.Clock
	as       *fake.AS
	ring     *secret.Ring
	conn     plane.Connection
	stores   []*store.Store
	replicas []*connect.Connections
}

func ring(t *testing.T) *secret.Ring {
	t.Helper()
	r, err := secret.ParseRing(secret.GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newRig(t *testing.T, url string, n int) *rig {
	t.Helper()
	r := &rig{t: t, clock: storetest.NewClock(), ring: ring(t)}
	r.as = fake.NewAS(t, fake.NewMCP(t, fake.Tool("a", "")))
	path := filepath.Join(t.TempDir(), "p.db")
	for range n {
		o := store.Options{Clock: r.clock, Path: path}
		if url != "" {
			o = store.Options{Clock: r.clock, URL: url}
		}
		s, err := store.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		c := connect.New(connect.Options{Store: s, Ring: r.ring, Clock: r.clock, OAuth: r.oauth,
			Lock: func(ctx context.Context, name string) (connect.Lock, error) { return s.Lock(ctx, name) }})
		t.Cleanup(c.Close)
		r.stores, r.replicas = append(r.stores, s), append(r.replicas, c)
	}
	r.conn = plane.Connection{ID: plane.NewConnectionID(time.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: fmt.Sprintf("c%d", time.Now().UnixNano()), Endpoint: r.as.Resource,
		Auth: plane.AuthOAuth, Enabled: true, Version: 1, Origin: plane.Added, State: plane.StateConnected}
	access, refresh := r.as.Issue("c")
	srv := &oauth.Server{Issuer: r.as.URL, Token: r.as.URL + "/token", Revocation: r.as.URL + "/revoke", Resource: r.as.Resource}
	m := connect.SignedIn(oauth.Tokens{Access: secret.New(access), Refresh: secret.New(refresh), ExpiresAt: r.clock.Now().Add(time.Hour), Scope: "read offline_access"},
		oauth.Identity{ID: "c", Method: oauth.MethodNone}, srv, r.clock.Now())
	r.write(func(tx plane.Tx) error {
		if err := r.stores[0].SaveConnection(tx, &r.conn); err != nil {
			return err
		}
		return r.replicas[0].Put(tx, r.conn, m)
	})
	return r
}

func (r *rig) oauth(string) *oauth.Client {
	return &oauth.Client{Transport: http.DefaultTransport, Now: r.clock.Now, Check: func(string) error { return nil }, Timeout: 2 * time.Second}
}

func (r *rig) write(fn func(plane.Tx) error) {
	r.t.Helper()
	if err := r.stores[0].Write(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) lend(replica int) (*connect.Lease, error) {
	snap, err := policy.Compile(policy.Rules{Connections: []plane.Connection{r.conn}})
	if err != nil {
		r.t.Fatal(err)
	}
	g, denial := snap.Decide(plane.Local, policy.Discover, policy.Resource{Connection: r.conn.ID})
	if denial != nil {
		r.t.Fatal(denial.Reason)
	}
	return r.replicas[replica].Lend(context.Background(), g)
}

// shown is the Authorization header that a lease injects.
func shown(l *connect.Lease, endpoint string) string {
	req, _ := http.NewRequest("POST", endpoint, nil)
	if err := l.Inject(req); err != nil {
		return err.Error()
	}
	return req.Header.Get("Authorization")
}

func (r *rig) refreshes() int {
	n := 0
	for _, a := range r.as.Asked("/token") {
		if a.Form.Get("grant_type") == "refresh_token" {
			n++
		}
	}
	return n
}

func (r *rig) record() plane.Credential {
	r.t.Helper()
	c, err := r.stores[0].Credential(r.t.Context(), r.conn.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) state() string {
	r.t.Helper()
	c, err := r.stores[0].ConnectionByID(r.t.Context(), r.conn.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(c.State) + " " + c.Reason)
}

// Parallel refreshes of a rotating token by replicas with fifty runs each: one
// redemption, everybody goes on with what it brought, no family is revoked.
func TestOneRedemption(t *testing.T) {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for name, c := range map[string]struct {
		url      string
		replicas int
	}{"three replicas on PostgreSQL": {url, 3}, "one process on SQLite": {"", 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.url, c.replicas)
			r.as.SlowRefresh(200 * time.Millisecond)
			leases := make([]*connect.Lease, 0, c.replicas*50)
			for i := range c.replicas {
				for range 50 {
					l, err := r.lend(i)
					if err != nil {
						t.Fatal(err)
					}
					leases = append(leases, l)
				}
			}
			for round := 1; round <= 3; round++ {
				r.clock.Pass(2 * time.Hour)
				var wg sync.WaitGroup
				for _, l := range leases {
					wg.Go(func() {
						if err := l.Fresh(context.Background()); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if n := r.refreshes(); n != round {
					t.Fatalf("%d redemptions after %d rounds", n, round)
				}
				for _, l := range leases {
					if shown(l, r.conn.Endpoint) != shown(leases[0], r.conn.Endpoint) {
						t.Fatal("two leases show two tokens")
					}
				}
			}
			if r.as.MostAtOnce() != 1 || r.as.Revoked() {
				t.Errorf("%d at once, revoked %v", r.as.MostAtOnce(), r.as.Revoked())
			}
		})
	}
}

// What a refresh may be answered with that is no refusal: nothing is wiped, the
// connection stays connected, and a later refresh works.
func TestAFailedRefreshWipesNothing(t *testing.T) {
	hijack := func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"invalid_scope": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			w.Write([]byte(`{"error":"invalid_scope"}`))
		},
		"a JWT of the past": func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(`{"access_token":"h.eyJleHAiOjF9.s","token_type":"Bearer","expires_in":-1}`))
		},
		"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Write([]byte("<html>"))
		},
		"429": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
		"a life of zero": func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(`{"access_token":"x","token_type":"Bearer","expires_in":0}`))
		},
		"a reset":           hijack,
		"no answer in time": func(w http.ResponseWriter, r *http.Request) { time.Sleep(2500 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "", 1)
			l, err := r.lend(0)
			if err != nil {
				t.Fatal(err)
			}
			before := r.record()
			r.as.Override("/token", answer)
			r.clock.Pass(2 * time.Hour)
			if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unavailable {
				t.Fatalf("%v", err)
			}
			if now := r.record(); now.Rev != before.Rev || string(now.Blob) != string(before.Blob) || r.state() != "connected" {
				t.Fatalf("rev %d, was %d; %s", now.Rev, before.Rev, r.state())
			}
			n := len(r.as.Asked("/token"))
			if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unavailable || len(r.as.Asked("/token")) != n {
				t.Errorf("asked again at once: %v", err)
			}
			r.as.Override("/token", nil)
			r.clock.Pass(2 * time.Minute)
			if err := l.Fresh(t.Context()); err != nil || r.state() != "connected" {
				t.Errorf("later: %v, %s", err, r.state())
			}
		})
	}
}

// Ahead of the expiry the old token serves on while the new one is fetched.
func TestARefreshAheadWaitsForNobody(t *testing.T) {
	r := newRig(t, "", 1)
	l, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	old := shown(l, r.conn.Endpoint)
	r.as.SlowRefresh(300 * time.Millisecond)
	r.clock.Pass(time.Hour - 10*time.Second)
	began := time.Now()
	if err := l.Fresh(t.Context()); err != nil || shown(l, r.conn.Endpoint) != old || time.Since(began) > 250*time.Millisecond {
		t.Fatalf("%v after %s", err, time.Since(began))
	}
	for end := time.Now().Add(5 * time.Second); shown(l, r.conn.Endpoint) == old; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was never renewed")
		}
	}
	if found := l.Redactor().Found([]byte("it says " + strings.TrimPrefix(old, "Bearer "))); !found {
		t.Error("the token before is no longer searched for, and an answer under way may hold it")
	}
}

// A refresh that whoever began it never ended: while the access token works
// nothing is risked; then the token is presented once more, and no third time.
func TestACrashedRefresh(t *testing.T) {
	r := newRig(t, "", 1)
	r.write(func(tx plane.Tx) error { return r.stores[0].StartRefresh(tx, r.conn.ID, r.record().Rev) })
	l, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	r.clock.Pass(time.Hour - time.Second)
	if err := l.Fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if n := r.refreshes(); n != 0 {
		t.Fatalf("presented %d times while the access token worked", n)
	}
	r.as.Override("/token", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
	})
	r.clock.Pass(time.Minute)
	if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unavailable || r.refreshes() != 1 {
		t.Fatalf("%v, presented %d times", err, r.refreshes())
	}
	r.clock.Pass(10 * time.Minute)
	if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unauthenticated || r.refreshes() != 1 || r.state() != "auth_error uncertain" {
		t.Errorf("%v, presented %d times, %s", err, r.refreshes(), r.state())
	}
}

func TestAWithdrawnGrant(t *testing.T) {
	r := newRig(t, "", 1)
	l, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	before := r.record()
	r.as.Withdraw()
	r.clock.Pass(2 * time.Hour)
	if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unauthenticated || r.state() != "auth_error revoked" {
		t.Errorf("%v, %s", err, r.state())
	}
	if now := r.record(); now.Rev != before.Rev || string(now.Blob) != string(before.Blob) {
		t.Error("the set was replaced")
	}
}

// A set whose life cannot be right spoils nothing.
func TestAnOddLifetime(t *testing.T) {
	r := newRig(t, "", 1)
	l, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	r.as.Override("/token", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"access_token":"h.eyJleHAiOjF9.s","token_type":"Bearer"}`))
	})
	r.clock.Pass(2 * time.Hour)
	if err := l.Fresh(t.Context()); err != nil || shown(l, r.conn.Endpoint) != "Bearer h.eyJleHAiOjF9.s" || r.state() != "connected" {
		t.Errorf("%v %s", err, r.state())
	}
}

// A server that no longer knows our client is told apart from a withdrawn grant.
func TestAForgottenClientAtARefresh(t *testing.T) {
	r := newRig(t, "", 1)
	l, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	r.write(func(tx plane.Tx) error {
		return r.stores[0].PutOAuthClient(tx, &plane.OAuthClient{Issuer: r.as.URL, Redirect: "x", Blob: []byte("y")})
	})
	r.as.Forget()
	r.clock.Pass(2 * time.Hour)
	if err := l.Fresh(t.Context()); plane.KindOf(err) != plane.Unauthenticated || r.state() != "auth_error unknown_us" {
		t.Errorf("%v %s", err, r.state())
	}
	if _, err := r.stores[0].OAuthClient(t.Context(), r.as.URL, "x"); plane.KindOf(err) != plane.NotFound {
		t.Errorf("the dead registration is kept: %v", err)
	}
}

// A key that is gone is told for exactly the connections it sealed.
func TestAMissingKey(t *testing.T) {
	r := newRig(t, "", 1)
	r.ring.Replace(ring(t))
	if _, err := r.lend(0); plane.KindOf(err) != plane.Unauthenticated || r.state() != "auth_error key_missing" {
		t.Errorf("%v, %s", err, r.state())
	}
}

// A 401 is answered by the set of another replica, where there is one, before
// any token is presented.
func TestARejectedTokenIsReadAgainFirst(t *testing.T) {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	r := newRig(t, url, 2)
	a, err := r.lend(0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.lend(1)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Rejected(t.Context(), connect.Rejection{Status: 401, Since: r.clock.Now()}) || r.refreshes() != 1 {
		t.Fatalf("%d refreshes", r.refreshes())
	}
	if !b.Rejected(t.Context(), connect.Rejection{Status: 401, Since: r.clock.Now()}) || r.refreshes() != 1 || shown(a, r.conn.Endpoint) != shown(b, r.conn.Endpoint) {
		t.Errorf("%d refreshes", r.refreshes())
	}
	// A fresh token that is refused as well is the end of it.
	if a.Rejected(t.Context(), connect.Rejection{Status: 401, Since: r.clock.Now().Add(time.Second)}) || r.refreshes() != 1 || r.state() != "auth_error rejected" {
		t.Errorf("%d refreshes, %s", r.refreshes(), r.state())
	}
}

// A revocation that the server does not take now is owed, refresh token first.
func TestRevocationsAreOwed(t *testing.T) {
	r := newRig(t, "", 1)
	r.as.Override("/revoke", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	r.write(func(tx plane.Tx) error { return r.replicas[0].Owe(tx, r.conn, r.record()) })
	if err := r.replicas[0].RevokeDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.as.Asked("/revoke"); len(got) != 2 || got[0].Form.Get("token_type_hint") != "refresh_token" {
		t.Fatalf("%v", got)
	}
	r.as.Override("/revoke", nil)
	if err := r.replicas[0].RevokeDue(t.Context()); err != nil || len(r.as.Asked("/revoke")) != 2 {
		t.Fatalf("tried again at once: %v", err)
	}
	r.clock.Pass(5 * time.Minute)
	for range 2 {
		if err := r.replicas[0].RevokeDue(t.Context()); err != nil || len(r.as.Asked("/revoke")) != 4 {
			t.Fatalf("%v, asked %d times", err, len(r.as.Asked("/revoke")))
		}
	}
}

// When many tokens end in one moment, one authorization server is asked by a few
// at once (F074).
func TestRefreshesAtOneServerAreBounded(t *testing.T) {
	r := newRig(t, "", 1)
	r.as.SlowRefresh(30 * time.Millisecond)
	leases := []*connect.Lease{}
	for i := range 16 {
		access, refresh := r.as.Issue("c")
		r.conn.ID, r.conn.Slug = plane.NewConnectionID(time.Now()), fmt.Sprintf("many%d", i)
		m := connect.SignedIn(oauth.Tokens{Access: secret.New(access), Refresh: secret.New(refresh), ExpiresAt: r.clock.Now().Add(time.Hour), Scope: "read"},
			oauth.Identity{ID: "c", Method: oauth.MethodNone}, &oauth.Server{Issuer: r.as.URL, Token: r.as.URL + "/token", Resource: r.as.Resource}, r.clock.Now())
		r.write(func(tx plane.Tx) error {
			if err := r.stores[0].SaveConnection(tx, &r.conn); err != nil {
				return err
			}
			return r.replicas[0].Put(tx, r.conn, m)
		})
		l, err := r.lend(0)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	r.clock.Pass(2 * time.Hour)
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() {
			if err := l.Fresh(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.as.MostAtOnce(); n < 2 || n > 4 || r.refreshes() != 16 {
		t.Errorf("%d at once, %d in all", n, r.refreshes())
	}
}
