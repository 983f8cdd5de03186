// Package authserver is Patchbay as the authorization server of its own MCP endpoints
// (MCP authorization 2025-06-18 to 2026-07-28): their metadata, the registration of clients,
// the question to a person, codes and tokens. It promises that a code or token is good for
// one person, one client and one address, that nothing is handed out before that person
// pressed a button on a page that names the client and where it goes back to, that a code or
// refresh token that is shown twice ends all that came of it, and that no value of theirs is
// stored.
package authserver

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Paths of the authorization server. Metadata stand at theirs, at each with an endpoint's
// path after it (RFC 8414, section 3.1; RFC 9728, section 3.1), and OpenID's behind an
// endpoint's path too.
const (
	AuthorizePath = "/oauth/authorize"
	TokenPath     = "/oauth/token"
	RegisterPath  = "/oauth/register"
	RevokePath    = "/oauth/revoke"
	KeysPath      = "/oauth/keys"

	ServerMetadataPath   = "/.well-known/oauth-authorization-server"
	OpenIDMetadataPath   = "/.well-known/openid-configuration"
	ResourceMetadataPath = "/.well-known/oauth-protected-resource"
)

// Store is where clients, what people let them do, and their sign-ins rest.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Clients
	SignIns
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Clients are those that registered themselves, and what people let clients do.
type Clients interface {
	AddClient(t plane.Tx, c *plane.Client, most int, aside time.Time) error
	Client(ctx context.Context, id string) (plane.Client, error)
	AuthorizationOf(ctx context.Context, person, client, path string) (plane.Authorization, error)
	Authorizations(ctx context.Context, person string, now time.Time) ([]plane.Authorization, error)
	Authorize(t plane.Tx, a *plane.Authorization) error
	RevokeAuthorization(t plane.Tx, id string) (bool, error)
}

// SignIns are the clients' sign-ins and their tokens.
type SignIns interface {
	AddSignIn(t plane.Tx, n *plane.SignIn, code plane.ClientToken) error
	AddClientToken(t plane.Tx, k plane.ClientToken) error
	SignInBy(t plane.Tx, hash, kind string) (plane.SignIn, plane.Authorization, plane.ClientToken, error)
	RedeemSignIn(t plane.Tx, id string) (bool, error)
	RotateSignIn(t plane.Tx, id string, from int, answer []byte) (bool, error)
	EndSignIn(t plane.Tx, id string) (bool, error)
	KnowsToken(ctx context.Context, hash string) (bool, error)
}

// Sealer seals what a refresh was answered for as long as it may be asked again.
type Sealer interface {
	Seal(b secret.Bind, value []byte) []byte
	Open(b secret.Bind, blob []byte) ([]byte, error)
}

// Known is a client that an operator registered.
type Known struct {
	Name      string
	Redirects []string
	Secret    secret.Text // empty for a public client
}

// Options of a Server.
type Options struct {
	Store  Store
	Ring   Sealer
	Clock  plane.Clock
	Log    *slog.Logger
	Limits plane.Limits

	Known     map[string]Known
	Register  bool         // clients may register themselves (RFC 7591)
	Documents *http.Client // reaches metadata documents of clients; nil where they do not count

	// Origins are those that clients may reach this server by, the one that config names
	// first: it is the issuer.
	Origins  func() []string
	Commands string // path of the commands' endpoint
	Agents   string // of agents' endpoints, before the slug

	Address func(*http.Request) string // whom a request comes from
	Agent   func(slug string) (plane.Agent, bool)
	// May is what of some rights a person has at all.
	May    func(who plane.Principal, rights plane.Rights) plane.Rights
	Teams  func(who plane.Principal) []string // that a person is in
	Forget func()                             // has tokens looked up again
	Token  Prefixes
}

// Prefixes of the tokens that are made.
type Prefixes struct{ Access, Refresh string }

// Server is the authorization server.
type Server struct {
	o     Options
	docs  documents
	gates gates
}

// New makes a Server.
func New(o Options) *Server {
	s := &Server{o: o}
	s.docs.client = o.Documents
	s.gates.perMinute = o.Limits.ClientsPerMinute
	return s
}

// Issuer names this authorization server (RFC 8414, section 2).
func (s *Server) Issuer() string { return s.o.Origins()[0] }

// origin is the one that a request came to.
func (s *Server) origin(r *http.Request) string {
	all := s.o.Origins()
	if at := "http://" + r.Host; slices.Contains(all, at) {
		return at
	}
	return all[0]
}

// Resource is one MCP endpoint.
type Resource struct {
	Path  string
	Agent string // "" for the commands
}

// resource reads a resource indicator: the address of one of our endpoints, with or without
// a slash behind it, and nothing else (RFC 8707, section 2). Scheme and host are compared as
// RFC 3986, section 6.2 has it: in small letters, without the port that the scheme stands for.
func (s *Server) resource(raw string) (Resource, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || u.Opaque != "" || strings.ContainsAny(raw, "?#\\ ") {
		return Resource{}, false
	}
	at := strings.ToLower(u.Scheme + "://" + u.Host)
	if p := map[string]string{"https": ":443", "http": ":80"}[strings.ToLower(u.Scheme)]; p != "" {
		at = strings.TrimSuffix(at, p)
	}
	if !slices.Contains(s.o.Origins(), at) {
		return Resource{}, false
	}
	return s.endpoint(strings.TrimSuffix(u.EscapedPath(), "/"))
}

// endpoint is the one at a path. Which agents there are is nobody's to know before they are
// signed in, so that any slug is one.
func (s *Server) endpoint(path string) (Resource, bool) {
	if path == s.o.Commands {
		return Resource{Path: path}, true
	}
	slug, ok := strings.CutPrefix(path, s.o.Agents)
	return Resource{Path: path, Agent: slug}, ok && plane.ValidSlug(slug)
}

// Rights of clients: an agent's endpoint takes both of the first, the commands' every one;
// the last are what a client gets at most that asks for none.
const (
	agentRights   = plane.MCPRead | plane.RunsWrite
	commandRights = plane.AllRights
	usualRights   = plane.MCPRead | plane.MCPWrite | plane.RunsRead | plane.RunsWrite
)

// offered are the rights of a resource, usual those that a client gets that asks for none
// of them.
func (r Resource) offered() plane.Rights {
	if r.Agent != "" {
		return agentRights
	}
	return commandRights
}

func (r Resource) usual() plane.Rights { return r.offered() & usualRights }

// wanted reads a scope. What nobody here knows is left out (RFC 6749, section 3.3).
func (r Resource) wanted(scope string) plane.Rights {
	var out plane.Rights
	for _, name := range strings.Fields(scope) {
		if one, err := plane.ParseRights([]string{name}); err == nil {
			out |= one
		}
	}
	if out &= r.offered(); out == 0 {
		return r.usual()
	}
	return out
}

// List returns what a person lets clients do or, of nobody, what all do.
func (s *Server) List(ctx context.Context, person string) ([]plane.Authorization, error) {
	return s.o.Store.Authorizations(ctx, person, s.o.Clock.Now())
}

// Revoke takes back what a person lets a client do, with every token that came of it.
func (s *Server) Revoke(ctx context.Context, by plane.Principal, id string) error {
	err := s.o.Store.Write(ctx, func(t plane.Tx) error {
		ok, err := s.o.Store.RevokeAuthorization(t, id)
		if err != nil {
			return err
		}
		if !ok {
			return plane.Errorf(plane.NotFound, "There is no such client, or it was revoked already.")
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: by.ID, Action: "client.revoke", What: id, Decision: "allow"})
	})
	s.o.Forget()
	return err
}
