package egress

import (
	"container/list"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Authorities is where the authority rests, its key sealed.
type Authorities interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Authority(ctx context.Context, name string) (plane.Authority, error)
	PutAuthority(t plane.Tx, a *plane.Authority, renew bool) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// CA is the authority whose certificates the gateway shows to agents' clients. Its key is
// of this install alone and never leaves it.
type CA struct {
	store Authorities
	ring  *secret.Ring
	clock plane.Clock

	mu     sync.Mutex
	cert   *x509.Certificate
	pem    string
	key    *ecdsa.PrivateKey
	leaf   *ecdsa.PrivateKey // of every leaf: they are told apart by name
	leaves map[string]*list.Element
	order  *list.List // least recently used last
}

type minted struct {
	host string
	cert *tls.Certificate
}

// The authority's name in the store, and how long things last.
const (
	authority = "egress"
	caLife    = 10 * 365 * 24 * time.Hour
	leafLife  = 7 * 24 * time.Hour
	leafEarly = 24 * time.Hour // a leaf is minted anew when it has less
	maxLeaves = 1000
)

// AuthorityBind names what the authority's key is sealed to.
func AuthorityBind(s plane.Sealed) secret.Bind {
	return secret.Bind{Purpose: "authority", Scope: "egress", Record: s.Key}
}

// OpenCA reads the authority, or makes one at the first start. Of several replicas that
// start together one makes it. One that does not open is returned with the error: Renew puts
// another in its place.
func OpenCA(ctx context.Context, st Authorities, ring *secret.Ring, clock plane.Clock) (*CA, error) {
	c := &CA{store: st, ring: ring, clock: clock, leaves: map[string]*list.Element{}, order: list.New()}
	a, err := st.Authority(ctx, authority)
	if plane.KindOf(err) == plane.NotFound {
		if err := c.make(ctx, plane.Principal{ID: "patchbay"}, false); err != nil {
			return nil, err
		}
		a, err = st.Authority(ctx, authority)
	}
	if err != nil {
		return nil, err
	}
	return c, c.load(a)
}

// Reload takes in an authority that another replica put in place.
func (c *CA) Reload(ctx context.Context) error {
	a, err := c.store.Authority(ctx, authority)
	if err != nil {
		return err
	}
	c.mu.Lock()
	same := a.Cert == c.pem
	c.mu.Unlock()
	if same {
		return nil
	}
	return c.load(a)
}

// make makes a new authority and stores it.
func (c *CA) make(ctx context.Context, who plane.Principal, renew bool) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := c.clock.Now()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "Patchbay credential gateway", Organization: []string{"Patchbay"}}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	a := &plane.Authority{Name: authority, Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), Blob: c.ring.Seal(AuthorityBind(plane.Sealed{Key: authority}), raw)}
	return c.store.Write(ctx, func(t plane.Tx) error {
		if err := c.store.PutAuthority(t, a, renew); err != nil {
			return err
		}
		return c.store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "egress.authority", What: authority, Decision: "allow"})
	})
}

func (c *CA) load(a plane.Authority) error {
	block, _ := pem.Decode([]byte(a.Cert))
	raw, err := c.ring.Open(AuthorityBind(plane.Sealed{Key: authority}), a.Blob)
	if err != nil || block == nil {
		return plane.Errorf(plane.Unavailable, "The gateway's authority does not open: the key that it was sealed with is missing.").Then("patchbay egress ca --renew makes another.").Because(err)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(raw)
	if err != nil {
		return err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return plane.Errorf(plane.Internal, "The gateway's authority has a key of another kind.")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert, c.key, c.leaf, c.pem = cert, ec, leaf, a.Cert
	c.leaves, c.order = map[string]*list.Element{}, list.New()
	return nil
}

// Renew puts another authority in place. Clients must be given its certificate.
func (c *CA) Renew(ctx context.Context, who plane.Principal) error {
	if err := c.make(ctx, who, true); err != nil {
		return err
	}
	a, err := c.store.Authority(ctx, authority)
	if err != nil {
		return err
	}
	return c.load(a)
}

// PEM is the certificate, for clients, and until when it is good.
func (c *CA) PEM() (string, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert == nil {
		return "", time.Time{}
	}
	return c.pem, c.cert.NotAfter
}

// Leaf is a certificate for one host, minted when there is none that lasts.
func (c *CA) Leaf(host string) (*tls.Certificate, error) {
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert == nil {
		return nil, plane.Errorf(plane.Unavailable, "The gateway's authority does not open.").Then("patchbay egress ca --renew, then give clients the new certificate.")
	}
	if !now.Before(c.cert.NotAfter) {
		return nil, plane.Errorf(plane.Unavailable, "The gateway's authority has expired.").Then("patchbay egress ca --renew, then give clients the new certificate.")
	}
	if e, ok := c.leaves[host]; ok {
		m := e.Value.(*minted)
		if now.Add(leafEarly).Before(m.cert.Leaf.NotAfter) {
			c.order.MoveToFront(e)
			return m.cert, nil
		}
		c.order.Remove(e)
		delete(c.leaves, host)
	}
	cert, err := c.mint(host, now)
	if err != nil {
		return nil, err
	}
	c.leaves[host] = c.order.PushFront(&minted{host, cert})
	for c.order.Len() > maxLeaves {
		last := c.order.Back()
		delete(c.leaves, last.Value.(*minted).host)
		c.order.Remove(last)
	}
	return cert, nil
}

func (c *CA) mint(host string, now time.Time) (*tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, err
	}
	until := now.Add(leafLife)
	if until.After(c.cert.NotAfter) {
		until = c.cert.NotAfter
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: host[:min(len(host), 64)]}, NotBefore: now.Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, &c.leaf.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, c.cert.Raw}, PrivateKey: c.leaf, Leaf: leaf}, nil
}
