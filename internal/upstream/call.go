package upstream

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Request is one request as the bridge decided it: a tool call, or something beside
// tools.
type Request struct {
	Session    plane.SessionID
	Definition *plane.Definition // of the tool; nil for anything else:
	Method     string            // what it is then
	Name       string            // and what it is about
	Arguments  json.RawMessage
	Extra      json.RawMessage // further members of the params, without braces
	MaxAge     time.Duration   // of the listing that the fingerprint is checked against
	Trace      string
	Key        string // idempotency key
	Caller     Caller

	// Begin makes the attempt durable; only then bytes leave. Again decides
	// after an attempt whether another may follow.
	Begin func(ctx context.Context) error
	Again func(ctx context.Context, end plane.Ending) (bool, error)
}

// Caller is what whoever a request is made for can take ahead of the answer.
type Caller struct {
	Modern       bool            // its era; questions cross none
	Capabilities json.RawMessage // what it may be asked; nil for nothing
	Elicits      bool            // by a form
	LogLevel     string          // of the log messages it wants; empty for none
	Progress     func(params json.RawMessage)
	Log          func(params json.RawMessage)
	Ask          func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *mcp.RPCError)
}

// Result is what the server answered, already cleaned of the credential.
type Result struct {
	Raw      json.RawMessage
	Redacted bool
	Asks     bool   // it wants something of the caller before it goes on
	Typed    bool   // it says its resultType
	Version  string // of the protocol
	Session  string // the server's name for the session, if it gave one
	Bytes    int    // as received
}

// Call runs a tool. A nil error means that the server answered. An error with
// sent false means that no attempt was begun; else Ending says how the last
// attempt ended.
func (p *Pool) Call(ctx context.Context, g policy.Grant, r Request) (res Result, end plane.Ending, sent bool, err error) {
	conn := g.Connection()
	if err := p.paused(&conn); err != nil {
		return Result{}, endingOf(err), false, err
	}
	var waited time.Duration
	defer func() { end.Upstream = waited }()
	for {
		s, err := p.acquire(ctx, g, who{session: r.Session, offers: r.offers()})
		if err != nil {
			p.leaveAlone(conn.ID, err)
			return Result{}, endingOf(err), sent, err
		}
		since := p.o.Clock.Now()
		res, end, began, err := p.attempt(ctx, g, s, r)
		waited += end.Upstream
		sent = sent || began
		p.release(s)
		if err == nil || !began {
			return res, end, sent, err
		}
		p.leaveAlone(conn.ID, err)
		if end.SessionLost || p.stuck(ctx, s, end) {
			p.drop(s)
		}
		renewed := p.rejected(ctx, s.lease, err, since)
		if end.HeaderMismatch || end.RPC {
			p.forget(listOf(g))
		}
		if !worthAgain(end) && !renewed {
			return res, end, sent, explain(conn, err)
		}
		again, aerr := r.Again(ctx, end)
		if aerr != nil {
			return res, end, sent, aerr
		}
		if !again {
			return res, end, sent, explain(conn, err)
		}
	}
}

// worthAgain leaves out what would only be refused again: the same credential
// to a server that rejected it, and an address that policy does not allow. A
// credential that was renewed is another one.
func worthAgain(e plane.Ending) bool {
	return e.SessionLost || e.HeaderMismatch || e.NothingSent && e.Fault == plane.FaultTransport
}

// endingOf describes a failure before anything was sent.
func endingOf(err error) plane.Ending {
	e := plane.Public(err)
	return plane.Ending{NothingSent: true, Fault: plane.FaultTransport, Detail: e.Message, Kind: e.Kind}
}

// attempt checks the definition, makes the attempt durable and sends it.
func (p *Pool) attempt(ctx context.Context, g policy.Grant, s *session, r Request) (res Result, end plane.Ending, began bool, err error) {
	var echoed atomic.Bool
	defer func() { res.Redacted = res.Redacted || echoed.Load() }()
	call := mcp.Call{Method: r.Method, Name: r.Name, Arguments: r.Arguments, Extra: r.Extra, Trace: r.Trace, Key: r.Key,
		LogLevel: r.Caller.LogLevel, Progress: cleanedNote(s, &echoed, r.Caller.Progress), Log: cleanedNote(s, &echoed, r.Caller.Log)}
	if d := r.Definition; d != nil {
		if err := p.check(ctx, g, s, d, r.MaxAge); err != nil {
			return res, endingOf(err), false, err
		}
		call.Name, call.Headers = d.Name, d.ParamHeaders
	}
	modern := s.client.Era() == mcp.EraModern
	if same := modern == r.Caller.Modern; same && modern {
		call.Capabilities = r.Caller.Capabilities
	} else if same {
		call.Ask = cleanedAsk(s, &echoed, r.Caller.Ask)
	}
	if err := r.Begin(ctx); err != nil {
		return res, endingOf(err), false, err
	}
	sent := time.Now()
	defer func() { end.Upstream = time.Since(sent) }()
	reply, err := s.client.Call(ctx, call)
	res.Version, res.Session = s.client.Version(), s.client.SessionID()
	if err != nil {
		return res, mcp.AsError(err).Ending, true, cleanError(s, err, &res)
	}
	s.lease.Worked()
	res.Bytes = len(reply.Result)
	if reply.Spelled {
		res.Raw, res.Redacted = clean(s, reply.Result)
	} else {
		res.Raw, res.Redacted = s.lease.Redactor().Clean(reply.Result)
	}
	end = plane.Ending{Answered: true, IsError: reply.IsError}
	res.Typed = reply.Typed
	switch {
	case reply.NeedsInput && modern && r.Caller.Modern && len(call.Capabilities) > 2:
		res.Asks = true
	case reply.NeedsInput && r.Caller.Capabilities != nil && !r.Caller.Modern:
		res.Raw, end.IsError, end.Detail = nil, true, "The server asked for input in another era of the protocol than the caller speaks."
	case reply.NeedsInput:
		res.Raw, end.IsError, end.Detail = nil, true, "The server asked for input that its caller cannot give."
	}
	return res, end, true, nil
}

