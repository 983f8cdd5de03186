package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func savedConnection(t *testing.T, s *store.Store) plane.Connection {
	t.Helper()
	conn := plane.Connection{ID: "con_l", Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "l", Enabled: true, State: plane.StateConnected, Version: 1}
	write(t, s, func(tx plane.Tx) error { return s.SaveConnection(tx, &conn) })
	return conn
}

func anEffect(clock *Clock, conn plane.Connection, tool, target, spec string) plane.Call {
	return plane.Call{ID: plane.NewCallID(clock.Now()), Run: "ses_x", Agent: "general", Principal: "ada", Connection: conn.ID, Version: conn.Version, Tool: tool, Fingerprint: "f",
		Class: plane.Effect, ArgsDigest: "d", State: plane.CallDispatched, Attempts: 1, PlannedAt: clock.Now(), Target: target, Spec: spec}
}

func targetsAreHeld(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := savedConnection(t, s)
	send := func(c plane.Call) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.InsertDispatched(tx, &c) })
	}
	holder := func(err error) plane.CallID {
		var held *plane.HeldError
		if errors.As(err, &held) {
			return held.Call
		}
		return ""
	}
	first, second := anEffect(clock, conn, "move", "arg:1", "$.id"), anEffect(clock, conn, "move", "arg:1", "$.id")
	must(t, send(first))
	if err := send(second); holder(err) != first.ID || plane.KindOf(err) != plane.Conflict {
		t.Fatalf("a named target beside: %v", err)
	}
	must(t, send(anEffect(clock, conn, "move", "arg:2", "$.id")))
	first.State, first.Reason = plane.CallUnknown, "who knows"
	write(t, s, func(tx plane.Tx) error { return s.MoveCall(tx, &first, plane.CallDispatched) })
	for what, c := range map[string]plane.Call{
		"the same target":             anEffect(clock, conn, "move", "arg:1", "$.id"),
		"the same by another tool":    anEffect(clock, conn, "close", "arg:1", "$.id"),
		"the tool as a whole":         anEffect(clock, conn, "move", "tool:move", ""),
		"the tool, named another way": anEffect(clock, conn, "move", "arg:9", "$.other"),
	} {
		if err := send(c); holder(err) != first.ID {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, send(anEffect(clock, conn, "move", "arg:3", "$.id")))
	query := anEffect(clock, conn, "move", "arg:1", "$.id")
	query.Class = plane.Query
	must(t, send(query))
	claims, err := s.Claims(ctx)
	must(t, err)
	if len(claims) != 1 || claims[0].Call != first.ID || claims[0].Why != "who knows" {
		t.Fatalf("%+v", claims)
	}
	first.State = plane.CallResolvedDone
	write(t, s, func(tx plane.Tx) error { return s.MoveCall(tx, &first, plane.CallUnknown) })
	must(t, send(second))
	// A call that nobody named a target for holds nothing while it is under way.
	a, b := anEffect(clock, conn, "pay", "tool:pay", ""), anEffect(clock, conn, "pay", "tool:pay", "")
	must(t, send(a))
	must(t, send(b))
	// What a contract keeps, a person lets go.
	b.State, b.Hold = plane.CallSucceeded, "not proved"
	write(t, s, func(tx plane.Tx) error { return s.MoveCall(tx, &b, plane.CallDispatched) })
	if err := send(anEffect(clock, conn, "pay", "tool:pay", "")); holder(err) != b.ID {
		t.Errorf("a kept claim: %v", err)
	}
	released := false
	write(t, s, func(tx plane.Tx) (err error) { released, err = s.ReleaseClaim(tx, b.ID); return err })
	if !released {
		t.Error("it was not released")
	}
	must(t, send(anEffect(clock, conn, "pay", "tool:pay", "")))
}

