package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

const callColumns = `id, run, agent, principal, connection, version, server, tool, alias, tool_use, fingerprint, class,
	args_digest, state, reason, attempts, planned_at, done_at, bytes, replaces, fence, resolved_by, note,
	target, spec, idem, approval, evidence, result, proof, owner, origin, upstream`

func scanCall(r *sql.Rows) (plane.Call, error) {
	var c plane.Call
	var planned, done, upstream int64
	err := r.Scan(&c.ID, &c.Run, &c.Agent, &c.Principal, &c.Connection, &c.Version, &c.Server, &c.Tool, &c.Alias, &c.ToolUse,
		&c.Fingerprint, &c.Class, &c.ArgsDigest, &c.State, &c.Reason, &c.Attempts, &planned, &done, &c.Bytes,
		&c.Replaces, &c.Fence, &c.ResolvedBy, &c.Note, &c.Target, &c.Spec, &c.Idem, &c.Approval, &c.Evidence, &c.Result, &c.Proof, &c.Owner, &c.Origin, &upstream)
	c.PlannedAt, c.DoneAt, c.Upstream = plane.FromMicros(planned), plane.FromMicros(done), time.Duration(upstream)*time.Microsecond
	return c, err
}

func callArgs(c *plane.Call) []any {
	return []any{c.ID, c.Run, c.Agent, c.Principal, c.Connection, c.Version, c.Server, c.Tool, c.Alias, c.ToolUse, c.Fingerprint, c.Class,
		c.ArgsDigest, c.State, c.Reason, c.Attempts, plane.Micros(c.PlannedAt), plane.Micros(c.DoneAt), c.Bytes,
		c.Replaces, c.Fence, c.ResolvedBy, c.Note, c.Target, c.Spec, c.Idem, c.Approval, c.Evidence, c.Result, c.Proof, c.Owner, c.Origin, c.Upstream.Microseconds()}
}

// InsertCall adds a call as it is: planned, or settled already.
func (s *Store) InsertCall(t plane.Tx, c *plane.Call) error {
	x := own(t)
	q, args := `INSERT INTO calls (`+callColumns+`) VALUES (`+callMarks+`)`, []any(nil)
	switch {
	case lean(c) && x.keeps && c.State.Final():
		x.keep(c)
		return nil
	case lean(c):
		q, args = `INSERT INTO calls (`+leanColumns+`) VALUES (`+leanMarks+`)`, appendLean(nil, c)
	default:
		args = callArgs(c)
	}
	res, err := x.exec(q, args...)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The call is recorded already."))
}

// callMarks stand for callArgs.
const callMarks = `?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?`

// A client's call has nothing to say in a third of the columns: binding those would cost
// as much as writing the row.
const (
	leanColumns = `id, run, agent, principal, connection, version, server, tool, alias, fingerprint, class, args_digest, state, reason, attempts,
	planned_at, done_at, bytes, target, spec, result, owner, upstream, tool_use, replaces, fence, resolved_by, note`
	leanMarks = `?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', 0, '', ''`
)

func lean(c *plane.Call) bool {
	return c.Fence == 0 && c.ToolUse == "" && c.Replaces == "" && c.ResolvedBy == "" && c.Note == "" && c.Idem == "" && c.Approval == "" && c.Evidence == "" && c.Proof == "" && c.Origin == ""
}

// appendLean appends what leanMarks stand for, as a driver takes it.
func appendLean(to []any, c *plane.Call) []any {
	return append(to, string(c.ID), string(c.Run), c.Agent, c.Principal, string(c.Connection), c.Version, c.Server, c.Tool, c.Alias, c.Fingerprint, string(c.Class),
		c.ArgsDigest, string(c.State), c.Reason, int64(c.Attempts), plane.Micros(c.PlannedAt), plane.Micros(c.DoneAt), int64(c.Bytes), c.Target, c.Spec, c.Result, c.Owner, c.Upstream.Microseconds())
}

