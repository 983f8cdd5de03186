package store

import (
	"context"
	"database/sql"

	"patchbay/internal/plane"
)

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
