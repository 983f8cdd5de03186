// Package catalog keeps what each connection offers: the server's own bytes per
// definition, fingerprints, and health. It promises that a failing server keeps
// its last good snapshot, that one bad definition takes no other with it, and
// that discovery stays within its budgets.
package catalog

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Listed is what a server answered to one full listing.
type Listed struct {
	Tools        []json.RawMessage
	Notes        []string
	Instructions string
	Server       string
}

// Lister asks a server for its tools.
type Lister interface {
	List(ctx context.Context, g policy.Grant) (Listed, error)
}

// Store is what catalog needs of a database.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Catalogs(ctx context.Context) ([]plane.Catalog, error)
	SaveCatalog(t plane.Tx, c *plane.Catalog, whole bool) error
	Reviews(ctx context.Context, id plane.ConnectionID) ([]plane.Review, error)
	DropReview(t plane.Tx, v *plane.Review) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Catalogs holds the snapshots in memory over the store.
type Catalogs struct {
	store  Store
	lister Lister
	clock  plane.Clock
	lim    plane.Limits

	mu     sync.Mutex
	byID   map[plane.ConnectionID]*plane.Catalog // never changed in place
	flight map[plane.ConnectionID]*discovery
	empty  map[plane.ConnectionID]time.Time // when a list was first seen empty after having tools
}

type discovery struct {
	done chan struct{}
	err  error
}

// emptyBackoff is how long a list must stay empty before it replaces a full one.
const emptyBackoff = 30 * time.Second

// seenEvery is how old "read" may be before an unchanged list is noted again.
const seenEvery = time.Minute

// Load reads the stored snapshots.
func Load(ctx context.Context, store Store, lister Lister, clock plane.Clock, lim plane.Limits) (*Catalogs, error) {
	c := &Catalogs{store: store, lister: lister, clock: clock, lim: lim, byID: map[plane.ConnectionID]*plane.Catalog{},
		flight: map[plane.ConnectionID]*discovery{}, empty: map[plane.ConnectionID]time.Time{}}
	stored, err := store.Catalogs(ctx)
	if err != nil {
		return nil, err
	}
	for i := range stored {
		s := &stored[i]
		for j, d := range s.Definitions {
			read := Read(d.Raw, lim)
			read.Class, read.Reviewed = d.Class, d.Reviewed
			s.Definitions[j] = read
		}
		c.byID[s.Connection] = s
	}
	return c, nil
}

// Get returns the snapshot of a connection, which must not be changed, or nil.
func (c *Catalogs) Get(id plane.ConnectionID) *plane.Catalog {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[id]
}

