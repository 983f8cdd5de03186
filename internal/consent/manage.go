package consent

import (
	"context"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Connect makes a new link for a connection that is there. One that was believed
// open is asked again what it wants.
func (s *Service) Connect(ctx context.Context, who plane.Principal, id plane.ConnectionID) (Added, error) {
	conn, err := s.mine(ctx, who, id)
	if err != nil {
		return Added{}, err
	}
	out := Added{}
	if conn.Auth == plane.AuthNone {
		g, err := s.o.Policy().Retry(who, conn)
		if err != nil {
			return Added{}, err
		}
		found, _, err := s.detect(ctx, g, conn)
		if err != nil {
			return Added{}, err
		}
		if found == plane.AuthNone {
			return Added{}, plane.Errorf(plane.Conflict, "%s asks for no sign-in; there is nothing to connect.", conn.Slug)
		}
		conn.Auth, out.Detected = found, found
		conn.State, conn.Reason = plane.StateAwaiting, ""
		conn.Version++
	}
	k, link, err := s.mint(conn, who)
	if err != nil {
		return Added{}, err
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if out.Detected != "" {
			if err := s.o.Store.SaveConnection(t, &conn); err != nil {
				return err
			}
		}
		if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.link", What: string(conn.ID), Decision: "allow"}); err != nil {
			return err
		}
		return s.o.Store.AddTicket(t, &k)
	})
	if err != nil {
		return Added{}, err
	}
	out.Connection, out.Link = conn, &link
	return out, s.o.Reload(ctx)
}

// mine reads a connection that the caller may change. A pinned one takes its
// credential from config, but for OAuth, where there is only signing in.
func (s *Service) mine(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
	conn, err := s.o.Store.ConnectionByID(ctx, id)
	if err != nil {
		return conn, err
	}
	if d := s.o.Policy().MayWrite(who, conn.Scope); d != nil {
		return conn, d.Err()
	}
	if conn.Origin == plane.Pinned && conn.Auth != plane.AuthOAuth {
		e := plane.Errorf(plane.InvalidInput, "%s is pinned in config and takes its credential from there.", conn.Slug).At("name").
			Then("Change token_env of " + conn.Slug + " in patchbay.yaml.")
		if conn.Auth == plane.AuthNone {
			e.Message, e.Next = conn.Slug+" is pinned in config and asks for no sign-in.", "patchbay mcp test "+conn.Slug
		}
		return conn, e
	}
	return conn, nil
}

// StartFor makes a link and takes it to the sign-in in one step, for a caller who
// has a browser at hand. A redirect of their own must be on their own machine.
func (s *Service) StartFor(ctx context.Context, who plane.Principal, id plane.ConnectionID, redirect, back string) (Leaving, error) {
	conn, err := s.mine(ctx, who, id)
	if err != nil {
		return Leaving{}, err
	}
	if conn.Auth != plane.AuthOAuth {
		return Leaving{}, plane.Errorf(plane.InvalidInput, "%s signs in by %s, not with OAuth.", conn.Slug, kindWords(conn.Auth)).At("name").Then("patchbay mcp connect " + conn.Slug)
	}
	if !who.HasUserScope() {
		return Leaving{}, plane.Errorf(plane.Forbidden, "A token of nobody cannot sign in; a person opens a link.").Then("patchbay mcp connect " + conn.Slug)
	}
	k, link, err := s.mint(conn, who)
	if err != nil {
		return Leaving{}, err
	}
	k.OpenedBy, k.State, k.Return = who.ID, plane.TicketOpened, back
	if err := s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.AddTicket(t, &k) }); err != nil {
		return Leaving{}, err
	}
	if redirect == "" {
		base, err := s.publicURL()
		if err != nil {
			return Leaving{}, err
		}
		redirect = base + CallbackPath
	}
	l, err := s.start(ctx, link.nonce, who, redirect)
	return l, asError(err)
}

