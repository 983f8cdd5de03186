package store

import (
	"context"
	"database/sql"

	"patchbay/internal/plane"
)

const evidenceColumns = `id, call, run, agent, provider, connection, version, tool, fingerprint, labels, reserved_at, observed_at, digest`

func scanEvidence(r *sql.Rows) (plane.Evidence, error) {
	var e plane.Evidence
	var reserved, observed int64
	err := r.Scan(&e.ID, &e.Call, &e.Run, &e.Agent, &e.Provider, &e.Connection, &e.Version, &e.Tool, &e.Fingerprint, &e.Labels, &reserved, &observed, &e.Digest)
	e.ReservedAt, e.ObservedAt = plane.FromMicros(reserved), plane.FromMicros(observed)
	return e, err
}

// ReserveEvidence records the source of a call before it is made.
func (s *Store) ReserveEvidence(t plane.Tx, e *plane.Evidence) error {
	e.ReservedAt = t.Now()
	_, err := own(t).exec(`INSERT INTO evidence (`+evidenceColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '')`,
		e.ID, e.Call, e.Run, e.Agent, e.Provider, e.Connection, e.Version, e.Tool, e.Fingerprint, e.Labels, plane.Micros(e.ReservedAt))
	return err
}

// ObserveEvidence records that the reserved source of a call was observed: the very
// one that the call names, and once.
func (s *Store) ObserveEvidence(t plane.Tx, c *plane.Call) error {
	res, err := own(t).exec(`UPDATE evidence SET observed_at = ?, digest = ? WHERE id = ? AND call = ? AND connection = ? AND version = ? AND tool = ?
		AND fingerprint = ? AND observed_at = 0`, plane.Micros(t.Now()), c.Result, c.Evidence, c.ID, c.Connection, c.Version, c.Tool, c.Fingerprint)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The source of the call is not the one that was reserved."))
}

// EvidenceOfRun returns the sources of a run's calls, in the order they were reserved.
func (s *Store) EvidenceOfRun(ctx context.Context, run plane.RunID) ([]plane.Evidence, error) {
	return s.evidenceWhere(ctx, `run = ?`, run)
}

// EvidenceByID returns one source.
func (s *Store) EvidenceByID(ctx context.Context, id plane.EvidenceID) (plane.Evidence, error) {
	list, err := s.evidenceWhere(ctx, `id = ?`, id)
	if err == nil && len(list) == 0 {
		err = plane.Errorf(plane.NotFound, "There is no such evidence.")
	}
	if err != nil {
		return plane.Evidence{}, err
	}
	return list[0], nil
}

func (s *Store) evidenceWhere(ctx context.Context, cond string, args ...any) ([]plane.Evidence, error) {
	var out []plane.Evidence
	err := s.each(ctx, func(r *sql.Rows) error {
		e, err := scanEvidence(r)
		out = append(out, e)
		return err
	}, `SELECT `+evidenceColumns+` FROM evidence WHERE `+cond+` ORDER BY reserved_at, id LIMIT 10000`, args...)
	return out, err
}

// SetLineage records what an answer or a memory comes from. More than
// plane.MaxLineage sources are compacted to unknown provenance.
func (s *Store) SetLineage(t plane.Tx, owner string, sources []string) error {
	if len(sources) > plane.MaxLineage {
		sources = []string{plane.UnknownSource}
	}
	for _, src := range sources {
		if _, err := own(t).exec(`INSERT INTO lineage (owner, source) VALUES (?, ?) ON CONFLICT (owner, source) DO NOTHING`, owner, src); err != nil {
			return err
		}
	}
	return nil
}

// Lineage returns what an answer or a memory comes from.
func (s *Store) Lineage(ctx context.Context, owner string) ([]string, error) {
	var out []string
	err := s.each(ctx, func(r *sql.Rows) error {
		var v string
		err := r.Scan(&v)
		out = append(out, v)
		return err
	}, `SELECT source FROM lineage WHERE owner = ? ORDER BY source`, owner)
	return out, err
}

// Taint adds labels to what a run, and the thread it belongs to, have read.
func (s *Store) Taint(t plane.Tx, run plane.RunID, conversation string, labels plane.Labels) error {
	x := own(t)
	if _, err := x.exec(`UPDATE runs SET labels = labels | ? WHERE id = ?`, labels, run); err != nil || conversation == "" {
		return err
	}
	_, err := x.exec(`INSERT INTO threads (conversation, labels) VALUES (?, ?) ON CONFLICT (conversation) DO UPDATE SET labels = threads.labels | excluded.labels`, conversation, labels)
	return err
}

// ThreadLabels are the labels of what was read in a conversation.
func (s *Store) ThreadLabels(ctx context.Context, conversation string) (plane.Labels, error) {
	var l plane.Labels
	err := s.each(ctx, func(r *sql.Rows) error { return r.Scan(&l) }, `SELECT labels FROM threads WHERE conversation = ?`, conversation)
	return l, err
}

// CompactLineage turns a lineage of more than plane.MaxLineage sources into unknown
// provenance.
func (s *Store) CompactLineage(t plane.Tx, owner string) error {
	x := own(t)
	n := 0
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT COUNT(*) FROM lineage WHERE owner = ?`, owner); err != nil || n <= plane.MaxLineage {
		return err
	}
	if _, err := x.exec(`DELETE FROM lineage WHERE owner = ?`, owner); err != nil {
		return err
	}
	return s.SetLineage(t, owner, []string{plane.UnknownSource})
}

// CopyLineage adds what one owner comes from to another.
func (s *Store) CopyLineage(t plane.Tx, from, to string) error {
	_, err := own(t).exec(`INSERT INTO lineage (owner, source) SELECT ?, source FROM lineage WHERE owner = ? ON CONFLICT (owner, source) DO NOTHING`, to, from)
	return err
}
