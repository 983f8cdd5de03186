package store

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/internal/plane"
)

// pages bounds the file, as a full disk does; 0 lifts the bound.
func (s *Store) pages(t *testing.T, most int) {
	t.Helper()
	if most == 0 {
		most = 1 << 30
	}
	err := s.Write(t.Context(), func(tx plane.Tx) error {
		return own(tx).each(func(r *sql.Rows) error { var n int64; return r.Scan(&n) }, fmt.Sprintf("PRAGMA max_page_count = %d", most))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// On a full disk nothing is sent, since nothing can be put on record first; and what was
// sent before has its outcome when there is room again.
func TestAFullDiskLosesNoOutcome(t *testing.T) {
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "full.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn := plane.Connection{ID: "con_a", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "a", Enabled: true, State: plane.StateConnected, Version: 1}
	call := func() *plane.Call {
		return &plane.Call{ID: plane.NewCallID(time.Now()), Run: "ses_x", Connection: "con_a", Version: 1, Class: plane.Effect, Tool: "pay", Target: "tool:pay", State: plane.CallDispatched, Attempts: 1}
	}
	c := call()
	err = s.Write(t.Context(), func(tx plane.Tx) error {
		if err := s.SaveConnection(tx, &conn); err != nil {
			return err
		}
		return s.InsertDispatched(tx, c)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.pages(t, 1) // SQLite takes it for as many as there are
	fill := strings.Repeat("x", 64<<10)
	if err := s.Write(context.Background(), func(tx plane.Tx) error { return s.SetMeta(tx, "fill", fill) }); plane.KindOf(err) != plane.Unavailable {
		t.Fatalf("the disk is not full: %v", err)
	}
	more := call()
	more.Reason = fill
	if err := s.Write(context.Background(), func(tx plane.Tx) error { return s.InsertDispatched(tx, more) }); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("an effect was put on record: %v", err)
	}
	c.State, c.Reason = plane.CallFailed, fill
	if err := s.WriteBehind(func(tx plane.Tx) error { return s.MoveCall(tx, c, plane.CallDispatched) }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if got, err := s.CallByID(t.Context(), c.ID); err != nil || got.State != plane.CallDispatched {
		t.Fatalf("%+v %v", got, err)
	}
	s.pages(t, 0)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		got, err := s.CallByID(t.Context(), c.ID)
		if err == nil && got.State == plane.CallFailed {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the outcome is lost: %s %v", got.State, err)
		}
	}
	if _, err := s.CallByID(t.Context(), more.ID); plane.KindOf(err) != plane.NotFound {
		t.Errorf("half a row: %v", err)
	}
}
