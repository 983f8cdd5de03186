package connect

import (
	"context"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/oauth"
	"patchbay/internal/plane"
)

// Bounds of refreshing.
const (
	refreshTime   = 30 * time.Second // one refresh, the store included
	perServer     = 4                // refreshes at one authorization server at once
	retryFirst    = time.Second
	retryLast     = time.Minute
	maxUncertain  = 2 // presentations of one token whose outcome nobody knows
	storeAttempts = 5
)

// refreshBehind renews ahead of the expiry, once, while the old token still
// works.
func (c *Connections) refreshBehind(x *cell, s *set) {
	if c.stop.Err() != nil || !x.behind.CompareAndSwap(false, true) {
		return
	}
	c.work.Go(func() {
		defer x.behind.Store(false)
		ctx, cancel := context.WithTimeout(c.stop, refreshTime)
		defer cancel()
		if _, err := c.refresh(ctx, x, s, false); err != nil {
			c.o.Log.Info("a refresh ahead of the expiry did not work; the token is still good", "connection", x.conn.ID, "err", err)
		}
	})
}

// refresh puts another token set in place of s. Whoever comes while one is under
// way waits for it and takes what it brought. rejected says that the server
// refused the access token although its time is not over.
func (c *Connections) refresh(ctx context.Context, x *cell, s *set, rejected bool) (*set, error) {
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return nil, c.late(x)
	}
	if now := x.now.Load(); now != s {
		return now, nil
	}
	now := c.o.Clock.Now()
	if now.Before(x.retryAt) {
		e := plane.Errorf(plane.Unavailable, "%s: its sign-in could not be renewed; it is tried again in %s.", x.conn.Slug, max(x.retryAt.Sub(now).Round(time.Second), time.Second))
		e.RetryAfter = x.retryAt.Sub(now)
		return nil, e
	}
	release, err := c.slot(ctx, x, s)
	if err != nil {
		return nil, err
	}
	defer release()
	held, err := c.o.Lock(ctx, "refresh "+string(x.conn.ID))
	if err != nil {
		return nil, c.late(x).Because(err)
	}
	defer held.Release()
	return c.locked(ctx, x, s, held, rejected)
}

func (c *Connections) late(x *cell) *plane.Error {
	return plane.Errorf(plane.Unavailable, "%s: its sign-in is being renewed and that takes too long.", x.conn.Slug).Then("Try again in a minute.")
}

// slot bounds the refreshes at one authorization server.
func (c *Connections) slot(ctx context.Context, x *cell, s *set) (func(), error) {
	host := ""
	if u, err := url.Parse(s.m.s.Server.Token); err == nil {
		host = u.Host
	}
	c.mu.Lock()
	ch, ok := c.slots[host]
	if !ok {
		ch = make(chan struct{}, perServer)
		c.slots[host] = ch
	}
	c.mu.Unlock()
	select {
	case ch <- struct{}{}:
		return func() { <-ch }, nil
	case <-ctx.Done():
		return nil, c.late(x)
	}
}

// locked refreshes while the lock of all replicas is held, through the POST and
// the store: a lease that runs out could not protect a one-time token from a
// holder that was only stopped for a while.
func (c *Connections) locked(ctx context.Context, x *cell, s *set, held Lock, rejected bool) (*set, error) {
	rec, err := c.o.Store.Credential(ctx, x.conn.ID)
	if err != nil {
		return nil, err
	}
	if rec.Rev != s.rev { // another replica was first, or a person
		fresh, err := c.opened(ctx, x.conn, rec, s)
		if err == nil {
			x.now.Store(fresh)
		}
		return fresh, err
	}
	if !rec.Started.IsZero() {
		// Whoever began it never told how it ended. The token may be spent:
		// while the access token works, nothing is risked.
		if !rejected && !s.expired(c.o.Clock.Now()) {
			return s, nil
		}
		if rec.Tries >= maxUncertain {
			return nil, c.fault(ctx, x.conn, plane.ReasonUncertain, nil)
		}
	}
	if err := c.o.Store.Write(ctx, func(t plane.Tx) error { return c.o.Store.StartRefresh(t, x.conn.ID, rec.Rev) }); err != nil {
		return nil, err
	}
	if err := held.Check(ctx); err != nil {
		return nil, err
	}
	// From here on nobody's impatience counts: what was presented is stored.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTime)
	defer cancel()
	tokens, err := c.o.OAuth(x.conn.EgressName()).Refresh(ctx, s.m.s.Server, s.m.identity(), s.m.tokens(), x.conn.OAuth.OmitResource)
	if err != nil {
		return nil, c.refused(ctx, x, s, rec, oauth.AsError(err))
	}
	x.fails, x.retryAt = 0, time.Time{}
	m := s.m
	m.s.Obtained = plane.Micros(c.o.Clock.Now())
	m.take(tokens, s.m.s.Method)
	return c.keep(ctx, x, s, m, rejected)
}

