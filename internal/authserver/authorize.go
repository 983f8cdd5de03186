package authserver

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// MaxQuery bounds what a client asks with.
const MaxQuery = 8 << 10

// request is what a client asks of a person, once it holds.
type request struct {
	client   client
	redirect string
	class    class
	host     string // that the answer goes to
	state    string
	hasState bool

	challenge, scope, prompt string
	resource                 Resource
}

// Refused is a request that cannot be granted. Back is where the client hears of it, on
// which the person is sent at once or, where anybody may have made the client up, by a link
// (RFC 9700, section 4.11.2).
type Refused struct {
	Err  error
	Back string
	Host string
	Go   bool
}

func (e *Refused) Error() string { return e.Err.Error() }

// Unwrap is the sentence that a person is told.
func (e *Refused) Unwrap() error { return e.Err }

// Ask is the question to a person whether a client may act for them.
type Ask struct {
	Name    string // as the client says
	Home    string // its home page, where that is the host that vouches for it
	Kind    string // Operators, Document, Registered
	Vouched string // host of its metadata document
	Returns string // host that the answer goes to
	Here    bool   // it goes to a program on the person's own computer
	Private bool   // the same, by a scheme
	Agent   string // "" for the commands
	Address string
	Wanted  plane.Rights
	Given   plane.Rights // what it was let in to do before
	Team    string       // it was let in for
	Teams   []string     // that it may be let in for
	Life    time.Duration
	Before  time.Time // when it was let in; zero for never
	Print   string    // comes back with the answer
}

// Decision is what a person answered.
type Decision struct {
	Allow  bool
	Print  string // of the question that was shown
	Team   string
	Rights plane.Rights // of the wanted; what is not wanted does not count
}

// Begin looks at what a client asks of a person who is signed in. It returns the question,
// or, where the person let it in before to go back to that very host, and looks at the page
// themselves, the address to send the browser back to. A program on their own computer may
// be another one every time, so that it is asked about again (RFC 8252, section 8.6).
func (s *Server) Begin(ctx context.Context, query string, who plane.Principal, looks bool) (ask Ask, back string, err error) {
	q, err := s.read(ctx, query, who)
	if err != nil {
		return Ask{}, "", err
	}
	a, err := s.o.Store.AuthorizationOf(ctx, who.ID, q.client.id, q.resource.Path)
	if err != nil && plane.KindOf(err) != plane.NotFound {
		return Ask{}, "", err
	}
	ask = s.ask(q, who)
	known := err == nil && a.Live(s.o.Clock.Now()) && a.Print == q.print() && a.Rights&ask.Wanted == ask.Wanted
	if known {
		ask.Before, ask.Team, ask.Given = a.CreatedAt, a.Team, a.Rights
	}
	silent := known && q.class == web && looks
	switch {
	case q.prompt == "none" && !silent:
		return Ask{}, "", s.refusal(q, "consent_required", "A person has to be asked.")
	case silent && q.prompt != "consent":
		back, err = s.grant(ctx, q, who, &a, a.Rights&ask.Wanted)
		return Ask{}, back, err
	}
	return ask, "", nil
}

// ask words the question.
func (s *Server) ask(q *request, who plane.Principal) Ask {
	wanted := s.o.May(who, q.resource.wanted(q.scope))
	a := Ask{Name: q.client.name, Home: q.client.uri, Kind: q.client.kind, Returns: q.host, Here: q.class == loopback, Private: q.class == private, Agent: q.resource.Agent,
		Address: s.Issuer() + q.resource.Path, Wanted: wanted, Life: s.o.Limits.ConsentLife, Teams: s.o.Teams(who)}
	if u, err := url.Parse(q.client.id); err == nil && q.client.kind == Document {
		a.Vouched = u.Host
	}
	if home, err := url.Parse(a.Home); q.client.kind == Registered && (err != nil || home.Host != q.host) {
		a.Home = "" // anybody can name anybody's
	}
	if a.Name == "" {
		a.Name = a.Returns
	}
	a.Print = secret.Digest(strings.Join([]string{q.print(), q.redirect, q.resource.Path, strings.Join(wanted.Names(), " "), who.ID}, "\x00"))
	return a
}

