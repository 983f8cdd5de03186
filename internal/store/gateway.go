package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"patchbay/internal/plane"
)

// BareNames returns which tools have bare names for an agent's clients.
func (s *Store) BareNames(ctx context.Context, agent string) ([]plane.BareName, error) {
	var out []plane.BareName
	err := s.each(ctx, func(r *sql.Rows) error {
		var n plane.BareName
		err := r.Scan(&n.Name, &n.Connection, &n.Tool)
		out = append(out, n)
		return err
	}, `SELECT name, connection, tool FROM bare_names WHERE agent = ? ORDER BY name`, agent)
	return out, err
}

// ClaimNames stores bare names that are free, or whose connection is among gone.
func (s *Store) ClaimNames(ctx context.Context, agent string, claims []plane.BareName, gone []plane.ConnectionID) error {
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b plane.BareName) int { // no two wait for each other
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return s.Write(ctx, func(t plane.Tx) error {
		x := own(t)
		for _, id := range gone {
			if _, err := x.exec(`DELETE FROM bare_names WHERE agent = ? AND connection = ?`, agent, id); err != nil {
				return err
			}
		}
		for _, c := range claims {
			if _, err := x.exec(`INSERT INTO bare_names (agent, name, connection, tool, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (agent, name) DO NOTHING`,
				agent, c.Name, c.Connection, c.Tool, plane.Micros(t.Now())); err != nil {
				return err
			}
		}
		return nil
	})
}

// RevokeSession remembers that a client's session was ended before its time, by a digest
// of its id, and tells the other replicas.
func (s *Store) RevokeSession(ctx context.Context, digest string, until time.Time) error {
	return s.Write(ctx, func(t plane.Tx) error {
		x := own(t)
		if _, err := x.exec(`INSERT INTO session_revocations (session, until) VALUES (?, ?) ON CONFLICT (session) DO NOTHING`, digest, plane.Micros(until)); err != nil {
			return err
		}
		_, err := s.count(x, metaSessions)
		return err
	})
}

// RevokedSessions returns the digests of the sessions that were ended and are not over
// yet, with their ends.
func (s *Store) RevokedSessions(ctx context.Context, now time.Time) (map[string]time.Time, error) {
	out := map[string]time.Time{}
	err := s.each(ctx, func(r *sql.Rows) error {
		var d string
		var until int64
		err := r.Scan(&d, &until)
		out[d] = plane.FromMicros(until)
		return err
	}, `SELECT session, until FROM session_revocations WHERE until > ?`, plane.Micros(now))
	return out, err
}

// SweepSessions forgets ended sessions that are over, and replicas that are gone.
func (s *Store) SweepSessions(ctx context.Context) error {
	return s.Write(ctx, func(t plane.Tx) error {
		x := own(t)
		for _, q := range []string{`DELETE FROM session_revocations WHERE until <= ?`, `DELETE FROM replicas WHERE until <= ?`, `DELETE FROM leases WHERE until <= ?`} {
			if _, err := x.exec(q, plane.Micros(t.Now())); err != nil {
				return err
			}
		}
		return nil
	})
}

// Advertise says where the other replicas reach this one, until a time.
func (s *Store) Advertise(ctx context.Context, name, address string, until time.Time) error {
	return s.Write(ctx, func(t plane.Tx) error {
		_, err := own(t).exec(`INSERT INTO replicas (name, advertise, until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET advertise = excluded.advertise, until = excluded.until`, name, address, plane.Micros(until))
		return err
	})
}

// Replicas returns where the replicas are reached, by name.
func (s *Store) Replicas(ctx context.Context, now time.Time) (map[string]string, error) {
	out := map[string]string{}
	err := s.each(ctx, func(r *sql.Rows) error {
		var name, at string
		err := r.Scan(&name, &at)
		out[name] = at
		return err
	}, `SELECT name, advertise FROM replicas WHERE until > ?`, plane.Micros(now))
	return out, err
}
