package vault

import (
	"context"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Cached asks a backend elsewhere no more often than it must: an answer holds for one time,
// a failure for another, shorter one, and of many who ask at once one does. What is too old
// is not used in place of an answer: an outage is told.
type Cached struct {
	v           Vault
	clock       plane.Clock
	good, bad   time.Duration
	mu          sync.Mutex
	known       map[Name]answer
	under       map[Name]*asking
	generations map[Name]int // raised by Put and Drop
}

type answer struct {
	held  Held
	err   error
	until time.Time
}

type asking struct {
	done chan struct{}
	a    answer
}

// maxKnown bounds what is remembered.
const maxKnown = 1000

// NewCached remembers answers for good, failures for bad.
func NewCached(v Vault, clock plane.Clock, good, bad time.Duration) *Cached {
	return &Cached{v: v, clock: clock, good: good, bad: bad, known: map[Name]answer{}, under: map[Name]*asking{}, generations: map[Name]int{}}
}

// Get answers from memory, or asks.
func (c *Cached) Get(ctx context.Context, n Name) (Held, error) {
	c.mu.Lock()
	if a, ok := c.known[n]; ok && c.clock.Now().Before(a.until) {
		c.mu.Unlock()
		return a.held, a.err
	}
	q, ok := c.under[n]
	if !ok {
		q = &asking{done: make(chan struct{})}
		c.under[n] = q
		generation := c.generations[n]
		go c.ask(context.WithoutCancel(ctx), n, q, generation) // others may wait for it
	}
	c.mu.Unlock()
	select {
	case <-q.done:
		return q.a.held, q.a.err
	case <-ctx.Done():
		return Held{}, plane.Errorf(plane.Unavailable, "The secret %s was not read in time.", n).Because(ctx.Err())
	}
}

// askTime bounds one question.
const askTime = 10 * time.Second

func (c *Cached) ask(ctx context.Context, n Name, q *asking, generation int) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	h, err := c.v.Get(ctx, n)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	q.a = answer{held: h, err: err, until: now.Add(c.good)}
	if err != nil {
		q.a.until = now.Add(c.bad)
	}
	q.a.held.Until = q.a.until
	if c.generations[n] == generation {
		if len(c.known) >= maxKnown {
			clear(c.known)
		}
		c.known[n] = q.a
	}
	delete(c.under, n)
	close(q.done)
}

func (c *Cached) forget(n Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.generations) >= maxKnown {
		clear(c.generations)
	}
	c.generations[n]++
	delete(c.known, n)
	delete(c.under, n)
}

// Put keeps a secret, and forgets what was known of it.
func (c *Cached) Put(ctx context.Context, n Name, value secret.Text, by string, audit Audit) error {
	defer c.forget(n)
	return c.v.Put(ctx, n, value, by, audit)
}

// Drop takes a secret away, and forgets it.
func (c *Cached) Drop(ctx context.Context, n Name, audit Audit) error {
	defer c.forget(n)
	return c.v.Drop(ctx, n, audit)
}

// Check asks the backend.
func (c *Cached) Check(ctx context.Context) error { return c.v.Check(ctx) }
