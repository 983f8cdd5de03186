package authserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/singleflight"

	"patchbay/internal/plane"
)

// Bounds of metadata documents of clients.
const (
	maxDocument  = 16 << 10
	maxDocuments = 256 // kept
	documentTime = 5 * time.Second
	documentKept = 24 * time.Hour // at most, whatever its headers say
	failureKept  = 10 * time.Second
	atOnce       = 8
)

// documents keeps clients' metadata documents for as long as their headers let it.
type documents struct {
	client *http.Client
	flight singleflight.Group

	mu   sync.Mutex
	kept map[string]document
	busy int
}

type document struct {
	client client
	err    error
	until  time.Time
}

// metadata is what a client says of itself, in a document or when it registers (RFC 7591,
// section 2).
type metadata struct {
	ID        string   `json:"client_id,omitempty"`
	Name      string   `json:"client_name,omitempty"`
	URI       string   `json:"client_uri,omitempty"`
	Redirects []string `json:"redirect_uris"`
	Auth      string   `json:"token_endpoint_auth_method,omitempty"`
	Grants    []string `json:"grant_types,omitempty"`
	Responses []string `json:"response_types,omitempty"`
	Auths     []string `json:"token_endpoint_auth_methods_supported,omitempty"` // of a document
}

// documentAddress judges a client id that is the address of a metadata document (draft
// client ID metadata documents, section 3).
func documentAddress(id string) (*url.URL, error) {
	bad := func(why string) (*url.URL, error) {
		return nil, plane.Errorf(plane.InvalidInput, "The client's id is no address of a metadata document: it %s.", why).At("client_id")
	}
	if len(id) > maxRedirect {
		return bad("is longer than 512 characters")
	}
	c, _, err := redirect(id)
	if err != nil || c != web {
		return bad("is no plain https address")
	}
	u, err := url.Parse(id)
	if err != nil || u.Path == "" || u.Path == "/" {
		return bad("has no path")
	}
	for seg := range strings.SplitSeq(u.EscapedPath(), "/") {
		if plain, err := url.PathUnescape(seg); err != nil || plain == "." || plain == ".." {
			return bad("has a path with dots")
		}
	}
	return u, nil
}

// document fetches what a client says of itself, or has it still.
func (s *Server) document(ctx context.Context, id string) (client, error) {
	if s.docs.client == nil {
		return client{}, plane.Errorf(plane.InvalidInput, "This server reads no metadata documents of clients.").At("client_id").Then("An operator turns it on: clients.documents in patchbay.yaml.")
	}
	u, err := documentAddress(id)
	if err != nil {
		return client{}, err
	}
	now := s.o.Clock.Now()
	s.docs.mu.Lock()
	d, ok := s.docs.kept[id]
	s.docs.mu.Unlock()
	if ok && now.Before(d.until) {
		return d.client, d.err
	}
	got, err, _ := s.docs.flight.Do(id, func() (any, error) {
		if !s.docs.enter() {
			return nil, plane.Errorf(plane.Limited, "Too many clients' documents are being read.").Then("Try again in a moment.")
		}
		defer s.docs.leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), documentTime)
		defer cancel()
		var d document
		var life time.Duration
		d.client, life, d.err = s.fetch(ctx, id, u)
		d.until = now.Add(life)
		s.docs.keep(id, d)
		return d, nil
	})
	if err != nil {
		return client{}, err
	}
	d = got.(document)
	return d.client, d.err
}

func (d *documents) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy >= atOnce {
		return false
	}
	d.busy++
	return true
}

func (d *documents) leave() { d.mu.Lock(); d.busy--; d.mu.Unlock() }

func (d *documents) keep(id string, v document) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil || len(d.kept) >= maxDocuments {
		d.kept = map[string]document{}
	}
	d.kept[id] = v
}

