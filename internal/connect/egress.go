package connect

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// EgressLease is a destination's secret on loan for one request that an agent sends by
// itself. It is the only way to that secret, and good for the grant's host and port.
type EgressLease struct {
	grant    policy.EgressGrant
	value    secret.Text
	redactor *Redactor
	inner    *Lease // of a connection's credential
	now      func() time.Time
	c        *Connections // nil where nothing is lent
	key      string       // of what is held opened
}

// heldSecret is a secret, opened, with what finds it in an answer.
type heldSecret struct {
	value    secret.Text
	redactor *Redactor
	until    time.Time // when it is read anew; zero: when it is told of a change
}

// LendEgress opens the secret that a grant's destination names. It refuses the zero grant.
// A destination that names none lends nothing.
func (c *Connections) LendEgress(ctx context.Context, g policy.EgressGrant) (*EgressLease, error) {
	if !g.Valid() {
		return nil, plane.Errorf(plane.Forbidden, "No grant, no credential.")
	}
	l := &EgressLease{grant: g, now: c.o.Clock.Now}
	kind, ref, _ := strings.Cut(g.Destination().Secret, ":")
	switch kind {
	case "":
		return l, nil
	case "connection":
		return l, c.lendConnection(ctx, l)
	case "secret":
		l.c, l.key = c, "secret "+g.Team()+" "+ref
		held, err := c.heldSecret(ctx, l.key, func() (vault.Held, error) {
			h, err := c.o.Vault.Get(context.WithoutCancel(ctx), vault.Name{Team: g.Team(), Ref: ref})
			if plane.KindOf(err) == plane.NotFound {
				e := *plane.Public(err)
				e.Kind = plane.Unauthenticated
				err = &e
			}
			return h, err
		})
		l.value, l.redactor = held.value, held.redactor
		return l, err
	case "github_app":
		l.c, l.key = c, "github_app "+g.Team()+" "+ref
		held, err := c.heldSecret(ctx, l.key, func() (vault.Held, error) { return c.mint(ctx, g.Team(), ref) })
		l.value, l.redactor = held.value, held.redactor
		return l, err
	}
	return nil, plane.Errorf(plane.Unavailable, "The destination %s is signed in by %s, which is not set up here.", g.Destination().Name, kind)
}

func (c *Connections) lendConnection(ctx context.Context, l *EgressLease) error {
	g, ok := l.grant.Connection()
	if !ok {
		return plane.Errorf(plane.Unavailable, "The destination %s names a connection that is not there.", l.grant.Destination().Name)
	}
	var err error
	if l.inner, err = c.Lend(ctx, g); err != nil {
		return err
	}
	s := l.inner.set()
	if s == nil {
		return nil
	}
	l.redactor, l.c = s.redactor, c
	if s.m.s.Kind == "oauth" {
		l.value = secret.New(s.m.s.Access)
	} else {
		l.value = secret.New(s.m.s.Pasted)
	}
	return nil
}

// maxHeldSecrets bounds what is held opened.
const maxHeldSecrets = 1000

