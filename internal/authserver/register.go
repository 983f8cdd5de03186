package authserver

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
)

const (
	maxRegistration = 16 << 10
	aside           = 10 * time.Minute // a registered client is begun with by then, or makes room
	maxAddresses    = 4096
)

// gates bound how fast clients register: all together, and from one address.
type gates struct {
	perMinute int

	mu   sync.Mutex
	all  *rate.Limiter
	from map[string]*rate.Limiter
}

// pass reports whether one more may, from an address.
func (g *gates) pass(address string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil || len(g.from) >= maxAddresses {
		if g.all == nil {
			g.all = rate.NewLimiter(rate.Limit(float64(g.perMinute)/60), g.perMinute)
		}
		g.from = map[string]*rate.Limiter{}
	}
	one := g.from[address]
	if one == nil {
		share := max(g.perMinute/3, 1)
		one = rate.NewLimiter(rate.Limit(float64(share)/60), share)
		g.from[address] = one
	}
	return one.AllowN(now, 1) && g.all.AllowN(now, 1)
}

// from is the network that a request came from.
func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	a, perr := netip.ParseAddr(host)
	if err != nil || perr != nil {
		return ""
	}
	if a = a.Unmap(); a.Is6() {
		p, err := a.WithZone("").Prefix(64)
		if err == nil {
			return p.String()
		}
	}
	return a.String()
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
	case !s.gates.pass(from(r), now):
		s.refuse(w, &refusal{code: "temporarily_unavailable", text: "Too many clients register. Try again in a minute.", wait: time.Minute})
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
		out.Secret, out.Ends = random(), new(int64)
		c.secretHash = digest(out.Secret)
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
