package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// turn lets one adoption of a connection follow another.
type turn struct {
	ch    chan struct{}
	users int
}

// take waits for a connection's turn; the returned function gives it on.
func (c *Catalogs) take(id plane.ConnectionID) func() {
	c.mu.Lock()
	t := c.turns[id]
	if t == nil {
		t = &turn{ch: make(chan struct{}, 1)}
		c.turns[id] = t
	}
	t.users++
	c.mu.Unlock()
	t.ch <- struct{}{}
	return func() {
		<-t.ch
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(c.turns, id)
		}
	}
}

// Adopt makes a listing the connection's snapshot. Nothing is written when it
// says what is known already, when a later listing was adopted, or when it was
// made under an older version. An empty list replaces a full one only when it is
// still empty a while later.
func (c *Catalogs) Adopt(ctx context.Context, g policy.Grant, l Listed) error {
	return c.adopt(ctx, g, l, nil)
}

// adopt is Adopt with what else belongs into the transaction.
func (c *Catalogs) adopt(ctx context.Context, g policy.Grant, l Listed, also func(plane.Tx) error) error {
	conn := g.Connection()
	defer c.take(conn.ID)()
	if l.At.IsZero() {
		l.At = c.clock.Now()
	}
	nothing := func() error {
		if also == nil {
			return nil
		}
		return c.write(ctx, also)
	}
	old := c.Get(conn.ID)
	if old != nil && (old.Version > conn.Version || old.Version == conn.Version && old.CapturedAt.After(l.At)) {
		return nothing() // a later one stands
	}
	if c.briefly(old, conn, l) {
		return nothing()
	}
	defs := c.readAll(&l)
	detail := strings.Join(l.Notes, " ")
	same := old != nil && sameDefinitions(old.Definitions, defs) && old.Instructions == l.Instructions && (!l.Extras || sameExtras(old, l))
	if same && old.Version == conn.Version && old.Health == plane.HealthOK && old.Detail == detail && l.At.Sub(old.CapturedAt) < seenEvery {
		return nothing() // what people said would have raised the version
	}
	return c.settle(ctx, conn, old, settling{also: also, make: func(old *plane.Catalog) *plane.Catalog {
		if old != nil && old.Version == conn.Version && old.CapturedAt.After(l.At) {
			return nil // a later one was stored by another replica
		}
		next := &plane.Catalog{Connection: conn.ID, Version: conn.Version, Health: plane.HealthOK, Detail: detail, CapturedAt: l.At,
			Instructions: l.Instructions, Server: l.Server, Definitions: slices.Clone(defs), Resources: l.Resources, Templates: l.Templates, Prompts: l.Prompts}
		if old != nil {
			next.InstructionsBefore, next.InstructionsAt = old.InstructionsBefore, old.InstructionsAt
			if old.Instructions != next.Instructions && !old.CapturedAt.IsZero() {
				next.InstructionsBefore, next.InstructionsAt = old.Instructions, l.At
			}
			if !l.Extras {
				next.Resources, next.Templates, next.Prompts = old.Resources, old.Templates, old.Prompts
			}
		}
		return next
	}})
}

// briefly reports that a list is empty and was full a moment ago.
func (c *Catalogs) briefly(old *plane.Catalog, conn plane.Connection, l Listed) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old == nil || len(l.Tools) > 0 || len(old.Definitions) == 0 || old.Stale(conn.Version) {
		delete(c.empty, conn.ID)
		return false
	}
	first, seen := c.empty[conn.ID]
	if seen = seen && !first.Before(old.CapturedAt); !seen { // it was full again since, here or at another replica
		c.empty[conn.ID] = l.At
	}
	if !seen || l.At.Sub(first) < emptyBackoff {
		return true
	}
	delete(c.empty, conn.ID)
	return false
}

