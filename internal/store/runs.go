package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"patchbay/internal/plane"
)

const runColumns = `id, agent, principal, prompt, state, waiting_for, reason, answer, turns, fence, owner, lease_until,
	created_at, ended_at, spent, cancel, caller, parent, round, conversation, labels, revision, servers`

// StoredRun is a run as the table has it: prompt and answer still sealed.
type StoredRun = struct {
	plane.Run
	SealedPrompt, SealedAnswer []byte
}

func scanRun(r *sql.Rows) (StoredRun, error) {
	var v StoredRun
	var lease, created, ended, spent, cancel int64
	var caller, servers string
	err := r.Scan(&v.ID, &v.Agent, &v.Principal, &v.SealedPrompt, &v.State, &v.WaitingFor, &v.Reason, &v.SealedAnswer, &v.Turns,
		&v.Fence, &v.Owner, &lease, &created, &ended, &spent, &cancel, &caller, &v.Parent, &v.Round, &v.Conversation, &v.Labels, &v.Revision, &servers)
	if err != nil {
		return v, err
	}
	if caller == "" { // a run of a version that knew one caller
		v.Caller = plane.Principal{Kind: plane.KindPerson, ID: v.Principal}
		if v.Principal == plane.Local.ID {
			v.Caller = plane.Local
		}
	} else {
		err = json.Unmarshal([]byte(caller), &v.Caller)
	}
	if v.Conversation == "" { // a run of a version that knew none
		v.Conversation = plane.ThreadOf(v.Caller)
	}
	if err == nil {
		err = json.Unmarshal([]byte(servers), &v.Attached)
	}
	v.LeaseUntil, v.CreatedAt, v.EndedAt = plane.FromMicros(lease), plane.FromMicros(created), plane.FromMicros(ended)
	v.Spent, v.Cancel = time.Duration(spent)*time.Microsecond, cancel != 0
	return v, err
}

// InsertRun adds a run in state queued.
func (s *Store) InsertRun(t plane.Tx, r *plane.Run, sealedPrompt []byte) error {
	caller, err := json.Marshal(r.Caller)
	if err != nil {
		return err
	}
	_, err = own(t).exec(`INSERT INTO runs (`+runColumns+`) VALUES (?, ?, ?, ?, 'queued', '', '', ?, 0, 0, '', 0, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?, '[]')`,
		r.ID, r.Agent, r.Principal, sealedPrompt, []byte{}, plane.Micros(t.Now()), string(caller), r.Parent, r.Round, r.Conversation, r.Labels, max(r.Revision, 1))
	if IsUnique(err) {
		return plane.Errorf(plane.Conflict, "The round has begun already.").Because(err)
	}
	return err
}

// RunByID returns one run.
func (s *Store) RunByID(ctx context.Context, id plane.RunID) (StoredRun, error) {
	var v StoredRun
	err := s.one(ctx, "run", func(r *sql.Rows) (err error) { v, err = scanRun(r); return err },
		`SELECT `+runColumns+` FROM runs WHERE id = ?`, id)
	return v, err
}

// Runs returns the latest runs of a principal, or of all when it is empty, newest
// first.
func (s *Store) Runs(ctx context.Context, f plane.RunFilter) ([]StoredRun, error) {
	cond, args := where(string(f.Before), []equal{{"principal", f.Principal}, {"agent", f.Agent}, {"state", string(f.State)}})
	var out []StoredRun
	err := s.each(ctx, func(r *sql.Rows) error {
		v, err := scanRun(r)
		out = append(out, v)
		return err
	}, `SELECT `+runColumns+` FROM runs WHERE `+cond+` ORDER BY id DESC LIMIT ?`, append(args, f.Limit)...)
	return out, err
}

// DueRuns returns the ids of runs that nobody works on: queued, or running under
// a lease that has expired at now.
func (s *Store) DueRuns(ctx context.Context, now time.Time, limit int) ([]plane.RunID, error) {
	var out []plane.RunID
	err := s.each(ctx, func(r *sql.Rows) error {
		var id plane.RunID
		err := r.Scan(&id)
		out = append(out, id)
		return err
	}, `SELECT id FROM runs WHERE state = 'queued' OR (state = 'running' AND lease_until < ?) ORDER BY created_at LIMIT ?`,
		plane.Micros(now), limit)
	return out, err
}

// DropLeases ends the leases of every running run. Only the sole user of a
// SQLite file may call it, at start: whoever held them is gone.
func (s *Store) DropLeases(t plane.Tx) error {
	_, err := own(t).exec(`UPDATE runs SET lease_until = 0 WHERE state = 'running'`)
	return err
}

