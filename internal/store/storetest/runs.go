package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func claims(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	r := plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general"}
	write(t, s, func(tx plane.Tx) error { return s.InsertRun(tx, &r, []byte("p")) })
	due := func() int {
		ids, err := s.DueRuns(ctx, clock.Now(), 10)
		must(t, err)
		return len(ids)
	}
	if due() != 1 {
		t.Fatal("a queued run is not due")
	}
	race := func(want int) {
		t.Helper()
		var won int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				err := s.Write(ctx, func(tx plane.Tx) error { return s.ClaimRun(tx, r.ID, fmt.Sprint("w", i), tx.Now().Add(time.Minute)) })
				if err == nil {
					mu.Lock()
					won++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if won != want {
			t.Fatalf("%d claimed it", won)
		}
	}
	race(1)
	race(0)
	if due() != 0 {
		t.Fatal("a held run is due")
	}
	clock.Pass(61 * time.Second)
	if due() != 1 {
		t.Fatal("an expired lease is not due")
	}
	race(1)
	v, err := s.RunByID(ctx, r.ID)
	must(t, err)
	if v.Fence != 2 || v.State != plane.RunRunning || string(v.SealedPrompt) != "p" {
		t.Fatalf("%+v", v)
	}
	write(t, s, s.DropLeases)
	if due() != 1 {
		t.Fatal("a dropped lease is not due")
	}
}

func fenced(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	old := aRun(t, s, clock)
	clock.Pass(2 * time.Minute)
	write(t, s, func(tx plane.Tx) error { return s.ClaimRun(tx, old.ID, "other", tx.Now().Add(time.Minute)) })
	for name, fn := range map[string]func(plane.Tx) error{
		"hold":  func(tx plane.Tx) error { _, err := s.HoldRun(tx, old.ID, old.Fence, tx.Now(), 0); return err },
		"turn":  func(tx plane.Tx) error { return s.TurnRun(tx, old.ID, old.Fence, 5) },
		"leave": func(tx plane.Tx) error { r := old; r.State = plane.RunFailed; return s.LeaveRun(tx, &r, nil) },
	} {
		if err := s.Write(ctx, fn); plane.KindOf(err) != plane.Conflict {
			t.Errorf("%s under an old fence: %v", name, err)
		}
	}
	now := old
	now.Fence++
	write(t, s, func(tx plane.Tx) error { return s.TurnRun(tx, now.ID, now.Fence, 1) })
	now.State, now.WaitingFor, now.Spent = plane.RunWaiting, "reconcile", 3*time.Second
	write(t, s, func(tx plane.Tx) error { return s.LeaveRun(tx, &now, nil) })
	for _, want := range []bool{true, false} {
		write(t, s, func(tx plane.Tx) error {
			if waited, err := s.RequeueRun(tx, now.ID); err != nil || waited != want {
				t.Errorf("waited: %v, %v", waited, err)
			}
			return nil
		})
	}
	v, err := s.RunByID(ctx, now.ID)
	must(t, err)
	if v.State != plane.RunQueued || v.Spent != 3*time.Second || v.Turns != 1 || v.Owner != "" {
		t.Fatalf("%+v", v)
	}
}

func cancels(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	run := aRun(t, s, clock)
	ended := true
	write(t, s, func(tx plane.Tx) (err error) { ended, err = s.AskCancel(tx, run.ID, "x"); return err })
	asked := false
	write(t, s, func(tx plane.Tx) (err error) {
		asked, err = s.HoldRun(tx, run.ID, run.Fence, tx.Now().Add(time.Minute), 0)
		return err
	})
	if ended || !asked {
		t.Fatalf("a running run: ended %v, asked %v", ended, asked)
	}
	queued := plane.Run{ID: plane.NewRunID(clock.Now()), Agent: "general"}
	write(t, s, func(tx plane.Tx) error { return s.InsertRun(tx, &queued, []byte("p")) })
	write(t, s, func(tx plane.Tx) (err error) { ended, err = s.AskCancel(tx, queued.ID, "why"); return err })
	v, err := s.RunByID(ctx, queued.ID)
	must(t, err)
	if !ended || v.State != plane.RunCancelled || v.Reason != "why" || v.EndedAt.IsZero() {
		t.Fatalf("%+v", v)
	}
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { _, err := s.AskCancel(tx, queued.ID, "again"); return err }), plane.Conflict)
}

func eventsMessages(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	run := aRun(t, s, clock)
	for i := range 3 {
		ev := plane.Event{Seq: int64(i + 1), At: clock.Now(), Run: run.ID, Turn: i, Kind: "text", Span: "s", Data: json.RawMessage(`{}`)}
		write(t, s, func(tx plane.Tx) error { return s.AddEvent(tx, &ev, []byte{0, 1, byte(i)}) })
		write(t, s, func(tx plane.Tx) error { return s.AddMessage(tx, run.ID, i+1, []byte{9, byte(i)}) })
	}
	twice := plane.Event{Seq: 2, Run: run.ID}
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.AddEvent(tx, &twice, []byte{}) }), plane.Conflict)
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.AddMessage(tx, run.ID, 2, []byte{}) }), plane.Conflict)
	evs, err := s.Events(ctx, run.ID, 1, 10)
	must(t, err)
	if len(evs) != 2 || evs[0].Seq != 2 || string(evs[1].Data) != "\x00\x01\x02" || !evs[0].At.Equal(clock.Now()) {
		t.Fatalf("%+v", evs)
	}
	var next int64
	write(t, s, func(tx plane.Tx) (err error) { next, err = s.NextSeq(tx, run.ID); return err })
	msgs, err := s.Messages(ctx, run.ID)
	must(t, err)
	if next != 4 || len(msgs) != 3 || msgs[2][1] != 2 {
		t.Fatal(next, msgs)
	}
}

func results(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	run := aRun(t, s, clock)
	save := func(id plane.ResultID, call plane.CallID, whole []byte) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.SaveResult(tx, id, run.ID, call, true, []byte("b"), whole) })
	}
	must(t, save("res_1", "cal_1", []byte("whole")))
	must(t, save("res_2", "cal_2", nil))
	wantKind(t, save("res_3", "cal_1", nil), plane.Conflict) // one observation a call
	got, err := s.ResultsOfRun(ctx, run.ID)
	must(t, err)
	one, err := s.WholeResult(ctx, run.ID, "res_1")
	must(t, err)
	if len(got) != 2 || !got[0].IsError || string(got[0].Body) != "b" || string(one.Whole) != "whole" {
		t.Fatalf("%+v %+v", got, one)
	}
	_, err = s.WholeResult(ctx, "run_foreign", "res_1")
	wantKind(t, err, plane.NotFound)
}

func audit(t *testing.T, s *store.Store, clock *Clock) {
	write(t, s, func(tx plane.Tx) error {
		return s.AddAudit(tx, plane.AuditEntry{Who: "a", Action: "x", What: "w", Decision: "allow", Digest: "d"})
	})
	clock.Pass(time.Second)
	write(t, s, func(tx plane.Tx) error { return s.AddAudit(tx, plane.AuditEntry{Who: "b", Action: "y"}) })
	got, err := s.Audit(context.Background(), plane.AuditFilter{Limit: 10})
	must(t, err)
	if len(got) != 2 || got[0].Who != "b" || got[1].Decision != "allow" || got[1].At.IsZero() {
		t.Fatalf("%+v", got)
	}
}