// Decide takes a person's answer to the question that Begin put. Where it is about another
// question by now, that one is returned, and nothing was done.
func (s *Server) Decide(ctx context.Context, query string, who plane.Principal, d Decision) (back string, other *Ask, err error) {
	q, err := s.read(ctx, query, who)
	if err != nil {
		return "", nil, err
	}
	ask := s.ask(q, who)
	if d.Print != ask.Print {
		return "", &ask, nil
	}
	if !d.Allow {
		err := s.o.Store.Write(ctx, func(t plane.Tx) error {
			return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "client.authorize", What: readable(q.client.id, maxRedirect) + " " + q.resource.Path, Decision: "deny"})
		})
		return s.answerTo(q, url.Values{"error": {"access_denied"}, "error_description": {"The person said no"}}), nil, err
	}
	if d.Team != "" && !slices.Contains(s.o.Teams(who), d.Team) {
		return "", nil, plane.Errorf(plane.Forbidden, "You are in no such team.").At("team")
	}
	rights := d.Rights & ask.Wanted
	if rights == 0 {
		return "", nil, plane.Errorf(plane.InvalidInput, "The client would be let in to do nothing.").At("scope").Then("Choose what it may do, or deny it.")
	}
	a := plane.Authorization{Person: who.ID, Client: q.client.id, Name: ask.Name, Host: ask.Returns, Print: q.print(), Path: q.resource.Path, Team: d.Team, Rights: rights}
	old, err := s.o.Store.AuthorizationOf(ctx, who.ID, q.client.id, q.resource.Path)
	switch {
	case err == nil && old.Live(s.o.Clock.Now()):
		a.Rights |= old.Rights &^ ask.Wanted // what was not asked about stays with who has it
	case err != nil && plane.KindOf(err) != plane.NotFound:
		return "", nil, err
	}
	back, err = s.grant(ctx, q, who, &a, rights)
	return back, nil, err
}

// grant stores what a person allows, where that is new, and makes the code.
func (s *Server) grant(ctx context.Context, q *request, who plane.Principal, a *plane.Authorization, rights plane.Rights) (string, error) {
	code := secret.Random()
	anew := a.ID == ""
	err := s.o.Store.Write(ctx, func(t plane.Tx) error {
		now := t.Now()
		what := "again"
		if anew {
			a.ID, a.ExpiresAt, what = plane.NewAuthorizationID(now), now.Add(s.o.Limits.ConsentLife), "anew"
			if err := s.o.Store.Authorize(t, a); err != nil {
				return err
			}
		}
		n := plane.SignIn{ID: plane.NewSignInID(now), Authorization: a.ID, Client: a.Client, Team: a.Team, Rights: rights, Challenge: q.challenge, Redirect: q.redirect,
			Refreshes: q.client.refreshes, ExpiresAt: a.ExpiresAt}
		if err := s.o.Store.AddSignIn(t, &n, plane.ClientToken{Hash: secret.Digest(code), SignIn: n.ID, Kind: plane.CodeToken, ExpiresAt: now.Add(codeLife)}); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "client.authorize", What: strings.Join([]string{a.ID, readable(q.client.id, maxRedirect), a.Path, what}, " "), Decision: "allow"})
	})
	if anew {
		s.o.Forget() // what it may do may be less than before
	}
	return s.answerTo(q, url.Values{"code": {code}}), err
}

// print is of all that a person is shown of a client: where any of it changes, they are
// asked again.
func (q *request) print() string {
	back := q.redirect
	if host, rest, ok := loopbackParts(back); ok {
		back = "http://" + host + rest
	}
	return secret.Digest(q.client.print() + back)
}

// answerTo is where the browser goes with an answer (RFC 6749, section 4.1.2; RFC 9207).
func (s *Server) answerTo(q *request, v url.Values) string {
	if q.hasState {
		v.Set("state", q.state)
	}
	v.Set("iss", s.Issuer())
	sep := "?"
	if strings.Contains(q.redirect, "?") {
		sep = "&"
	}
	return q.redirect + sep + v.Encode()
}

// refusal is an error that the client is told of, by way of the person's browser.
func (s *Server) refusal(q *request, code, text string) *Refused {
	return &Refused{Err: plane.Errorf(plane.InvalidInput, "The client asked for something that it does not get: %s", text).Then("The client's maker mends it."),
		Back: s.answerTo(q, url.Values{"error": {code}, "error_description": {ascii(text)}}), Host: q.host,
		Go: q.class == loopback || q.client.kind == Operators}
}

