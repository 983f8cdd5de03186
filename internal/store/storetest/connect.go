package storetest

import (
	"context"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func addedConnection(t *testing.T, s *store.Store, slug string) plane.Connection {
	t.Helper()
	c := aConnection(slug)
	c.Origin, c.State, c.Agents = plane.Added, plane.StateAwaiting, []string{"general"}
	c.OAuth = plane.OAuthOptions{ClientID: "id", OmitResource: true}
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &c) })
	return c
}

func credentials(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := addedConnection(t, s, "a")
	put := func(blob string) {
		write(t, s, func(tx plane.Tx) error {
			return s.PutCredential(tx, &plane.Credential{Connection: conn.ID, Scope: conn.Scope, Blob: []byte(blob), ExpiresAt: clock.Now()})
		})
	}
	put("one")
	put("two")
	c, err := s.Credential(ctx, conn.ID)
	must(t, err)
	rev := c.Rev
	if rev < 2 || string(c.Blob) != "two" || c.Scope != conn.Scope || !c.ExpiresAt.Equal(clock.Now()) {
		t.Fatalf("%+v", c)
	}
	write(t, s, func(tx plane.Tx) error { return s.StartRefresh(tx, conn.ID, rev) })
	if c, _ = s.Credential(ctx, conn.ID); c.Started.IsZero() || c.Tries != 1 {
		t.Fatalf("%+v", c)
	}
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.StartRefresh(tx, conn.ID, 1) }), plane.Conflict)
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error {
		return s.SwapCredential(tx, &plane.Credential{Connection: conn.ID, Blob: []byte("stale")}, 1)
	}), plane.Conflict)
	write(t, s, func(tx plane.Tx) error {
		return s.SwapCredential(tx, &plane.Credential{Connection: conn.ID, Blob: []byte("three")}, rev)
	})
	if c, _ = s.Credential(ctx, conn.ID); c.Rev != rev+1 || string(c.Blob) != "three" || !c.Started.IsZero() || c.Tries != 0 {
		t.Fatalf("%+v", c)
	}
	write(t, s, func(tx plane.Tx) error { return s.DropCredential(tx, conn.ID) })
	clock.Pass(time.Second)
	put("another account")
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { // a refresh of the old one comes late
		return s.SwapCredential(tx, &plane.Credential{Connection: conn.ID, Blob: []byte("the first account")}, rev+1)
	}), plane.Conflict)
	before, err := s.Changes(ctx)
	must(t, err)
	write(t, s, func(tx plane.Tx) error {
		return s.SetConnectionState(tx, conn.ID, conn.Version, plane.StateAuthError, plane.ReasonRevoked)
	})
	got, err := s.ConnectionByID(ctx, conn.ID)
	must(t, err)
	if got.State != plane.StateAuthError || got.Reason != plane.ReasonRevoked || got.Version != conn.Version || got.Agents[0] != "general" || got.OAuth != conn.OAuth {
		t.Fatalf("%+v", got)
	}
	if after, _ := s.Changes(ctx); after.Connections == before.Connections {
		t.Error("the change cannot be noticed")
	}
	write(t, s, func(tx plane.Tx) error {
		return s.SetConnectionState(tx, conn.ID, conn.Version+1, plane.StateConnected, "")
	})
	if got, _ = s.ConnectionByID(ctx, conn.ID); got.State != plane.StateAuthError {
		t.Error("an older finding changed a newer version")
	}
	pinned := aConnection("a")
	pinned.ID, pinned.Origin = "con_pinned", plane.Pinned
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &pinned) }) // one name, pinned and added
	write(t, s, func(tx plane.Tx) error { return s.RemoveConnection(tx, conn.ID) })
	_, err = s.ConnectionByID(ctx, conn.ID)
	wantKind(t, err, plane.NotFound)
	_, err = s.Credential(ctx, conn.ID)
	wantKind(t, err, plane.NotFound)
	addedAgain := aConnection("a")
	addedAgain.ID, addedAgain.Origin = "con_again", plane.Added
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &addedAgain) })
}

func tickets(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := addedConnection(t, s, "a")
	ticket := func(hash string) plane.Ticket {
		return plane.Ticket{Hash: hash, ID: "tkt_" + hash, Connection: conn.ID, Version: 1, Kind: plane.AuthOAuth, Asker: "i|s", Email: "a@example.com",
			State: plane.TicketPending, ExpiresAt: clock.Now().Add(10 * time.Minute)}
	}
	one, two := ticket("h1"), ticket("h2")
	write(t, s, func(tx plane.Tx) error { return s.AddTicket(tx, &one) })
	was, err := s.Ticket(ctx, "h1")
	must(t, err)
	next := was
	next.State, next.OpenedBy, next.Pending = plane.TicketAuthorizing, "i|s", []byte{0, 1, 2}
	for i, want := range []bool{true, false} {
		write(t, s, func(tx plane.Tx) error {
			moved, err := s.MoveTicket(tx, &was, &next)
			if moved != want {
				t.Errorf("move %d: %v", i, moved)
			}
			return err
		})
	}
	was = next
	next.State, next.Pending, next.Outcome = plane.TicketCompleted, nil, plane.TicketOutcome{Tools: 3, Warning: "w"}
	write(t, s, func(tx plane.Tx) error { _, err := s.MoveTicket(tx, &was, &next); return err })
	got, err := s.Ticket(ctx, "h1")
	must(t, err)
	if got.State != plane.TicketCompleted || got.Outcome.Tools != 3 || len(got.Pending) != 0 || got.Email != "a@example.com" {
		t.Fatalf("%+v", got)
	}
	three := ticket("h3")
	write(t, s, func(tx plane.Tx) error { return s.AddTicket(tx, &two) })
	write(t, s, func(tx plane.Tx) error { return s.AddTicket(tx, &three) })
	if got, _ = s.Ticket(ctx, "h2"); got.State != plane.TicketCancelled || !got.Superseded {
		t.Errorf("a newer link left the old one: %+v", got)
	}
	if got, _ = s.Ticket(ctx, "h1"); got.State != plane.TicketCompleted {
		t.Errorf("a newer link changed a used one: %+v", got)
	}
	write(t, s, func(tx plane.Tx) error { return s.RemoveConnection(tx, conn.ID) })
	if got, _ = s.Ticket(ctx, "h3"); got.State != plane.TicketCancelled || got.Superseded {
		t.Errorf("the removed connection's link: %+v", got)
	}
	clock.Pass(time.Hour)
	write(t, s, func(tx plane.Tx) error { return s.SweepTickets(tx, clock.Now()) })
	_, err = s.Ticket(ctx, "h3")
	wantKind(t, err, plane.NotFound)
}

