// Package authn tells who is calling: the socket's owner, an API or agent token, an MCP
// client's access token, a browser signed in by an issuer (OpenID Connect), by a Cloudflare
// Access assertion, or, on a loopback install with nothing configured, by the link that
// serve printed. It promises that tokens and sessions are stored hashed, that a client's
// token opens one path, that what was revoked is refused within a second, that an email
// counts only when the issuer says it is verified, and that whoever is not known, or was shut
// out, is nobody.
package authn

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Store is where people, sessions and tokens rest.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	WriteBehind(fn func(plane.Tx) error) error
	People
	Tokens
}

// People are persons and their browsers.
type People interface {
	Identify(t plane.Tx, subject, email, name string) (plane.Person, error)
	Person(ctx context.Context, id string) (plane.Person, error)
	AddSession(t plane.Tx, w *plane.WebSession, before time.Time) error
	Session(ctx context.Context, hash string) (plane.WebSession, error)
	SeeSession(t plane.Tx, hash string) error
	EndSession(t plane.Tx, hash string) error
	People(ctx context.Context) ([]plane.Person, error)
	RevokePerson(t plane.Tx, id string, out bool) error
}

// Tokens are API and agent tokens.
type Tokens interface {
	AddToken(t plane.Tx, k *plane.Token) error
	TokenByHash(ctx context.Context, hash string) (plane.Token, error)
	Tokens(ctx context.Context) ([]plane.Token, error)
	UseToken(t plane.Tx, id string) error
	RevokeToken(t plane.Tx, id string) error
	AccessByHash(ctx context.Context, hash string) (plane.Token, error) // a client's
	UseAuthorization(t plane.Tx, id string) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Options of an Authenticator.
type Options struct {
	Store  Store
	Clock  plane.Clock
	Log    *slog.Logger
	OIDC   *OIDC       // nil when not configured
	Access *Access     // nil when not configured
	Local  bool        // loopback with nothing configured: the printed link signs in
	Secure func() bool // the address that browsers use is https

	// Fresh reports that whatever was revoked anywhere up to a second ago is known here,
	// Forget having been called for it.
	Fresh func() bool
}

// Authenticator tells callers apart.
type Authenticator struct {
	o    Options
	link *once

	mu   sync.Mutex
	seen map[string]time.Time // last note of a token or session, by hash

	known knownTokens
}

// New makes an Authenticator.
func New(o Options) *Authenticator {
	return &Authenticator{o: o, link: &once{}, seen: map[string]time.Time{}}
}

// idle is how long an unused browser stays signed in, and seenEvery how often
// its use is noted.
const (
	cookieLife = 30 * 24 * time.Hour // the server decides when it ends

	idle      = 12 * time.Hour
	seenEvery = time.Minute
	maxSeen   = 10_000
)

// ErrNobody is the refusal of a caller who showed nothing.
func (a *Authenticator) nobody() error {
	e := plane.Errorf(plane.Unauthenticated, "Nobody is signed in.")
	switch {
	case a.o.OIDC != nil:
		return e.Then("Sign in at " + SignInPath + ", or send an API token.")
	case a.o.Local:
		return e.Then("Open the link that patchbay serve printed, use the patchbay command on the machine that serves, or send an API token.")
	}
	if a.o.Access != nil {
		return e.Then("Come through Cloudflare Access, or send an API token.")
	}
	return e.Then("Send an API token.")
}

// Principal tells who made a request. A credential that is shown and does not
// hold is refused; it never falls back to another one.
func (a *Authenticator) Principal(r *http.Request) (plane.Principal, error) {
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, token, _ := strings.Cut(h, " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "The Authorization header holds no Bearer token.").Then("Authorization: Bearer pbt_…")
		}
		p, path, err := a.token(r.Context(), secret.New(strings.TrimSpace(token)))
		if err == nil && path != "" && path != r.URL.Path {
			// What a client may use is one address (RFC 8707, section 2).
			return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "The token is for another address than this one.").Then("Sign the client in at this address.")
		}
		return p, err
	}
	if h := r.Header.Get(accessHeader); h != "" && a.o.Access != nil {
		return a.access(r.Context(), h)
	}
	if c, err := r.Cookie(a.cookieName()); err == nil && c.Value != "" {
		return a.session(r.Context(), c.Value)
	}
	return plane.Principal{}, a.nobody()
}

// LocalOnly reports that nobody but the local admin can sign in.
func (a *Authenticator) LocalOnly() bool { return a.o.Local }

// CanSignIn reports whether there is an issuer to sign in at.
func (a *Authenticator) CanSignIn() bool { return a.o.OIDC != nil }

func (a *Authenticator) session(ctx context.Context, value string) (plane.Principal, error) {
	h := secret.Digest(value)
	s, err := a.o.Store.Session(ctx, h)
	if plane.KindOf(err) == plane.NotFound || err == nil && a.o.Clock.Now().Sub(s.SeenAt) > idle {
		return plane.Principal{}, a.nobody()
	}
	if err != nil {
		return plane.Principal{}, err
	}
	a.note(h, func(t plane.Tx) error { return a.o.Store.SeeSession(t, h) })
	if s.Person == plane.Local.ID {
		if !a.o.Local {
			return plane.Principal{}, a.nobody() // an issuer was configured since
		}
		return plane.Local, nil
	}
	return a.person(ctx, s.Person)
}

