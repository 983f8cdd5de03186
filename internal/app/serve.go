package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"patchbay/internal/plane"
)

// SocketName is the socket in the data directory whose caller is cli:local.
const SocketName = "patchbay.sock"

type localKey struct{}

// Run serves until ctx ends. It returns once everything listens to nothing any
// more; Close does the rest.
func (a *App) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tcp, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return plane.Errorf(plane.Unavailable, "%s cannot be listened on; is another Patchbay running?", a.cfg.Listen).
			Then("patchbay status, or another listen address in patchbay.yaml").Because(err)
	}
	addr := tcp.Addr()
	a.addr.Store(&addr)
	sock, err := listenSocket(filepath.Join(a.cfg.Data, SocketName))
	if err != nil {
		tcp.Close()
		return err
	}
	errLog := slog.NewLogLogger(a.o.Log.Handler(), slog.LevelWarn)
	listener := func(h http.Handler) *http.Server {
		return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: errLog}
	}
	onTCP, onSocket := listener(a.sameHost(a.handler)), listener(a.handler)
	onSocket.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, localKey{}, true) }
	a.servers = []*http.Server{onTCP, onSocket}
	if err := a.engine.Start(ctx); err != nil {
		return errors.Join(err, tcp.Close(), sock.Close())
	}
	onTCP.BaseContext = func(net.Listener) context.Context { return a.ending.calls }
	onSocket.BaseContext = onTCP.BaseContext
	for s, l := range map[*http.Server]net.Listener{onTCP: tcp, onSocket: sock} {
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				a.give(plane.Errorf(plane.Unavailable, "A listener failed.").Because(err))
			}
		}()
	}
	if err := a.replica.look(ctx); err != nil {
		return errors.Join(err, tcp.Close(), sock.Close())
	}
	close(a.ready)
	a.maintain(ctx)
	defer a.drain()
	look := time.NewTicker(lostEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-a.failed:
			return err
		case <-look.C:
			if err := a.store.LostBehind(); err != nil {
				a.o.Log.Error("a record written behind was lost", "err", err, "cause", errors.Unwrap(err))
			}
		}
	}
}

// maintain does what is due now and then, until ctx ends.
func (a *App) maintain(ctx context.Context) {
	every := func(d time.Duration, fn func()) {
		a.work.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					fn()
				}
			}
		})
	}
	a.work.Go(func() { a.keys.Resume(ctx) })
	if a.store.Kind() != "sqlite" {
		a.replica.watch(ctx)
	}
	if a.cfg.Limits.CatalogRefresh > 0 {
		a.work.Go(func() {
			a.worker.Run(ctx, func(err error) { a.o.Log.Warn("the catalogs' upkeep stopped short", "err", err) })
		})
	}
	every(time.Minute, a.agents.Reap)
	every(time.Minute, a.clients.Tick)
	every(time.Second, func() {
		if err := a.auditor.Seal(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("the audit could not be sealed", "err", err)
		}
	})
	every(time.Minute, func() {
		if err := a.strand(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("the credential gateway's requests that nobody holds could not be ended", "err", err)
		}
	})
	every(time.Hour, func() {
		if err := a.forget(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("what is too old could not be forgotten", "err", err)
		}
	})
	tell := func() {
		if err := a.peers.advertise(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("the other replicas could not be told where this one is", "err", err)
		}
	}
	tell()
	every(advertiseTime, tell)
	every(10*time.Minute, func() {
		if err := errors.Join(a.store.SweepSessions(ctx), a.ended.load(ctx)); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("sessions that are over could not be forgotten", "err", err)
		}
	})
	declare := func(all bool) {
		if err := a.Declarations(ctx, all); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("the upkeep of declarations did not end", "err", err)
		}
	}
	a.work.Go(func() { declare(true) })
	every(time.Minute, func() { declare(false) })
	every(time.Minute, func() {
		if err := a.Sweep(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("upkeep did not end", "err", err)
		}
	})
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	a.work.Go(func() {
		defer signal.Stop(hup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				text, err := a.reload(ctx)
				if err != nil {
					a.o.Log.Error("the config could not be read again; the old one stands", "err", err)
					continue
				}
				a.o.Log.Info(text)
			}
		}
	})
}

