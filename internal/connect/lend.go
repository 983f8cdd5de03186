package connect

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// cell is the one place in this process where a connection's credential stands.
// Leases look into it at every request, so that a refresh changes the next
// request's header and no session.
type cell struct {
	conn plane.Connection
	now  atomic.Pointer[set]
	turn chan struct{} // the connection's, shared by the cells of all its versions

	retryAt time.Time // with turn held: no sooner is a refresh tried again
	fails   int
	behind  atomic.Bool // a refresh ahead of expiry is under way
}

// Lease is a credential on loan for the exchanges of one grant.
type Lease struct {
	c     *Connections
	grant policy.Grant
	cell  *cell   // nil when the credential never changes
	fixed *set    // of a pinned token, or one that is tried out; nil for none
	mint  *minted // of one that an app signs in
}

// Lend opens the credential that a grant is good for. It refuses the zero grant.
func (c *Connections) Lend(ctx context.Context, g policy.Grant) (*Lease, error) {
	if !g.Valid() {
		return nil, plane.Errorf(plane.Forbidden, "No grant, no credential.")
	}
	conn := g.Connection()
	l := &Lease{c: c, grant: g}
	if conn.Auth == plane.AuthNone {
		return l, nil
	}
	if conn.TokenEnv != "" {
		token, ok := c.o.Lookup(conn.TokenEnv)
		if !ok || token.Empty() {
			return nil, plane.Errorf(plane.Unavailable, "%s: the variable %s, which holds its token, is not set.", conn.Slug, conn.TokenEnv).
				Then("Set " + conn.TokenEnv + " and start Patchbay again.")
		}
		l.fixed = c.pinnedSet(conn, token)
		return l, nil
	}
	if ref, ok := strings.CutPrefix(conn.Declared.Secret, githubApp); ok && conn.Origin == plane.OfDeclaration {
		l.mint = &minted{team: g.Sender().Team, ref: ref}
		return l, l.Fresh(ctx)
	}
	var err error
	if l.cell, err = c.cellOf(ctx, conn); err != nil {
		return nil, err
	}
	return l, l.Fresh(ctx)
}

// pinned is a prepared token that config names.
type pinned struct {
	auth  plane.Auth
	token secret.Text
	set   *set
}

// pinnedSet prepares a token once for all the sessions that it is lent to.
func (c *Connections) pinnedSet(conn plane.Connection, token secret.Text) *set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pinned[conn.ID]; ok && p.auth == conn.Auth && p.token.Equal(token) {
		return p.set
	}
	p := pinned{conn.Auth, token, prepare(conn.Auth, Pasted(token), 0, c.o.Clock.Now(), nil)}
	c.pinned[conn.ID] = p
	return p.set
}

// Try lends a credential that is not stored, to find out whether it works.
func (c *Connections) Try(g policy.Grant, m Material) (*Lease, error) {
	if !g.Valid() {
		return nil, plane.Errorf(plane.Forbidden, "No grant, no credential.")
	}
	return &Lease{c: c, grant: g, fixed: prepare(g.Connection().Auth, m, 0, c.o.Clock.Now(), nil)}, nil
}

// TryNone lends nothing, to find out what a server asks for.
func (c *Connections) TryNone(g policy.Grant) *Lease { return &Lease{c: c, grant: g} }

// cellOf finds or loads the credential of a connection's present version.
func (c *Connections) cellOf(ctx context.Context, conn plane.Connection) (*cell, error) {
	c.mu.Lock()
	have := c.cells[conn.ID]
	c.mu.Unlock()
	if have != nil && have.conn.Version == conn.Version {
		return have, nil
	}
	x := &cell{conn: conn}
	s, err := c.load(ctx, conn, nil)
	if err != nil {
		return nil, err
	}
	x.now.Store(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.cells[conn.ID]; have != nil && have.conn.Version >= conn.Version {
		if !sameTarget(have.conn, conn) {
			return nil, movedOn(conn)
		}
		return have, nil
	}
	if x.turn = c.turns[conn.ID]; x.turn == nil {
		x.turn = make(chan struct{}, 1)
		c.turns[conn.ID] = x.turn
	}
	c.cells[conn.ID] = x
	return x, nil
}

// Forget drops what is held in memory of a connection.
func (c *Connections) Forget(id plane.ConnectionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cells, id)
	delete(c.pinned, id)
}

