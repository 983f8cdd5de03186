package app

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"maps"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"patchbay/internal/natsbus"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// NATSConfig is the bus.
type NATSConfig struct {
	URL         string `yaml:"url"`         // nats://host:4222 or tls://…, several with commas
	Credentials string `yaml:"credentials"` // file with a user's JWT and seed
	Embedded    bool   `yaml:"embedded"`    // a server inside this process
	Listen      string `yaml:"listen"`      // of that, on loopback
	Prefix      string `yaml:"prefix"`
	Trusted     bool   `yaml:"trusted_publishers"` // the bare subject's claims are believed
	Decides     bool   `yaml:"allow_decisions"`    // accept and forget are taken
}

// on reports whether there is a bus.
func (n *NATSConfig) on() bool { return n.URL != "" || n.Embedded }

func (n *NATSConfig) prefix() string {
	if n.Prefix == "" {
		return "patchbay"
	}
	return n.Prefix
}

// checkNATS holds what config says of the bus.
func (c *Config) checkNATS() error {
	n := &c.NATS
	if n.URL != "" && n.Embedded {
		return c.bad("nats", "nats names a url, or is embedded; not both.")
	}
	if !n.on() {
		return nil
	}
	for part := range strings.SplitSeq(n.prefix(), ".") {
		if !plane.ValidSlug(part) {
			return c.bad("nats.prefix", "nats.prefix is words of a-z, 0-9 and - with dots between them.")
		}
	}
	if n.Embedded {
		if n.Listen == "" {
			n.Listen = "127.0.0.1:4222"
		}
		host, port, err := net.SplitHostPort(n.Listen)
		if ip := net.ParseIP(host); err != nil || port == "" || ip == nil || !ip.IsLoopback() {
			return c.bad("nats.listen", "nats.listen is an address of loopback, as 127.0.0.1:4222; run a NATS server with TLS where others reach it.")
		}
		return nil
	}
	for raw := range strings.SplitSeq(n.URL, ",") {
		if _, err := natsTarget(raw); err != nil {
			return c.bad("nats.url", "nats.url is nats://host:4222 or tls://host:4222, without user and password; nats.credentials names a file.")
		}
	}
	return nil
}

// natsTarget is where one address of the bus is dialled.
func natsTarget(raw string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Hostname() == "" || u.User != nil || u.Scheme != "nats" && u.Scheme != "tls" {
		return "", plane.Errorf(plane.InvalidInput, "That is no address of a NATS server.")
	}
	port := u.Port()
	if port == "" {
		port = "4222"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// openBus connects to the bus, or starts one inside, and answers there.
func (a *App) openBus() error {
	n := a.cfg.NATS
	if !n.on() {
		return nil
	}
	if n.Trusted {
		a.o.Notice("nats.trusted_publishers: whoever may publish on %s.controller.command says who asks.", n.prefix())
	}
	if n.Decides {
		a.o.Notice("nats.allow_decisions: servers are accepted and forgotten over NATS.")
	}
	options := []nats.Option{nats.Name("patchbay"), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.RetryOnFailedConnect(true), nats.IgnoreDiscoveredServers(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.o.Log.Warn("the bus reports", "err", err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				a.o.Log.Warn("the bus is gone; it is looked for again", "err", err)
			}
		})}
	target := n.URL
	if n.Embedded {
		own, err := a.startNATS(n)
		if err != nil {
			return err
		}
		target = ""
		options = append(options, nats.InProcessServer(a.nats), nats.Token(own))
	} else {
		d, err := busDialer(n.URL)
		if err != nil {
			return err
		}
		options = append(options, nats.SetCustomDialer(d))
		if n.Credentials != "" {
			if _, err := os.Stat(n.Credentials); err != nil {
				return plane.Errorf(plane.Unavailable, "The file %s, which nats.credentials names, cannot be read.", n.Credentials).Because(err)
			}
			options = append(options, nats.UserCredentials(n.Credentials))
		}
	}
	conn, err := nats.Connect(target, options...)
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The bus cannot be connected to.").Because(err)
	}
	a.bus, err = natsbus.Serve(conn, natsbus.Options{Servers: a.registry, Agent: func(slug string) bool { _, ok := a.policy.Load().Agent(slug); return ok },
		Prefix: n.prefix(), Trusted: n.Trusted, Decides: n.Decides, MCP: a.cfg.MCP.On(), Log: a.o.Log})
	return err
}

// busDial dials the servers that config names and nothing else.
type busDial map[string]func(ctx context.Context, network, addr string) (net.Conn, error)

func busDialer(urls string) (busDial, error) {
	out := busDial{}
	for raw := range strings.SplitSeq(urls, ",") {
		target, err := natsTarget(raw)
		if err != nil {
			return nil, err
		}
		out[target] = netguard.DialOnly("tcp", target)
	}
	return out, nil
}

// SkipResolve leaves names to our dialers.
func (busDial) SkipResolve() bool { return true }