// standing is the condition that a dispatch re-checks in the database: the
// connection is enabled and at the version that was offered; the run, where there is
// one, is still held under the fence that planned the call; no claim of another call
// is on its target; and the source of an own run's call is reserved as it stands.
const standing = connected + `
	AND (? = 0 OR EXISTS (SELECT 1 FROM runs WHERE id = ? AND fence = ? AND state = 'running' AND cancel = 0 {share}))
	AND (? = '' OR NOT EXISTS (SELECT 1 FROM claims WHERE` + claimed + `))
	AND (? = '' OR EXISTS (SELECT 1 FROM evidence WHERE id = ? AND call = ? AND connection = ? AND version = ? AND tool = ? AND fingerprint = ?))`

const connected = ` EXISTS (SELECT 1 FROM connections WHERE id = ? AND version = ? AND enabled = 1 AND state = 'connected' {share})`

// claimed finds the claims that keep a call back: on its target, or by another way of
// naming the targets of its tool.
const claimed = ` connection = ? AND call <> ? AND (target = ? OR tool = ? AND spec <> ?)`

func standingArgs(c *plane.Call) []any {
	target := c.Target
	if c.Class == plane.Query {
		target = ""
	}
	return append(append([]any{c.Connection, c.Version, c.Fence, c.Run, c.Fence, target}, claimedArgs(c)...),
		c.Evidence, c.Evidence, c.ID, c.Connection, c.Version, c.Tool, c.Fingerprint)
}

func claimedArgs(c *plane.Call) []any { return []any{c.Connection, c.ID, c.Target, c.Tool, c.Spec} }

// InsertDispatched adds a call in state dispatched, if it still stands; it spends the
// approval and takes the claim that go with it. Its first attempt has no row of its
// own before it ends: the call's says as much.
func (s *Store) InsertDispatched(t plane.Tx, c *plane.Call) error {
	x := own(t)
	q, args := `INSERT INTO calls (`+callColumns+`) SELECT `+callMarks+` WHERE`+standing, []any(nil)
	if lean(c) && c.Class != plane.Query && c.Target != "" {
		q = `INSERT INTO calls (` + leanColumns + `) SELECT ` + leanMarks + ` WHERE` + connected + ` AND NOT EXISTS (SELECT 1 FROM claims WHERE` + claimed + `)`
		args = append(append(appendLean(make([]any, 0, 32), c), c.Connection, c.Version), claimedArgs(c)...)
	} else {
		args = append(callArgs(c), standingArgs(c)...)
	}
	res, err := x.exec(q, args...)
	if err := s.stands(x, c, res, err); err != nil {
		return err
	}
	return s.take(x, c)
}

// Dispatch moves a call from planned, from waiting for somebody, or from a dispatch of
// which it is on record that nothing ran, or, a query's, that it was lost, to its n-th
// attempt, if it still stands.
func (s *Store) Dispatch(t plane.Tx, c *plane.Call, n int) error {
	x := own(t)
	res, err := x.exec(`UPDATE calls SET state = 'dispatched', attempts = ?, approval = COALESCE(NULLIF(?, ''), approval), proof = COALESCE(NULLIF(?, ''), proof), owner = ? WHERE id = ? AND attempts = ?
		AND (state IN ('planned', 'awaiting_input', 'awaiting_approval') OR state = 'dispatched'
			AND EXISTS (SELECT 1 FROM attempts WHERE call = ? AND n = ? AND outcome IN ('nothing_ran', 'lost'))) AND`+standing,
		append([]any{n, c.Approval, c.Proof, c.Owner, c.ID, n - 1, c.ID, n - 1}, standingArgs(c)...)...)
	if err := s.stands(x, c, res, err); err != nil {
		return err
	}
	if n == 1 {
		if err := s.take(x, c); err != nil {
			return err
		}
	}
	return s.addAttempt(x, c.ID, n, c.Nonce)
}

// stands tells why nothing was dispatched.
func (s *Store) stands(x *tx, c *plane.Call, res sql.Result, err error) error {
	err = exactly(res, err, 1, plane.Errorf(plane.Conflict, "The connection or the run changed since this call was offered; nothing was sent."))
	if plane.KindOf(err) != plane.Conflict || c.Target == "" || c.Class == plane.Query {
		return err
	}
	if held := s.holder(x, c); held != nil {
		return held
	}
	return err
}