// Sweep ends what is over by now: links, tokens to revoke, clients and their sign-ins. A test
// ticks by it where serve does so by itself.
func (a *App) Sweep(ctx context.Context) error {
	return errors.Join(a.consent.Sweep(ctx), a.conns.RevokeDue(ctx), a.store.SweepClients(ctx, a.o.Clock.Now().Add(-clientKept)))
}

// lostEvery is how often it is looked whether a record was lost.
const lostEvery = 5 * time.Second

// Ready is closed when the app serves.
func (a *App) Ready() <-chan struct{} { return a.ready }

// Addr is the address that is listened on, once Ready.
func (a *App) Addr() string { return (*a.addr.Load()).String() }

// SignInLink is a fresh one-time link for the local admin's browser, or "" where
// people sign in at an issuer.
func (a *App) SignInLink() string {
	link, err := a.signInLink()
	if err != nil {
		return ""
	}
	return link
}

// listenSocket makes the socket with mode 0600 from its first moment: it is
// made in a directory that only its owner can enter. A dead one is replaced.
func listenSocket(path string) (net.Listener, error) {
	if len(path) > 100 {
		return nil, plane.Errorf(plane.InvalidInput, "The data directory's path is too long for a socket: %s.", path).Then("Set data to a shorter path.")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, plane.Errorf(plane.Unavailable, "The old socket %s cannot be removed.", path).Because(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The socket %s cannot be made.", path).Because(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(plane.Errorf(plane.Unavailable, "The socket's mode cannot be set.").Because(err), l.Close())
	}
	return l, nil
}

// sameHost refuses requests whose Host is neither this loopback listener nor the
// public address, and requests that a page of another site made: a page on the
// web must not reach us by a name that resolves here, nor with somebody's cookie.
// The browser coming back from an authorization server is the one thing that
// another site may send here, and it changes nothing but by its state.
func (a *App) sameHost(next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(a.Addr()) // from our own listener
	public, _ := url.Parse(a.publicURL())     // checked with the config
	loop := func(hostport string) bool {
		host, p, err := net.SplitHostPort(hostport)
		if err != nil {
			return false
		}
		return p == port && loopbackHost(strings.ToLower(host))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !(a.cfg.loopback() && loop(r.Host)) && !strings.EqualFold(r.Host, public.Host) && (a.cfg.loopback() || r.URL.Path != "/healthz") {
			http.Error(w, "The Host header names another place.", http.StatusForbidden)
			return
		}
		if a.clients.Serves(r.URL.Path) {
			next.ServeHTTP(w, r) // for whoever asks: no cookie counts there
			return
		}
		// A form of a page without referrer sends "null"; where it comes from is
		// said by Sec-Fetch-Site then.
		o := r.Header.Get("Origin")
		if o == "null" && r.Header.Get("Sec-Fetch-Site") == "same-origin" {
			o = ""
		}
		if o != "" {
			u, err := url.Parse(o)
			ours := err == nil && (a.cfg.loopback() && u.Scheme == "http" && loop(u.Host) || u.Scheme == public.Scheme && strings.EqualFold(u.Host, public.Host))
			if !ours {
				http.Error(w, "The Origin header names another place.", http.StatusForbidden)
				return
			}
		}
		if s := r.Header.Get("Sec-Fetch-Site"); s != "" && s != "same-origin" && s != "none" && !(r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate") {
			http.Error(w, "Requests from other sites are refused.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Opens lists what egress.allow opens.
func (a *App) Opens() []string { return a.guard.Opens() }

// Scripted reports that the default model is the stand-in.
func (a *App) Scripted() bool { return a.live.Load().models()["default"].Provider == "scripted" }
