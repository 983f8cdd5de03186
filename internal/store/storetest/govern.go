package storetest

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

// A round is claimed by one, ended under its fence, and taken over when its lease
// ends.
func refreshes(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	const id = plane.ConnectionID("con_a")
	claim := func(owner string) (fence int64, err error) {
		err = s.Write(ctx, func(tx plane.Tx) error {
			fence, err = s.ClaimRefresh(tx, id, owner, tx.Now().Add(30*time.Second))
			return err
		})
		return fence, err
	}
	end := func(fence int64, due time.Time) error {
		return s.Write(ctx, func(tx plane.Tx) error {
			return s.EndRefresh(tx, store.Refresh{Connection: id, Fence: fence, DueAt: due})
		})
	}
	due := clock.Now().Add(time.Minute)
	for range 2 { // scheduled once
		write(t, s, func(tx plane.Tx) error { return s.ScheduleRefresh(tx, id, due) })
		due = due.Add(time.Hour)
	}
	_, err := claim("one")
	wantKind(t, err, plane.Conflict) // not due
	clock.Pass(time.Minute)
	if got, err := s.DueRefreshes(ctx, 10); err != nil || len(got) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	first, err := claim("one")
	must(t, err)
	_, err = claim("two")
	wantKind(t, err, plane.Conflict)
	if got, _ := s.DueRefreshes(ctx, 10); len(got) != 0 {
		t.Fatalf("a held round is due: %v", got)
	}
	clock.Pass(31 * time.Second)
	second, err := claim("two")
	must(t, err)
	if second <= first {
		t.Fatalf("fences %d, %d", first, second)
	}
	wantKind(t, end(first, clock.Now()), plane.Conflict) // the former holder
	must(t, end(second, clock.Now().Add(time.Minute)))
	got, err := s.Refreshes(ctx)
	must(t, err)
	if len(got) != 1 || got[0].Rounds != 1 || !got[0].DueAt.Equal(clock.Now().Add(time.Minute)) {
		t.Fatalf("%+v", got)
	}
	write(t, s, func(tx plane.Tx) error { return s.HurryRefresh(tx, id, 1, tx.Now()) })
	third, err := claim("one")
	must(t, err)
	write(t, s, func(tx plane.Tx) error { return s.ReleaseRefresh(tx, id, third) })
	fourth, err := claim("two") // at once
	must(t, err)
	must(t, s.Write(ctx, func(tx plane.Tx) error {
		return s.EndRefresh(tx, store.Refresh{Connection: id, Fence: fourth, DueAt: clock.Now().Add(time.Minute), Tries: 3, Parked: 7})
	}))
	write(t, s, func(tx plane.Tx) error { return s.HurryRefresh(tx, id, 7, tx.Now()) }) // the rejected credential
	_, err = claim("one")
	wantKind(t, err, plane.Conflict)
	write(t, s, func(tx plane.Tx) error { return s.HurryRefresh(tx, id, 8, tx.Now()) })
	_, err = claim("one")
	must(t, err)
}

