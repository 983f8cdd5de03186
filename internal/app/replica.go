package app

import (
	"context"
	"sync/atomic"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/plane"
)

// replica keeps this process's view of the database: what others changed is taken
// in within a moment, and a process that cannot see changes says so instead of
// deciding on what it knew.
type replica struct {
	a    *App
	kick chan struct{}
	seen atomic.Pointer[time.Time] // when the last look that ended had begun, by this machine's steady clock

	turn    chan struct{} // one look at a time
	changes string        // the stored connections' counter
	ended   string        // that of sessions ended before their time
	access  string        // that of what was revoked
	seq     int64         // the newest catalog's place
}

const (
	lookEvery = 500 * time.Millisecond
	viewLife  = time.Second // how old a view may be that decides something
	lookTime  = 5 * time.Second
)

// watch looks again and again until ctx ends: when the database says that
// something changed, and now and then whether it says so or not.
func (r *replica) watch(ctx context.Context) {
	r.a.work.Go(func() {
		r.a.store.Listen(ctx, func() {
			select {
			case r.kick <- struct{}{}:
			default:
			}
		})
	})
	r.a.work.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-r.kick:
			}
			if err := r.look(ctx); plane.KindOf(err) == plane.Gone {
				r.a.give(err)
				return
			}
		}
	})
}

// look takes in what changed.
func (r *replica) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	c, err := r.a.store.Changes(ctx)
	if err != nil {
		return err
	}
	if c.Connections != r.changes {
		if err := r.a.refreshPolicy(ctx); err != nil {
			r.a.o.Log.Error("the policy could not be renewed", "err", err)
			return err
		}
		r.changes = c.Connections
	}
	if c.Catalogs != r.seq {
		if err := r.a.cats.Sync(ctx); err != nil {
			return err
		}
		r.seq = c.Catalogs
	}
	if c.Sessions != r.ended {
		if err := r.a.ended.load(ctx); err != nil {
			return err
		}
		r.ended = c.Sessions
	}
	if c.Access != r.access {
		r.a.auth.Forget()
		r.access = c.Access
	}
	r.seen.Store(&began)
	return nil
}

// knows reports that what others revoked up to a moment ago was taken in. On SQLite there are
// no others.
func (r *replica) knows() bool {
	if r.a.store.Kind() == "sqlite" {
		return true
	}
	at := r.seen.Load()
	return at != nil && time.Since(*at) < viewLife
}

// fresh holds a decision to a view no older than viewLife. Where the database
// does not answer, it is refused.
func (r *replica) fresh(ctx context.Context) error {
	if at := r.seen.Load(); at != nil && time.Since(*at) < viewLife {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, viewLife)
	defer cancel()
	if err := r.look(bound); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return plane.Errorf(plane.Unavailable, "The database does not answer, so this server cannot know what was changed; nothing was sent.").Because(err)
	}
	return nil
}

// newWorker makes the upkeep of the catalogs.
func (a *App) newWorker() *catalog.Worker {
	return &catalog.Worker{Catalogs: a.cats, Schedule: a.store, Policy: a.policy.Load, Owner: owner(), Period: a.cfg.Limits.CatalogRefresh}
}

// Refresh does what is due of the catalogs' upkeep now, and returns how many were
// read. A test ticks by it where serve does so by itself.
func (a *App) Refresh(ctx context.Context) (int, error) { return a.worker.Tick(ctx) }

// give makes Run end with an error: this process must not go on.
func (a *App) give(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
