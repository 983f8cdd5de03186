package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"patchbay/internal/plane"
)

const catalogColumns = `connection, version, revision, health, detail, captured_at, failed_at, instructions, server, instructions_before, instructions_at`

// Catalogs returns every stored catalog with the bytes of what it lists.
func (s *Store) Catalogs(ctx context.Context) ([]plane.Catalog, error) { return s.catalogs(ctx, "") }

// CatalogByID returns one stored catalog, or not_found.
func (s *Store) CatalogByID(ctx context.Context, id plane.ConnectionID) (plane.Catalog, error) {
	found, err := s.catalogs(ctx, id)
	if err == nil && len(found) == 0 {
		err = plane.Errorf(plane.NotFound, "There is no such catalog.")
	}
	if err != nil {
		return plane.Catalog{}, err
	}
	return found[0], nil
}

func (s *Store) catalogs(ctx context.Context, id plane.ConnectionID) ([]plane.Catalog, error) {
	only := func(column string) (string, []any) {
		if id == "" {
			return "", nil
		}
		return ` WHERE ` + column + ` = ?`, []any{id}
	}
	var out []plane.Catalog
	at := map[plane.ConnectionID]int{}
	where, args := only("connection")
	err := s.each(ctx, func(r *sql.Rows) error {
		var c plane.Catalog
		var captured, failed, told int64
		if err := r.Scan(&c.Connection, &c.Version, &c.Revision, &c.Health, &c.Detail, &captured, &failed, &c.Instructions, &c.Server, &c.InstructionsBefore, &told); err != nil {
			return err
		}
		c.CapturedAt, c.FailedAt, c.InstructionsAt = plane.FromMicros(captured), plane.FromMicros(failed), plane.FromMicros(told)
		at[c.Connection] = len(out)
		out = append(out, c)
		return nil
	}, `SELECT `+catalogColumns+` FROM catalogs`+where+` ORDER BY connection`, args...)
	if err != nil {
		return nil, err
	}
	where, args = only("d.connection")
	err = s.each(ctx, func(r *sql.Rows) error {
		var id plane.ConnectionID
		var d plane.Definition
		var raw []byte
		var accepted bool
		if err := r.Scan(&id, &d.Fingerprint, &d.Held, &d.Class, &d.Reviewed, &accepted, &raw); err != nil {
			return err
		}
		d.Raw, d.Class, d.Reviewed = raw, known(d.Class), d.Reviewed || accepted
		if i, ok := at[id]; ok {
			out[i].Definitions = append(out[i].Definitions, d)
		}
		return nil
	}, `SELECT d.connection, d.fingerprint, d.held, COALESCE(r.class, 'effect'), r.class IS NOT NULL,
			EXISTS (SELECT 1 FROM pins p WHERE p.connection = d.connection AND p.fingerprint = d.fingerprint AND p.accepted_by <> ''), d.raw
		FROM definitions d LEFT JOIN reviews r ON r.connection = d.connection AND r.fingerprint = d.fingerprint`+where+` ORDER BY d.connection, d.ord`, args...)
	if err != nil {
		return nil, err
	}
	where, args = only("connection")
	err = s.each(ctx, func(r *sql.Rows) error {
		var id plane.ConnectionID
		var kind string
		var raw []byte
		if err := r.Scan(&id, &kind, &raw); err != nil {
			return err
		}
		if i, ok := at[id]; ok {
			switch kind {
			case kindResource:
				out[i].Resources = append(out[i].Resources, raw)
			case kindTemplate:
				out[i].Templates = append(out[i].Templates, raw)
			case kindPrompt:
				out[i].Prompts = append(out[i].Prompts, raw)
			}
		}
		return nil
	}, `SELECT connection, kind, raw FROM extras`+where+` ORDER BY connection, kind, ord`, args...)
	return out, err
}

// Kinds of what a server lists beside its tools.
const (
	kindResource = "resource"
	kindTemplate = "template"
	kindPrompt   = "prompt"
)