// What was adopted is kept with its bytes, and what changed is counted.
func pins(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := aConnection("a")
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	raw := `{"z":12345678901234567890,"name":"t", "a":1.0e2}`
	p := plane.Pin{Connection: conn.ID, Name: "t", Fingerprint: "f1", Raw: []byte(raw), At: clock.Now()}
	write(t, s, func(tx plane.Tx) error { return s.PutPin(tx, &p) })
	p.Before, p.Raw, p.Fingerprint, p.ChangedAt, p.AcceptedBy = p.Raw, []byte(`{}`), "f2", clock.Now(), "cli:local"
	write(t, s, func(tx plane.Tx) error { return s.PutPin(tx, &p) })
	got, err := s.Pins(ctx, conn.ID)
	must(t, err)
	if len(got) != 1 || string(got[0].Before) != raw || got[0].Fingerprint != "f2" || got[0].AcceptedBy != "cli:local" || !got[0].ChangedAt.Equal(clock.Now()) {
		t.Fatalf("%+v", got)
	}
	before, err := s.Changes(ctx)
	must(t, err)
	_, seq, err := s.CatalogsSince(ctx, 0)
	must(t, err)
	c := plane.Catalog{Connection: conn.ID, Version: 1, Revision: 1, CapturedAt: clock.Now(), Health: plane.HealthOK, Instructions: "new", InstructionsBefore: "old", InstructionsAt: clock.Now(),
		Definitions: []plane.Definition{{Fingerprint: "f2", Raw: json.RawMessage(raw), Held: "h"}},
		Resources:   []json.RawMessage{json.RawMessage(`{"uri":"a"}`), json.RawMessage(`{"uri":"b"}`)}, Prompts: []json.RawMessage{json.RawMessage(`{"name":"p"}`)}}
	write(t, s, func(tx plane.Tx) error { return s.SaveCatalog(tx, &c, true) })
	ids, seq, err := s.CatalogsSince(ctx, seq)
	must(t, err)
	after, err := s.Changes(ctx)
	must(t, err)
	if !slices.Equal(ids, []plane.ConnectionID{conn.ID}) || after.Catalogs != seq || after.Catalogs == before.Catalogs || after.Connections != before.Connections {
		t.Fatalf("%v %d, %+v to %+v", ids, seq, before, after)
	}
	back, err := s.CatalogByID(ctx, conn.ID)
	must(t, err)
	d := back.Definitions[0]
	if string(d.Raw) != raw || d.Held != "h" || !d.Reviewed || len(back.Resources) != 2 || string(back.Resources[1]) != `{"uri":"b"}` || len(back.Prompts) != 1 || back.InstructionsBefore != "old" {
		t.Fatalf("%+v", back)
	}
	old := c
	old.Revision, old.Version = 2, 0
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.SaveCatalog(tx, &old, true) }), plane.Conflict) // of an older version
	write(t, s, func(tx plane.Tx) error {
		return s.ConvertPrefs(tx, conn.ID, 1, plane.Preferences{Excluded: []string{"x"}})
	})
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.ConvertPrefs(tx, conn.ID, 2, plane.Preferences{}) }), plane.Conflict)
	write(t, s, func(tx plane.Tx) error { return s.DropPin(tx, conn.ID, "t") })
	if got, _ := s.Pins(ctx, conn.ID); len(got) != 0 {
		t.Fatalf("%d pins", len(got))
	}
	write(t, s, func(tx plane.Tx) error { return s.PutPin(tx, &p) })
	write(t, s, func(tx plane.Tx) error { return s.RemoveConnection(tx, conn.ID) })
	if got, _ := s.Pins(ctx, conn.ID); len(got) != 0 {
		t.Fatal("a removed connection's pins stay")
	}
}

// A database that demands a newer program tells this one so, and it begins
// nothing.
func minBinary(t *testing.T, s *store.Store, _ *Clock) {
	ctx := context.Background()
	if _, err := s.Changes(ctx); err != nil {
		t.Fatal(err)
	}
	write(t, s, func(tx plane.Tx) error { return s.SetMeta(tx, "min_binary", "999") })
	_, err := s.Changes(ctx)
	wantKind(t, err, plane.Gone)
}

// One account of a scope is known by its address.
func slots(t *testing.T, s *store.Store, _ *Clock) {
	ctx := context.Background()
	add := func(slug string, slot bool) error {
		c := aConnection(slug)
		c.Slot = slot
		return s.Write(ctx, func(tx plane.Tx) error { return s.SaveConnection(tx, &c) })
	}
	must(t, add("a", true))
	must(t, add("b", false))
	wantKind(t, add("c", true), plane.Conflict)
	write(t, s, func(tx plane.Tx) error { return s.RemoveConnection(tx, "con_a") })
	must(t, add("c", true))
	got, err := s.ConnectionByID(ctx, "con_c")
	must(t, err)
	if !got.Slot {
		t.Fatal("the slot is lost")
	}
}
