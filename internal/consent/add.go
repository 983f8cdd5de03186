package consent

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Request describes a connection to add.
type Request struct {
	Name, URL, Label string
	Scope            plane.Scope
	Auth             string      // "" detects it
	Agents           []string    // empty: every open agent
	Secret           secret.Text // a credential that was given along; empty asks by link
	ClientSecret     secret.Text
	OAuth            plane.OAuthOptions
	Slot             bool             // known by its address
	Declared         plane.DeclaredAs // the registry's entry that it is taken from
}

// Added is a connection that was added or is to be signed in.
type Added struct {
	Connection plane.Connection
	Detected   plane.Auth // set when nobody named the kind
	Link       *Link      // nil when nothing is left to do
	Outcome    plane.TicketOutcome
}

// Add adds a connection. Without a kind of sign-in the server is asked, once and
// without a credential. What needs a link gets one; what does not is connected.
// When it refuses, nothing is stored.
func (s *Service) Add(ctx context.Context, who plane.Principal, r Request) (Added, error) {
	conn, g, err := s.candidate(who, r)
	if err != nil {
		return Added{}, err
	}
	out := Added{}
	var listed *catalog.Listed
	if conn.Auth == "" {
		found, probed, err := s.detect(ctx, g, conn)
		if err != nil {
			return Added{}, err
		}
		conn.Auth, out.Detected = found, found
		if found == plane.AuthNone {
			listed = &probed.Listed
		}
	}
	now := s.o.Clock.Now()
	conn.ID, conn.Version, conn.CreatedAt = plane.NewConnectionID(now), 1, now
	switch {
	case conn.Auth == plane.AuthNone:
		conn.State = plane.StateConnected
		return s.addOpen(ctx, who, conn, listed, out)
	case !r.Secret.Empty():
		return s.addWith(ctx, who, conn, connect.Pasted(r.Secret), out)
	}
	k, link, err := s.mint(conn, who)
	if err != nil {
		return Added{}, err
	}
	conn.State = plane.StateAwaiting
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.insert(t, who, &conn); err != nil {
			return err
		}
		if err := s.putSecret(t, conn, r.ClientSecret); err != nil {
			return err
		}
		return s.o.Store.AddTicket(t, &k)
	})
	if err != nil {
		return Added{}, err
	}
	out.Connection, out.Link = conn, &link
	return out, s.o.Reload(ctx)
}

func (s *Service) roomFor(n int, sc plane.Scope) error {
	if n >= s.o.MaxPerScope {
		return plane.Errorf(plane.Limited, "%s has %d connections, which is the most it may have.", sc, n).Over("connections_per_scope")
	}
	return nil
}

// insert stores a new connection, unless its scope has filled up meanwhile.
func (s *Service) insert(t plane.Tx, who plane.Principal, conn *plane.Connection) error {
	n, err := s.o.Store.CountConnections(t, conn.Scope)
	if err == nil {
		err = s.roomFor(n, conn.Scope)
	}
	if err != nil {
		return err
	}
	if err := s.o.Store.SaveConnection(t, conn); err != nil {
		return err
	}
	for exception, on := range map[string]bool{"oauth.pkce_unchecked": conn.OAuth.SkipPKCECheck, "oauth.issuer_trusted": conn.OAuth.TrustedIssuer != "", "oauth.resource_omitted": conn.OAuth.OmitResource} {
		if !on {
			continue
		}
		if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: exception, What: string(conn.ID), Decision: "allow"}); err != nil {
			return err
		}
	}
	return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.add", What: string(conn.ID), Decision: "allow"})
}

func (s *Service) putSecret(t plane.Tx, conn plane.Connection, value secret.Text) error {
	if value.Empty() {
		return nil
	}
	return s.putClient(t, registeredFor(conn.ID), "-", oauth.Identity{ID: conn.OAuth.ClientID, Secret: value, Method: conn.OAuth.ClientAuth})
}

// candidate holds a request to every rule that needs no server.
func (s *Service) candidate(who plane.Principal, r Request) (plane.Connection, policy.Grant, error) {
	var none policy.Grant
	conn := plane.Connection{Scope: r.Scope, Slug: r.Name, Label: r.Label, Endpoint: r.URL, Agents: r.Agents, Enabled: true,
		Origin: plane.Added, CreatedBy: who.ID, OAuth: r.OAuth, Slot: r.Slot, Declared: r.Declared}
	switch {
	case !plane.ValidSlug(r.Name):
		return conn, none, plane.Errorf(plane.InvalidInput, "%q cannot be a name; use a-z, 0-9 and -, at most %d characters.", bounded(r.Name), plane.MaxSlug).At("name")
	case r.URL == "":
		return conn, none, plane.Errorf(plane.InvalidInput, "Name the server's URL, as in: patchbay mcp add %s https://mcp.example.com/mcp", r.Name).At("url")
	case len(r.URL) > maxAddress || len(r.OAuth.ClientID) > maxAddress || len(r.OAuth.TrustedIssuer) > maxAddress || len(r.OAuth.AuthServer) > maxAddress || len(r.Auth) > 200:
		return conn, none, plane.Errorf(plane.InvalidInput, "An address, a client id and an issuer have at most %d characters.", maxAddress).At("url")
	case len(r.Agents) > maxAgents:
		return conn, none, plane.Errorf(plane.InvalidInput, "A connection names at most %d agents.", maxAgents).At("agents")
	case plane.Placeholder(r.URL) != "":
		return conn, none, plane.Errorf(plane.InvalidInput, "%s in the address stands for a value of yours; write the value.", bounded(plane.Placeholder(r.URL))).At("url")
	case !strings.Contains(r.URL, "://"):
		return conn, none, plane.Errorf(plane.InvalidInput, "%q is no address of a server.", bounded(r.URL)).At("url").Then("https://" + bounded(r.URL))
	}
	if err := goodLabel(r.Label); err != nil {
		return conn, none, err
	}
	if r.Auth != "" && !r.Secret.Empty() {
		ok := false
		r.Secret.Expose(func(v string) { ok = goodToken(v) })
		if !ok {
			return conn, none, plane.Errorf(plane.InvalidInput, "%s", BadToken.Sentence()).At("headers")
		}
	}
	if r.Auth != "" {
		var err error
		if conn.Auth, err = plane.ParseAuth(r.Auth); err != nil {
			return conn, none, err
		}
	}
	snap := s.o.Policy()
	if (r.OAuth.SkipPKCECheck || r.OAuth.TrustedIssuer != "") && !snap.Admin(who) {
		return conn, none, plane.Errorf(plane.Forbidden, "Only an org admin may let an authorization server off its checks.")
	}
	g, err := snap.Candidate(who, conn)
	if err != nil {
		return conn, none, err
	}
	if err := s.o.CheckURL(conn.EgressName(), conn.Endpoint); err != nil {
		return conn, none, err
	}
	return conn, g, s.roomFor(snap.Count(conn.Scope), conn.Scope)
}