// StartNew adds an account and takes it to the sign-in in one step. When that
// cannot be begun, nothing is left of it.
func (s *Service) StartNew(ctx context.Context, who plane.Principal, r Request, back string) (Leaving, error) {
	r.Auth = string(plane.AuthOAuth)
	a, err := s.Add(ctx, who, r)
	if err != nil {
		return Leaving{}, err
	}
	l, err := s.StartFor(ctx, who, a.Connection.ID, "", back)
	if err != nil {
		if _, rerr := s.Remove(context.WithoutCancel(ctx), who, a.Connection.ID); rerr != nil {
			s.o.Log.Error("a connection whose sign-in could not be begun stays", "connection", a.Connection.ID, "err", rerr)
		}
	}
	return l, err
}

// FinishFor is Finish for a caller who took the redirect on their own machine.
func (s *Service) FinishFor(ctx context.Context, who plane.Principal, cb Callback) (Done, error) {
	d, again, err := s.Finish(ctx, who, cb)
	if err == nil && again != nil {
		return Done{}, plane.Errorf(plane.Conflict, "The server refuses the scope offline_access; it is left out from now on.").Then("Run the same command again.")
	}
	return d, asError(err)
}

// Logout takes a connection's credential away and has its tokens revoked; the
// connection and its preferences stay.
func (s *Service) Logout(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
	conn, err := s.mine(ctx, who, id)
	if err != nil {
		return conn, err
	}
	if conn.Auth == plane.AuthNone || conn.State == plane.StateAwaiting {
		return conn, plane.Errorf(plane.Conflict, "%s has no credential to take away.", conn.Slug)
	}
	rec, err := s.held(ctx, conn.ID)
	if err != nil {
		return conn, err
	}
	conn.Version++
	conn.State, conn.Reason = plane.StateAwaiting, ""
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.takeAway(t, conn, rec); err != nil {
			return err
		}
		if err := s.o.Store.SaveConnection(t, &conn); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.logout", What: string(conn.ID), Decision: "allow"})
	})
	if err != nil {
		return conn, err
	}
	return conn, s.gone(ctx, conn)
}

// held is the stored credential of a connection; its blob is empty when there is
// none.
func (s *Service) held(ctx context.Context, id plane.ConnectionID) (plane.Credential, error) {
	rec, err := s.o.Store.Credential(ctx, id)
	if plane.KindOf(err) == plane.NotFound {
		return plane.Credential{}, nil
	}
	return rec, err
}

func (s *Service) takeAway(t plane.Tx, conn plane.Connection, rec plane.Credential) error {
	if len(rec.Blob) == 0 {
		return nil
	}
	if err := s.o.Connections.Owe(t, conn, rec); err != nil {
		return err
	}
	return s.o.Store.DropCredential(t, conn.ID)
}

// gone ends what lived of a connection, and revokes.
func (s *Service) gone(ctx context.Context, conn plane.Connection) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTime)
	defer cancel()
	s.o.Connections.Forget(conn.ID)
	s.o.Upstream.Drop(conn.ID)
	err := s.o.Reload(ctx)
	if rerr := s.o.Connections.RevokeDue(ctx); rerr != nil {
		s.o.Log.Warn("tokens could not be revoked now; it is tried again", "connection", conn.ID, "err", rerr)
	}
	return err
}

const revokeTime = 20 * time.Second

// Remove takes a connection away: its links, its credential, its catalog. Its
// calls stay on record.
func (s *Service) Remove(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
	conn, err := s.o.Store.ConnectionByID(ctx, id)
	if err != nil {
		return conn, err
	}
	if d := s.o.Policy().MayWrite(who, conn.Scope); d != nil {
		return conn, d.Err()
	}
	if conn.Origin != plane.Added {
		return conn, pinned(conn)
	}
	open, err := s.unsettled(ctx, conn.ID)
	if err != nil {
		return conn, err
	}
	for tool, call := range open {
		return conn, settleFirst(conn.Slug+"/"+tool, call)
	}
	rec, err := s.held(ctx, conn.ID)
	if err != nil {
		return conn, err
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.takeAway(t, conn, rec); err != nil {
			return err
		}
		if err := s.o.Store.RemoveConnection(t, conn.ID); err != nil {
			return err
		}
		if err := s.o.Store.DropOAuthClient(t, registeredFor(conn.ID), "-"); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.remove", What: string(conn.ID), Decision: "allow"})
	})
	if err != nil {
		return conn, err
	}
	return conn, s.gone(ctx, conn)
}

