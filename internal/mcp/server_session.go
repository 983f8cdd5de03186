package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
)

// Keeper makes the session ids of legacy clients and knows them again, with what
// the client said of itself.
type Keeper interface {
	Begin(r *http.Request, p Peer) (id string, err error)
	Known(r *http.Request, id string) (Peer, bool)
	End(r *http.Request, id string)
}

// Bounds of what a server holds for its clients.
const (
	maxMemorySessions = 1000 // over it the oldest ends
	maxListeners      = 1000
	maxLevels         = 10_000
	maxAsks           = 1000
	maxOwnAsks        = 16  // of one session
	maxOwnListeners   = 200 // of one caller
	listenerQueue     = 64

	allowedEvery = 15 * time.Second // whether a listener may still listen
)

// memoryKeeper keeps sessions for as long as the process lives.
type memoryKeeper struct {
	mu    sync.Mutex
	order []string
	peers map[string]Peer
}

func (k *memoryKeeper) Begin(_ *http.Request, p Peer) (string, error) {
	id := string(plane.NewSessionID(plane.SystemClock{}.Now()))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peers == nil {
		k.peers = map[string]Peer{}
	}
	if len(k.order) >= maxMemorySessions {
		delete(k.peers, k.order[0])
		k.order = slices.Delete(k.order, 0, 1)
	}
	p.Capabilities = bytes.Clone(p.Capabilities)
	k.order, k.peers[id] = append(k.order, id), p
	return id, nil
}

func (k *memoryKeeper) Known(_ *http.Request, id string) (Peer, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.peers[id]
	return p, ok
}

func (k *memoryKeeper) End(_ *http.Request, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for x := range k.peers {
		if id == "" || x == id {
			delete(k.peers, x)
		}
	}
	k.order = slices.DeleteFunc(k.order, func(x string) bool { return id == "" || x == id })
}

func (s *Server) keeper() Keeper {
	if s.Keeper != nil {
		return s.Keeper
	}
	return &s.memory
}

// DropSession forgets a session that is kept in memory; "" forgets all of them.
func (s *Server) DropSession(id string) { s.memory.End(nil, id) }

// clients is what a server holds of its clients while they are connected.
type clients struct {
	mu        sync.Mutex
	listeners map[*listener]struct{}
	levels    map[string]string
	asks      map[flight]chan Message
	flights   map[flight]context.CancelFunc
}

// flight is a request under way: of a client, or to one.
type flight struct{ session, id string }

func (c *clients) setLevel(session, level string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.levels == nil {
		c.levels = map[string]string{}
	}
	for k := range c.levels {
		if len(c.levels) < maxLevels {
			break
		}
		delete(c.levels, k)
	}
	c.levels[session] = level
}

func (c *clients) level(session string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.levels[session]
}

// fly notes a request that its client may cancel; the returned function ends the
// note.
func (c *clients) fly(f flight, cancel context.CancelFunc) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights == nil {
		c.flights = map[flight]context.CancelFunc{}
	}
	if _, twice := c.flights[f]; twice {
		return func() {} // the first of two requests under one id can be cancelled
	}
	c.flights[f] = cancel
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.flights, f)
	}
}

// end forgets a session, and cancels what it has under way.
func (c *clients) end(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.levels, session)
	for f, cancel := range c.flights {
		if f.session == session {
			cancel()
		}
	}
	for l := range c.listeners {
		if l.session == session {
			delete(c.listeners, l)
			close(l.gone)
		}
	}
}

// aside takes what is no request: an answer to something that was asked, or a
// notification.
func (s *Server) aside(w http.ResponseWriter, r *http.Request, m *Message, body []byte) {
	session := r.Header.Get(headerSession)
	if s.Sessions && session != "" {
		if _, known := s.keeper().Known(r, session); !known {
			writeError(w, http.StatusNotFound, nil, &RPCError{Code: CodeInvalidRequest, Message: "The session is not known; start anew."})
			return
		}
	}
	if session != "" && !s.Aside(session, m) && s.Elsewhere != nil {
		about := ""
		if m.IsAnswer() {
			about, _ = String(m.ID)
		}
		if err := s.Elsewhere(r, about, body); err != nil && m.IsAnswer() {
			writeError(w, http.StatusNotFound, m.ID, &RPCError{Code: CodeInvalidRequest, Message: plane.Public(err).Message})
			return
		}
	}
	w.WriteHeader(http.StatusAccepted)
}

// Aside delivers an answer or a cancellation to the request of a session that it
// is about, and reports whether that is here.
func (s *Server) Aside(session string, m *Message) bool {
	c := &s.clients
	switch {
	case m.IsAnswer():
		f := flight{session, string(m.ID)}
		c.mu.Lock()
		ch, ok := c.asks[f]
		delete(c.asks, f)
		c.mu.Unlock()
		if ok {
			ch <- m.clone() // it has room for the one
		}
		return ok
	case m.Method == MethodCancelled && len(m.Params) > 0 && m.Params[0] == '{':
		id := ""
		if topMembers(m.Params, func(k string, v []byte) {
			if k == "requestId" {
				id = string(v)
			}
		}) != nil {
			return false
		}
		c.mu.Lock()
		cancel, ok := c.flights[flight{session, id}]
		c.mu.Unlock()
		if ok {
			cancel()
		}
		return ok
	}
	return true
}

