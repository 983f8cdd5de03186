package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
)

// endedSessions are the MCP sessions that their clients ended: kept in the database,
// with a copy here that requests are checked against.
type endedSessions struct {
	a  *App
	mu sync.RWMutex
	by map[[16]byte]int64 // by digest, until when, in seconds

	newest time.Time // the latest end that was read; each is a life after it was written
}

func digestOf(session string) (d [16]byte) {
	sum := sha256.Sum256([]byte(session))
	copy(d[:], sum[:])
	return d
}

// Add ends a session at every replica.
func (e *endedSessions) Add(ctx context.Context, session string, until time.Time) error {
	d := digestOf(session)
	e.put(d, until)
	return e.a.store.RevokeSession(ctx, hex.EncodeToString(d[:]), until)
}

func (e *endedSessions) put(d [16]byte, until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = map[[16]byte]int64{}
	}
	e.by[d] = until.Unix()
}

// Has reports that a session was ended.
func (e *endedSessions) Has(session string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if len(e.by) == 0 {
		return false
	}
	_, ok := e.by[digestOf(session)]
	return ok
}

// load takes in what other replicas ended, and forgets what is over.
func (e *endedSessions) load(ctx context.Context) error {
	now := e.a.o.Clock.Now()
	e.mu.RLock()
	since := e.newest.Add(-time.Minute) // those of another replica may be written a little later
	e.mu.RUnlock()
	if since.Before(now) {
		since = now
	}
	stored, err := e.a.store.RevokedSessions(ctx, since)
	if err != nil {
		return err
	}
	for text, until := range stored {
		var d [16]byte
		if n, err := hex.Decode(d[:], []byte(text)); err == nil && n == len(d) {
			e.put(d, until)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, until := range stored {
		if until.After(e.newest) {
			e.newest = until
		}
	}
	for d, until := range e.by {
		if until <= now.Unix() {
			delete(e.by, d)
		}
	}
	return nil
}