func (c *Catalogs) readAll(l *Listed) []plane.Definition {
	out := make([]plane.Definition, 0, len(l.Tools))
	seen := map[string]bool{}
	twice := 0
	for _, raw := range l.Tools {
		d := Read(raw, c.lim)
		if d.Name != "" && seen[d.Name] {
			twice++ // the first stands
			continue
		}
		seen[d.Name] = true
		out = append(out, d)
	}
	if twice > 0 {
		l.Notes = append(l.Notes, fmt.Sprintf("%d tools are listed under a name that another has; the first stands.", twice))
	}
	return out
}

func sameDefinitions(a, b []plane.Definition) bool {
	return slices.EqualFunc(a, b, func(x, y plane.Definition) bool { return x.Fingerprint == y.Fingerprint })
}

func sameExtras(old *plane.Catalog, l Listed) bool {
	same := func(x, y []byte) bool { return string(x) == string(y) }
	return slices.EqualFunc(old.Resources, l.Resources, func(x, y jsonRaw) bool { return same(x, y) }) &&
		slices.EqualFunc(old.Templates, l.Templates, func(x, y jsonRaw) bool { return same(x, y) }) &&
		slices.EqualFunc(old.Prompts, l.Prompts, func(x, y jsonRaw) bool { return same(x, y) })
}

// fail records that a connection could not be listed. The last good snapshot of
// the unchanged connection stays.
func (c *Catalogs) fail(ctx context.Context, g policy.Grant, cause error, also func(plane.Tx) error) error {
	conn := g.Connection()
	defer c.take(conn.ID)()
	old := c.Get(conn.ID)
	if old != nil && old.Version > conn.Version {
		if also == nil {
			return nil
		}
		return c.write(ctx, also)
	}
	now := c.clock.Now()
	return c.settle(ctx, conn, old, settling{also: also, make: func(old *plane.Catalog) *plane.Catalog {
		next := &plane.Catalog{Connection: conn.ID, Version: conn.Version}
		if old != nil && !old.Stale(conn.Version) {
			if old.CapturedAt.After(now) {
				return nil // another replica read it since
			}
			next = clone(old)
		}
		next.Health = plane.HealthUnavailable
		if plane.KindOf(cause) == plane.Unauthenticated {
			next.Health = plane.HealthUnauthorized
		}
		next.Detail = clip(plane.Public(cause).Message, 500)
		next.FailedAt = now
		return next
	}})
}

func clone(c *plane.Catalog) *plane.Catalog {
	next := *c
	next.Definitions = slices.Clone(c.Definitions)
	return &next
}

// Saying is what a person says beside a change: it counts at once, before it is
// stored.
type Saying struct {
	Pins    []plane.Pin
	Reviews []plane.Review
}

// Change writes a person's change of a connection, which touches nothing of what
// its server offers, and makes its snapshot the one of the new version in the same
// transaction: nobody sees the one without the other. conn is the connection as it
// will be, from the version it has until then. When a definition changed meanwhile
// that something was said of, nothing is written: conflict.
func (c *Catalogs) Change(ctx context.Context, conn plane.Connection, from int64, said Saying, write func(plane.Tx) error) error {
	defer c.take(conn.ID)()
	old := c.Get(conn.ID)
	if old != nil {
		// What another replica read since may not have been taken in yet.
		if s, err := c.store.CatalogByID(ctx, conn.ID); err == nil {
			old = c.read(&s)
			c.keep(old)
		} else if plane.KindOf(err) != plane.NotFound {
			return err
		}
	}
	if old == nil || old.Stale(from) {
		return c.store.Write(ctx, write)
	}
	return c.settle(ctx, conn, old, settling{first: write, said: said, make: func(old *plane.Catalog) *plane.Catalog {
		if old == nil || old.Stale(from) {
			return nil
		}
		next := clone(old)
		next.Version = conn.Version
		return next
	}})
}

// settling is how a snapshot is made and what is written with it.
type settling struct {
	first func(plane.Tx) error // a person's change; its own refusal is final
	said  Saying
	also  func(plane.Tx) error
	make  func(old *plane.Catalog) *plane.Catalog // nil: nothing to store
}

// errMoved is a connection that changed under its listing.
var errMoved = errors.New("catalog: the connection was changed")

