// Package catalog keeps what each connection offers: the server's own bytes per
// definition, fingerprints, and health; what changed since a definition was
// adopted; and the upkeep that reads every catalog again. It promises that a
// failing server keeps its last good snapshot, that one bad definition takes no
// other with it, that discovery stays within its budgets, that what a person said
// of a definition holds for its very bytes, and that a catalog is read again by one
// replica at a time.
package catalog

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Listed is what a server answered to one full listing.
type Listed struct {
	At           time.Time // when it was begun; zero for now
	Tools        []json.RawMessage
	Resources    []json.RawMessage // nil where they were not asked for
	Templates    []json.RawMessage // of resources
	Prompts      []json.RawMessage
	Extras       bool // resources, templates and prompts were asked for
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
	AddAudit(t plane.Tx, e plane.AuditEntry) error
	Snapshots
	Judgements
}

// Snapshots are the stored catalogs.
type Snapshots interface {
	Catalogs(ctx context.Context) ([]plane.Catalog, error)
	CatalogByID(ctx context.Context, id plane.ConnectionID) (plane.Catalog, error)
	CatalogsSince(ctx context.Context, seq int64) ([]plane.ConnectionID, int64, error)
	SaveCatalog(t plane.Tx, c *plane.Catalog, whole bool) error
	ConvertPrefs(t plane.Tx, id plane.ConnectionID, version int64, p plane.Preferences) error
}

// Judgements are what people said of definitions, and which were adopted.
type Judgements interface {
	Reviews(ctx context.Context, id plane.ConnectionID) ([]plane.Review, error)
	DropReview(t plane.Tx, v *plane.Review) error
	Pins(ctx context.Context, id plane.ConnectionID) ([]plane.Pin, error)
	PutPin(t plane.Tx, p *plane.Pin) error
	DropPin(t plane.Tx, id plane.ConnectionID, name string) error
}

// Catalogs holds the snapshots in memory over the store.
type Catalogs struct {
	store  Store
	lister Lister
	clock  plane.Clock
	lim    plane.Limits

	mu     sync.Mutex
	byID   map[plane.ConnectionID]*plane.Catalog // never changed in place
	flight map[flightKey]*discovery
	empty  map[plane.ConnectionID]time.Time // when a list was first seen empty after having tools
	turns  map[plane.ConnectionID]*turn     // who adopts now
	notes  map[plane.ConnectionID]*noting   // what went on record of late
	seq    int64                            // what was taken in of other replicas

	// Changed is told when what a connection offers differs; nil for nobody.
	Changed func(id plane.ConnectionID, tools, beside bool)
	// Converted is told when a legacy selection became exclusions: the connection
	// that policy has is another now; nil for nobody.
	Converted func(ctx context.Context) error
}

// flightKey is what callers that ask at the same time share.
type flightKey struct {
	id      plane.ConnectionID
	version int64
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
		flight: map[flightKey]*discovery{}, empty: map[plane.ConnectionID]time.Time{}, turns: map[plane.ConnectionID]*turn{}, notes: map[plane.ConnectionID]*noting{}}
	var err error
	if _, c.seq, err = store.CatalogsSince(ctx, 0); err != nil { // before what is read, so that nothing is missed
		return nil, err
	}
	stored, err := store.Catalogs(ctx)
	if err != nil {
		return nil, err
	}
	for i := range stored {
		c.byID[stored[i].Connection] = c.read(&stored[i])
	}
	return c, nil
}

// read completes a stored snapshot by what its bytes say.
func (c *Catalogs) read(s *plane.Catalog) *plane.Catalog {
	for j, d := range s.Definitions {
		read := Read(d.Raw, c.lim)
		read.Class, read.Reviewed, read.Held = d.Class, d.Reviewed, d.Held
		s.Definitions[j] = read
	}
	return s
}

// Sync takes in what other replicas stored since the last time.
func (c *Catalogs) Sync(ctx context.Context) error {
	c.mu.Lock()
	seq := c.seq
	c.mu.Unlock()
	ids, seq, err := c.store.CatalogsSince(ctx, seq)
	if err != nil {
		return err
	}
	for _, id := range ids {
		s, err := c.store.CatalogByID(ctx, id)
		switch {
		case plane.KindOf(err) == plane.NotFound: // removed since
		case err != nil:
			return err
		default:
			c.keep(c.read(&s))
		}
	}
	c.mu.Lock()
	c.seq = max(c.seq, seq)
	c.mu.Unlock()
	return nil
}

// keep holds a snapshot in memory, unless a newer one is there.
func (c *Catalogs) keep(s *plane.Catalog) {
	c.mu.Lock()
	have := c.byID[s.Connection]
	newer := have == nil || have.Revision < s.Revision
	if newer {
		c.byID[s.Connection] = s
	}
	c.mu.Unlock()
	if !newer || c.Changed == nil {
		return
	}
	tools := have == nil || !sameDefinitions(have.Definitions, s.Definitions) || heldDiffers(have, s)
	if beside := have == nil || changedExtras(have, s); tools || beside {
		c.Changed(s.Connection, tools, beside)
	}
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
	k := flightKey{g.ID(), g.Version()}
	f, ok := c.flight[k]
	if !ok {
		f = &discovery{done: make(chan struct{})}
		c.flight[k] = f
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
		if serr := c.fail(ctx, g, err, nil); serr != nil {
			err = serr
		}
	}
	f.err = err
	c.mu.Lock()
	delete(c.flight, flightKey{g.ID(), g.Version()})
	c.mu.Unlock()
	close(f.done)
}

func timeUp(g policy.Grant, cause error) error {
	return plane.Errorf(plane.Unavailable, "%s: The server did not answer in time.", g.Connection().Slug).Over("discover_one").Because(cause)
}
