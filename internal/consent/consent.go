// Package consent is how a connection comes to have a credential: adding it,
// one-time links, sign-in and callback. It promises that no secret travels
// anywhere but in the page's own form and the authorization server's answer, that
// a link works once, for one person, and that what a link or a command brings is
// stored only after the real server was asked; when it refuses, nothing is stored.
// An account that an API client saves is stored first: the catalog's health tells.
package consent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Records are the connections' rows.
type Records interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	ConnectionByID(ctx context.Context, id plane.ConnectionID) (plane.Connection, error)
	SaveConnection(t plane.Tx, c *plane.Connection) error
	RemoveConnection(t plane.Tx, id plane.ConnectionID) error
	PutReview(t plane.Tx, r *plane.Review) error
	Pins(ctx context.Context, id plane.ConnectionID) ([]plane.Pin, error)
	PutPin(t plane.Tx, p *plane.Pin) error
	CountConnections(t plane.Tx, scope plane.Scope) (int, error)
	SetOAuthOptions(t plane.Tx, id plane.ConnectionID, o plane.OAuthOptions) error
}

// Tickets are the links' rows.
type Tickets interface {
	Ticket(ctx context.Context, hash string) (plane.Ticket, error)
	AddTicket(t plane.Tx, k *plane.Ticket) error
	MoveTicket(t plane.Tx, was, k *plane.Ticket) (bool, error)
	SweepTickets(t plane.Tx, before time.Time) error
	CancelTickets(t plane.Tx, id plane.ConnectionID) error
}

// Clients are who we are at authorization servers.
type Clients interface {
	OAuthClient(ctx context.Context, issuer, redirect string) (plane.OAuthClient, error)
	PutOAuthClient(t plane.Tx, c *plane.OAuthClient) error
	DropOAuthClient(t plane.Tx, issuer, redirect string) error
	DropLoopbackClients(t plane.Tx, issuer string) error
	Credential(ctx context.Context, id plane.ConnectionID) (plane.Credential, error)
	DropCredential(t plane.Tx, id plane.ConnectionID) error
}

