package app

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// Replicas pass one another what is about a request that another one holds: an answer
// to a question, a cancellation. Each reaches the others where they advertise
// themselves, and what it passes carries a MAC of the ring, so that only whoever has
// the ring is heard.

// peerPath is where replicas hear each other.
const peerPath = "/internal/peer"

const (
	peerPurpose   = "peer"
	peerLife      = 30 * time.Second // of a passed message, and of an advertisement
	advertiseTime = 10 * time.Second
	peerTimeout   = 5 * time.Second
	maxPassed     = 1 << 20
	peerMAC       = "Patchbay-Mac"
	peerTime      = "Patchbay-Time"
)

// peers is this replica among the others.
type peers struct {
	a    *App
	name string

	mu      sync.Mutex
	known   map[string]string // name -> address
	looked  time.Time
	clients map[string]*http.Client
}

// passed is what one replica tells another.
type passed struct {
	Agent   string          `json:"agent"`
	Session string          `json:"session"`
	Message json.RawMessage `json:"message"`
}

// advertise says where this replica is, again and again.
func (p *peers) advertise(ctx context.Context) error {
	at := p.a.cfg.Cluster.Advertise
	if at == "" {
		return nil
	}
	return p.a.store.Advertise(ctx, p.name, at, p.a.o.Clock.Now().Add(peerLife))
}

// others are the addresses of the replica of that name, or of all but this one.
func (p *peers) others(ctx context.Context, name string) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.known[name]; time.Since(p.looked) > peerTimeout || name != "" && !there {
		known, err := p.a.store.Replicas(ctx, p.a.o.Clock.Now())
		if err != nil {
			return nil, err
		}
		delete(known, p.name)
		p.known, p.looked = known, time.Now()
	}
	if name == "" {
		return p.known, nil
	}
	at, ok := p.known[name]
	if !ok {
		return nil, plane.Errorf(plane.Gone, "The server that held this request is gone.")
	}
	return map[string]string{name: at}, nil
}

// Pass tells the replica of that name, or, with none, every other one.
func (p *peers) Pass(ctx context.Context, to, agent, session string, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	others, err := p.others(ctx, to)
	if err != nil {
		return err
	}
	body, err := json.Marshal(passed{agent, session, message})
	if err != nil {
		return err
	}
	for name, at := range others {
		if e := p.send(ctx, at, body); e != nil {
			err = plane.Errorf(plane.Gone, "The server that held this request does not answer.").Because(e)
			p.a.o.Log.Warn("a message could not be passed to another replica", "replica", name, "err", e)
		}
	}
	if to == "" {
		return nil // whoever holds it was told, if anybody does
	}
	return err
}

func (p *peers) send(ctx context.Context, at string, body []byte) error {
	target, err := hostPort(at)
	if err != nil {
		return err
	}
	p.mu.Lock()
	c := p.clients[target]
	if c == nil {
		c = &http.Client{Transport: netguard.Infra(target), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		if p.clients == nil || len(p.clients) >= maxPeers {
			p.clients = map[string]*http.Client{}
		}
		p.clients[target] = c
	}
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+peerPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	now := p.a.o.Clock.Now().Unix()
	req.Header.Set(peerTime, strconv.FormatInt(now, 10))
	req.Header.Set(peerMAC, base64.RawURLEncoding.EncodeToString(p.a.ring.MAC(peerPurpose, signed(now, at, body))))
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return plane.Errorf(plane.Gone, "The other server answered %d.", resp.StatusCode)
	}
	return nil
}

// maxPeers bounds the clients that are kept.
const maxPeers = 256

// signed is what a passed message's MAC covers: when, for which address, and what.
func signed(when int64, address string, body []byte) []byte {
	out := binary.BigEndian.AppendUint64(make([]byte, 0, 12+len(address)+len(body)), uint64(when))
	out = binary.BigEndian.AppendUint32(out, uint32(len(address)))
	return append(append(out, address...), body...)
}

// ServeHTTP hears what another replica passes.
func (p *peers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	no := func() { http.Error(w, "not found", http.StatusNotFound) }
	if r.Method != http.MethodPost {
		no()
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPassed))
	at, err2 := strconv.ParseInt(r.Header.Get(peerTime), 10, 64)
	mac, err3 := base64.RawURLEncoding.DecodeString(r.Header.Get(peerMAC))
	if err != nil || err2 != nil || err3 != nil || !p.a.ring.CheckMAC(peerPurpose, signed(at, p.a.cfg.Cluster.Advertise, body), mac) {
		no()
		return
	}
	if age := p.a.o.Clock.Now().Sub(time.Unix(at, 0)); age > peerLife || age < -peerLife {
		no()
		return
	}
	var m passed
	if json.Unmarshal(body, &m) != nil || !p.a.agents.Hear(m.Agent, m.Session, m.Message) {
		http.Error(w, "there is no such request here", http.StatusGone)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
