package store

import (
	"context"
	"database/sql"

	"patchbay/internal/plane"
)

// Reviews returns a connection's class reviews. An unknown class in a row reads
// as effect.
func (s *Store) Reviews(ctx context.Context, id plane.ConnectionID) ([]plane.Review, error) {
	var out []plane.Review
	err := s.each(ctx, func(r *sql.Rows) error {
		var v plane.Review
		var at int64
		err := r.Scan(&v.Connection, &v.Name, &v.Fingerprint, &v.Class, &v.By, &at, &v.Contract)
		v.Class = known(v.Class)
		v.At = plane.FromMicros(at)
		out = append(out, v)
		return err
	}, `SELECT connection, name, fingerprint, class, reviewed_by, reviewed_at, contract FROM reviews WHERE connection = ? ORDER BY name`, id)
	return out, err
}

// PutReview stores a person's word on one definition, in place of an earlier one
// on the same tool.
func (s *Store) PutReview(t plane.Tx, v *plane.Review) error {
	_, err := own(t).exec(`INSERT INTO reviews (connection, name, fingerprint, class, reviewed_by, reviewed_at, contract) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (connection, name) DO UPDATE SET fingerprint = excluded.fingerprint, class = excluded.class,
			reviewed_by = excluded.reviewed_by, reviewed_at = excluded.reviewed_at, contract = excluded.contract`,
		v.Connection, v.Name, v.Fingerprint, v.Class, v.By, plane.Micros(t.Now()), v.Contract)
	return err
}

// DropReview withdraws the review of a definition that is no more.
func (s *Store) DropReview(t plane.Tx, v *plane.Review) error {
	_, err := own(t).exec(`DELETE FROM reviews WHERE connection = ? AND name = ? AND fingerprint = ?`, v.Connection, v.Name, v.Fingerprint)
	return err
}

// known reads a stored class: what is not query is an effect.
func known(c plane.Class) plane.Class {
	if c == plane.Query {
		return c
	}
	return plane.Effect
}
