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
		select {
		case <-time.After(changedDelay):
		case <-p.stop:
			return
		}
		p.mu.Lock()
		delete(p.rereading, g.ID())
		p.mu.Unlock()
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

// Subscribe asks a server to tell of changes of a resource, for one bridge session,
// or to stop.
func (p *Pool) Subscribe(ctx context.Context, g policy.Grant, id plane.SessionID, uri string, on bool) error {
	s, err := p.acquire(ctx, g, who{session: id})
	if err != nil {
		return err
	}
	defer p.release(s)
	if on {
		p.mu.Lock()
		begin := !s.listens
		s.listens = true
		p.mu.Unlock()
		if begin { // what is told of it comes by this session
			s.client.Listen()
		}
		err = s.client.Subscribe(ctx, uri)
	} else {
		err = s.client.Unsubscribe(ctx, uri)
	}
	return explain(g.Connection(), err)
}
