package ingress

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// session finds or opens the bridge session of a request; done gives it back.
func (a *Agents) session(r *http.Request) (s *bridge.Session, done func(), err error) {
	c := callerOf(r)
	k := liveKey{c.agent, c.who, r.Header.Get("Mcp-Session-Id")}
	a.mu.Lock()
	l := a.live[k]
	if l == nil {
		if err := a.room(c.who); err != nil {
			a.mu.Unlock()
			return nil, nil, err
		}
		l = &liveSession{}
		if k.id != "" {
			l.peer, l.until, _ = a.open(c, k.id) // it is known, or the request would not be here
		}
		a.live[k] = l
	}
	l.busy++
	a.mu.Unlock()
	done = func() {
		a.mu.Lock()
		l.busy--
		l.used = a.o.Clock.Now()
		a.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s == nil {
		// Others of the same session wait for the one who opens it, so that the
		// opening must not end with its request.
		l.s, err = a.o.Bridge.Open(context.WithoutCancel(r.Context()), bridge.Opening{Agent: c.agent, Principal: c.who, Client: true})
	} else {
		err = l.s.Renew(r.Context())
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	l.there.Store(l.s)
	return l.s, done, nil
}

// room holds the bound on sessions of one principal: the one that was idle for
// longest has to go. The lock is held.
func (a *Agents) room(who plane.Principal) error {
	n := 0
	var oldest liveKey
	var found *liveSession
	for k, l := range a.live {
		if k.who != who {
			continue
		}
		n++
		if l.busy == 0 && (found == nil || l.used.Before(found.used)) {
			oldest, found = k, l
		}
	}
	if n < a.o.PerWho {
		return nil
	}
	if found == nil {
		e := plane.Errorf(plane.Limited, "You have %d sessions in use.", n).Over("ingress_sessions")
		e.RetryAfter = time.Second
		return e
	}
	delete(a.live, oldest)
	go found.close()
	return nil
}

// Session ids are <replica>.<random>.<expiry>.<mac>: whoever has the ring knows
// them again, after a restart too, for whom they were made, and what the client
// said that it may be asked, which is the random part's first byte.
const (
	sessionPurpose = "mcp session"
	sessionLife    = 24 * time.Hour
	oldVersion     = 0x80 // the client speaks 2025-06-18
)

// Begin makes a session id for the caller.
func (a *Agents) Begin(r *http.Request, p mcp.Peer) (string, error) {
	var random [17]byte
	rand.Read(random[1:])
	random[0] = flagsOf(p.Capabilities)
	if p.Version == mcp.Version20250618 {
		random[0] |= oldVersion
	}
	head := fmt.Sprintf("%s.%s.%d", a.o.Replica, base64.RawURLEncoding.EncodeToString(random[:]), a.o.Clock.Now().Add(sessionLife).Unix())
	return head + "." + base64.RawURLEncoding.EncodeToString(a.o.MAC(sessionPurpose, bound(head, callerOf(r)))), nil
}

// bound is what a session's MAC covers: the id, and for whom it is.
func bound(head string, c caller) []byte {
	parts := [...]string{head, c.agent, string(c.who.Kind), c.who.ID, c.who.Team, c.who.Token}
	n := 0
	for _, s := range parts {
		n += 4 + len(s)
	}
	b := make([]byte, 0, n)
	for _, s := range parts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}

// Known reports that a session id is the caller's, not over and not ended. One that
// is in use was looked at before.
func (a *Agents) Known(r *http.Request, id string) (mcp.Peer, bool) {
	c := callerOf(r)
	a.mu.Lock()
	l := a.live[liveKey{c.agent, c.who, id}]
	a.mu.Unlock()
	if l != nil && l.until > 0 {
		return l.peer, a.o.Clock.Now().Unix() <= l.until && (a.o.Ended == nil || !a.o.Ended.Has(id))
	}
	p, _, ok := a.open(c, id)
	return p, ok
}

// open reads a session id.
func (a *Agents) open(c caller, id string) (mcp.Peer, int64, bool) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 || len(id) > 256 {
		return mcp.Peer{}, 0, false
	}
	head := id[:i]
	var mac [64]byte
	n, err := base64.RawURLEncoding.Decode(mac[:], []byte(id[i+1:min(len(id), i+1+80)]))
	if err != nil || !a.o.Check(sessionPurpose, bound(head, c), mac[:n]) {
		return mcp.Peer{}, 0, false
	}
	parts := strings.Split(head, ".")
	if len(parts) != 3 {
		return mcp.Peer{}, 0, false
	}
	until, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || a.o.Clock.Now().Unix() > until || a.o.Ended != nil && a.o.Ended.Has(id) {
		return mcp.Peer{}, 0, false
	}
	random, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || len(random) == 0 {
		return mcp.Peer{}, 0, false
	}
	p := mcp.Peer{Version: mcp.Version20251125, Capabilities: capabilities[random[0]&^oldVersion&maxFlags]}
	if random[0]&oldVersion != 0 {
		p.Version = mcp.Version20250618
	}
	return p, until, true
}

// End ends a session, here and everywhere.
func (a *Agents) End(r *http.Request, id string) {
	c := callerOf(r)
	k := liveKey{c.agent, c.who, id}
	a.mu.Lock()
	l := a.live[k]
	delete(a.live, k)
	a.mu.Unlock()
	if l != nil {
		l.close()
	}
	if a.o.Ended != nil {
		if err := a.o.Ended.Add(context.WithoutCancel(r.Context()), id, a.o.Clock.Now().Add(sessionLife)); err != nil && a.o.Log != nil {
			a.o.Log.Warn("the end of a session could not be stored", "err", err)
		}
	}
}
