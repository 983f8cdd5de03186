package ledger_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/internal/ledger"
	"patchbay/internal/plane"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

// legal are the edges of design §7, written down apart from the ledger's own table.
// A call that has no row yet is "".
var legal = map[plane.CallState][]plane.CallState{
	"":                         {plane.CallPlanned, plane.CallDispatched, plane.CallAwaitingApproval, plane.CallSucceeded, plane.CallFailed, plane.CallAwaitingInput},
	plane.CallPlanned:          {plane.CallAwaitingApproval, plane.CallDispatched, plane.CallFailed},
	plane.CallAwaitingApproval: {plane.CallDispatched, plane.CallFailed},
	plane.CallDispatched:       {plane.CallDispatched, plane.CallAwaitingInput, plane.CallSucceeded, plane.CallFailed, plane.CallUnknown},
	plane.CallAwaitingInput:    {plane.CallDispatched, plane.CallUnknown, plane.CallFailed},
	plane.CallUnknown:          {plane.CallResolvedDone, plane.CallResolvedNotDone},
}

// machine drives calls of a run and of a session through whatever may happen, in any
// order, and holds what is stored to what must hold.
type machine struct {
	ctx   context.Context
	s     *store.Store
	l     *ledger.Ledger
	clock *storetest.Clock
	conn  plane.Connection
	run   plane.Run
	held  map[plane.CallID]*held
	order []plane.CallID
}

// held is a call as its worker holds it.
type held struct {
	c        plane.Call
	old      plane.CallState // as it was stored before the step
	asks     bool            // it needs an approval
	approved bool            // the one it has is good
	sent     int             // how often bytes may have left
	proved   int             // how often it was proved that nothing ran
}

