package ledger_test

import (
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/internal/ledger"
	"patchbay/internal/plane"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

// Design D7, row by row.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name string
		end  plane.Ending
		want ledger.Verdict
	}{
		{"answered", plane.Ending{Answered: true}, ledger.Answered},
		{"isError", plane.Ending{Answered: true, IsError: true}, ledger.Refused},
		{"refused dial", plane.Ending{NothingSent: true, Fault: plane.FaultTransport}, ledger.NothingRan},
		{"401", plane.Ending{Status: 401, Challenge: true}, ledger.NothingRan},
		{"403 challenge", plane.Ending{Status: 403, Challenge: true}, ledger.NothingRan},
		{"403", plane.Ending{Status: 403}, ledger.Refused},
		{"lost session, 404", plane.Ending{Status: 404, SessionLost: true}, ledger.NothingRan},
		{"lost session, 400", plane.Ending{Status: 400, SessionLost: true}, ledger.NothingRan},
		{"404 without a session", plane.Ending{Status: 404}, ledger.Refused},
		{"header mismatch", plane.Ending{Status: 400, HeaderMismatch: true}, ledger.NothingRan},
		{"unknown method", plane.Ending{RPC: true, RPCCode: -32601}, ledger.NothingRan},
		{"unknown method by 404", plane.Ending{Status: 404, RPC: true, RPCCode: -32601}, ledger.NothingRan},
		{"invalid params", plane.Ending{RPC: true, RPCCode: -32602}, ledger.Refused},
		{"405", plane.Ending{Status: 405}, ledger.Refused},
		{"413", plane.Ending{Status: 413}, ledger.Refused},
		{"429", plane.Ending{Status: 429}, ledger.Refused},
		{"another RPC error", plane.Ending{RPC: true, RPCCode: -32603}, ledger.Uncertain},
		{"500", plane.Ending{Status: 500}, ledger.Uncertain},
		{"503 session unknown", plane.Ending{Status: 503}, ledger.Uncertain},
		{"a redirect", plane.Ending{Status: 307}, ledger.Uncertain},
		{"time-out", plane.Ending{Fault: plane.FaultTimeout}, ledger.Uncertain},
		{"cut stream", plane.Ending{Fault: plane.FaultTransport}, ledger.Uncertain},
		{"over the cap", plane.Ending{Fault: plane.FaultTooLarge}, ledger.Uncertain},
		{"unreadable", plane.Ending{Fault: plane.FaultProtocol}, ledger.Uncertain},
		{"cancelled", plane.Ending{Fault: plane.FaultCancelled}, ledger.Uncertain},
		{"nothing known", plane.Ending{}, ledger.Uncertain},
	} {
		if got := ledger.Judge(c.end); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		effect, _ := ledger.Outcome(plane.Effect, c.end)
		query, _ := ledger.Outcome(plane.Query, c.end)
		unknown := c.want == ledger.Uncertain
		if (effect == plane.CallUnknown) != unknown || query == plane.CallUnknown {
			t.Errorf("%s: effect %s, query %s", c.name, effect, query)
		}
	}
}

// The machine, with every step that does not exist.
func TestNext(t *testing.T) {
	states := []plane.CallState{plane.CallPlanned, plane.CallAwaitingApproval, plane.CallAwaitingInput, plane.CallDispatched, plane.CallSucceeded, plane.CallFailed, plane.CallUnknown, plane.CallResolvedDone, plane.CallResolvedNotDone}
	events := []ledger.Event{ledger.EvDispatch, ledger.EvAsk, ledger.EvAwait, ledger.EvSucceed, ledger.EvFail, ledger.EvLoseTrack, ledger.EvResolveDone, ledger.EvResolveNotDone}
	want := map[string]plane.CallState{
		"planned dispatch": plane.CallDispatched, "planned fail": plane.CallFailed, "dispatched dispatch": plane.CallDispatched,
		"planned await_approval": plane.CallAwaitingApproval, "awaiting_approval dispatch": plane.CallDispatched, "awaiting_approval fail": plane.CallFailed,
		"dispatched ask": plane.CallAwaitingInput, "awaiting_input dispatch": plane.CallDispatched, "awaiting_input fail": plane.CallFailed, "awaiting_input lose_track": plane.CallUnknown,
		"dispatched succeed": plane.CallSucceeded, "dispatched fail": plane.CallFailed, "dispatched lose_track": plane.CallUnknown,
		"unknown resolve_done": plane.CallResolvedDone, "unknown resolve_not_done": plane.CallResolvedNotDone,
	}
	for _, s := range states {
		for _, e := range events {
			to, ok := ledger.Next(s, e)
			if w, exists := want[string(s)+" "+string(e)]; ok != exists || to != w {
				t.Errorf("%s %s: %s %v", s, e, to, ok)
			}
		}
	}
}

