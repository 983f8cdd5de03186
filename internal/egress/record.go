package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"patchbay/internal/plane"
)

// deny refuses a request, and writes it down.
func (p *Proxy) deny(w http.ResponseWriter, r *http.Request, who plane.Principal, host string, port int, err error) {
	e := plane.Public(err)
	status := map[plane.Kind]int{plane.InvalidInput: 400, plane.Unauthenticated: 502, plane.Forbidden: 403, plane.Limited: 429, plane.Unavailable: 503}[e.Kind]
	if status == 0 {
		status = http.StatusForbidden
	}
	path := ""
	if r.Method != http.MethodConnect && r.URL != nil {
		path = short(r.URL.Path)
	}
	if h, ps, err := net.SplitHostPort(host); err == nil { // as it was asked for, where it could not be read
		if n, err := strconv.ParseUint(ps, 10, 16); err == nil {
			host, port = h, int(n)
		}
	}
	p.note(who, &plane.EgressRecord{Host: short(host), Port: port, Method: short(r.Method), Path: path, State: plane.EgressDenied, Reason: e.Message})
	refuse(w, status, err)
}

func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strconv.Quote(s)[1 : len(strconv.Quote(s))-1]
}

// stamp fills in who, when and by which process.
func (p *Proxy) stamp(who plane.Principal, e *plane.EgressRecord) {
	now := p.o.Clock.Now()
	e.ID, e.At = plane.NewEgressID(now), now
	e.Agent, e.Team, e.Principal = who.Agent, who.Team, who.ID
}

// begin writes a dispatched row down before the first byte leaves.
func (p *Proxy) begin(ctx context.Context, who plane.Principal, e *plane.EgressRecord) error {
	p.stamp(who, e)
	e.Owner = p.o.Owner
	row := *e
	err := p.o.Records.Write(context.WithoutCancel(ctx), func(t plane.Tx) error { return p.o.Records.AddEgress(t, &row) })
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The request cannot be put on record, so it was not sent.").Because(err)
	}
	return nil
}

// settle writes down how a dispatched request ended, with the next batch.
func (p *Proxy) settle(e *plane.EgressRecord) {
	e.DoneAt = p.o.Clock.Now()
	row := *e
	p.behind(func(t plane.Tx) error { return p.o.Records.SettleEgress(t, &row) })
}

// later writes a whole row down, with the next batch.
func (p *Proxy) later(e *plane.EgressRecord) {
	e.DoneAt = p.o.Clock.Now()
	row := *e
	p.behind(func(t plane.Tx) error { return p.o.Records.AddEgress(t, &row) })
}

// note writes a request down that was not sent.
//
// Of one who is refused without end some are counted instead.
func (p *Proxy) note(who plane.Principal, e *plane.EgressRecord) {
	if who.ID != "" && e.State == plane.EgressDenied {
		c := caller{who: who}
		p.mu.Lock()
		h := p.held(c.key())
		if !h.refusals.Allow() {
			h.left++
			p.mu.Unlock()
			return
		}
		if h.left > 0 {
			e.Reason += fmt.Sprintf(" (%d more were refused before it and are not written down)", h.left)
			h.left = 0
		}
		p.mu.Unlock()
	}
	p.stamp(who, e)
	p.later(e)
}

func (p *Proxy) behind(fn func(plane.Tx) error) {
	if p.o.Records.WriteBehind(fn) == nil {
		return
	}
	// Too much waits: in turn, so that nothing is lost.
	if err := p.o.Records.Write(context.WithoutCancel(p.life), fn); err != nil {
		p.o.Log.Error("a request of the credential gateway could not be put on record", "err", err)
	}
}