// load reads and opens the stored credential.
func (c *Connections) load(ctx context.Context, conn plane.Connection, older *set) (*set, error) {
	rec, err := c.o.Store.Credential(ctx, conn.ID)
	if plane.KindOf(err) == plane.NotFound {
		return nil, plane.Errorf(plane.Unauthenticated, "%s has no credential.", conn.Slug).Then(connectNext(conn)).Because(err)
	}
	if err != nil {
		return nil, err
	}
	return c.opened(ctx, conn, rec, older)
}

// sameTarget reports that a credential of one may be shown where the other's is.
func sameTarget(a, b plane.Connection) bool { return a.Endpoint == b.Endpoint && a.Auth == b.Auth }

func movedOn(conn plane.Connection) error {
	return plane.Errorf(plane.Conflict, "%s was changed since its tools were offered.", conn.Slug)
}

// opened opens a stored credential, which was read a moment ago. One that was
// stored for another address than the grant's is not for this one: the connection
// is looked at after the credential, and both change in one transaction.
func (c *Connections) opened(ctx context.Context, conn plane.Connection, rec plane.Credential, older *set) (*set, error) {
	switch now, err := c.o.Store.ConnectionByID(ctx, conn.ID); {
	case plane.KindOf(err) == plane.NotFound:
		return nil, movedOn(conn)
	case err != nil:
		return nil, err
	case !sameTarget(now, conn):
		return nil, movedOn(conn)
	}
	m, err := c.unseal(conn.ID, rec.Blob)
	if err != nil {
		reason := plane.ReasonUnreadable
		if errors.Is(err, secret.ErrKeyMissing) {
			reason = plane.ReasonKeyMissing
		}
		return nil, c.fault(ctx, conn, reason, err)
	}
	return prepare(conn.Auth, m, rec.Rev, c.o.Clock.Now(), older), nil
}

func connectNext(conn plane.Connection) string { return "patchbay mcp connect " + conn.Slug }

// fault records that a connection's credential does not work, and returns the
// sentence.
func (c *Connections) fault(ctx context.Context, conn plane.Connection, reason string, cause error) error {
	out := plane.Errorf(plane.Unauthenticated, "%s cannot be used: %s.", conn.Slug, plane.ReasonText(reason)).Then(connectNext(conn)).Because(cause)
	if conn.Origin == plane.Pinned && conn.Auth != plane.AuthOAuth {
		return out // a pinned token is the operator's to mend, in config
	}
	err := c.o.Store.Write(context.WithoutCancel(ctx), func(t plane.Tx) error {
		if err := c.o.Store.SetConnectionState(t, conn.ID, conn.Version, plane.StateAuthError, reason); err != nil {
			return err
		}
		return c.o.Store.AddAudit(t, plane.AuditEntry{Who: "patchbay", Action: "connection.auth_error", What: string(conn.ID), Decision: reason})
	})
	if err != nil {
		c.o.Log.Error("a connection's state could not be stored", "connection", conn.ID, "err", err)
	}
	c.o.Log.Warn("a connection's credential does not work", "connection", conn.ID, "reason", reason, "cause", cause)
	c.o.Changed()
	return out
}

// Fresh makes sure that what will be injected is not known to be worthless. It
// waits for a refresh only when the token is over.
func (l *Lease) Fresh(ctx context.Context) error {
	if l.mint != nil {
		return l.c.remint(ctx, l.grant.Connection(), l.mint)
	}
	if l.cell == nil {
		return nil
	}
	s, now := l.cell.now.Load(), l.c.o.Clock.Now()
	switch {
	case s.expired(now) && !s.renewable():
		return l.c.fault(ctx, l.cell.conn, plane.ReasonExpired, nil)
	case s.expired(now):
		_, err := l.c.refresh(ctx, l.cell, s, false)
		return err
	case s.due(now) && s.renewable():
		l.c.refreshBehind(l.cell, s)
	}
	return nil
}

func (l *Lease) set() *set {
	if l.cell != nil {
		return l.cell.now.Load()
	}
	if l.mint != nil {
		return l.mint.now.Load()
	}
	return l.fixed
}

