package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"patchbay/internal/plane"
)

const approvalColumns = `id, call, run, agent, principal, connection, version, server, tool, alias, fingerprint, args_digest, args, why, state,
	asked_at, expires_at, decided_at, decided_by, note`

func scanApproval(r *sql.Rows) (plane.Approval, error) {
	var a plane.Approval
	var asked, expires, decided int64
	err := r.Scan(&a.ID, &a.Call, &a.Run, &a.Agent, &a.Principal, &a.Connection, &a.Version, &a.Server, &a.Tool, &a.Alias, &a.Fingerprint,
		&a.ArgsDigest, &a.Arguments, &a.Why, &a.State, &asked, &expires, &decided, &a.DecidedBy, &a.Note)
	a.AskedAt, a.ExpiresAt, a.DecidedAt = plane.FromMicros(asked), plane.FromMicros(expires), plane.FromMicros(decided)
	return a, err
}

// AddApproval asks for a person's word on a call, whose row is there. Args come
// sealed. An earlier one of the same call that is still open gives way.
func (s *Store) AddApproval(t plane.Tx, a *plane.Approval) error {
	x := own(t)
	if _, err := x.exec(`UPDATE approvals SET state = 'expired', decided_at = ?, args = ? WHERE call = ? AND state IN ('pending', 'approved')`, plane.Micros(x.now), []byte{}, a.Call); err != nil {
		return err
	}
	if _, err := x.exec(`UPDATE calls SET approval = ? WHERE id = ?`, a.ID, a.Call); err != nil {
		return err
	}
	_, err := x.exec(`INSERT INTO approvals (`+approvalColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, 0, '', '')`,
		a.ID, a.Call, a.Run, a.Agent, a.Principal, a.Connection, a.Version, a.Server, a.Tool, a.Alias, a.Fingerprint, a.ArgsDigest, a.Arguments, a.Why,
		plane.Micros(a.AskedAt), plane.Micros(a.ExpiresAt))
	return err
}

// DecideApproval moves an approval that is pending and has not expired.
func (s *Store) DecideApproval(t plane.Tx, id plane.ApprovalID, to plane.ApprovalState, by, note string) error {
	now := plane.Micros(t.Now())
	x := own(t)
	res, err := x.exec(`UPDATE approvals SET state = ?, decided_at = ?, decided_by = ?, note = ? WHERE id = ? AND state = 'pending' AND expires_at > ?`,
		to, now, by, note, id, now)
	if err == nil && to == plane.ApprovalDenied {
		err = s.blank(x, id)
	}
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The approval is no longer open."))
}

// blank forgets the arguments of an approval that is over: nobody has to see them again.
func (s *Store) blank(x *tx, id plane.ApprovalID) error {
	_, err := x.exec(`UPDATE approvals SET args = ? WHERE id = ?`, []byte{}, id)
	return err
}

// spend uses up an approval for the very call that it was given for.
func (s *Store) spend(x *tx, c *plane.Call) error {
	res, err := x.exec(`UPDATE approvals SET state = 'spent', args = ? WHERE id = ? AND state = 'approved' AND expires_at > ? AND call = ? AND agent = ?
		AND connection = ? AND version = ? AND tool = ? AND fingerprint = ? AND args_digest = ?`,
		[]byte{}, c.Approval, plane.Micros(x.now), c.ID, c.Agent, c.Connection, c.Version, c.Tool, c.Fingerprint, c.ArgsDigest)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The approval of this call is used up, has expired, or was for something else; nothing was sent."))
}

// ExpireApprovals ends what nobody decided or used in time, and returns it.
func (s *Store) ExpireApprovals(t plane.Tx) ([]plane.Approval, error) {
	x := own(t)
	now := plane.Micros(x.now)
	var out []plane.Approval
	err := x.each(func(r *sql.Rows) error {
		a, err := scanApproval(r)
		out = append(out, a)
		return err
	}, `SELECT `+approvalColumns+` FROM approvals WHERE state IN ('pending', 'approved') AND expires_at <= ? LIMIT 100`, now)
	if err != nil {
		return nil, err
	}
	for _, a := range out {
		if _, err := x.exec(`UPDATE approvals SET state = 'expired', args = ? WHERE id = ? AND state IN ('pending', 'approved')`, []byte{}, a.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Approval returns one approval.
func (s *Store) Approval(ctx context.Context, id plane.ApprovalID) (plane.Approval, error) {
	var a plane.Approval
	err := s.one(ctx, "approval", func(r *sql.Rows) (err error) { a, err = scanApproval(r); return err },
		`SELECT `+approvalColumns+` FROM approvals WHERE id = ?`, id)
	return a, err
}

// ApprovalOf returns the latest approval of a call, or not_found.
func (s *Store) ApprovalOf(ctx context.Context, call plane.CallID) (plane.Approval, error) {
	var a plane.Approval
	err := s.one(ctx, "approval", func(r *sql.Rows) (err error) { a, err = scanApproval(r); return err },
		`SELECT `+approvalColumns+` FROM approvals WHERE call = ? ORDER BY id DESC LIMIT 1`, call)
	return a, err
}

// DenialLasts is how long a denied request is refused without asking again.
const DenialLasts = 10 * time.Minute

// OpenApproval finds an approval that was asked for the same call by the same client
// before and is not used up, or was denied a moment ago: a client that asks again means that one.
func (s *Store) OpenApproval(ctx context.Context, c *plane.Call, now time.Time) (plane.Approval, error) {
	var a plane.Approval
	err := s.one(ctx, "approval", func(r *sql.Rows) (err error) { a, err = scanApproval(r); return err },
		`SELECT `+approvalColumns+` FROM approvals WHERE (state IN ('pending', 'approved') AND expires_at > ? AND EXISTS (SELECT 1 FROM calls WHERE id = approvals.call AND state = 'awaiting_approval' AND fence = 0)
				OR state = 'denied' AND decided_at > ?) AND agent = ? AND principal = ?
			AND connection = ? AND version = ? AND tool = ? AND fingerprint = ? AND args_digest = ? ORDER BY id DESC LIMIT 1`,
		plane.Micros(now), plane.Micros(now.Add(-DenialLasts)), c.Agent, c.Principal, c.Connection, c.Version, c.Tool, c.Fingerprint, c.ArgsDigest)
	return a, err
}

// Approvals returns the latest approvals, newest first: those that are open, or all. It
// leaves their arguments out.
func (s *Store) Approvals(ctx context.Context, open bool, limit int) ([]plane.Approval, error) {
	var out []plane.Approval
	columns := strings.Replace(approvalColumns, " args,", " NULL,", 1)
	q := `SELECT ` + columns + ` FROM approvals ORDER BY id DESC LIMIT ?`
	if open {
		q = `SELECT ` + columns + ` FROM approvals WHERE state = 'pending' ORDER BY id DESC LIMIT ?`
	}
	err := s.each(ctx, func(r *sql.Rows) error {
		a, err := scanApproval(r)
		out = append(out, a)
		return err
	}, q, limit)
	return out, err
}

// CountApprovals is how many approvals of an agent are pending, and how many of one of
// its callers.
func (s *Store) CountApprovals(t plane.Tx, agent, principal string) (all, theirs int, err error) {
	err = own(t).each(func(r *sql.Rows) error { return r.Scan(&all, &theirs) },
		`SELECT COUNT(*), COALESCE(SUM(CASE WHEN principal = ? THEN 1 ELSE 0 END), 0) FROM approvals WHERE agent = ? AND state = 'pending'`, principal, agent)
	return all, theirs, err
}

// PutRule stores a person's standing word on a tool, in place of an earlier one.
func (s *Store) PutRule(t plane.Tx, r *plane.Rule) error {
	_, err := own(t).exec(`INSERT INTO rules (id, agent, connection, server, tool, fingerprint, mode, made_by, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (agent, connection, tool) DO UPDATE SET id = excluded.id, server = excluded.server, fingerprint = excluded.fingerprint,
			mode = excluded.mode, made_by = excluded.made_by, at = excluded.at`,
		r.ID, r.Agent, r.Connection, r.Server, r.Tool, r.Fingerprint, r.Mode, r.By, plane.Micros(t.Now()))
	if err != nil {
		return err
	}
	return s.touchConnections(t) // part of the policy
}

// DropRule takes a rule away.
func (s *Store) DropRule(t plane.Tx, id string) error {
	res, err := own(t).exec(`DELETE FROM rules WHERE id = ?`, id)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such rule.")); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// Rules returns all rules, oldest first.
func (s *Store) Rules(ctx context.Context) ([]plane.Rule, error) {
	var out []plane.Rule
	err := s.each(ctx, func(r *sql.Rows) error {
		var v plane.Rule
		var at int64
		err := r.Scan(&v.ID, &v.Agent, &v.Connection, &v.Server, &v.Tool, &v.Fingerprint, &v.Mode, &v.By, &at)
		v.At = plane.FromMicros(at)
		out = append(out, v)
		return err
	}, `SELECT id, agent, connection, server, tool, fingerprint, mode, made_by, at FROM rules ORDER BY id`)
	return out, err
}