type rig struct {
	clock *storetest.Clock
	s     *store.Store
	l     *ledger.Ledger
	conn  plane.Connection
	run   plane.Run
}

func newRig(t testing.TB) *rig {
	t.Helper()
	clock := storetest.NewClock()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "l.db"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r := &rig{s: s, l: ledger.New(s, clock), clock: clock, conn: plane.Connection{ID: "con_a", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "a", Enabled: true, State: plane.StateConnected, Version: 1}}
	r.run = plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general"}
	err = s.Write(t.Context(), func(tx plane.Tx) error {
		if err := s.SaveConnection(tx, &r.conn); err != nil {
			return err
		}
		if err := s.InsertRun(tx, &r.run, []byte("p")); err != nil {
			return err
		}
		return s.ClaimRun(tx, r.run.ID, "me", tx.Now().Add(time.Hour))
	})
	if err != nil {
		t.Fatal(err)
	}
	r.run.Fence = 1
	return r
}

func (r *rig) call(class plane.Class, run bool) *plane.Call {
	c := &plane.Call{ID: plane.NewCallID(time.Now()), Run: "ses_x", Connection: "con_a", Version: 1, Class: class, Server: "a", Tool: "t", ToolUse: "u"}
	if run {
		c.Run, c.Fence = r.run.ID, r.run.Fence
	}
	return c
}