// ask sends a request to the client on the stream of its own request, and waits
// for the answer, which comes by another POST. gone is over when the client is.
func (s *Server) ask(ctx, gone context.Context, session string, st *stream, method string, params json.RawMessage) (json.RawMessage, *RPCError) {
	c := &s.clients
	f := flight{session, fmt.Sprintf(`"%s-%d"`, s.Name, s.asked.Add(1))}
	ch := make(chan Message, 1)
	c.mu.Lock()
	if c.asks == nil {
		c.asks = map[flight]chan Message{}
	}
	own := 0
	for a := range c.asks {
		if a.session == session {
			own++
		}
	}
	full := len(c.asks) >= maxAsks || own >= maxOwnAsks
	if !full {
		c.asks[f] = ch
	}
	c.mu.Unlock()
	if full {
		return nil, &RPCError{Code: CodeInternal, Message: "Too many questions are open here."}
	}
	defer func() {
		c.mu.Lock()
		delete(c.asks, f)
		c.mu.Unlock()
	}()
	msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q`, f.id, method)
	if len(params) > 0 {
		msg = append(append(msg, `,"params":`...), params...)
	}
	if !st.event(append(msg, '}')) {
		return nil, &RPCError{Code: CodeInternal, Message: "The client is gone."}
	}
	select {
	case m := <-ch:
		return m.Result, m.Err
	case <-ctx.Done():
		st.notify(MethodCancelled, fmt.Appendf(nil, `{"requestId":%s}`, f.id))
		return nil, &RPCError{Code: CodeInternal, Message: "The request was cancelled."}
	case <-gone.Done():
		return nil, &RPCError{Code: CodeInternal, Message: "The client is gone."}
	}
}

// listener is a client that waits for notices.
type listener struct {
	session string // of the legacy era
	owner   string
	http    *http.Request
	sub     json.RawMessage
	wants   func(n *Notice) bool
	queue   chan []byte
	gone    chan struct{}
}

// Notice is something to tell clients that listen.
type Notice struct {
	Method string
	Params json.RawMessage // one JSON object, or nil
	URI    string          // of the resource it is about
	// To chooses whom it is for, by the session of the legacy era and the request that
	// listens; nil for all.
	To func(session string, r *http.Request) bool
}

// ListChanged tells every listener that the tool list changed.
func (s *Server) ListChanged() { s.Tell(Notice{Method: MethodListChanged}) }

// Tell sends a notice to every listener that wants it. One whose queue is full
// misses it.
func (s *Server) Tell(n Notice) {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	told := map[string]bool{} // a session hears a message on one of its streams
	for l := range s.clients.listeners {
		if l.session != "" && told[l.session] {
			continue
		}
		if n.To != nil && !n.To(l.session, l.http) || !l.wants(&n) {
			continue
		}
		told[l.session] = true
		params := n.Params
		if l.sub != nil {
			if params == nil {
				params = json.RawMessage(`{}`)
			}
			params = WithMembers(params, fmt.Sprintf(`"_meta":{%q:%s}`, metaSubscription, l.sub))
		}
		select {
		case l.queue <- appendRequest(nil, -1, n.Method, params):
		default: // what it has to read already says as much
		}
	}
}

func (s *Server) listenLegacy(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get(headerSession)
	known := !s.Sessions
	if s.Sessions {
		_, known = s.keeper().Known(r, session)
	}
	switch {
	case s.Sessions && session != "" && !known:
		http.Error(w, "the session is not known", http.StatusNotFound)
		return
	case r.Header.Get(headerProtocol) >= Version20260728, !known, !strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
		w.Header().Set("Allow", "POST")
		http.Error(w, "no stream here", http.StatusMethodNotAllowed)
		return
	}
	s.listen(w, r, nil, &listener{session: session, wants: func(*Notice) bool { return true }})
}

// listen holds a stream of notices.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, first []byte, l *listener) {
	l.http, l.queue, l.gone = r, make(chan []byte, listenerQueue), make(chan struct{})
	c := &s.clients
	c.mu.Lock()
	if c.listeners == nil {
		c.listeners = map[*listener]struct{}{}
	}
	own := 0
	if s.Owner != nil {
		l.owner = s.Owner(r)
		for o := range c.listeners {
			if o.owner == l.owner {
				own++
			}
		}
	}
	full := len(c.listeners) >= maxListeners || own >= maxOwnListeners
	if !full {
		c.listeners[l] = struct{}{}
	}
	c.mu.Unlock()
	if full {
		http.Error(w, "too many streams", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, l)
	}()
	st := &stream{w: w}
	st.open()
	if first != nil {
		st.event(first)
	}
	again := time.NewTicker(allowedEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if s.Allowed != nil && !s.Allowed(r) {
				return
			}
		case msg := <-l.queue:
			if s.Allowed != nil && !s.Allowed(r) || !st.event(msg) {
				return
			}
		case <-l.gone:
			return
		case <-s.Stopping:
			return
		case <-r.Context().Done():
			return
		}
	}
}
