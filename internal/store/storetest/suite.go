package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

// Clock is a clock that a test moves.
type Clock struct {
	mu sync.Mutex
	t  time.Time
}

// NewClock starts at a fixed time.
func NewClock() *Clock { return &Clock{t: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)} }

// Now returns the test's time.
func (c *Clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

// Pass moves it on.
func (c *Clock) Pass(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.t = c.t.Add(d) }

// Exercise is the behaviour that every database must show. open gives a fresh,
// empty store over the clock each time.
func Exercise(t *testing.T, open func(t *testing.T, clock plane.Clock) *store.Store) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s *store.Store, clock *Clock)
	}{
		{"write is all or nothing", writeAllOrNothing},
		{"one failing closure spares the others", failureSpares},
		{"a panicking closure spares the writer", panicSpares},
		{"write behind", writeBehind},
		{"meta", meta},
		{"connections", connections},
		{"catalogs keep bytes", catalogs},
		{"reviews", reviews},
		{"refreshes are claimed by one", refreshes},
		{"pins, extras and changes", pins},
		{"an older program refuses", minBinary},
		{"one account is known by its address", slots},
		{"a call's dispatch stands on version, enablement and fence", dispatchStands},
		{"a call moves by compare and swap", callMoves},
		{"attempts", attempts},
		{"runs are claimed by one", claims},
		{"a former holder cannot write", fenced},
		{"cancel", cancels},
		{"events and messages", eventsMessages},
		{"results", results},
		{"audit", audit},
		{"credentials and the states of a connection", credentials},
		{"a ticket moves by compare and swap", tickets},
		{"people, sessions and tokens", people},
		{"clients sign in", clientsSignIn},
		{"people are shut out", peopleAreShutOut},
		{"chat work is held by one and cards are good once", chat},
		{"sealed blobs", sealed},
		{"locks", locks},
		{"a bare name keeps its tool", bareNames},
		{"ended sessions", endedSessions},
		{"replicas that are there", advertised},
		{"targets are held", targetsAreHeld},
		{"an approval is spent once", approvalsAreSpentOnce},
		{"evidence is reserved and observed", evidenceIsReserved},
		{"memories are found", memoriesAreFound},
		{"lanes are sealed and cut", lanesAreSealed},
		{"calls are folded into one entry", callsAreFolded},
		{"declarations move", declarationsMove},
		{"settings, destinations, secrets and repositories keep", settingsKeep},
		{"a mirror keeps", mirrorKeeps},
		{"the gateway keeps", egressKeeps},
		{"calls are counted", callsAreCounted},
		{"runs are listed", runsAreListed},
		{"records are swept", recordsAreSwept},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := NewClock()
			s := open(t, clock)
			c.run(t, s, clock)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, s *store.Store, fn func(plane.Tx) error) {
	t.Helper()
	must(t, s.Write(context.Background(), fn))
}

func wantKind(t *testing.T, err error, k plane.Kind) {
	t.Helper()
	if plane.KindOf(err) != k {
		t.Fatalf("got %v (%s), want %s", err, plane.KindOf(err), k)
	}
}

func getMeta(t *testing.T, s *store.Store, key string) string {
	t.Helper()
	v, err := s.Meta(context.Background(), key)
	must(t, err)
	return v
}

