package upstream

import (
	"math/rand/v2"
	"net/http"
	"time"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// breaker keeps a dead server from being dialled by everyone at once: after a
// few failures to open a session the next try waits, ever longer, with jitter.
type breaker struct {
	failures int
	until    time.Time
	last     string    // why the last try failed, in a sentence
	asked    time.Time // until when the server wants to be left alone
}

const (
	breakAfter = 3
	breakFirst = time.Second
	breakLast  = time.Minute
)

func (p *Pool) breaker(id plane.ConnectionID) *breaker {
	b, ok := p.breakers[id]
	if !ok {
		b = &breaker{}
		p.breakers[id] = b
	}
	return b
}

// admit refuses while the breaker is open. The lock is held.
func (p *Pool) admit(conn plane.Connection) error {
	b := p.breaker(conn.ID)
	wait := b.until.Sub(p.o.Clock.Now())
	if wait <= 0 {
		return nil
	}
	e := plane.Errorf(plane.Unavailable, "%s: %s It failed %d times in a row and is tried again in %s.", conn.Slug, b.last, b.failures, max(wait.Round(time.Second), time.Second)).
		Then("patchbay mcp show " + conn.Slug)
	e.RetryAfter = wait
	return e
}

// paused refuses while a server has asked to be left alone (Retry-After).
func (p *Pool) paused(conn *plane.Connection) error {
	p.mu.Lock()
	b := p.breakers[conn.ID]
	var wait time.Duration
	if b != nil {
		wait = b.asked.Sub(p.o.Clock.Now())
	}
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	wait = max(wait.Round(time.Second), time.Second)
	e := plane.Errorf(plane.Limited, "%s limits the rate of requests; it may be asked again in %s.", conn.Slug, wait)
	e.RetryAfter = wait
	return e
}

// leaveAlone notes that a server asked for a pause, where it did.
func (p *Pool) leaveAlone(id plane.ConnectionID, err error) {
	e := mcp.AsError(err)
	if e.RetryAfter <= 0 || e.Ending.Status != http.StatusTooManyRequests && e.Ending.Status != http.StatusServiceUnavailable {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breaker(id).asked = p.o.Clock.Now().Add(e.RetryAfter)
}

// result counts how opening went.
func (b *breaker) result(now time.Time, err error) {
	if err == nil {
		*b = breaker{asked: b.asked}
		return
	}
	if _, ours := err.(*plane.Error); ours || mcp.AsError(err).Ending.Fault == plane.FaultCancelled {
		return
	}
	b.failures++
	b.last = mcp.AsError(err).Ending.Detail
	if b.failures < breakAfter {
		return
	}
	d := min(breakFirst<<min(b.failures-breakAfter, 10), breakLast)
	b.until = now.Add(d/2 + rand.N(d/2+1))
}