func approvalsAreSpentOnce(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := savedConnection(t, s)
	var asked []*plane.Approval
	ask := func() (plane.Call, *plane.Approval) {
		c := anEffect(clock, conn, "pay", "tool:pay", "")
		c.State, c.Attempts = plane.CallAwaitingApproval, 0
		a := &plane.Approval{ID: plane.NewApprovalID(clock.Now()), Call: c.ID, Run: c.Run, Agent: c.Agent, Principal: c.Principal, Connection: c.Connection, Version: c.Version, Tool: c.Tool,
			Fingerprint: c.Fingerprint, ArgsDigest: c.ArgsDigest, Arguments: []byte("sealed"), AskedAt: clock.Now(), ExpiresAt: clock.Now().Add(time.Hour)}
		write(t, s, func(tx plane.Tx) error {
			if err := s.InsertCall(tx, &c); err != nil {
				return err
			}
			return s.AddApproval(tx, a)
		})
		c.Approval = a.ID
		asked = append(asked, a)
		return c, a
	}
	decide := func(a *plane.Approval, to plane.ApprovalState) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.DecideApproval(tx, a.ID, to, "ada", "n") })
	}
	send := func(c plane.Call) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.Dispatch(tx, &c, 1) })
	}
	c, a := ask()
	wantKind(t, send(c), plane.Conflict) // nobody decided
	must(t, decide(a, plane.ApprovalApproved))
	wantKind(t, decide(a, plane.ApprovalDenied), plane.Conflict)
	for what, change := range map[string]func(*plane.Call){
		"another call's": func(c *plane.Call) { o, _ := ask(); c.ID = o.ID }, "other arguments": func(c *plane.Call) { c.ArgsDigest = "x" },
		"another definition": func(c *plane.Call) { c.Fingerprint = "x" }, "another tool": func(c *plane.Call) { c.Tool = "x" }, "another agent": func(c *plane.Call) { c.Agent = "x" },
	} {
		bad := c
		change(&bad)
		if err := send(bad); plane.KindOf(err) != plane.Conflict {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, send(c))
	wantKind(t, send(c), plane.Conflict)
	got, err := s.Approval(ctx, a.ID)
	must(t, err)
	if got.State != plane.ApprovalSpent || got.DecidedBy != "ada" || len(got.Arguments) != 0 { // nobody has to see them again
		t.Fatalf("%+v", got)
	}
	late, l := ask()
	must(t, decide(l, plane.ApprovalApproved))
	found, err := s.OpenApproval(ctx, &late, clock.Now())
	must(t, err)
	if found.ID != l.ID {
		t.Fatalf("%+v", found)
	}
	other := late
	other.Principal = "eve"
	_, err = s.OpenApproval(ctx, &other, clock.Now())
	wantKind(t, err, plane.NotFound)
	clock.Pass(2 * time.Hour)
	wantKind(t, send(late), plane.Conflict) // expired
	var gone []plane.Approval
	write(t, s, func(tx plane.Tx) (err error) { gone, err = s.ExpireApprovals(tx); return err })
	if len(gone) != len(asked)-1 { // all but the one that was spent
		t.Errorf("%d of %d expired", len(gone), len(asked))
	}
	wantKind(t, decide(asked[len(asked)-2], plane.ApprovalApproved), plane.Conflict)
	// A rule is one for each tool of an agent at a connection.
	for i := range 2 {
		write(t, s, func(tx plane.Tx) error {
			return s.PutRule(tx, &plane.Rule{ID: fmt.Sprint("rul_", i), Agent: "general", Connection: conn.ID, Tool: "pay", Fingerprint: "f", Mode: plane.Always, By: "ada"})
		})
	}
	rules, err := s.Rules(ctx)
	must(t, err)
	if len(rules) != 1 || rules[0].ID != "rul_1" {
		t.Fatalf("%+v", rules)
	}
	write(t, s, func(tx plane.Tx) error { return s.DropRule(tx, "rul_1") })
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.DropRule(tx, "rul_1") }), plane.NotFound)
}