func writeAllOrNothing(t *testing.T, s *store.Store, _ *Clock) {
	boom := errors.New("boom")
	err := s.Write(context.Background(), func(tx plane.Tx) error {
		must(t, s.SetMeta(tx, "a", "1"))
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("the closure's error is lost: %v", err)
	}
	if v := getMeta(t, s, "a"); v != "" {
		t.Fatalf("half written: %q", v)
	}
}

func failureSpares(t *testing.T, s *store.Store, _ *Clock) {
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			err := s.Write(context.Background(), func(tx plane.Tx) error {
				if err := s.SetMeta(tx, fmt.Sprint("k", i), "v"); err != nil {
					return err
				}
				if i%3 == 0 {
					return errors.New("no")
				}
				return nil
			})
			if (err != nil) != (i%3 == 0) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range 64 {
		if v := getMeta(t, s, fmt.Sprint("k", i)); (v == "v") != (i%3 != 0) {
			t.Errorf("%d: %q", i, v)
		}
	}
}

func panicSpares(t *testing.T, s *store.Store, _ *Clock) {
	if err := s.Write(context.Background(), func(plane.Tx) error { panic("ouch") }); err == nil {
		t.Fatal("no error")
	}
	write(t, s, func(tx plane.Tx) error { return s.SetMeta(tx, "after", "fine") })
	if v := getMeta(t, s, "after"); v != "fine" {
		t.Fatal(v)
	}
}

func writeBehind(t *testing.T, s *store.Store, _ *Clock) {
	for i := range 50 {
		must(t, s.WriteBehind(func(tx plane.Tx) error { return s.SetMeta(tx, fmt.Sprint("b", i), "v") }))
	}
	must(t, s.WriteBehind(func(plane.Tx) error { return plane.Errorf(plane.Conflict, "one is bad") }))
	for end := time.Now().Add(5 * time.Second); getMeta(t, s, "b49") == ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never written")
		}
	}
	// It may stand in the next batch, and is told after its batch can be read.
	for end := time.Now().Add(5 * time.Second); s.LostBehind() == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the failure is not told")
		}
	}
	if s.LostBehind() != nil {
		t.Error("the failure is told twice")
	}
}

func meta(t *testing.T, s *store.Store, _ *Clock) {
	write(t, s, func(tx plane.Tx) error { return s.SetMeta(tx, "k", "one") })
	write(t, s, func(tx plane.Tx) error { return s.SetMeta(tx, "k", "two") })
	if v := getMeta(t, s, "k"); v != "two" {
		t.Fatal(v)
	}
}

func aConnection(slug string) plane.Connection {
	return plane.Connection{ID: plane.ConnectionID("con_" + slug), Scope: plane.Scope{Kind: plane.ScopeTeam, Name: "pay:ments"}, Slug: slug, State: plane.StateConnected, Label: "L " + slug,
		Endpoint: "https://x.example/mcp", Auth: plane.AuthBearer, Enabled: true, Version: 1, Digest: "d"}
}

func connections(t *testing.T, s *store.Store, _ *Clock) {
	c := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &c) })
	got, err := s.Connections(context.Background())
	must(t, err)
	c.TokenEnv, c.Agents, c.CreatedAt = "", nil, got[0].CreatedAt
	if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(c) {
		t.Fatalf("%+v\nwant %+v", got, c)
	}
	c.Version, c.Enabled = 2, false
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &c) })
	wantKind(t, s.Write(context.Background(), func(tx plane.Tx) error { return s.SaveConnection(tx, &c) }), plane.Conflict) // the version does not rise
	twin := aConnection("a")
	twin.ID = "con_other"
	wantKind(t, s.Write(context.Background(), func(tx plane.Tx) error { return s.SaveConnection(tx, &twin) }), plane.Conflict)
}

func catalogs(t *testing.T, s *store.Store, clock *Clock) {
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	raw := []byte("{\"name\":\"z\", \"n\":12345678901234567890,\n \"a\":\"\\u00e9\"}")
	c := plane.Catalog{Connection: "con_a", Version: 3, Revision: 1, Health: plane.HealthOK, Detail: "d", CapturedAt: clock.Now(), Instructions: "i", Server: "s 1",
		Definitions: []plane.Definition{{Raw: raw, Fingerprint: "f1"}, {Raw: []byte(`{"name":"y"}`), Fingerprint: "f2"}}}
	write(t, s, func(tx plane.Tx) error { return s.SaveCatalog(tx, &c, true) })
	got, err := s.Catalogs(context.Background())
	must(t, err)
	if len(got) != 1 || len(got[0].Definitions) != 2 || string(got[0].Definitions[0].Raw) != string(raw) || got[0].Definitions[1].Class != plane.Effect ||
		!got[0].CapturedAt.Equal(c.CapturedAt) || !got[0].FailedAt.IsZero() {
		t.Fatalf("%+v", got)
	}
	wantKind(t, s.Write(context.Background(), func(tx plane.Tx) error { return s.SaveCatalog(tx, &c, true) }), plane.Conflict)
	c.Revision, c.Health, c.Definitions = 2, plane.HealthUnavailable, nil
	write(t, s, func(tx plane.Tx) error { return s.SaveCatalog(tx, &c, false) }) // health alone keeps the definitions
	if got, err = s.Catalogs(context.Background()); err != nil || len(got[0].Definitions) != 2 || got[0].Health != plane.HealthUnavailable {
		t.Fatalf("%+v %v", got, err)
	}
}