// offers is what a legacy session says it may be asked.
func (r *Request) offers() json.RawMessage {
	if r.Caller.Modern || r.Caller.Ask == nil || len(r.Caller.Capabilities) <= len("{}") {
		return nil
	}
	return r.Caller.Capabilities
}

// What a server says to the caller by the way is searched like its results.
func cleanedNote(s *session, echoed *atomic.Bool, tell func(json.RawMessage)) func(json.RawMessage) {
	if tell == nil {
		return nil
	}
	return func(params json.RawMessage) {
		params, hit := clean(s, params)
		if hit {
			echoed.Store(true)
		}
		tell(params)
	}
}

func cleanedAsk(s *session, echoed *atomic.Bool, ask func(context.Context, string, json.RawMessage) (json.RawMessage, *mcp.RPCError)) func(context.Context, string, json.RawMessage) (json.RawMessage, *mcp.RPCError) {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *mcp.RPCError) {
		params, hit := clean(s, params)
		if hit {
			echoed.Store(true)
		}
		return ask(ctx, method, params)
	}
}

// cleanError takes the credential out of the peer's words in an error.
func cleanError(s *session, err error, res *Result) error {
	e := *mcp.AsError(err)
	text, hit := clean(s, []byte(e.Text))
	e.Text, res.Redacted = string(text), hit
	if e.RPC != nil {
		rpc := *e.RPC
		msg, hit := clean(s, []byte(rpc.Message))
		data, hit2 := clean(s, rpc.Data)
		rpc.Message, rpc.Data = string(msg), data
		e.RPC, res.Redacted = &rpc, res.Redacted || hit || hit2
	}
	return &e
}

// check compares the offered fingerprint with a listing no older than maxAge
// (design D5).
func (p *Pool) check(ctx context.Context, g policy.Grant, s *session, d *plane.Definition, maxAge time.Duration) error {
	conn := g.Connection()
	k := listOf(g)
	p.mu.Lock()
	l := p.lists[k]
	now := p.o.Clock.Now()
	var age time.Duration
	fresh := l != nil && l.prints != nil
	if fresh {
		age = now.Sub(l.at)
		fresh = maxAge > 0 && age <= maxAge
	}
	if fresh && age > maxAge-maxAge/16 && l.fetching == nil {
		p.workers.Go(func() { p.fetchBehind(g) })
	}
	var prints map[string]string
	if fresh {
		prints = l.prints
	}
	p.mu.Unlock()
	if !fresh {
		var err error
		if prints, err = p.fetch(ctx, g, s, maxAge > 0); err != nil {
			return explain(conn, err)
		}
	}
	got, listed := prints[d.Name]
	switch {
	case !listed:
		return plane.Errorf(plane.Conflict, "%s no longer offers %s; nothing was sent.", conn.Slug, printable(d.Name))
	case got != d.Fingerprint:
		return plane.Errorf(plane.Conflict, "The definition of %s at %s changed since it was offered, from %s to %s; nothing was sent.",
			printable(d.Name), conn.Slug, plane.ShortFingerprint(d.Fingerprint), plane.ShortFingerprint(got))
	}
	return nil
}