func evidenceIsReserved(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := savedConnection(t, s)
	run := aRun(t, s, clock)
	c := aCall(run, conn, clock)
	c.Tool, c.Fingerprint, c.Evidence, c.Result = "look", "f", plane.NewEvidenceID(clock.Now()), "digest"
	e := plane.Evidence{ID: c.Evidence, Call: c.ID, Run: run.ID, Provider: "https://x", Connection: c.Connection, Version: c.Version, Tool: c.Tool, Fingerprint: c.Fingerprint, Labels: plane.Private}
	write(t, s, func(tx plane.Tx) error { return s.ReserveEvidence(tx, &e) })
	for _, change := range []func(*plane.Call){func(c *plane.Call) { c.Version++ }, func(c *plane.Call) { c.ID = "cal_x" }, func(c *plane.Call) { c.Connection = "con_x" },
		func(c *plane.Call) { c.Fingerprint = "x" }, func(c *plane.Call) { c.Tool = "x" }} {
		bad := c
		change(&bad)
		wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.ObserveEvidence(tx, &bad) }), plane.Conflict)
	}
	write(t, s, func(tx plane.Tx) error { return s.ObserveEvidence(tx, &c) })
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.ObserveEvidence(tx, &c) }), plane.Conflict)
	list, err := s.EvidenceOfRun(ctx, run.ID)
	must(t, err)
	if len(list) != 1 || list[0].Digest != "digest" || list[0].Labels != plane.Private || !list[0].Stamps(&c) {
		t.Fatalf("%+v", list)
	}
	many := make([]string, plane.MaxLineage)
	for i := range many {
		many[i] = fmt.Sprintf("evd_%d", i)
	}
	write(t, s, func(tx plane.Tx) error { return s.SetLineage(tx, "run_a", many) })
	write(t, s, func(tx plane.Tx) error { return s.SetLineage(tx, "run_b", append(many, "one more")) })
	write(t, s, func(tx plane.Tx) error { return s.CopyLineage(tx, "run_a", "run_c") })
	write(t, s, func(tx plane.Tx) error { return s.SetLineage(tx, "run_c", []string{"one more"}) })
	write(t, s, func(tx plane.Tx) error { return s.CompactLineage(tx, "run_c") })
	for owner, want := range map[string]int{"run_a": plane.MaxLineage, "run_b": 1, "run_c": 1} {
		got, err := s.Lineage(ctx, owner)
		must(t, err)
		if len(got) != want || want == 1 && got[0] != plane.UnknownSource {
			t.Errorf("%s: %d sources", owner, len(got))
		}
	}
	write(t, s, func(tx plane.Tx) error { return s.Taint(tx, run.ID, "slack:C1", plane.Private) })
	write(t, s, func(tx plane.Tx) error { return s.Taint(tx, run.ID, "slack:C1", plane.Untrusted) })
	labels, err := s.ThreadLabels(ctx, "slack:C1")
	must(t, err)
	v, err := s.RunByID(ctx, run.ID)
	must(t, err)
	if labels != plane.Private|plane.Untrusted || v.Labels != labels {
		t.Errorf("%v %v", labels, v.Labels)
	}
}

func memoriesAreFound(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	for i, m := range []struct{ agent, conversation, text string }{
		{"general", "", "The harvest of pomegranates"}, {"general", "person:ada", "Ada likes pomegranates"}, {"other", "", "Pomegranates elsewhere"}, {"general", "", "It's \"quoted\" & 100% odd: OR NOT *"},
	} {
		mem := plane.Memory{ID: plane.MemoryIDFor("run_x", fmt.Sprint(i)), Agent: m.agent, Conversation: m.conversation, Labels: plane.Untrusted, Sources: []string{"evd_1"}}
		for range 2 { // done again, it is the same
			write(t, s, func(tx plane.Tx) error { return s.AddMemory(tx, &mem, []byte("sealed "+m.text), m.text) })
		}
		clock.Pass(time.Second)
	}
	search := func(conversation string, words ...string) string {
		rows, err := s.SearchMemories(ctx, "general", conversation, words, 10)
		must(t, err)
		var out []string
		for _, r := range rows {
			out = append(out, string(r.Sealed))
		}
		return strings.Join(out, "|")
	}
	if got := search("person:bob", "pomegranates"); got != "sealed The harvest of pomegranates" {
		t.Errorf("%s", got)
	}
	if got := search("person:ada", "pomegranates", "likes"); !strings.HasPrefix(got, "sealed Ada likes") || !strings.Contains(got, "harvest") {
		t.Errorf("%s", got)
	}
	for _, odd := range []string{`"`, `'`, `*`, `OR`, `NEAR(`, `\`, `:*`, `!x`, `a & b`, `quoted`, `'; DROP TABLE memories`} {
		search("", odd) // whatever is asked, it is words
	}
	if got := search("", "quoted"); !strings.Contains(got, "odd") {
		t.Errorf("%s", got)
	}
	rows, err := s.Memories(ctx, "general", "person:ada", 10)
	must(t, err)
	if len(rows) != 3 || !strings.Contains(string(rows[0].Sealed), "odd") || rows[2].At.After(rows[0].At) {
		t.Fatalf("%+v", rows)
	}
	write(t, s, func(tx plane.Tx) error { return s.DropMemory(tx, "general", rows[0].ID) })
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.DropMemory(tx, "other", rows[1].ID) }), plane.NotFound)
	if got := search("", "quoted"); got != "" {
		t.Errorf("forgotten: %s", got)
	}
}

