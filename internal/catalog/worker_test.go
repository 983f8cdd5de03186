package catalog

import (
	"context"
	"sync"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// plan is a schedule in memory, by the rules of the stored one.
type plan struct {
	mu   sync.Mutex
	rows map[plane.ConnectionID]*Round
	now  func() time.Time
}

func (p *plan) DueRefreshes(context.Context, int) ([]Round, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Round
	for _, r := range p.rows {
		if !r.DueAt.After(p.now()) && !r.LeaseUntil.After(p.now()) {
			out = append(out, *r)
		}
	}
	return out, nil
}

func (p *plan) ScheduleRefresh(_ plane.Tx, id plane.ConnectionID, due time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rows[id] == nil {
		p.rows[id] = &Round{Connection: id, DueAt: due}
	}
	return nil
}

func (p *plan) PostponeRefresh(_ plane.Tx, id plane.ConnectionID, due time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows[id].DueAt = due
	return nil
}

func (p *plan) HurryRefresh(_ plane.Tx, id plane.ConnectionID, version int64, due time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.rows[id]; r.DueAt.After(due) && (r.Tries == 0 || r.Parked != 0 && r.Parked != version) {
		r.DueAt, r.Tries, r.Parked = due, 0, 0
	}
	return nil
}

func (p *plan) ClaimRefresh(_ plane.Tx, id plane.ConnectionID, _ string, until time.Time) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rows[id]
	r.Fence++
	r.LeaseUntil = until
	return r.Fence, nil
}

func (p *plan) EndRefresh(_ plane.Tx, n Round) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rows[n.Connection]
	if r.Fence != n.Fence {
		return plane.Errorf(plane.Conflict, "taken over")
	}
	r.DueAt, r.Tries, r.Parked, r.LeaseUntil = n.DueAt, n.Tries, n.Parked, time.Time{}
	r.Rounds++
	return nil
}

func (p *plan) ReleaseRefresh(plane.Tx, plane.ConnectionID, int64) error { return nil }

type handClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *handClock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

func (c *handClock) pass(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.t = c.t.Add(d) }

// stamped gives the writes of a memory the clock's time.
type stamped struct {
	*memory
	clock *handClock
}

type at struct{ t time.Time }

func (a at) Now() time.Time { return a.t }

func (s stamped) Write(_ context.Context, fn func(plane.Tx) error) error {
	return fn(at{s.clock.Now()})
}

// upkeep is a worker over one connection whose server does as answer says.
func upkeep(t *testing.T, answer func() (Listed, error)) (tick func(d time.Duration) int, w *Worker, clock *handClock, asked *int) {
	t.Helper()
	clock = &handClock{t: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	m := stamped{&memory{rows: map[plane.ConnectionID]plane.Catalog{}, pins: map[string]plane.Pin{}}, clock}
	n := 0
	c, err := Load(t.Context(), m, lister(func(context.Context, policy.Grant) (Listed, error) { n++; return answer() }), clock, plane.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	snaps := func(version int64) *policy.Snapshot {
		s, err := policy.Compile(policy.Rules{Connections: []plane.Connection{{ID: "con_a", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "a", Endpoint: "https://x.example/", Enabled: true, Version: version, State: plane.StateConnected}}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	snap := snaps(1)
	w = &Worker{Catalogs: c, Schedule: &plan{rows: map[plane.ConnectionID]*Round{}, now: clock.Now}, Owner: "o", Period: 15 * time.Minute,
		Policy: func() *policy.Snapshot { return snap }}
	return func(d time.Duration) int {
		before := n
		for ; d > 0; d -= 10 * time.Second {
			clock.pass(10 * time.Second)
			if _, err := w.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return n - before
	}, w, clock, &n
}

// A server that fails is asked ever later, and as before once it answers.
func TestUpkeepBacksOff(t *testing.T) {
	var down error = plane.Errorf(plane.Unavailable, "down")
	tick, _, _, _ := upkeep(t, func() (Listed, error) { l := tools("a"); return l, down })
	first, later, last := tick(15*time.Minute), tick(2*time.Hour), tick(5*time.Hour)
	if first < 3 || first > 8 {
		t.Errorf("%d tries in the first quarter of an hour", first)
	}
	if later > 5 || last > 6 || last < 4 {
		t.Errorf("%d tries in two hours, then %d in five", later, last)
	}
	down = nil
	if tick(time.Hour + 20*time.Minute); tick(time.Hour) < 3 {
		t.Error("it is not read as before")
	}
}

// A server that rejects the credential is left alone until a person changed the
// connection.
func TestUpkeepStopsAtARejectedCredential(t *testing.T) {
	var bad error = plane.Errorf(plane.Unauthenticated, "rejected")
	tick, w, _, asked := upkeep(t, func() (Listed, error) { return tools("a"), bad })
	if tick(20 * time.Minute); *asked != 1 {
		t.Fatalf("%d times at first", *asked)
	}
	if n := tick(6 * time.Hour); n != 0 {
		t.Errorf("asked %d times with a rejected credential", n)
	}
	bad = nil
	next, err := policy.Compile(policy.Rules{Connections: []plane.Connection{{ID: "con_a", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "a", Endpoint: "https://x.example/", Enabled: true, Version: 2, State: plane.StateConnected}}})
	if err != nil {
		t.Fatal(err)
	}
	w.Policy = func() *policy.Snapshot { return next }
	if n := tick(2 * time.Minute); n != 1 {
		t.Errorf("asked %d times after the change", n)
	}
}

// An empty list where there were tools is asked about again soon.
func TestUpkeepDoubtsAnEmptyList(t *testing.T) {
	list := tools("a")
	tick, w, _, _ := upkeep(t, func() (Listed, error) { return list, nil })
	tick(20 * time.Minute)
	list = tools()
	for i := 0; tick(10*time.Second) == 0; i++ {
		if i > 200 {
			t.Fatal("never due")
		}
	}
	if len(w.Catalogs.Get("con_a").Definitions) != 1 {
		t.Fatal("wiped at once")
	}
	if tick(time.Minute); len(w.Catalogs.Get("con_a").Definitions) != 0 {
		t.Error("never adopted")
	}
}
