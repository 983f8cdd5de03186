package authserver

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

const (
	maxRegistration = 16 << 10
	aside           = 10 * time.Minute // a registered client is begun with by then, or makes room
	maxKnown        = 4096
)

// gates bound how fast clients register: all together, from one network, and from the pages
// of one site.
type gates struct {
	perMinute int

	mu  sync.Mutex
	all *rate.Limiter
	by  map[string]*rate.Limiter
}

// pass reports whether one more may, who is known by all of these.
func (g *gates) pass(now time.Time, known ...string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all, g.by = rate.NewLimiter(rate.Limit(float64(g.perMinute)/60), g.perMinute), map[string]*rate.Limiter{}
	}
	for _, k := range known {
		if k == "" {
			continue
		}
		one := g.by[k]
		if one == nil {
			if len(g.by) >= maxKnown {
				return false // until the oldest are forgotten, which is soon
			}
			share := max(g.perMinute/3, 1)
			one = rate.NewLimiter(rate.Limit(float64(share)/60), share)
			g.by[k] = one
		}
		if !one.AllowN(now, 1) {
			return false
		}
	}
	return g.all.AllowN(now, 1)
}

// forget drops those that may register as often as somebody new.
func (g *gates) forget(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, one := range g.by {
		if one.TokensAt(now) >= float64(one.Burst()) {
			delete(g.by, k)
		}
	}
}

// network is the one that an address is of.
func network(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return "unknown"
	}
	if a = a.Unmap(); a.Is6() {
		if p, err := a.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// Tick does what is due now and then.
func (s *Server) Tick() { s.gates.forget(s.o.Clock.Now()) }

// page is the site whose page asks, if one does.
func page(r *http.Request) string {
	if o := r.Header.Get("Origin"); o != "" {
		return "page " + o[:min(len(o), 200)]
	}
	return ""
}

// registered is the answer to a registration: all that was registered (RFC 7591, section
// 3.2.1).
type registered struct {
	metadata
	IssuedAt int64  `json:"client_id_issued_at"`
	Secret   string `json:"client_secret,omitempty"`
	Ends     *int64 `json:"client_secret_expires_at,omitempty"`
}

// withoutPrivate leaves out redirect URIs with schemes of their own, where a client names
// others beside: it is told what was registered (RFC 7591, section 3.2.1).
func withoutPrivate(uris []string) []string {
	var out []string
	for _, u := range uris {
		if c, _, err := redirect(u); err != nil || c != private {
			out = append(out, u)
		}
	}
	if len(out) == 0 {
		return uris // all are: it is told why
	}
	return out
}

// register takes a client in. Until a person lets it in it can do nothing.
func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	now := s.o.Clock.Now()
	switch {
	case !s.o.Register:
		s.refuse(w, &refusal{code: "access_denied", text: "Clients do not register themselves here; an operator registers them, under clients in patchbay.yaml."})
		return
	case !s.gates.pass(now, network(s.o.Address(r)), page(r)):
		s.refuse(w, &refusal{code: "temporarily_unavailable", text: "Too many clients register. Try again in a minute.", wait: time.Minute})
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		s.refuse(w, &refusal{code: "invalid_client_metadata", text: "A registration is JSON: Content-Type: application/json."})
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRegistration+1))
	var m metadata
	if err != nil || len(body) > maxRegistration || json.Unmarshal(body, &m) != nil {
		s.refuse(w, &refusal{code: "invalid_client_metadata", text: "The registration is no JSON object, or longer than 16 KiB."})
		return
	}
	if m.Auth == "" {
		m.Auth = authBasic // section 2
	}
	if m.Auth != authNone && m.Auth != authBasic && m.Auth != authPost {
		s.refuse(w, &refusal{code: "invalid_client_metadata", text: "token_endpoint_auth_method is none, client_secret_basic or client_secret_post."})
		return
	}
	m.Redirects = withoutPrivate(m.Redirects)
	c, err := m.client(plane.NewClientID(now), Registered)
	if err != nil {
		e := plane.Public(err)
		code := "invalid_client_metadata"
		if e.Field == "redirect_uris" {
			code = "invalid_redirect_uri"
		}
		s.refuse(w, &refusal{code: code, text: e.Message})
		return
	}
	out := registered{IssuedAt: now.Unix(), metadata: metadata{ID: c.id, Name: c.name, URI: c.uri, Redirects: c.redirects, Auth: c.auth,
		Grants: []string{"authorization_code"}, Responses: []string{"code"}}}
	if c.refreshes {
		out.Grants = append(out.Grants, "refresh_token")
	}
	if c.auth != authNone {
		out.Secret, out.Ends = secret.Random(), new(int64)
		c.secretHash = secret.Digest(out.Secret)
	}
	err = s.o.Store.Write(r.Context(), func(t plane.Tx) error {
		return s.o.Store.AddClient(t, &plane.Client{ID: c.id, Name: c.name, URI: c.uri, Redirects: c.redirects, Auth: c.auth, SecretHash: c.secretHash, Refreshes: c.refreshes},
			s.o.Limits.ClientsRegistered, now.Add(-aside))
	})
	if err != nil {
		s.refuse(w, &refusal{code: "temporarily_unavailable", text: plane.Public(err).Message, wait: time.Minute, cause: err})
		return
	}
	answer(w, http.StatusCreated, out)
}