func newMachine(t *rapid.T, ctx context.Context, s *store.Store, clock *storetest.Clock) *machine {
	m := &machine{ctx: ctx, s: s, l: ledger.New(s, clock), clock: clock, held: map[plane.CallID]*held{}}
	m.l.Patience = 0
	m.conn = plane.Connection{ID: plane.NewConnectionID(clock.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Enabled: true, State: plane.StateConnected, Version: 1}
	m.conn.Slug = string(m.conn.ID)[4:]
	m.run = plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general", Principal: "ada"}
	m.must(t, s.Write(ctx, func(tx plane.Tx) error {
		if err := s.SaveConnection(tx, &m.conn); err != nil {
			return err
		}
		if err := s.InsertRun(tx, &m.run, []byte("p")); err != nil {
			return err
		}
		return s.ClaimRun(tx, m.run.ID, "me", tx.Now().Add(1000*time.Hour))
	}))
	m.run.Fence = 1
	return m
}

func (m *machine) must(t *rapid.T, err error) {
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// refused lets an operation be refused, and nothing worse.
func (m *machine) refused(t *rapid.T, err error) bool {
	switch k := plane.KindOf(err); {
	case err == nil:
		return false
	case k == plane.Conflict || k == plane.Gone:
		return true
	}
	t.Fatalf("%v", err)
	return true
}

// pick draws one of the calls for which ok holds; nil when there is none, and then there is nothing to do.
func (m *machine) pick(t *rapid.T, ok func(*held) bool) *held {
	var fit []plane.CallID
	for _, id := range m.order {
		if ok(m.held[id]) {
			fit = append(fit, id)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return m.held[rapid.SampledFrom(fit).Draw(t, "call")]
}

// stored is the row of a call; one without a row has no state.
func (m *machine) stored(t *rapid.T, id plane.CallID) plane.Call {
	c, err := m.s.CallByID(m.ctx, id)
	if plane.KindOf(err) == plane.NotFound {
		return plane.Call{}
	}
	m.must(t, err)
	return c
}

// Plan begins a call: of the run, with a row, or of a session, without one.
func (m *machine) Plan(t *rapid.T) {
	c := plane.Call{ID: plane.NewCallID(m.clock.Now()), Run: "ses_x", Agent: "general", Principal: "ada", Connection: m.conn.ID, Version: m.conn.Version, Server: "a", Fingerprint: "f",
		Class: rapid.SampledFrom([]plane.Class{plane.Effect, plane.Query}).Draw(t, "class"), Tool: rapid.SampledFrom([]string{"pay", "move"}).Draw(t, "tool"), ToolUse: "u"}
	c.ArgsDigest = string(c.ID)
	if c.Class == plane.Effect {
		c.Target = "tool:" + c.Tool
		if rapid.Bool().Draw(t, "named") {
			c.Target, c.Spec = rapid.SampledFrom([]string{"arg:1", "arg:2"}).Draw(t, "target"), "$.id"
		}
	}
	h := &held{c: c, asks: rapid.Bool().Draw(t, "asks")}
	if rapid.Bool().Draw(t, "run") {
		h.c.Run, h.c.Fence = m.run.ID, m.run.Fence
		m.must(t, m.s.Write(m.ctx, func(tx plane.Tx) error { return m.l.Plan(tx, &h.c, &plane.Evidence{Provider: "p"}) }))
	}
	m.held[h.c.ID], m.order = h, append(m.order, h.c.ID)
}

// Ask asks a person about a call that was not sent.
func (m *machine) Ask(t *rapid.T) {
	h := m.pick(t, func(h *held) bool {
		return h.asks && h.sent == 0 && (h.c.State == "" || h.c.State == plane.CallPlanned || h.c.State == plane.CallAwaitingApproval)
	})
	if h == nil {
		return
	}
	if _, err := m.l.Ask(m.ctx, &h.c, []byte("{}"), "why"); !m.refused(t, err) {
		h.approved = false
	}
}

// Decide takes a word on a call, for the first time or again.
func (m *machine) Decide(t *rapid.T) {
	h := m.pick(t, func(h *held) bool { return h.c.Approval != "" })
	if h == nil {
		return
	}
	as := rapid.SampledFrom([]plane.Decision{plane.Approve, plane.Deny, plane.AlwaysAllow}).Draw(t, "as")
	before, err := m.s.Approval(m.ctx, h.c.Approval)
	m.must(t, err)
	_, err = m.l.Decide(m.ctx, plane.Principal{ID: "ada"}, h.c.Approval, as, "", nil)
	open := before.State == plane.ApprovalPending && m.clock.Now().Before(before.ExpiresAt)
	if m.refused(t, err) == open {
		t.Fatalf("a %s approval until %s was decided: %v", before.State, before.ExpiresAt, err)
	}
	h.approved = h.approved || open && as != plane.Deny
}

// Begin sends a call, if it may be sent.
func (m *machine) Begin(t *rapid.T) {
	h := m.pick(t, func(h *held) bool { return !h.asks || h.c.Approval != "" || h.c.State == plane.CallDispatched })
	if h == nil {
		return // the bridge asks first
	}
	fresh := h.c
	row := m.stored(t, h.c.ID)
	blocked := m.blocked(t, &h.c)
	err := m.l.Begin(m.ctx, &fresh)
	if m.refused(t, err) {
		return
	}
	if h.c.Class == plane.Query && row.State == "" {
		h.c, h.sent = fresh, h.sent+1 // a session's query has no row before it ends
		return
	}
	if row.State != "" {
		m.step(t, row.State, plane.CallDispatched)
	}
	switch {
	case h.asks && h.sent == 0 && !h.approved:
		t.Fatalf("%s was sent without an approval", h.c.ID)
	case fresh.Class == plane.Effect && h.sent > h.proved && h.c.State != plane.CallAwaitingInput:
		t.Fatalf("an effect was sent %d times with %d proofs", h.sent+1, h.proved)
	case blocked != "" && row.State != plane.CallDispatched && row.State != plane.CallAwaitingInput:
		t.Fatalf("%s was sent although %s holds its target", h.c.ID, blocked)
	case m.conn.Version != fresh.Version:
		t.Fatal("a call was sent under an older version")
	}
	h.c, h.sent, h.approved = fresh, h.sent+1, false
	if h.c.State == plane.CallDispatched && row.State == plane.CallAwaitingInput {
		h.proved++ // it went on
	}
}

// blocked is a call that keeps another from being sent, by the model's own reading.
func (m *machine) blocked(t *rapid.T, c *plane.Call) plane.CallID {
	if c.Class != plane.Effect {
		return ""
	}
	for _, id := range m.order {
		o := m.stored(t, id)
		if id == c.ID || o.Class != plane.Effect {
			continue
		}
		same := o.Target == c.Target || o.Tool == c.Tool && o.Spec != c.Spec
		open := o.State == plane.CallUnknown || o.Spec != "" && (o.State == plane.CallDispatched || o.State == plane.CallAwaitingInput)
		if same && open {
			return id
		}
	}
	return ""
}

// step holds an edge to the drawing.
func (m *machine) step(t *rapid.T, from, to plane.CallState) {
	if from == to && from != plane.CallDispatched {
		return
	}
	for _, s := range legal[from] {
		if s == to {
			return
		}
	}
	t.Fatalf("%q went to %q", from, to)
}

var manyEndings = []plane.Ending{{Answered: true}, {Answered: true, IsError: true}, {Status: 404, SessionLost: true}, {NothingSent: true}, {Status: 500}, {Fault: plane.FaultTimeout},
	{RPC: true, RPCCode: -32602}, {RPC: true, RPCCode: -32603}}

// End ends an attempt as it may end on the wire.
func (m *machine) End(t *rapid.T) {
	h := m.pick(t, func(h *held) bool { return h.c.State == plane.CallDispatched })
	if h == nil {
		return
	}
	end := rapid.SampledFrom(manyEndings).Draw(t, "end")
	if rapid.IntRange(0, 4).Draw(t, "asks for input") == 0 && h.c.Attempts < 4 {
		if err := m.l.Wait(m.ctx, &h.c); m.refused(t, err) {
			h.c = m.stored(t, h.c.ID)
		}
		return
	}
	again, err := m.l.Again(m.ctx, &h.c, end)
	if m.refused(t, err) {
		return
	}
	if again {
		h.proved++
		return
	}
	err = m.l.Settle(m.ctx, &h.c, plane.Settlement{Ending: end, Observe: func(plane.Tx) error { return nil }})
	m.refused(t, err) // it was recovered, and resolved, meanwhile
}

// Refuse ends a call that was not sent.
func (m *machine) Refuse(t *rapid.T) {
	h := m.pick(t, func(h *held) bool {
		return h.c.State == plane.CallPlanned || h.c.State == plane.CallAwaitingApproval && h.c.Fence != 0
	})
	if h == nil {
		return
	}
	m.refused(t, m.l.Settle(m.ctx, &h.c, plane.Settlement{Ending: plane.Ending{NothingSent: true, Detail: "no"}, Observe: func(plane.Tx) error { return nil }}))
}

// Crash loses the worker: the next one finds what is stored.
func (m *machine) Crash(t *rapid.T) {
	calls, err := m.l.Recover(m.ctx, m.run.ID)
	m.must(t, err)
	m.must(t, m.l.RecoverSessions(m.ctx, m.clock.Now().Add(time.Hour)))
	for i := range calls {
		m.held[calls[i].ID].c = calls[i]
	}
	for _, id := range m.order {
		h := m.held[id]
		if c := m.stored(t, id); c.State != "" {
			waited := h.c.Waited
			h.c = c
			h.c.Waited = waited
		} else if h.sent > 0 { // a session's query that was on its way: nobody goes on with it
			m.drop(id)
		}
		if h.c.Class == plane.Query && h.c.State == plane.CallDispatched {
			h.proved = h.sent
		}
	}
}

func (m *machine) drop(id plane.CallID) {
	for i, o := range m.order {
		if o == id {
			m.order = append(m.order[:i:i], m.order[i+1:]...)
			return
		}
	}
}

// Resolve is a person's word on an unknown call.
func (m *machine) Resolve(t *rapid.T) {
	h := m.pick(t, func(h *held) bool { return m.stored(t, h.c.ID).State != "" })
	if h == nil {
		return
	}
	as := rapid.SampledFrom([]ledger.Resolution{ledger.Done, ledger.NotDone, ledger.SendAgain}).Draw(t, "as")
	row := m.stored(t, h.c.ID)
	again, err := m.l.Resolve(m.ctx, plane.Principal{ID: "ada"}, h.c.ID, as, "", nil)
	if m.refused(t, err) {
		return
	}
	if row.State != plane.CallUnknown {
		t.Fatalf("a %s call was resolved", row.State)
	}
	h.c = m.stored(t, h.c.ID)
	if again != nil {
		m.held[again.ID], m.order = &held{c: *again, asks: h.asks}, append(m.order, again.ID)
		if again.Key() != h.c.Key() {
			t.Fatal("another idempotency key")
		}
	}
}

// Pass lets time go by, and approvals with it.
func (m *machine) Pass(t *rapid.T) {
	m.clock.Pass(time.Duration(rapid.IntRange(1, 30).Draw(t, "hours")) * time.Hour)
	m.must(t, m.l.Expire(m.ctx, func(plane.Tx, plane.Approval) error { return nil }))
	for _, h := range m.held {
		if h.c.Approval != "" && h.approved {
			a, err := m.s.Approval(m.ctx, h.c.Approval)
			m.must(t, err)
			h.approved = a.State == plane.ApprovalApproved
		}
	}
}

// Rekey changes the connection: what was offered before is worth nothing.
func (m *machine) Rekey(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "rarely") != 0 {
		return
	}
	m.conn.Version++
	m.must(t, m.s.Write(m.ctx, func(tx plane.Tx) error { return m.s.SaveConnection(tx, &m.conn) }))
}

// Check holds after every step.
func (m *machine) Check(t *rapid.T) {
	for _, id := range m.order {
		h := m.held[id]
		row := m.stored(t, id)
		m.step(t, h.old, row.State)
		if h.old = row.State; row.State == "" {
			continue
		}
		if row.State.Final() != (row.State != plane.CallPlanned && row.State != plane.CallDispatched && row.State != plane.CallAwaitingInput && row.State != plane.CallAwaitingApproval) {
			t.Fatalf("%s", row.State)
		}
		if (row.State == plane.CallUnknown || row.State == plane.CallFailed) && row.Reason == "" && h.sent > h.proved && row.State == plane.CallUnknown {
			t.Fatalf("%s is %s and nobody says why", id, row.State)
		}
	}
	claims, err := m.s.Claims(m.ctx)
	m.must(t, err)
	kept := map[plane.CallID]bool{}
	for _, c := range claims {
		kept[c.Call] = true
	}
	for _, id := range m.order {
		row := m.stored(t, id)
		if want := row.State == plane.CallUnknown; row.State != "" && kept[id] != want && row.Class == plane.Effect {
			t.Fatalf("%s is %s, and its claim is kept: %v", id, row.State, kept[id])
		}
	}
}

// No sequence of what may happen takes an illegal edge, sends an effect twice without
// proof, sends anything that was not approved, or lets go of a target too early.
func TestNoSequenceBreaksTheMachine(t *testing.T) {
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			clock := storetest.NewClock()
			o := store.Options{Clock: clock}
			if engine == "postgres" {
				url, stop, err := storetest.StartPostgres()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(stop)
				o.URL = url
			} else {
				o.Path = filepath.Join(t.TempDir(), "m.db")
			}
			s, err := store.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			rapid.Check(t, func(rt *rapid.T) {
				m := newMachine(rt, t.Context(), s, clock)
				rt.Repeat(rapid.StateMachineActions(m))
				m.tidy(rt)
			})
		})
	}
}

// tidy settles what is open, so that the next sequence finds its own claims alone.
func (m *machine) tidy(t *rapid.T) {
	for _, id := range m.order {
		if m.stored(t, id).State == plane.CallUnknown {
			_, err := m.l.Resolve(m.ctx, plane.Principal{ID: "ada"}, id, ledger.Done, "", nil)
			m.must(t, err)
		}
	}
}
