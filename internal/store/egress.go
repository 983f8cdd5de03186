package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

const egressColumns = `id, at, done_at, agent, team, principal, destination, host, port, method, path, state, status, injected, sent, received, reason, owner`

func egressArgs(e *plane.EgressRecord) []any {
	return []any{e.ID, plane.Micros(e.At), plane.Micros(e.DoneAt), e.Agent, e.Team, e.Principal, e.Destination, e.Host, e.Port, e.Method, e.Path, e.State, e.Status, flag(e.Injected), e.Sent, e.Received, e.Reason, e.Owner}
}

// AddEgress writes down a request of the credential gateway.
func (s *Store) AddEgress(t plane.Tx, e *plane.EgressRecord) error {
	_, err := own(t).exec(`INSERT INTO egress_requests (`+egressColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, egressArgs(e)...)
	return err
}

// SettleEgress writes down how a dispatched request ended; it does nothing to one that has
// ended.
func (s *Store) SettleEgress(t plane.Tx, e *plane.EgressRecord) error {
	_, err := own(t).exec(`UPDATE egress_requests SET done_at = ?, state = ?, status = ?, sent = ?, received = ?, reason = ? WHERE id = ? AND state = 'dispatched'`,
		plane.Micros(e.DoneAt), e.State, e.Status, e.Sent, e.Received, e.Reason, e.ID)
	return err
}

// StrandEgress makes unknown what nobody settles any more: dispatched before a time, or by a
// process whose lease is over.
func (s *Store) StrandEgress(t plane.Tx, before time.Time) error {
	x := own(t)
	_, err := x.exec(`UPDATE egress_requests SET state = 'unknown', done_at = ?, reason = 'Patchbay ended while the request was under way' WHERE state = 'dispatched'
		AND (at < ? OR owner <> '' AND NOT EXISTS (SELECT 1 FROM leases WHERE name = 'process/' || egress_requests.owner AND until >= ?))`,
		plane.Micros(x.now), plane.Micros(before), plane.Micros(x.now))
	return err
}

// Egress lists requests of the credential gateway, newest first.
func (s *Store) Egress(ctx context.Context, f plane.EgressFilter) ([]plane.EgressRecord, error) {
	cond, args := where(f.Before, []equal{{"agent", f.Agent}, {"host", f.Host}, {"state", string(f.State)}})
	var out []plane.EgressRecord
	err := s.each(ctx, func(r *sql.Rows) error {
		var e plane.EgressRecord
		var at, done, injected int64
		err := r.Scan(&e.ID, &at, &done, &e.Agent, &e.Team, &e.Principal, &e.Destination, &e.Host, &e.Port, &e.Method, &e.Path, &e.State, &e.Status, &injected, &e.Sent, &e.Received, &e.Reason, &e.Owner)
		e.At, e.DoneAt, e.Injected = plane.FromMicros(at), plane.FromMicros(done), injected != 0
		out = append(out, e)
		return err
	}, `SELECT `+egressColumns+` FROM egress_requests WHERE `+cond+` ORDER BY id DESC LIMIT ?`, append(args, f.Limit)...)
	return out, err
}

// SweepEgress forgets requests from before a time.
func (s *Store) SweepEgress(ctx context.Context, before time.Time) error {
	for {
		n := int64(0)
		err := s.Write(ctx, func(t plane.Tx) error {
			res, err := own(t).exec(`DELETE FROM egress_requests WHERE id IN (SELECT id FROM egress_requests WHERE at < ? LIMIT 1000)`, plane.Micros(before))
			if err == nil {
				n, err = res.RowsAffected()
			}
			return err
		})
		if err != nil || n < 1000 {
			return err
		}
	}
}

// Authority returns a certificate authority, or not_found.
func (s *Store) Authority(ctx context.Context, name string) (plane.Authority, error) {
	var a plane.Authority
	err := s.one(ctx, "authority", func(r *sql.Rows) error {
		var at int64
		err := r.Scan(&a.Name, &a.Cert, &a.Blob, &at)
		a.At = plane.FromMicros(at)
		return err
	}, `SELECT name, cert, blob, at FROM authorities WHERE name = ?`, name)
	return a, err
}

// PutAuthority stores an authority. Unless it renews one, the first of a name stays.
func (s *Store) PutAuthority(t plane.Tx, a *plane.Authority, renew bool) error {
	x := own(t)
	q := `INSERT INTO authorities (name, cert, blob, at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING`
	if renew {
		q = `INSERT INTO authorities (name, cert, blob, at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET cert = excluded.cert, blob = excluded.blob, at = excluded.at`
	}
	if _, err := x.exec(q, a.Name, a.Cert, a.Blob, plane.Micros(x.now)); err != nil || !renew {
		return err
	}
	return s.touchConnections(t) // the other replicas take it in
}