// Bounds of what a person gives.
const (
	maxLabel   = 80
	maxAddress = 2048
	maxAgents  = 64
)

// goodLabel admits one line that shows as it is.
func goodLabel(s string) error {
	if utf8.RuneCountInString(s) > maxLabel || strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return plane.Errorf(plane.InvalidInput, "The label is one printable line of at most %d characters.", maxLabel).At("label")
	}
	return nil
}

func bounded(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

// detect asks once without a credential: whoever answers is open; whoever
// challenges signs in by OAuth if it publishes how, else by a token.
func (s *Service) detect(ctx context.Context, g policy.Grant, conn plane.Connection) (plane.Auth, Probed, error) {
	probed, err := s.o.Upstream.Probe(ctx, g, s.o.Connections.TryNone(g))
	if err == nil {
		return plane.AuthNone, probed, nil
	}
	if !probed.Refused {
		return "", probed, unsure(conn, strings.TrimPrefix(plane.Public(err).Message, conn.Slug+": "), err)
	}
	_, _, err = s.o.OAuth(conn.EgressName()).Discover(ctx, discovery(conn, probed.Challenges))
	if err == nil {
		return plane.AuthOAuth, probed, nil
	}
	if e := oauth.AsError(err); e.NoMetadata {
		return plane.AuthBearer, probed, nil
	}
	return "", probed, unsure(conn, oauthSentence(conn, err), err)
}

func unsure(conn plane.Connection, why string, cause error) error {
	e := plane.Errorf(plane.InvalidInput, "How %s signs in could not be found out: %s", conn.Slug, why).At("auth").
		Then("Say it with --auth none, bearer, api_key:<header>, basic:<user> or oauth.").Because(cause)
	var oe *oauth.Error
	var pe *plane.Error
	switch { // what stands in the way goes before what can be said instead
	case errors.As(cause, &oe) && oe.Next != "":
		e.Next = oe.Next
	case errors.As(cause, &pe) && pe.Kind == plane.Unavailable && pe.Next != "":
		e.Kind = plane.Unavailable // nothing about the request was wrong
		e.Next = pe.Next + " Or say how it signs in, with --auth."
	}
	return e
}

// addOpen connects a server that asks for nothing.
func (s *Service) addOpen(ctx context.Context, who plane.Principal, conn plane.Connection, listed *catalog.Listed, out Added) (Added, error) {
	if err := s.o.Store.Write(ctx, func(t plane.Tx) error { return s.insert(t, who, &conn) }); err != nil {
		return Added{}, err
	}
	out.Connection = conn
	if listed != nil {
		out.Outcome.Tools = len(listed.Tools)
	}
	return out, s.arrived(ctx, who, conn, listed)
}

// addWith connects with a credential that was given along. It is tried first,
// like one from the page.
func (s *Service) addWith(ctx context.Context, who plane.Principal, conn plane.Connection, m connect.Material, out Added) (Added, error) {
	if !conn.Auth.Pasted() {
		return Added{}, plane.Errorf(plane.InvalidInput, "%s signs in with OAuth; it takes no header.", conn.Slug).At("header")
	}
	listed, outcome, err := s.verify(ctx, who, conn, m)
	if err != nil {
		return Added{}, asError(err)
	}
	conn.State = plane.StateConnected
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.insert(t, who, &conn); err != nil {
			return err
		}
		return s.o.Connections.Put(t, conn, m)
	})
	if err != nil {
		return Added{}, err
	}
	out.Connection, out.Outcome = conn, outcome
	return out, s.arrived(ctx, who, conn, listed)
}

// asError turns a refusal of the connect flow into a command's error.
func asError(err error) error {
	p, ok := err.(*Problem)
	if !ok {
		return err
	}
	kind := map[Refusal]plane.Kind{NotFound: plane.NotFound, WrongIdentity: plane.Forbidden, Expired: plane.Gone, Used: plane.Gone, Cancelled: plane.Gone,
		BadToken: plane.InvalidInput, Rejected: plane.InvalidInput, WrongKind: plane.InvalidInput, NotAuthorizing: plane.Conflict, Again: plane.Conflict,
		OAuthFailed: plane.Unavailable}[p.Refusal]
	e := plane.Errorf(kind, "%s", p.Error()).Because(p.Cause)
	if p.Refusal == Rejected {
		e.Message = "The server rejected the credential. Nothing was stored."
	}
	return e
}
