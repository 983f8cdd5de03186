package app

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"patchbay/internal/authn"
	"patchbay/internal/authserver"
	"patchbay/internal/ingress"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// ClientsConfig says which MCP clients may sign people in.
type ClientsConfig struct {
	Register  Switch                  `yaml:"register"`  // clients may register themselves
	Documents Switch                  `yaml:"documents"` // clients may name a metadata document
	Known     map[string]ClientConfig `yaml:"known"`     // by client id
}

// ClientConfig is a client that an operator registered.
type ClientConfig struct {
	Name      string   `yaml:"name"`
	Redirects []string `yaml:"redirect_uris"`
	Secret    string   `yaml:"client_secret_env"`
}

const (
	// clientsLane is whose exceptions of egress.allow the fetching of metadata documents has.
	clientsLane = "clients:documents"
	// clientKept is how long a client that nobody lets in is known, and what is over.
	clientKept = 24 * time.Hour

	commandsPath = "/mcp"
)

func (c *Config) checkClients() error {
	for _, p := range c.TrustedProxies {
		if _, err := proxy(p); err != nil {
			return c.bad("trusted_proxies", "trusted_proxies: %q is neither an address nor a range of them, as 10.0.0.0/8.", p)
		}
	}
	for id, k := range c.Clients.Known {
		if k.Name == "" || len(id) > 200 {
			return c.bad("clients.known", "clients.known: %q needs a name.", id)
		}
		if err := authserver.CheckKnown(id, k.Redirects); err != nil {
			return c.bad("clients.known", "clients.known: %q: %s", id, plane.Public(err).Message)
		}
	}
	return nil
}

// knownClients are those that config names, with their secrets.
func (c *Config) knownClients() (map[string]authserver.Known, error) {
	out := map[string]authserver.Known{}
	for id, k := range c.Clients.Known {
		n := authserver.Known{Name: k.Name, Redirects: k.Redirects}
		if k.Secret != "" {
			v := os.Getenv(k.Secret)
			if v == "" {
				return nil, plane.Errorf(plane.Unavailable, "The variable %s, which holds the secret of the client %s, is not set.", k.Secret, id)
			}
			n.Secret = secret.New(v)
		}
		out[id] = n
	}
	return out, nil
}

// openClients builds the authorization server of our own MCP endpoints.
func (a *App) openClients() error {
	known, err := a.cfg.knownClients()
	if err != nil {
		return err
	}
	o := authserver.Options{Store: a.store, Ring: a.ring, Clock: a.o.Clock, Log: a.o.Log, Limits: a.cfg.Limits, Known: known, Address: a.address,
		Register: a.cfg.Clients.Register.On(), Origins: a.origins, Commands: commandsPath, Agents: ingress.AgentsPath,
		Agent: func(slug string) (plane.Agent, bool) { return a.policy.Load().Agent(slug) },
		May: func(who plane.Principal, r plane.Rights) plane.Rights {
			if !a.policy.Load().Admin(who) {
				r &^= plane.AdminRight
			}
			return r
		},
		Teams:  func(who plane.Principal) []string { return a.policy.Load().TeamsOf(who) },
		Forget: a.auth.Forget, Token: authserver.Prefixes{Access: authn.AccessPrefix, Refresh: authn.RefreshPrefix}}
	if a.cfg.Clients.Documents.On() {
		o.Documents = bounded(a.guard.Untrusted(clientsLane))
	}
	a.clients = authserver.New(o)
	return nil
}

// origins are those that clients may reach this server by: the one that browsers use, and on
// a loopback install without a public address every name of this computer.
func (a *App) origins() []string {
	out := []string{a.publicURL()}
	addr := a.addr.Load()
	if a.cfg.Public != "" || addr == nil || !a.cfg.loopback() {
		return out
	}
	_, port, err := net.SplitHostPort((*addr).String())
	if err != nil {
		return out
	}
	for _, host := range []string{"127.0.0.1", "localhost", "::1"} {
		out = append(out, "http://"+net.JoinHostPort(host, port))
	}
	return out
}

// forClients serves what clients ask for without a person, some of it at paths below an
// endpoint's, and leaves the rest to next.
func (a *App) forClients(next http.Handler) http.Handler {
	machine := a.clients.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.clients.Serves(r.URL.Path) {
			machine.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// address is whom a request comes from: its sender or, where that is a proxy that config
// trusts, the last one before it that is not.
func (a *App) address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !a.cfg.trusts(host) {
		return host
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		if hop = strings.TrimSpace(hop); hop != "" {
			if host = hop; !a.cfg.trusts(hop) {
				break
			}
		}
	}
	return host
}

// trusts reports whether an address is that of a proxy that config trusts.
func (c *Config) trusts(host string) bool {
	at, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(c.TrustedProxies, func(p string) bool {
		prefix, err := proxy(p)
		return err == nil && prefix.Contains(at.Unmap())
	})
}

// proxy reads an entry of trusted_proxies: an address or a range of them.
func proxy(text string) (netip.Prefix, error) {
	if at, err := netip.ParseAddr(text); err == nil {
		return at.Prefix(at.BitLen())
	}
	return netip.ParsePrefix(text)
}