// reviews stand by name and show at the definition they were given to.
func reviews(t *testing.T, s *store.Store, clock *Clock) {
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	c := plane.Catalog{Connection: "con_a", Version: 1, Revision: 1, Health: plane.HealthOK,
		Definitions: []plane.Definition{{Raw: []byte(`{"name":"x"}`), Fingerprint: "f1"}, {Raw: []byte(`{"name":"y"}`), Fingerprint: "f2"}, {Raw: []byte(`{"name":"z"}`), Fingerprint: "f3"}}}
	put := func(name, fp string, class plane.Class) {
		write(t, s, func(tx plane.Tx) error {
			return s.PutReview(tx, &plane.Review{Connection: "con_a", Name: name, Fingerprint: fp, Class: class, By: "ada"})
		})
	}
	write(t, s, func(tx plane.Tx) error { return s.SaveCatalog(tx, &c, true) })
	put("x", "f0", plane.Query)
	put("x", "f1", plane.Query)
	put("y", "an older one", plane.Query)
	put("z", "f3", "no such class")
	got, err := s.Reviews(context.Background(), "con_a")
	must(t, err)
	if len(got) != 3 || got[0] != (plane.Review{Connection: "con_a", Name: "x", Fingerprint: "f1", Class: plane.Query, By: "ada", At: got[0].At}) ||
		got[2].Class != plane.Effect || !got[0].At.Equal(clock.Now().Truncate(time.Microsecond)) {
		t.Fatalf("%+v", got)
	}
	cats, err := s.Catalogs(context.Background())
	must(t, err)
	for i, want := range []plane.Definition{{Class: plane.Query, Reviewed: true}, {Class: plane.Effect}, {Class: plane.Effect, Reviewed: true}} {
		if d := cats[0].Definitions[i]; d.Class != want.Class || d.Reviewed != want.Reviewed {
			t.Errorf("%d: %+v", i, d)
		}
	}
	write(t, s, func(tx plane.Tx) error {
		return s.DropReview(tx, &plane.Review{Connection: "con_a", Name: "x", Fingerprint: "f0"})
	})
	write(t, s, func(tx plane.Tx) error { return s.DropReview(tx, &got[1]) })
	if got, err = s.Reviews(context.Background(), "con_a"); err != nil || len(got) != 2 || got[0].Name != "x" {
		t.Fatalf("what another review says was dropped: %+v %v", got, err)
	}
	if other, err := s.Reviews(context.Background(), "con_b"); err != nil || len(other) != 0 {
		t.Fatalf("%+v %v", other, err)
	}
}

// aRun inserts and claims a run; it returns it with its fence.
func aRun(t *testing.T, s *store.Store, clock *Clock) plane.Run {
	t.Helper()
	r := plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general", Principal: "cli:local"}
	write(t, s, func(tx plane.Tx) error { return s.InsertRun(tx, &r, []byte("sealed")) })
	write(t, s, func(tx plane.Tx) error { return s.ClaimRun(tx, r.ID, "me", tx.Now().Add(time.Minute)) })
	v, err := s.RunByID(context.Background(), r.ID)
	must(t, err)
	return v.Run
}

func aCall(r plane.Run, conn plane.Connection, clock *Clock) plane.Call {
	return plane.Call{ID: plane.NewCallID(clock.Now()), Run: r.ID, Agent: "general", Principal: "cli:local", Connection: conn.ID, Version: conn.Version,
		Server: "a", Tool: "t", Alias: "mcp__a__t", ToolUse: "u", Fingerprint: "f", Class: plane.Effect, ArgsDigest: "x", State: plane.CallPlanned,
		PlannedAt: clock.Now(), Fence: r.Fence}
}

