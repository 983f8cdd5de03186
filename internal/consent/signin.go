package consent

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/connect"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// pending is what a started sign-in keeps, sealed, until its callback: all that
// the exchange needs, so that a restart in between loses nothing (F041, F043).
type pending struct {
	State    string        `json:"state"`
	Verifier string        `json:"verifier"`
	ClientID string        `json:"client_id"`
	Secret   string        `json:"client_secret,omitempty"`
	Method   string        `json:"method"`
	How      string        `json:"how"` // registered, cimd, dcr
	Redirect string        `json:"redirect"`
	Scopes   []string      `json:"scopes,omitempty"`
	Server   *oauth.Server `json:"server"`
}

const purposeTicket = "ticket"

func bindTicket(hash string) secret.Bind {
	return secret.Bind{Purpose: purposeTicket, Scope: "pending", Record: hash}
}

// TicketBind names what a ticket's blob is bound to.
func TicketBind(s plane.Sealed) secret.Bind { return bindTicket(s.Key) }

// Leaving is a sign-in that was begun: where the browser goes.
type Leaving struct {
	URL        string // of the authorization endpoint
	Host       string
	Connection plane.Connection
}

// Start begins the sign-in of a link: it discovers the authorization server,
// settles who we are there and seals what the callback will need. When a step
// fails the ticket is as it was.
func (s *Service) Start(ctx context.Context, nonce string, who plane.Principal) (Leaving, error) {
	base, err := s.publicURL()
	if err != nil {
		return Leaving{}, err
	}
	return s.start(ctx, nonce, who, base+CallbackPath)
}

func (s *Service) start(ctx context.Context, nonce string, who plane.Principal, redirect string) (Leaving, error) {
	k, err := s.find(ctx, nonce)
	if err != nil {
		return Leaving{}, err
	}
	next, p := planStart(k, who, s.o.LocalOnly, s.o.Clock.Now(), s.o.TicketLife)
	if p != nil {
		return Leaving{}, p
	}
	conn, err := s.o.Store.ConnectionByID(ctx, k.Connection)
	if plane.KindOf(err) == plane.NotFound {
		return Leaving{}, refuse(Cancelled)
	}
	if err == nil {
		err = s.stillMay(k, who, conn)
	}
	if err != nil {
		return Leaving{}, err
	}
	srv, err := s.discover(ctx, who, conn)
	if err != nil {
		return Leaving{}, &Problem{Refusal: OAuthFailed, Detail: oauthSentence(conn, err), Cause: err}
	}
	scopes := oauth.WantedScopes(srv, strings.Fields(conn.OAuth.StepUp), conn.OAuth.NoOffline)
	scopes = s.withGranted(ctx, conn, srv, scopes)
	id, how, err := s.identity(ctx, conn, srv, redirect, scopes)
	if err != nil {
		return Leaving{}, &Problem{Refusal: OAuthFailed, Detail: oauthSentence(conn, err), Cause: err}
	}
	var random [24]byte
	rand.Read(random[:])
	rec := pending{State: nonce + "." + base64.RawURLEncoding.EncodeToString(random[:]), ClientID: id.ID, Method: id.Method, How: how,
		Redirect: redirect, Scopes: scopes, Server: srv}
	verifier := oauth.Verifier()
	verifier.Expose(func(v string) { rec.Verifier = v })
	id.Secret.Expose(func(v string) { rec.Secret = v })
	b, err := json.Marshal(rec)
	if err != nil {
		return Leaving{}, err
	}
	next.Pending = s.o.Ring.Seal(bindTicket(k.Hash), b)
	learned := conn.OAuth
	learned.NoCIMD = learned.NoCIMD || learned.Tried == howDocument && how != howDocument // it did not return
	learned.Tried = how
	moved, err := s.move(ctx, k, next, func(t plane.Tx) error { return s.o.Store.SetOAuthOptions(t, conn.ID, learned) })
	if err != nil {
		return Leaving{}, err
	}
	if !moved {
		return Leaving{}, s.lost(ctx, k.Hash, who)
	}
	to := oauth.Authorize{Server: srv, ClientID: id.ID, Redirect: redirect, State: rec.State, Verifier: verifier, Scopes: scopes, NoResource: conn.OAuth.OmitResource}.URL()
	out := Leaving{URL: to, Connection: conn}
	if u, err := url.Parse(srv.Authorization); err == nil {
		out.Host = u.Host
	}
	return out, nil
}

// withGranted keeps, in a step-up, what the present grant already has: the union
// of scopes that MCP asks for.
func (s *Service) withGranted(ctx context.Context, conn plane.Connection, srv *oauth.Server, scopes []string) []string {
	if conn.OAuth.StepUp == "" {
		return scopes
	}
	granted, err := s.o.Connections.Granted(ctx, conn)
	if err != nil {
		return scopes
	}
	for _, sc := range strings.Fields(granted) {
		if !slices.Contains(scopes, sc) {
			scopes = append(scopes, sc)
		}
	}
	return scopes
}

