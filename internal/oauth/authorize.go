package oauth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/secret"
)

// Verifier makes a PKCE verifier of 43 characters (RFC 7636 §4.1).
func Verifier() secret.Text { return secret.New(random(32)) }

// random is n random bytes in base64url.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Authorize describes one authorization request.
type Authorize struct {
	Server     *Server
	ClientID   string
	Redirect   string
	State      string
	Verifier   secret.Text
	Scopes     []string
	NoResource bool
}

// URL is where the browser goes. What the endpoint's own query holds stays (RFC
// 6749 §3.1).
func (a Authorize) URL() string {
	u, err := url.Parse(a.Server.Authorization)
	if err != nil { // discovery read it
		return ""
	}
	var challenge string
	a.Verifier.Expose(func(v string) {
		sum := sha256.Sum256([]byte(v))
		challenge = base64.RawURLEncoding.EncodeToString(sum[:])
	})
	add := url.Values{"response_type": {"code"}, "client_id": {a.ClientID}, "redirect_uri": {a.Redirect}, "state": {a.State},
		"code_challenge": {challenge}, "code_challenge_method": {"S256"}}
	if !a.NoResource {
		add.Set("resource", a.Server.Resource)
	}
	if len(a.Scopes) > 0 {
		add.Set("scope", strings.Join(a.Scopes, " "))
		if slices.Contains(a.Scopes, "offline_access") && slices.Contains(a.Scopes, "openid") {
			add.Set("prompt", "consent") // OpenID Connect Core §11
		}
	}
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += add.Encode()
	return u.String()
}

// WantedScopes are the scopes to ask for: what the server named, what a step-up
// wants besides, and offline_access where it is listed and not known to be
// refused. Nothing of our own is added.
func WantedScopes(s *Server, also []string, noOffline bool) []string {
	var out []string
	for _, sc := range slices.Concat(s.Scopes, also) {
		if sc != "" && !slices.Contains(out, sc) && !(noOffline && sc == "offline_access") {
			out = append(out, sc)
		}
	}
	if s.Offline && !noOffline && !slices.Contains(out, "offline_access") {
		out = append(out, "offline_access")
	}
	return out
}

// CheckIssuer is RFC 9207 §2.4: an iss that is there must be the issuer's, byte
// for byte, and must be there where the server says that it sends one.
func CheckIssuer(s *Server, iss string, present bool) error {
	switch {
	case present && iss != s.Issuer:
		return failed(nil, "The answer comes from another authorization server than was asked.")
	case !present && s.IssParam:
		return failed(nil, "The answer does not say which authorization server it comes from, although that server always says so.")
	}
	return nil
}
