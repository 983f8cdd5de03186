package plane

import (
	"strings"
	"time"
)

// PrincipalKind is the kind of caller.
type PrincipalKind string

// The kinds of caller.
const (
	KindLocal   PrincipalKind = "local"   // the socket's owner, or a browser signed in by the link that serve printed
	KindPerson  PrincipalKind = "person"  // signed in by an issuer
	KindService PrincipalKind = "service" // an API token of nobody
	KindAgent   PrincipalKind = "agent"   // an agent token
	KindVisitor PrincipalKind = "visitor" // a browser that holds one connect link and nothing else
)

// Principal is who is calling. It is comparable.
type Principal struct {
	Kind  PrincipalKind
	ID    string // cli:local, issuer|subject of the person, or the token's id
	Email string // only if the issuer says it is verified
	Team  string // the team this request belongs to, if any
	// Channel is the Slack channel that the request was made in, as Slack says; whoever
	// speaks there belongs to the channel's team for that request.
	Channel string
	Agent   string // the agent of an agent token
	Rights  Rights // what a token may do; a session may everything its person may
	Token   string // id of the token that was shown, or ""
}

// Local is the caller on the socket in the data directory: an org admin with a
// user scope of its own.
var Local = Principal{Kind: KindLocal, ID: "cli:local", Rights: AllRights}

// HasUserScope reports whether the caller owns a user scope.
func (p Principal) HasUserScope() bool { return p.Kind == KindLocal || p.Kind == KindPerson }

// ValidChannel reports whether an id is one that Slack gives channels.
func ValidChannel(id string) bool {
	if len(id) < 3 || len(id) > 24 || id[0] != 'C' && id[0] != 'G' {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// ChannelTeam is the team that a Slack channel is where config maps it to none.
func ChannelTeam(channel string) string { return "slack:" + channel }

// ThroughClient reports whether the caller is an MCP client that its person let in. What is
// for a person's own eyes is not its to decide.
func (p Principal) ThroughClient() bool { return strings.HasPrefix(p.Token, prefixAuthorized) }

// NamesUser reports whether the caller's token stands for a person, or a person is
// there.
func (p Principal) NamesUser() bool {
	return p.HasUserScope() || p.Kind == KindAgent && p.ID != "" && p.ID != p.Token
}

// Is reports whether an entry of config (a verified email, or issuer|subject)
// means this person.
func (p Principal) Is(entry string) bool {
	if entry == "" || p.Kind == KindService {
		return false
	}
	return entry == p.ID || p.Email != "" && SameAddress(entry, p.Email)
}

// SameAddress compares email addresses without regard to the case of ASCII
// letters, and of no others: a look-alike must not pass for somebody.
func SameAddress(a, b string) bool { return foldASCII(a) == foldASCII(b) }

func foldASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Address is an address as it is stored and compared.
func Address(s string) string { return foldASCII(s) }

// Name is how the caller is shown to people.
func (p Principal) Name() string {
	if p.Email != "" {
		return p.Email
	}
	return p.ID
}

// Rights are the scopes of an API token.
type Rights uint16

// The rights, in the order of rightNames.
const (
	MCPRead Rights = 1 << iota
	MCPWrite
	RunsRead
	RunsWrite
	ConfigWrite
	AdminRight

	AllRights = MCPRead | MCPWrite | RunsRead | RunsWrite | ConfigWrite | AdminRight
)

var rightNames = []string{"mcp:read", "mcp:write", "runs:read", "runs:write", "config:write", "admin"}

// RightNames are the names of all rights.
func RightNames() []string { return append([]string(nil), rightNames...) }

// Has reports whether all of want are there; admin stands for every one.
func (r Rights) Has(want Rights) bool { return r&AdminRight != 0 || r&want == want }

// Names lists the rights as people write them.
func (r Rights) Names() []string {
	out := []string{}
	for i, n := range rightNames {
		if r&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return out
}

// ParseRights reads names of rights.
func ParseRights(names []string) (Rights, error) {
	var out Rights
next:
	for _, name := range names {
		for i, n := range rightNames {
			if n == name {
				out |= 1 << i
				continue next
			}
		}
		return 0, Errorf(InvalidInput, "There is no scope %q; known are %s.", name, strings.Join(rightNames, ", ")).At("scopes")
	}
	return out, nil
}

// Person is somebody an issuer knows.
type Person struct {
	ID     string // issuer|subject of the first identity
	Email  string // verified, or ""
	Name   string
	SeenAt time.Time

	RevokedAt time.Time // an admin shut them out; zero for nobody did
	Moved     bool      // they have another address since this very sign-in
}

// Token is an API or agent token as it is stored: its hash, never itself.
type Token struct {
	ID        string
	Hash      string // hex SHA-256
	Label     string
	Person    string // whose it is; "" for a service's
	Agent     string // an agent token's
	Team      string
	Rights    Rights
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	UsedAt    time.Time
	RevokedAt time.Time

	// Path is the one path that a client's access token opens; "" for others.
	Path string
}

// WebSession is a signed-in browser. Its cookie's value is not stored.
type WebSession struct {
	Hash      string
	Person    string // id of the person; cli:local for the local admin
	CreatedAt time.Time
	SeenAt    time.Time
}
