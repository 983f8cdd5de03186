package catalog

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Round is one connection's place in the schedule.
type Round = struct {
	Connection plane.ConnectionID
	DueAt      time.Time
	Tries      int   // failures in a row
	Parked     int64 // the version whose credential the server rejected; 0 for none
	Fence      int64
	LeaseUntil time.Time
	Rounds     int64
}

// Schedule is where the rounds are stored.
type Schedule interface {
	DueRefreshes(ctx context.Context, limit int) ([]Round, error)
	ScheduleRefresh(t plane.Tx, id plane.ConnectionID, due time.Time) error
	PostponeRefresh(t plane.Tx, id plane.ConnectionID, due time.Time) error
	HurryRefresh(t plane.Tx, id plane.ConnectionID, version int64, due time.Time) error
	ClaimRefresh(t plane.Tx, id plane.ConnectionID, owner string, until time.Time) (int64, error)
	EndRefresh(t plane.Tx, r Round) error
	ReleaseRefresh(t plane.Tx, id plane.ConnectionID, fence int64) error
}

// Worker reads every connection's catalog again once a period, each by one
// replica: a round is claimed for the time of a lease and ended under its fence,
// in the transaction that stores what was read. A server that fails is asked
// again ever later; one that rejects its credential, not before a person changed
// the connection.
type Worker struct {
	Catalogs *Catalogs
	Schedule Schedule
	Policy   func() *policy.Snapshot
	Owner    string
	Period   time.Duration

	mu      sync.Mutex
	known   map[plane.ConnectionID]bool  // scheduled
	hurried map[plane.ConnectionID]int64 // the version that was asked for early
}

const (
	dueAtOnce  = 64
	maxStretch = 4 // periods between two tries at a server that is down
)

