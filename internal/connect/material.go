package connect

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Material is an opened credential: what a person pasted, or a token set with
// what is needed to renew it. Its fields are nobody else's.
type Material struct{ s sealedSet }

// sealedSet is what is sealed. It never leaves this package in plaintext.
type sealedSet struct {
	Kind     string        `json:"kind"` // pasted or oauth
	Pasted   string        `json:"pasted,omitempty"`
	Access   string        `json:"access,omitempty"`
	Refresh  string        `json:"refresh,omitempty"`
	Expires  int64         `json:"expires,omitempty"` // UTC microseconds
	Obtained int64         `json:"obtained,omitempty"`
	Scope    string        `json:"scope,omitempty"`
	ClientID string        `json:"client_id,omitempty"`
	Secret   string        `json:"client_secret,omitempty"`
	Method   string        `json:"method,omitempty"`
	Server   *oauth.Server `json:"server,omitempty"`
}

// Pasted is a credential that a person gave by hand.
func Pasted(value secret.Text) Material {
	m := Material{sealedSet{Kind: "pasted"}}
	value.Expose(func(s string) { m.s.Pasted = strings.TrimSpace(s) })
	return m
}

// SignedIn is a fresh token set.
func SignedIn(t oauth.Tokens, id oauth.Identity, srv *oauth.Server, now time.Time) Material {
	m := Material{sealedSet{Kind: "oauth", Server: srv, ClientID: id.ID, Obtained: plane.Micros(now)}}
	id.Secret.Expose(func(s string) { m.s.Secret = s })
	m.take(t, id.Method)
	return m
}

func (m *Material) take(t oauth.Tokens, method string) {
	t.Access.Expose(func(s string) { m.s.Access = s })
	t.Refresh.Expose(func(s string) { m.s.Refresh = s })
	m.s.Expires, m.s.Scope, m.s.Method = plane.Micros(t.ExpiresAt), t.Scope, t.Method
	if m.s.Method == "" {
		m.s.Method = method
	}
}

func (m *Material) identity() oauth.Identity {
	return oauth.Identity{ID: m.s.ClientID, Secret: secret.New(m.s.Secret), Method: m.s.Method}
}

func (m *Material) tokens() oauth.Tokens {
	return oauth.Tokens{Access: secret.New(m.s.Access), Refresh: secret.New(m.s.Refresh), ExpiresAt: plane.FromMicros(m.s.Expires), Scope: m.s.Scope, Method: m.s.Method}
}

// Scope is what was granted, for people.
func (m Material) Scope() string { return m.s.Scope }

// purposeCredential binds a blob to credentials.
const purposeCredential = "credential"

func bindCredential(id plane.ConnectionID) secret.Bind {
	return secret.Bind{Purpose: purposeCredential, Scope: "connection", Record: string(id)}
}

func (c *Connections) seal(id plane.ConnectionID, m Material) ([]byte, error) {
	b, err := json.Marshal(m.s)
	if err != nil {
		return nil, err
	}
	return c.o.Ring.Seal(bindCredential(id), b), nil
}

func (c *Connections) unseal(id plane.ConnectionID, blob []byte) (Material, error) {
	var m Material
	b, err := c.o.Ring.Open(bindCredential(id), blob)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m.s)
}

// Put seals a credential and stores it, in the transaction that makes the
// connection connected.
func (c *Connections) Put(t plane.Tx, conn plane.Connection, m Material) error {
	blob, err := c.seal(conn.ID, m)
	if err != nil {
		return err
	}
	return c.o.Store.PutCredential(t, &plane.Credential{Connection: conn.ID, Scope: conn.Scope, Blob: blob, ExpiresAt: plane.FromMicros(m.s.Expires)})
}

// set is a credential ready to be injected. It is immutable.
type set struct {
	rev      int64
	header   string
	value    secret.Text
	redactor *Redactor
	expires  time.Time // zero: unknown, or never
	early    time.Time // from when a refresh ahead of the expiry is due
	renewed  time.Time // when this process got it
	rejected bool      // it was got because the one before was rejected
	worked   atomic.Bool
	m        Material
}

// prepare builds what goes into a request. older is what it replaces, whose
// token an answer under way may still hold.
func prepare(auth plane.Auth, m Material, rev int64, now time.Time, older *set) *set {
	s := &set{rev: rev, m: m, header: auth.Header(), renewed: now}
	var secrets []string
	switch {
	case m.s.Kind == "oauth":
		s.value = secret.New("Bearer " + m.s.Access)
		secrets = append(secrets, m.s.Access, m.s.Refresh, m.s.Secret)
		if older != nil {
			secrets = append(secrets, older.m.s.Access)
		}
		if s.expires = plane.FromMicros(m.s.Expires); !s.expires.IsZero() {
			life := s.expires.Sub(plane.FromMicros(m.s.Obtained))
			ahead := max(0, min(refreshAhead, life/5))
			// All tokens of one deploy would be renewed in one moment (F074).
			s.early = s.expires.Add(-ahead/2 - rand.N(ahead/2+1))
		}
	default:
		secrets = append(secrets, m.s.Pasted)
		if user, ok := auth.BasicUser(); ok {
			pair := user + ":" + m.s.Pasted
			s.value = secret.New("Basic " + base64.StdEncoding.EncodeToString([]byte(pair)))
			secrets = append(secrets, pair)
		} else if auth == plane.AuthBearer {
			s.value = secret.New("Bearer " + m.s.Pasted)
		} else {
			s.value = secret.New(m.s.Pasted)
		}
	}
	s.redactor = NewRedactor(secrets...)
	return s
}

const refreshAhead = time.Minute

func (s *set) expired(now time.Time) bool { return !s.expires.IsZero() && !now.Before(s.expires) }
func (s *set) due(now time.Time) bool     { return !s.early.IsZero() && !now.Before(s.early) }
func (s *set) renewable() bool            { return s.m.s.Refresh != "" }

// Granted is the scope that the stored credential was granted, for people and
// for the next request.
func (c *Connections) Granted(ctx context.Context, conn plane.Connection) (string, error) {
	rec, err := c.o.Store.Credential(ctx, conn.ID)
	if err != nil {
		return "", err
	}
	m, err := c.unseal(conn.ID, rec.Blob)
	return m.s.Scope, err
}