// refusedError is a refusal of settling.first.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// settle judges the snapshot that make gives, and stores it over the one it
// replaces. Where another replica was faster it is made and judged again over
// what that one stored: what was seen last stands.
func (c *Catalogs) settle(ctx context.Context, conn plane.Connection, old *plane.Catalog, x settling) error {
	for try := 0; ; try++ {
		next := x.make(old)
		if next == nil {
			return c.rest(ctx, x)
		}
		next.Revision = 1
		if old != nil {
			next.Revision = old.Revision + 1
		}
		v, err := c.judge(ctx, conn, next, old, x.said)
		if err != nil {
			return err
		}
		whole := try > 0 || old == nil || !sameDefinitions(old.Definitions, next.Definitions) || heldDiffers(old, next) || changedExtras(old, next)
		err = c.store.Write(ctx, func(t plane.Tx) error { return c.put(t, conn, next, whole, v, x) })
		var refused refusedError
		switch {
		case err == nil:
			if v.prefs != nil && c.Converted != nil {
				err = asStoreError(c.Converted(context.WithoutCancel(ctx)))
			}
			c.keep(next)
			return err
		case errors.As(err, &refused):
			return refused.error
		case errors.Is(err, errMoved), plane.KindOf(err) == plane.NotFound: // changed or removed: this says nothing of it
			return c.rest(ctx, x)
		case plane.KindOf(err) != plane.Conflict || try == saveTries:
			return asStoreError(err)
		case len(x.said.Pins)+len(x.said.Reviews) > 0:
			return plane.Errorf(plane.Conflict, "%s was read again since you looked.", conn.Slug).At("version").Then("patchbay mcp tools " + conn.Slug)
		}
		switch s, err := c.store.CatalogByID(ctx, conn.ID); {
		case plane.KindOf(err) == plane.NotFound:
			old = nil
		case err != nil:
			return storeError{err}
		default:
			old = c.read(&s)
			c.keep(old)
		}
		if old != nil && old.Version > conn.Version {
			return c.rest(ctx, x) // the connection moved on
		}
	}
}

// rest writes what belongs beside a snapshot that is not stored.
func (c *Catalogs) rest(ctx context.Context, x settling) error {
	switch { // a person's change and a round never come together
	case x.first != nil:
		return c.store.Write(ctx, x.first)
	case x.also != nil:
		return c.write(ctx, x.also)
	}
	return nil
}

// put writes one snapshot with all that belongs to it. The connection comes before
// its catalog, as everywhere: no two wait for each other.
func (c *Catalogs) put(t plane.Tx, conn plane.Connection, next *plane.Catalog, whole bool, v verdict, x settling) error {
	if x.first != nil {
		if err := x.first(t); err != nil {
			return refusedError{err}
		}
	}
	if v.prefs != nil {
		if err := c.store.ConvertPrefs(t, conn.ID, conn.Version, *v.prefs); plane.KindOf(err) == plane.Conflict {
			return errMoved
		} else if err != nil {
			return err
		}
	}
	if err := c.store.SaveCatalog(t, next, whole); err != nil {
		return err
	}
	if err := c.record(t, conn.ID, v); err != nil {
		return err
	}
	if x.also != nil {
		return x.also(t)
	}
	return nil
}

// saveTries bounds how often a snapshot is judged again over a faster one.
const saveTries = 8

func heldDiffers(a, b *plane.Catalog) bool {
	return !slices.EqualFunc(a.Definitions, b.Definitions, func(x, y plane.Definition) bool { return x.Held == y.Held })
}

func changedExtras(a, b *plane.Catalog) bool {
	return !sameExtras(a, Listed{Resources: b.Resources, Templates: b.Templates, Prompts: b.Prompts})
}

func (c *Catalogs) write(ctx context.Context, fn func(plane.Tx) error) error {
	return asStoreError(c.store.Write(ctx, fn))
}

// asStoreError marks a failure of our own store; a lease that was taken over is
// none.
func asStoreError(err error) error {
	if err == nil || plane.KindOf(err) == plane.Gone {
		return err
	}
	return storeError{err}
}
