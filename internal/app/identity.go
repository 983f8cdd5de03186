package app

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"patchbay/internal/authn"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// IdentityConfig says who people are.
type IdentityConfig struct {
	OIDC   OIDCConfig   `yaml:"oidc"`
	Access AccessConfig `yaml:"access"`
	Admins []string     `yaml:"admins"` // a verified email, or issuer|subject
}

// OIDCConfig is the company's OpenID Connect issuer.
type OIDCConfig struct {
	Issuer       string `yaml:"issuer"`
	ClientID     string `yaml:"client_id"`
	ClientSecret string `yaml:"client_secret_env"`
}

// AccessConfig is a Cloudflare Access team.
type AccessConfig struct {
	Team     string `yaml:"team"` // as in <team>.cloudflareaccess.com
	Audience string `yaml:"audience"`
}

// OAuthConfig says how connections sign in.
type OAuthConfig struct {
	CIMD string `yaml:"cimd"` // auto, on, off
}

func (c *Config) loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// known reports whether config says how people sign in.
func (c *Config) known() bool { return c.Identity.OIDC.Issuer != "" || c.Identity.Access.Team != "" }

// localOnly reports that nobody but this machine's owner can be known: a
// loopback install with nothing configured. A public address is something.
func (c *Config) localOnly() bool {
	u, err := url.Parse(c.Public)
	return c.loopback() && !c.known() && (c.Public == "" || err == nil && loopbackHost(u.Hostname()))
}

func (c *Config) checkListen() error {
	_, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		return c.bad("listen", "listen must be host:port, as in %s.", DefaultListen)
	}
	if !c.loopback() && !c.known() {
		e := c.bad("listen", "listen is %s, which others can reach, and nothing says who they are.", c.Listen)
		return e.Then("Configure identity.oidc or identity.access, or listen on " + DefaultListen + ".")
	}
	return nil
}

// checkIdentity holds what one field can be held to by itself.
func (c *Config) checkIdentity() error {
	o, x := c.Identity.OIDC, c.Identity.Access
	if c.Public != "" {
		u, err := url.Parse(c.Public)
		switch {
		case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
			return c.bad("public_url", "public_url is an origin, as in https://patchbay.example.com.")
		case u.Scheme == "http" && !loopbackHost(u.Hostname()), u.Scheme != "http" && u.Scheme != "https":
			return c.bad("public_url", "public_url must be https; http is for loopback only.")
		}
		// As clients write it that read and write addresses (RFC 3986, section 6.2).
		c.Public = strings.TrimSuffix(strings.ToLower(u.Scheme+"://"+u.Host), map[string]string{"https": ":443", "http": ":80"}[u.Scheme])
	}
	switch {
	case o.Issuer != "" && o.ClientID == "":
		return c.bad("identity.oidc", "identity.oidc names no client_id.")
	case c.known() && c.Public == "" && !c.loopback():
		return c.bad("public_url", "Listening on %s needs public_url, the address that callers use.", c.Listen)
	case x.Team != "" && x.Audience == "":
		return c.bad("identity.access", "identity.access names no audience.")
	case x.Team != "" && !plane.ValidSlug(x.Team):
		return c.bad("identity.access", "identity.access.team is the name before .cloudflareaccess.com.")
	case c.OAuth.CIMD != "" && c.OAuth.CIMD != "auto" && c.OAuth.CIMD != "on" && c.OAuth.CIMD != "off":
		return c.bad("oauth.cimd", "oauth.cimd is auto, on or off.")
	}
	if o.Issuer != "" {
		u, err := url.Parse(o.Issuer)
		if err != nil || u.Host == "" || u.Scheme != "https" && !loopbackHost(u.Hostname()) {
			return c.bad("identity.oidc", "identity.oidc.issuer is an https address.")
		}
	}
	return nil
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// publicURL is where browsers reach this server: what config says, else the
// loopback address that is listened on.
func (a *App) publicURL() string {
	if a.cfg.Public != "" || a.addr.Load() == nil || !a.cfg.loopback() {
		return a.cfg.Public
	}
	return "http://" + (*a.addr.Load()).String()
}

func (a *App) openIdentity() error {
	o := authn.Options{Store: a.store, Clock: a.o.Clock, Log: a.o.Log, Local: a.cfg.localOnly(), Fresh: a.replica.knows,
		Secure: func() bool { return strings.HasPrefix(a.publicURL(), "https://") }}
	if c := a.cfg.Identity.OIDC; c.Issuer != "" {
		client, err := issuerClient(c.Issuer)
		if err != nil {
			return err
		}
		key := ""
		if c.ClientSecret != "" {
			if key = os.Getenv(c.ClientSecret); key == "" {
				return plane.Errorf(plane.Unavailable, "The variable %s, which holds the secret of identity.oidc, is not set.", c.ClientSecret)
			}
		}
		o.OIDC = &authn.OIDC{Issuer: c.Issuer, ClientID: c.ClientID, Secret: secret.New(key), Client: client,
			Redirect: func() string { return a.publicURL() + authn.CallbackPath }}
	}
	if c := a.cfg.Identity.Access; c.Team != "" {
		host := c.Team + ".cloudflareaccess.com"
		o.Access = &authn.Access{Issuer: "https://" + host, Audience: c.Audience, Client: bounded(netguard.Infra(host + ":443"))}
	}
	a.auth = authn.New(o)
	return nil
}

func bounded(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, Timeout: 15 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// issuerClient reaches the issuer that config names and the https hosts that its
// own metadata send us to: an issuer may serve its tokens and keys elsewhere.
func issuerClient(issuer string) (*http.Client, error) {
	home, err := hostPort(issuer)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	named := map[string]bool{home: true}
	t := netguard.InfraAmong(func(hostport string) bool {
		mu.Lock()
		defer mu.Unlock()
		return named[hostport]
	})
	return bounded(roundTrip(func(req *http.Request) (*http.Response, error) {
		// Only addresses that the issuer's own discovery document gave get here:
		// go-oidc asks for nothing else.
		if req.URL.Scheme == "https" {
			mu.Lock()
			if len(named) < maxIssuerHosts {
				named[net.JoinHostPort(req.URL.Hostname(), cmp.Or(req.URL.Port(), "443"))] = true
			}
			mu.Unlock()
		}
		return t.RoundTrip(req)
	})), nil
}

const maxIssuerHosts = 8

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// principal tells the caller of a request. The socket's mode is its lock: who
// can open it is the local admin.
func (a *App) principal(r *http.Request) (plane.Principal, error) {
	if local, _ := r.Context().Value(localKey{}).(bool); local {
		return plane.Local, nil
	}
	return a.auth.Principal(r)
}