// discover asks the server without a credential and follows what it names.
func (s *Service) discover(ctx context.Context, who plane.Principal, conn plane.Connection) (*oauth.Server, error) {
	g, err := s.o.Policy().Retry(who, conn)
	if err != nil {
		return nil, err
	}
	probed, _ := s.o.Upstream.Probe(ctx, g, s.o.Connections.TryNone(g)) // its refusal is what is wanted
	srv, log, err := s.o.OAuth(conn.EgressName()).Discover(ctx, discovery(conn, probed.Challenges))
	s.o.Log.Debug("discovered an authorization server", "connection", conn.ID, "attempts", log, "err", err)
	return srv, err
}

func discovery(conn plane.Connection, challenges []string) oauth.Discovery {
	o := conn.OAuth
	return oauth.Discovery{Endpoint: conn.Endpoint, Challenges: challenges, TrustedIssuer: o.TrustedIssuer, AuthServer: o.AuthServer,
		SkipPKCE: o.SkipPKCECheck, Guess: o.SkipPKCECheck}
}

// oauthSentence tells a person why a sign-in could not be begun, and what was
// tried.
func oauthSentence(conn plane.Connection, err error) string {
	if ours, ok := err.(*plane.Error); ok {
		return ours.Message
	}
	e := oauth.AsError(err)
	out := "The sign-in at " + conn.Slug + " did not work. " + e.Error()
	if e.Next != "" {
		out += " " + e.Next + "."
	}
	if e.Description != "" {
		out += " It says: “" + e.Description + "”."
	}
	if len(e.Attempts) > 0 {
		var tried []string
		for _, a := range e.Attempts[max(0, len(e.Attempts)-4):] {
			tried = append(tried, a.URL+" ("+strings.TrimSuffix(a.Outcome, ".")+")")
		}
		out += " Tried: " + strings.Join(tried, ", ") + "."
	}
	return out
}

// Ways to be known at an authorization server, in the order they are tried.
const (
	howRegistered = "registered"
	howDocument   = "cimd"
	howDynamic    = "dcr"
)

// clientRecord is what is sealed of a registration.
type clientRecord struct {
	ID     string `json:"id"`
	Secret string `json:"secret,omitempty"`
	Method string `json:"method"`
}

func bindClient(issuer, redirect string) secret.Bind {
	return secret.Bind{Purpose: "client", Scope: issuer, Record: redirect}
}

// ClientBind names what a registration's blob is bound to.
func ClientBind(s plane.Sealed) secret.Bind {
	issuer, redirect, _ := strings.Cut(s.Key, " ")
	return bindClient(issuer, redirect)
}

// identity settles who we are: pre-registered, our metadata document, or a
// registration, which is kept per authorization server and redirect address. One
// whose last authorize never returned is not tried again the same way (F038).
func (s *Service) identity(ctx context.Context, conn plane.Connection, srv *oauth.Server, redirect string, scopes []string) (oauth.Identity, string, error) {
	o := conn.OAuth
	if o.ClientID != "" && o.ClientIssuer != "" && o.ClientIssuer != srv.Issuer {
		return oauth.Identity{}, "", plane.Errorf(plane.Conflict, "The server now names the authorization server %s, and the client %s was made for %s; its secret goes nowhere else.", srv.Issuer, o.ClientID, o.ClientIssuer)
	}
	if o.ClientID != "" {
		id := oauth.Identity{ID: o.ClientID, Method: o.ClientAuth}
		if c, ok := s.o.Policy().Connection(conn.ID); ok && c.SecretEnv != "" {
			id.Secret, _ = s.o.Lookup(c.SecretEnv)
			return srv.Registered(id), howRegistered, nil
		}
		c, err := s.client(ctx, registeredFor(conn.ID), "-")
		if err == nil {
			id.Secret = c.Secret
		} else if plane.KindOf(err) != plane.NotFound {
			return id, "", err
		}
		return srv.Registered(id), howRegistered, nil
	}
	if doc := s.document(redirect); srv.CIMD && doc != "" && (srv.Registration == "" || !o.NoCIMD && o.Tried != howDocument) {
		return oauth.Identity{ID: doc, Method: oauth.MethodNone}, howDocument, nil
	}
	id, err := s.client(ctx, srv.Issuer, redirect)
	switch {
	case err == nil && o.Tried != howDynamic:
		return id, howDynamic, nil
	case err != nil && plane.KindOf(err) != plane.NotFound:
		return id, "", err
	}
	if id, err = s.o.OAuth(conn.EgressName()).Register(ctx, srv, redirect, scopes); err != nil {
		return id, "", err
	}
	return id, howDynamic, s.o.Store.Write(ctx, func(t plane.Tx) error {
		if !strings.HasPrefix(redirect, s.o.PublicURL()+"/") {
			if err := s.o.Store.DropLoopbackClients(t, srv.Issuer); err != nil {
				return err
			}
		}
		return s.putClient(t, srv.Issuer, redirect, id)
	})
}

