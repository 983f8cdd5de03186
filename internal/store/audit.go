package store

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// AddAudit appends an entry to this process's lane. What is said about calls in one
// transaction is kept as one entry.
func (s *Store) AddAudit(t plane.Tx, e plane.AuditEntry) error {
	x := own(t)
	if e.Foldable() {
		x.fold(e)
		return nil
	}
	return x.addAudit(e)
}

func (t *tx) addAudit(e plane.AuditEntry) error {
	at := e.At
	if at.IsZero() {
		at = t.now
	}
	_, err := t.exec(`INSERT INTO audit (lane, id, at, who, action, what, decision, digest, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)`,
		t.s.lane, plane.NewAuditID(t.now), plane.Micros(at), e.Who, e.Action, e.What, e.Decision, e.Digest)
	return err
}

const auditColumns = `lane, id, at, who, action, what, decision, digest, seal`

func scanAudit(r *sql.Rows) (plane.AuditEntry, error) {
	var e plane.AuditEntry
	var at int64
	err := r.Scan(&e.Lane, &e.ID, &at, &e.Who, &e.Action, &e.What, &e.Decision, &e.Digest, &e.Seal)
	e.At = plane.FromMicros(at)
	return e, err
}

// Audit returns the latest entries that a filter lets through, newest first.
func (s *Store) Audit(ctx context.Context, f plane.AuditFilter) ([]plane.AuditEntry, error) {
	lanes, err := s.Lanes(ctx)
	if err != nil {
		return nil, err
	}
	var out []plane.AuditEntry
	for _, lane := range lanes {
		of, err := s.auditOf(ctx, lane, f)
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	slices.SortStableFunc(out, func(a, b plane.AuditEntry) int { return strings.Compare(b.ID, a.ID) })
	return out[:min(len(out), f.Limit)], nil
}

// auditPage bounds the rows that are read at once where a filter looks into folded ones.
const auditPage = 1000

func (s *Store) auditOf(ctx context.Context, lane string, f plane.AuditFilter) (out []plane.AuditEntry, err error) {
	cond, args := auditWhere(f)
	page, before := min(f.Limit, auditPage), "~" // above every id
	for rows := page; rows == page && len(out) < f.Limit; {
		rows = 0
		err := s.each(ctx, func(r *sql.Rows) error {
			e, err := scanAudit(r)
			rows++
			before = e.ID
			entries := e.Unfold()
			for _, e := range slices.Backward(entries) {
				if len(entries) == 1 || through(f, e) {
					out = append(out, e)
				}
			}
			return err
		}, `SELECT `+auditColumns+` FROM audit WHERE lane = ? AND id < ?`+cond+` ORDER BY id DESC LIMIT ?`, slices.Concat([]any{lane, before}, args, []any{page})...)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// through reports whether an entry out of a folded one is asked for; its time is the
// row's.
func through(f plane.AuditFilter, e plane.AuditEntry) bool {
	return (f.Who == "" || e.Who == f.Who) && strings.HasPrefix(e.Action, f.Action) && strings.HasPrefix(e.What, f.What)
}

func auditWhere(f plane.AuditFilter) (cond string, args []any) {
	and := func(c string, v ...any) {
		cond += " AND " + c
		args = append(args, v...)
	}
	if f.Who != "" {
		and("(who = ? OR action = 'calls')", f.Who)
	}
	if f.Action != "" {
		and("substr(action, 1, ?) = ?", len([]rune(f.Action)), f.Action)
	}
	if f.What != "" {
		and("(substr(what, 1, ?) = ? OR action = 'calls')", len([]rune(f.What)), f.What)
	}
	if !f.Since.IsZero() {
		and("at >= ?", plane.Micros(f.Since))
	}
	if !f.Until.IsZero() {
		and("at < ?", plane.Micros(f.Until))
	}
	return cond, args
}

// Lanes names the lanes of the audit.
func (s *Store) Lanes(ctx context.Context) ([]string, error) {
	var out []string
	seen := ""
	for {
		found := false
		err := s.each(ctx, func(r *sql.Rows) error { found = true; return r.Scan(&seen) },
			`SELECT lane FROM (SELECT MIN(lane) AS lane FROM audit WHERE lane > ? UNION SELECT MIN(lane) FROM checkpoints WHERE lane > ?) l WHERE lane IS NOT NULL ORDER BY lane LIMIT 1`, seen, seen)
		if err != nil || !found {
			return out, err
		}
		out = append(out, seen)
	}
}

// Seal closes what is open of a lane as one stretch: the entries are given to sign,
// in the order of their ids with the checkpoint before, and the checkpoint that it
// returns is stored. It returns false when nothing is open. One process writes a SQLite
// file, so that ids are committed in their order and a stretch is known by its last;
// elsewhere an entry may be committed late, and each is marked.
func (s *Store) Seal(t plane.Tx, lane string, most int, sign func(before *plane.Checkpoint, entries []plane.AuditEntry) (plane.Checkpoint, error)) (bool, error) {
	x := own(t)
	var before *plane.Checkpoint
	err := x.each(func(r *sql.Rows) error {
		c, err := scanCheckpoint(r)
		before = &c
		return err
	}, `SELECT `+checkpointColumns+` FROM checkpoints WHERE lane = ? ORDER BY n DESC LIMIT 1`, lane)
	if err != nil {
		return false, err
	}
	after := ""
	if !s.pg && before != nil {
		after = before.Last
	}
	var open []plane.AuditEntry
	err = x.each(func(r *sql.Rows) error {
		e, err := scanAudit(r)
		open = append(open, e)
		return err
	}, `SELECT `+auditColumns+` FROM audit WHERE lane = ? AND id > ? AND seal = 0 ORDER BY id LIMIT ?`, lane, after, most)
	if err != nil || len(open) == 0 {
		return false, err
	}
	c, err := sign(before, open)
	if err != nil {
		return false, err
	}
	if c.Ranged = !s.pg; s.pg {
		res, err := x.exec(`UPDATE audit SET seal = ? WHERE lane = ? AND seal = 0 AND id <= ?`, c.N, lane, open[len(open)-1].ID)
		if err := exactly(res, err, int64(len(open)), plane.Errorf(plane.Conflict, "An entry was added while the lane was sealed.")); err != nil {
			return false, err
		}
	}
	_, err = x.exec(`INSERT INTO checkpoints (`+checkpointColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.Lane, c.N, c.Entries, c.Last, c.Prev, c.Hash, plane.Micros(c.At), flag(c.Ranged), c.Key, c.Sig)
	if IsUnique(err) {
		return false, plane.Errorf(plane.Conflict, "Another replica sealed the lane.").Because(err)
	}
	return true, err
}

const checkpointColumns = `lane, n, entries, last, prev, hash, at, ranged, key, sig`

func scanCheckpoint(r *sql.Rows) (plane.Checkpoint, error) {
	var c plane.Checkpoint
	var at, ranged int64
	err := r.Scan(&c.Lane, &c.N, &c.Entries, &c.Last, &c.Prev, &c.Hash, &at, &ranged, &c.Key, &c.Sig)
	c.At, c.Ranged = plane.FromMicros(at), ranged != 0
	return c, err
}

// Checkpoints returns a lane's checkpoints after a number, in order.
func (s *Store) Checkpoints(ctx context.Context, lane string, after int64, limit int) ([]plane.Checkpoint, error) {
	var out []plane.Checkpoint
	err := s.each(ctx, func(r *sql.Rows) error {
		c, err := scanCheckpoint(r)
		out = append(out, c)
		return err
	}, `SELECT `+checkpointColumns+` FROM checkpoints WHERE lane = ? AND n > ? ORDER BY n LIMIT ?`, lane, after, limit)
	return out, err
}

// Stretch calls fn for each entry that a checkpoint covers, in the order of their ids;
// after is the last id of the checkpoint before.
func (s *Store) Stretch(ctx context.Context, c plane.Checkpoint, after string, fn func(plane.AuditEntry)) error {
	q, args := `SELECT `+auditColumns+` FROM audit WHERE lane = ? AND seal = ? ORDER BY id`, []any{c.Lane, c.N}
	if c.Ranged {
		q, args = `SELECT `+auditColumns+` FROM audit WHERE lane = ? AND id > ? AND id <= ? ORDER BY id`, []any{c.Lane, after, c.Last}
	}
	return s.each(ctx, func(r *sql.Rows) error {
		e, err := scanAudit(r)
		fn(e)
		return err
	}, q, args...)
}

// Uncovered counts a lane's entries that no checkpoint covers: those that wait to be
// sealed, and strays that say, or stand where, a checkpoint should cover them that is
// not there.
func (s *Store) Uncovered(ctx context.Context, first, head plane.Checkpoint) (open, strays int64, err error) {
	q, args := `SELECT COALESCE(SUM(CASE WHEN seal = 0 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN seal > ? OR seal > 0 AND seal < ? THEN 1 ELSE 0 END), 0)
		FROM audit WHERE lane = ? AND (seal = 0 OR seal > ? OR seal < ?)`, []any{head.N, first.N, head.Lane, head.N, first.N}
	if head.Ranged {
		q, args = `SELECT (SELECT COUNT(*) FROM audit WHERE lane = ? AND id > ?), (SELECT COUNT(*) FROM audit WHERE lane = ? AND id <= ?)`, []any{head.Lane, head.Last, head.Lane, ""}
		if first.N > 1 {
			args[3] = first.Last
		}
	}
	err = s.each(ctx, func(r *sql.Rows) error { return r.Scan(&open, &strays) }, q, args...)
	return open, strays, err
}

// cutMost bounds how many checkpoints one transaction forgets.
const cutMost = 20

// CutAudit forgets whole stretches of a lane that were sealed before a time, a few at
// once, and reports whether there are more. The checkpoint at the cut stays: what
// follows is chained to it.
func (s *Store) CutAudit(t plane.Tx, lane string, before time.Time) (more bool, err error) {
	x := own(t)
	var cut, least int64
	var last string
	err = x.each(func(r *sql.Rows) error { return r.Scan(&cut, &least) }, `SELECT COALESCE(MAX(n), 0), COALESCE(MIN(n), 0) FROM checkpoints WHERE lane = ? AND at < ?`, lane, plane.Micros(before))
	if err != nil || cut <= least {
		return false, err
	}
	if cut > least+cutMost {
		cut, more = least+cutMost, true
	}
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&last) }, `SELECT last FROM checkpoints WHERE lane = ? AND n = ?`, lane, cut); err != nil {
		return false, err
	}
	q, args := `DELETE FROM audit WHERE lane = ? AND id <= ?`, []any{lane, last}
	if s.pg {
		q, args = `DELETE FROM audit WHERE lane = ? AND seal > 0 AND seal <= ?`, []any{lane, cut}
	}
	if _, err := x.exec(q, args...); err != nil {
		return false, err
	}
	_, err = x.exec(`DELETE FROM checkpoints WHERE lane = ? AND n < ?`, lane, cut)
	return more, err
}

// TakeLease makes owner the holder of a lease until a time, if it is free, over, or
// its own.
func (s *Store) TakeLease(ctx context.Context, name, owner string, until time.Time) (bool, error) {
	taken := false
	err := s.Write(ctx, func(t plane.Tx) error {
		res, err := own(t).exec(`INSERT INTO leases (name, owner, until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE leases.owner = excluded.owner OR leases.until < ?`,
			name, owner, plane.Micros(until), plane.Micros(t.Now()))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		taken = n == 1
		return err
	})
	return taken, err
}
