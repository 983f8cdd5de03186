package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// SocketName is the socket in the data directory whose caller is cli:local.
const SocketName = "patchbay.sock"

type localKey struct{}

// principal tells the caller of a request. The socket's mode is its lock: who
// can open it is the local admin. Nobody else is known in this version.
func principal(r *http.Request) (plane.Principal, error) {
	if local, _ := r.Context().Value(localKey{}).(bool); local {
		return plane.Local, nil
	}
	return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "Nobody is signed in on this address; the socket in the data directory is open to its owner.").
		Then("Use the patchbay command on the machine that serves.")
}

// Run serves until ctx ends. It returns once everything listens to nothing any
// more; Close does the rest.
func (a *App) Run(ctx context.Context) error {
	tcp, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return plane.Errorf(plane.Unavailable, "%s cannot be listened on; is another Patchbay running?", a.cfg.Listen).
			Then("patchbay status, or another listen address in patchbay.yaml").Because(err)
	}
	a.addr = tcp.Addr()
	sock, err := listenSocket(filepath.Join(a.cfg.Data, SocketName))
	if err != nil {
		tcp.Close()
		return err
	}
	errLog := slog.NewLogLogger(a.o.Log.Handler(), slog.LevelWarn)
	listener := func(h http.Handler) *http.Server {
		return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: errLog}
	}
	onTCP, onSocket := listener(sameHost(a.addr.String(), a.closed)), listener(a.handler)
	onSocket.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, localKey{}, true) }
	a.servers = []*http.Server{onTCP, onSocket}
	if err := a.engine.Start(ctx); err != nil {
		return errors.Join(err, tcp.Close(), sock.Close())
	}
	failed := make(chan error, 2)
	for s, l := range map[*http.Server]net.Listener{onTCP: tcp, onSocket: sock} {
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	close(a.ready)
	look := time.NewTicker(lostEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return plane.Errorf(plane.Unavailable, "A listener failed.").Because(err)
		case <-look.C:
			if err := a.store.LostBehind(); err != nil {
				a.o.Log.Error("a record written behind was lost", "err", err, "cause", errors.Unwrap(err))
			}
		}
	}
}

// lostEvery is how often it is looked whether a record was lost.
const lostEvery = 5 * time.Second

// Ready is closed when the app serves.
func (a *App) Ready() <-chan struct{} { return a.ready }

// Addr is the address that is listened on, once Ready.
func (a *App) Addr() string { return a.addr.String() }

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

// sameHost refuses requests whose Host or Origin is not this loopback listener:
// a page on the web must not reach it by a name that resolves here.
func sameHost(addr string, next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(addr) // from our own listener
	ours := func(hostport string) bool {
		host, p, err := net.SplitHostPort(hostport)
		if err != nil {
			return false
		}
		ip := net.ParseIP(host)
		return p == port && (strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ours(r.Host) {
			http.Error(w, "The Host header names another place.", http.StatusForbidden)
			return
		}
		if o := r.Header.Get("Origin"); o != "" {
			u, err := url.Parse(o)
			if err != nil || u.Scheme != "http" || !ours(u.Host) {
				http.Error(w, "The Origin header names another place.", http.StatusForbidden)
				return
			}
		}
		if s := r.Header.Get("Sec-Fetch-Site"); s != "" && s != "same-origin" && s != "none" {
			http.Error(w, "Requests from other sites are refused.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Opens lists what egress.allow opens.
func (a *App) Opens() []string { return a.guard.Opens() }

// Scripted reports that the default model is the stand-in.
func (a *App) Scripted() bool { return a.cfg.models()["default"].Provider == "scripted" }