func (s *Service) learn(ctx context.Context, conn plane.Connection, o plane.OAuthOptions) error {
	return s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.SetOAuthOptions(t, conn.ID, o) })
}

// registeredFor is the issuer's place for an identity that a person typed in.
func registeredFor(id plane.ConnectionID) string { return "connection:" + string(id) }

func (s *Service) client(ctx context.Context, issuer, redirect string) (oauth.Identity, error) {
	rec, err := s.o.Store.OAuthClient(ctx, issuer, redirect)
	if err != nil {
		return oauth.Identity{}, err
	}
	b, err := s.o.Ring.Open(bindClient(issuer, redirect), rec.Blob)
	if err != nil { // sealed with a key that is gone: as if there were none
		return oauth.Identity{}, plane.Errorf(plane.NotFound, "The client's registration does not open.").Because(err)
	}
	var c clientRecord
	if err := json.Unmarshal(b, &c); err != nil {
		return oauth.Identity{}, err
	}
	return oauth.Identity{ID: c.ID, Secret: secret.New(c.Secret), Method: c.Method}, nil
}

func (s *Service) putClient(t plane.Tx, issuer, redirect string, id oauth.Identity) error {
	c := clientRecord{ID: id.ID, Method: id.Method}
	id.Secret.Expose(func(v string) { c.Secret = v })
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.o.Store.PutOAuthClient(t, &plane.OAuthClient{Issuer: issuer, Redirect: redirect, Blob: s.o.Ring.Seal(bindClient(issuer, redirect), b)})
}

// Paths of our client ID metadata documents.
const (
	DocumentPath      = "/api/mcp/oauth/client"
	LocalDocumentPath = "/api/mcp/oauth/client/local"
)

// document is the address of our metadata document, or "" where a server could
// not fetch it.
func (s *Service) document(redirect string) string {
	base := s.o.PublicURL()
	u, err := url.Parse(base)
	if err != nil || base == "" || s.o.CIMD == "off" {
		return ""
	}
	if s.o.CIMD != "on" && (u.Scheme != "https" || !reachable(u.Hostname())) {
		return ""
	}
	if redirect != base+CallbackPath {
		return base + LocalDocumentPath
	}
	return base + DocumentPath
}

// reachable guesses whether the world can reach a host: it has a public name.
func reachable(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	if !strings.Contains(host, ".") {
		return false
	}
	for _, suffix := range []string{".internal", ".local", ".localhost", ".lan", ".corp", ".home.arpa", ".test", ".example", ".invalid"} {
		if strings.HasSuffix(host, suffix) {
			return false
		}
	}
	return true
}

// Document is our client ID metadata document; local is the one for redirects on
// the caller's own machine, where any port will do (RFC 8252 §7.3).
func (s *Service) Document(local bool) (oauth.Metadata, error) {
	base, err := s.publicURL()
	if err != nil {
		return oauth.Metadata{}, err
	}
	if local {
		m := oauth.Describe("http://127.0.0.1" + LocalCallback)
		m.Redirects = append(m.Redirects, "http://localhost"+LocalCallback)
		m.ClientID, m.URI = base+LocalDocumentPath, base
		return m, nil
	}
	m := oauth.Describe(base + CallbackPath)
	m.ClientID, m.URI = base+DocumentPath, base
	return m, nil
}

// LocalCallback is the path of redirects on the caller's own machine.
const LocalCallback = "/callback"

// Callback is what the browser brought back.
type Callback struct {
	State, Code, Iss, Error, Description string
	HasIss                               bool
}

