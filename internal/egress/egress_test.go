package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// FuzzHead reads whatever a client may send as a request's head. What is taken has a host
// in its one form and a path that means the same to everybody.
func FuzzHead(f *testing.F) {
	for _, s := range []string{"GET /x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "POST /a/../b HTTP/1.1\r\nHost: api.example.com:443\r\nContent-Length: 0\r\n\r\n", "GET http://evil/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT a.example.com:443 HTTP/1.1\r\nHost: b\r\n\r\n", "GET /%2e%2e/x HTTP/1.1\r\nHost: A.example.com.\r\nConnection: Authorization\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.example.com\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		host, port, err := target(r.Host, 443)
		if err == nil {
			again, p2, err := target(net.JoinHostPort(host, fmt.Sprint(port)), 1)
			if err != nil || again != host || p2 != port || strings.ToLower(host) != host || strings.HasSuffix(host, ".") {
				t.Fatalf("%q reads as %q:%d, and that as %q:%d %v", r.Host, host, port, again, p2, err)
			}
		}
		guard(t, b)
		if fit(r) != nil || r.URL.Path == "*" {
			return
		}
		clean := path.Clean(r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/") && clean != "/" {
			clean += "/"
		}
		if clean != r.URL.Path || strings.ContainsAny(r.RequestURI, "\\#") || strings.Contains(strings.ToLower(asSent(r)), "%2e") {
			t.Fatalf("%q was taken", r.RequestURI)
		}
		for name := range r.Header {
			if !token(name) {
				t.Fatalf("the header %q was taken", name)
			}
		}
	})
}

// guard holds a head that is let through to what two readers agree on.
func guard(t *testing.T, b []byte) {
	t.Helper()
	g := newHeadGuard(nil, nil)
	if g.feed(b) != nil {
		return
	}
	head, _, _ := bytes.Cut(bytes.TrimLeft(b, "\r\n"), []byte("\r\n\r\n"))
	lengths, encodings := 0, 0
	for i, line := range bytes.Split(head, []byte("\r\n")) {
		if i == 0 {
			if bytes.HasPrefix(line, []byte("CONNECT ")) {
				return
			}
			continue
		}
		name, _, _ := bytes.Cut(bytes.ToLower(line), []byte(":"))
		switch {
		case len(line) > 0 && (line[0] == ' ' || line[0] == '\t'):
			t.Fatalf("a folded header was let through: %q", b)
		case bytes.ContainsAny(line, "\r\n"):
			t.Fatalf("a line in a line was let through: %q", b)
		case string(name) == "content-length":
			lengths++
		case string(name) == "transfer-encoding":
			encodings++
		}
	}
	if bytes.Contains(b, []byte("\r\n\r\n")) && lengths+encodings > 1 {
		t.Fatalf("%d lengths and %d encodings were let through: %q", lengths, encodings, b)
	}
}

// memory keeps an authority.
type memory struct{ a *plane.Authority }

func (m *memory) Write(_ context.Context, fn func(plane.Tx) error) error { return fn(nil) }
func (m *memory) Authority(context.Context, string) (plane.Authority, error) {
	if m.a == nil {
		return plane.Authority{}, plane.Errorf(plane.NotFound, "none")
	}
	return *m.a, nil
}
func (m *memory) PutAuthority(_ plane.Tx, a *plane.Authority, renew bool) error {
	if m.a == nil || renew {
		m.a = a
	}
	return nil
}
func (m *memory) AddAudit(plane.Tx, plane.AuditEntry) error { return nil }

type still struct{ t time.Time }

func (s *still) Now() time.Time { return s.t }

// TestTheAuthority mints leaves that clients take, keeps a bounded number, mints anew what
// is about to end, says when it has expired itself, and is the same after a restart.
func TestTheAuthority(t *testing.T) {
	ring, err := secret.ParseRing(secret.GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	m, clock := &memory{}, &still{time.Now()}
	ca, err := OpenCA(t.Context(), m, ring, clock)
	if err != nil {
		t.Fatal(err)
	}
	pem, until := ca.PEM()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) || !until.After(clock.t.AddDate(9, 0, 0)) {
		t.Fatalf("%s %s", pem, until)
	}
	for _, host := range []string{"api.example.com", "127.0.0.1", "::1", strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + ".example.com"} {
		leaf, err := ca.Leaf(host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, CurrentTime: clock.t}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	first, err := ca.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if same, err := ca.Leaf("api.example.com"); err != nil || same != first {
		t.Errorf("it is minted for every tunnel: %v", err)
	}
	clock.t = clock.t.Add(leafLife - leafEarly/2)
	if other, err := ca.Leaf("api.example.com"); err != nil || other == first {
		t.Errorf("one that is about to end is shown: %v", err)
	}
	for i := range maxLeaves + 50 {
		if _, err := ca.Leaf(fmt.Sprintf("h%d.example.com", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.leaves) != maxLeaves || ca.order.Len() != maxLeaves {
		t.Errorf("%d leaves are kept", len(ca.leaves))
	}
	again, err := OpenCA(t.Context(), m, ring, clock)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := again.PEM(); p != pem {
		t.Error("another authority after a restart")
	}
	clock.t = until.Add(time.Hour)
	if _, err := again.Leaf("api.example.com"); plane.KindOf(err) != plane.Unavailable || !strings.Contains(plane.Public(err).Next, "egress ca --renew") {
		t.Errorf("%v", err)
	}
	if err := again.Renew(t.Context(), plane.Local); err != nil {
		t.Fatal(err)
	}
	if p, _ := again.PEM(); p == pem {
		t.Error("it was not renewed")
	}
	if _, err := again.Leaf("api.example.com"); err != nil {
		t.Error(err)
	}
	other, err := secret.ParseRing(secret.GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(t.Context(), m, other, clock); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("with a foreign key: %v", err)
	}
}