// ClaimRun makes owner the holder of a due run and raises the fence: every
// write of a former holder is refused from here on.
func (s *Store) ClaimRun(t plane.Tx, id plane.RunID, owner string, until time.Time) error {
	res, err := own(t).exec(`UPDATE runs SET state = 'running', waiting_for = '', fence = fence + 1, owner = ?, lease_until = ?
		WHERE id = ? AND (state = 'queued' OR (state = 'running' AND lease_until < ?))`,
		owner, plane.Micros(until), id, plane.Micros(t.Now()))
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "Somebody else works on the run."))
}

// AttachRun writes down which declared servers a run has, once.
func (s *Store) AttachRun(t plane.Tx, id plane.RunID, fence, revision int64, list []plane.Attachment) error {
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	_, err = own(t).exec(`UPDATE runs SET revision = ?, servers = ? WHERE id = ? AND fence = ? AND servers = '[]'`, revision, string(body), id, fence)
	return err
}

// HoldRun extends the lease and reports whether somebody asked the run to stop.
func (s *Store) HoldRun(t plane.Tx, id plane.RunID, fence int64, until time.Time, spent time.Duration) (cancel bool, err error) {
	x := own(t)
	res, err := x.exec(`UPDATE runs SET lease_until = ?, spent = ? WHERE id = ? AND fence = ? AND state = 'running'`,
		plane.Micros(until), spent.Microseconds(), id, fence)
	if err := exactly(res, err, 1, lostRun()); err != nil {
		return false, err
	}
	err = x.each(func(r *sql.Rows) error {
		var c int64
		err := r.Scan(&c)
		cancel = c != 0
		return err
	}, `SELECT cancel FROM runs WHERE id = ?`, id)
	return cancel, err
}

func lostRun() *plane.Error {
	return plane.Errorf(plane.Conflict, "The run is no longer this worker's.")
}

// TurnRun counts a turn under the fence.
func (s *Store) TurnRun(t plane.Tx, id plane.RunID, fence int64, turns int) error {
	res, err := own(t).exec(`UPDATE runs SET turns = ? WHERE id = ? AND fence = ? AND state = 'running'`, turns, id, fence)
	return exactly(res, err, 1, lostRun())
}

// LeaveRun ends a holder's work: the run ended, or waits for a person.
func (s *Store) LeaveRun(t plane.Tx, r *plane.Run, sealedAnswer []byte) error {
	if sealedAnswer == nil {
		sealedAnswer = []byte{}
	}
	ended := int64(0)
	if r.State.Ended() {
		ended = plane.Micros(t.Now())
	}
	res, err := own(t).exec(`UPDATE runs SET state = ?, waiting_for = ?, reason = ?, answer = ?, ended_at = ?, spent = ?, owner = '', lease_until = 0
		WHERE id = ? AND fence = ? AND state = 'running'`,
		r.State, r.WaitingFor, r.Reason, sealedAnswer, ended, r.Spent.Microseconds(), r.ID, r.Fence)
	if err := exactly(res, err, 1, lostRun()); err != nil || ended == 0 {
		return err
	}
	return s.endCalls(own(t), r.ID, "The run ended before this call was sent.")
}

// endCalls ends what a run that is over had planned or asked people about.
func (s *Store) endCalls(x *tx, run plane.RunID, why string) error {
	_, err := x.exec(`UPDATE calls SET state = 'failed', reason = ?, done_at = ? WHERE run = ? AND fence > 0 AND state IN ('planned', 'awaiting_approval')`, why, plane.Micros(x.now), run)
	if err == nil {
		_, err = x.exec(`UPDATE approvals SET state = 'expired', args = ? WHERE run = ? AND state = 'pending'`, []byte{}, run)
	}
	return err
}