// take spends a call's approval and takes its named target.
func (s *Store) take(x *tx, c *plane.Call) error {
	if c.Approval != "" {
		if err := s.spend(x, c); err != nil {
			return err
		}
	}
	if c.Spec == "" || c.Class == plane.Query {
		return nil
	}
	res, err := x.exec(`INSERT INTO claims (connection, target, call, tool, spec, why, at, beside) VALUES (?, ?, ?, ?, ?, '', ?, '') ON CONFLICT DO NOTHING`,
		c.Connection, c.Target, c.ID, c.Tool, c.Spec, plane.Micros(x.now))
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "Another call was first.")); err != nil {
		if held := s.holder(x, c); held != nil {
			return held
		}
		return err
	}
	return nil
}

// addAttempt opens an attempt; until it ends, its detail says by whom it was begun.
func (s *Store) addAttempt(x *tx, id plane.CallID, n int, nonce string) error {
	_, err := x.exec(`INSERT INTO attempts (call, n, at, done_at, outcome, detail) VALUES (?, ?, ?, 0, '', ?)`, id, n, plane.Micros(x.now), nonce)
	return err
}

// BegunAs reports whether the n-th attempt of a call is open, and was begun under a nonce.
func (s *Store) BegunAs(t plane.Tx, id plane.CallID, n int, nonce string) (bool, error) {
	found := false
	err := own(t).each(func(r *sql.Rows) error { found = true; return r.Scan(new(int64)) },
		`SELECT n FROM attempts WHERE call = ? AND n = ? AND outcome = '' AND detail = ?`, id, n, nonce)
	return found, err
}

// EndAttempt writes down how an attempt ended. At is when it began, where it has no
// row yet.
func (s *Store) EndAttempt(t plane.Tx, a plane.Attempt) error {
	now := plane.Micros(t.Now())
	at := now
	if !a.At.IsZero() {
		at = plane.Micros(a.At)
	}
	res, err := own(t).exec(`INSERT INTO attempts (call, n, at, done_at, outcome, detail) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (call, n) DO UPDATE SET done_at = excluded.done_at, outcome = excluded.outcome, detail = excluded.detail WHERE attempts.outcome = ''`,
		a.Call, a.N, at, now, a.Outcome, a.Detail)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The attempt has ended already."))
}

// MoveCall changes a call's state from one to another, with what goes with the
// new state, and its claim with it. It is a compare-and-swap: conflict when the state
// is another.
func (s *Store) MoveCall(t plane.Tx, c *plane.Call, from plane.CallState) error {
	x := own(t)
	res, err := x.exec(`UPDATE calls SET state = ?, reason = ?, done_at = ?, bytes = ?, resolved_by = ?, note = ?, result = ?, proof = ?, origin = ?, upstream = ? WHERE id = ? AND state = ?`,
		c.State, c.Reason, plane.Micros(c.DoneAt), c.Bytes, c.ResolvedBy, c.Note, c.Result, c.Proof, c.Origin, c.Upstream.Microseconds(), c.ID, from)
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "The call is no longer %s.", from)); err != nil {
		return err
	}
	return s.moveClaim(x, c, from)
}

// CallByID returns one call.
func (s *Store) CallByID(ctx context.Context, id plane.CallID) (plane.Call, error) {
	var c plane.Call
	err := s.one(ctx, "call", func(r *sql.Rows) (err error) { c, err = scanCall(r); return err },
		`SELECT `+callColumns+` FROM calls WHERE id = ?`, id)
	return c, err
}

// CallsOfRun returns a run's calls in the order they were planned.
func (s *Store) CallsOfRun(ctx context.Context, run plane.RunID) ([]plane.Call, error) {
	var out []plane.Call
	err := s.each(ctx, func(r *sql.Rows) error {
		c, err := scanCall(r)
		out = append(out, c)
		return err
	}, `SELECT `+callColumns+` FROM calls WHERE run = ? AND fence > 0 ORDER BY planned_at, id`, run)
	return out, err
}

