package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"patchbay/bench/figures"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// tally counts what must not be, and what was seen on the way.
type tally struct {
	p       *plant
	verbose bool
	faults  map[string]int
	states  map[string]int
	errors  []error

	twice       int // effects executed twice
	unrecorded  int // executed, and no row says so
	lies        int // a row says the opposite of what was executed
	lost        int // observations that were completed and are gone
	stuck       int // runs and calls that nobody can move
	unexplained int // unknown without a reason
	forbidden   int // executed although a person denied it, or nobody was asked
	effects     int
}

func newTally(p *plant, verbose bool) *tally {
	return &tally{p: p, verbose: verbose, faults: map[string]int{}, states: map[string]int{}}
}

func (t *tally) broken(err error) { t.errors = append(t.errors, err) }

func (t *tally) print(s *figures.Sheet, db string, n int) {
	zero := func(name string, v int) { s.AtMost(db+" "+name, float64(v), 0, "") }
	s.Told(db+" schedules", float64(n), "")
	s.Told(db+" effects asked for", float64(t.effects), "")
	zero("effects executed twice", t.twice)
	zero("effects executed without a record", t.unrecorded)
	zero("records that say the opposite", t.lies)
	zero("completed observations lost", t.lost)
	zero("runs and calls stuck", t.stuck)
	zero("unknown calls without a reason", t.unexplained)
	zero("effects that were denied or not approved", t.forbidden)
	for _, m := range []struct {
		what string
		m    map[string]int
	}{{"fault", t.faults}, {"call", t.states}} {
		var names []string
		for k := range m.m {
			names = append(names, k)
		}
		sort.Strings(names)
		for _, k := range names {
			s.Told(db+" "+m.what+" "+k, float64(m.m[k]), "")
		}
	}
}

// row is a call as it is stored.
type row struct {
	id, state, class, reason, run, approval, evidence string
	fence                                             int64
	observed, results                                 int
}

func (t *tally) rows(x string) ([]row, error) {
	q := `SELECT id, state, class, reason, run, approval, evidence, fence,
		(SELECT COUNT(*) FROM evidence e WHERE e.id = calls.evidence AND e.observed_at > 0), (SELECT COUNT(*) FROM results r WHERE r.call = calls.id)
		FROM calls WHERE args_digest = '` + digest(x) + `' ORDER BY id`
	rs, err := t.p.db.Query(q)
	if err != nil {
		return nil, err
	}
	defer rs.Close()
	var out []row
	for rs.Next() {
		var r row
		if err := rs.Scan(&r.id, &r.state, &r.class, &r.reason, &r.run, &r.approval, &r.evidence, &r.fence, &r.observed, &r.results); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rs.Err()
}

// settleTime is how long everything may take to come to rest.
const settleTime = 40 * time.Second

// check waits until the schedule is at rest, saying of unknown calls what the server's
// own count says, and holds the record to that count.
func (t *tally) check(s *schedule) {
	var open []string
	for end := time.Now().Add(settleTime); ; time.Sleep(60 * time.Millisecond) {
		var err error
		if open, err = t.resolve(s); err == nil && len(open) == 0 {
			break
		}
		if time.Now().After(end) {
			t.stuck++
			t.tell(s, "stuck: %v %v", open, err)
			break
		}
	}
	for _, st := range s.all() {
		rows, err := t.rows(st.x)
		if err != nil {
			t.broken(err)
			return
		}
		t.hold(s, st, rows)
	}
}

// all are the steps of the schedule.
func (s *schedule) all() []step {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []step
	for _, r := range s.runs {
		out = append(out, r.xs...)
	}
	for _, a := range s.asks {
		out = append(out, a.step)
	}
	return out
}

// resolve is a person who looks at the far end. It returns what is still open.
func (t *tally) resolve(s *schedule) (open []string, err error) {
	var l command.CallsList
	if err := t.p.do("calls.list", command.CallsListInput{Unknown: true, Limit: 200}, &l); err != nil {
		return nil, err
	}
	unknown := map[string]command.CallRow{}
	for _, c := range l.Calls {
		unknown[c.ID] = c
		if c.Reason == "" {
			t.unexplained++
		}
	}
	for _, st := range s.all() {
		rows, err := t.rows(st.x)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			// A client's call waits for its client, until its approval expires.
			if !plane.CallState(r.state).Final() && !(r.fence == 0 && r.state == string(plane.CallAwaitingApproval)) {
				open = append(open, r.id+" is "+r.state)
			}
			if _, ok := unknown[r.id]; !ok || r.state != string(plane.CallUnknown) {
				continue
			}
			t.states["met as unknown"]++
			open = append(open, r.id)
			outcome := "not-done"
			switch {
			case t.p.far.count(st.x) > 0:
				outcome = "done"
			case r.fence > 0 && hash(r.id)%2 == 0:
				outcome = "send-again"
			}
			t.p.do("runs.resolve", command.ResolveInput{ID: r.id, Outcome: outcome}, &command.Resolved{}) // an answer may have been first
		}
	}
	s.mu.Lock()
	runs := append([]started(nil), s.runs...)
	s.mu.Unlock()
	for _, r := range runs {
		var show command.RunsShow
		if err := t.p.do("runs.show", command.RunsShowInput{RunInput: command.RunInput{Run: r.id}}, &show); err != nil {
			return nil, err
		}
		if !plane.RunState(show.Run.State).Ended() {
			open = append(open, r.id+" is "+show.Run.State+" "+show.Run.Waiting)
			if show.Run.State == string(plane.RunWaiting) && show.Run.Reason == "" {
				t.unexplained++
			}
		}
	}
	return open, nil
}

// hold compares what is on record of a call with what was executed.
func (t *tally) hold(s *schedule, st step, rows []row) {
	n := t.p.far.count(st.x)
	done, open := false, false
	for _, r := range rows {
		t.states[r.state]++
		switch plane.CallState(r.state) {
		case plane.CallSucceeded, plane.CallResolvedDone:
			done = true
		case plane.CallUnknown:
			open = true
		}
		if r.fence > 0 && r.state == string(plane.CallSucceeded) && (r.observed != 1 || r.results != 1) {
			t.lost++
			t.tell(s, "%s lost its observation", r.id)
		}
		if r.state == string(plane.CallUnknown) && r.reason == "" {
			t.unexplained++
		}
	}
	if st.tool == "look" {
		return
	}
	t.effects++
	switch {
	case n > 1:
		t.twice++
		t.tell(s, "%s was executed %d times: %+v", st.x, n, rows)
	case n == 1 && len(rows) == 0:
		t.unrecorded++
		t.tell(s, "%s has no record", st.x)
	case !open && done != (n == 1):
		t.lies++
		t.tell(s, "%s was executed %d times, on record is %+v", st.x, n, rows)
	}
	if st.tool == "ask" && n > 0 {
		asked := false
		for _, r := range rows {
			asked = asked || r.approval != ""
		}
		if denies(st.x) || !asked {
			t.forbidden++
			t.tell(s, "%s was not approved: %+v", st.x, rows)
		}
	}
	for _, a := range s.asks {
		if a.x == st.x && a.answered && n != 1 {
			t.lies++
			t.tell(s, "%s was answered and executed %d times", st.x, n)
		}
	}
}

func (t *tally) tell(s *schedule, format string, args ...any) {
	if !t.verbose {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(os.Stderr, "schedule %d: %s\n  %s\n", s.n, fmt.Sprintf(format, args...), strings.Join(s.log, "\n  "))
}
