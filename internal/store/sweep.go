package store

import (
	"context"
	"time"

	"patchbay/internal/plane"
)

// sweepMost bounds what one transaction takes away, so that nobody waits for long.
const sweepMost = 2000

// sweep runs deletions, each of which takes away at most sweepMost rows, until nothing
// is left.
func (s *Store) sweep(ctx context.Context, q string, args ...any) error {
	for {
		n := int64(0)
		err := s.Write(ctx, func(t plane.Tx) error {
			res, err := own(t).exec(q, args...)
			if err != nil {
				return err
			}
			n, err = res.RowsAffected()
			return err
		})
		if err != nil || n < sweepMost {
			return err
		}
	}
}

// ended are runs that were over before a time: what belongs to one that is not stays.
const ended = `(SELECT id FROM runs WHERE state IN ('succeeded', 'failed', 'cancelled') AND ended_at < ?)`

// SweepResults forgets the observations of runs that ended before a time.
func (s *Store) SweepResults(ctx context.Context, before time.Time) error {
	return s.sweep(ctx, `DELETE FROM results WHERE id IN (SELECT id FROM results WHERE run IN `+ended+` LIMIT ?)`, plane.Micros(before), sweepMost)
}

// SweepEvents forgets the events and messages of runs that ended before a time.
func (s *Store) SweepEvents(ctx context.Context, before time.Time) error {
	err := s.sweep(ctx, `DELETE FROM run_events WHERE (run, seq) IN (SELECT run, seq FROM run_events WHERE run IN `+ended+` LIMIT ?)`, plane.Micros(before), sweepMost)
	if err != nil {
		return err
	}
	return s.sweep(ctx, `DELETE FROM messages WHERE (run, seq) IN (SELECT run, seq FROM messages WHERE run IN `+ended+` LIMIT ?)`, plane.Micros(before), sweepMost)
}

// SweepRecords forgets calls that were settled before a time, with their attempts and
// approvals, and the evidence that no memory stands on. One that waits for a person, or
// holds a claim, stays.
func (s *Store) SweepRecords(ctx context.Context, before time.Time) error {
	at := plane.Micros(before)
	for _, q := range []string{
		`DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE planned_at < ? AND state IN ('succeeded', 'failed', 'resolved_done', 'resolved_not_done')
			AND NOT EXISTS (SELECT 1 FROM claims WHERE call = calls.id) LIMIT ?)`,
		`DELETE FROM attempts WHERE (call, n) IN (SELECT call, n FROM attempts WHERE at < ? AND NOT EXISTS (SELECT 1 FROM calls WHERE id = attempts.call) LIMIT ?)`,
		`DELETE FROM approvals WHERE id IN (SELECT id FROM approvals WHERE asked_at < ? AND state IN ('denied', 'expired', 'spent') LIMIT ?)`,
		`DELETE FROM evidence WHERE id IN (SELECT id FROM evidence WHERE reserved_at < ? AND NOT EXISTS (SELECT 1 FROM lineage WHERE source = evidence.id AND owner LIKE 'mem%') LIMIT ?)`,
	} {
		if err := s.sweep(ctx, q, at, sweepMost); err != nil {
			return err
		}
	}
	return nil
}
