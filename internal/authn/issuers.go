package authn

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Paths of the sign-in.
const (
	SignInPath   = "/signin"
	CallbackPath = "/signin/callback"
	LocalPath    = "/signin/local/"
	SignOutPath  = "/signout"
)

// OIDC signs people in at the company's OpenID Connect issuer.
type OIDC struct {
	Issuer   string
	ClientID string
	Secret   secret.Text
	Client   *http.Client  // the infrastructure lane to that issuer
	Redirect func() string // our callback's whole address

	mu       sync.Mutex
	provider *oidc.Provider
}

// found discovers the issuer at first use, and again as long as that fails.
func (o *OIDC) found(ctx context.Context) (*oidc.Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.provider != nil {
		return o.provider, nil
	}
	// The provider keeps its context for fetching keys later on.
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), o.Client), o.Issuer)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The sign-in service does not answer.").Then("Try again in a minute; an operator finds the cause in the log.").Because(err)
	}
	o.provider = p
	return p, nil
}

func (o *OIDC) config(p *oidc.Provider) *oauth2.Config {
	c := &oauth2.Config{ClientID: o.ClientID, Endpoint: p.Endpoint(), RedirectURL: o.Redirect(), Scopes: []string{oidc.ScopeOpenID, "email", "profile"}}
	o.Secret.Expose(func(s string) { c.ClientSecret = s })
	return c
}

// flow is a sign-in under way. It lives in the browser's own cookie for ten
// minutes: whoever comes back must be the browser that left.
type flow struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Next     string `json:"x"`
}

const flowLife = 10 * time.Minute

// maxFlow keeps the cookie within what browsers take.
const maxFlow = 2900

// flat is JSON that leaves an address's & as it is.
func flat(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// Begin starts a sign-in; next is the path to return to. It returns the issuer's
// address and the cookie that the browser must bring back.
func (a *Authenticator) Begin(ctx context.Context, next string) (string, *http.Cookie, error) {
	if a.o.OIDC == nil {
		return "", nil, a.nobody()
	}
	p, err := a.o.OIDC.found(ctx)
	if err != nil {
		return "", nil, err
	}
	f := flow{State: secret.Random(), Nonce: secret.Random(), Verifier: oauth2.GenerateVerifier(), Next: localPath(next)}
	b, err := flat(f)
	if err != nil {
		return "", nil, err
	}
	if len(b) > maxFlow {
		return "", nil, plane.Errorf(plane.InvalidInput, "The address to come back to is too long to be kept over the sign-in.").Then("Sign in at " + SignInPath + " first, then begin again.")
	}
	c := a.flowCookie(base64.RawURLEncoding.EncodeToString(b))
	return a.o.OIDC.config(p).AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), c, nil
}

func (a *Authenticator) flowCookie(value string) *http.Cookie {
	name := "patchbay-signin"
	if a.o.Secure() {
		name = "__Host-patchbay-signin"
	}
	c := &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, Secure: a.o.Secure(), SameSite: http.SameSiteLaxMode, MaxAge: int(flowLife.Seconds())}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// localPath admits a path of ours and nothing that leaves this site.
func localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n") {
		return "/"
	}
	return next
}

