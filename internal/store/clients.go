package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"patchbay/internal/plane"
)

const clientColumns = `id, name, uri, redirects, auth, secret_hash, refreshes, created_at, used_at`

// AddClient stores a client that registered itself. Where more than most wait for somebody
// to let them in, the oldest of those that are older than aside makes room; refused is when
// none is.
func (s *Store) AddClient(t plane.Tx, c *plane.Client, most int, aside time.Time) error {
	x := own(t)
	waiting := 0
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&waiting) }, `SELECT COUNT(*) FROM mcp_clients WHERE used_at = 0`); err != nil {
		return err
	}
	if waiting >= most {
		gone, err := affected(x.exec(`DELETE FROM mcp_clients WHERE id = (SELECT id FROM mcp_clients WHERE used_at = 0 AND created_at < ? ORDER BY created_at, id LIMIT 1)`, plane.Micros(aside)))
		if err != nil {
			return err
		}
		if !gone {
			return plane.Errorf(plane.Limited, "Too many clients have registered that nobody has let in yet.").Over("clients_registered")
		}
	}
	redirects, err := json.Marshal(c.Redirects)
	if err != nil {
		return err
	}
	_, err = x.exec(`INSERT INTO mcp_clients (`+clientColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)`,
		c.ID, c.Name, c.URI, string(redirects), c.Auth, c.SecretHash, flag(c.Refreshes), plane.Micros(t.Now()))
	return err
}

// Client returns a client that registered itself, or not_found.
func (s *Store) Client(ctx context.Context, id string) (plane.Client, error) {
	var c plane.Client
	err := s.one(ctx, "client", func(r *sql.Rows) error {
		var redirects string
		var refreshes, created, used int64
		if err := r.Scan(&c.ID, &c.Name, &c.URI, &redirects, &c.Auth, &c.SecretHash, &refreshes, &created, &used); err != nil {
			return err
		}
		c.Refreshes, c.CreatedAt, c.UsedAt = refreshes != 0, plane.FromMicros(created), plane.FromMicros(used)
		return json.Unmarshal([]byte(redirects), &c.Redirects)
	}, `SELECT `+clientColumns+` FROM mcp_clients WHERE id = ?`, id)
	return c, err
}

const authorizedColumns = `id, person, client, name, host, print, path, team, rights, created_at, used_at, expires_at, revoked_at`

func scanAuthorization(r *sql.Rows) (a plane.Authorization, err error) {
	var rights, created, used, expires, revoked int64
	err = r.Scan(&a.ID, &a.Person, &a.Client, &a.Name, &a.Host, &a.Print, &a.Path, &a.Team, &rights, &created, &used, &expires, &revoked)
	a.Rights = plane.Rights(rights)
	a.CreatedAt, a.UsedAt, a.ExpiresAt, a.RevokedAt = plane.FromMicros(created), plane.FromMicros(used), plane.FromMicros(expires), plane.FromMicros(revoked)
	return a, err
}

// AuthorizationOf returns what a person lets a client do at a path, unless it was taken
// back; not_found for nothing.
func (s *Store) AuthorizationOf(ctx context.Context, person, client, path string) (a plane.Authorization, err error) {
	err = s.one(ctx, "client", func(r *sql.Rows) (err error) { a, err = scanAuthorization(r); return err },
		`SELECT `+authorizedColumns+` FROM authorizations WHERE person = ? AND client = ? AND path = ? AND revoked_at = 0`, person, client, path)
	return a, err
}

// Authorizations are those of a person or, with "", everybody's, the newest first; those
// that are over are left out.
func (s *Store) Authorizations(ctx context.Context, person string, now time.Time) (out []plane.Authorization, err error) {
	err = s.each(ctx, func(r *sql.Rows) error {
		a, err := scanAuthorization(r)
		out = append(out, a)
		return err
	}, `SELECT `+authorizedColumns+` FROM authorizations WHERE revoked_at = 0 AND expires_at > ? AND (? = '' OR person = ?) ORDER BY created_at DESC, id DESC`, plane.Micros(now), person, person)
	return out, err
}

// Authorize stores what a person lets a client do. What they let it do at that path before
// is replaced, and goes on under its id. The client is marked as used.
func (s *Store) Authorize(t plane.Tx, a *plane.Authorization) error {
	x := own(t)
	now := plane.Micros(t.Now())
	if _, err := x.exec(`INSERT INTO authorizations (`+authorizedColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0)
		ON CONFLICT (person, client, path) WHERE revoked_at = 0 DO UPDATE SET name = excluded.name, host = excluded.host, print = excluded.print,
		team = excluded.team, rights = excluded.rights, expires_at = excluded.expires_at,
		created_at = CASE WHEN authorizations.expires_at <= excluded.created_at THEN excluded.created_at ELSE authorizations.created_at END`,
		a.ID, a.Person, a.Client, a.Name, a.Host, a.Print, a.Path, a.Team, int64(a.Rights), now, plane.Micros(a.ExpiresAt)); err != nil {
		return err
	}
	if err := s.touchAccess(x); err != nil { // it may do less than before
		return err
	}
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&a.ID) },
		`SELECT id FROM authorizations WHERE person = ? AND client = ? AND path = ? AND revoked_at = 0`, a.Person, a.Client, a.Path); err != nil {
		return err
	}
	_, err := x.exec(`UPDATE mcp_clients SET used_at = ? WHERE id = ?`, now, a.Client)
	return err
}

