package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

// Refresh is when one connection's catalog is read again, and who does it now.
type Refresh = struct {
	Connection plane.ConnectionID
	DueAt      time.Time
	Tries      int   // failures in a row
	Parked     int64 // the version whose credential the server rejected; 0 for none
	Fence      int64 // raised by every claim; an end under an older one is refused
	LeaseUntil time.Time
	Rounds     int64 // that ended
}

// DueRefreshes returns what is due and held by nobody, the longest due first.
func (s *Store) DueRefreshes(ctx context.Context, limit int) ([]Refresh, error) {
	now := plane.Micros(s.clock.Now())
	return s.refreshes(ctx, `WHERE due_at <= ? AND lease_until <= ? ORDER BY due_at LIMIT ?`, now, now, limit)
}

// Refreshes returns the whole schedule.
func (s *Store) Refreshes(ctx context.Context) ([]Refresh, error) {
	return s.refreshes(ctx, `ORDER BY due_at, connection`)
}

// HurryRefresh makes a connection due earlier that nobody could read yet, or whose
// rejected credential was replaced. Its failures so far go on to count.
func (s *Store) HurryRefresh(t plane.Tx, id plane.ConnectionID, version int64, due time.Time) error {
	_, err := own(t).exec(`UPDATE refreshes SET due_at = ?, tries = 0, parked = 0 WHERE connection = ? AND due_at > ? AND (tries = 0 OR parked <> 0 AND parked <> ?)`,
		plane.Micros(due), id, plane.Micros(due), version)
	return err
}

// ReleaseRefresh gives a claim back undone.
func (s *Store) ReleaseRefresh(t plane.Tx, id plane.ConnectionID, fence int64) error {
	_, err := own(t).exec(`UPDATE refreshes SET owner = '', lease_until = 0 WHERE connection = ? AND fence = ?`, id, fence)
	return err
}

// PostponeRefresh puts off what nobody can do now.
func (s *Store) PostponeRefresh(t plane.Tx, id plane.ConnectionID, due time.Time) error {
	x := own(t)
	_, err := x.exec(`UPDATE refreshes SET due_at = ? WHERE connection = ? AND due_at <= ?`, plane.Micros(due), id, plane.Micros(x.now))
	return err
}

func (s *Store) refreshes(ctx context.Context, where string, args ...any) ([]Refresh, error) {
	var out []Refresh
	err := s.each(ctx, func(r *sql.Rows) error {
		var v Refresh
		var due, until int64
		err := r.Scan(&v.Connection, &due, &v.Tries, &v.Parked, &v.Fence, &until, &v.Rounds)
		v.DueAt, v.LeaseUntil = plane.FromMicros(due), plane.FromMicros(until)
		out = append(out, v)
		return err
	}, `SELECT connection, due_at, tries, parked, fence, lease_until, rounds FROM refreshes `+where, args...)
	return out, err
}

// ScheduleRefresh adds a connection to the schedule, once.
func (s *Store) ScheduleRefresh(t plane.Tx, id plane.ConnectionID, due time.Time) error {
	_, err := own(t).exec(`INSERT INTO refreshes (connection, due_at, tries, parked, fence, owner, lease_until, rounds) VALUES (?, ?, 0, 0, 0, '', 0, 0)
		ON CONFLICT (connection) DO NOTHING`, id, plane.Micros(due))
	return err
}

// ClaimRefresh takes a due refresh that nobody holds until a time, and returns
// the fence it is held under; conflict when another has it or it is not due.
func (s *Store) ClaimRefresh(t plane.Tx, id plane.ConnectionID, owner string, until time.Time) (int64, error) {
	x := own(t)
	now := plane.Micros(x.now)
	res, err := x.exec(`UPDATE refreshes SET owner = ?, lease_until = ?, fence = fence + 1 WHERE connection = ? AND due_at <= ? AND lease_until <= ?`,
		owner, plane.Micros(until), id, now, now)
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "The refresh is held by another.")); err != nil {
		return 0, err
	}
	var fence int64
	err = x.each(func(r *sql.Rows) error { return r.Scan(&fence) }, `SELECT fence FROM refreshes WHERE connection = ?`, id)
	return fence, err
}

// EndRefresh ends a round under its fence and says when the next is due; conflict
// when the lease was taken over. What else belongs to the round is written in the
// same transaction.
func (s *Store) EndRefresh(t plane.Tx, v Refresh) error {
	res, err := own(t).exec(`UPDATE refreshes SET due_at = ?, tries = ?, parked = ?, owner = '', lease_until = 0, rounds = rounds + 1 WHERE connection = ? AND fence = ?`,
		plane.Micros(v.DueAt), v.Tries, v.Parked, v.Connection, v.Fence)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The refresh was taken over."))
}
