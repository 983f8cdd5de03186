package consent

import (
	"context"

	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Change is what a person changes of a connection; nil leaves a part as it is.
// Version, when it is not 0, is what they looked at: a connection that changed
// since is not changed over.
type Change struct {
	Version  int64
	Endpoint *string
	Label    *string
	Agents   *[]string
	Enabled  *bool
	Token    secret.Text // replaces a pasted credential; empty keeps it
	Prefs    func(p *plane.Preferences)
	Reviews  []plane.Review // of tools as they are listed now; others keep theirs
	Accept   []Accepted     // definitions to let in; "*" for all that are held
	Block    []string       // tools to keep out, whatever their definition
}

// Edit changes a connection. Its id, credential, preferences and history stay,
// but for what is changed.
func (s *Service) Edit(ctx context.Context, who plane.Principal, id plane.ConnectionID, ch Change) (plane.Connection, error) {
	old, err := s.o.Store.ConnectionByID(ctx, id)
	if err != nil {
		return old, err
	}
	if d := s.o.Policy().MayWrite(who, old.Scope); d != nil {
		return old, d.Err()
	}
	if ch.Version != 0 && ch.Version != old.Version {
		return old, plane.Errorf(plane.Conflict, "%s was changed since you looked: it is at version %d, not %d.", old.Slug, old.Version, ch.Version).At("version").
			Then("patchbay mcp show " + old.Slug)
	}
	next, err := s.edited(who, old, ch)
	if err != nil {
		return old, err
	}
	reviews, err := s.reviewed(ctx, who, old, ch.Reviews)
	if err != nil {
		return old, err
	}
	pins, err := s.drifted(ctx, who, old, ch)
	if err != nil {
		return old, err
	}
	next.Version++
	write := func(t plane.Tx) error {
		if err := s.o.Store.SaveConnection(t, &next); err != nil {
			return err
		}
		if next.Endpoint != old.Endpoint { // who holds a link was shown the old address
			if err := s.o.Store.CancelTickets(t, id); err != nil {
				return err
			}
		}
		if !ch.Token.Empty() {
			if err := s.o.Connections.Put(t, next, connect.Pasted(ch.Token)); err != nil {
				return err
			}
		}
		for i := range reviews {
			r := &reviews[i]
			if err := s.o.Store.PutReview(t, r); err != nil {
				return err
			}
			if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "review." + string(r.Class), What: string(id) + " " + r.Name, Decision: "allow", Digest: r.Fingerprint}); err != nil {
				return err
			}
		}
		for i := range pins {
			p := &pins[i]
			if err := s.o.Store.PutPin(t, p); err != nil {
				return err
			}
			action := "definition.accepted"
			if p.BlockedBy != "" {
				action = "definition.blocked"
			}
			if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: action, What: string(id) + " " + p.Name, Decision: "allow", Digest: p.Fingerprint}); err != nil {
				return err
			}
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.edit", What: string(id), Decision: "allow"})
	}
	asksAnew := next.Endpoint != old.Endpoint || !ch.Token.Empty()
	if asksAnew {
		err = s.o.Store.Write(ctx, write)
	} else {
		err = s.o.Change(ctx, next, old.Version, catalog.Saying{Pins: pins, Reviews: reviews}, write)
	}
	if err != nil {
		return old, err
	}
	if asksAnew || next.Enabled != old.Enabled {
		s.o.Connections.Forget(id)
		s.o.Upstream.Drop(id)
	}
	return next, s.o.Reload(ctx)
}

// edited is the connection with the changes, held to every rule.
func (s *Service) edited(who plane.Principal, c plane.Connection, ch Change) (plane.Connection, error) {
	if c.Origin != plane.Added && (ch.Endpoint != nil || ch.Label != nil || ch.Agents != nil || ch.Enabled != nil || !ch.Token.Empty()) {
		return c, pinned(c)
	}
	if ch.Endpoint != nil && *ch.Endpoint != c.Endpoint {
		if c.Auth == plane.AuthOAuth {
			return c, plane.Errorf(plane.Conflict, "%s is signed in for %s; another address needs a sign-in of its own.", c.Slug, c.Endpoint).At("url").
				Then("patchbay mcp add " + c.Slug + "-new " + *ch.Endpoint)
		}
		if c.Endpoint = *ch.Endpoint; len(c.Endpoint) > maxAddress {
			return c, plane.Errorf(plane.InvalidInput, "An address has at most %d characters.", maxAddress).At("url")
		}
		if p := plane.Placeholder(c.Endpoint); p != "" {
			return c, plane.Errorf(plane.InvalidInput, "%s in the address stands for a value of yours; write the value.", bounded(p)).At("url")
		}
		if err := s.o.CheckURL(c.EgressName(), c.Endpoint); err != nil {
			return c, err
		}
	}
	if !ch.Token.Empty() {
		if err := s.replaced(&c, ch.Token); err != nil {
			return c, err
		}
	}
	if ch.Label != nil {
		c.Label = *ch.Label
		if err := goodLabel(c.Label); err != nil {
			return c, err
		}
	}
	if ch.Agents != nil {
		if c.Agents = *ch.Agents; len(c.Agents) > maxAgents {
			return c, plane.Errorf(plane.InvalidInput, "A connection names at most %d agents.", maxAgents).At("agents")
		}
		if _, err := s.o.Policy().Candidate(who, c); err != nil {
			return c, err
		}
	}
	if ch.Enabled != nil {
		c.Enabled = *ch.Enabled
	}
	if ch.Prefs != nil {
		p := c.Prefs.Clone()
		ch.Prefs(&p)
		if err := p.Validate(); err != nil {
			return c, err
		}
		c.Prefs = p
	}
	return c, nil
}

// replaced gives a connection another pasted credential.
func (s *Service) replaced(c *plane.Connection, token secret.Text) error {
	if c.Auth == plane.AuthOAuth {
		return plane.Errorf(plane.Conflict, "%s signs in with OAuth; it takes no token.", c.Slug).At("token").Then("patchbay mcp connect " + c.Slug)
	}
	ok := false
	token.Expose(func(v string) { ok = goodToken(v) })
	if !ok {
		return plane.Errorf(plane.InvalidInput, "%s", BadToken.Sentence()).At("token")
	}
	if c.Auth == plane.AuthNone {
		c.Auth = plane.AuthBearer
	}
	c.State, c.Reason = plane.StateConnected, ""
	return nil
}
