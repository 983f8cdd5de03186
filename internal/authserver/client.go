package authserver

import (
	"context"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Ways in which a client came to be known.
const (
	Operators  = "operator"   // config names it
	Document   = "document"   // its id is the address of its metadata document
	Registered = "registered" // it registered itself
)

// Ways in which a client shows that it is itself (RFC 7591, section 2).
const (
	authNone  = "none"
	authBasic = "client_secret_basic"
	authPost  = "client_secret_post"
)

// client is one that may ask.
type client struct {
	id, name, uri string
	kind          string
	redirects     []string
	auth          string
	secretHash    string
	refreshes     bool
}

// print is of everything that a client says of itself: where it changes, a person is asked
// again.
func (c *client) print() string {
	return secret.Digest(strings.Join(append([]string{c.id, c.name, c.uri, c.kind, c.auth}, c.redirects...), "\x00"))
}

func noClient() error {
	return plane.Errorf(plane.InvalidInput, "This server knows no client of that id.").At("client_id").
		Then("Take the server out of the client and add it again: it registers anew. A client that cannot is registered by an operator, under clients in patchbay.yaml.")
}

// client finds one by its id. A metadata document is fetched, which is done for nobody who
// is not signed in.
func (s *Server) client(ctx context.Context, id string) (client, error) {
	if c, ok := s.known(id); ok {
		return c, nil
	}
	switch {
	case strings.HasPrefix(id, "https://"):
		return s.document(ctx, id)
	case !strings.HasPrefix(id, "clt_") || len(id) > 64:
		return client{}, noClient()
	}
	c, err := s.o.Store.Client(ctx, id)
	if plane.KindOf(err) == plane.NotFound {
		return client{}, noClient()
	}
	return client{id: c.ID, name: c.Name, uri: c.URI, kind: Registered, redirects: c.Redirects, auth: c.Auth, secretHash: c.SecretHash, refreshes: c.Refreshes}, err
}

// known is a client that config names.
func (s *Server) known(id string) (client, bool) {
	k, ok := s.o.Known[id]
	if !ok {
		return client{}, false
	}
	c := client{id: id, name: k.Name, kind: Operators, redirects: k.Redirects, auth: authNone, refreshes: true}
	if !k.Secret.Empty() {
		c.auth = authPost
		k.Secret.Expose(func(v string) { c.secretHash = secret.Digest(v) })
	}
	return c, true
}

// authenticate tells which client asks for a token. One without a secret is whoever it says:
// its code or token is what counts.
func (s *Server) authenticate(r *http.Request, f url.Values) (string, *refusal) {
	bad := func(why string) (string, *refusal) {
		return "", &refusal{code: "invalid_client", text: why, basic: r.Header.Get("Authorization") != ""}
	}
	id, shown := f.Get("client_id"), f.Get("client_secret")
	if h := r.Header.Get("Authorization"); h != "" {
		user, pass, ok := r.BasicAuth()
		name, nerr := url.QueryUnescape(user) // RFC 6749, section 2.3.1
		word, werr := url.QueryUnescape(pass)
		switch {
		case !ok || nerr != nil || werr != nil:
			return bad("The Authorization header cannot be read.")
		case shown != "" || id != "" && id != name:
			return bad("The client shows itself twice.")
		}
		id, shown = name, word
	}
	if id == "" {
		return bad("client_id is missing.")
	}
	c, ok := s.known(id)
	switch {
	case ok:
	case strings.HasPrefix(id, "https://"):
		c = client{id: id, auth: authNone} // never has a secret
	default:
		stored, err := s.o.Store.Client(r.Context(), id)
		if plane.KindOf(err) == plane.NotFound || len(id) > 64 {
			return bad("This server knows no client of that id.")
		}
		if err != nil {
			return "", &refusal{code: "temporarily_unavailable", text: "The database does not answer.", cause: err}
		}
		c = client{id: stored.ID, auth: stored.Auth, secretHash: stored.SecretHash}
	}
	switch {
	case c.auth == authNone && shown != "":
		return bad("The client has no secret.")
	case c.auth != authNone && subtle.ConstantTimeCompare([]byte(secret.Digest(shown)), []byte(c.secretHash)) != 1:
		return bad("The client's secret is not the right one.")
	}
	return c.id, nil
}

// CheckKnown judges what config says of a client.
func CheckKnown(id string, redirects []string) error {
	if id == "" || readable(id, maxRedirect) != id {
		return plane.Errorf(plane.InvalidInput, "A client's id is one line.")
	}
	if len(redirects) == 0 || len(redirects) > maxRedirects {
		return plane.Errorf(plane.InvalidInput, "A client has 1 to %d redirect_uris.", maxRedirects)
	}
	for _, raw := range redirects {
		if _, _, err := redirect(raw); err != nil {
			return err
		}
	}
	return nil
}
