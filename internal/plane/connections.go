package plane

import (
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// Auth is how a connection signs in: none, bearer, api_key:<header>,
// basic:<user> or oauth.
type Auth string

// The kinds without a parameter, and the prefixes of those with one.
const (
	AuthNone   Auth = "none"
	AuthBearer Auth = "bearer"
	AuthOAuth  Auth = "oauth"

	authKey   = "api_key:"
	authBasic = "basic:"
)

// Header is the header that the credential travels in, "" for none.
func (a Auth) Header() string {
	if h, ok := strings.CutPrefix(string(a), authKey); ok {
		return h
	}
	if a == AuthNone || a == "" {
		return ""
	}
	return "Authorization"
}

// BasicUser is the user of basic:<user>, and whether a is of that kind.
func (a Auth) BasicUser() (string, bool) { return strings.CutPrefix(string(a), authBasic) }

// Pasted reports whether a person gives the credential by hand.
func (a Auth) Pasted() bool { return a != AuthNone && a != AuthOAuth && a != "" }

// reservedHeaders frame a message, name its target or are set by the wire: none
// of them may carry a key (field case F200).
var reservedHeaders = []string{"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection", "Keep-Alive", "Te",
	"Trailer", "Upgrade", "Proxy-Authorization", "Proxy-Connection", "Proxy-Authenticate", "Accept", "Accept-Encoding", "Cookie", "Origin", "Expect",
	"Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-Id", "Traceparent", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// ParseAuth reads an auth kind as people write it.
func ParseAuth(s string) (Auth, error) {
	if h, ok := strings.CutPrefix(s, authKey); ok {
		if !headerName(h) {
			return "", Errorf(InvalidInput, "%q is no name of a header that may carry a key.", h).At("auth").Then("--auth api_key:X-Api-Key")
		}
		return Auth(authKey + textproto.CanonicalMIMEHeaderKey(h)), nil
	}
	if u, ok := strings.CutPrefix(s, authBasic); ok {
		if u == "" || strings.ContainsAny(u, ":\r\n") || !printableASCII(u) {
			return "", Errorf(InvalidInput, "basic:<user> names a user without a colon.").At("auth").Then("--auth basic:ada")
		}
		return Auth(s), nil
	}
	switch Auth(s) {
	case AuthNone, AuthBearer, AuthOAuth:
		return Auth(s), nil
	}
	return "", Errorf(InvalidInput, "auth is %q; known are none, bearer, api_key:<header>, basic:<user> and oauth.", s).At("auth")
}

func headerName(h string) bool {
	if h == "" || len(h) > 100 || slices.Contains(reservedHeaders, textproto.CanonicalMIMEHeaderKey(h)) || strings.EqualFold(h, "Authorization") {
		return false
	}
	for i := range len(h) {
		c := h[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", rune(c)) {
			return false
		}
	}
	return !strings.HasPrefix(strings.ToLower(h), "mcp-param-")
}

func printableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// ConnectionState says whether a connection has a credential that works.
//
//	awaiting_credential -> connected <-> auth_error
//
// Only a completed sign-in or a failed refresh moves it; being turned off is
// beside it.
type ConnectionState string

// The states.
const (
	StateAwaiting  ConnectionState = "awaiting_credential"
	StateConnected ConnectionState = "connected"
	StateAuthError ConnectionState = "auth_error"
)

// Origin says where a connection comes from.
type Origin string

// A pinned connection stands in config and no command changes it; one that a
// declaration asked for comes and goes with that.
const (
	Pinned        Origin = "pinned"
	Added         Origin = "added"
	OfDeclaration Origin = "declared"
)

// DeclaredAs is the declaration that a connection was made for, or added from.
type DeclaredAs struct {
	Name   string   `json:"name,omitempty"`
	Layer  Layer    `json:"layer,omitempty"`
	Secret string   `json:"secret,omitempty"` // what it is signed in with: secret:<ref>, or "" for a person's sign-in
	Rev    int64    `json:"rev,omitempty"`    // of that secret
	Auth   Auth     `json:"auth,omitempty"`   // as the declaration says; the server may have been found to want another
	Allow  []string `json:"allow,omitempty"`  // the declaration's tool filters
	Deny   []string `json:"deny,omitempty"`
	Run    *Command `json:"run,omitempty"` // of a stdio server
}

// Connection is one account at one server, owned by one scope.
type Connection struct {
	ID        ConnectionID
	Scope     Scope
	Slug      string
	Label     string
	Endpoint  string
	Auth      Auth
	TokenEnv  string   // the variable that holds a pinned credential
	SecretEnv string   // the variable that holds a pinned OAuth client's secret
	Agents    []string // empty: every open agent
	Enabled   bool
	Version   int64  // raised by people's changes; fences offers and dispatches
	Digest    string // of what a person set, so a restart can tell a change
	MaxBytes  int    // response cap, 0 for the limit's
	Origin    Origin
	State     ConnectionState
	Reason    string // of auth_error: a code, see Reasons
	CreatedBy string // id of the principal
	CreatedAt time.Time
	OAuth     OAuthOptions
	Prefs     Preferences
	Fixed     Preferences // what config says beside; no command changes it
	Declared  DeclaredAs  // the declaration behind it, if any
	Slot      bool        // known by its address: the account that a client without new_account means
	Throttle  Throttle    // config alone says it
}

// Stdio reports that the server is a process of ours, in a sandbox.
func (c *Connection) Stdio() bool { return strings.HasPrefix(c.Endpoint, stdioScheme) }

// Out is the rule that leaves a tool out, or "".
func (c *Connection) Out(name string) string {
	if why := c.Fixed.Out(name); why != "" {
		if c.Origin != Pinned {
			return why + " (by its declaration)"
		}
		return why + " (pinned in config)"
	}
	return c.Prefs.Out(name)
}

// WithoutQuery is an address without its query, which may be secret.
func WithoutQuery(endpoint string) string {
	endpoint, _, _ = strings.Cut(endpoint, "?")
	return endpoint
}

// Target is the argument path that names what a tool's effects are about, or "".
func (c *Connection) Target(tool string) string {
	if t, ok := c.Fixed.Targets[tool]; ok {
		return t
	}
	return c.Prefs.Targets[tool]
}

// KeyArgument is the argument that takes a tool's idempotency key, or "".
func (c *Connection) KeyArgument(tool string) string {
	if k, ok := c.Fixed.Keys[tool]; ok {
		return k
	}
	return c.Prefs.Keys[tool]
}

// Labels are the connection's.
func (c *Connection) Labels() Labels {
	switch {
	case c.Fixed.Labels != nil:
		return *c.Fixed.Labels
	case c.Prefs.Labels != nil:
		return *c.Prefs.Labels
	}
	return DefaultLabels
}

// Holds says whether new and changed definitions wait for a person.
func (c *Connection) Holds() bool { return c.Fixed.Hold || c.Prefs.Hold }

// Reasons of auth_error.
const (
	ReasonRejected   = "rejected"    // the server refuses the credential
	ReasonRevoked    = "revoked"     // the refresh token is refused
	ReasonExpired    = "expired"     // the access token ended and there is none to renew it
	ReasonKeyMissing = "key_missing" // it was sealed with a key that is gone
	ReasonUnreadable = "unreadable"  // the sealed credential does not open
	ReasonUncertain  = "uncertain"   // two refreshes in a row got no answer
	ReasonNeedsAuth  = "needs_auth"  // the server was believed open and is not
	ReasonUnknownUs  = "unknown_us"  // the authorization server no longer knows our client
)

// ReasonText is the sentence for a reason of auth_error.
func ReasonText(reason string) string {
	switch reason {
	case ReasonRejected:
		return "the server rejected the credential"
	case ReasonRevoked:
		return "the server withdrew the sign-in"
	case ReasonExpired:
		return "the sign-in expired"
	case ReasonKeyMissing:
		return "the key that its credential was sealed with is missing"
	case ReasonUnreadable:
		return "its sealed credential does not open"
	case ReasonUncertain:
		return "the server did not answer two refreshes in a row"
	case ReasonUnknownUs:
		return "the authorization server no longer knows Patchbay"
	case ReasonNeedsAuth:
		return "the server now asks for a sign-in"
	}
	return "the sign-in does not work"
}

// OAuthOptions are what a person set for one connection's sign-in, and what was
// learned about its server.
type OAuthOptions struct {
	ClientID      string `json:"client_id,omitempty"`      // pre-registered
	ClientAuth    string `json:"client_auth,omitempty"`    // none, client_secret_basic, client_secret_post
	ClientIssuer  string `json:"client_issuer,omitempty"`  // whom that client is known to
	OmitResource  bool   `json:"omit_resource,omitempty"`  // the server refuses RFC 8707
	TrustedIssuer string `json:"trusted_issuer,omitempty"` // an issuer that differs from where it was found
	AuthServer    string `json:"auth_server,omitempty"`    // where nothing names one
	SkipPKCECheck bool   `json:"skip_pkce_check,omitempty"`
	NoOffline     bool   `json:"no_offline,omitempty"` // learned: offline_access is refused
	NoCIMD        bool   `json:"no_cimd,omitempty"`    // learned: an authorize with our document did not return
	Tried         string `json:"tried,omitempty"`      // the client identity of an authorize that did not return yet
	StepUp        string `json:"step_up,omitempty"`    // scopes that a call was refused for
	Granted       string `json:"granted,omitempty"`    // learned: the scopes of the last sign-in
	Grown         string `json:"grown,omitempty"`      // those of them that the sign-in before had not
}

// EgressName is what an entry of egress.allow calls the connection. A bare name
// belongs to what the operator or an org admin named; everybody else's carries
// its scope, so that nobody takes an exception by taking a name.
func (c *Connection) EgressName() string {
	if c.Origin == Pinned || c.Origin == OfDeclaration && c.Declared.Layer == LayerRegistry || c.Scope.Kind == ScopeOrg || c.Scope.Kind == ScopeUser && c.Scope.Name == Local.ID {
		return c.Slug
	}
	return c.FullName()
}

// FullName is scope/slug.
func (c *Connection) FullName() string { return c.Scope.String() + "/" + c.Slug }

// ParseScope reads a scope as it is stored: org, agent:<slug>, team:<id> or
// user:<person>.
func ParseScope(s string) (Scope, bool) {
	kind, name, _ := strings.Cut(s, ":")
	sc := Scope{Kind: ScopeKind(kind), Name: name}
	switch sc.Kind {
	case ScopeOrg:
		return sc, name == ""
	case ScopeAgent, ScopeTeam, ScopeUser:
		return sc, name != ""
	}
	return sc, false
}

// Credential is a sealed credential as it rests. Rev is raised by every stored
// set and keys what was derived from it; a live session outlives it.
type Credential struct {
	Connection ConnectionID
	Scope      Scope
	Rev        int64
	Blob       []byte
	ExpiresAt  time.Time // of the access token; zero when unknown
	Started    time.Time // when a refresh of this rev was begun and not finished
	Tries      int       // refreshes of this rev whose outcome nobody knows
}

// Ticket is the record of one connect link.
//
//	pending -> opened -> completed
//	pending | opened -> authorizing -> completed
//	any open one -> cancelled (removed, or superseded by a newer link) | expired
type Ticket struct {
	Hash       string // hex SHA-256 of the nonce; the nonce is not stored
	ID         string // tkt_…
	Connection ConnectionID
	Version    int64  // of the connection when the link was made
	Kind       Auth   // what is asked for
	Asker      string // id of the principal
	Email      string // a verified address that alone may open it
	OpenedBy   string // id of whom it is bound to
	State      TicketState
	CreatedAt  time.Time
	ExpiresAt  time.Time
	Pending    []byte // sealed: verifier, state, client, endpoints
	Outcome    TicketOutcome
	Superseded bool
	Return     string // where the browser goes afterwards: an agent's slug, or ""
}

// TicketState is where a ticket stands.
type TicketState string

// The states of a ticket.
const (
	TicketPending     TicketState = "pending"
	TicketOpened      TicketState = "opened"
	TicketAuthorizing TicketState = "authorizing"
	TicketCompleted   TicketState = "completed"
	TicketCancelled   TicketState = "cancelled"
)

// Open reports whether a ticket of that state may still be used.
func (s TicketState) Open() bool {
	return s == TicketPending || s == TicketOpened || s == TicketAuthorizing
}

// TicketOutcome is what a completed sign-in gave.
type TicketOutcome struct {
	Tools   int    `json:"tools"`
	Warning string `json:"warning,omitempty"`
}

// OAuthClient is who we are at one authorization server for one redirect URI.
type OAuthClient struct {
	Issuer   string
	Redirect string
	Blob     []byte // sealed: id, secret, method
	MadeAt   time.Time
}

// Revocation is a token whose revocation is still owed.
type Revocation struct {
	ID    string
	Blob  []byte // sealed: token, hint, endpoint, client, egress name
	Tries int
	DueAt time.Time
}

// Sealed is a sealed blob with the place and row where it rests.
type Sealed struct {
	Place string
	Key   string
	Num   int64 // -1 before the first row
	Blob  []byte
}