// Store is all of them.
type Store interface {
	Records
	Tickets
	Clients
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Upstream asks real servers.
type Upstream interface {
	Probe(ctx context.Context, g policy.Grant, lease *connect.Lease) (Probed, error)
	Drop(id plane.ConnectionID)
}

// Probed is what a server said to somebody who is not connected yet.
type Probed struct {
	Listed     catalog.Listed
	Challenges []string
	Refused    bool // the credential, or its absence
}

// Options of a Service.
type Options struct {
	Store       Store
	Connections *connect.Connections
	Upstream    Upstream
	Policy      func() *policy.Snapshot
	OAuth       func(egressName string) *oauth.Client
	CheckURL    func(egressName, raw string) error
	Adopt       func(ctx context.Context, g policy.Grant, l catalog.Listed) error
	Snapshot    func(id plane.ConnectionID) *plane.Catalog
	Change      func(ctx context.Context, conn plane.Connection, from int64, said catalog.Saying, write func(plane.Tx) error) error
	Reload      func(ctx context.Context) error // makes the stored connections the policy's
	Ring        *secret.Ring
	Lookup      func(name string) (secret.Text, bool) // secrets of pinned clients, by variable
	Clock       plane.Clock
	Log         *slog.Logger
	// Contract holds a review's completion contract to what it is for; nil knows none.
	Contract func(name, endpoint, tool string, class plane.Class) error
	// Claims are those on a connection's targets that wait for a person; nil for none.
	Claims func(ctx context.Context, id plane.ConnectionID) ([]plane.Claim, error)

	PublicURL   func() string // without a slash at its end; "" when there is none
	CIMD        string        // auto, on, off
	LocalOnly   bool          // nobody can sign in: a loopback install with nothing configured
	TicketLife  time.Duration
	MaxPerScope int
	Limits      plane.Limits
}

// Service does what the commands, the pages and the callback ask for.
type Service struct{ o Options }

// New makes a Service.
func New(o Options) *Service { return &Service{o} }

// Link is a one-time link, given to the asker alone.
type Link struct {
	URL       string
	Hash      string // of the nonce, to wait for the outcome
	ExpiresAt time.Time
	nonce     string
}

// CallbackPath is where authorization servers send the browser back to.
const CallbackPath = "/mcp/oauth/callback"

// ConnectPath is where links point, before the nonce.
const ConnectPath = "/mcp/connect/"

func (s *Service) publicURL() (string, error) {
	if u := s.o.PublicURL(); u != "" {
		return u, nil
	}
	return "", plane.Errorf(plane.Unavailable, "A link needs the address that browsers reach this server at.").Then("Set public_url in patchbay.yaml.")
}

// bound is the address that a link is for, where people can sign in with one.
func (s *Service) bound(who plane.Principal) string {
	if s.o.LocalOnly && !isPerson(who.ID) {
		return ""
	}
	return who.Email
}

// mint makes a ticket for a connection. Nothing is stored yet.
func (s *Service) mint(conn plane.Connection, who plane.Principal) (plane.Ticket, Link, error) {
	base, err := s.publicURL()
	if err != nil {
		return plane.Ticket{}, Link{}, err
	}
	var raw [32]byte
	rand.Read(raw[:])
	nonce := base64.RawURLEncoding.EncodeToString(raw[:])
	now := s.o.Clock.Now()
	k := plane.Ticket{Hash: hash(nonce), ID: plane.NewTicketID(now), Connection: conn.ID, Version: conn.Version, Kind: conn.Auth, Asker: who.ID,
		Email: s.bound(who), State: plane.TicketPending, ExpiresAt: now.Add(s.o.TicketLife)}
	return k, Link{URL: base + ConnectPath + nonce, Hash: k.Hash, ExpiresAt: k.ExpiresAt, nonce: nonce}, nil
}

func hash(nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return hex.EncodeToString(sum[:])
}

// find reads the ticket of a nonce.
func (s *Service) find(ctx context.Context, nonce string) (plane.Ticket, error) {
	if len(nonce) != 43 {
		return plane.Ticket{}, refuse(NotFound)
	}
	k, err := s.o.Store.Ticket(ctx, hash(nonce))
	if plane.KindOf(err) == plane.NotFound {
		return k, refuse(NotFound)
	}
	return k, err
}

// Page is what the connect page shows.
type Page struct {
	Connection plane.Connection
	Ticket     plane.Ticket
	Host       string // of the server
	Asker      string // who asked, for people
	Now        time.Time
}

// Open shows a link to whoever holds it and binds it to them. It never spends
// it.
func (s *Service) Open(ctx context.Context, nonce string, who plane.Principal) (Page, error) {
	for {
		k, err := s.find(ctx, nonce)
		if err != nil {
			return Page{}, err
		}
		next, p := planOpen(k, who, s.o.LocalOnly, s.o.Clock.Now())
		if p != nil {
			return Page{}, s.wayOn(ctx, k, p)
		}
		if next.State != k.State {
			moved, err := s.move(ctx, k, next, nil)
			if err != nil {
				return Page{}, err
			}
			if !moved {
				continue // somebody else was faster: judge again
			}
		}
		return s.page(ctx, next)
	}
}

// wayOn adds, for those whose link it is, the command that makes another.
func (s *Service) wayOn(ctx context.Context, k plane.Ticket, p *Problem) *Problem {
	if p.Refusal != Expired && p.Refusal != Cancelled && p.Refusal != Used {
		return p
	}
	if conn, err := s.o.Store.ConnectionByID(ctx, k.Connection); err == nil {
		p.Next = "patchbay mcp connect " + conn.Slug + " makes another."
	}
	return p
}

// move writes a transition, with whatever must happen in the same transaction.
func (s *Service) move(ctx context.Context, was, next plane.Ticket, also func(plane.Tx) error) (moved bool, err error) {
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		var err error
		if moved, err = s.o.Store.MoveTicket(t, &was, &next); err != nil || !moved {
			return err
		}
		if also != nil {
			return also(t)
		}
		return nil
	})
	return moved && err == nil, err
}

