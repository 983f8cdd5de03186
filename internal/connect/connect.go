// Package connect keeps connections and their credentials. It promises that
// Lend is the only way to a credential, that a lease adds it only to requests
// that the grant admits, that everything a server sends back can be searched for
// what was lent, that a refresh token is presented by one at a time across all
// replicas, and that a failed refresh wipes nothing.
package connect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// Records are what connect needs of a database for connections.
type Records interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Connections(ctx context.Context) ([]plane.Connection, error)
	ConnectionByID(ctx context.Context, id plane.ConnectionID) (plane.Connection, error)
	SaveConnection(t plane.Tx, c *plane.Connection) error
	SetConnectionState(t plane.Tx, id plane.ConnectionID, version int64, state plane.ConnectionState, reason string) error
	SetOAuthOptions(t plane.Tx, id plane.ConnectionID, o plane.OAuthOptions) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Safe is where sealed credentials rest.
type Safe interface {
	Credential(ctx context.Context, id plane.ConnectionID) (plane.Credential, error)
	PutCredential(t plane.Tx, c *plane.Credential) error
	SwapCredential(t plane.Tx, c *plane.Credential, from int64) error
	StartRefresh(t plane.Tx, id plane.ConnectionID, rev int64) error
	AnswerRefresh(t plane.Tx, id plane.ConnectionID, rev int64) error
	ForgetClients(t plane.Tx, issuer string) error
}

// Declares is what it takes to bring records in line with declarations.
type Declares interface {
	DropCredential(t plane.Tx, id plane.ConnectionID) error
	RemoveConnection(t plane.Tx, id plane.ConnectionID) error
}

// Owed are tokens whose revocation is owed.
type Owed interface {
	AddRevocation(t plane.Tx, r *plane.Revocation) error
	DueRevocations(ctx context.Context, now time.Time, limit int) ([]plane.Revocation, error)
	PutOffRevocation(t plane.Tx, id string, tries int, due time.Time) error
	EndRevocation(t plane.Tx, id string) error
}

// Store is all of them.
type Store interface {
	Records
	Safe
	Declares
	Owed
}

// Lock is a lock across replicas while it is held.
type Lock interface {
	Check(ctx context.Context) error // still held?
	Release()
}

// Options of Connections.
type Options struct {
	Store  Store
	Vault  vault.Vault // of secrets under a name
	Apps   Apps        // that secrets are minted by; nil for none
	Lock   func(ctx context.Context, name string) (Lock, error)
	Ring   *secret.Ring
	Lookup func(name string) (secret.Text, bool) // pinned tokens, by variable
	OAuth  func(egressName string) *oauth.Client // the token endpoint's side, by the connection's own lane
	Clock  plane.Clock
	Log    *slog.Logger
	// Changed is told when a connection was found to be in another state.
	Changed func()
}

// Connections keeps the records.
type Connections struct {
	o Options

	mu      sync.Mutex
	cells   map[plane.ConnectionID]*cell
	pinned  map[plane.ConnectionID]pinned
	turns   map[plane.ConnectionID]chan struct{} // held by the one who refreshes
	slots   map[string]chan struct{}             // refreshes at one authorization server
	brought map[string]string                    // connections that declarations asked for here, by full name: their digests
	held    map[string]heldSecret                // teams' secrets, opened
	heldGen int64                                // raised when one may have changed
	reads   singleflight.Group                   // of those that are held
	work    sync.WaitGroup
	stop    context.Context
	end     context.CancelFunc
}

// New makes the keeper. Close it.
func New(o Options) *Connections {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Connections{o: o, cells: map[plane.ConnectionID]*cell{}, pinned: map[plane.ConnectionID]pinned{}, turns: map[plane.ConnectionID]chan struct{}{}, slots: map[string]chan struct{}{}}
	c.stop, c.end = context.WithCancel(context.Background())
	return c
}

// Close waits for refreshes that are under way: a token that was presented must
// be stored.
func (c *Connections) Close() {
	c.end()
	c.work.Wait()
}

// Pin brings the stored records in line with the connections that config pins:
// a new one gets its immutable id, a changed one the next version, and one that
// config no longer names is turned off. It returns the pinned connections with
// id and version.
func (c *Connections) Pin(ctx context.Context, pinned []plane.Connection) ([]plane.Connection, error) {
	for try := 0; ; try++ {
		out, err := c.pin(ctx, pinned)
		if plane.KindOf(err) != plane.Conflict || try == pinTries {
			return out, err
		}
		// Another replica pinned the same a moment ago.
	}
}

// pinTries bounds how often replicas that start together give way.
const pinTries = 8

func (c *Connections) pin(ctx context.Context, pinned []plane.Connection) ([]plane.Connection, error) {
	stored, err := c.o.Store.Connections(ctx)
	if err != nil {
		return nil, err
	}
	type key struct {
		scope plane.Scope
		slug  string
	}
	old := map[key]plane.Connection{}
	for _, s := range stored {
		if s.Origin == plane.Pinned {
			old[key{s.Scope, s.Slug}] = s
		}
	}
	out := make([]plane.Connection, 0, len(pinned))
	var changed []plane.Connection
	for _, p := range pinned {
		k := key{p.Scope, p.Slug}
		have, known := old[k]
		delete(old, k)
		p.Digest = digest(p)
		p.ID, p.Version, p.Origin, p.CreatedBy, p.Prefs = have.ID, have.Version, plane.Pinned, "config", have.Prefs
		if p.State, p.Reason = have.State, have.Reason; p.Auth != plane.AuthOAuth {
			p.State, p.Reason = plane.StateConnected, ""
		} else if !known || have.Endpoint != p.Endpoint {
			p.State, p.Reason = plane.StateAwaiting, ""
		}
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
	err = c.o.Store.Write(ctx, func(t plane.Tx) error {
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
			if err := c.o.Store.SaveConnection(t, ch); err != nil {
				return err
			}
			e := plane.AuditEntry{Who: "config", Action: "connection.pin", What: string(ch.ID), Decision: "allow", Digest: ch.Digest}
			if err := c.o.Store.AddAudit(t, e); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// digest is over what a person set; the token's value is not part of it.
func digest(c plane.Connection) string {
	b, err := json.Marshal([]any{c.Label, c.Endpoint, c.Auth, c.TokenEnv, c.Agents, c.MaxBytes, c.OAuth.ClientID, c.OAuth.ClientAuth, c.Fixed})
	if err != nil { // strings and numbers always marshal
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
