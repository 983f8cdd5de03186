package catalog

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// meddled is a store in which something happens between a read and the write that
// was made of it, once.
type meddled struct {
	*memory
	between func()
}

func (m *meddled) Pins(ctx context.Context, id plane.ConnectionID) ([]plane.Pin, error) {
	out, err := m.memory.Pins(ctx, id)
	if fn := m.between; fn != nil {
		m.between = nil
		fn()
	}
	return out, err
}

func meddle(t *testing.T, l lister) (*Catalogs, *meddled, policy.Grant) {
	t.Helper()
	m := &meddled{memory: &memory{rows: map[plane.ConnectionID]plane.Catalog{}, pins: map[string]plane.Pin{}}}
	c, err := Load(t.Context(), m, l, realClock{}, plane.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return c, m, grants(t, 1, 1)[0]
}

// A block that is committed while a listing is being adopted is not lost.
func TestABlockIsNotLost(t *testing.T) {
	list := tools("a")
	c, m, g := meddle(t, func(context.Context, policy.Grant) (Listed, error) { return list, nil })
	if err := c.Refresh(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	list = Listed{Tools: []json.RawMessage{json.RawMessage(`{"name":"a","title":"other"}`)}}
	m.between = func() { // another replica stores what a person says
		p := m.pins["a"]
		p.BlockedBy = "ada"
		m.pins["a"] = p
		row := m.rows["con_0"]
		row.Revision++
		m.rows["con_0"] = row
	}
	if err := c.Refresh(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if d := c.Get("con_0").Definitions[0]; d.Held == "" || m.pins["a"].BlockedBy != "ada" {
		t.Errorf("%+v %+v", d, m.pins["a"])
	}
}

// A listing that lost the race to a later one does not stand over it.
func TestAnOlderListingDoesNotStand(t *testing.T) {
	var began time.Time
	c, m, g := meddle(t, func(context.Context, policy.Grant) (Listed, error) {
		l := tools("old")
		l.At = began
		return l, nil
	})
	began = time.Now()
	if err := c.Refresh(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	newer := *c.Get("con_0")
	newer.Revision, newer.CapturedAt = 9, began.Add(time.Hour)
	newer.Definitions = []plane.Definition{{Name: "new", Raw: json.RawMessage(`{"name":"new"}`)}}
	began = began.Add(2 * time.Minute)
	m.between = func() { m.rows["con_0"] = newer }
	if err := c.Refresh(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if got := c.Get("con_0"); got.Revision != 9 || got.Definitions[0].Name != "new" {
		t.Errorf("%+v", got)
	}
}

// A person's change and the snapshot it goes with are one: a discovery that fails
// right after it keeps the last good list, and a change that is refused changes
// neither.
func TestAChangeAndItsSnapshotAreOne(t *testing.T) {
	var down error
	c, m, g := meddle(t, func(context.Context, policy.Grant) (Listed, error) { return tools("a"), down })
	if err := c.Refresh(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	next := g.Connection()
	next.Version = 2
	refusal := plane.Errorf(plane.Conflict, "somebody was faster")
	err := c.Change(t.Context(), next, 1, Saying{}, func(plane.Tx) error { return refusal })
	if err != error(refusal) || c.Get("con_0").Version != 1 || m.rows["con_0"].Version != 1 {
		t.Fatalf("%v, version %d", err, c.Get("con_0").Version)
	}
	wrote := 0
	if err := c.Change(t.Context(), next, 1, Saying{}, func(plane.Tx) error { wrote++; return nil }); err != nil || wrote != 1 || m.rows["con_0"].Version != 2 {
		t.Fatalf("%v, written %d times", err, wrote)
	}
	down = plane.Errorf(plane.Unavailable, "down")
	c.Refresh(t.Context(), grants(t, 1, 2)[0])
	if got := c.Get("con_0"); got.Stale(2) || len(got.Definitions) != 1 || got.Health != plane.HealthUnavailable {
		t.Errorf("%+v", got)
	}
	// What was said of a definition that another replica read anew is refused.
	pin := plane.Pin{Connection: "con_0", Name: "a", BlockedBy: "ada"}
	next.Version = 3
	m.between = func() {
		row := m.rows["con_0"]
		row.Revision++
		m.rows["con_0"] = row
	}
	if err := c.Change(t.Context(), next, 2, Saying{Pins: []plane.Pin{pin}}, func(plane.Tx) error { return nil }); plane.KindOf(err) != plane.Conflict {
		t.Errorf("%v", err)
	}
}

// Two blips with a full list in between are two blips, whoever read the full one.
func TestAnOldBlipDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := tools("a")
		c, m, g := meddle(t, func(context.Context, policy.Grant) (Listed, error) { return list, nil })
		c.Refresh(t.Context(), g)
		time.Sleep(time.Second)
		list = tools()
		c.Refresh(t.Context(), g)
		time.Sleep(24 * time.Hour)
		full := *c.Get("con_0") // read by another replica, and taken in
		full.Revision, full.CapturedAt = full.Revision+1, time.Now()
		m.rows["con_0"] = full
		c.keep(&full)
		time.Sleep(time.Minute)
		c.Refresh(t.Context(), g)
		if len(c.Get("con_0").Definitions) != 1 {
			t.Error("a second blip wiped the catalog")
		}
	})
}

// A refresh for a new version does not take an older version's listing for its own.
func TestARefreshReallyRefreshes(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	n := 0
	c, _, g := meddle(t, func(_ context.Context, g policy.Grant) (Listed, error) {
		if n++; g.Version() == 1 {
			close(reached)
			<-release
		}
		return tools("a"), nil
	})
	done := make(chan error, 1)
	go func() { done <- c.Refresh(t.Context(), g) }()
	<-reached
	if err := c.Refresh(t.Context(), grants(t, 1, 2)[0]); err != nil || c.Get("con_0").Stale(2) {
		t.Errorf("%v %+v", err, c.Get("con_0"))
	}
	close(release)
	if err := <-done; err != nil || c.Get("con_0").Version != 2 || n != 2 {
		t.Errorf("%v, version %d, %d listings", err, c.Get("con_0").Version, n)
	}
}
