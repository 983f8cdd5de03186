package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"patchbay/internal/plane"
)

// Credential returns the sealed credential of a connection, or not_found.
func (s *Store) Credential(ctx context.Context, id plane.ConnectionID) (plane.Credential, error) {
	var c plane.Credential
	err := s.one(ctx, "credential", func(r *sql.Rows) error {
		var scope string
		var expires, started int64
		err := r.Scan(&c.Connection, &scope, &c.Rev, &c.Blob, &expires, &started, &c.Tries)
		c.Scope, c.ExpiresAt, c.Started = parseScope(scope), plane.FromMicros(expires), plane.FromMicros(started)
		return err
	}, `SELECT connection, scope, rev, blob, expires_at, started_at, tries FROM credentials WHERE connection = ?`, id)
	return c, err
}

// PutCredential stores what a person just gave, whatever was there. Its rev is
// above every one that the connection ever had, also before its credential was
// taken away: a refresh of an older one must not pass for this one's.
func (s *Store) PutCredential(t plane.Tx, c *plane.Credential) error {
	_, err := own(t).exec(`INSERT INTO credentials (connection, scope, rev, blob, expires_at, started_at, tries) VALUES (?, ?, ?, ?, ?, 0, 0)
		ON CONFLICT (connection) DO UPDATE SET scope = excluded.scope,
			rev = CASE WHEN credentials.rev < excluded.rev THEN excluded.rev ELSE credentials.rev + 1 END, blob = excluded.blob,
			expires_at = excluded.expires_at, started_at = 0, tries = 0`,
		c.Connection, c.Scope.String(), plane.Micros(t.Now()), c.Blob, plane.Micros(c.ExpiresAt))
	return err
}

// SwapCredential stores a refreshed set in place of the rev that it came from,
// which stays until then.
func (s *Store) SwapCredential(t plane.Tx, c *plane.Credential, from int64) error {
	res, err := own(t).exec(`UPDATE credentials SET rev = rev + 1, blob = ?, expires_at = ?, started_at = 0, tries = 0 WHERE connection = ? AND rev = ?`,
		c.Blob, plane.Micros(c.ExpiresAt), c.Connection, from)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The credential was replaced in the meantime."))
}

// StartRefresh notes that the refresh token of rev is about to be presented.
func (s *Store) StartRefresh(t plane.Tx, id plane.ConnectionID, rev int64) error {
	res, err := own(t).exec(`UPDATE credentials SET started_at = ?, tries = tries + 1 WHERE connection = ? AND rev = ?`, plane.Micros(t.Now()), id, rev)
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The credential was replaced in the meantime."))
}

// AnswerRefresh notes that the refresh of rev was answered without a new set.
func (s *Store) AnswerRefresh(t plane.Tx, id plane.ConnectionID, rev int64) error {
	_, err := own(t).exec(`UPDATE credentials SET started_at = 0, tries = 0 WHERE connection = ? AND rev = ?`, id, rev)
	return err
}

// DropCredential deletes a connection's credential.
func (s *Store) DropCredential(t plane.Tx, id plane.ConnectionID) error {
	_, err := own(t).exec(`DELETE FROM credentials WHERE connection = ?`, id)
	return err
}

const ticketColumns = `hash, id, connection, version, kind, asker, email, opened_by, state, created_at, expires_at, pending, outcome, superseded, back`

func scanTicket(r *sql.Rows) (plane.Ticket, error) {
	var k plane.Ticket
	var created, expires, superseded int64
	var outcome string
	err := r.Scan(&k.Hash, &k.ID, &k.Connection, &k.Version, &k.Kind, &k.Asker, &k.Email, &k.OpenedBy, &k.State, &created, &expires,
		&k.Pending, &outcome, &superseded, &k.Return)
	k.CreatedAt, k.ExpiresAt, k.Superseded = plane.FromMicros(created), plane.FromMicros(expires), superseded != 0
	return k, errors.Join(err, json.Unmarshal([]byte(outcome), &k.Outcome))
}

// Ticket returns the ticket with that hash, or not_found.
func (s *Store) Ticket(ctx context.Context, hash string) (plane.Ticket, error) {
	var k plane.Ticket
	err := s.one(ctx, "link", func(r *sql.Rows) (err error) { k, err = scanTicket(r); return err },
		`SELECT `+ticketColumns+` FROM tickets WHERE hash = ?`, hash)
	return k, err
}