// keep stores the new set in place of the old one, which stays until then. When
// the store does not take it, this process still uses it: the old one is spent.
func (c *Connections) keep(ctx context.Context, x *cell, s *set, m Material, rejected bool) (*set, error) {
	fresh := prepare(x.conn.Auth, m, s.rev+1, c.o.Clock.Now(), s)
	fresh.rejected = rejected
	blob, err := c.seal(x.conn.ID, m)
	if err != nil {
		return nil, err
	}
	for try := range storeAttempts {
		err = c.o.Store.Write(ctx, func(t plane.Tx) error {
			return c.o.Store.SwapCredential(t, &plane.Credential{Connection: x.conn.ID, Scope: x.conn.Scope, Blob: blob, ExpiresAt: fresh.expires}, s.rev)
		})
		if err == nil || plane.KindOf(err) == plane.Conflict || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Duration(1<<try) * 100 * time.Millisecond)
	}
	if plane.KindOf(err) == plane.Conflict { // a person signed in or removed it meanwhile: theirs stands
		orphan := plane.Credential{Connection: x.conn.ID, Blob: blob}
		if oerr := c.o.Store.Write(ctx, func(t plane.Tx) error { return c.Owe(t, x.conn, orphan) }); oerr != nil {
			c.o.Log.Error("a set that nobody needs any more will not be revoked", "connection", x.conn.ID, "err", oerr)
		}
		return c.reread(ctx, x, s)
	}
	if err != nil {
		c.o.Log.Error("a renewed credential could not be stored; this process uses it, a restart will need a new sign-in", "connection", x.conn.ID, "err", err)
	}
	x.now.Store(fresh)
	return fresh, nil
}

// refused sorts a failed refresh: a withdrawn grant is the end of the sign-in,
// anything else is tried again later and wipes nothing.
func (c *Connections) refused(ctx context.Context, x *cell, s *set, rec plane.Credential, e *oauth.Error) error {
	if now, err := c.o.Store.Credential(ctx, x.conn.ID); err == nil && now.Rev != rec.Rev {
		fresh, err := c.opened(ctx, x.conn, now, s)
		if err == nil {
			x.now.Store(fresh)
		}
		return err
	}
	if !e.Unknown {
		if err := c.o.Store.Write(ctx, func(t plane.Tx) error { return c.o.Store.AnswerRefresh(t, x.conn.ID, rec.Rev) }); err != nil {
			c.o.Log.Error("the end of a refresh could not be stored", "connection", x.conn.ID, "err", err)
		}
		switch e.Code {
		case "invalid_grant":
			return c.fault(ctx, x.conn, plane.ReasonRevoked, e)
		case "invalid_client", "unauthorized_client":
			if err := c.o.Store.Write(ctx, func(t plane.Tx) error { return c.o.Store.ForgetClients(t, s.m.s.Server.Issuer) }); err != nil {
				c.o.Log.Error("a registration that is refused could not be forgotten", "connection", x.conn.ID, "err", err)
			}
			return c.fault(ctx, x.conn, plane.ReasonUnknownUs, e)
		}
	}
	wait := min(retryFirst<<min(x.fails, 10), retryLast)
	x.fails++
	x.retryAt = c.o.Clock.Now().Add(wait/2 + rand.N(wait/2+1))
	c.o.Log.Warn("a sign-in could not be renewed", "connection", x.conn.ID, "err", e, "cause", e.Cause, "unknown", e.Unknown, "again_in", wait)
	out := plane.Errorf(plane.Unavailable, "%s: its sign-in could not be renewed: %s", x.conn.Slug, e.Error()).Because(e)
	out.RetryAfter = wait
	if !e.Transient {
		out.Next = connectNext(x.conn) // it was refused for another reason than the grant
	}
	return out
}

// missingScopes are those of want that have does not hold.
func missingScopes(have, want string) string {
	var out []string
	held := strings.Fields(have)
	for _, s := range strings.Fields(want) {
		if !slices.Contains(held, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}
