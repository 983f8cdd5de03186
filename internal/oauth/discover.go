package oauth

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Server is an authorization server as discovery found it for one resource.
// Every identifier stands as it was published.
type Server struct {
	Resource      string   `json:"resource"` // for RFC 8707
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Registration  string   `json:"registration_endpoint,omitempty"`
	Revocation    string   `json:"revocation_endpoint,omitempty"`
	Methods       []string `json:"token_endpoint_auth_methods,omitempty"`
	Scopes        []string `json:"scopes,omitempty"` // what to ask for, before offline_access
	Offline       bool     `json:"offline,omitempty"`
	IssParam      bool     `json:"iss,omitempty"` // RFC 9207: the answer carries iss
	CIMD          bool     `json:"cimd,omitempty"`
	Guessed       bool     `json:"guessed,omitempty"` // 2025-03-26's default endpoints
	Rule          string   `json:"rule,omitempty"`    // which tolerance was applied, for the log
}

// Discovery says for what and how to look.
type Discovery struct {
	Endpoint      string
	Challenges    []string // WWW-Authenticate of the unauthenticated request
	TrustedIssuer string   // accepted although it differs from where it was found
	AuthServer    string   // where nothing names an authorization server
	SkipPKCE      bool     // an admin's exception: S256 need not be advertised
	Guess         bool     // 2025-03-26: default endpoints where there is no metadata
}

type protectedResource struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

type serverMetadata struct {
	Issuer        string    `json:"issuer"`
	Authorization string    `json:"authorization_endpoint"`
	Token         string    `json:"token_endpoint"`
	Registration  string    `json:"registration_endpoint"`
	Revocation    string    `json:"revocation_endpoint"`
	Methods       []string  `json:"token_endpoint_auth_methods_supported"`
	Scopes        []string  `json:"scopes_supported"`
	Grants        *[]string `json:"grant_types_supported"`
	PKCE          []string  `json:"code_challenge_methods_supported"`
	IssParam      bool      `json:"authorization_response_iss_parameter_supported"`
	CIMD          bool      `json:"client_id_metadata_document_supported"`
}

// Discover finds the authorization server of an MCP endpoint, in the order of
// MCP's authorization specification. The error carries what was tried.
func (c *Client) Discover(ctx context.Context, d Discovery) (*Server, []Attempt, error) {
	w := &walk{c: c, ctx: ctx, d: d}
	srv, err := w.run()
	if err != nil {
		e := AsError(err)
		e.Attempts = w.log
		return nil, w.log, e
	}
	return srv, w.log, nil
}

const wellKnownResource = "/.well-known/oauth-protected-resource"

type walk struct {
	c    *Client
	ctx  context.Context
	d    Discovery
	log  []Attempt
	rule string
}

func (w *walk) note(url, outcome string) { w.log = append(w.log, Attempt{text(url), outcome}) }

// get notes every candidate that was asked.
func (w *walk) get(raw string, into any) (found bool, err error) {
	miss, err := w.c.get(w.ctx, raw, into)
	switch {
	case err != nil:
		w.note(raw, AsError(err).Sentence)
		return false, err
	case miss != "":
		w.note(raw, miss)
		return false, nil
	}
	w.note(raw, "found")
	return true, nil
}

func (w *walk) run() (*Server, error) {
	endpoint, err := url.Parse(w.d.Endpoint)
	if err != nil || endpoint.Host == "" {
		return nil, failed(err, "The server's URL cannot be read.")
	}
	hint := ReadHint(w.d.Challenges)
	prm, err := w.resource(endpoint, hint)
	if err != nil {
		return nil, err
	}
	if prm == nil {
		return w.withoutResource(endpoint, hint)
	}
	srv := &Server{Resource: prm.Resource, Rule: w.rule}
	srv.Scopes = prm.Scopes
	if hint.Scope != "" {
		srv.Scopes = strings.Fields(hint.Scope)
	}
	issuers := prm.Servers
	if len(issuers) == 0 {
		if w.d.AuthServer == "" {
			// RFC 9728 lets it out; then the resource's own origin is asked.
			issuers = []string{origin(endpoint)}
		} else {
			issuers = []string{w.d.AuthServer}
		}
	}
	var last error
	for _, issuer := range issuers[:min(len(issuers), 4)] {
		md, err := w.authServer(issuer, issuer)
		if err != nil {
			last = errors.Join(last, err)
			if AsError(err).Transient {
				return nil, err
			}
			continue
		}
		if md != nil {
			return w.accept(srv, md, false)
		}
	}
	if last != nil {
		return nil, AsError(last)
	}
	return nil, failed(nil, "The authorization server %s publishes no metadata.", text(issuers[0]))
}