// UseAuthorization notes that a token of it was shown.
func (s *Store) UseAuthorization(t plane.Tx, id string) error {
	_, err := own(t).exec(`UPDATE authorizations SET used_at = ? WHERE id = ?`, plane.Micros(t.Now()), id)
	return err
}

// RevokeAuthorization takes it back, with all that came of it; false when it was over.
func (s *Store) RevokeAuthorization(t plane.Tx, id string) (bool, error) {
	x := own(t)
	now := plane.Micros(t.Now())
	if _, err := x.exec(`UPDATE signins SET ended_at = ? WHERE authorized = ? AND ended_at = 0`, now, id); err != nil {
		return false, err
	}
	ok, err := affected(x.exec(`UPDATE authorizations SET revoked_at = ? WHERE id = ? AND revoked_at = 0`, now, id))
	if err != nil || !ok {
		return ok, err
	}
	return true, s.touchAccess(x)
}

const signInColumns = `id, authorized, client, team, rights, challenge, redirect, refreshes, created_at, redeemed_at, gen, rotated_at, answer, expires_at, ended_at`

// AddSignIn stores a sign-in of a client, with its code, unless its person is shut out. Of
// the same authorization, sign-ins whose code nobody came for in time make room.
func (s *Store) AddSignIn(t plane.Tx, n *plane.SignIn, code plane.ClientToken) error {
	x := own(t)
	var revoked int64
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&revoked) },
		`SELECT p.revoked_at FROM principals p JOIN authorizations a ON a.person = p.id WHERE a.id = ? {share}`, n.Authorization); err != nil {
		return err
	}
	if revoked > 0 {
		return plane.Errorf(plane.Unauthenticated, "An org admin has shut this person out.")
	}
	if _, err := x.exec(`DELETE FROM signins WHERE authorized = ? AND redeemed_at = 0 AND created_at < ?`, n.Authorization, plane.Micros(t.Now().Add(-time.Hour))); err != nil {
		return err
	}
	open := 0
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&open) }, `SELECT COUNT(*) FROM signins WHERE authorized = ? AND redeemed_at = 0`, n.Authorization); err != nil {
		return err
	}
	if open >= maxOpenSignIns {
		return plane.Errorf(plane.Limited, "The client has begun %d sign-ins and ended none.", open).Then("Try again in an hour, or take back what it may do: patchbay clients list")
	}
	if _, err := x.exec(`INSERT INTO signins (`+signInColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, 0)`,
		n.ID, n.Authorization, n.Client, n.Team, int64(n.Rights), n.Challenge, n.Redirect, flag(n.Refreshes), plane.Micros(t.Now()), []byte{}, plane.Micros(n.ExpiresAt)); err != nil {
		return err
	}
	return s.AddClientToken(t, code)
}

// maxOpenSignIns bounds the sign-ins of one authorization whose code nobody came for.
const maxOpenSignIns = 100

// AddClientToken stores a code or a token by its hash.
func (s *Store) AddClientToken(t plane.Tx, k plane.ClientToken) error {
	_, err := own(t).exec(`INSERT INTO client_tokens (hash, signin, kind, gen, expires_at) VALUES (?, ?, ?, ?, ?)`, k.Hash, k.SignIn, k.Kind, k.Gen, plane.Micros(k.ExpiresAt))
	return err
}

// SignInBy returns the sign-in that a code or token belongs to, with the authorization and
// the token; not_found where nobody knows it.
func (s *Store) SignInBy(t plane.Tx, hash, kind string) (n plane.SignIn, a plane.Authorization, k plane.ClientToken, err error) {
	found := false
	x := own(t)
	err = x.each(func(r *sql.Rows) error {
		found = true
		var rights, refreshes, created, redeemed, rotated, expires, ended, over int64
		err := r.Scan(&n.ID, &n.Authorization, &n.Client, &n.Team, &rights, &n.Challenge, &n.Redirect, &refreshes, &created, &redeemed, &n.Gen, &rotated, &n.Answer, &expires, &ended, &k.Hash, &k.Gen, &over)
		n.Rights = plane.Rights(rights)
		n.Refreshes, n.CreatedAt, n.RedeemedAt, n.RotatedAt = refreshes != 0, plane.FromMicros(created), plane.FromMicros(redeemed), plane.FromMicros(rotated)
		n.ExpiresAt, n.EndedAt = plane.FromMicros(expires), plane.FromMicros(ended)
		k.SignIn, k.Kind, k.ExpiresAt = n.ID, kind, plane.FromMicros(over)
		return err
	}, `SELECT n.id, n.authorized, n.client, n.team, n.rights, n.challenge, n.redirect, n.refreshes, n.created_at, n.redeemed_at, n.gen, n.rotated_at, n.answer, n.expires_at, n.ended_at,
		k.hash, k.gen, k.expires_at FROM client_tokens k JOIN signins n ON n.id = k.signin WHERE k.hash = ? AND k.kind = ?`, hash, kind)
	if err == nil && !found {
		err = plane.Errorf(plane.NotFound, "There is no such token.")
	}
	if err != nil {
		return n, a, k, err
	}
	err = x.each(func(r *sql.Rows) (err error) { a, err = scanAuthorization(r); return err }, `SELECT `+authorizedColumns+` FROM authorizations WHERE id = ?`, n.Authorization)
	return n, a, k, err
}

// RedeemSignIn marks a code as spent; false when somebody else was first.
func (s *Store) RedeemSignIn(t plane.Tx, id string) (bool, error) {
	return affected(own(t).exec(`UPDATE signins SET redeemed_at = ? WHERE id = ? AND redeemed_at = 0 AND ended_at = 0`, plane.Micros(t.Now()), id))
}

// RotateSignIn makes the next generation of a sign-in's tokens the one that counts, with
// what it was answered; false when somebody else was first. Of the access tokens the last
// two stay.
func (s *Store) RotateSignIn(t plane.Tx, id string, from int, answer []byte) (bool, error) {
	x := own(t)
	ok, err := affected(x.exec(`UPDATE signins SET gen = gen + 1, rotated_at = ?, answer = ? WHERE id = ? AND gen = ? AND ended_at = 0`, plane.Micros(t.Now()), answer, id, from))
	if err != nil || !ok {
		return ok, err
	}
	_, err = x.exec(`DELETE FROM client_tokens WHERE signin = ? AND kind = ? AND gen < ?`, id, plane.AccessToken, from)
	return true, err
}

// EndSignIn ends a sign-in with all its tokens; false when it was over.
func (s *Store) EndSignIn(t plane.Tx, id string) (bool, error) {
	x := own(t)
	ok, err := affected(x.exec(`UPDATE signins SET ended_at = ?, answer = ? WHERE id = ? AND ended_at = 0`, plane.Micros(t.Now()), []byte{}, id))
	if err != nil || !ok {
		return ok, err
	}
	return true, s.touchAccess(x)
}

// KnowsToken reports whether there is a code or token of that hash, without waiting for
// anybody who writes.
func (s *Store) KnowsToken(ctx context.Context, hash string) (bool, error) {
	found := false
	err := s.each(ctx, func(r *sql.Rows) error { found = true; return nil }, `SELECT 1 FROM client_tokens WHERE hash = ?`, hash)
	return found, err
}

// AccessByHash is a client's access token as a token of its person, or not_found: revoked
// when its sign-in is over or what the person allowed was taken back.
func (s *Store) AccessByHash(ctx context.Context, hash string) (plane.Token, error) {
	var k plane.Token
	err := s.one(ctx, "token", func(r *sql.Rows) error {
		var rights, expires, until, revoked, ended int64
		if err := r.Scan(&k.ID, &k.Person, &k.Path, &k.Team, &rights, &expires, &until, &revoked, &ended); err != nil {
			return err
		}
		k.Hash, k.Rights, k.ExpiresAt, k.RevokedAt = hash, plane.Rights(rights), plane.FromMicros(min(expires, until)), plane.FromMicros(max(revoked, ended))
		return nil
	}, `SELECT a.id, a.person, a.path, n.team, n.rights & a.rights, k.expires_at, a.expires_at, a.revoked_at, n.ended_at
		FROM client_tokens k JOIN signins n ON n.id = k.signin JOIN authorizations a ON a.id = n.authorized WHERE k.hash = ? AND k.kind = ?`, hash, plane.AccessToken)
	return k, err
}

// RevokePerson shuts a person out, or lets them in again: their browsers are signed out,
// and what they let clients do is taken back.
func (s *Store) RevokePerson(t plane.Tx, id string, out bool) error {
	x := own(t)
	now := plane.Micros(t.Now())
	if err := s.touchAccess(x); err != nil {
		return err
	}
	if !out {
		res, err := x.exec(`UPDATE principals SET revoked_at = 0 WHERE id = ? AND revoked_at > 0`, id)
		return exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such person, or they are not shut out."))
	}
	res, err := x.exec(`UPDATE principals SET revoked_at = ? WHERE id = ? AND revoked_at = 0`, now, id)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such person, or they are shut out already.")); err != nil {
		return err
	}
	for _, q := range []string{
		`UPDATE signins SET ended_at = ? WHERE ended_at = 0 AND authorized IN (SELECT id FROM authorizations WHERE person = ?)`,
		`UPDATE authorizations SET revoked_at = ? WHERE revoked_at = 0 AND person = ?`,
	} {
		if _, err := x.exec(q, now, id); err != nil {
			return err
		}
	}
	_, err = x.exec(`DELETE FROM web_sessions WHERE person = ?`, id)
	return err
}

// People are all persons that were seen, by their address.
func (s *Store) People(ctx context.Context) (out []plane.Person, err error) {
	err = s.each(ctx, func(r *sql.Rows) error {
		var p plane.Person
		var seen, revoked int64
		err := r.Scan(&p.ID, &p.Email, &p.Name, &seen, &revoked)
		p.SeenAt, p.RevokedAt = plane.FromMicros(seen), plane.FromMicros(revoked)
		out = append(out, p)
		return err
	}, `SELECT id, email, name, seen_at, revoked_at FROM principals ORDER BY email, id`)
	return out, err
}

// SweepClients forgets tokens that expired before a time, sign-ins that were over then or
// never began, what people took back, clients that nobody let in, and those that nobody let
// in for long: a client does not notice that it is forgotten, and its person stands before it.
func (s *Store) SweepClients(ctx context.Context, before time.Time) error {
	at := plane.Micros(before)
	for _, d := range []struct {
		q     string
		times int // that the time stands in it
	}{
		{`DELETE FROM client_tokens WHERE hash IN (SELECT hash FROM client_tokens WHERE expires_at < ? LIMIT ?)`, 1},
		{`DELETE FROM signins WHERE id IN (SELECT id FROM signins WHERE created_at < ? AND (redeemed_at = 0 OR expires_at < ? OR ended_at > 0 AND ended_at < ?) LIMIT ?)`, 3},
		{`DELETE FROM client_tokens WHERE hash IN (SELECT hash FROM client_tokens WHERE NOT EXISTS (SELECT 1 FROM signins WHERE id = client_tokens.signin) LIMIT ?)`, 0},
		{`DELETE FROM authorizations WHERE id IN (SELECT id FROM authorizations WHERE expires_at < ? OR revoked_at > 0 AND revoked_at < ? LIMIT ?)`, 2},
		{`DELETE FROM mcp_clients WHERE id IN (SELECT id FROM mcp_clients WHERE created_at < ? AND used_at = 0 LIMIT ?)`, 1},
		{`DELETE FROM mcp_clients WHERE id IN (SELECT id FROM mcp_clients WHERE created_at < ? - 34560000000000 AND used_at < ? - 34560000000000 AND NOT EXISTS (SELECT 1 FROM authorizations WHERE client = mcp_clients.id) LIMIT ?)`, 2},
	} {
		var args []any
		for range d.times {
			args = append(args, at)
		}
		if err := s.sweep(ctx, d.q, append(args, sweepMost)...); err != nil {
			return err
		}
	}
	return nil
}