func pinned(conn plane.Connection) error {
	if conn.Origin == plane.OfDeclaration {
		return plane.Errorf(plane.Conflict, "%s stands there because it is declared (%s); no command changes it.", conn.Slug, conn.Declared.Layer).At("name").
			Then("Change or forget the declaration: patchbay registry show " + conn.Slug + ", patchbay proposals list")
	}
	return plane.Errorf(plane.Conflict, "%s is pinned in patchbay.yaml; no command changes it.", conn.Slug).At("name").
		Then("Take it out of patchbay.yaml.")
}

// Rename gives a connection another name, another label, or both.
func (s *Service) Rename(ctx context.Context, who plane.Principal, id plane.ConnectionID, name, label string) (plane.Connection, error) {
	conn, err := s.o.Store.ConnectionByID(ctx, id)
	if err != nil {
		return conn, err
	}
	if conn.Origin != plane.Added {
		return conn, pinned(conn)
	}
	if name != "" {
		conn.Slug = name
	}
	if label != "" {
		conn.Label = label
	}
	r := Request{Name: conn.Slug, URL: conn.Endpoint, Label: conn.Label}
	if _, _, err := s.renamed(who, conn, r); err != nil {
		return conn, err
	}
	conn.Version++
	err = s.o.Change(ctx, conn, conn.Version-1, catalog.Saying{}, func(t plane.Tx) error {
		if err := s.o.Store.SaveConnection(t, &conn); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.rename", What: string(conn.ID), Decision: "allow"})
	})
	if err != nil {
		return conn, err
	}
	s.o.Upstream.Drop(conn.ID)
	return conn, s.o.Reload(ctx)
}

func (s *Service) renamed(who plane.Principal, conn plane.Connection, r Request) (plane.Connection, policy.Grant, error) {
	if !plane.ValidSlug(r.Name) {
		return conn, policy.Grant{}, plane.Errorf(plane.InvalidInput, "A name has a-z, 0-9 and -, at most %d characters.", plane.MaxSlug).At("name")
	}
	if err := goodLabel(r.Label); err != nil {
		return conn, policy.Grant{}, err
	}
	g, err := s.o.Policy().Candidate(who, conn)
	if err == nil {
		err = s.o.CheckURL(conn.EgressName(), conn.Endpoint) // an exception of egress.allow belongs to the old name
	}
	return conn, g, err
}

// Ended is how a link ended.
type Ended struct {
	State   plane.TicketState // completed, cancelled, or "" for expired
	Outcome plane.TicketOutcome
	Silent  bool // a newer link took its place
}

// PollEvery is how often Await looks.
const PollEvery = 3 * time.Second

// Await waits until a link is used, cancelled or over.
func (s *Service) Await(ctx context.Context, hash string) (Ended, error) {
	tick := time.NewTicker(PollEvery)
	defer tick.Stop()
	for {
		k, err := s.o.Store.Ticket(ctx, hash)
		switch {
		case plane.KindOf(err) == plane.NotFound:
			return Ended{State: plane.TicketCancelled, Silent: true}, nil
		case err != nil:
			return Ended{}, err
		case k.State == plane.TicketCompleted:
			return Ended{State: k.State, Outcome: k.Outcome}, nil
		case k.State == plane.TicketCancelled:
			return Ended{State: k.State, Silent: true}, nil
		case !s.o.Clock.Now().Before(k.ExpiresAt):
			conn, err := s.o.Store.ConnectionByID(ctx, k.Connection)
			return Ended{Silent: err == nil && conn.State == plane.StateConnected && conn.Version > k.Version}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Ended{}, ctx.Err()
		}
	}
}

// Sweep deletes tickets a day after their end.
func (s *Service) Sweep(ctx context.Context) error {
	before := s.o.Clock.Now().Add(-24 * time.Hour)
	return s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.SweepTickets(t, before) })
}
