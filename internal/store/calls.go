package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

const callColumns = `id, run, agent, principal, connection, version, server, tool, alias, tool_use, fingerprint, class,
	args_digest, state, reason, attempts, planned_at, done_at, bytes, replaces, fence, resolved_by, note`

func scanCall(r *sql.Rows) (plane.Call, error) {
	var c plane.Call
	var planned, done int64
	err := r.Scan(&c.ID, &c.Run, &c.Agent, &c.Principal, &c.Connection, &c.Version, &c.Server, &c.Tool, &c.Alias, &c.ToolUse,
		&c.Fingerprint, &c.Class, &c.ArgsDigest, &c.State, &c.Reason, &c.Attempts, &planned, &done, &c.Bytes,
		&c.Replaces, &c.Fence, &c.ResolvedBy, &c.Note)
	c.PlannedAt, c.DoneAt = plane.FromMicros(planned), plane.FromMicros(done)
	return c, err
}

func callArgs(c *plane.Call) []any {
	return []any{c.ID, c.Run, c.Agent, c.Principal, c.Connection, c.Version, c.Server, c.Tool, c.Alias, c.ToolUse, c.Fingerprint, c.Class,
		c.ArgsDigest, c.State, c.Reason, c.Attempts, plane.Micros(c.PlannedAt), plane.Micros(c.DoneAt), c.Bytes,
		c.Replaces, c.Fence, c.ResolvedBy, c.Note}
}

// InsertCall adds a call as it is: planned, or settled already.
func (s *Store) InsertCall(t plane.Tx, c *plane.Call) error {
	res, err := own(t).exec(`INSERT INTO calls (`+callColumns+`)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, callArgs(c)...)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The call is recorded already."))
}

// standing is the condition that a dispatch re-checks in the database: the
// connection is enabled and at the version that was offered, and the run, where
// there is one, is still held under the fence that planned the call.
const standing = ` EXISTS (SELECT 1 FROM connections WHERE id = ? AND version = ? AND enabled = 1 AND state = 'connected' {share})
	AND (? = 0 OR EXISTS (SELECT 1 FROM runs WHERE id = ? AND fence = ? AND state = 'running' AND cancel = 0 {share}))`

func standingArgs(c *plane.Call) []any {
	return []any{c.Connection, c.Version, c.Fence, c.Run, c.Fence}
}

// InsertDispatched adds a call in state dispatched, if it still stands. Its first
// attempt has no row of its own before it ends: the call's says as much.
func (s *Store) InsertDispatched(t plane.Tx, c *plane.Call) error {
	x := own(t)
	res, err := x.exec(`INSERT INTO calls (`+callColumns+`)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE`+standing, append(callArgs(c), standingArgs(c)...)...)
	return exactly(res, err, 1, notStanding())
}

// Dispatch moves a call from planned, from waiting for input, or from a dispatch
// that proved to have done nothing, to its n-th attempt, if it still stands.
func (s *Store) Dispatch(t plane.Tx, c *plane.Call, n int) error {
	x := own(t)
	res, err := x.exec(`UPDATE calls SET state = 'dispatched', attempts = ? WHERE id = ? AND attempts = ? AND state IN ('planned', 'dispatched', 'awaiting_input') AND`+standing,
		append([]any{n, c.ID, n - 1}, standingArgs(c)...)...)
	if err := exactly(res, err, 1, notStanding()); err != nil {
		return err
	}
	return s.addAttempt(x, c.ID, n)
}

func notStanding() *plane.Error {
	return plane.Errorf(plane.Conflict, "The connection or the run changed since this call was offered; nothing was sent.")
}

func (s *Store) addAttempt(x *tx, id plane.CallID, n int) error {
	_, err := x.exec(`INSERT INTO attempts (call, n, at, done_at, outcome, detail) VALUES (?, ?, ?, 0, '', '')`, id, n, plane.Micros(x.now))
	return err
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
// new state. It is a compare-and-swap: conflict when the state is another.
func (s *Store) MoveCall(t plane.Tx, c *plane.Call, from plane.CallState) error {
	res, err := own(t).exec(`UPDATE calls SET state = ?, reason = ?, done_at = ?, bytes = ?, resolved_by = ?, note = ? WHERE id = ? AND state = ?`,
		c.State, c.Reason, plane.Micros(c.DoneAt), c.Bytes, c.ResolvedBy, c.Note, c.ID, from)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The call is no longer %s.", from))
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

// StrandedCalls are calls of sessions that are not runs, dispatched or waiting for
// input since before a time each, and never settled.
func (s *Store) StrandedCalls(ctx context.Context, dispatched, waiting time.Time) ([]plane.Call, error) {
	out, err := s.callsWhere(ctx, `state = 'dispatched' AND fence = 0 AND planned_at < ?
		AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.call = calls.id AND a.outcome = '' AND a.at >= ?)`, plane.Micros(dispatched), plane.Micros(dispatched))
	if err != nil {
		return nil, err
	}
	more, err := s.callsWhere(ctx, `state = 'awaiting_input' AND fence = 0 AND planned_at < ?`, plane.Micros(waiting))
	return append(out, more...), err
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
		var a plane.Attempt
		var at, done int64
		err := r.Scan(&a.Call, &a.N, &at, &done, &a.Outcome, &a.Detail)
		a.At, a.DoneAt = plane.FromMicros(at), plane.FromMicros(done)
		out = append(out, a)
		return err
	}, `SELECT a.call, a.n, a.at, a.done_at, a.outcome, a.detail FROM attempts a JOIN calls c ON c.id = a.call
		WHERE c.run = ? AND c.fence > 0 ORDER BY a.at, a.call, a.n`, run)
	return out, err
}

// SaveResult keeps a call's observation; body and whole come sealed.
func (s *Store) SaveResult(t plane.Tx, id plane.ResultID, run plane.RunID, call plane.CallID, isError bool, body, whole []byte) error {
	if whole == nil {
		whole = []byte{}
	}
	_, err := own(t).exec(`INSERT INTO results (id, call, run, is_error, body, whole, at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		id, call, run, flag(isError), body, whole, plane.Micros(t.Now()))
	if IsUnique(err) {
		return plane.Errorf(plane.Conflict, "The call has an observation already.").Because(err)
	}
	return err
}