func lanesAreSealed(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	add := func(n int) {
		for range n {
			write(t, s, func(tx plane.Tx) error { return s.AddAudit(tx, plane.AuditEntry{Who: "a", Action: "x"}) })
		}
	}
	seal := func(most int) (done bool, n int) {
		write(t, s, func(tx plane.Tx) (err error) {
			done, err = s.Seal(tx, "main", most, func(before *plane.Checkpoint, es []plane.AuditEntry) (plane.Checkpoint, error) {
				n = len(es)
				c := plane.Checkpoint{Lane: "main", N: 1, Entries: int64(n), Last: es[n-1].ID, Hash: "h", At: tx.Now(), Key: "k", Sig: []byte("s")}
				if before != nil {
					c.N, c.Prev = before.N+1, before.Hash
				}
				return c, nil
			})
			return err
		})
		return done, n
	}
	if done, _ := seal(10); done {
		t.Error("an empty lane was sealed")
	}
	add(5)
	for _, want := range []int{3, 2} {
		if done, n := seal(3); !done || n != want {
			t.Errorf("%v %d", done, n)
		}
	}
	add(1)
	clock.Pass(time.Hour)
	if done, n := seal(10); !done || n != 1 {
		t.Errorf("%v %d", done, n)
	}
	points, err := s.Checkpoints(ctx, "main", 0, 10)
	must(t, err)
	if len(points) != 3 || points[2].Prev != "h" || points[0].N != 1 {
		t.Fatalf("%+v", points)
	}
	before := clock.Now().Add(-time.Minute)
	write(t, s, func(tx plane.Tx) error {
		more, err := s.CutAudit(tx, "main", before)
		if more {
			t.Error("there is no more")
		}
		return err
	})
	points, err = s.Checkpoints(ctx, "main", 0, 10)
	must(t, err)
	entries, err := s.Audit(ctx, plane.AuditFilter{Limit: 10})
	must(t, err)
	if len(points) != 2 || points[0].N != 2 || len(entries) != 1 {
		t.Fatalf("%+v %+v", points, entries)
	}
	covered := 0
	for i, c := range points {
		after := ""
		if i > 0 {
			after = points[i-1].Last
		}
		must(t, s.Stretch(ctx, c, after, func(plane.AuditEntry) { covered++ }))
	}
	add(2)
	open, strays, err := s.Uncovered(ctx, points[0], points[1])
	must(t, err)
	if covered != 1 || open != 2 || strays != 0 {
		t.Errorf("%d covered, %d open, %d strays", covered, open, strays)
	}
	for i, want := range []bool{true, false, true} {
		owner := []string{"a", "b", "a"}[i]
		got, err := s.TakeLease(ctx, "l", owner, clock.Now().Add(time.Minute))
		must(t, err)
		if got != want {
			t.Errorf("%s: %v", owner, got)
		}
	}
	clock.Pass(2 * time.Minute)
	if got, err := s.TakeLease(ctx, "l", "b", clock.Now().Add(time.Minute)); err != nil || !got {
		t.Errorf("a lease that is over: %v %v", got, err)
	}
}

