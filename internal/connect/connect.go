// Package connect keeps connections and their credentials. It promises that
// Lend is the only way to a credential, that a lease adds it only to requests
// that the grant admits, and that everything a server sends back can be searched
// for what was lent.
package connect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Store is what connect needs of a database.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Connections(ctx context.Context) ([]plane.Connection, error)
	SaveConnection(t plane.Tx, c *plane.Connection) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Connections keeps the records.
type Connections struct {
	store  Store
	lookup func(name string) (secret.Text, bool) // pinned tokens, by variable
}

// New makes the keeper. lookup resolves the variable that a pinned connection
// names for its token.
func New(store Store, lookup func(string) (secret.Text, bool)) *Connections {
	return &Connections{store: store, lookup: lookup}
}

// Pin brings the stored records in line with the connections that config pins:
// a new one gets its immutable id, a changed one the next version, and one that
// config no longer names is turned off. It returns the pinned connections with
// id and version.
func (c *Connections) Pin(ctx context.Context, pinned []plane.Connection) ([]plane.Connection, error) {
	stored, err := c.store.Connections(ctx)
	if err != nil {
		return nil, err
	}
	type key struct {
		scope plane.Scope
		slug  string
	}
	old := map[key]plane.Connection{}
	for _, s := range stored {
		old[key{s.Scope, s.Slug}] = s
	}
	out := make([]plane.Connection, 0, len(pinned))
	var changed []plane.Connection
	for _, p := range pinned {
		k := key{p.Scope, p.Slug}
		have, known := old[k]
		delete(old, k)
		p.Digest = digest(p)
		p.ID, p.Version = have.ID, have.Version
		if !known || have.Digest != p.Digest || have.Enabled != p.Enabled {
			p.Version++
			changed = append(changed, p)
		}
		out = append(out, p)
	}
	for _, gone := range old {
		if gone.Enabled {
			gone.Enabled = false
			gone.Version++
			changed = append(changed, gone)
		}
	}
	if len(changed) == 0 {
		return out, nil
	}
	err = c.store.Write(ctx, func(t plane.Tx) error {
		for i := range changed {
			ch := &changed[i]
			if ch.ID == "" {
				ch.ID = plane.NewConnectionID(t.Now())
				for j := range out {
					if out[j].Scope == ch.Scope && out[j].Slug == ch.Slug {
						out[j].ID = ch.ID
					}
				}
			}
			if err := c.store.SaveConnection(t, ch); err != nil {
				return err
			}
			e := plane.AuditEntry{Who: "config", Action: "connection.pin", What: string(ch.ID), Decision: "allow", Digest: ch.Digest}
			if err := c.store.AddAudit(t, e); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// digest is over what a person set; the token's value is not part of it.
func digest(c plane.Connection) string {
	b, err := json.Marshal([]any{c.Label, c.Endpoint, c.Auth, c.TokenEnv, c.Agents, c.MaxBytes})
	if err != nil { // strings and numbers always marshal
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Lease is a credential on loan for the exchanges of one grant.
type Lease struct {
	grant    policy.Grant
	header   secret.Text // value of Authorization; empty for none
	redactor *Redactor
}

// Lend opens the credential that a grant is good for. It refuses the zero grant.
func (c *Connections) Lend(_ context.Context, g policy.Grant) (*Lease, error) {
	if !g.Valid() {
		return nil, plane.Errorf(plane.Forbidden, "No grant, no credential.")
	}
	conn := g.Connection()
	l := &Lease{grant: g}
	switch conn.Auth {
	case plane.AuthNone:
		return l, nil
	case plane.AuthBearer:
		token, ok := c.lookup(conn.TokenEnv)
		if !ok || token.Empty() {
			return nil, plane.Errorf(plane.Unavailable, "%s: the variable %s, which holds its token, is not set.", conn.Slug, conn.TokenEnv).
				Then("Set " + conn.TokenEnv + " and start Patchbay again.")
		}
		var header string
		token.Expose(func(s string) {
			s = strings.TrimSpace(s) // as a header's value is
			header = "Bearer " + s
			l.redactor = NewRedactor(s)
		})
		l.header = secret.New(header)
		return l, nil
	}
	return nil, plane.Errorf(plane.Unavailable, "%s: its kind of sign-in is not known.", conn.Slug)
}

// Inject adds the credential to a request that the grant admits, and to no
// other.
func (l *Lease) Inject(req *http.Request) error {
	if !l.grant.Admits(req.URL.Scheme, req.URL.Host) || req.Host != "" && req.Host != req.URL.Host {
		return plane.Errorf(plane.Forbidden, "The request goes elsewhere than was granted.")
	}
	if l.header.Empty() {
		return nil
	}
	l.header.Expose(func(s string) { req.Header["Authorization"] = []string{s} })
	return nil
}

// Redactor finds what was lent in what came back; nil finds nothing.
func (l *Lease) Redactor() *Redactor { return l.redactor }

// Rejected is told that the server refused the credential. A pinned token has
// nothing to renew.
func (l *Lease) Rejected(int) {}

// Close ends the loan.
func (l *Lease) Close() {}
