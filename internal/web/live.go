package web

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// Bounds of the streams that tell pages to look again.
const (
	maxWatchers = 1000
	watchEvery  = 2 * time.Second
	watchFor    = 30 * time.Minute // the browser asks again
)

// watchConnections tells a browser when the health of a connection in its sight has changed.
func (p *Pages) watchConnections(w http.ResponseWriter, r *http.Request) {
	who, ok := p.caller(w, r)
	if !ok {
		return
	}
	if who.Kind == plane.KindVisitor {
		http.Error(w, "Sign in first.", http.StatusUnauthorized)
		return
	}
	if n := p.watchers.Add(1); n > maxWatchers {
		p.watchers.Add(-1)
		http.Error(w, "Too many pages are open.", http.StatusServiceUnavailable)
		return
	}
	defer p.watchers.Add(-1)
	v := &visit{p: p, ctx: r.Context(), r: r, who: who}
	rc := http.NewResponseController(w)
	rc.SetWriteDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	last, err := p.healths(v)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for end := time.Now().Add(watchFor); err == nil && time.Now().Before(end); {
		if _, err = fmt.Fprint(w, ": \n\n"); err == nil {
			err = rc.Flush()
		}
		select {
		case <-r.Context().Done():
			return
		case <-p.o.Ending:
			return
		case <-tick.C:
		}
		if _, err := p.o.Auth.Principal(r); err != nil {
			return // signed out
		}
		now, e := p.healths(v)
		if err == nil && e == nil && now != last {
			last = now
			_, err = fmt.Fprintf(w, "event: changed\ndata: %x\n\n", now)
		}
	}
}

// healths is a fingerprint of how everything in sight stands.
func (p *Pages) healths(v *visit) (uint64, error) {
	l, err := ask[command.MCPList](v, "mcp.list", &command.MCPListInput{})
	if err != nil {
		return 0, err
	}
	h := fnv.New64a()
	for _, s := range l.Servers {
		fmt.Fprintf(h, "%s %v %s %s %s %d %d\n", s.ID, s.Enabled, s.State, s.Health, s.Detail, s.Tools, s.FailedAt.UnixMicro())
	}
	return h.Sum64(), nil
}
