package store

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"patchbay/internal/plane"
)

// aClientsCall is a client's call as it is recorded.
func aClientsCall(n int) *plane.Call {
	now := time.Now()
	return &plane.Call{ID: plane.NewCallID(now), Run: "ses_01kb5x3vq4f7m2n8r9t0w1y2z3", Agent: "general", Principal: "https://issuer.example|ana", Connection: "con_01kb5x3vq4f7m2n8r9t0w1y2z3", Version: 3,
		Server: "up", Tool: "echo", Alias: "echo", Fingerprint: fmt.Sprintf("%064d", 1), Class: plane.Query, ArgsDigest: fmt.Sprintf("%064d", n), State: plane.CallSucceeded,
		Attempts: 1, PlannedAt: now, DoneAt: now, Bytes: n, Result: fmt.Sprintf("%064d", n)}
}

// Rows that are written together are the rows that were given, each once, however many
// there are; one that cannot be written takes no other with it.
func TestRowsKeptForOthers(t *testing.T) {
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "kept.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	twice := aClientsCall(0)
	if err := s.Write(t.Context(), func(tx plane.Tx) error { return s.InsertCall(tx, twice) }); err != nil {
		t.Fatal(err)
	}
	want := map[plane.CallID]*plane.Call{twice.ID: twice}
	refused := plane.Errorf(plane.Conflict, "no")
	var none []plane.CallID
	for i := range 3*16 + 5 {
		c := aClientsCall(i)
		if i == 20 {
			c.Bytes, c.ID = -1, twice.ID // this one is there already
		}
		fails := i == 30
		if fails {
			none = append(none, c.ID)
		} else if c.Bytes >= 0 {
			want[c.ID] = c
		}
		err := s.WriteBehind(func(tx plane.Tx) error {
			if err := s.InsertCall(tx, c); err != nil {
				return err
			}
			if fails {
				return refused
			}
			return s.AddAudit(tx, plane.AuditEntry{Who: c.Principal, Action: plane.AuditCall, What: string(c.ID), Decision: string(c.State), Digest: c.ArgsDigest})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// What comes after a row finds it.
	err = s.Write(t.Context(), func(tx plane.Tx) error {
		c := aClientsCall(99)
		want[c.ID] = c
		if err := s.InsertCall(tx, c); err != nil {
			return err
		}
		return s.MoveCall(tx, c, plane.CallSucceeded)
	})
	if err != nil {
		t.Fatalf("a row is moved before it is there: %v", err)
	}
	time.Sleep(4 * lazyDelay)
	all, err := s.Calls(t.Context(), plane.CallFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(want) {
		t.Errorf("%d rows of %d", len(all), len(want))
	}
	for _, c := range all {
		w := want[c.ID]
		if w == nil || c.Bytes != w.Bytes || c.Result != w.Result || c.ArgsDigest != w.ArgsDigest || c.State != w.State || c.Upstream != w.Upstream {
			t.Errorf("%+v is not %+v", c, w)
		}
	}
	for _, id := range none {
		if _, err := s.CallByID(t.Context(), id); plane.KindOf(err) != plane.NotFound {
			t.Errorf("a row of a closure that failed: %v", err)
		}
	}
}

// BenchmarkRecord is what a client's query costs the database, commits included.
func BenchmarkRecord(b *testing.B) {
	s, err := Open(b.Context(), Options{Path: filepath.Join(b.TempDir(), "record.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for n := 0; n < b.N; {
		var wg sync.WaitGroup
		for range min(120, b.N-n) { // as many as come within 50 ms
			c := aClientsCall(n)
			wg.Add(1)
			err := s.WriteBehind(func(tx plane.Tx) error {
				defer wg.Done()
				if err := s.InsertCall(tx, c); err != nil {
					return err
				}
				return s.AddAudit(tx, plane.AuditEntry{Who: c.Principal, Action: plane.AuditCall, What: string(c.ID), Decision: string(c.State), Digest: c.ArgsDigest})
			})
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		s.batch.mu.Lock()
		s.batch.due = true
		s.batch.mu.Unlock()
		s.batch.wake <- struct{}{}
		wg.Wait()
	}
}
