package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"time"

	"patchbay/internal/plane"
)

// lockConns is how many locks one process holds or waits for at once. They have
// connections of their own: what waits for a lock must not keep others from the
// database.
const lockConns = 8

// Held is a lock while it is held.
type Held struct {
	conn *sql.Conn
	key  int64
}

// Lock takes the lock of that name across all replicas, and waits for it until
// ctx ends. On PostgreSQL it is a session's advisory lock: it ends with its
// holder's connection and with nothing else, so that a holder that was only
// stopped still has it. On SQLite one process owns the database, and its callers
// take turns by themselves.
func (s *Store) Lock(ctx context.Context, name string) (*Held, error) {
	if !s.pg {
		return &Held{}, nil
	}
	conn, err := s.locks.Conn(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	sum := sha256.Sum256([]byte("patchbay lock " + name))
	h := &Held{conn: conn, key: int64(binary.BigEndian.Uint64(sum[:8]))}
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, h.key); err != nil {
		h.discard()
		return nil, unavailable(err)
	}
	return h, nil
}

// Check reports whether the lock is still held: a holder that was stopped for
// long may have lost its connection, and with it the lock.
func (h *Held) Check(ctx context.Context) error {
	if h.conn == nil {
		return nil
	}
	held := false
	err := h.conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
		AND ((classid::bigint << 32) | objid::bigint) = $1)`, h.key).Scan(&held)
	if err != nil {
		return unavailable(err)
	}
	if !held {
		return plane.Errorf(plane.Unavailable, "The lock was lost.")
	}
	return nil
}

// Release gives the lock back.
func (h *Held) Release() {
	if h.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := h.conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, h.key); err != nil {
		h.discard()
		return
	}
	h.conn.Close()
}

// discard closes the connection itself, and with it whatever lock it holds.
func (h *Held) discard() {
	h.conn.Raw(func(any) error { return driver.ErrBadConn })
	h.conn.Close()
}

func (s *Store) openLocks(open func() *sql.DB) {
	s.locks = open()
	s.locks.SetMaxOpenConns(lockConns)
	s.locks.SetMaxIdleConns(1)
}