func callsAreFolded(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	say := func(tx plane.Tx, who, call string) error {
		return s.AddAudit(tx, plane.AuditEntry{Who: who, Action: plane.AuditCall, What: call, Decision: "succeeded", Digest: "d-" + call})
	}
	write(t, s, func(tx plane.Tx) error { return say(tx, "a", "cal_0") })
	write(t, s, func(tx plane.Tx) error {
		must(t, s.AddAudit(tx, plane.AuditEntry{Who: "a", Action: "rule.add", What: "rul_1"}))
		for i := range 205 {
			if err := say(tx, []string{"a", "b"}[i%2], fmt.Sprintf("cal_1%03d", i)); err != nil {
				return err
			}
		}
		return say(tx, "a\tforged", "cal_2") // written by itself: it would not read back
	})
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error {
		must(t, say(tx, "a", "cal_3"))
		return plane.Errorf(plane.Conflict, "no")
	}), plane.Conflict)
	list := func(f plane.AuditFilter) []plane.AuditEntry {
		f.Limit = max(f.Limit, 1) * 1000
		all, err := s.Audit(ctx, f)
		must(t, err)
		return all
	}
	all := list(plane.AuditFilter{})
	if len(all) != 208 || all[207].What != "cal_0" || all[207].Action != plane.AuditCall {
		t.Fatalf("%d entries, the first %+v", len(all), all[len(all)-1])
	}
	if e := all[0]; e.What != "cal_1204" || e.Decision != "succeeded" || e.Digest != "d-cal_1204" || e.Who != "a" || !e.At.Equal(clock.Now()) {
		t.Errorf("%+v", e)
	}
	for i := range all[1:] {
		if all[i].ID <= all[i+1].ID {
			t.Errorf("%s is not after %s", all[i].ID, all[i+1].ID)
		}
	}
	for _, c := range []struct {
		f    plane.AuditFilter
		want int
	}{{plane.AuditFilter{Who: "b"}, 102}, {plane.AuditFilter{What: "cal_1203"}, 1}, {plane.AuditFilter{Action: "call"}, 207}, {plane.AuditFilter{Action: "calls"}, 0}, {plane.AuditFilter{Action: "rule"}, 1}, {plane.AuditFilter{What: "cal_3"}, 0}} {
		if got := list(c.f); len(got) != c.want {
			t.Errorf("%+v: %d entries, want %d", c.f, len(got), c.want)
		}
	}
	few, err := s.Audit(ctx, plane.AuditFilter{Who: "a", What: "cal_1", Limit: 3})
	must(t, err)
	if len(few) != 3 || few[2].What != "cal_1200" {
		t.Errorf("%+v", few)
	}
}

func recordsAreSwept(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	conn := savedConnection(t, s)
	old, open := anEffect(clock, conn, "a", "tool:a", ""), anEffect(clock, conn, "b", "tool:b", "")
	for _, c := range []*plane.Call{&old, &open} {
		write(t, s, func(tx plane.Tx) error { return s.InsertDispatched(tx, c) })
	}
	old.State, open.State, open.Reason = plane.CallSucceeded, plane.CallUnknown, "?"
	for _, c := range []*plane.Call{&old, &open} {
		write(t, s, func(tx plane.Tx) error {
			if err := s.EndAttempt(tx, plane.Attempt{Call: c.ID, N: 1, Outcome: "answered"}); err != nil {
				return err
			}
			return s.MoveCall(tx, c, plane.CallDispatched)
		})
	}
	clock.Pass(500 * 24 * time.Hour)
	fresh := anEffect(clock, conn, "c", "tool:c", "")
	write(t, s, func(tx plane.Tx) error { return s.InsertDispatched(tx, &fresh) })
	must(t, s.SweepRecords(ctx, clock.Now().Add(-400*24*time.Hour)))
	_, err := s.CallByID(ctx, old.ID)
	wantKind(t, err, plane.NotFound)
	for _, id := range []plane.CallID{open.ID, fresh.ID} {
		if _, err := s.CallByID(ctx, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if list, err := s.AttemptsOfCall(ctx, old.ID); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if list, err := s.AttemptsOfCall(ctx, open.ID); err != nil || len(list) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	run := aRun(t, s, clock)
	ev := plane.Event{Seq: 1, At: clock.Now(), Run: run.ID, Kind: "text"}
	write(t, s, func(tx plane.Tx) error { return s.AddEvent(tx, &ev, []byte("x")) })
	write(t, s, func(tx plane.Tx) error { return s.SaveResult(tx, "res_1", run.ID, "cal_1", false, []byte("b"), nil) })
	clock.Pass(100 * 24 * time.Hour)
	left := func() (n int) {
		evs, err := s.Events(ctx, run.ID, 0, 10)
		must(t, err)
		res, err := s.ResultsOfRun(ctx, run.ID)
		must(t, err)
		return len(evs) + len(res)
	}
	sweep := func() {
		must(t, s.SweepEvents(ctx, clock.Now().Add(-90*24*time.Hour)))
		must(t, s.SweepResults(ctx, clock.Now().Add(-7*24*time.Hour)))
	}
	if sweep(); left() != 2 {
		t.Error("a run that is not over lost something")
	}
	run.State = plane.RunSucceeded
	write(t, s, func(tx plane.Tx) error { return s.LeaveRun(tx, &run, nil) })
	clock.Pass(100 * 24 * time.Hour)
	if sweep(); left() != 0 {
		t.Errorf("%d rows are left", left())
	}
}