// fetch reads one document. It returns for how long what it found may be kept.
func (s *Server) fetch(ctx context.Context, id string, u *url.URL) (client, time.Duration, error) {
	bad := func(cause error, format string, args ...any) (client, time.Duration, error) {
		return client{}, failureKept, plane.Errorf(plane.InvalidInput, "The client's metadata document at %s %s.", u.Host, fmt.Sprintf(format, args...)).At("client_id").
			Then("The client's maker mends it; an operator can register the client by hand, under clients in patchbay.yaml.").Because(cause)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, id, nil)
	if err != nil {
		return bad(err, "cannot be asked for")
	}
	req.Header.Set("Accept", "application/json")
	res, err := s.docs.client.Do(req)
	if err != nil {
		return bad(err, "cannot be fetched")
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case err != nil:
		return bad(err, "did not arrive whole")
	case res.StatusCode != http.StatusOK:
		return bad(nil, "answers %d", res.StatusCode)
	case kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return bad(nil, "is no JSON")
	case len(body) > maxDocument:
		return bad(nil, "is larger than 16 KiB")
	}
	var m metadata
	if err := json.Unmarshal(body, &m); err != nil {
		return bad(err, "cannot be read")
	}
	if m.ID != id {
		return bad(nil, "is about another client")
	}
	if m.Auth != "" && m.Auth != authNone && !slices.Contains(m.Auths, authNone) {
		return bad(nil, "asks for %s; a client with a document shows itself by nothing here but its code's verifier", readable(m.Auth, 40))
	}
	m.Auth = authNone
	c, err := m.client(id, Document)
	if err != nil {
		return bad(err, "does not hold: %s", plane.Public(err).Message)
	}
	if home, err := url.Parse(c.uri); err != nil || home.Host != u.Host {
		c.uri = ""
	}
	return c, freshness(res.Header), nil
}

// freshness is how long an answer may be kept (RFC 9111, section 4.2), within bounds.
func freshness(h http.Header) time.Duration {
	life := 5 * time.Minute
	for part := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(strings.ToLower(part)), "=")
		switch name {
		case "no-store", "no-cache", "must-understand":
			return 0
		case "max-age":
			if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil && n >= 0 {
				life = time.Duration(min(n, int(documentKept/time.Second))) * time.Second
			}
		}
	}
	return life
}

const (
	maxRedirects  = 10
	maxClientName = 80
)

// client judges what a client says of itself.
func (m *metadata) client(id, kind string) (client, error) {
	bad := func(field, format string, args ...any) (client, error) {
		return client{}, plane.Errorf(plane.InvalidInput, format, args...).At(field)
	}
	c := client{id: id, kind: kind, name: readable(m.Name, maxClientName), auth: m.Auth, redirects: m.Redirects, refreshes: len(m.Grants) == 0 || slices.Contains(m.Grants, "refresh_token")}
	if n := len(m.Redirects); n == 0 || n > maxRedirects {
		return bad("redirect_uris", "A client has 1 to %d redirect URIs, not %d.", maxRedirects, n)
	}
	for _, raw := range m.Redirects {
		class, _, err := redirect(raw)
		if err != nil {
			return client{}, err
		}
		if class == private {
			return bad("redirect_uris", "A redirect URI with a scheme of its own is for clients that an operator registered, under clients in patchbay.yaml.")
		}
	}
	if len(m.Grants) > 0 && !slices.Contains(m.Grants, "authorization_code") {
		return bad("grant_types", "A client signs people in by authorization_code.")
	}
	if len(m.Responses) > 0 && !slices.Contains(m.Responses, "code") {
		return bad("response_types", "A client is answered with a code.")
	}
	if m.URI != "" {
		if class, _, err := redirect(m.URI); err == nil && class == web {
			c.uri = m.URI
		}
	}
	return c, nil
}

// readable is a text of somebody's without what cannot be seen, or would move about on a page
// what can. Nothing is left of one that has nothing to read.
func readable(text string, most int) string {
	var b strings.Builder
	n, marks, reads := 0, 0, false
	for _, r := range text {
		switch {
		case n == most:
			b.WriteRune('…')
			return strings.TrimSpace(b.String())
		case unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r):
			if marks++; marks > 2 || n == 0 {
				continue
			}
		case !unicode.IsPrint(r) || strings.ContainsRune(fillers, r):
			continue
		default:
			marks = 0
		}
		reads = reads || unicode.IsLetter(r) || unicode.IsDigit(r)
		b.WriteRune(r)
		n++
	}
	if !reads {
		return ""
	}
	return strings.TrimSpace(b.String())
}

// fillers print as nothing.
const fillers = "\u115f\u1160\u2800\u3164\uffa0\ufffd"
