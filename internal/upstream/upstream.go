// Package upstream keeps live sessions to servers. It promises that a session
// serves one account and, where the server gave it state, one bridge session;
// that the tool that runs carries the fingerprint that was offered; that a lost
// session is opened again once and a call sent again only when its ledger says
// so; and that what a server said has been searched for the credential it was
// lent before anyone else sees it.
package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Lender opens credentials.
type Lender interface {
	Lend(ctx context.Context, g policy.Grant) (*connect.Lease, error)
}

// Options of a Pool.
type Options struct {
	Lender    Lender
	Transport func(name string) http.RoundTripper                        // the untrusted lane, by the connection's egress name
	Launch    func(ctx context.Context, g policy.Grant) (Process, error) // starts a stdio server; nil where there is no sandbox
	Clock     plane.Clock
	Limits    plane.Limits
	Info      mcp.Implementation
	Holds     func(g policy.Grant) bool                                   // whether a grant is still what policy gives; nil for yes
	Listed    func(ctx context.Context, g policy.Grant, l catalog.Listed) // told of every full listing
	Noticed   func(n Notice)                                              // told of what a server says by itself
}

// Process is a stdio server that runs: the transport to it, whether it is heard no longer,
// and its end.
type Process interface {
	http.RoundTripper
	Gone() bool
	Close()
}

// Pool holds the sessions.
type Pool struct {
	o   Options
	big *mcp.Budget

	mu        sync.Mutex
	eras      map[string]mcp.Era // by endpoint
	sessions  map[key]*session
	opening   map[key]*opening
	lists     map[listKey]*list
	breakers  map[plane.ConnectionID]*breaker
	rereading map[plane.ConnectionID]bool
	closed    bool
	stop      chan struct{}
	workers   sync.WaitGroup
}

// New makes an empty pool. Close it.
func New(o Options) *Pool {
	p := &Pool{o: o, big: mcp.NewBudget(o.Limits.ResponseBuffers, o.Limits.ResponseBytes),
		eras: map[string]mcp.Era{}, sessions: map[key]*session{}, opening: map[key]*opening{},
		lists: map[listKey]*list{}, breakers: map[plane.ConnectionID]*breaker{}, rereading: map[plane.ConnectionID]bool{}, stop: make(chan struct{})}
	p.workers.Go(p.reap)
	return p
}

// Close ends all sessions.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	var all []*session
	for _, s := range p.sessions {
		all = append(all, s)
	}
	p.sessions = map[key]*session{}
	p.mu.Unlock()
	close(p.stop)
	p.workers.Wait()
	p.closeAll(all)
}

func (p *Pool) closeAll(all []*session) {
	p.listen(all)
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(s.close)
	}
	wg.Wait()
}

// End closes what was opened for one bridge session alone.
func (p *Pool) End(id plane.SessionID) {
	p.mu.Lock()
	var gone []*session
	for k, s := range p.sessions {
		if k.forWhom == id {
			gone = append(gone, s)
			delete(p.sessions, k)
		}
	}
	var unheard []heardBy
	for _, s := range p.sessions {
		for uri, who := range s.heard {
			if delete(who, id); len(who) == 0 {
				delete(s.heard, uri)
				unheard = append(unheard, heardBy{s, uri})
			}
		}
	}
	p.mu.Unlock()
	if len(gone)+len(unheard) > 0 {
		p.spawn(func() { p.closeAll(gone); p.unhear(unheard) })
	}
}

// spawn does work that nobody waits for, in the caller's own time once the pool
// is closing.
func (p *Pool) spawn(fn func()) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.workers.Go(fn)
	}
	p.mu.Unlock()
	if closed {
		fn()
	}
}

func (p *Pool) reap() {
	every := max(p.o.Limits.SessionIdle/4, time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		var gone []*session
		for k, s := range p.sessions {
			if s.busy == 0 && len(s.heard) == 0 && p.o.Clock.Now().Sub(s.used) > p.o.Limits.SessionIdle {
				gone = append(gone, s)
				delete(p.sessions, k)
			}
		}
		p.mu.Unlock()
		p.closeAll(gone)
	}
}

// who is whom a session is for, and what they may be asked.
type who struct {
	session plane.SessionID
	offers  json.RawMessage // nil for nothing
}

// acquire finds or opens a session with a credential that is not known to be
// worthless, and marks it busy; release it.
func (p *Pool) acquire(ctx context.Context, g policy.Grant, w who) (*session, error) {
	s, err := p.session(ctx, g, w)
	if err != nil {
		return nil, err
	}
	if err := s.lease.Fresh(ctx); err != nil {
		p.release(s)
		return nil, err
	}
	return s, nil
}