// RequeueRun lets a run that waits for a person go on. It reports whether the
// run waited, and changes nothing otherwise.
func (s *Store) RequeueRun(t plane.Tx, id plane.RunID) (bool, error) {
	x := own(t)
	// Its holder may be about to let it wait: whoever is second sees what the first did.
	if err := s.LockRun(t, id); err != nil {
		return false, err
	}
	res, err := x.exec(`UPDATE runs SET state = 'queued', waiting_for = '', reason = '' WHERE id = ? AND state = 'waiting'`, id)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// AskCancel marks a run to be stopped. One that nobody works on ends at once.
func (s *Store) AskCancel(t plane.Tx, id plane.RunID, reason string) (ended bool, err error) {
	x := own(t)
	res, err := x.exec(`UPDATE runs SET state = 'cancelled', reason = ?, ended_at = ?, cancel = 1 WHERE id = ? AND state IN ('queued', 'waiting')`,
		reason, plane.Micros(t.Now()), id)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil {
		return false, err
	} else if n == 1 {
		return true, s.endCalls(x, id, "The run was cancelled.")
	}
	res, err = x.exec(`UPDATE runs SET cancel = 1 WHERE id = ? AND state = 'running'`, id)
	return false, exactly(res, err, 1, plane.Errorf(plane.Conflict, "The run has ended already."))
}

// AddEvent appends an event of a run; its data comes sealed.
func (s *Store) AddEvent(t plane.Tx, e *plane.Event, sealed []byte) error {
	_, err := own(t).exec(`INSERT INTO run_events (run, seq, at, turn, kind, span, data) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		e.Run, e.Seq, plane.Micros(e.At), e.Turn, e.Kind, e.Span, sealed)
	if IsUnique(err) {
		return lostRun().Because(err)
	}
	return err
}

// NextSeq is the sequence number after a run's last event, inside a write.
func (s *Store) NextSeq(t plane.Tx, run plane.RunID) (int64, error) {
	var n int64
	err := own(t).each(func(r *sql.Rows) error { return r.Scan(&n) },
		`SELECT COALESCE(MAX(seq), 0) + 1 FROM run_events WHERE run = ?`, run)
	return n, err
}

// Events returns a run's events after a sequence number, their data still
// sealed.
func (s *Store) Events(ctx context.Context, run plane.RunID, after int64, limit int) ([]plane.Event, error) {
	var out []plane.Event
	err := s.each(ctx, func(r *sql.Rows) error {
		e := plane.Event{Run: run}
		var at int64
		var data []byte
		err := r.Scan(&e.Seq, &at, &e.Turn, &e.Kind, &e.Span, &data)
		e.At, e.Data = plane.FromMicros(at), json.RawMessage(data)
		out = append(out, e)
		return err
	}, `SELECT seq, at, turn, kind, span, data FROM run_events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?`, run, after, limit)
	return out, err
}

// AddMessage appends a sealed message to a run's transcript.
func (s *Store) AddMessage(t plane.Tx, run plane.RunID, seq int, body []byte) error {
	_, err := own(t).exec(`INSERT INTO messages (run, seq, body) VALUES (?, ?, ?)`, run, seq, body)
	if IsUnique(err) {
		return lostRun().Because(err)
	}
	return err
}

// Messages returns a run's transcript, still sealed, in order from 1.
func (s *Store) Messages(ctx context.Context, run plane.RunID) ([][]byte, error) {
	var out [][]byte
	err := s.each(ctx, func(r *sql.Rows) error {
		var b []byte
		err := r.Scan(&b)
		out = append(out, b)
		return err
	}, `SELECT body FROM messages WHERE run = ? ORDER BY seq`, run)
	return out, err
}

// WaitsStill reports whether a run that was just left to wait has something to wait
// for: a call whose approval is pending, an unknown one, or a round under way.
func (s *Store) WaitsStill(t plane.Tx, id plane.RunID) (bool, error) {
	n := 0
	err := own(t).each(func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT
		(SELECT COUNT(*) FROM approvals a WHERE a.run = ? AND a.state = 'pending' AND a.expires_at > ?) +
		(SELECT COUNT(*) FROM calls WHERE run = ? AND fence > 0 AND state = 'unknown') +
		(SELECT COUNT(*) FROM runs WHERE parent = ? AND state NOT IN ('succeeded', 'failed', 'cancelled'))`,
		id, plane.Micros(t.Now()), id, id)
	return n > 0, err
}

// Rounds returns the rounds of a pipeline's run, in order.
func (s *Store) Rounds(ctx context.Context, parent plane.RunID) ([]StoredRun, error) {
	var out []StoredRun
	err := s.each(ctx, func(r *sql.Rows) error {
		v, err := scanRun(r)
		out = append(out, v)
		return err
	}, `SELECT `+runColumns+` FROM runs WHERE parent = ? AND parent <> '' ORDER BY round`, parent)
	return out, err
}

// LockRun keeps a run's row as it is until the transaction ends.
func (s *Store) LockRun(t plane.Tx, id plane.RunID) error {
	_, err := own(t).exec(`UPDATE runs SET state = state WHERE id = ?`, id)
	return err
}