// StrandedCalls are calls of sessions that are not runs and that nobody settles any
// more: dispatched before a time, or by a process whose lease was over at now; or
// waiting for input since before another time.
func (s *Store) StrandedCalls(ctx context.Context, now, dispatched, waiting time.Time) ([]plane.Call, error) {
	out, err := s.callsWhere(ctx, `state = 'dispatched' AND fence = 0 AND (planned_at < ?
		AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.call = calls.id AND a.outcome = '' AND a.at >= ?)
		OR owner <> '' AND NOT EXISTS (SELECT 1 FROM leases WHERE name = 'process/' || calls.owner AND until >= ?))`,
		plane.Micros(dispatched), plane.Micros(dispatched), plane.Micros(now))
	if err != nil {
		return nil, err
	}
	more, err := s.callsWhere(ctx, `state = 'awaiting_input' AND fence = 0 AND planned_at < ?
		AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.call = calls.id AND a.done_at >= ?)`, plane.Micros(waiting), plane.Micros(waiting))
	return append(out, more...), err
}

// equal is a column that must hold a value, unless the value is empty.
type equal struct{ column, value string }

// where is the condition of a filter over rows whose ids rise, and its arguments.
func where(before string, all []equal) (string, []any) {
	cond, args := "1 = 1", []any{}
	for _, c := range all {
		if c.value != "" {
			cond += " AND " + c.column + " = ?"
			args = append(args, c.value)
		}
	}
	if before != "" {
		cond += " AND id < ?"
		args = append(args, before)
	}
	return cond, args
}

// Calls returns the latest calls that a filter lets through, newest first.
func (s *Store) Calls(ctx context.Context, f plane.CallFilter) ([]plane.Call, error) {
	cond, args := where(string(f.Before), []equal{{"agent", f.Agent}, {"server", f.Server}, {"state", f.State}, {"run", string(f.Run)}, {"connection", string(f.Connection)}})
	if !f.Since.IsZero() {
		cond, args = cond+" AND id >= ?", append(args, firstCallID(f.Since))
	}
	var out []plane.Call
	err := s.each(ctx, func(r *sql.Rows) error {
		c, err := scanCall(r)
		out = append(out, c)
		return err
	}, `SELECT `+callColumns+` FROM calls WHERE `+cond+` ORDER BY id DESC LIMIT ?`, append(args, f.Limit)...)
	return out, err
}

// AttemptsOfCall returns a call's attempts.
func (s *Store) AttemptsOfCall(ctx context.Context, id plane.CallID) ([]plane.Attempt, error) {
	var out []plane.Attempt
	err := s.each(ctx, func(r *sql.Rows) error {
		a, err := scanAttempt(r)
		out = append(out, a)
		return err
	}, `SELECT call, n, at, done_at, outcome, detail FROM attempts WHERE call = ? ORDER BY n`, id)
	return out, err
}

func scanAttempt(r *sql.Rows) (plane.Attempt, error) {
	var a plane.Attempt
	var at, done int64
	err := r.Scan(&a.Call, &a.N, &at, &done, &a.Outcome, &a.Detail)
	a.At, a.DoneAt = plane.FromMicros(at), plane.FromMicros(done)
	if a.Outcome == "" {
		a.Detail = "" // who began it
	}
	return a, err
}

// UnknownCalls are the calls that wait for a person's word.
func (s *Store) UnknownCalls(ctx context.Context) ([]plane.Call, error) {
	return s.callsWhere(ctx, `state = 'unknown'`)
}

func (s *Store) callsWhere(ctx context.Context, cond string, args ...any) ([]plane.Call, error) {
	var out []plane.Call
	err := s.each(ctx, func(r *sql.Rows) error {
		c, err := scanCall(r)
		out = append(out, c)
		return err
	}, `SELECT `+callColumns+` FROM calls WHERE `+cond+` ORDER BY planned_at, id LIMIT 1000`, args...)
	return out, err
}

// AttemptsOfRun returns the attempts of all calls of a run.
func (s *Store) AttemptsOfRun(ctx context.Context, run plane.RunID) ([]plane.Attempt, error) {
	var out []plane.Attempt
	err := s.each(ctx, func(r *sql.Rows) error {
		a, err := scanAttempt(r)
		out = append(out, a)
		return err
	}, `SELECT a.call, a.n, a.at, a.done_at, a.outcome, a.detail FROM attempts a JOIN calls c ON c.id = a.call
		WHERE c.run = ? AND c.fence > 0 ORDER BY a.at, a.call, a.n`, run)
	return out, err
}