func people(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	who := func(subject, email string) (id string) {
		write(t, s, func(tx plane.Tx) error {
			p, err := s.Identify(tx, subject, email, "N")
			id = p.ID
			return err
		})
		return id
	}
	ada := who("i1|ada", "ada@example.com")
	if ada != "i1|ada" || who("i2|7", "ada@example.com") != ada || who("i2|7", "ada@example.com") != ada {
		t.Error("a verified address does not link two identities")
	}
	if who("i2|8", "") == ada || who("i2|9", "") == who("i2|8", "") {
		t.Error("identities without an address were linked")
	}
	p, err := s.Person(ctx, ada)
	must(t, err)
	if p.Email != "ada@example.com" {
		t.Errorf("%+v", p)
	}
	w := plane.WebSession{Hash: "h", Person: ada}
	write(t, s, func(tx plane.Tx) error { return s.AddSession(tx, &w, clock.Now().Add(-time.Hour)) })
	clock.Pass(2 * time.Hour)
	other := plane.WebSession{Hash: "h2", Person: ada}
	write(t, s, func(tx plane.Tx) error { return s.AddSession(tx, &other, clock.Now().Add(-time.Hour)) })
	_, err = s.Session(ctx, "h")
	wantKind(t, err, plane.NotFound)
	write(t, s, func(tx plane.Tx) error { return s.EndSession(tx, "h2") })
	k := plane.Token{ID: "tok_1", Hash: "th", Label: "l", Person: ada, Agent: "general", Team: "pay", Rights: plane.MCPRead | plane.AdminRight, CreatedBy: ada, ExpiresAt: clock.Now()}
	write(t, s, func(tx plane.Tx) error { return s.AddToken(tx, &k) })
	write(t, s, func(tx plane.Tx) error { return s.UseToken(tx, "tok_1") })
	write(t, s, func(tx plane.Tx) error { return s.RevokeToken(tx, "tok_1") })
	got, err := s.TokenByHash(ctx, "th")
	must(t, err)
	if got.Rights != k.Rights || got.UsedAt.IsZero() || got.RevokedAt.IsZero() || got.Agent != "general" {
		t.Errorf("%+v", got)
	}
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.RevokeToken(tx, "tok_1") }), plane.NotFound)
}

// sealed finds every blob of another key, page by page, and replaces only what
// is still as it was read.
func sealed(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	blob := func(key string) []byte { return []byte("\x01" + key + "rest of the blob") }
	r := plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general", Principal: "cli:local", Caller: plane.Local}
	write(t, s, func(tx plane.Tx) error {
		if err := s.InsertRun(tx, &r, blob("old-key-")); err != nil {
			return err
		}
		for i := 1; i <= 5; i++ {
			if err := s.AddMessage(tx, r.ID, i, blob("old-key-")); err != nil {
				return err
			}
		}
		return s.PutOAuthClient(tx, &plane.OAuthClient{Issuer: "https://as", Redirect: "https://gw/cb", Blob: blob("old-key-")})
	})
	for _, place := range store.SealedPlaces() {
		if _, err := s.SealedUnder(ctx, place); err != nil {
			t.Fatalf("%s: %v", place, err)
		}
	}
	n := 0
	for _, place := range []string{"message", "run.prompt", "client"} {
		after := plane.Sealed{Num: -1}
		for {
			found, err := s.SealedElsewhere(ctx, place, []byte("new-key-"), after, 2)
			must(t, err)
			if len(found) == 0 {
				break
			}
			for _, f := range found {
				n++
				write(t, s, func(tx plane.Tx) error { return s.ReplaceSealed(tx, f, blob("new-key-")) })
				write(t, s, func(tx plane.Tx) error { return s.ReplaceSealed(tx, f, blob("bad-key-")) }) // no longer as it was read
			}
			after = found[len(found)-1]
		}
		under, err := s.SealedUnder(ctx, place)
		must(t, err)
		if len(under) != 1 || under["new-key-"] == 0 {
			t.Errorf("%s: %v", place, under)
		}
	}
	if n != 7 {
		t.Errorf("%d blobs", n)
	}
}

// locks holds one holder at a time; on SQLite callers take turns by themselves.
func locks(t *testing.T, s *store.Store, _ *Clock) {
	h, err := s.Lock(context.Background(), "x")
	must(t, err)
	must(t, h.Check(context.Background()))
	if s.Kind() != "sqlite" {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		if _, err := s.Lock(ctx, "x"); err == nil {
			t.Error("two holders")
		}
		cancel()
		other, err := s.Lock(context.Background(), "y")
		must(t, err)
		other.Release()
	}
	h.Release()
	again, err := s.Lock(context.Background(), "x")
	must(t, err)
	again.Release()
}
