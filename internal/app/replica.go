package app

import (
	"context"
	"net/http"
	"sync"
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
	r.seen.Store(&began)
	return nil
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

// ending ends a server without leaving a caller in the air: first it asks for no
// more, then it lets what is under way end, then it tells the rest.
type ending struct {
	asked    atomic.Bool   // health says so, and connections are closed after their answer
	streams  chan struct{} // closed: whoever follows something comes back elsewhere
	calls    context.Context
	endCalls context.CancelFunc
}

func newEnding() *ending {
	e := &ending{streams: make(chan struct{})}
	e.calls, e.endCalls = context.WithCancel(context.Background())
	return e
}

// closing has connections closed by their next answer while the server ends, so
// that no request is sent into one that is being closed.
func (e *ending) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.asked.Load() {
			w.Header().Set("Connection", "close")
			if r.URL.Path == "/healthz" {
				http.Error(w, "stopping", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// tellTime is how long those who are told at the end have to write their answer.
const tellTime = 2 * time.Second

// drain ends the listeners.
func (a *App) drain() {
	e := a.ending
	e.asked.Store(true)
	if a.store.Kind() != "sqlite" { // others take over: let balancers notice
		time.Sleep(a.cfg.Limits.DrainNotice)
	}
	close(e.streams)
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Limits.Drain)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range a.servers {
		wg.Go(func() {
			if s.Shutdown(ctx) == nil {
				return
			}
			e.endCalls()
			last, cancel := context.WithTimeout(context.Background(), tellTime)
			defer cancel()
			if s.Shutdown(last) != nil {
				s.Close()
			}
		})
	}
	wg.Wait()
	e.endCalls()
}

// give makes Run end with an error: this process must not go on.
func (a *App) give(err error) {
	select {
	case a.failed <- err:
	default:
	}
}