// AddTicket stores a new ticket. Open ones of the same connection are superseded
// by it.
func (s *Store) AddTicket(t plane.Tx, k *plane.Ticket) error {
	x := own(t)
	if _, err := x.exec(`UPDATE tickets SET state = 'cancelled', superseded = 1 WHERE connection = ? AND state IN ('pending', 'opened', 'authorizing')`, k.Connection); err != nil {
		return err
	}
	_, err := x.exec(`INSERT INTO tickets (`+ticketColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '{}', 0, ?)`,
		k.Hash, k.ID, k.Connection, k.Version, k.Kind, k.Asker, k.Email, k.OpenedBy, k.State, plane.Micros(t.Now()), plane.Micros(k.ExpiresAt), []byte{}, k.Return)
	return err
}

// MoveTicket is the compare-and-swap of the state machine: k replaces the stored
// ticket only while that is as was says: state, owner, and the sign-in under way,
// which its expiry names (its sealed bytes change when keys are rotated). It
// reports whether it did.
func (s *Store) MoveTicket(t plane.Tx, was, k *plane.Ticket) (bool, error) {
	outcome, err := json.Marshal(k.Outcome)
	if err != nil {
		return false, err
	}
	pending := k.Pending
	if pending == nil {
		pending = []byte{}
	}
	res, err := own(t).exec(`UPDATE tickets SET state = ?, opened_by = ?, expires_at = ?, pending = ?, outcome = ?, back = ?
		WHERE hash = ? AND state = ? AND opened_by = ? AND expires_at = ? AND CASE WHEN LENGTH(pending) > 0 THEN 1 ELSE 0 END = ?`,
		k.State, k.OpenedBy, plane.Micros(k.ExpiresAt), pending, string(outcome), k.Return, k.Hash, was.State, was.OpenedBy,
		plane.Micros(was.ExpiresAt), flag(len(was.Pending) > 0))
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// SweepTickets deletes tickets that ended before a time.
func (s *Store) SweepTickets(t plane.Tx, before time.Time) error {
	_, err := own(t).exec(`DELETE FROM tickets WHERE expires_at < ?`, plane.Micros(before))
	return err
}

// OAuthClient returns who we are at an issuer for a redirect URI, or not_found.
func (s *Store) OAuthClient(ctx context.Context, issuer, redirect string) (plane.OAuthClient, error) {
	var c plane.OAuthClient
	err := s.one(ctx, "client", func(r *sql.Rows) error {
		var at int64
		err := r.Scan(&c.Issuer, &c.Redirect, &c.Blob, &at)
		c.MadeAt = plane.FromMicros(at)
		return err
	}, `SELECT issuer, redirect, blob, made_at FROM oauth_clients WHERE issuer = ? AND redirect = ?`, issuer, redirect)
	return c, err
}

// PutOAuthClient stores a registration.
func (s *Store) PutOAuthClient(t plane.Tx, c *plane.OAuthClient) error {
	_, err := own(t).exec(`INSERT INTO oauth_clients (issuer, redirect, blob, made_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (issuer, redirect) DO UPDATE SET blob = excluded.blob, made_at = excluded.made_at`, c.Issuer, c.Redirect, c.Blob, plane.Micros(t.Now()))
	return err
}

// DropLoopbackClients forgets the registrations at an issuer for redirects to a
// caller's own machine: each has a port of its own, and none is used twice.
func (s *Store) DropLoopbackClients(t plane.Tx, issuer string) error {
	_, err := own(t).exec(`DELETE FROM oauth_clients WHERE issuer = ? AND redirect LIKE 'http://127.0.0.1:%'`, issuer)
	return err
}

// ForgetClients forgets every registration at an issuer that no longer knows us.
func (s *Store) ForgetClients(t plane.Tx, issuer string) error {
	_, err := own(t).exec(`DELETE FROM oauth_clients WHERE issuer = ?`, issuer)
	return err
}

// DropOAuthClient forgets a registration.
func (s *Store) DropOAuthClient(t plane.Tx, issuer, redirect string) error {
	_, err := own(t).exec(`DELETE FROM oauth_clients WHERE issuer = ? AND redirect = ?`, issuer, redirect)
	return err
}

// AddRevocation stores a token whose revocation is owed.
func (s *Store) AddRevocation(t plane.Tx, r *plane.Revocation) error {
	_, err := own(t).exec(`INSERT INTO revocations (id, blob, tries, due_at) VALUES (?, ?, ?, ?)`, r.ID, r.Blob, r.Tries, plane.Micros(r.DueAt))
	return err
}

// DueRevocations returns what is owed at now.
func (s *Store) DueRevocations(ctx context.Context, now time.Time, limit int) ([]plane.Revocation, error) {
	var out []plane.Revocation
	err := s.each(ctx, func(r *sql.Rows) error {
		var v plane.Revocation
		var due int64
		err := r.Scan(&v.ID, &v.Blob, &v.Tries, &due)
		v.DueAt = plane.FromMicros(due)
		out = append(out, v)
		return err
	}, `SELECT id, blob, tries, due_at FROM revocations WHERE due_at <= ? ORDER BY due_at LIMIT ?`, plane.Micros(now), limit)
	return out, err
}

// PutOffRevocation sets when a revocation is tried next.
func (s *Store) PutOffRevocation(t plane.Tx, id string, tries int, due time.Time) error {
	_, err := own(t).exec(`UPDATE revocations SET tries = ?, due_at = ? WHERE id = ?`, tries, plane.Micros(due), id)
	return err
}

// EndRevocation deletes a revocation that was done or given up.
func (s *Store) EndRevocation(t plane.Tx, id string) error {
	_, err := own(t).exec(`DELETE FROM revocations WHERE id = ?`, id)
	return err
}

// CancelTickets ends the open links of a connection.
func (s *Store) CancelTickets(t plane.Tx, id plane.ConnectionID) error {
	_, err := own(t).exec(`UPDATE tickets SET state = 'cancelled' WHERE connection = ? AND state IN ('pending', 'opened', 'authorizing')`, id)
	return err
}