// Run ticks until ctx ends.
func (w *Worker) Run(ctx context.Context, failed func(error)) {
	tick := time.NewTicker(min(max(w.Period/20, 100*time.Millisecond), 10*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for {
			n, err := w.Tick(ctx)
			if err != nil && ctx.Err() == nil {
				failed(err)
			}
			if n < dueAtOnce || err != nil {
				break
			}
		}
	}
}

// Tick does what is due now, a few at once, and returns how many rounds this
// replica took.
func (w *Worker) Tick(ctx context.Context) (int, error) {
	upkeep := w.Policy().Upkeep()
	grants := make(map[plane.ConnectionID]policy.Grant, len(upkeep))
	for _, g := range upkeep {
		grants[g.ID()] = g
	}
	if err := w.schedule(ctx, upkeep); err != nil {
		return 0, err
	}
	due, err := w.Schedule.DueRefreshes(ctx, dueAtOnce)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, w.Catalogs.lim.DiscoverAtOnce)
	var mu sync.Mutex
	ran := 0
	var first error
	var idle []plane.ConnectionID
	for _, r := range due {
		g, ok := grants[r.Connection]
		if !ok || r.Parked != 0 && r.Parked == g.Version() {
			idle = append(idle, r.Connection) // off, not signed in, or with a credential that was rejected
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			took, err := w.round(ctx, g, r)
			mu.Lock()
			defer mu.Unlock()
			if took {
				ran++
			}
			if err != nil && first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	if len(idle) > 0 && first == nil {
		first = w.Catalogs.store.Write(ctx, func(t plane.Tx) error {
			for _, id := range idle {
				if err := w.Schedule.PostponeRefresh(t, id, NextRound(id, t.Now(), w.Period)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return ran, first
}

// schedule adds what is not in the schedule, and moves forward what has no
// catalog of its present version. Every replica does so in the same order, so that
// none waits for another in a circle.
func (w *Worker) schedule(ctx context.Context, upkeep []policy.Grant) error {
	now := w.Catalogs.clock.Now()
	w.mu.Lock()
	if w.known == nil {
		w.known, w.hurried = map[plane.ConnectionID]bool{}, map[plane.ConnectionID]int64{}
	}
	var fresh, hurry []policy.Grant
	for _, g := range upkeep {
		id := g.ID()
		if !w.known[id] {
			fresh = append(fresh, g)
		}
		if s := w.Catalogs.Get(id); (s == nil || s.Stale(g.Version())) && w.hurried[id] != g.Version() {
			hurry = append(hurry, g)
		}
	}
	w.mu.Unlock()
	if len(fresh)+len(hurry) == 0 {
		return nil
	}
	err := w.Catalogs.store.Write(ctx, func(t plane.Tx) error {
		for _, g := range fresh {
			if err := w.Schedule.ScheduleRefresh(t, g.ID(), NextRound(g.ID(), now, w.Period)); err != nil {
				return err
			}
		}
		for _, g := range hurry {
			if err := w.Schedule.HurryRefresh(t, g.ID(), g.Version(), now.Add(w.backoff(0))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range fresh {
		w.known[g.ID()] = true
	}
	for _, g := range hurry {
		w.hurried[g.ID()] = g.Version()
	}
	return nil
}

// NextRound is when a connection is due after now. Every connection has its own
// phase, so that they spread over the period, and each is due once in every
// period of its own; the last tenth of a period is jitter.
func NextRound(id plane.ConnectionID, now time.Time, period time.Duration) time.Time {
	return time.Unix(0, 0).Add(phase(id, period) + time.Duration(Slot(id, now, period)+1)*period + rand.N(period/10+1)).UTC()
}

// Slot numbers the periods of a connection.
func Slot(id plane.ConnectionID, at time.Time, period time.Duration) int64 {
	return int64((at.Sub(time.Unix(0, 0)) - phase(id, period)) / period)
}

func phase(id plane.ConnectionID, period time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(id))
	return time.Duration(h.Sum64() % uint64(period))
}

// backoff is the pause after that many failures in a row.
func (w *Worker) backoff(tries int) time.Duration {
	d := w.Period / 30 << min(tries, 10)
	d = min(d, maxStretch*w.Period)
	return d + rand.N(d/4+1)
}

// lease outlives the longest listing.
func (w *Worker) lease() time.Duration {
	return w.Catalogs.lim.DiscoverOne + w.Catalogs.lim.DiscoverOne/2
}

// round claims, lists and ends. It reports whether the round was this replica's.
func (w *Worker) round(ctx context.Context, g policy.Grant, r Round) (bool, error) {
	if !w.Policy().Holds(g) {
		return false, nil // it was changed while it waited for its turn
	}
	err := w.Catalogs.store.Write(ctx, func(t plane.Tx) (err error) {
		r.Fence, err = w.Schedule.ClaimRefresh(t, r.Connection, w.Owner, t.Now().Add(w.lease()))
		return err
	})
	if plane.KindOf(err) == plane.Conflict {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = w.Catalogs.again(ctx, g, func(outcome error, soon bool) func(plane.Tx) error {
		now := w.Catalogs.clock.Now()
		next := Round{Connection: r.Connection, Fence: r.Fence, DueAt: NextRound(r.Connection, now, w.Period)}
		switch {
		case plane.KindOf(outcome) == plane.Unauthenticated:
			next.Parked = g.Version()
			next.Tries = r.Tries + 1
		case outcome != nil:
			next.Tries = r.Tries + 1
			next.DueAt = now.Add(w.backoff(r.Tries))
		case soon:
			next.DueAt = now.Add(min(emptyBackoff, w.Period))
		}
		return func(t plane.Tx) error {
			if err := w.Schedule.EndRefresh(t, next); err != nil {
				if plane.KindOf(err) == plane.Conflict {
					return plane.Errorf(plane.Gone, "The round was taken over.").Because(err)
				}
				return err
			}
			return nil
		}
	})
	if err != nil && ctx.Err() != nil { // we are stopping: whoever is there goes on at once
		return true, w.Catalogs.store.Write(context.WithoutCancel(ctx), func(t plane.Tx) error {
			return w.Schedule.ReleaseRefresh(t, r.Connection, r.Fence)
		})
	}
	if plane.KindOf(err) == plane.Gone {
		return true, nil // another replica has it; what this one read counts for nothing
	}
	return true, err
}

// again lists one connection and stores what it says together with what end
// gives for the outcome. Its error is for our own store.
func (c *Catalogs) again(ctx context.Context, g policy.Grant, end func(outcome error, soon bool) func(plane.Tx) error) error {
	one, cancel := context.WithTimeout(ctx, c.lim.DiscoverOne)
	defer cancel()
	listed, err := c.lister.List(one, g)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if one.Err() != nil {
			err = timeUp(g, err)
		}
		return c.fail(ctx, g, err, end(err, false))
	}
	return c.adopt(ctx, g, listed, func(t plane.Tx) error { return end(nil, c.doubted(g.ID()))(t) })
}

// doubted reports that a connection's last list was empty and not believed.
func (c *Catalogs) doubted(id plane.ConnectionID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.empty[id]
	return ok
}