// Finish ends a sign-in. It returns the session's cookie and where to go.
func (a *Authenticator) Finish(ctx context.Context, r *http.Request) (cookies []*http.Cookie, next string, err error) {
	bad := func(cause error) ([]*http.Cookie, string, error) {
		return nil, "", plane.Errorf(plane.Unauthenticated, "The sign-in did not work, or took too long.").Then("Sign in again at " + SignInPath + ".").Because(cause)
	}
	if a.o.OIDC == nil {
		return nil, "", a.nobody()
	}
	c, err := r.Cookie(a.flowCookie("").Name)
	if err != nil {
		return bad(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(c.Value)
	var f flow
	if err != nil || json.Unmarshal(raw, &f) != nil || f.State == "" ||
		subtle.ConstantTimeCompare([]byte(f.State), []byte(r.URL.Query().Get("state"))) != 1 {
		return bad(err)
	}
	p, err := a.o.OIDC.found(ctx)
	if err != nil {
		return nil, "", err
	}
	ctx = oidc.ClientContext(ctx, a.o.OIDC.Client)
	token, err := a.o.OIDC.config(p).Exchange(ctx, r.URL.Query().Get("code"), oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return bad(err)
	}
	idToken, _ := token.Extra("id_token").(string)
	id, err := p.Verifier(&oidc.Config{ClientID: a.o.OIDC.ClientID, Now: a.o.Clock.Now}).Verify(ctx, idToken)
	if err != nil {
		return bad(err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return bad(nil)
	}
	claims, err := claimsOf(ctx, p, id, token)
	if err != nil {
		return bad(err)
	}
	who := identity{issuer: id.Issuer, subject: id.Subject, name: claims.Name}
	if claims.Verified == true || claims.Verified == "true" {
		who.email = plane.Address(claims.Email)
	}
	person, err := a.identified(ctx, who)
	if err != nil {
		return nil, "", err
	}
	session, err := a.arrive(ctx, person.ID)
	return []*http.Cookie{session, a.flowCookie("")}, f.Next, err
}

// claims are what an issuer says of a person.
type claims struct {
	Email    string `json:"email"`
	Verified any    `json:"email_verified"` // some issuers write it as a string
	Name     string `json:"name"`
}

// claimsOf reads them from the ID token, or where they are not there from UserInfo, as an
// issuer may leave them to it (OpenID Connect Core 1.0, section 5.4).
func claimsOf(ctx context.Context, p *oidc.Provider, id *oidc.IDToken, token *oauth2.Token) (c claims, err error) {
	if err := id.Claims(&c); err != nil || c.Email != "" || p.UserInfoEndpoint() == "" {
		return c, err
	}
	info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return c, err
	}
	if info.Subject != id.Subject { // section 5.3.2
		return c, fmt.Errorf("authn: UserInfo is of %q, the ID token of %q", info.Subject, id.Subject)
	}
	return c, info.Claims(&c)
}

// accessHeader carries Cloudflare Access's assertion.
const accessHeader = "Cf-Access-Jwt-Assertion"

// Access verifies assertions of a Cloudflare Access team.
type Access struct {
	Issuer   string // https://<team>.cloudflareaccess.com
	Audience string
	Client   *http.Client

	once sync.Once
	keys oidc.KeySet
}

// access tells who an assertion is about. A service token has no person and
// reaches nothing that is a person's.
func (a *Authenticator) access(ctx context.Context, assertion string) (plane.Principal, error) {
	x := a.o.Access
	x.once.Do(func() {
		x.keys = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), x.Client), x.Issuer+"/cdn-cgi/access/certs")
	})
	v := oidc.NewVerifier(x.Issuer, x.keys, &oidc.Config{ClientID: x.Audience, Now: a.o.Clock.Now, SupportedSigningAlgs: []string{oidc.RS256, oidc.ES256}})
	id, err := v.Verify(ctx, assertion)
	if err != nil {
		return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "The Access assertion does not hold.").Then("Sign in to Access again.").Because(err)
	}
	var claims struct {
		Email  string `json:"email"`
		Type   string `json:"type"`
		Common string `json:"common_name"` // of a service token
	}
	if err := id.Claims(&claims); err != nil {
		return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "The Access assertion does not hold.").Because(err)
	}
	if id.Subject == "" || claims.Common != "" || claims.Email == "" {
		return plane.Principal{}, plane.Errorf(plane.Forbidden, "A service token of Access is nobody here.").Then("Send an API token of Patchbay.")
	}
	return a.assertedPerson(ctx, identity{issuer: id.Issuer, subject: id.Subject, email: plane.Address(claims.Email)})
}

// assertedPerson writes a person down the first time and now and then.
func (a *Authenticator) assertedPerson(ctx context.Context, who identity) (plane.Principal, error) {
	subject := who.issuer + "|" + who.subject
	a.mu.Lock()
	known := a.o.Clock.Now().Sub(a.seen[subject+who.email]) < seenEvery
	a.mu.Unlock()
	if known {
		if p, err := a.person(ctx, subject); err == nil && p.Email == who.email {
			return p, nil
		}
	}
	person, err := a.identified(ctx, who)
	if err != nil {
		return plane.Principal{}, err
	}
	a.mu.Lock()
	if len(a.seen) >= maxSeen {
		clear(a.seen)
	}
	a.seen[subject+who.email] = a.o.Clock.Now()
	a.mu.Unlock()
	return plane.Principal{Kind: plane.KindPerson, ID: person.ID, Email: person.Email, Rights: plane.AllRights}, nil
}

// once is the printed link's code: it signs one browser in.
type once struct {
	mu   sync.Mutex
	hash string
}

// Print makes the one-time link's path. A link that was printed before is void.
func (a *Authenticator) Print() string {
	code := secret.Random()
	a.link.mu.Lock()
	a.link.hash = secret.Digest(code)
	a.link.mu.Unlock()
	return LocalPath + code
}

// Redeem spends the printed link's code.
func (a *Authenticator) Redeem(ctx context.Context, code string) (*http.Cookie, error) {
	a.link.mu.Lock()
	ok := a.o.Local && a.link.hash != "" && subtle.ConstantTimeCompare([]byte(a.link.hash), []byte(secret.Digest(code))) == 1
	if ok {
		a.link.hash = ""
	}
	a.link.mu.Unlock()
	if !ok {
		return nil, plane.Errorf(plane.Gone, "This sign-in link was used already, or the server was started again since.").Then("patchbay signin")
	}
	return a.arrive(ctx, plane.Local.ID)
}
