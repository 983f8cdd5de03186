package bridge

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
)

// throttles bound the calls per agent, connection and tool, at this replica. They
// refuse at once: who waits here would only find out later.
type throttles struct {
	mu sync.Mutex
	by map[string]*throttle
}

type throttle struct {
	inFlight int
	rate     plane.Rate
	limiter  *rate.Limiter
}

// maxThrottles bounds the memory; over it, those that nothing uses are forgotten.
const maxThrottles = 10_000

// bound is one limit that a call is under.
type bound struct {
	key   string
	most  int // in flight; 0 for no bound
	rate  plane.Rate
	limit string // the name of the bound on calls in flight
	rated string // and of the rate
	who   string // in a sentence
}

// enter counts a call in, or says which limit is against it and when to come again.
func (x *throttles) enter(now time.Time, bounds []bound) (leave func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	taken := 0
	back := func() {
		for _, b := range bounds[:taken] {
			x.by[b.key].inFlight--
		}
	}
	var spent []*rate.Reservation
	for _, b := range bounds {
		t := x.of(b)
		if b.most > 0 && t.inFlight >= b.most {
			back()
			undo(spent, now)
			e := plane.Errorf(plane.Limited, "%s has %d calls under way (%s).", b.who, t.inFlight, b.limit).Over(b.limit)
			e.RetryAfter = time.Second
			return nil, e
		}
		t.inFlight++
		taken++
		if t.limiter == nil {
			continue
		}
		r := t.limiter.ReserveN(now, 1)
		spent = append(spent, r)
		if wait := r.DelayFrom(now); wait > 0 {
			back()
			undo(spent, now)
			wait = max(wait.Round(time.Second), time.Second)
			e := plane.Errorf(plane.Limited, "%s takes %s calls (%s); it takes the next in %s.", b.who, b.rate, b.rated, wait).Over(b.rated)
			e.RetryAfter = wait
			return nil, e
		}
	}
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		back()
	}, nil
}

func undo(spent []*rate.Reservation, now time.Time) {
	for _, r := range spent {
		r.CancelAt(now)
	}
}

// of is the state of a bound. The lock is held.
func (x *throttles) of(b bound) *throttle {
	t := x.by[b.key]
	if t == nil {
		if len(x.by) >= maxThrottles {
			for k, t := range x.by {
				if t.inFlight == 0 {
					delete(x.by, k)
				}
			}
		}
		if x.by == nil {
			x.by = map[string]*throttle{}
		}
		t = &throttle{}
		x.by[b.key] = t
	}
	if t.rate != b.rate { // config changed
		t.rate, t.limiter = b.rate, nil
		if b.rate.Calls > 0 {
			t.limiter = rate.NewLimiter(rate.Limit(float64(b.rate.Calls)/b.rate.Per.Seconds()), b.rate.Calls)
		}
	}
	return t
}

// bounds are the limits that a call of a tool is under.
func (s *Session) bounds(a plane.Agent, c *plane.Connection, tool string) []bound {
	or := func(n, otherwise int) int {
		if n > 0 {
			return n
		}
		return otherwise
	}
	out := make([]bound, 0, 3)
	out = append(out,
		bound{key: "agent " + a.Slug, most: or(a.Throttle.InFlight, s.b.Limits.AgentCalls), rate: a.Throttle.Rate, limit: "agent_calls", rated: "rate", who: "The agent " + a.Slug},
		bound{key: "conn " + string(c.ID), most: or(c.Throttle.InFlight, s.b.Limits.ConnectionCalls), rate: c.Throttle.Rate, limit: "connection_calls", rated: "rate", who: c.Slug})
	for _, t := range c.Throttle.Tools {
		if plane.Glob(t.Tool, tool) {
			out = append(out, bound{key: fmt.Sprintf("tool %s %s %s", c.ID, t.Tool, tool), rate: t.Rate, rated: "tool_rates", who: c.Slug + "'s " + clipName(tool)})
		}
	}
	return out
}
