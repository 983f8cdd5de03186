package storetest

import (
	"context"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

// callsAreCounted: what the overview shows is what is on record.
func callsAreCounted(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := savedConnection(t, s)
	since := clock.Now()
	add := func(tool string, state plane.CallState, origin plane.ErrorOrigin, took, upstream time.Duration, approval plane.ApprovalID) {
		c := anEffect(clock, conn, tool, "", "")
		c.State, c.Origin, c.Upstream, c.Approval, c.DoneAt = state, origin, upstream, approval, c.PlannedAt.Add(took)
		write(t, s, func(tx plane.Tx) error { return s.InsertCall(tx, &c) })
		clock.Pass(time.Minute)
	}
	add("look", plane.CallSucceeded, "", 10*time.Millisecond, 8*time.Millisecond, "")
	add("look", plane.CallSucceeded, "", 30*time.Millisecond, 26*time.Millisecond, "")
	clock.Pass(time.Hour)
	add("pay", plane.CallFailed, plane.ByTool, 20*time.Millisecond, 15*time.Millisecond, "")
	add("pay", plane.CallUnknown, plane.ByTransport, time.Second, time.Second, "")
	add("pay", plane.CallFailed, plane.ByTool, time.Hour, 20*time.Millisecond, "apr_x") // a person took an hour
	got, err := s.CallStats(ctx, since, time.Hour, plane.CallFilter{Connection: conn.ID})
	if err != nil || len(got.Slots) != 2 || len(got.Tools) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	first, second := got.Slots[0], got.Slots[1]
	if first.Calls.Count() != 2 || first.Failed != 0 || first.Upstream != 34*time.Millisecond || first.Gateway != 6*time.Millisecond {
		t.Errorf("%+v", first)
	}
	if second.Calls.Count() != 3 || second.Failed != 3 || second.Upstream != 1015*time.Millisecond || second.Gateway != 5*time.Millisecond {
		t.Errorf("%+v", second)
	}
	if len(got.Origins) != 2 || got.Origins[0] != (plane.OriginStats{Origin: plane.ByTool, Count: 2}) || got.Origins[1] != (plane.OriginStats{Origin: plane.ByTransport, Count: 1}) {
		t.Errorf("%+v", got.Origins)
	}
	if none, err := s.CallStats(ctx, since, time.Hour, plane.CallFilter{Agent: "nobody"}); err != nil || len(none.Slots) != 0 {
		t.Errorf("%+v %v", none, err)
	}
	calls, err := s.Calls(ctx, plane.CallFilter{Connection: conn.ID, Since: since.Add(time.Hour), Limit: 10})
	if err != nil || len(calls) != 3 || calls[0].Upstream != 20*time.Millisecond || calls[0].Origin != plane.ByTool {
		t.Errorf("%+v %v", calls, err)
	}
}

// runsAreListed page by page, newest first.
func runsAreListed(t *testing.T, s *store.Store, clock *Clock) {
	var ids []plane.RunID
	for range 5 {
		ids = append(ids, aRun(t, s, clock).ID)
		clock.Pass(time.Second)
	}
	list := func(f plane.RunFilter) (out []plane.RunID) {
		t.Helper()
		rows, err := s.Runs(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			out = append(out, r.ID)
		}
		return out
	}
	one := list(plane.RunFilter{Limit: 2})
	if len(one) != 2 || one[0] != ids[4] || one[1] != ids[3] {
		t.Fatalf("%v of %v", one, ids)
	}
	if two := list(plane.RunFilter{Before: one[1], Limit: 2}); len(two) != 2 || two[0] != ids[2] {
		t.Errorf("%v of %v", two, ids)
	}
	if none := list(plane.RunFilter{Agent: "nobody", Limit: 2}); len(none) != 0 {
		t.Errorf("%v", none)
	}
}
