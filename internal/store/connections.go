package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
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

// FirstMeta stores a value of the meta table unless there is one.
func (s *Store) FirstMeta(t plane.Tx, key, value string) error {
	_, err := own(t).exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING`, key, value)
	return err
}

func parseScope(s string) plane.Scope {
	kind, name, _ := strings.Cut(s, ":")
	return plane.Scope{Kind: plane.ScopeKind(kind), Name: name}
}

const connectionColumns = `id, scope, slug, label, endpoint, auth, enabled, version, digest, created_at, created_by, origin, agents, state, reason, oauth, prefs, slot, declared`

func scanConnection(r *sql.Rows) (plane.Connection, error) {
	var c plane.Connection
	var scope, agents, oauth, prefs, declared string
	var enabled, created, slot int64
	if err := r.Scan(&c.ID, &scope, &c.Slug, &c.Label, &c.Endpoint, &c.Auth, &enabled, &c.Version, &c.Digest, &created, &c.CreatedBy,
		&c.Origin, &agents, &c.State, &c.Reason, &oauth, &prefs, &slot, &declared); err != nil {
		return c, err
	}
	c.Slot = slot != 0
	c.Scope, c.Enabled, c.CreatedAt = parseScope(scope), enabled != 0, plane.FromMicros(created)
	return c, errors.Join(json.Unmarshal([]byte(agents), &c.Agents), json.Unmarshal([]byte(oauth), &c.OAuth), json.Unmarshal([]byte(prefs), &c.Prefs), json.Unmarshal([]byte(declared), &c.Declared))
}

// Connections returns all connections that were not removed.
func (s *Store) Connections(ctx context.Context) ([]plane.Connection, error) {
	var out []plane.Connection
	err := s.each(ctx, func(r *sql.Rows) error {
		c, err := scanConnection(r)
		out = append(out, c)
		return err
	}, `SELECT `+connectionColumns+` FROM connections WHERE removed_at = 0 ORDER BY scope, slug, origin`)
	return out, err
}

// ConnectionByID returns one connection, removed or not_found.
func (s *Store) ConnectionByID(ctx context.Context, id plane.ConnectionID) (plane.Connection, error) {
	var c plane.Connection
	err := s.one(ctx, "connection", func(r *sql.Rows) (err error) { c, err = scanConnection(r); return err },
		`SELECT `+connectionColumns+` FROM connections WHERE id = ? AND removed_at = 0`, id)
	return c, err
}

// SaveConnection inserts a connection or replaces what a person may change. The
// version only ever rises.
func (s *Store) SaveConnection(t plane.Tx, c *plane.Connection) error {
	agents, err := json.Marshal(c.Agents)
	if err != nil {
		return err
	}
	oauth, err := json.Marshal(c.OAuth)
	if err != nil {
		return err
	}
	prefs, err := json.Marshal(c.Prefs)
	if err != nil {
		return err
	}
	declared, err := json.Marshal(c.Declared)
	if err != nil {
		return err
	}
	res, err := own(t).exec(`INSERT INTO connections (`+connectionColumns+`, removed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)
		ON CONFLICT (id) DO UPDATE SET slug = excluded.slug, label = excluded.label, endpoint = excluded.endpoint, auth = excluded.auth,
			enabled = excluded.enabled, version = excluded.version, digest = excluded.digest, agents = excluded.agents,
			state = excluded.state, reason = excluded.reason, oauth = excluded.oauth, prefs = excluded.prefs, declared = excluded.declared
		WHERE connections.version < excluded.version AND connections.removed_at = 0`,
		c.ID, c.Scope.String(), c.Slug, c.Label, c.Endpoint, c.Auth, flag(c.Enabled), c.Version, c.Digest, plane.Micros(t.Now()), c.CreatedBy,
		c.Origin, string(agents), c.State, c.Reason, string(oauth), string(prefs), flag(c.Slot), string(declared))
	if IsUnique(err) {
		if strings.Contains(err.Error(), "connections_slot") || strings.Contains(err.Error(), "connections.endpoint") {
			return plane.Errorf(plane.Conflict, "Another connection that is known by its address is at %s already.", c.Endpoint).At("endpoint").Because(err)
		}
		return plane.Errorf(plane.Conflict, "A connection named %s is in that scope already.", c.Slug).At("name").Because(err)
	}
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "The connection %s was changed in the meantime.", c.Slug)); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// SetConnectionState moves a connection between states without a new version:
// nobody changed it, it was found out. It does nothing when the version moved on
// or nothing changes.
func (s *Store) SetConnectionState(t plane.Tx, id plane.ConnectionID, version int64, state plane.ConnectionState, reason string) error {
	res, err := own(t).exec(`UPDATE connections SET state = ?, reason = ? WHERE id = ? AND version = ? AND removed_at = 0 AND (state <> ? OR reason <> ?)`,
		state, reason, id, version, state, reason)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	return s.touchConnections(t)
}

// SetOAuthOptions stores what was learned about a connection's server, without a
// new version.
func (s *Store) SetOAuthOptions(t plane.Tx, id plane.ConnectionID, o plane.OAuthOptions) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := own(t).exec(`UPDATE connections SET oauth = ? WHERE id = ? AND removed_at = 0`, string(b), id); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// CountConnections is how many connections a scope has that were added.
func (s *Store) CountConnections(t plane.Tx, scope plane.Scope) (int, error) {
	n := 0
	err := own(t).each(func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT COUNT(*) FROM connections WHERE scope = ? AND origin = 'added' AND removed_at = 0`, scope.String())
	return n, err
}

// RemoveConnection takes a connection and what belongs to it away. Its calls
// stay on record.
func (s *Store) RemoveConnection(t plane.Tx, id plane.ConnectionID) error {
	x := own(t)
	res, err := x.exec(`UPDATE connections SET removed_at = ?, version = version + 1, enabled = 0, endpoint = '', label = '', agents = '[]', oauth = '{}', prefs = '{}' WHERE id = ? AND removed_at = 0`, plane.Micros(t.Now()), id)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such connection.")); err != nil {
		return err
	}
	for _, q := range []string{`DELETE FROM credentials WHERE connection = ?`, `DELETE FROM catalogs WHERE connection = ?`, `DELETE FROM definitions WHERE connection = ?`, `DELETE FROM reviews WHERE connection = ?`,
		`DELETE FROM pins WHERE connection = ?`, `DELETE FROM extras WHERE connection = ?`, `DELETE FROM refreshes WHERE connection = ?`,
		`UPDATE tickets SET state = 'cancelled' WHERE connection = ? AND state IN ('pending', 'opened', 'authorizing')`} {
		if _, err := x.exec(q, id); err != nil {
			return err
		}
	}
	return s.touchConnections(t)
}