// read judges what a client asks. What is wrong with the client or its redirect URI is told
// to the person alone (RFC 6749, section 4.1.2.1).
func (s *Server) read(ctx context.Context, query string, who plane.Principal) (*request, error) {
	v, err := parseQuery(query)
	if err != nil {
		return nil, err
	}
	q := &request{state: v.Get("state"), hasState: v.Has("state"), challenge: v.Get("code_challenge"), scope: v.Get("scope"), prompt: v.Get("prompt"), redirect: v.Get("redirect_uri")}
	if v.Get("client_id") == "" {
		return nil, plane.Errorf(plane.InvalidInput, "The address names no client.").At("client_id")
	}
	if q.client, err = s.client(ctx, v.Get("client_id")); err != nil {
		return nil, err
	}
	if q.redirect == "" {
		return nil, plane.Errorf(plane.InvalidInput, "The client does not say where it wants its answer.").At("redirect_uri")
	}
	if q.class, q.host, err = redirect(q.redirect); err != nil {
		return nil, err
	}
	if !matches(q.client.redirects, q.redirect) {
		return nil, plane.Errorf(plane.InvalidInput, "The client wants its answer at %s, which is not an address that it is registered with. Nothing is sent there.", readable(q.redirect, 200)).At("redirect_uri").
			Then("If you did not begin this yourself, close this page.")
	}
	switch method := v.Get("code_challenge_method"); {
	case v.Has("request") || v.Has("request_uri"):
		return nil, s.refusal(q, "request_not_supported", "Request objects are not read here.")
	case v.Get("response_type") != "code":
		return nil, s.refusal(q, "unsupported_response_type", "response_type is code.")
	case v.Has("response_mode") && v.Get("response_mode") != "query":
		return nil, s.refusal(q, "invalid_request", "response_mode is query.")
	case method != "S256" || !isChallenge(q.challenge):
		return nil, s.refusal(q, "invalid_request", "PKCE with S256 is needed: code_challenge, and code_challenge_method=S256.")
	case v.Get("resource") == "":
		return nil, s.refusal(q, "invalid_target", "resource is missing: the address of the MCP server.")
	}
	var ok bool
	if q.resource, ok = s.resource(v.Get("resource")); !ok {
		return nil, s.refusal(q, "invalid_target", "resource is none of this server's.")
	}
	if q.resource.Agent != "" {
		a, there := s.o.Agent(q.resource.Agent)
		switch {
		case !there:
			return nil, s.refusal(q, "invalid_target", "There is no agent "+q.resource.Agent+".")
		case !a.MCP:
			return nil, s.refusal(q, "invalid_target", "MCP is off for the agent "+q.resource.Agent+".")
		}
	}
	if s.o.May(who, q.resource.wanted(q.scope)) == 0 {
		return nil, s.refusal(q, "invalid_scope", "You have none of the rights that it asks for.")
	}
	return q, nil
}

// parseQuery reads a query of which nothing stands twice (RFC 6749, section 3.1).
func parseQuery(query string) (url.Values, error) {
	bad := plane.Errorf(plane.InvalidInput, "The address that the client sent you to cannot be read.")
	if len(query) > MaxQuery {
		return nil, plane.Errorf(plane.InvalidInput, "The address that the client sent you to is longer than 8 KiB.")
	}
	v, err := url.ParseQuery(query)
	if err != nil {
		return nil, bad.Because(err)
	}
	if _, twice := single(v); twice != nil {
		return nil, plane.Errorf(plane.InvalidInput, "The address that the client sent you to is ambiguous: %s", twice.text)
	}
	if len(v) == 0 {
		return nil, plane.Errorf(plane.InvalidInput, "Clients send people here to sign in; the address alone does nothing.").Then("Add this server to your client, as docs/agents.md shows.")
	}
	return v, nil
}

// CheckQuery judges what can be judged before anybody is signed in.
func CheckQuery(r *http.Request) error {
	_, err := parseQuery(r.URL.RawQuery)
	return err
}

func isChallenge(s string) bool {
	return len(s) == 43 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}
