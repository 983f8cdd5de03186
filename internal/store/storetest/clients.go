package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func clientsSignIn(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	c := plane.Client{ID: "clt_1", Name: "C", Redirects: []string{"http://127.0.0.1/cb", "https://c.example/cb"}, Auth: "none", Refreshes: true}
	write(t, s, func(tx plane.Tx) error { return s.AddClient(tx, &c, 1, clock.Now().Add(-time.Minute)) })
	other := plane.Client{ID: "clt_2", Redirects: []string{"https://d.example/cb"}}
	add := func() error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.AddClient(tx, &other, 1, clock.Now().Add(-time.Minute)) })
	}
	wantKind(t, add(), plane.Limited)
	got, err := s.Client(ctx, "clt_1")
	must(t, err)
	if len(got.Redirects) != 2 || !got.Refreshes || !got.UsedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	a := plane.Authorization{ID: "aut_1", Person: "p", Client: "clt_1", Name: "C", Host: "127.0.0.1", Print: "x", Path: "/mcp", Rights: plane.MCPRead, ExpiresAt: clock.Now().Add(time.Hour)}
	write(t, s, func(tx plane.Tx) error { return s.Authorize(tx, &a) })
	must(t, add()) // the first is in use, and waits for nobody
	again := a
	again.ID, again.Team, again.Rights = "aut_2", "pay", plane.MCPRead|plane.RunsWrite
	write(t, s, func(tx plane.Tx) error { return s.Authorize(tx, &again) })
	if again.ID != "aut_1" {
		t.Errorf("a person has two authorizations of one client: %s", again.ID)
	}
	n := plane.SignIn{ID: "sgn_1", Authorization: "aut_1", Client: "clt_1", Team: "pay", Rights: plane.MCPRead | plane.RunsWrite | plane.AdminRight, Challenge: "ch", Redirect: "http://127.0.0.1:1/cb", Refreshes: true, ExpiresAt: a.ExpiresAt}
	write(t, s, func(tx plane.Tx) error {
		return s.AddSignIn(tx, &n, plane.ClientToken{Hash: "code", SignIn: "sgn_1", Kind: plane.CodeToken, ExpiresAt: clock.Now().Add(time.Minute)})
	})
	onlyOne(t, s, "a code is spent", func(tx plane.Tx) (bool, error) { return s.RedeemSignIn(tx, "sgn_1") })
	write(t, s, func(tx plane.Tx) error {
		if err := s.AddClientToken(tx, plane.ClientToken{Hash: "acc", SignIn: "sgn_1", Kind: plane.AccessToken, ExpiresAt: clock.Now().Add(time.Minute)}); err != nil {
			return err
		}
		return s.AddClientToken(tx, plane.ClientToken{Hash: "ref", SignIn: "sgn_1", Kind: plane.RefreshToken, ExpiresAt: a.ExpiresAt})
	})
	k, err := s.AccessByHash(ctx, "acc")
	must(t, err)
	if k.Person != "p" || k.Path != "/mcp" || k.Team != "pay" || k.Rights != again.Rights || !k.RevokedAt.IsZero() || k.ID != "aut_1" {
		t.Errorf("%+v", k)
	}
	if _, err := s.AccessByHash(ctx, "ref"); plane.KindOf(err) != plane.NotFound {
		t.Errorf("a refresh token passes for an access token: %v", err)
	}
	onlyOne(t, s, "a sign-in goes on", func(tx plane.Tx) (bool, error) { return s.RotateSignIn(tx, "sgn_1", 0, []byte("sealed")) })
	write(t, s, func(tx plane.Tx) error {
		got, auth, token, err := s.SignInBy(tx, "ref", plane.RefreshToken)
		if err == nil && (got.Gen != 1 || string(got.Answer) != "sealed" || auth.ID != "aut_1" || token.Gen != 0 || got.RedeemedAt.IsZero()) {
			t.Errorf("%+v %+v %+v", got, auth, token)
		}
		return err
	})
	list, err := s.Authorizations(ctx, "p", clock.Now())
	must(t, err)
	none, err := s.Authorizations(ctx, "q", clock.Now())
	must(t, err)
	if len(list) != 1 || len(none) != 0 {
		t.Errorf("%v %v", list, none)
	}
	onlyOne(t, s, "it is taken back", func(tx plane.Tx) (bool, error) { return s.RevokeAuthorization(tx, "aut_1") })
	if k, err := s.AccessByHash(ctx, "acc"); err != nil || k.RevokedAt.IsZero() {
		t.Errorf("%+v %v", k, err)
	}
	clock.Pass(48 * time.Hour)
	must(t, s.SweepClients(ctx, clock.Now().Add(-24*time.Hour)))
	if _, err := s.AccessByHash(ctx, "acc"); plane.KindOf(err) != plane.NotFound {
		t.Errorf("what is over is kept: %v", err)
	}
	known := func(id string) bool { _, err := s.Client(ctx, id); return err == nil }
	if !known("clt_1") || known("clt_2") { // it does not notice that it is forgotten
		t.Error("a client that somebody let in is forgotten, or one that nobody did is kept")
	}
	clock.Pass(401 * 24 * time.Hour)
	must(t, s.SweepClients(ctx, clock.Now().Add(-24*time.Hour)))
	if known("clt_1") {
		t.Error("a client that nobody let in for a year is kept")
	}
}

