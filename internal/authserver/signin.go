package authserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"time"

	"patchbay/internal/plane"
)

// How long a code waits for its client, and a refresh may be asked again whose answer was
// lost on the way.
const (
	codeLife  = time.Minute
	graceLife = 30 * time.Second

	// maxGen bounds how often a sign-in is refreshed: who does it oftener asks in a loop.
	maxGen = 10_000
)

// verdict is what becomes of a code or refresh token that somebody shows.
//
// A sign-in goes
//
//	coded ──redeem──> live(0) ──refresh──> live(1) ──refresh──> …
//	  └──────────────────┴────────────────────┴──> ended
//
// and is ended by a code that is shown again or does not fit, by a refresh token that was
// replaced, by whoever takes it back, and by time. Nothing leaves ended.
type verdict int

const (
	refused verdict = iota // nothing changes
	given                  // the next generation of tokens
	again                  // what the last refresh was answered
	ended                  // somebody has what is not theirs: all that came of it ends
)

// shown is what came with a code or refresh token.
type shown struct {
	client, verifier string
	redirect         string // "" where the client leaves it out (OAuth 2.1, section 4.1.3)
	resource         string // "" for the one it was asked for
	at               time.Time
}

// ofCode judges a code (RFC 6749, section 4.1.3; RFC 7636, section 4.6).
func ofCode(n *plane.SignIn, a *plane.Authorization, k *plane.ClientToken, by *shown) verdict {
	switch {
	case !n.EndedAt.IsZero():
		return refused
	case !n.RedeemedAt.IsZero():
		return ended // RFC 6749, section 4.1.2
	case by.client != n.Client || by.redirect != "" && by.redirect != n.Redirect || by.resource != "" && by.resource != a.Path || !proves(by.verifier, n.Challenge):
		return ended
	case !by.at.Before(k.ExpiresAt) || !a.Live(by.at):
		return refused
	}
	return given
}

// ofRefresh judges a refresh token (RFC 9700, section 4.14.2).
func ofRefresh(n *plane.SignIn, a *plane.Authorization, k *plane.ClientToken, by *shown) verdict {
	switch {
	case !n.EndedAt.IsZero() || !by.at.Before(n.ExpiresAt) || !a.Live(by.at):
		return refused
	case by.client != n.Client:
		return ended
	case by.resource != "" && by.resource != a.Path:
		return refused
	case k.Gen == n.Gen && n.Gen >= maxGen:
		return refused
	case k.Gen == n.Gen:
		return given
	case k.Gen == n.Gen-1 && by.at.Sub(n.RotatedAt) < graceLife:
		return again
	}
	return ended
}

// proves checks a verifier against its S256 challenge.
func proves(verifier, challenge string) bool {
	if len(verifier) < 43 || len(verifier) > 128 {
		return false
	}
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}