// Inject adds the credential to a request that the grant admits, and to no
// other.
func (l *Lease) Inject(req *http.Request) error {
	if !l.grant.Admits(req.URL.Scheme, req.URL.Host) || req.Host != "" && req.Host != req.URL.Host {
		return plane.Errorf(plane.Forbidden, "The request goes elsewhere than was granted.")
	}
	s := l.set()
	if s == nil {
		return nil
	}
	s.value.Expose(func(v string) { req.Header[s.header] = []string{v} })
	return nil
}

// Redactor finds what was lent in what came back; nil finds nothing.
func (l *Lease) Redactor() *Redactor {
	if s := l.set(); s != nil {
		return s.redactor
	}
	return nil
}

// Worked is told that the server took the credential.
func (l *Lease) Worked() {
	if s := l.set(); s != nil && !s.worked.Load() {
		s.worked.Store(true)
	}
}

// Rejection is how a server refused a credential.
type Rejection struct {
	Status     int
	Challenges []string  // WWW-Authenticate
	Since      time.Time // when the refused request began
}

// Rejected is told that the server refused the credential. It reports whether
// there is another one now, so that asking again is worth it: another replica
// renewed it, or it could be renewed here.
func (l *Lease) Rejected(ctx context.Context, r Rejection) bool {
	conn := l.grant.Connection()
	hint := oauth.ReadHint(r.Challenges)
	if r.Status == http.StatusForbidden {
		if hint.Error == "insufficient_scope" && l.cell != nil {
			l.c.stepUp(ctx, conn, l.cell.now.Load(), hint.Scope)
		}
		return false
	}
	if l.mint != nil {
		l.c.forgetHeld(l.mint.key())
		return l.Fresh(ctx) == nil
	}
	if l.cell == nil {
		if l.fixed == nil && conn.Origin != plane.Pinned && conn.Version > 0 {
			l.c.fault(ctx, conn, plane.ReasonNeedsAuth, nil)
		}
		return false
	}
	s := l.cell.now.Load()
	if s.renewed.After(r.Since) {
		return true
	}
	if s.m.s.Kind == "oauth" && s.renewable() && !(s.rejected && !s.worked.Load()) {
		_, err := l.c.refresh(ctx, l.cell, s, true)
		return err == nil
	}
	if fresh, err := l.c.reread(ctx, l.cell, s); err == nil && fresh != s {
		return true
	}
	reason := plane.ReasonRejected
	if s.m.s.Kind == "oauth" && !s.renewable() {
		reason = plane.ReasonExpired
	}
	l.c.fault(ctx, conn, reason, nil)
	return false
}

// reread adopts a credential that was stored elsewhere.
func (c *Connections) reread(ctx context.Context, x *cell, s *set) (*set, error) {
	rec, err := c.o.Store.Credential(ctx, x.conn.ID)
	if err != nil || rec.Rev == s.rev {
		return s, err
	}
	fresh, err := c.opened(ctx, x.conn, rec, s)
	if err != nil {
		return s, err
	}
	x.now.Store(fresh)
	return fresh, nil
}

// stepUp remembers which scopes a call was refused for; the next sign-in asks
// for them too. Scopes that are granted already are not asked for again: the
// server's refusal has another cause then.
func (c *Connections) stepUp(ctx context.Context, conn plane.Connection, s *set, scope string) {
	wanted := missingScopes(s.m.s.Scope+" "+conn.OAuth.StepUp, scope)
	if wanted == "" || len(conn.OAuth.StepUp)+len(wanted) > maxStepUp {
		return
	}
	o := conn.OAuth
	o.StepUp = strings.TrimSpace(o.StepUp + " " + wanted)
	err := c.o.Store.Write(context.WithoutCancel(ctx), func(t plane.Tx) error { return c.o.Store.SetOAuthOptions(t, conn.ID, o) })
	if err != nil {
		c.o.Log.Error("a step-up could not be stored", "connection", conn.ID, "err", err)
		return
	}
	c.o.Changed()
}

// maxStepUp bounds what a server can make us remember, in bytes.
const maxStepUp = 1024

// Close ends the loan.
func (l *Lease) Close() {}