// onlyOne has many do something that one may.
func onlyOne(t *testing.T, s *store.Store, what string, fn func(plane.Tx) (bool, error)) {
	t.Helper()
	var did atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			ok := false
			if err := s.Write(context.Background(), func(tx plane.Tx) (err error) { ok, err = fn(tx); return err }); err != nil {
				t.Error(err)
			}
			if ok {
				did.Add(1)
			}
		})
	}
	all.Wait()
	if did.Load() != 1 {
		t.Errorf("%s %d times", what, did.Load())
	}
}

func peopleAreShutOut(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	write(t, s, func(tx plane.Tx) error { _, err := s.Identify(tx, "i|ada", "ada@example.com", "Ada"); return err })
	w := plane.WebSession{Hash: "h", Person: "i|ada"}
	write(t, s, func(tx plane.Tx) error { return s.AddSession(tx, &w, clock.Now().Add(-time.Hour)) })
	a := plane.Authorization{ID: "aut_1", Person: "i|ada", Client: "c", Path: "/mcp", ExpiresAt: clock.Now().Add(time.Hour)}
	write(t, s, func(tx plane.Tx) error { return s.Authorize(tx, &a) })
	out := func(out bool) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.RevokePerson(tx, "i|ada", out) })
	}
	wantKind(t, out(false), plane.NotFound)
	must(t, out(true))
	wantKind(t, out(true), plane.NotFound)
	_, err := s.Session(ctx, "h")
	wantKind(t, err, plane.NotFound)
	_, err = s.AuthorizationOf(ctx, "i|ada", "c", "/mcp")
	wantKind(t, err, plane.NotFound)
	p, err := s.Person(ctx, "i|ada")
	must(t, err)
	all, err := s.People(ctx)
	must(t, err)
	if p.RevokedAt.IsZero() || len(all) != 1 || all[0].RevokedAt.IsZero() {
		t.Errorf("%+v %+v", p, all)
	}
	write(t, s, func(tx plane.Tx) error {
		p, err := s.Identify(tx, "i|ada", "ada@example.com", "Ada")
		if err == nil && p.RevokedAt.IsZero() {
			t.Error("signing in again lets them in")
		}
		return err
	})
	must(t, out(false))
	if p, err := s.Person(ctx, "i|ada"); err != nil || !p.RevokedAt.IsZero() {
		t.Errorf("%+v %v", p, err)
	}
}