// resource finds the protected resource metadata, or nil when there is none at
// all. What a challenge names is never passed over for something else (F017).
func (w *walk) resource(endpoint *url.URL, hint Hint) (*protectedResource, error) {
	foreign := ""
	for _, named := range hint.Metadata {
		u, err := url.Parse(named)
		if err != nil || !sameOrigin(u, endpoint) {
			w.note(text(named), "of another origin than the server")
			foreign = named
			continue
		}
		var prm protectedResource
		found, err := w.get(named, &prm)
		if err != nil {
			return nil, err
		}
		if found {
			return w.fits(&prm, named, endpoint, u.EscapedPath() == wellKnownResource)
		}
	}
	if foreign != "" {
		return nil, failed(nil, "The server names its metadata at another origin, %s, which is not asked.", text(foreign))
	}
	if len(hint.Metadata) > 0 {
		return nil, failed(nil, "The server names its metadata at %s, which does not serve it.", text(hint.Metadata[0]))
	}
	path := strings.TrimSuffix(endpoint.EscapedPath(), "/")
	base := origin(endpoint) + wellKnownResource
	candidates := []string{base + path}
	if path != "" {
		candidates = append(candidates, base)
	}
	for i, raw := range candidates {
		var prm protectedResource
		found, err := w.get(raw, &prm)
		if err != nil {
			return nil, err
		}
		if found {
			return w.fits(&prm, raw, endpoint, i > 0 || path == "")
		}
	}
	return nil, nil
}

// fits compares the resource with the server it was found for (RFC 9728 §3.3):
// identical, but for one slash at the end; metadata at the root may describe the
// origin.
func (w *walk) fits(prm *protectedResource, from string, endpoint *url.URL, root bool) (*protectedResource, error) {
	want := []string{w.d.Endpoint}
	if root {
		want = append(want, origin(endpoint))
	}
	for _, e := range want {
		if prm.Resource == e {
			return prm, nil
		}
		if strings.TrimSuffix(prm.Resource, "/") == strings.TrimSuffix(e, "/") {
			w.rule = "one slash at the end of the resource"
			w.note(from, "accepted although the resource differs by a slash at its end")
			return prm, nil
		}
	}
	return nil, failed(nil, "The server's metadata describes the resource %s, not %s.", text(prm.Resource), w.d.Endpoint)
}

// withoutResource is 2025-03-26: the origin is its own authorization server.
func (w *walk) withoutResource(endpoint *url.URL, hint Hint) (*Server, error) {
	srv := &Server{Resource: w.d.Endpoint, Scopes: strings.Fields(hint.Scope)}
	issuer := origin(endpoint)
	if w.d.AuthServer != "" {
		issuer = w.d.AuthServer
	}
	md, err := w.authServer(issuer, issuer)
	if err != nil {
		return nil, err
	}
	if md != nil {
		return w.accept(srv, md, false)
	}
	if w.d.Guess {
		w.note(issuer, "no metadata: the default endpoints of 2025-03-26")
		return w.accept(srv, &serverMetadata{Issuer: issuer, Authorization: issuer + "/authorize", Token: issuer + "/token", Registration: issuer + "/register"}, true)
	}
	e := failed(nil, "The server publishes nothing about how to sign in.")
	e.NoMetadata = true
	return nil, e
}

// authServer finds an issuer's metadata in the specification's order; nil when
// no candidate serves any.
func (w *walk) authServer(issuer, expect string) (*serverMetadata, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, failed(err, "The authorization server's name %q is no URL.", text(issuer))
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	base := origin(u)
	candidates := []string{base + "/.well-known/oauth-authorization-server" + path, base + "/.well-known/openid-configuration" + path}
	if path != "" {
		candidates = append(candidates, base+path+"/.well-known/openid-configuration")
	}
	for _, raw := range candidates {
		var md serverMetadata
		found, err := w.get(raw, &md)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		if !w.sameIssuer(md.Issuer, expect, path) {
			return nil, failed(nil, "%s says that its issuer is %q, not %q.", raw, text(md.Issuer), text(expect))
		}
		return &md, nil
	}
	return nil, nil
}