// SaveCatalog stores a catalog's health, and what it lists when whole is set. It
// is refused where a newer revision, or one of a newer version of the connection,
// is stored.
func (s *Store) SaveCatalog(t plane.Tx, c *plane.Catalog, whole bool) error {
	x := own(t)
	// The connection is held first, here as everywhere, so that no two transactions
	// wait for each other; what was removed gets no catalog any more.
	there := false
	if err := x.each(func(r *sql.Rows) error { there = true; var one int64; return r.Scan(&one) },
		`SELECT 1 FROM connections WHERE id = ? AND removed_at = 0 {share}`, c.Connection); err != nil {
		return err
	}
	if !there {
		return plane.Errorf(plane.NotFound, "There is no such connection.")
	}
	seq, err := s.count(x, metaCatalogs)
	if err != nil {
		return err
	}
	res, err := x.exec(`INSERT INTO catalogs (`+catalogColumns+`, seq)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (connection) DO UPDATE SET version = excluded.version, revision = excluded.revision, health = excluded.health,
			detail = excluded.detail, captured_at = excluded.captured_at, failed_at = excluded.failed_at,
			instructions = excluded.instructions, server = excluded.server, instructions_before = excluded.instructions_before,
			instructions_at = excluded.instructions_at, seq = excluded.seq
		WHERE catalogs.revision < excluded.revision AND catalogs.version <= excluded.version`,
		c.Connection, c.Version, c.Revision, c.Health, c.Detail, plane.Micros(c.CapturedAt), plane.Micros(c.FailedAt), c.Instructions, c.Server,
		c.InstructionsBefore, plane.Micros(c.InstructionsAt), seq)
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "A newer catalog is stored already.")); err != nil || !whole {
		return err
	}
	for _, q := range []string{`DELETE FROM definitions WHERE connection = ?`, `DELETE FROM extras WHERE connection = ?`} {
		if _, err := x.exec(q, c.Connection); err != nil {
			return err
		}
	}
	for i := range c.Definitions {
		d := &c.Definitions[i]
		if _, err := x.exec(`INSERT INTO definitions (connection, ord, fingerprint, held, raw) VALUES (?, ?, ?, ?, ?)`,
			c.Connection, i, d.Fingerprint, d.Held, []byte(d.Raw)); err != nil {
			return err
		}
	}
	for kind, list := range map[string][]json.RawMessage{kindResource: c.Resources, kindTemplate: c.Templates, kindPrompt: c.Prompts} {
		for i, raw := range list {
			if _, err := x.exec(`INSERT INTO extras (connection, kind, ord, raw) VALUES (?, ?, ?, ?)`, c.Connection, kind, i, []byte(raw)); err != nil {
				return err
			}
		}
	}
	return nil
}

// CatalogsSince names the catalogs that were stored after a point, and the point
// they lead to. The first point is 0.
func (s *Store) CatalogsSince(ctx context.Context, seq int64) ([]plane.ConnectionID, int64, error) {
	var ids []plane.ConnectionID
	err := s.each(ctx, func(r *sql.Rows) error {
		var id plane.ConnectionID
		var at int64
		err := r.Scan(&id, &at)
		ids, seq = append(ids, id), max(seq, at)
		return err
	}, `SELECT connection, seq FROM catalogs WHERE seq > ? ORDER BY seq`, seq)
	return ids, seq, err
}

// Pins returns the adopted definitions of a connection, those of absent tools
// too.
func (s *Store) Pins(ctx context.Context, id plane.ConnectionID) ([]plane.Pin, error) {
	var out []plane.Pin
	err := s.each(ctx, func(r *sql.Rows) error {
		p := plane.Pin{Connection: id}
		var at, changed int64
		err := r.Scan(&p.Name, &p.Fingerprint, &p.Raw, &at, &p.Before, &changed, &p.AcceptedBy, &p.BlockedBy)
		p.At, p.ChangedAt = plane.FromMicros(at), plane.FromMicros(changed)
		out = append(out, p)
		return err
	}, `SELECT name, fingerprint, raw, at, before, changed_at, accepted_by, blocked_by FROM pins WHERE connection = ? ORDER BY name`, id)
	return out, err
}

// PutPin stores an adopted definition in place of the tool's earlier one.
func (s *Store) PutPin(t plane.Tx, p *plane.Pin) error {
	bytes := func(b []byte) []byte {
		if b == nil {
			return []byte{}
		}
		return b
	}
	_, err := own(t).exec(`INSERT INTO pins (connection, name, fingerprint, raw, at, before, changed_at, accepted_by, blocked_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (connection, name) DO UPDATE SET fingerprint = excluded.fingerprint, raw = excluded.raw, at = excluded.at, before = excluded.before,
			changed_at = excluded.changed_at, accepted_by = excluded.accepted_by, blocked_by = excluded.blocked_by`,
		p.Connection, p.Name, p.Fingerprint, bytes(p.Raw), plane.Micros(p.At), bytes(p.Before), plane.Micros(p.ChangedAt), p.AcceptedBy, p.BlockedBy)
	return err
}

// DropPin forgets an adopted definition.
func (s *Store) DropPin(t plane.Tx, id plane.ConnectionID, name string) error {
	_, err := own(t).exec(`DELETE FROM pins WHERE connection = ? AND name = ?`, id, name)
	return err
}

// ConvertPrefs stores preferences that mean the same in another form, without a
// new version, unless the connection changed.
func (s *Store) ConvertPrefs(t plane.Tx, id plane.ConnectionID, version int64, p plane.Preferences) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	res, err := own(t).exec(`UPDATE connections SET prefs = ? WHERE id = ? AND version = ? AND removed_at = 0`, string(b), id, version)
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "The connection was changed in the meantime.")); err != nil {
		return err
	}
	return s.touchConnections(t)
}