// fetch lists the tools and returns their fingerprints by name, as that listing
// said them: what others hear meanwhile does not mix in. Callers share a listing
// under way when share is set.
func (p *Pool) fetch(ctx context.Context, g policy.Grant, s *session, share bool) (map[string]string, error) {
	k := listOf(g)
	p.mu.Lock()
	l := p.lists[k]
	if l == nil {
		l = &list{}
		p.lists[k] = l
	}
	if l.fetching != nil && share {
		ch := l.fetching
		p.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
		by, prints := l.fetchedBy, l.prints
		p.mu.Unlock()
		if by == nil && prints == nil {
			return p.fetch(ctx, g, s, false) // the server took it back at once
		}
		if by != nil && mcp.AsError(by).Ending.Fault == plane.FaultCancelled && ctx.Err() == nil {
			return p.fetch(ctx, g, s, false) // its lister went away; that says nothing
		}
		return prints, by
	}
	ch := make(chan struct{})
	l.fetching = ch
	began := p.o.Clock.Now()
	p.mu.Unlock()

	since := p.o.Clock.Now()
	listing, err := s.client.ListTools(ctx)
	if err != nil && p.rejected(ctx, s.lease, err, since) {
		listing, err = s.client.ListTools(ctx)
	}
	var listed catalog.Listed
	var prints map[string]string
	if err == nil {
		s.lease.Worked()
		listed = p.describe(s, listing)
		listed.At = began
		prints = printsOf(listed)
	}
	p.mu.Lock()
	if l.fetchedBy = err; err == nil && !began.Before(l.at) { // a slow listing is no newer one
		l.prints, l.at = prints, began
	}
	if l.fetching == ch {
		l.fetching = nil
	}
	p.mu.Unlock()
	close(ch)
	if err != nil {
		if mcp.AsError(err).Ending.SessionLost || s.gone() {
			p.drop(s)
		}
		return nil, err
	}
	// Some servers show a client more that says what it may be asked; what everybody is
	// offered does not hang on who called last.
	if p.o.Listed != nil && !s.asks && forAll(g) {
		p.o.Listed(ctx, g, listed)
	}
	return prints, nil
}

// describe cleans a listing and adds what the server said of itself.
func (p *Pool) describe(s *session, l mcp.Listing) catalog.Listed {
	out := catalog.Listed{Notes: l.Notes}
	for _, raw := range l.Tools {
		raw, _ = clean(s, raw)
		out.Tools = append(out.Tools, raw)
	}
	instructions, _ := clean(s, json.RawMessage(s.client.Instructions))
	server, _ := clean(s, json.RawMessage(s.client.Server.Name+" "+s.client.Server.Version))
	out.Instructions, out.Server = string(instructions), string(server)
	return out
}

// fetchBehind renews a listing before it is too old.
func (p *Pool) fetchBehind(g policy.Grant) {
	if p.o.Holds != nil && !p.o.Holds(g) {
		return // it was turned off, changed or removed since
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.o.Limits.DiscoverOne)
	defer cancel()
	s, err := p.acquire(ctx, g, background)
	if err != nil {
		return // the next call lists for itself and reports it
	}
	defer p.release(s)
	p.fetch(ctx, g, s, true)
}

// background is whom sessions belong to that serve no bridge session.
var background = who{session: "background"}

func (p *Pool) forget(k listKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lists[k]; l != nil {
		l.prints = nil
	}
}

// changed is told by a server that its list changed: the listing is void at
// once and renewed soon; a burst of notices makes one listing.
func (p *Pool) changed(k listKey, g policy.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	l := p.lists[k]
	if l == nil { // nobody has called a tool yet; the catalog wants to know all the same
		l = &list{}
		p.lists[k] = l
	}
	l.at = p.o.Clock.Now() // a listing that began before is void too
	l.prints = nil
	if l.renewing {
		return
	}
	l.renewing = true
	p.workers.Go(func() {
		select {
		case <-time.After(changedDelay):
			p.mu.Lock()
			l.renewing = false
			p.mu.Unlock()
			p.fetchBehind(g)
		case <-p.stop:
		}
	})
}

const changedDelay = 250 * time.Millisecond

// List asks a server for its tools, for the catalog. A session that the server
// forgot in the meantime is opened anew, once.
func (p *Pool) List(ctx context.Context, g policy.Grant) (catalog.Listed, error) {
	conn := g.Connection()
	if conn.Stdio() && g.Look() { // a fresh process, so that a server that was put in its place is seen
		p.dropFor(listOf(g))
	}
	for try := 0; ; try++ {
		s, err := p.acquire(ctx, g, background)
		if err != nil {
			return catalog.Listed{}, err
		}
		since := p.o.Clock.Now()
		listing, err := s.client.ListTools(ctx)
		var extras mcp.Extras
		if err == nil {
			extras, err = s.client.ListExtras(ctx)
		}
		p.release(s)
		if err != nil {
			e := mcp.AsError(err)
			if e.Ending.SessionLost || s.gone() {
				p.drop(s)
				if try == 0 {
					continue
				}
			}
			if p.rejected(ctx, s.lease, err, since) && try == 0 {
				continue
			}
			return catalog.Listed{}, explain(conn, err)
		}
		out := p.describe(s, listing)
		out.At = since
		p.know(listOf(g), since, printsOf(out))
		addExtras(s, &out, extras)
		return out, nil
	}
}

// addExtras puts what a server lists beside its tools into a listing.
func addExtras(s *session, l *catalog.Listed, x mcp.Extras) {
	l.Extras, l.Notes = true, append(l.Notes, x.Notes...)
	l.Resources, l.Templates, l.Prompts = cleaned(s, x.Resources), cleaned(s, x.Templates), cleaned(s, x.Prompts)
}

func cleaned(s *session, list []json.RawMessage) []json.RawMessage {
	for i := range list {
		list[i], _ = clean(s, list[i])
	}
	return list
}

// printable is a server's tool name, fit for a sentence.
func printable(name string) string {
	out := make([]rune, 0, 64)
	for _, r := range name {
		if len(out) == 64 {
			break
		}
		if r < 0x20 || r == 0x7f || r > 0x7e {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}
