package upstream

import (
	"context"
	"encoding/json"
	"time"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Notice is something that a server said by itself, about a resource or as a log
// message.
type Notice struct {
	Connection plane.ConnectionID
	Session    plane.SessionID // the bridge session it is for; empty for all of the connection
	Method     string
	Params     json.RawMessage
}

// URI is of the resource that a notice is about.
func (n Notice) URI() string {
	var p struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(n.Params, &p) != nil {
		return ""
	}
	return p.URI
}

// noticed hands notices of a session on: lists are read again, the rest is for
// whoever uses the session.
func (p *Pool) noticed(g policy.Grant, shared, single key) func(*session, string, json.RawMessage) {
	return func(s *session, method string, params json.RawMessage) {
		if g.Sender().Agent != "" {
			p.noticedAlone(s, g, method, params)
			return
		}
		switch method {
		case mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
			p.extrasChanged(g)
		case mcp.MethodUpdated, mcp.MethodLog:
			if p.o.Noticed == nil {
				return
			}
			params, _ = clean(s, params)
			n := Notice{Connection: g.ID(), Method: method, Params: params}
			if !s.client.Shareable() {
				n.Session = single.forWhom
			}
			p.o.Noticed(n)
		}
	}
}

// noticedAlone hands on what a server said that is not the same for all: of a resource, to
// those who asked for it in that session.
func (p *Pool) noticedAlone(s *session, g policy.Grant, method string, params json.RawMessage) {
	if method != mcp.MethodUpdated || p.o.Noticed == nil {
		if forAll(g) && (method == mcp.MethodPromptsChanged || method == mcp.MethodResourcesChanged) {
			p.extrasChanged(g)
		}
		return
	}
	params, _ = clean(s, params)
	n := Notice{Connection: g.ID(), Method: method, Params: params}
	p.mu.Lock()
	var who []plane.SessionID
	for id := range s.heard[n.URI()] {
		who = append(who, id)
	}
	p.mu.Unlock()
	for _, id := range who {
		n.Session = id
		p.o.Noticed(n)
	}
}

// extrasChanged reads resources and prompts again, soon; a burst of notices makes
// one listing.
func (p *Pool) extrasChanged(g policy.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.rereading[g.ID()] {
		return
	}
	p.rereading[g.ID()] = true
	p.workers.Go(func() {
		defer func() { // one at a time, however much a server says
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.rereading, g.ID())
		}()
		select {
		case <-time.After(changedDelay):
		case <-p.stop:
			return
		}
		if p.o.Holds != nil && !p.o.Holds(g) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.o.Limits.DiscoverOne)
		defer cancel()
		if l, err := p.List(ctx, g); err == nil && p.o.Listed != nil {
			p.o.Listed(ctx, g, l)
		}
	})
}

// heardBy is a resource that a session hears of.
type heardBy struct {
	s   *session
	uri string
}

// maxHeard is how many resources one session hears of, for all that share it.
const maxHeard = 1024

// unhear ends subscriptions that nobody has any more.
func (p *Pool) unhear(all []heardBy) {
	ctx, cancel := context.WithTimeout(context.Background(), p.o.Limits.HeaderTimeout)
	defer cancel()
	for _, h := range all {
		if h.s.client.Unsubscribe(ctx, h.uri) != nil {
			return // the session ends some time
		}
	}
}

// Subscribe asks a server to tell of changes of a resource, for one bridge session,
// or to stop. Those who share a session upstream share what it hears; the last one who
// stops ends it.
func (p *Pool) Subscribe(ctx context.Context, g policy.Grant, id plane.SessionID, uri string, on bool) error {
	s, err := p.acquire(ctx, g, who{session: id})
	if err != nil {
		return err
	}
	defer p.release(s)
	p.mu.Lock()
	begin := on && !s.listens
	s.listens = s.listens || on
	ask := false
	switch {
	case on && s.heard[uri] == nil:
		if len(s.heard) >= maxHeard {
			p.mu.Unlock()
			conn := g.Connection()
			return plane.Errorf(plane.Limited, "%s has %d subscriptions.", conn.Slug, maxHeard)
		}
		if s.heard == nil {
			s.heard = map[string]map[plane.SessionID]bool{}
		}
		s.heard[uri], ask = map[plane.SessionID]bool{id: true}, true
	case on:
		s.heard[uri][id] = true
	case s.heard[uri][id]:
		if delete(s.heard[uri], id); len(s.heard[uri]) == 0 {
			delete(s.heard, uri)
			ask = true
		}
	}
	p.mu.Unlock()
	if begin { // what is told of it comes by this session
		s.client.Listen()
	}
	switch {
	case !ask:
	case on:
		if err = s.client.Subscribe(ctx, uri); err != nil {
			p.mu.Lock()
			delete(s.heard, uri)
			p.mu.Unlock()
		}
	default:
		err = s.client.Unsubscribe(ctx, uri)
	}
	return explain(g.Connection(), err)
}

// listen has one session of each connection hear what its server tells by itself: of
// those that are gone, another takes the place. A stream for every session would cost
// both sides a connection each and say the same.
func (p *Pool) listen(gone []*session) {
	var begin []*session
	p.mu.Lock()
	for _, g := range gone {
		if !g.listens || p.closed {
			continue
		}
		for k, s := range p.sessions {
			if k.conn == g.key.conn && k.version == g.key.version && k.who == g.key.who && !s.listens {
				s.listens = true
				begin = append(begin, s)
				break
			}
		}
	}
	p.mu.Unlock()
	for _, s := range begin {
		s.client.Listen()
	}
}

// heard reports that another session of the same account listens. The lock is held.
func (p *Pool) heard(k key) bool {
	for o, s := range p.sessions {
		if o.conn == k.conn && o.version == k.version && o.who == k.who && s.listens {
			return true
		}
	}
	return false
}