// Ensure discovers the connections that have no snapshot of their present
// version, a few at once and within the budgets. It returns why a connection
// cannot be used; the others are fine. Its own error is for the end of ctx and
// for a store that fails: those stop the turn.
func (c *Catalogs) Ensure(ctx context.Context, grants []policy.Grant) (map[plane.ConnectionID]error, error) {
	var need []policy.Grant
	for _, g := range grants {
		if s := c.Get(g.ID()); s == nil || s.Stale(g.Connection().Version) {
			need = append(need, g)
		}
	}
	failed := map[plane.ConnectionID]error{}
	if len(need) == 0 {
		return failed, nil
	}
	all, cancel := context.WithTimeout(ctx, c.lim.DiscoverAll)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, c.lim.DiscoverAtOnce)
	var fatal error
	for _, g := range need {
		wg.Go(func() {
			var err error
			select {
			case slots <- struct{}{}:
				err = c.Refresh(all, g)
				<-slots
			case <-all.Done():
				err = plane.Errorf(plane.Unavailable, "The time for discovery was over before %s was asked.", g.Connection().Slug).Over("discover_all")
			}
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if isStoreError(err) && fatal == nil {
				fatal = err
			}
			failed[g.ID()] = err
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return failed, fatal
}

type storeError struct{ error }

func (e storeError) Unwrap() error { return e.error }

func isStoreError(err error) bool { _, ok := err.(storeError); return ok }

// Refresh lists one connection now and adopts what it says. Callers that ask at
// the same time share one listing, which outlives each of them: one caller's
// end is no failure of the server.
func (c *Catalogs) Refresh(ctx context.Context, g policy.Grant) error {
	c.mu.Lock()
	f, ok := c.flight[g.ID()]
	if !ok {
		f = &discovery{done: make(chan struct{})}
		c.flight[g.ID()] = f
		go c.discover(context.WithoutCancel(ctx), g, f)
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return timeUp(g, ctx.Err())
	}
}

// discover is one listing, bounded by itself.
func (c *Catalogs) discover(ctx context.Context, g policy.Grant, f *discovery) {
	one, cancel := context.WithTimeout(ctx, c.lim.DiscoverOne)
	defer cancel()
	listed, err := c.lister.List(one, g)
	if err == nil {
		err = c.Adopt(ctx, g, listed)
	} else {
		if one.Err() != nil {
			err = timeUp(g, err)
		}
		if serr := c.fail(ctx, g, err); serr != nil {
			err = serr
		}
	}
	f.err = err
	c.mu.Lock()
	delete(c.flight, g.ID())
	c.mu.Unlock()
	close(f.done)
}

func timeUp(g policy.Grant, cause error) error {
	return plane.Errorf(plane.Unavailable, "%s: The server did not answer in time.", g.Connection().Slug).Over("discover_one").Because(cause)
}

// Adopt makes a listing the connection's snapshot. Nothing is written when it
// says what is known already. An empty list replaces a full one only when it is
// still empty a while later.
func (c *Catalogs) Adopt(ctx context.Context, g policy.Grant, l Listed) error {
	conn := g.Connection()
	now := c.clock.Now()
	next := &plane.Catalog{Connection: conn.ID, Version: conn.Version, Health: plane.HealthOK, CapturedAt: now,
		Instructions: l.Instructions, Server: l.Server, Definitions: c.readAll(l)}
	next.Detail = strings.Join(l.Notes, " ")
	old := c.Get(conn.ID)
	if old != nil && len(next.Definitions) == 0 && len(old.Definitions) > 0 && !old.Stale(conn.Version) {
		c.mu.Lock()
		first, seen := c.empty[conn.ID]
		if !seen {
			c.empty[conn.ID] = now
		}
		c.mu.Unlock()
		if !seen || now.Sub(first) < emptyBackoff {
			return nil
		}
	}
	c.mu.Lock()
	delete(c.empty, conn.ID)
	c.mu.Unlock()
	same := old != nil && sameDefinitions(old.Definitions, next.Definitions) && old.Instructions == next.Instructions
	if same && old.Version == conn.Version && old.Health == plane.HealthOK && old.Detail == next.Detail && now.Sub(old.CapturedAt) < seenEvery {
		return nil // a review would have raised the version
	}
	reviews, err := c.store.Reviews(ctx, conn.ID)
	if err != nil {
		return storeError{err}
	}
	gone := review(next.Definitions, reviews)
	return c.save(ctx, next, old, !same, gone...)
}

func (c *Catalogs) readAll(l Listed) []plane.Definition {
	out := make([]plane.Definition, 0, len(l.Tools))
	seen := map[string]bool{}
	for _, raw := range l.Tools {
		d := Read(raw, c.lim)
		if d.Name != "" && seen[d.Name] {
			continue // listed twice: the first stands
		}
		seen[d.Name] = true
		out = append(out, d)
	}
	return out
}

func sameDefinitions(a, b []plane.Definition) bool {
	return slices.EqualFunc(a, b, func(x, y plane.Definition) bool { return x.Fingerprint == y.Fingerprint })
}

// fail records that a connection could not be listed. The last good snapshot of
// the unchanged connection stays.
func (c *Catalogs) fail(ctx context.Context, g policy.Grant, cause error) error {
	conn := g.Connection()
	old := c.Get(conn.ID)
	next := &plane.Catalog{Connection: conn.ID, Version: conn.Version, Health: plane.HealthUnavailable}
	if old != nil && !old.Stale(conn.Version) {
		copied := *old
		next = &copied
		next.Health = plane.HealthUnavailable
	}
	if plane.KindOf(cause) == plane.Unauthenticated {
		next.Health = plane.HealthUnauthorized
	}
	next.Detail = clip(plane.Public(cause).Message, 500)
	next.FailedAt = c.clock.Now()
	return c.save(ctx, next, old, old != nil && old.Stale(conn.Version))
}

// Restamp makes a snapshot the one of a connection's next version, when what
// changed does not touch what the server offers: preferences, a name, a label.
func (c *Catalogs) Restamp(ctx context.Context, id plane.ConnectionID, from, to int64) error {
	old := c.Get(id)
	if old == nil || old.Stale(from) {
		return nil
	}
	reviews, err := c.store.Reviews(ctx, id)
	if err != nil {
		return storeError{err}
	}
	next := *old
	next.Version, next.Definitions = to, slices.Clone(old.Definitions)
	review(next.Definitions, reviews)
	return c.save(ctx, &next, old, false)
}

// save stores a snapshot over the one it replaces, and withdraws the reviews of
// what is gone. Where another replica was faster, it is stored over that one:
// what was seen last stands.
func (c *Catalogs) save(ctx context.Context, next, old *plane.Catalog, whole bool, gone ...plane.Review) error {
	for try := 0; ; try++ {
		next.Revision = 1
		if old != nil {
			next.Revision = old.Revision + 1
		}
		err := c.store.Write(ctx, func(t plane.Tx) error {
			if err := c.store.SaveCatalog(t, next, whole || old == nil); err != nil {
				return err
			}
			return c.withdraw(t, gone)
		})
		if err == nil {
			break
		}
		if plane.KindOf(err) != plane.Conflict || try == saveTries {
			return storeError{err}
		}
		if old, err = c.stored(ctx, next.Connection); err != nil {
			return storeError{err}
		}
		whole = true
	}
	c.mu.Lock()
	c.byID[next.Connection] = next
	c.mu.Unlock()
	return nil
}

const saveTries = 3

// stored reads one connection's snapshot again.
func (c *Catalogs) stored(ctx context.Context, id plane.ConnectionID) (*plane.Catalog, error) {
	all, err := c.store.Catalogs(ctx)
	for i := range all {
		if all[i].Connection == id {
			return &all[i], err
		}
	}
	return nil, err
}