// Finish ends a sign-in: state first, then the issuer, then what the server said.
// The token is tried at the real server before it is stored. restart is set when
// the sign-in has to be begun again without offline_access.
func (s *Service) Finish(ctx context.Context, who plane.Principal, cb Callback) (done Done, restart *Leaving, err error) {
	nonce, _, ok := strings.Cut(cb.State, ".")
	if !ok {
		return Done{}, nil, refuse(NotFound)
	}
	k, err := s.find(ctx, nonce)
	if err != nil {
		return Done{}, nil, err
	}
	next, p := planCallback(k, who, s.o.LocalOnly, s.o.Clock.Now())
	if p != nil {
		return Done{}, nil, p
	}
	if len(k.Pending) == 0 {
		return Done{}, nil, &Problem{Refusal: Again, Detail: "This answer was presented already. If the sign-in did not end, start again from the link."}
	}
	var rec pending
	b, err := s.o.Ring.Open(bindTicket(k.Hash), k.Pending)
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err != nil {
		return Done{}, nil, &Problem{Refusal: OAuthFailed, Detail: "What was kept of this sign-in does not open. Start again from the link.", Cause: err}
	}
	if subtle.ConstantTimeCompare([]byte(rec.State), []byte(cb.State)) != 1 {
		return Done{}, nil, &Problem{Refusal: OAuthFailed, Detail: "The answer belongs to another sign-in. Start again from the link."}
	}
	conn, err := s.o.Store.ConnectionByID(ctx, k.Connection)
	if err != nil {
		return Done{}, nil, refuse(Cancelled)
	}
	if conn.OAuth.Tried != "" { // it returned: who we are there is known
		conn.OAuth.Tried = ""
		if err := s.learn(ctx, conn, conn.OAuth); err != nil {
			return Done{}, nil, err
		}
	}
	if err := oauth.CheckIssuer(rec.Server, cb.Iss, cb.HasIss); err != nil {
		return Done{}, nil, &Problem{Refusal: OAuthFailed, Detail: err.Error(), Cause: err}
	}
	if cb.Error != "" {
		return s.declined(ctx, who, nonce, conn, rec, cb)
	}
	if cb.Code == "" {
		return Done{}, nil, &Problem{Refusal: OAuthFailed, Detail: "The server sent the browser back without a code. Start again from the link."}
	}
	// A code is presented once: whoever comes with the same answer meanwhile, a
	// page that is loaded again or a second tab, finds nothing to present.
	taken := k
	taken.Pending = nil
	if moved, err := s.move(ctx, k, taken, nil); err != nil || !moved {
		if err == nil {
			err = s.lost(ctx, k.Hash, who)
		}
		return Done{}, nil, err
	}
	m, err := s.redeem(ctx, conn, rec, cb.Code)
	if err != nil {
		return Done{}, nil, err
	}
	done, err = s.claim(ctx, who, taken, next, m, rec.Server.Issuer)
	return done, nil, err
}

// declined relays what the authorization server said, once the state was proved.
func (s *Service) declined(ctx context.Context, who plane.Principal, nonce string, conn plane.Connection, rec pending, cb Callback) (Done, *Leaving, error) {
	o := conn.OAuth
	if cb.Error == "invalid_scope" && slices.Contains(rec.Scopes, "offline_access") && !o.NoOffline {
		o.NoOffline = true
		if err := s.learn(ctx, conn, o); err != nil {
			return Done{}, nil, err
		}
		l, err := s.start(ctx, nonce, who, rec.Redirect)
		return Done{}, &l, err
	}
	if rec.How == howDynamic && (cb.Error == "unauthorized_client" || cb.Error == "invalid_client") {
		if err := s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.DropOAuthClient(t, rec.Server.Issuer, rec.Redirect) }); err != nil {
			return Done{}, nil, err
		}
	}
	return Done{}, nil, &Problem{Refusal: OAuthFailed, Detail: oauthSentence(conn, oauth.Declined(cb.Error, cb.Description))}
}

// redeem exchanges the code. A server that forgot us is registered with anew by
// the next start.
func (s *Service) redeem(ctx context.Context, conn plane.Connection, rec pending, code string) (connect.Material, error) {
	id := oauth.Identity{ID: rec.ClientID, Secret: secret.New(rec.Secret), Method: rec.Method}
	tokens, err := s.o.OAuth(conn.EgressName()).Exchange(ctx, rec.Server, id, code, rec.Redirect, secret.New(rec.Verifier), rec.Scopes, conn.OAuth.OmitResource)
	if err != nil {
		e := oauth.AsError(err)
		if rec.How == howDynamic && (e.Code == "invalid_client" || e.Code == "unauthorized_client") {
			if werr := s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.DropOAuthClient(t, rec.Server.Issuer, rec.Redirect) }); werr != nil {
				return connect.Material{}, werr
			}
		}
		return connect.Material{}, &Problem{Refusal: OAuthFailed, Detail: oauthSentence(conn, e), Cause: err}
	}
	if rec.How == howDynamic && tokens.Method != id.Method { // the other way of authenticating worked: remember it
		id.Method = tokens.Method
		if err := s.o.Store.Write(ctx, func(t plane.Tx) error { return s.putClient(t, rec.Server.Issuer, rec.Redirect, id) }); err != nil {
			return connect.Material{}, err
		}
	}
	return connect.SignedIn(tokens, id, rec.Server, s.o.Clock.Now()), nil
}

// ReadCallback takes an answer from a redirect's query.
func ReadCallback(q url.Values) Callback {
	return Callback{State: q.Get("state"), Code: q.Get("code"), Iss: q.Get("iss"), HasIss: q.Has("iss"), Error: q.Get("error"), Description: q.Get("error_description")}
}