func (r *rig) stored(t testing.TB, id plane.CallID) plane.Call {
	t.Helper()
	c, err := r.s.CallByID(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// When Begin returns, an effect's dispatched row can be read by anybody.
func TestEffectIsDurableBeforeTheFirstByte(t *testing.T) {
	r := newRig(t)
	for _, run := range []bool{true, false} {
		c := r.call(plane.Effect, run)
		if run {
			if err := r.s.Write(t.Context(), func(tx plane.Tx) error { return r.l.Plan(tx, c, nil) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := r.stored(t, c.ID); got.State != plane.CallDispatched || got.Attempts != 1 {
			t.Errorf("own run %v: stored as %s with %d attempts", run, got.State, got.Attempts)
		}
	}
}

func TestASecondAttemptNeedsProof(t *testing.T) {
	r := newRig(t)
	lost := plane.Ending{Status: 404, SessionLost: true, Detail: "lost"}
	for _, run := range []bool{true, false} {
		c := r.call(plane.Effect, run)
		if run {
			if err := r.s.Write(t.Context(), func(tx plane.Tx) error { return r.l.Plan(tx, c, nil) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if again, err := r.l.Again(t.Context(), c, plane.Ending{Fault: plane.FaultTimeout}); again || err != nil {
			t.Fatalf("after a time-out: %v %v", again, err)
		}
		if again, err := r.l.Again(t.Context(), c, lost); !again || err != nil {
			t.Fatalf("after a lost session: %v %v", again, err)
		}
		if err := r.l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if again, err := r.l.Again(t.Context(), c, lost); again || err != nil {
			t.Fatalf("a third attempt: %v %v", again, err)
		}
		if err := r.l.Settle(t.Context(), c, plane.Settlement{Ending: lost, Observe: func(plane.Tx) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		if got := r.stored(t, c.ID); got.State != plane.CallFailed || got.Attempts != 2 {
			t.Errorf("own run %v: %+v", run, got)
		}
	}
}

// A server restart: the session is lost, and the new one cannot be opened. The
// attempt is closed by then, and the call must end all the same.
func TestACallEndsWhenItsSecondAttemptNeverBegins(t *testing.T) {
	r := newRig(t)
	for _, run := range []bool{true, false} {
		c := r.call(plane.Effect, run)
		if run {
			if err := r.s.Write(t.Context(), func(tx plane.Tx) error { return r.l.Plan(tx, c, nil) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if again, err := r.l.Again(t.Context(), c, plane.Ending{Status: 404, SessionLost: true}); !again || err != nil {
			t.Fatal(again, err)
		}
		if err := r.l.Settle(t.Context(), c, plane.Settlement{Ending: plane.Ending{NothingSent: true, Detail: "down"}, Observe: func(plane.Tx) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		if got := r.stored(t, c.ID); got.State != plane.CallFailed || got.Reason != "down" {
			t.Errorf("own run %v: %+v", run, got)
		}
	}
}

// What a session left in mid-air when its process died can be resolved, and is
// not sent again.
func TestSessionsAreRecovered(t *testing.T) {
	r := newRig(t)
	c := r.call(plane.Effect, false)
	if err := r.l.Begin(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := r.l.RecoverSessions(t.Context(), time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)); err != nil || r.stored(t, c.ID).State != plane.CallDispatched {
		t.Fatalf("one that may be under way was taken: %v", err)
	}
	if err := r.l.RecoverSessions(t.Context(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)); err != nil || r.stored(t, c.ID).State != plane.CallUnknown {
		t.Fatalf("%+v %v", r.stored(t, c.ID), err)
	}
	who := plane.Principal{ID: "ada"}
	if _, err := r.l.Resolve(t.Context(), who, c.ID, ledger.SendAgain, "", nil); plane.KindOf(err) != plane.Conflict {
		t.Errorf("a session's call sent again: %v", err)
	}
	if _, err := r.l.Resolve(t.Context(), who, c.ID, ledger.Done, "", nil); err != nil {
		t.Error(err)
	}
}

// A call that waited for input counts from its latest leg: one that was just sent is
// not taken for left behind because the call began long ago.
func TestALateLegIsUnderWay(t *testing.T) {
	for _, class := range []plane.Class{plane.Effect, plane.Query} {
		r := newRig(t)
		c := r.call(class, false)
		for _, step := range []func() error{
			func() error { return r.l.Begin(t.Context(), c) },
			func() error { return r.l.Wait(t.Context(), c) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		r.clock.Pass(10 * time.Minute)
		between := r.clock.Now()
		r.clock.Pass(time.Second)
		if err := r.l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := r.l.RecoverSessions(t.Context(), between); err != nil || r.stored(t, c.ID).State != plane.CallDispatched {
			t.Errorf("%s: %+v %v", class, r.stored(t, c.ID), err)
		}
		if err := r.l.Settle(t.Context(), c, plane.Settlement{Ending: plane.Ending{Answered: true}, Observe: func(plane.Tx) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		if got := r.stored(t, c.ID); got.State != plane.CallSucceeded || got.Attempts != 2 {
			t.Errorf("%s: %+v", class, got)
		}
	}
}

func TestRecoverAndResolve(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	plan := func(class plane.Class, begin bool) *plane.Call {
		c := r.call(class, true)
		if err := r.s.Write(ctx, func(tx plane.Tx) error { return r.l.Plan(tx, c, nil) }); err != nil {
			t.Fatal(err)
		}
		if begin {
			if err := r.l.Begin(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	effect, query, planned := plan(plane.Effect, true), plan(plane.Query, true), plan(plane.Effect, false)
	for range 2 { // a second recovery changes nothing
		calls, err := r.l.Recover(ctx, r.run.ID)
		if err != nil || len(calls) != 3 {
			t.Fatal(calls, err)
		}
	}
	if s := r.stored(t, effect.ID).State; s != plane.CallUnknown {
		t.Errorf("a dispatched effect became %s", s)
	}
	if s := r.stored(t, query.ID); s.State != plane.CallDispatched {
		t.Errorf("a dispatched query became %s", s.State)
	}
	again := r.stored(t, query.ID)
	again.Fence = r.run.Fence
	if err := r.l.Begin(ctx, &again); err != nil || again.Attempts != 2 {
		t.Errorf("a query after a crash: %v", err)
	}
	if s := r.stored(t, planned.ID).State; s != plane.CallPlanned {
		t.Errorf("a planned effect became %s", s)
	}
	who := plane.Principal{ID: "ada"}
	if _, err := r.l.Resolve(ctx, who, planned.ID, ledger.Done, "", nil); plane.KindOf(err) != plane.Conflict {
		t.Errorf("resolving what is not unknown: %v", err)
	}
	if _, err := r.l.Resolve(ctx, who, effect.ID, "perhaps", "", nil); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("a made-up outcome: %v", err)
	}
	next, err := r.l.Resolve(ctx, who, effect.ID, ledger.SendAgain, "looked: nothing there", nil)
	if err != nil || next == nil || next.State != plane.CallPlanned || next.Replaces != effect.ID || next.ToolUse != effect.ToolUse {
		t.Fatalf("%+v %v", next, err)
	}
	if got := r.stored(t, effect.ID); got.State != plane.CallResolvedNotDone || got.ResolvedBy != "ada" || got.Note == "" {
		t.Errorf("%+v", got)
	}
	if _, err := r.l.Resolve(ctx, who, effect.ID, ledger.Done, "", nil); plane.KindOf(err) != plane.Conflict {
		t.Errorf("resolved twice: %v", err)
	}
	if log, err := r.s.Audit(ctx, plane.AuditFilter{Limit: 10}); err != nil || len(log) != 2 || log[1].Decision != "unknown" || log[0].Decision != "send-again" {
		t.Errorf("audit: %+v %v", log, err)
	}
}

// Whatever happens to a call, in whatever order, it is dispatched at most twice,
// and a second time only after proof; what is final stays.
func TestCallMachineHolds(t *testing.T) {
	r := newRig(t)
	endings := []plane.Ending{{Answered: true}, {Answered: true, IsError: true}, {Status: 404, SessionLost: true}, {NothingSent: true, Fault: plane.FaultTransport},
		{Status: 500}, {Fault: plane.FaultTimeout}, {Status: 429}, {RPC: true, RPCCode: -32603}}
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom([]plane.Class{plane.Effect, plane.Query}).Draw(t, "class")
		c := r.call(class, true)
		if err := r.s.Write(t.Context(), func(tx plane.Tx) error { return r.l.Plan(tx, c, nil) }); err != nil {
			t.Fatal(err)
		}
		proof := true
		for i := range rapid.IntRange(1, 4).Draw(t, "steps") {
			if i > 0 && !proof {
				break
			}
			if err := r.l.Begin(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			end := rapid.SampledFrom(endings).Draw(t, "end")
			again, err := r.l.Again(t.Context(), c, end)
			if err != nil {
				t.Fatal(err)
			}
			if again && ledger.Judge(end) != ledger.NothingRan {
				t.Fatalf("sent again after %+v", end)
			}
			if proof = again; again {
				continue
			}
			if err := r.l.Settle(t.Context(), c, plane.Settlement{Ending: end, Observe: func(plane.Tx) error { return nil }}); err != nil {
				t.Fatal(err)
			}
		}
		if c.Attempts > ledger.MaxAttempts {
			t.Fatalf("%d attempts", c.Attempts)
		}
		got, err := r.s.CallByID(t.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != c.State || got.Attempts != c.Attempts {
			t.Fatalf("stored %s/%d, held %s/%d", got.State, got.Attempts, c.State, c.Attempts)
		}
		if got.State.Final() {
			if err := r.l.Begin(t.Context(), c); err == nil {
				t.Fatal("a settled call was dispatched")
			}
		}
	})
}

// full is a store that takes nothing more behind.
type full struct{ *store.Store }

func (full) WriteBehind(func(plane.Tx) error) error {
	return plane.Errorf(plane.Limited, "Too much waits to be written.")
}

// When more waits than the database takes, a caller waits for its own outcome: it
// is not lost, and no answered call is refused over it.
func TestAFullQueueLosesNoOutcome(t *testing.T) {
	r := newRig(t)
	l := ledger.New(full{r.s}, storetest.NewClock())
	for _, class := range []plane.Class{plane.Effect, plane.Query} {
		c := r.call(class, false)
		if err := l.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := l.Settle(t.Context(), c, plane.Settlement{Ending: plane.Ending{Answered: true}, Observe: nil}); err != nil {
			t.Fatal(err)
		}
		if got := r.stored(t, c.ID); got.State != plane.CallSucceeded {
			t.Errorf("%s: %+v", class, got)
		}
	}
}