func dispatchStands(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	run := aRun(t, s, clock)
	dispatch := func(c plane.Call) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.Dispatch(tx, &c, c.Attempts+1) })
	}
	plan := func() plane.Call {
		c := aCall(run, conn, clock)
		write(t, s, func(tx plane.Tx) error { return s.InsertCall(tx, &c) })
		return c
	}
	ok := plan()
	must(t, dispatch(ok))
	wantKind(t, dispatch(ok), plane.Conflict) // the first attempt is taken
	ok.Attempts = 1
	wantKind(t, dispatch(ok), plane.Conflict) // nothing proves that the first did nothing
	write(t, s, func(tx plane.Tx) error {
		return s.EndAttempt(tx, plane.Attempt{Call: ok.ID, N: 1, Outcome: "nothing_ran"})
	})
	must(t, dispatch(ok))
	old := plan()
	old.Version = 0
	wantKind(t, dispatch(old), plane.Conflict)
	stolen := plan()
	stolen.Fence++ // somebody else claimed the run
	wantKind(t, dispatch(stolen), plane.Conflict)
	// A session's call has no run behind it, but a connection all the same.
	free := aCall(plane.Run{ID: "ses_x"}, conn, clock)
	free.State, free.Attempts = plane.CallDispatched, 1
	write(t, s, func(tx plane.Tx) error { return s.InsertDispatched(tx, &free) })
	off := conn
	off.Version, off.Enabled = 2, false
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &off) })
	late := plan()
	wantKind(t, dispatch(late), plane.Conflict)
	late.Version = 2
	wantKind(t, dispatch(late), plane.Conflict) // turned off
	broken := off
	broken.Version, broken.Enabled, broken.State = 3, true, plane.StateAuthError
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &broken) })
	late.Version = 3
	wantKind(t, dispatch(late), plane.Conflict) // its credential does not work
	free.ID, free.Version = plane.NewCallID(clock.Now()), 2
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.InsertDispatched(tx, &free) }), plane.Conflict)
	got, err := s.CallByID(ctx, late.ID)
	must(t, err)
	if got.State != plane.CallPlanned || got.Attempts != 0 {
		t.Fatalf("a refused dispatch left %+v", got)
	}
}

func callMoves(t *testing.T, s *store.Store, clock *Clock) {
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	c := aCall(aRun(t, s, clock), conn, clock)
	write(t, s, func(tx plane.Tx) error { return s.InsertCall(tx, &c) })
	wantKind(t, s.Write(context.Background(), func(tx plane.Tx) error { return s.InsertCall(tx, &c) }), plane.Internal) // one id, one row
	c.State, c.Reason, c.DoneAt, c.Bytes = plane.CallFailed, "why", clock.Now(), 7
	var won int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if s.Write(context.Background(), func(tx plane.Tx) error { return s.MoveCall(tx, &c, plane.CallPlanned) }) == nil {
				mu.Lock()
				won++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got, err := s.CallByID(context.Background(), c.ID)
	must(t, err)
	if won != 1 || fmt.Sprint(got) != fmt.Sprint(c) {
		t.Fatalf("%d winners, %+v", won, got)
	}
	_, err = s.CallByID(context.Background(), "cal_none")
	wantKind(t, err, plane.NotFound)
}

func attempts(t *testing.T, s *store.Store, clock *Clock) {
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	run := aRun(t, s, clock)
	c := aCall(run, conn, clock)
	write(t, s, func(tx plane.Tx) error { return s.InsertCall(tx, &c) })
	write(t, s, func(tx plane.Tx) error { return s.Dispatch(tx, &c, 1) })
	end := plane.Attempt{Call: c.ID, N: 1, Outcome: "uncertain", Detail: "d"}
	write(t, s, func(tx plane.Tx) error { return s.EndAttempt(tx, end) })
	wantKind(t, s.Write(context.Background(), func(tx plane.Tx) error { return s.EndAttempt(tx, end) }), plane.Conflict)
	got, err := s.AttemptsOfRun(context.Background(), run.ID)
	must(t, err)
	if len(got) != 1 || got[0].Outcome != "uncertain" || got[0].DoneAt.IsZero() {
		t.Fatalf("%+v", got)
	}
}
