package consent

import (
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Refusal is why a link cannot be used the way somebody wants to.
type Refusal string

// The refusals, each with the HTTP status that a page answers with.
const (
	NotFound       Refusal = "not_found"
	WrongIdentity  Refusal = "wrong_identity"
	Expired        Refusal = "expired"
	Used           Refusal = "used"
	Cancelled      Refusal = "cancelled"
	BadToken       Refusal = "bad_token"
	Rejected       Refusal = "rejected" // the server refuses the token
	NotAuthorizing Refusal = "not_authorizing"
	Again          Refusal = "again" // a start of the same person won
	OAuthFailed    Refusal = "oauth_failed"
	WrongKind      Refusal = "wrong_kind" // a token on a sign-in link, or the reverse
)

// Status is the HTTP status of a refusal.
func (r Refusal) Status() int {
	switch r {
	case NotFound:
		return 404
	case WrongIdentity:
		return 403
	case Expired, Used, Cancelled:
		return 410
	case BadToken, Rejected, WrongKind:
		return 400
	case NotAuthorizing, Again:
		return 409
	}
	return 502
}

// Sentence says what happened and what to do.
func (r Refusal) Sentence() string {
	switch r {
	case NotFound:
		return "There is no such link. Ask for a new one."
	case WrongIdentity:
		return "This link belongs to somebody else. Whoever asked for it can use it."
	case Expired:
		return "This link expired. Ask for a new one."
	case Used:
		return "This link was used already. If that was not you, remove the connection and connect it again."
	case Cancelled:
		return "This link was replaced by a newer one, or its connection was removed."
	case BadToken:
		return "That is no token: it must be one line of at most 8,192 printable ASCII characters without spaces inside."
	case Rejected:
		return "The server rejected the token. Nothing was stored, and the link still works."
	case NotAuthorizing:
		return "No sign-in was begun with this link. Open the link and press its button."
	case Again:
		return "Another start of this sign-in was faster. Press the button again, or finish the other one."
	case WrongKind:
		return "This connection signs in another way than was tried."
	}
	return "The sign-in did not work. Nothing was stored, and the link still works."
}

// Problem is a refusal with what caused it.
type Problem struct {
	Refusal Refusal
	Detail  string // a sentence for the person, or ""
	Next    string // what to do, where it can be said
	Cause   error
}

// Error is the sentence.
func (p *Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return p.Refusal.Sentence()
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Cause }

func refuse(r Refusal) *Problem { return &Problem{Refusal: r} }

// MaxToken is the longest token that may be pasted, in characters.
const MaxToken = 8192

// The state machine, pure: each plan returns the ticket as it would be, or why
// not. What a plan returns is written by compare-and-swap on what it was made
// from.
//
//	pending --open--> opened --start--> authorizing --callback--> completed
//	   \________________\______complete___________________________/

// isPerson reports whether an id is a person's, so that a ticket is theirs alone.
func isPerson(id string) bool { return strings.Contains(id, "|") }

// owns says whether who may use the ticket, and whether that binds it to them.
// local says that this browser stands for the socket's owner because nobody can
// sign in on this install.
func owns(k plane.Ticket, who plane.Principal, local bool) bool {
	switch {
	case who.ID == "" || who.Kind == plane.KindService || who.Kind == plane.KindAgent && !isPerson(who.ID):
		return false
	case who.Kind == plane.KindVisitor && !(local && !isPerson(k.Asker)):
		return false
	case k.OpenedBy != "":
		return k.OpenedBy == who.ID
	case isPerson(k.Asker):
		return k.Asker == who.ID
	case k.Email != "":
		return who.Email != "" && plane.SameAddress(k.Email, who.Email)
	}
	return true
}

// open judges who comes to a link that is still open.
func open(k plane.Ticket, who plane.Principal, local bool, now time.Time) *Problem {
	if !owns(k, who, local) {
		return refuse(WrongIdentity)
	}
	switch {
	case k.State == plane.TicketCompleted:
		return refuse(Used)
	case k.State == plane.TicketCancelled:
		return refuse(Cancelled)
	case !now.Before(k.ExpiresAt):
		return refuse(Expired)
	}
	return nil
}

// planOpen binds a link to whoever opens it first; it never spends it. A visitor
// is bound when they act: whatever fetches links has no button to press.
func planOpen(k plane.Ticket, who plane.Principal, local bool, now time.Time) (plane.Ticket, *Problem) {
	if p := open(k, who, local, now); p != nil {
		return k, p
	}
	if k.State == plane.TicketPending && who.Kind != plane.KindVisitor {
		k.State, k.OpenedBy = plane.TicketOpened, who.ID
	}
	return k, nil
}

// planComplete spends a link on a pasted token.
func planComplete(k plane.Ticket, who plane.Principal, local bool, now time.Time, token string) (plane.Ticket, *Problem) {
	if p := open(k, who, local, now); p != nil {
		return k, p
	}
	if !k.Kind.Pasted() {
		return k, &Problem{Refusal: WrongKind, Detail: "This server signs in with OAuth; a token cannot be pasted here."}
	}
	if !goodToken(token) {
		return k, refuse(BadToken)
	}
	k.State, k.OpenedBy = plane.TicketCompleted, who.ID
	return k, nil
}

// renewals is how many lives a link has in all, however often it is started.
const renewals = 3

// planStart begins a sign-in; a second start of the same person replaces the
// first. A started sign-in has its own ten minutes.
func planStart(k plane.Ticket, who plane.Principal, local bool, now time.Time, life time.Duration) (plane.Ticket, *Problem) {
	if p := open(k, who, local, now); p != nil {
		return k, p
	}
	if k.Kind != plane.AuthOAuth {
		return k, &Problem{Refusal: WrongKind, Detail: "This connection signs in by " + kindWords(k.Kind) + ", not with OAuth."}
	}
	k.State, k.OpenedBy, k.ExpiresAt = plane.TicketAuthorizing, who.ID, now.Add(life)
	if last := k.CreatedAt.Add(renewals * life); !k.CreatedAt.IsZero() && k.ExpiresAt.After(last) {
		k.ExpiresAt = last // starting again and again does not keep a link alive
	}
	return k, nil
}

// planCallback spends a link on a browser that comes back.
func planCallback(k plane.Ticket, who plane.Principal, local bool, now time.Time) (plane.Ticket, *Problem) {
	if p := open(k, who, local, now); p != nil {
		return k, p
	}
	if k.State != plane.TicketAuthorizing {
		return k, refuse(NotAuthorizing)
	}
	k.State = plane.TicketCompleted
	return k, nil
}

// goodToken admits what a header can carry. Space at the ends is what a paste
// brings along.
func goodToken(s string) bool {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > MaxToken || plane.Placeholder(s) == s {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// kindWords names what is pasted for an auth kind.
func kindWords(a plane.Auth) string {
	if _, ok := a.BasicUser(); ok {
		return "a password"
	}
	if a == plane.AuthBearer {
		return "a token"
	}
	return "an API key"
}
