package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"patchbay/test/peers"
)

// proxied is one of the two proxies that are compared.
type proxied struct {
	pid   int
	addr  string
	auth  string // Proxy-Authorization, or ""
	roots *x509.CertPool
	far   string
	mark  string // what stands for the secret
}

// tunnel is one client's way through a proxy to the far end.
type tunnel struct {
	conn net.Conn
	r    *bufio.Reader
}

func (p *proxied) open() (*tunnel, error) {
	raw, err := net.Dial("tcp", p.addr)
	if err != nil {
		return nil, err
	}
	auth := ""
	if p.auth != "" {
		auth = "Proxy-Authorization: " + p.auth + "\r\n"
	}
	if _, err := fmt.Fprintf(raw, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", p.far, p.far, auth); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(raw, 64), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		raw.Close()
		return nil, fmt.Errorf("CONNECT: %v %v", resp, err)
	}
	host, _, err := net.SplitHostPort(p.far)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, &tls.Config{RootCAs: p.roots, ServerName: host, NextProtos: []string{"http/1.1"}})
	return &tunnel{c, bufio.NewReaderSize(c, 32<<10)}, c.Handshake()
}

// get asks for a path and lets what comes go.
func (t *tunnel) get(p *proxied, method, path, body string) (int64, error) {
	more := ""
	if body != "" {
		more = fmt.Sprintf("Content-Length: %d\r\nContent-Type: application/json\r\n", len(body))
	}
	if _, err := io.WriteString(t.conn, method+" "+path+" HTTP/1.1\r\nHost: "+p.far+"\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer "+p.mark+"\r\n"+more+"\r\n"+body); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(t.r, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // for the message alone
		return 0, fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	return io.Copy(io.Discard, resp.Body)
}

// load drives so many clients, each through a tunnel that is open already.
func (b *bench) through(p *proxied, clients int, method, path, body string) (measured, error) {
	tunnels := make([]*tunnel, clients)
	for i := range tunnels {
		var err error
		if tunnels[i], err = p.open(); err != nil {
			return measured{}, err
		}
		defer tunnels[i].conn.Close()
		if _, err := tunnels[i].get(p, method, path, body); err != nil {
			return measured{}, err
		}
	}
	before, err := cpuOf(p.pid)
	if err != nil {
		return measured{}, err
	}
	began := time.Now()
	end := began.Add(time.Duration(b.millis) * time.Millisecond)
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for _, t := range tunnels {
		wg.Go(func() {
			for time.Now().Before(end) && failed.Load() == nil {
				if _, err := t.get(p, method, path, body); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	wall := time.Since(began)
	if err := failed.Load(); err != nil {
		return measured{}, *err
	}
	time.Sleep(120 * time.Millisecond) // what is written behind belongs to the cost
	after, err := cpuOf(p.pid)
	if err != nil {
		return measured{}, err
	}
	calls := float64(max(n.Load(), 1))
	return measured{perS: calls / wall.Seconds(), cpu: float64((after - before).Microseconds()) / calls}, nil
}

// stream takes so many bytes through one tunnel, and tells MB per second and by how much
// the proxy's own memory grew at most, in MB.
func (b *bench) stream(p *proxied, bytes int64) (rate, grew float64, err error) {
	t, err := p.open()
	if err != nil {
		return 0, 0, err
	}
	defer t.conn.Close()
	if _, err := t.get(p, http.MethodGet, "/small", ""); err != nil {
		return 0, 0, err
	}
	before, err := rssAnon(p.pid)
	if err != nil {
		return 0, 0, err
	}
	stop, most := make(chan struct{}), make(chan float64, 1)
	go func() {
		top := before
		for {
			select {
			case <-stop:
				most <- top
				return
			case <-time.After(20 * time.Millisecond):
				if mb, err := rssAnon(p.pid); err == nil {
					top = max(top, mb)
				}
			}
		}
	}()
	began := time.Now()
	n, err := t.get(p, http.MethodGet, fmt.Sprintf("/big?n=%d", bytes), "")
	took := time.Since(began)
	close(stop)
	top := <-most
	if err == nil && n != bytes {
		err = fmt.Errorf("%d of %d bytes came", n, bytes)
	}
	return float64(n) / 1e6 / took.Seconds(), top - before, err
}

// egress compares the credential gateway with a bare relay that ends TLS.
func (b *bench) egress() error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	farCert, relayCert := filepath.Join(dir, "far.pem"), filepath.Join(dir, "relay.pem")
	far, _, err := b.serve("tlsend", "-cert", farCert)
	if err != nil {
		return err
	}
	relay := &proxied{far: far, mark: "of-no-meaning"}
	if relay.addr, relay.pid, err = b.serve("tlsrelay", "-far", far, "-trust", farCert, "-cert", relayCert); err != nil {
		return err
	}
	if relay.roots, err = pool(relayCert); err != nil {
		return err
	}
	gate, cmd, err := b.gate(dir, far, farCert)
	if err != nil {
		return err
	}
	if b.only == "egress-load" {
		m, err := b.through(gate, b.sessions, http.MethodGet, "/small", "")
		if err != nil {
			return err
		}
		b.sheet.Told("requests per second", m.perS, "/s")
		b.sheet.Told("CPU per request", m.cpu, "us")
		return nil
	}
	for _, clients := range []int{1, 64} {
		var rate, over, mine []float64
		for range b.rounds {
			r, err := b.through(relay, clients, http.MethodGet, "/small", "")
			if err != nil {
				return err
			}
			g, err := b.through(gate, clients, http.MethodGet, "/small", "")
			if err != nil {
				return err
			}
			rate, over, mine = append(rate, g.perS/r.perS), append(over, g.cpu-r.cpu), append(mine, g.cpu)
		}
		if clients == 64 {
			b.sheet.AtLeast("egress / relay requests per second, 64 clients", median(rate), 0.8, "x")
			b.sheet.AtMost("egress CPU - relay CPU per request, 64 clients", median(over), 150, "us")
			b.sheet.Told("egress CPU per request, 64 clients", median(mine), "us")
			continue
		}
		b.sheet.Told("egress / relay requests per second, 1 client", median(rate), "x")
		b.sheet.Told("egress CPU - relay CPU per request, 1 client", median(over), "us")
	}
	r, err := b.through(relay, 64, http.MethodPost, "/post", `{"n":1}`)
	if err != nil {
		return err
	}
	g, err := b.through(gate, 64, http.MethodPost, "/post", `{"n":1}`)
	if err != nil {
		return err
	}
	b.sheet.Told("egress / relay effects per second, 64 clients", g.perS/r.perS, "x")
	var rate, grew []float64
	const gigabyte = 1 << 30
	for range min(b.rounds, 3) {
		r, _, err := b.stream(relay, gigabyte)
		if err != nil {
			return err
		}
		g, mb, err := b.stream(gate, gigabyte)
		if err != nil {
			return err
		}
		rate, grew = append(rate, g/r), append(grew, mb)
	}
	b.sheet.AtLeast("egress / relay, 1 GB streamed", median(rate), 0.8, "x")
	b.sheet.AtMost("egress RssAnon growth, 1 GB streamed", median(grew), 16, "MB")
	cmd.Process.Signal(syscall.SIGTERM)
	return cmd.Wait()
}

func pool(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(b)
	return p, nil
}

// gate starts Patchbay with a credential gateway and a destination whose secret is a
// bearer, everything recorded.
func (b *bench) gate(dir, far, farCert string) (*proxied, *exec.Cmd, error) {
	addr, err := peers.FreeAddr()
	if err != nil {
		return nil, nil, err
	}
	out, err := peers.FreeAddr()
	if err != nil {
		return nil, nil, err
	}
	host, port, err := net.SplitHostPort(far)
	if err != nil {
		return nil, nil, err
	}
	p := &plugged{data: filepath.Join(dir, "data")}
	config := fmt.Sprintf("listen: %s\ndata: %s\nagents: {general: {destinations: [api]}}\negress:\n  listen: %s\n  allow: [{to: %q, for: [api]}]\n  destinations: {api: {hosts: [%s], port: %s, inject: {kind: bearer}, inject_secret: \"secret:api\"}}\n", addr, p.data, out, far, host, port)
	file := filepath.Join(dir, "patchbay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(b.app, "serve", "-c", file)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+farCert)
	if err := b.start(cmd); err != nil {
		return nil, nil, err
	}
	if err := waitFor(addr, 20*time.Second); err != nil {
		return nil, nil, err
	}
	put := exec.Command(b.app, "--data", p.data, "secrets", "put", "api")
	put.Stdin = strings.NewReader("pTq7Zk2mXw9RvLs4YhNd8JcFgB6aUe3K\n")
	if msg, err := put.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("%w: %s", err, msg)
	}
	var ca struct{ PEM, Placeholder string }
	if err := b.cli(p, &ca, "egress", "ca"); err != nil {
		return nil, nil, err
	}
	var made struct{ Token string }
	if err := b.cli(p, &made, "tokens", "create", "bench", "--agent", "general"); err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.PEM))
	return &proxied{pid: cmd.Process.Pid, addr: out, roots: roots, far: far, mark: ca.Placeholder,
		auth: "Basic " + base64.StdEncoding.EncodeToString([]byte("agent:"+made.Token))}, cmd, nil
}