// sameIssuer is RFC 8414 §3.3: identical, but for the slash of an empty path, or
// an issuer that an admin trusts for this connection.
func (w *walk) sameIssuer(got, want, path string) bool {
	if got == want {
		return true
	}
	if path == "" && got != "" && strings.TrimSuffix(got, "/") == strings.TrimSuffix(want, "/") {
		w.rule = "the slash of an empty path in the issuer"
		return true
	}
	if w.d.TrustedIssuer != "" && got == w.d.TrustedIssuer {
		w.rule = "an issuer that an admin trusts"
		return true
	}
	return false
}

// accept holds the metadata to what is needed and never guesses what is missing
// (F019).
func (w *walk) accept(srv *Server, md *serverMetadata, guessed bool) (*Server, error) {
	srv.Issuer, srv.Authorization, srv.Token = md.Issuer, md.Authorization, md.Token
	srv.Registration, srv.Revocation, srv.Methods = md.Registration, md.Revocation, md.Methods
	srv.IssParam, srv.CIMD, srv.Guessed = md.IssParam, md.CIMD, guessed
	for _, f := range []struct{ name, url string }{{"authorization_endpoint", md.Authorization}, {"token_endpoint", md.Token}} {
		if f.url == "" {
			return nil, failed(nil, "The metadata of %s lack %s.", text(md.Issuer), f.name)
		}
	}
	for name, raw := range map[string]string{"authorization_endpoint": md.Authorization, "token_endpoint": md.Token, "registration_endpoint": md.Registration, "revocation_endpoint": md.Revocation} {
		if raw == "" {
			continue
		}
		u, err := url.Parse(raw)
		if err != nil || u.User != nil || u.Fragment != "" {
			return nil, failed(err, "The %s of %s cannot be used.", name, text(md.Issuer))
		}
		u.RawQuery = ""
		if err := w.c.Check(u.String()); err != nil {
			e := failed(err, "The %s of %s is not allowed: %s", name, text(md.Issuer), plane.Public(err).Message)
			e.Next = plane.Public(err).Next
			return nil, e
		}
	}
	if md.Grants != nil && !slices.Contains(*md.Grants, "authorization_code") {
		return nil, failed(nil, "The authorization server %s offers no authorization_code grant.", text(md.Issuer))
	}
	if !guessed && !w.d.SkipPKCE && !slices.Contains(md.PKCE, "S256") {
		return nil, failed(nil, "The authorization server %s does not say that it supports PKCE with S256.", text(md.Issuer))
	}
	// A server that names another's sign-in page beside its own token endpoint
	// would be handed the other's codes. One that says in its answers who it is
	// cannot (RFC 9700 §4.4); one that an admin trusts may.
	if at, err := url.Parse(md.Authorization); err == nil && !guessed && !md.IssParam && w.d.TrustedIssuer != md.Issuer {
		if is, err := url.Parse(md.Issuer); err != nil || !sameOrigin(at, is) {
			e := failed(err, "The authorization server %s sends people to sign in at another origin, %s, and does not say in its answers who it is.", text(md.Issuer), text(at.Host))
			e.Next = "An org admin lets this one off with --issuer " + text(md.Issuer)
			return nil, e
		}
	}
	srv.Scopes, srv.Methods = bounded(srv.Scopes), bounded(srv.Methods)
	srv.Offline = slices.Contains(md.Scopes, "offline_access") && (md.Grants == nil || slices.Contains(*md.Grants, "refresh_token"))
	return srv, nil
}

// bounded keeps what of a server's lists can be meant.
func bounded(list []string) []string {
	var out []string
	for _, s := range list {
		if len(out) < 64 && s != "" && len(s) <= 256 && headerSafe(s) {
			out = append(out, s)
		}
	}
	return out
}

func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

func sameOrigin(a, b *url.URL) bool {
	return a.User == nil && strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(hostPort(a), hostPort(b))
}

func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return u.Hostname() + ":" + map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)]
}
