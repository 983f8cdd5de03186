package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"sync/atomic"
	"time"
)

// endedSessions are the MCP sessions that their clients ended: kept in the database,
// with a copy here that requests are checked against.
type endedSessions struct {
	a  *App
	by atomic.Pointer[map[string]time.Time]
}

func digestOf(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:])
}

// Add ends a session at every replica.
func (e *endedSessions) Add(ctx context.Context, session string, until time.Time) error {
	d := digestOf(session)
	for {
		old := e.by.Load()
		next := map[string]time.Time{d: until}
		if old != nil {
			next = maps.Clone(*old)
			next[d] = until
		}
		if e.by.CompareAndSwap(old, &next) {
			break
		}
	}
	return e.a.store.RevokeSession(ctx, d, until)
}

// Has reports that a session was ended.
func (e *endedSessions) Has(session string) bool {
	by := e.by.Load()
	if by == nil || len(*by) == 0 {
		return false
	}
	_, ok := (*by)[digestOf(session)]
	return ok
}

// load reads them anew.
func (e *endedSessions) load(ctx context.Context) error {
	old := e.by.Load()
	now := e.a.o.Clock.Now()
	next, err := e.a.store.RevokedSessions(ctx, now)
	if err != nil {
		return err
	}
	if old != nil { // what was ended here while they were read
		for d, until := range *old {
			if until.After(now) {
				next[d] = until
			}
		}
	}
	e.by.CompareAndSwap(old, &next)
	return nil
}
