package consent

import (
	"context"
	"fmt"

	"patchbay/internal/connect"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Account is a connection of one agent as an API client saves it.
type Account struct {
	Agent    string
	Label    string
	Endpoint string
	Token    secret.Text // a bearer token; empty for a server that asks for none
	New      bool        // an account of its own; else the one that is known by its address
}

// Save saves an account without asking its server: what the server says of it is
// the catalog's health. Without New it is the account known by that address, whose
// credential is replaced and whose preferences and turn-off stay, or a first one.
func (s *Service) Save(ctx context.Context, who plane.Principal, a Account) (plane.Connection, error) {
	if a.Label == "" {
		return plane.Connection{}, plane.Errorf(plane.InvalidInput, "Name the account.").At("name")
	}
	for try := 0; ; try++ {
		conn, err := s.save(ctx, who, a)
		if plane.KindOf(err) != plane.Conflict || a.New || try == 1 {
			return conn, err
		}
		// Somebody took the address, or changed its account, a moment ago.
		if err := s.o.Reload(ctx); err != nil {
			return conn, err
		}
	}
}

func (s *Service) save(ctx context.Context, who plane.Principal, a Account) (plane.Connection, error) {
	scope := plane.Scope{Kind: plane.ScopeAgent, Name: a.Agent}
	if d := s.o.Policy().MayWrite(who, scope); d != nil {
		return plane.Connection{}, d.Err() // before anything is looked for
	}
	if slot := s.slot(scope, a.Endpoint); slot != nil && !a.New {
		if slot.Auth == plane.AuthOAuth {
			return *slot, plane.Errorf(plane.Conflict, "The account at %s signs in with OAuth.", bounded(a.Endpoint)).At("endpoint").
				Then("POST mcp/oauth/start signs it in again; new_account: true adds another.")
		}
		return s.Edit(ctx, who, slot.ID, Change{Version: slot.Version, Label: &a.Label, Token: a.Token})
	}
	auth := plane.AuthNone
	if !a.Token.Empty() {
		auth = plane.AuthBearer
	}
	r := Request{Label: a.Label, URL: a.Endpoint, Scope: scope, Auth: string(auth), Secret: a.Token}
	conn, err := s.named(who, r)
	if err != nil {
		return conn, err
	}
	now := s.o.Clock.Now()
	conn.ID, conn.Version, conn.CreatedAt, conn.State, conn.Slot = plane.NewConnectionID(now), 1, now, plane.StateConnected, !a.New
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.insert(t, who, &conn); err != nil || a.Token.Empty() {
			return err
		}
		return s.o.Connections.Put(t, conn, connect.Pasted(a.Token))
	})
	if err != nil {
		return conn, err
	}
	return conn, s.o.Reload(ctx)
}

// slot is the scope's account that is known by an address, or nil.
func (s *Service) slot(scope plane.Scope, endpoint string) *plane.Connection {
	for _, c := range s.o.Policy().All() {
		if c.Slot && c.Scope == scope && c.Endpoint == endpoint {
			return &c
		}
	}
	return nil
}

// named is the request as a connection whose name is made of its label, with a
// number where that is taken.
func (s *Service) named(who plane.Principal, r Request) (plane.Connection, error) {
	base := plane.SlugOf(r.Label)
	if base == "" {
		base = "server"
	}
	r.Name = base
	for n := 2; ; n++ {
		conn, _, err := s.candidate(who, r)
		if plane.KindOf(err) != plane.Conflict || n == maxNumber {
			return conn, err
		}
		tail := fmt.Sprintf("-%d", n)
		r.Name = base[:min(len(base), plane.MaxSlug-len(tail))] + tail
	}
}

// maxNumber bounds how many accounts have one label.
const maxNumber = 300

// StartAccount takes an account to its sign-in: the one known by the address, or a
// new one.
func (s *Service) StartAccount(ctx context.Context, who plane.Principal, r Request, own bool, back string) (Leaving, error) {
	if d := s.o.Policy().MayWrite(who, r.Scope); d != nil {
		return Leaving{}, d.Err()
	}
	if slot := s.slot(r.Scope, r.URL); slot != nil && !own {
		return s.StartFor(ctx, who, slot.ID, "", back)
	}
	r.Auth = string(plane.AuthOAuth)
	conn, err := s.named(who, r)
	if err != nil {
		return Leaving{}, err
	}
	r.Name, r.Slot = conn.Slug, !own
	return s.StartNew(ctx, who, r, back)
}
