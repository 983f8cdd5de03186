package store

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"patchbay/internal/plane"
)

// What is counted, so that every replica notices.
const (
	metaConnections = "connections_changed"
	metaCatalogs    = "catalogs_changed"
	metaSessions    = "sessions_ended"
	metaAccess      = "access_changed"
	metaMinBinary   = "min_binary"
)

// Binary is what this program understands of the schema. A database may demand a
// newer one by meta.min_binary.
const Binary = 8

// Changes is where the database stands.
type Changes = struct {
	Connections string // differs after every change to a connection
	Catalogs    int64  // the newest catalog's place
	Sessions    string // differs after every session that was ended
	Access      string // differs after every token, client or person that was revoked
}

// Changes reads where the database stands. A database that demands a newer
// program is gone for this one.
func (s *Store) Changes(ctx context.Context) (Changes, error) {
	var c Changes
	var least int64
	err := s.each(ctx, func(r *sql.Rows) error {
		var key, value string
		if err := r.Scan(&key, &value); err != nil {
			return err
		}
		switch key {
		case metaConnections:
			c.Connections = value
		case metaCatalogs:
			c.Catalogs, _ = strconv.ParseInt(value, 10, 64) // ours
		case metaSessions:
			c.Sessions = value
		case metaAccess:
			c.Access = value
		case metaMinBinary:
			least, _ = strconv.ParseInt(value, 10, 64)
		}
		return nil
	}, `SELECT key, value FROM meta WHERE key IN ('connections_changed', 'catalogs_changed', 'sessions_ended', 'access_changed', 'min_binary')`)
	if err == nil && least > Binary {
		err = tooOld(least)
	}
	return c, err
}

func tooOld(least int64) error {
	return plane.Errorf(plane.Gone, "The database was brought to a form that this Patchbay does not know (%d; this one knows %d).", least, Binary).
		Then("Install the newer Patchbay, or restore the backup from before the upgrade.")
}

// count raises a counter and returns its new value. Its row is held until the
// transaction ends, so that values are committed in order.
func (s *Store) count(x *tx, key string) (int64, error) {
	_, err := x.exec(`INSERT INTO meta (key, value) VALUES (?, '1')
		ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)`, key)
	if err != nil {
		return 0, err
	}
	var text string
	if err := x.each(func(r *sql.Rows) error { return r.Scan(&text) }, `SELECT value FROM meta WHERE key = ?`, key); err != nil {
		return 0, err
	}
	if s.pg {
		// Sent when the transaction commits, and to nobody when it does not.
		if _, err := x.exec(`SELECT pg_notify('`+channel+`', ?)`, key); err != nil {
			return 0, err
		}
	}
	return strconv.ParseInt(text, 10, 64)
}

func (s *Store) touchConnections(t plane.Tx) error {
	_, err := s.count(own(t), metaConnections)
	return err
}

// touchAccess says that what tokens stand for has changed.
func (s *Store) touchAccess(x *tx) error {
	_, err := s.count(x, metaAccess)
	return err
}

const channel = "patchbay"

// Listen calls told whenever a replica changed something, once at the start too,
// until ctx ends. While the connection is lost it returns nothing and tries
// again; whoever needs to know polls besides. On SQLite one process owns the
// database, and Listen only waits.
func (s *Store) Listen(ctx context.Context, told func()) {
	for s.pg && ctx.Err() == nil {
		s.listenOnce(ctx, told)
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
	<-ctx.Done()
}

// listenAgain is how long a lost connection is left alone.
const listenAgain = time.Second

func (s *Store) listenOnce(ctx context.Context, told func()) {
	conn, err := pgx.ConnectConfig(ctx, s.listen.Copy())
	if err != nil {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return
	}
	told()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return
		}
		told()
	}
}