func (a *Authenticator) person(ctx context.Context, id string) (plane.Principal, error) {
	p, err := a.o.Store.Person(ctx, id)
	if plane.KindOf(err) == plane.NotFound {
		return plane.Principal{}, a.nobody()
	}
	if err == nil && !p.RevokedAt.IsZero() {
		return plane.Principal{}, shutOut()
	}
	return plane.Principal{Kind: plane.KindPerson, ID: p.ID, Email: p.Email, Rights: plane.AllRights}, err
}

func shutOut() error {
	return plane.Errorf(plane.Unauthenticated, "An org admin has shut this person out.").Then("An org admin lets them in again: patchbay people restore")
}

// note writes a use behind, at most once a minute each.
func (a *Authenticator) note(key string, fn func(plane.Tx) error) {
	now := a.o.Clock.Now()
	a.mu.Lock()
	due := now.Sub(a.seen[key]) >= seenEvery
	if due {
		if len(a.seen) >= maxSeen {
			clear(a.seen)
		}
		a.seen[key] = now
	}
	a.mu.Unlock()
	if !due {
		return
	}
	if err := a.o.Store.WriteBehind(fn); err != nil {
		a.o.Log.Warn("a use could not be noted", "err", err)
	}
}

// arrive signs a browser in and returns its cookie.
func (a *Authenticator) arrive(ctx context.Context, person string) (*http.Cookie, error) {
	value := secret.Random()
	err := a.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := a.o.Store.AddSession(t, &plane.WebSession{Hash: secret.Digest(value), Person: person}, t.Now().Add(-idle)); err != nil {
			return err
		}
		return a.o.Store.AddAudit(t, plane.AuditEntry{Who: person, Action: "signin", Decision: "allow"})
	})
	return a.cookie(value), err
}

// cookieName has the prefix that binds the cookie to this very host, where the
// address is https (RFC 6265bis §4.1.3.2).
func (a *Authenticator) cookieName() string {
	if a.o.Secure() {
		return "__Host-patchbay"
	}
	return "patchbay"
}

func (a *Authenticator) cookie(value string) *http.Cookie {
	c := &http.Cookie{Name: a.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: a.o.Secure(), SameSite: http.SameSiteLaxMode, MaxAge: int(cookieLife.Seconds())}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// SignOut ends the browser's session and returns the cookie that clears it.
func (a *Authenticator) SignOut(ctx context.Context, r *http.Request) (*http.Cookie, error) {
	if c, err := r.Cookie(a.cookieName()); err == nil && c.Value != "" {
		if err := a.o.Store.Write(ctx, func(t plane.Tx) error { return a.o.Store.EndSession(t, secret.Digest(c.Value)) }); err != nil {
			return nil, err
		}
	}
	return a.cookie(""), nil
}

// identified links an identity to its person and signs the browser in.
func (a *Authenticator) identified(ctx context.Context, who identity) (plane.Person, error) {
	var p plane.Person
	err := a.o.Store.Write(ctx, func(t plane.Tx) error {
		var err error
		p, err = a.o.Store.Identify(t, who.issuer+"|"+who.subject, who.email, who.name)
		return err
	})
	if err == nil && !p.RevokedAt.IsZero() {
		err = shutOut()
	}
	if p.Moved {
		a.known.forget()
	}
	return p, err
}

// Voucher is what a chat's workspace says of one of its members. Email is empty unless the
// workspace made the account.
type Voucher struct {
	Issuer, Subject, Email, Name string
	Guest                        bool
}

// Vouched is a member as a person. One whose address the workspace vouches for is whoever
// has that address elsewhere, as long as it is theirs; another, or one where nobody can sign
// in, is known to that workspace alone, and a link of theirs is bound to whoever opens it
// first. The workspace changes nothing of what another issuer says of somebody.
func (a *Authenticator) Vouched(ctx context.Context, v Voucher) (plane.Principal, error) {
	alone := plane.Principal{Kind: plane.KindPerson, ID: v.Issuer + "/" + v.Subject, Rights: plane.AllRights}
	if v.Guest {
		alone.Rights = plane.MCPRead | plane.MCPWrite | plane.RunsRead | plane.RunsWrite
	}
	if v.Email == "" || v.Guest {
		return alone, nil
	}
	if a.LocalOnly() {
		alone.Email = v.Email
		return alone, nil
	}
	// The address is the identity: whoever has another one later is another.
	subject := plane.Address(v.Email)
	known, err := a.o.Store.Person(ctx, v.Issuer+"|"+subject)
	if plane.KindOf(err) == plane.NotFound {
		return a.assertedPerson(ctx, identity{issuer: v.Issuer, subject: subject, email: subject, name: v.Name})
	}
	if err == nil && !plane.SameAddress(known.Email, v.Email) { // it is not that person's any more
		return alone, nil
	}
	if err == nil && !known.RevokedAt.IsZero() {
		return plane.Principal{}, shutOut()
	}
	return plane.Principal{Kind: plane.KindPerson, ID: known.ID, Email: known.Email, Rights: plane.AllRights}, err
}

// identity is what an issuer says of somebody. email is empty unless the issuer
// says that it is verified.
type identity struct{ issuer, subject, email, name string }