// StoredResult is a row of results, still sealed.
type StoredResult = struct {
	ID      plane.ResultID
	Call    plane.CallID
	IsError bool
	Body    []byte
	Whole   []byte
}

// ResultsOfRun returns what a run observed, without the whole texts.
func (s *Store) ResultsOfRun(ctx context.Context, run plane.RunID) ([]StoredResult, error) {
	var out []StoredResult
	err := s.each(ctx, func(r *sql.Rows) error {
		var v StoredResult
		var isError int64
		err := r.Scan(&v.ID, &v.Call, &isError, &v.Body)
		v.IsError = isError != 0
		out = append(out, v)
		return err
	}, `SELECT id, call, is_error, body FROM results WHERE run = ? ORDER BY at`, run)
	return out, err
}

// KeptBytes is how much of a run's results is kept whole.
func (s *Store) KeptBytes(ctx context.Context, run plane.RunID) (int, error) {
	var n int
	err := s.each(ctx, func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT COALESCE(SUM(LENGTH(whole)), 0) FROM results WHERE run = ?`, run)
	return n, err
}

// WholeResult returns one whole text of a run, still sealed.
func (s *Store) WholeResult(ctx context.Context, run plane.RunID, id plane.ResultID) (StoredResult, error) {
	var v StoredResult
	err := s.one(ctx, "result", func(r *sql.Rows) error { return r.Scan(&v.ID, &v.Call, &v.Whole) },
		`SELECT id, call, whole FROM results WHERE run = ? AND id = ?`, run, id)
	return v, err
}
