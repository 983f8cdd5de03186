package plane

import "time"

// Client is an MCP client that registered itself (RFC 7591). Its secret is not stored.
type Client struct {
	ID         string // clt_…
	Name       string
	URI        string // of its home page, as it says
	Redirects  []string
	Auth       string // none, client_secret_basic, client_secret_post
	SecretHash string // hex SHA-256; "" without a secret
	Refreshes  bool   // it takes refresh tokens
	CreatedAt  time.Time
	UsedAt     time.Time // when somebody last let it in; zero for never
}

// Authorization is one person's leave for one client to use one resource for them.
type Authorization struct {
	ID        string // aut_…
	Person    string // cli:local for the local admin
	Client    string // clt_…, the address of its metadata document, or its name in config
	Name      string // of the client, as it was shown
	Host      string // where it was sent back to, as it was shown
	Print     string // of what was shown: what the client says of itself, and where it goes back to
	Path      string // of the resource: /mcp, or an agent's endpoint
	Team      string // whose connections it also uses
	Rights    Rights
	CreatedAt time.Time
	UsedAt    time.Time
	ExpiresAt time.Time // the person signs it in again by then
	RevokedAt time.Time
}

// Live reports whether an authorization holds.
func (a *Authorization) Live(now time.Time) bool {
	return a.RevokedAt.IsZero() && now.Before(a.ExpiresAt)
}

// SignIn is one sign-in of a client under an authorization: its code, and the tokens that
// came of it, all of which end together.
type SignIn struct {
	ID            string // sgn_…
	Authorization string
	Client        string
	Team          string // of the authorization, as it was when this was let in
	Rights        Rights // the same
	Challenge     string // S256 of the verifier
	Redirect      string // as the client sent it
	Refreshes     bool
	CreatedAt     time.Time
	RedeemedAt    time.Time // the code's; zero before
	Gen           int       // how often it was refreshed
	RotatedAt     time.Time
	Answer        []byte // sealed: what the last refresh was answered
	ExpiresAt     time.Time
	EndedAt       time.Time
}

// Kinds of a client's tokens.
const (
	AccessToken  = "access"
	RefreshToken = "refresh"
	CodeToken    = "code"
)

// ClientToken is a code or a token of a sign-in, by its hash.
type ClientToken struct {
	Hash      string // hex SHA-256
	SignIn    string
	Kind      string
	Gen       int
	ExpiresAt time.Time
}