func (s *Service) page(ctx context.Context, k plane.Ticket) (Page, error) {
	conn, err := s.o.Store.ConnectionByID(ctx, k.Connection)
	if plane.KindOf(err) == plane.NotFound {
		return Page{}, refuse(Cancelled)
	}
	if err != nil {
		return Page{}, err
	}
	p := Page{Connection: conn, Ticket: k, Asker: k.Asker, Now: s.o.Clock.Now()}
	if k.Email != "" {
		p.Asker = k.Email
	}
	if u, err := url.Parse(conn.Endpoint); err == nil {
		p.Host = u.Host
	}
	return p, nil
}

// Done is a completed sign-in.
type Done struct {
	Connection plane.Connection
	Outcome    plane.TicketOutcome
	Return     string
}

// Complete spends a link on a pasted token: the server is asked first, and only
// what it does not refuse is stored.
func (s *Service) Complete(ctx context.Context, nonce string, who plane.Principal, token secret.Text) (Done, error) {
	k, err := s.find(ctx, nonce)
	if err != nil {
		return Done{}, err
	}
	var next plane.Ticket
	var p *Problem
	if k.Kind == plane.AuthBearer { // what a manual shows is often pasted whole
		token.Expose(func(v string) {
			if word, rest, ok := strings.Cut(strings.TrimSpace(v), " "); ok && strings.EqualFold(word, "Bearer") {
				token = secret.New(strings.TrimSpace(rest))
			}
		})
	}
	token.Expose(func(v string) { next, p = planComplete(k, who, s.o.LocalOnly, s.o.Clock.Now(), v) })
	if p != nil {
		return Done{}, p
	}
	return s.claim(ctx, who, k, next, connect.Pasted(token), "")
}

// claim tries a credential at the real server, then spends the ticket and stores
// the credential in one transaction: of two completions one wins.
func (s *Service) claim(ctx context.Context, who plane.Principal, k, next plane.Ticket, m connect.Material, issuer string) (Done, error) {
	conn, err := s.o.Store.ConnectionByID(ctx, k.Connection)
	if plane.KindOf(err) == plane.NotFound {
		return Done{}, refuse(Cancelled)
	}
	if err != nil {
		return Done{}, err
	}
	if conn.Auth != k.Kind {
		return Done{}, refuse(Cancelled)
	}
	if err := s.stillMay(k, who, conn); err != nil {
		return Done{}, err
	}
	listed, outcome, err := s.verify(ctx, who, conn, m)
	if err != nil {
		return Done{}, err
	}
	next.Outcome, next.Pending = outcome, nil
	fresh := signedIn(conn)
	if fresh.OAuth.ClientID != "" && issuer != "" {
		fresh.OAuth.ClientIssuer = issuer
	}
	granted(&fresh, m.Scope())
	moved, err := s.move(ctx, k, next, func(t plane.Tx) error { return s.store(t, who, &fresh, m) })
	if err != nil {
		return Done{}, err
	}
	if !moved {
		return Done{}, s.lost(ctx, k.Hash, who)
	}
	return Done{Connection: fresh, Outcome: outcome, Return: k.Return}, s.arrived(ctx, who, fresh, listed)
}

// stillMay refuses a link whose asker has lost the right that it was made with.
func (s *Service) stillMay(k plane.Ticket, who plane.Principal, conn plane.Connection) error {
	if k.Asker != who.ID || s.o.Policy().MayWrite(who, conn.Scope) == nil {
		return nil
	}
	return &Problem{Refusal: WrongIdentity, Detail: "You may no longer change this connection."}
}

