package store

import (
	"time"

	"patchbay/internal/plane"
)

func (b *batcher) later(fn func(plane.Tx) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return plane.Errorf(plane.Unavailable, "The database is closed.")
	}
	if len(b.lazy) >= maxLazy {
		return plane.Errorf(plane.Limited, "Too much waits to be written.")
	}
	b.lazy = append(b.lazy, job{fn: fn})
	b.arm(lazyDelay)
	return nil
}

// arm has what waits lazily written after a while. b.mu is held.
func (b *batcher) arm(after time.Duration) {
	if b.armed {
		return
	}
	b.armed = true
	time.AfterFunc(after, func() {
		b.mu.Lock()
		b.due = true
		b.mu.Unlock()
		select {
		case b.wake <- struct{}{}:
		default:
		}
	})
}

// takeLazy takes what waits lazily, when its time has come or there is much of it:
// written together it costs less than a bit of it with every commit.
func (b *batcher) takeLazy(now bool) []job {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !now && !b.due && len(b.lazy) < maxLazy/4 {
		return nil
	}
	out := b.lazy
	b.lazy, b.armed, b.due = nil, false, false
	return out
}

// lazyAgain is how long what could not be written behind waits for the database, and
// lazyTries how often.
const (
	lazyAgain = 500 * time.Millisecond
	lazyTries = 240
)

// again keeps what was to be written behind for when the database is there again, as
// far as there is room and the store is open.
func (b *batcher) again(j job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.lazy) >= maxLazy || j.tries >= lazyTries {
		return false
	}
	j.tries++
	b.lazy = append(b.lazy, j)
	b.arm(lazyAgain)
	return true
}
