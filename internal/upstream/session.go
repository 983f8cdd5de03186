package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// key is whose session it is: For is empty for one that may be shared.
type key struct {
	conn    plane.ConnectionID
	version int64
	who     string
	forWhom plane.SessionID
}

type session struct {
	key    key
	client *mcp.Client
	lease  *connect.Lease
	proc   Process // of a stdio server
	used   time.Time
	busy   int

	open    atomic.Bool
	asks    bool                                // it says that its one caller may be asked things
	listens bool                                // to what the server tells by itself
	heard   map[string]map[plane.SessionID]bool // resources whose changes it hears of, and for whom
}

// gone reports that the session's process has ended.
func (s *session) gone() bool { return s.proc != nil && s.proc.Gone() }

// stuckAfter is how long a process may take to say that it is there.
const stuckAfter = 2 * time.Second

// stuck reports that a session's process has ended, or that it no longer answers anything
// after a call that it did not answer in time: another call would fare no better.
func (p *Pool) stuck(ctx context.Context, s *session, end plane.Ending) bool {
	if s.proc == nil || s.gone() {
		return s.gone()
	}
	if end.Fault != plane.FaultTimeout {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuckAfter)
	defer cancel()
	return !s.client.Alive(ctx)
}

// close ends the session, and its process.
func (s *session) close() {
	s.client.Close()
	if s.proc != nil {
		s.proc.Close()
	}
	s.lease.Close()
}

type opening struct {
	done chan struct{}
	err  error
}

func (p *Pool) release(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.busy--
	s.used = p.o.Clock.Now()
}

// drop takes a session that the server forgot out of the pool, once.
func (p *Pool) drop(s *session) {
	p.mu.Lock()
	mine := p.sessions[s.key] == s
	if mine {
		delete(p.sessions, s.key)
	}
	p.mu.Unlock()
	if mine {
		p.spawn(func() { p.closeAll([]*session{s}) })
	}
}

// dropFor closes the idle sessions of one listing.
func (p *Pool) dropFor(k listKey) {
	p.mu.Lock()
	var gone []*session
	for sk, s := range p.sessions {
		if sk.conn == k.conn && sk.version == k.version && sk.who == k.who && s.busy == 0 {
			gone = append(gone, s)
			delete(p.sessions, sk)
		}
	}
	p.mu.Unlock()
	p.closeAll(gone)
}