// Dial reaches a server of config.
func (d busDial) Dial(network, addr string) (net.Conn, error) {
	dial, ok := d[addr]
	if !ok {
		return nil, netguard.ErrRefused
	}
	return dial(context.Background(), network, addr)
}

// busReady bounds the start of the server inside.
const busReady = 10 * time.Second

// startNATS starts the server inside, and returns what our own connection signs in with.
// Others sign in with Patchbay's tokens: an agent token may publish on its agent's subject
// alone.
func (a *App) startNATS(n NATSConfig) (string, error) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	own := hex.EncodeToString(b[:])
	host, port, _ := net.SplitHostPort(n.Listen) // checked with the config
	p, err := strconv.Atoi(port)
	if err != nil {
		return "", a.cfg.bad("nats.listen", "nats.listen names a port.")
	}
	if p == 0 {
		p = natsserver.RANDOM_PORT
	}
	auth := busAuth{a: a, own: own, prefix: n.prefix(), trusted: n.Trusted, clients: &busClients{}}
	a.nats, err = natsserver.NewServer(&natsserver.Options{ServerName: "patchbay", Host: host, Port: p, NoSigs: true, NoLog: true, MaxPayload: 512 << 10, MaxConn: 1024,
		CustomClientAuthentication: auth})
	if err != nil {
		return "", plane.Errorf(plane.Unavailable, "The bus inside cannot be made.").Because(err)
	}
	go a.nats.Start()
	if !a.nats.ReadyForConnections(busReady) {
		return "", plane.Errorf(plane.Unavailable, "The bus inside cannot listen on %s.", n.Listen).Then("Set nats.listen to a free address.")
	}
	go auth.watch()
	return own, nil
}

// BusAddr is where the bus inside listens, or "".
func (a *App) BusAddr() string {
	if a.nats == nil {
		return ""
	}
	return a.nats.Addr().String()
}

// busAuth admits clients of the bus inside by Patchbay's tokens.
type busAuth struct {
	a       *App
	own     string
	prefix  string
	trusted bool
	clients *busClients
}

// busDeadline is how long a client's sign-in lasts.
const busDeadline = 10 * time.Minute

// Check admits a client and says what it may publish and hear.
func (x busAuth) Check(c natsserver.ClientAuthentication) bool {
	o := c.GetOpts()
	token := o.Token
	if token == "" {
		token = o.Password
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(x.own)) == 1 {
		return true
	}
	shown := secret.New(token)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	who, err := x.a.auth.Token(ctx, shown)
	deadline := time.Now().Add(busDeadline) // a client comes again by itself
	switch {
	case err != nil:
		return false
	case who.Kind == plane.KindAgent && plane.ValidSlug(who.Team):
		// Its own subject and inbox alone: nobody asks for another team, nor hears what
		// another is answered.
		c.RegisterUser(&natsserver.User{Username: who.Token, ConnectionDeadline: deadline, Permissions: allowOnly(x.prefix+".agent."+who.Agent+"."+who.Team+".controller.command", "_INBOX_"+who.Token+".>")})
	case x.trusted && x.a.policy.Load().Admin(who):
		c.RegisterUser(&natsserver.User{Username: who.Token, ConnectionDeadline: deadline, Permissions: allowOnly(x.prefix+".>", "_INBOX.>")})
	default:
		return false
	}
	x.clients.put(c.GetID(), shown)
	return true
}

// busClients are the clients of the bus inside, by the server's ids, with what they signed
// in with.
type busClients struct {
	mu sync.Mutex
	by map[uint64]secret.Text
}

func (c *busClients) put(id uint64, token secret.Text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[uint64]secret.Text{}
	}
	c.by[id] = token
}

// watch sends clients away whose token is no longer good, and forgets who has gone.
func (x busAuth) watch() {
	for x.a.nats.Running() {
		time.Sleep(time.Second)
		x.clients.mu.Lock()
		now := maps.Clone(x.clients.by)
		x.clients.mu.Unlock()
		for id, token := range now {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := x.a.auth.Token(ctx, token)
			cancel()
			gone := x.a.nats.GetClient(id) == nil
			if plane.KindOf(err) == plane.Unauthenticated && !gone {
				gone = x.a.nats.DisconnectClientByID(id) == nil
			}
			if gone {
				x.clients.mu.Lock()
				delete(x.clients.by, id)
				x.clients.mu.Unlock()
			}
		}
	}
}

func allowOnly(publish, hear string) *natsserver.Permissions {
	return &natsserver.Permissions{Publish: &natsserver.SubjectPermission{Allow: []string{publish}}, Subscribe: &natsserver.SubjectPermission{Allow: []string{hear}}}
}

// closeBus answers what is under way and leaves the bus.
func (a *App) closeBus() {
	if a.bus != nil {
		a.bus.Close()
	}
	if a.nats != nil {
		a.nats.Shutdown()
		a.nats.WaitForShutdown()
	}
}
