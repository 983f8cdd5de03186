package bridge

import (
	"context"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Subscribe asks the server of a resource to tell of its changes, or to stop. A
// session that is several clients' own counts them.
func (s *Session) Subscribe(ctx context.Context, uri string, on bool) error {
	if !on {
		return s.unsubscribe(ctx, uri)
	}
	at, ok := s.current().extras.resource(uri)
	if !ok {
		return plane.Errorf(plane.NotFound, "There is no such resource here.")
	}
	g, denial, err := s.may(ctx, policy.Discover, at, filterResource)
	if err != nil {
		return err
	}
	if denial != nil {
		return denial.Err()
	}
	s.mu.Lock()
	if s.watched == nil {
		s.watched = map[watch]*watching{}
	}
	w := watch{at.conn, at.name}
	have := s.watched[w]
	if have == nil && len(s.watched) >= maxWatched {
		s.mu.Unlock()
		return plane.Errorf(plane.Limited, "A session may subscribe to %d resources.", maxWatched)
	}
	if have == nil {
		have = &watching{at: at, name: uri}
		s.watched[w] = have
	}
	have.count++
	s.mu.Unlock()
	if err = s.b.Upstream.Subscribe(ctx, g, s.id, at.name, true); err != nil {
		s.forget(uri)
	}
	return err
}

// forget counts one client less, and returns what nobody watches any more.
func (s *Session) forget(uri string) *watching {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, w := range s.watched {
		if w.name != uri {
			continue
		}
		if w.count--; w.count > 0 {
			return nil
		}
		delete(s.watched, k)
		return w
	}
	return nil
}

func (s *Session) unsubscribe(ctx context.Context, uri string) error {
	w := s.forget(uri)
	if w == nil {
		return nil
	}
	g, denial := s.b.Policy().Decide(s.o.Principal, policy.Discover, policy.Resource{Agent: s.o.Agent, Connection: w.at.conn})
	if denial != nil {
		return nil // what was opened for it is closed already
	}
	return s.b.Upstream.Subscribe(ctx, g, s.id, w.at.name, false)
}

// maxWatched is how many resources one session may subscribe to.
const maxWatched = 256

// watch is a resource that a session wants to hear of.
type watch struct {
	conn plane.ConnectionID
	uri  string
}

type watching struct {
	at    target
	name  string // the caller's
	count int    // of its clients
}

// Watches reports that the session has subscriptions.
func (s *Session) Watches() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watched) > 0
}

// Hears returns the name under which a session knows a resource that changed, when it
// subscribed to it and may still read it.
func (s *Session) Hears(conn plane.ConnectionID, uri string) (string, bool) {
	s.mu.Lock()
	w := s.watched[watch{conn, uri}]
	s.mu.Unlock()
	if w == nil {
		return "", false
	}
	snap := s.b.Policy()
	c, ok := snap.Connection(conn)
	if !ok || c.Out(filterResource+uri) != "" {
		return "", false
	}
	_, denial := snap.Decide(s.o.Principal, policy.Discover, policy.Resource{Agent: s.o.Agent, Connection: conn})
	return w.name, denial == nil
}
