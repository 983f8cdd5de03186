package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

// Identify returns the person that an identity belongs to. A new identity is
// linked to the person with the same verified email, else it is a new person's
// first. What the issuer says now replaces what was known; a second identity
// without a verified address takes none away.
func (s *Store) Identify(t plane.Tx, subject, email, name string) (plane.Person, error) {
	x := own(t)
	p := plane.Person{Email: email, Name: name, SeenAt: t.Now()}
	read := func(r *sql.Rows) error { return r.Scan(&p.ID) }
	if err := x.each(read, `SELECT person FROM identities WHERE subject = ?`, subject); err != nil {
		return p, err
	}
	if p.ID == "" {
		if email != "" {
			if err := x.each(read, `SELECT id FROM principals WHERE email = ? ORDER BY id LIMIT 1`, email); err != nil {
				return p, err
			}
		}
		if p.ID == "" {
			p.ID = subject
		}
		if _, err := x.exec(`INSERT INTO identities (subject, person) VALUES (?, ?)`, subject, p.ID); err != nil {
			return p, err
		}
	}
	was := email
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&was) }, `SELECT email FROM principals WHERE id = ?`, p.ID); err != nil {
		return p, err
	}
	if _, err := x.exec(`INSERT INTO principals (id, email, name, seen_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET email = excluded.email, name = excluded.name, seen_at = excluded.seen_at
		WHERE excluded.email <> '' OR excluded.id = ?`, p.ID, email, name, plane.Micros(t.Now()), subject); err != nil {
		return p, err
	}
	var revoked int64
	err := x.each(func(r *sql.Rows) error { return r.Scan(&p.Email, &p.Name, &revoked) }, `SELECT email, name, revoked_at FROM principals WHERE id = ?`, p.ID)
	p.RevokedAt = plane.FromMicros(revoked)
	if p.Moved = p.Email != was; err == nil && p.Moved {
		err = s.touchAccess(x)
	}
	return p, err
}

// Person returns a person by id or by one of their identities, or not_found.
func (s *Store) Person(ctx context.Context, id string) (plane.Person, error) {
	var p plane.Person
	err := s.one(ctx, "person", func(r *sql.Rows) error {
		var seen, revoked int64
		err := r.Scan(&p.ID, &p.Email, &p.Name, &seen, &revoked)
		p.SeenAt, p.RevokedAt = plane.FromMicros(seen), plane.FromMicros(revoked)
		return err
	}, `SELECT id, email, name, seen_at, revoked_at FROM principals WHERE id = ? OR id = (SELECT person FROM identities WHERE subject = ?)`, id, id)
	return p, err
}

// AddSession stores a signed-in browser and forgets those idle since before.
func (s *Store) AddSession(t plane.Tx, w *plane.WebSession, before time.Time) error {
	x := own(t)
	if _, err := x.exec(`DELETE FROM web_sessions WHERE seen_at < ?`, plane.Micros(before)); err != nil {
		return err
	}
	_, err := x.exec(`INSERT INTO web_sessions (hash, person, created_at, seen_at) VALUES (?, ?, ?, ?)`, w.Hash, w.Person, plane.Micros(t.Now()), plane.Micros(t.Now()))
	return err
}

// Session returns a signed-in browser, or not_found.
func (s *Store) Session(ctx context.Context, hash string) (plane.WebSession, error) {
	var w plane.WebSession
	err := s.one(ctx, "session", func(r *sql.Rows) error {
		var created, seen int64
		err := r.Scan(&w.Hash, &w.Person, &created, &seen)
		w.CreatedAt, w.SeenAt = plane.FromMicros(created), plane.FromMicros(seen)
		return err
	}, `SELECT hash, person, created_at, seen_at FROM web_sessions WHERE hash = ?`, hash)
	return w, err
}

// SeeSession notes that a browser was here.
func (s *Store) SeeSession(t plane.Tx, hash string) error {
	_, err := own(t).exec(`UPDATE web_sessions SET seen_at = ? WHERE hash = ?`, plane.Micros(t.Now()), hash)
	return err
}

// EndSession signs a browser out.
func (s *Store) EndSession(t plane.Tx, hash string) error {
	_, err := own(t).exec(`DELETE FROM web_sessions WHERE hash = ?`, hash)
	return err
}

const tokenColumns = `id, hash, label, person, agent, team, rights, created_by, created_at, expires_at, used_at, revoked_at`

func scanToken(r *sql.Rows) (plane.Token, error) {
	var k plane.Token
	var created, expires, used, revoked int64
	err := r.Scan(&k.ID, &k.Hash, &k.Label, &k.Person, &k.Agent, &k.Team, &k.Rights, &k.CreatedBy, &created, &expires, &used, &revoked)
	k.CreatedAt, k.ExpiresAt, k.UsedAt, k.RevokedAt = plane.FromMicros(created), plane.FromMicros(expires), plane.FromMicros(used), plane.FromMicros(revoked)
	return k, err
}

// AddToken stores a token by its hash.
func (s *Store) AddToken(t plane.Tx, k *plane.Token) error {
	_, err := own(t).exec(`INSERT INTO tokens (`+tokenColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)`,
		k.ID, k.Hash, k.Label, k.Person, k.Agent, k.Team, int64(k.Rights), k.CreatedBy, plane.Micros(t.Now()), plane.Micros(k.ExpiresAt))
	return err
}

// TokenByHash returns a token, revoked or not, or not_found.
func (s *Store) TokenByHash(ctx context.Context, hash string) (plane.Token, error) {
	var k plane.Token
	err := s.one(ctx, "token", func(r *sql.Rows) (err error) { k, err = scanToken(r); return err },
		`SELECT `+tokenColumns+` FROM tokens WHERE hash = ?`, hash)
	return k, err
}

// Tokens returns all tokens, the newest first.
func (s *Store) Tokens(ctx context.Context) ([]plane.Token, error) {
	var out []plane.Token
	err := s.each(ctx, func(r *sql.Rows) error {
		k, err := scanToken(r)
		out = append(out, k)
		return err
	}, `SELECT `+tokenColumns+` FROM tokens ORDER BY created_at DESC, id DESC`)
	return out, err
}

// UseToken notes that a token was shown.
func (s *Store) UseToken(t plane.Tx, id string) error {
	_, err := own(t).exec(`UPDATE tokens SET used_at = ? WHERE id = ?`, plane.Micros(t.Now()), id)
	return err
}

// RevokeToken ends a token.
func (s *Store) RevokeToken(t plane.Tx, id string) error {
	x := own(t)
	res, err := x.exec(`UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at = 0`, plane.Micros(t.Now()), id)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such token, or it is revoked already.")); err != nil {
		return err
	}
	return s.touchAccess(x)
}