// heldSecret gives what is held opened, or reads it.
func (c *Connections) heldSecret(ctx context.Context, key string, read func() (vault.Held, error)) (heldSecret, error) {
	c.mu.Lock()
	held, ok := c.held[key]
	gen := c.heldGen
	c.mu.Unlock()
	if ok && (held.until.IsZero() || c.o.Clock.Now().Before(held.until)) {
		return held, nil
	}
	// One read for all who ask, but none that began before something changed.
	got, err, _ := c.reads.Do(strconv.FormatInt(gen, 10)+" "+key, func() (any, error) { return read() })
	if err != nil {
		return heldSecret{}, err
	}
	h := got.(vault.Held)
	h.Value.Expose(func(v string) {
		values := []string{v}
		if ok { // an answer under way may still bring the one before
			held.value.Expose(func(old string) { values = append(values, old) })
		}
		held = heldSecret{h.Value, NewRedactor(values...), h.Until}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil || len(c.held) >= maxHeldSecrets {
		c.held = map[string]heldSecret{}
	}
	if gen == c.heldGen { // it was not changed meanwhile
		c.held[key] = held
	}
	return held, nil
}

// ForgetSecrets drops what is held opened of teams' secrets: one may have changed.
func (c *Connections) ForgetSecrets() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = nil
	c.heldGen++
}

// Answered is told how the far end took what was injected: what it refused is read, minted
// or renewed anew for the next request. Nothing is sent again.
func (l *EgressLease) Answered(ctx context.Context, status int, challenges []string) {
	if l.c == nil || status != http.StatusUnauthorized {
		return
	}
	if l.inner == nil {
		l.c.forgetHeld(l.key)
		return
	}
	// A request of the agent's own making may be refused for what it asks: only a token that
	// can be renewed is, and no connection is called signed out for it.
	if s := l.inner.set(); s != nil && s.m.s.Kind == "oauth" && s.renewable() {
		l.inner.Rejected(ctx, Rejection{Status: status, Challenges: challenges, Since: l.now()})
	}
}

// Redactor finds the secret in what comes back; nil finds nothing.
func (l *EgressLease) Redactor() *Redactor { return l.redactor }

// Inject puts the secret in place of the placeholder where the destination says it goes,
// and reports whether it did. A placeholder that stands anywhere else is an error, and so
// is a request that goes elsewhere than was granted. The body is read here only where the
// secret goes into it.
func (l *EgressLease) Inject(req *http.Request, placeholder string) (bool, error) {
	port := req.URL.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[req.URL.Scheme]
	}
	n, err := strconv.Atoi(port)
	if err != nil || !l.grant.Admits(req.URL.Scheme, req.URL.Hostname(), n) || req.Host != "" && req.Host != req.URL.Host {
		return false, plane.Errorf(plane.Forbidden, "The request goes elsewhere than was granted.")
	}
	d := l.grant.Destination()
	done := false
	if !l.value.Empty() {
		l.value.Expose(func(v string) { done, err = injectorOf(d.Inject).inject(req, placed{placeholder, v, l.now()}) })
	}
	if err != nil {
		return false, err
	}
	if d.Inject.ReadsBody() && req.Body != nil && req.Body != http.NoBody { // the rest was not looked at yet
		req.Body = Guard(req.Body, placeholder)
	}
	if where := astray(req, placeholder); where != "" {
		return false, plane.Errorf(plane.Forbidden, "The placeholder stands in the request's %s, where %s takes no secret.", where, d.Name)
	}
	return done, nil
}

// astray says where in a request's head a placeholder still stands, plain or encoded as
// requests encode, or nothing.
func astray(req *http.Request, placeholder string) string {
	has := func(s string) bool {
		if strings.Contains(s, placeholder) {
			return true
		}
		if u, err := url.QueryUnescape(s); err == nil && strings.Contains(u, placeholder) {
			return true
		}
		return false
	}
	switch {
	case has(req.URL.Path) || has(req.URL.EscapedPath()):
		return "path"
	case has(req.URL.RawQuery):
		return "query"
	}
	for name, values := range req.Header {
		if strings.Contains(strings.ToLower(name), strings.ToLower(placeholder)) { // names are written in another case
			return "header's name"
		}
		for _, v := range append([]string{name}, values...) {
			if has(v) {
				return "header " + name
			}
			for word := range strings.FieldsSeq(v) {
				if b, err := base64.StdEncoding.DecodeString(word); err == nil && strings.Contains(string(b), placeholder) {
					return "header " + name
				}
			}
		}
	}
	return ""
}

// Guard refuses a body in which the placeholder stands, as it passes.
func Guard(body io.ReadCloser, placeholder string) io.ReadCloser {
	return &guarded{ReadCloser: body, mark: []byte(placeholder)}
}

type guarded struct {
	io.ReadCloser
	mark, tail []byte
}

// ErrPlaceholder is the end of a body that holds the placeholder.
var ErrPlaceholder = plane.Errorf(plane.Forbidden, "The placeholder stands in the request's body, where no secret goes.")

// Read passes bytes on until the placeholder shows.
func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	if n > 0 {
		seen := append(g.tail, p[:n]...)
		if bytes.Contains(seen, g.mark) {
			return 0, ErrPlaceholder
		}
		g.tail = append(g.tail[:0:0], seen[max(0, len(seen)-len(g.mark)+1):]...)
	}
	return n, err
}
