package store

import (
	"context"
	"database/sql"
	"strings"

	"patchbay/internal/plane"
)

// Meta returns a value of the meta table, "" when it is not there.
func (s *Store) Meta(ctx context.Context, key string) (string, error) {
	var v string
	err := s.each(ctx, func(r *sql.Rows) error { return r.Scan(&v) }, `SELECT value FROM meta WHERE key = ?`, key)
	return v, err
}

// SetMeta stores a value of the meta table.
func (s *Store) SetMeta(t plane.Tx, key, value string) error {
	_, err := own(t).exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return err
}

func parseScope(s string) plane.Scope {
	kind, name, _ := strings.Cut(s, ":")
	return plane.Scope{Kind: plane.ScopeKind(kind), Name: name}
}

// Connections returns all connections as they were stored.
func (s *Store) Connections(ctx context.Context) ([]plane.Connection, error) {
	var out []plane.Connection
	err := s.each(ctx, func(r *sql.Rows) error {
		var c plane.Connection
		var scope string
		var enabled int64
		if err := r.Scan(&c.ID, &scope, &c.Slug, &c.Label, &c.Endpoint, &c.Auth, &enabled, &c.Version, &c.Digest); err != nil {
			return err
		}
		c.Scope, c.Enabled = parseScope(scope), enabled != 0
		out = append(out, c)
		return nil
	}, `SELECT id, scope, slug, label, endpoint, auth, enabled, version, digest FROM connections ORDER BY scope, slug`)
	return out, err
}

// SaveConnection inserts a connection or replaces what a person may change. The
// version only ever rises.
func (s *Store) SaveConnection(t plane.Tx, c *plane.Connection) error {
	res, err := own(t).exec(`INSERT INTO connections (id, scope, slug, label, endpoint, auth, enabled, version, digest, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET label = excluded.label, endpoint = excluded.endpoint, auth = excluded.auth,
			enabled = excluded.enabled, version = excluded.version, digest = excluded.digest
		WHERE connections.version < excluded.version`,
		c.ID, c.Scope.String(), c.Slug, c.Label, c.Endpoint, c.Auth, flag(c.Enabled), c.Version, c.Digest, plane.Micros(t.Now()))
	if IsUnique(err) {
		return plane.Errorf(plane.Conflict, "A connection named %s is in that scope already.", c.Slug).Because(err)
	}
	return exactly(res, err, 1, plane.Errorf(plane.Conflict, "The connection %s was changed in the meantime.", c.Slug))
}

// Catalogs returns every stored catalog with its definitions' bytes.
func (s *Store) Catalogs(ctx context.Context) ([]plane.Catalog, error) {
	var out []plane.Catalog
	at := map[plane.ConnectionID]int{}
	err := s.each(ctx, func(r *sql.Rows) error {
		var c plane.Catalog
		var captured, failed int64
		if err := r.Scan(&c.Connection, &c.Version, &c.Revision, &c.Health, &c.Detail, &captured, &failed, &c.Instructions, &c.Server); err != nil {
			return err
		}
		c.CapturedAt, c.FailedAt = plane.FromMicros(captured), plane.FromMicros(failed)
		at[c.Connection] = len(out)
		out = append(out, c)
		return nil
	}, `SELECT connection, version, revision, health, detail, captured_at, failed_at, instructions, server FROM catalogs ORDER BY connection`)
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, func(r *sql.Rows) error {
		var id plane.ConnectionID
		var d plane.Definition
		var raw []byte
		if err := r.Scan(&id, &d.Fingerprint, &d.Class, &raw); err != nil {
			return err
		}
		d.Raw = raw
		if i, ok := at[id]; ok {
			out[i].Definitions = append(out[i].Definitions, d)
		}
		return nil
	}, `SELECT connection, fingerprint, class, raw FROM definitions ORDER BY connection, ord`)
	return out, err
}

// SaveCatalog stores a catalog's health, and its definitions when whole is set.
// A revision that is not newer than the stored one is refused.
func (s *Store) SaveCatalog(t plane.Tx, c *plane.Catalog, whole bool) error {
	x := own(t)
	res, err := x.exec(`INSERT INTO catalogs (connection, version, revision, health, detail, captured_at, failed_at, instructions, server)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (connection) DO UPDATE SET version = excluded.version, revision = excluded.revision, health = excluded.health,
			detail = excluded.detail, captured_at = excluded.captured_at, failed_at = excluded.failed_at,
			instructions = excluded.instructions, server = excluded.server
		WHERE catalogs.revision < excluded.revision`,
		c.Connection, c.Version, c.Revision, c.Health, c.Detail, plane.Micros(c.CapturedAt), plane.Micros(c.FailedAt), c.Instructions, c.Server)
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "A newer catalog is stored already.")); err != nil || !whole {
		return err
	}
	if _, err := x.exec(`DELETE FROM definitions WHERE connection = ?`, c.Connection); err != nil {
		return err
	}
	for i := range c.Definitions {
		d := &c.Definitions[i]
		if _, err := x.exec(`INSERT INTO definitions (connection, ord, fingerprint, class, raw) VALUES (?, ?, ?, ?, ?)`,
			c.Connection, i, d.Fingerprint, d.Class, []byte(d.Raw)); err != nil {
			return err
		}
	}
	return nil
}

// AddAudit records a decision.
func (s *Store) AddAudit(t plane.Tx, e plane.AuditEntry) error {
	at := e.At
	if at.IsZero() {
		at = t.Now()
	}
	_, err := own(t).exec(`INSERT INTO audit (id, at, who, action, what, decision, digest) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		plane.NewAuditID(at), plane.Micros(at), e.Who, e.Action, e.What, e.Decision, e.Digest)
	return err
}

// Audit returns the latest entries, newest first.
func (s *Store) Audit(ctx context.Context, limit int) ([]plane.AuditEntry, error) {
	var out []plane.AuditEntry
	err := s.each(ctx, func(r *sql.Rows) error {
		var e plane.AuditEntry
		var at int64
		if err := r.Scan(&at, &e.Who, &e.Action, &e.What, &e.Decision, &e.Digest); err != nil {
			return err
		}
		e.At = plane.FromMicros(at)
		out = append(out, e)
		return nil
	}, `SELECT at, who, action, what, decision, digest FROM audit ORDER BY at DESC, id DESC LIMIT ?`, limit)
	return out, err
}