// signedIn is a connection with a credential that a person just gave: the next
// version, and what was learned about a refused sign-in forgotten.
func signedIn(conn plane.Connection) plane.Connection {
	conn.Version++
	conn.State, conn.Reason = plane.StateConnected, ""
	conn.OAuth.StepUp, conn.OAuth.Tried = "", ""
	return conn
}

// granted notes what a sign-in may reach, and what of it is more than before.
func granted(conn *plane.Connection, scope string) {
	if conn.Auth != plane.AuthOAuth || len(scope) > maxScopes {
		return
	}
	var more []string
	before := strings.Fields(conn.OAuth.Granted)
	for _, s := range strings.Fields(scope) {
		if conn.OAuth.Granted != "" && !slices.Contains(before, s) && !slices.Contains(more, s) {
			more = append(more, s)
		}
	}
	conn.OAuth.Granted, conn.OAuth.Grown = scope, strings.Join(more, " ")
}

// maxScopes bounds what is remembered of a server's scopes, in bytes.
const maxScopes = 4096

func (s *Service) store(t plane.Tx, who plane.Principal, conn *plane.Connection, m connect.Material) error {
	if conn.OAuth.Grown != "" {
		if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "oauth.scopes_grown", What: string(conn.ID), Decision: "allow", Digest: bounded(conn.OAuth.Grown)}); err != nil {
			return err
		}
	}
	if err := s.o.Store.SaveConnection(t, conn); err != nil {
		return err
	}
	if err := s.o.Connections.Put(t, *conn, m); err != nil {
		return err
	}
	return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "connection.signed_in", What: string(conn.ID), Decision: "allow"})
}

// verify asks the real server with the credential. Only a refusal is an error;
// a server that cannot be reached gives a warning.
func (s *Service) verify(ctx context.Context, who plane.Principal, conn plane.Connection, m connect.Material) (*catalog.Listed, plane.TicketOutcome, error) {
	g, err := s.o.Policy().Retry(who, conn)
	if err != nil {
		return nil, plane.TicketOutcome{}, err
	}
	lease, err := s.o.Connections.Try(g, m)
	if err != nil {
		return nil, plane.TicketOutcome{}, err
	}
	probed, err := s.o.Upstream.Probe(ctx, g, lease)
	switch {
	case err == nil:
		return &probed.Listed, plane.TicketOutcome{Tools: len(probed.Listed.Tools)}, nil
	case probed.Refused:
		return nil, plane.TicketOutcome{}, &Problem{Refusal: Rejected, Cause: err}
	case ctx.Err() != nil:
		return nil, plane.TicketOutcome{}, ctx.Err()
	}
	warning := strings.TrimPrefix(plane.Public(err).Message, conn.Slug+": ")
	return nil, plane.TicketOutcome{Warning: "The credential is stored, but the server could not be asked: " + warning}, nil
}

// arrived makes a stored credential count: policy, memory, sessions, catalog.
func (s *Service) arrived(ctx context.Context, who plane.Principal, conn plane.Connection, listed *catalog.Listed) error {
	ctx = context.WithoutCancel(ctx)
	s.o.Connections.Forget(conn.ID)
	s.o.Upstream.Drop(conn.ID)
	if err := s.o.Reload(ctx); err != nil {
		return err
	}
	if listed == nil {
		return nil
	}
	g, err := s.o.Policy().Retry(who, conn)
	if err != nil {
		return err
	}
	if err := s.o.Adopt(ctx, g, *listed); err != nil {
		s.o.Log.Warn("the first listing could not be stored", "connection", conn.ID, "err", err)
	}
	return nil
}

// lost names what happened to a ticket that somebody else moved.
func (s *Service) lost(ctx context.Context, hash string, who plane.Principal) error {
	k, err := s.o.Store.Ticket(ctx, hash)
	if err != nil {
		return refuse(NotFound)
	}
	if p := open(k, who, s.o.LocalOnly, s.o.Clock.Now()); p != nil {
		return p
	}
	return refuse(Again)
}