func (p *Pool) session(ctx context.Context, g policy.Grant, w who) (*session, error) {
	conn := g.Connection()
	shared := key{conn: conn.ID, version: conn.Version, who: owner(conn, g)}
	single := shared
	single.forWhom = w.session
	p.mu.Lock()
	for {
		if p.closed {
			p.mu.Unlock()
			return nil, plane.Errorf(plane.Unavailable, "Patchbay is stopping.")
		}
		for _, k := range [...]key{shared, single} {
			s, ok := p.sessions[k]
			if ok && s.gone() {
				delete(p.sessions, k)
				p.workers.Go(s.close)
				continue
			}
			if ok && (w.offers == nil || s.key == single || s.client.Era() == mcp.EraModern) {
				s.busy++
				s.used = p.o.Clock.Now()
				p.mu.Unlock()
				return s, nil
			}
		}
		// While the era is unknown, whether a session can be shared is too, so
		// openers of one connection wait for the first.
		flight := single
		if p.eras[conn.Endpoint] != mcp.EraLegacy {
			flight = shared
		}
		o, ok := p.opening[flight]
		if !ok {
			if err := p.begin(ctx, g, w, shared, single, flight); err != nil {
				p.mu.Unlock()
				return nil, err
			}
			o = p.opening[flight]
		}
		p.mu.Unlock()
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
}

// owner separates the sessions of a person's connection from everybody else's, and the
// processes of a stdio server by in whose name they send.
func owner(c plane.Connection, g policy.Grant) string {
	if at := g.Sender(); at.Agent != "" {
		who := at.Agent + "|" + at.Team
		if g.Look() {
			who = "look|" + who
		}
		return who
	}
	if c.Scope.Kind == plane.ScopeUser {
		return g.Principal()
	}
	return ""
}

// begin starts to open a session, unless the breaker or the bound is against
// it. The lock is held.
func (p *Pool) begin(ctx context.Context, g policy.Grant, w who, shared, single, flight key) error {
	conn := g.Connection()
	if err := p.admit(conn); err != nil {
		return err
	}
	victim, err := p.makeRoom(conn)
	if err != nil {
		return err
	}
	o := &opening{done: make(chan struct{})}
	p.opening[flight] = o
	era := p.eras[conn.Endpoint]
	p.workers.Go(func() {
		if victim != nil {
			p.closeAll([]*session{victim})
		}
		p.open(context.WithoutCancel(ctx), g, o, opens{era, w.offers, p.noticed(g, shared, single)}, shared, single, flight)
	})
	return nil
}

// open opens a session as the only opener of flight. It outlives the caller who
// happened to be first: others may wait for it too.
func (p *Pool) open(ctx context.Context, g policy.Grant, o *opening, how opens, shared, single, flight key) {
	conn := g.Connection()
	ctx, cancel := context.WithTimeout(ctx, p.o.Limits.DiscoverOne)
	defer cancel()
	s, err := p.connect(ctx, g, how)
	p.mu.Lock()
	p.breaker(conn.ID).result(p.o.Clock.Now(), err)
	if err == nil {
		s.key = single
		// A legacy session that says what its one caller may be asked is that caller's.
		if s.client.Shareable() && (how.offers == nil || s.client.Era() == mcp.EraModern) {
			s.key = shared
		}
		s.used = p.o.Clock.Now()
		p.eras[conn.Endpoint] = s.client.Era()
		if p.closed {
			err = plane.Errorf(plane.Unavailable, "Patchbay is stopping.")
		} else {
			s.listens = !p.heard(s.key)
			p.sessions[s.key] = s
		}
	} else if mcp.AsError(err).Ending.Fault == plane.FaultProtocol {
		delete(p.eras, conn.Endpoint) // it may have changed its era
	}
	o.err = explain(conn, err)
	delete(p.opening, flight)
	listens := err == nil && s.listens
	p.mu.Unlock()
	close(o.done)
	if o.err == nil {
		if listens {
			s.client.Listen()
		}
	} else if s != nil {
		p.closeAll([]*session{s})
	}
}

// makeRoom holds the bound on sessions: the oldest idle one has to go.
func (p *Pool) makeRoom(conn plane.Connection) (*session, error) {
	n := 0
	var oldest *session
	for k, s := range p.sessions {
		if k.conn != conn.ID {
			continue
		}
		n++
		if s.busy == 0 && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	if n < p.o.Limits.SessionsPerConnection {
		return nil, nil
	}
	if oldest == nil {
		return nil, plane.Errorf(plane.Limited, "%s has %d sessions in use.", conn.Slug, n).Over("sessions_per_connection")
	}
	delete(p.sessions, oldest.key)
	return oldest, nil
}

// connect opens a session. A credential that the server rejects is replaced
// once, where there is another.
func (p *Pool) connect(ctx context.Context, g policy.Grant, how opens) (*session, error) {
	lease, err := p.o.Lender.Lend(ctx, g)
	if err != nil {
		return nil, err
	}
	began := p.o.Clock.Now()
	s, err := p.dial(ctx, g, how, lease)
	if err != nil && p.rejected(ctx, lease, err, began) {
		s, err = p.dial(ctx, g, how, lease)
		if err != nil {
			p.rejected(ctx, lease, err, p.o.Clock.Now())
		}
	}
	if err != nil {
		lease.Close()
		return nil, err
	}
	return s, nil
}

// rejected tells the lease of a challenge, and reports whether asking again is
// worth it.
func (p *Pool) rejected(ctx context.Context, lease *connect.Lease, err error, since time.Time) bool {
	e := mcp.AsError(err)
	if !e.Ending.Challenge {
		return false
	}
	return lease.Rejected(ctx, connect.Rejection{Status: e.Ending.Status, Challenges: e.Challenges, Since: since})
}

// opens is how a session is opened.
type opens struct {
	era      mcp.Era
	offers   json.RawMessage
	notified func(s *session, method string, params json.RawMessage)
}

// dial opens one client with a lease.
func (p *Pool) dial(ctx context.Context, g policy.Grant, how opens, lease *connect.Lease) (*session, error) {
	conn := g.Connection()
	body := p.o.Limits.ResponseBytes
	if conn.MaxBytes > 0 {
		body = conn.MaxBytes
	}
	lk := listOf(g)
	var proc Process
	if conn.Stdio() {
		var err error
		if p.o.Launch == nil {
			return nil, plane.Errorf(plane.Unavailable, "There is no sandbox to run %s in.", conn.Slug).Then("patchbay doctor")
		}
		if proc, err = p.o.Launch(ctx, g); err != nil {
			return nil, err
		}
	}
	s := &session{proc: proc, lease: lease, asks: how.offers != nil} // what it hears before it is open is nobody's
	o := mcp.Options{
		Endpoint: conn.Endpoint, Transport: p.o.Transport(conn.EgressName()), Inject: lease.Inject, Info: p.o.Info, Era: how.era, Big: p.big,
		Capabilities: how.offers,
		Bounds: mcp.Bounds{Header: p.o.Limits.HeaderTimeout, Idle: p.o.Limits.IdleTimeout, Total: p.o.Limits.RequestTimeout,
			Body: body, Tools: p.o.Limits.CatalogTools, Pages: p.o.Limits.CatalogPages, Resumes: 3},
		ListChanged: func() { p.changed(lk, g) },
	}
	if proc != nil {
		o.Transport = proc
	}
	if how.notified != nil {
		o.Notified = func(method string, params json.RawMessage) {
			if s.open.Load() {
				how.notified(s, method, params)
			}
		}
	}
	client, err := mcp.NewClient(o)
	if err == nil {
		if err = client.Open(ctx); err != nil {
			client.Close()
		}
	}
	if err != nil {
		if proc != nil {
			proc.Close()
		}
		return nil, err
	}
	s.client = client
	s.open.Store(true)
	return s, nil
}

// explain turns a wire error into a sentence about the connection.
func explain(conn plane.Connection, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*plane.Error); ok {
		return err
	}
	e := mcp.AsError(err)
	kind := plane.Unavailable
	if e.Ending.Challenge || e.Ending.Status == http.StatusForbidden {
		kind = plane.Unauthenticated
	}
	detail := e.Ending.Detail
	if e.Ending.Challenge && conn.Auth == plane.AuthNone {
		detail = "The server asks for a sign-in."
	}
	out := plane.Errorf(kind, "%s: %s", conn.Slug, detail).Because(err)
	out.RetryAfter = e.RetryAfter
	out.Next = nextFor(conn, e.Ending)
	if e.Ending.Status == http.StatusTooManyRequests {
		out.Kind = plane.Limited
	}
	return out
}

// nextFor is the step that helps against a failure, where there is one.
func nextFor(conn plane.Connection, e plane.Ending) string {
	switch {
	case conn.Stdio():
		return "patchbay doctor says whether the sandbox works; what the server says is in Patchbay's log."
	case e.Refused:
		return "An operator opens the address in patchbay.yaml under egress.allow, for: [" + conn.EgressName() + "], then patchbay config reload."
	case e.Challenge && conn.Origin != plane.Pinned:
		return "patchbay mcp connect " + conn.Slug
	case e.Challenge && conn.TokenEnv != "":
		return "Put a valid token into " + conn.TokenEnv + " and start Patchbay again."
	case e.Challenge:
		return "It wants a credential: name a variable with its token as token_env."
	case e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed:
		return "Check the path of its URL, " + conn.Endpoint + "."
	case e.NothingSent && e.Fault == plane.FaultTransport:
		return "Check that it runs, and its URL, " + conn.Endpoint + "."
	}
	return ""
}

// clean searches what a server said for the credential.
func clean(s *session, b json.RawMessage) (json.RawMessage, bool) {
	out, hit := s.lease.Redactor().CleanJSON(b)
	return out, hit
}
