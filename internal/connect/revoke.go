package connect

import (
	"context"
	"encoding/json"
	"time"

	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// owed is what is sealed of a token whose revocation is owed.
type owed struct {
	Lane     string `json:"lane"`
	Endpoint string `json:"endpoint"`
	Token    string `json:"token"`
	Hint     string `json:"hint"`
	ClientID string `json:"client_id"`
	Secret   string `json:"client_secret,omitempty"`
	Method   string `json:"method"`
}

const (
	purposeRevocation = "revocation"
	maxRevocations    = 8 // tries, over about a day
	revokeBatch       = 16
)

func bindRevocation(id string) secret.Bind {
	return secret.Bind{Purpose: purposeRevocation, Scope: "token", Record: id}
}

// Owe notes, in the transaction that takes a credential away, that its tokens
// are to be revoked at the server: the refresh token first, each by itself (field
// case F068). It does nothing where the server offers no revocation.
func (c *Connections) Owe(t plane.Tx, conn plane.Connection, rec plane.Credential) error {
	m, err := c.unseal(conn.ID, rec.Blob)
	if err != nil || m.s.Kind != "oauth" || m.s.Server == nil || m.s.Server.Revocation == "" {
		return nil // what does not open cannot be revoked either
	}
	for i, token := range []struct{ value, hint string }{{m.s.Refresh, "refresh_token"}, {m.s.Access, "access_token"}} {
		if token.value == "" {
			continue
		}
		r := plane.Revocation{ID: plane.NewRevocationID(t.Now()), DueAt: t.Now().Add(time.Duration(i) * time.Microsecond)}
		b, err := json.Marshal(owed{Lane: conn.EgressName(), Endpoint: m.s.Server.Revocation, Token: token.value, Hint: token.hint,
			ClientID: m.s.ClientID, Secret: m.s.Secret, Method: m.s.Method})
		if err != nil {
			return err
		}
		r.Blob = c.o.Ring.Seal(bindRevocation(r.ID), b)
		if err := c.o.Store.AddRevocation(t, &r); err != nil {
			return err
		}
	}
	return nil
}

// RevokeDue revokes what is owed. What a server does not take now is tried again
// later; what it refuses is given up.
func (c *Connections) RevokeDue(ctx context.Context) error {
	due, err := c.o.Store.DueRevocations(ctx, c.o.Clock.Now().Add(time.Second), revokeBatch)
	if err != nil {
		return err
	}
	for _, r := range due {
		var o owed
		b, err := c.o.Ring.Open(bindRevocation(r.ID), r.Blob)
		if err == nil {
			err = json.Unmarshal(b, &o)
		}
		if err == nil {
			err = c.o.OAuth(o.Lane).Revoke(ctx, o.Endpoint, oauth.Identity{ID: o.ClientID, Secret: secret.New(o.Secret), Method: o.Method}, secret.New(o.Token), o.Hint)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		again := err != nil && oauth.AsError(err).Transient && r.Tries+1 < maxRevocations
		werr := c.o.Store.Write(ctx, func(t plane.Tx) error {
			if again {
				return c.o.Store.PutOffRevocation(t, r.ID, r.Tries+1, t.Now().Add(time.Minute<<(2*r.Tries)))
			}
			return c.o.Store.EndRevocation(t, r.ID)
		})
		if err != nil {
			c.o.Log.Warn("a token was not revoked", "revocation", r.ID, "again", again, "err", err)
		}
		if werr != nil {
			return werr
		}
	}
	return nil
}
