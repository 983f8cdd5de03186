package upstream

import (
	"context"
	"math"
	"net/http"

	"patchbay/internal/catalog"
	"patchbay/internal/connect"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Probed is what a server said to somebody who is not connected yet.
type Probed struct {
	Listed     catalog.Listed
	Status     int      // of the refusal, 0 when it was not refused by HTTP
	Challenges []string // WWW-Authenticate
	Refused    bool     // 401 or 403
}

// Probe opens a session with a lease that is tried out, lists the tools and
// closes it again. Nothing of it is kept. Whether a server wants a sign-in is
// told by the listing: some let initialize through.
func (p *Pool) Probe(ctx context.Context, g policy.Grant, lease *connect.Lease) (Probed, error) {
	conn := g.Connection()
	ctx, cancel := context.WithTimeout(ctx, p.o.Limits.DiscoverOne)
	defer cancel()
	p.mu.Lock()
	era := p.eras[conn.Endpoint]
	p.mu.Unlock()
	s, err := p.dial(ctx, g, opens{era: era}, lease)
	if err != nil {
		return refusal(err), explain(conn, err)
	}
	defer s.close()
	listing, err := s.client.ListTools(ctx)
	if err != nil {
		return refusal(err), explain(conn, err)
	}
	out := Probed{Listed: p.describe(s, listing)}
	if extras, err := s.client.ListExtras(ctx); err == nil { // they hold no sign-in up
		addExtras(s, &out.Listed, extras)
	}
	return out, nil
}

func refusal(err error) Probed {
	e := mcp.AsError(err)
	return Probed{Status: e.Ending.Status, Challenges: e.Challenges, Refused: e.Ending.Challenge || e.Ending.Status == http.StatusForbidden}
}

// Drop ends the sessions of a connection whose endpoint, credential or
// enablement a person changed.
func (p *Pool) Drop(id plane.ConnectionID) { p.DropOlder(id, math.MaxInt64) }

// DropOlder closes the sessions of a connection's versions before one.
func (p *Pool) DropOlder(id plane.ConnectionID, version int64) {
	if version == 0 {
		version = math.MaxInt64 // it is gone
	}
	p.mu.Lock()
	var gone []*session
	for k, s := range p.sessions {
		if k.conn == id && k.version < version {
			gone = append(gone, s)
			delete(p.sessions, k)
		}
	}
	for k := range p.lists {
		if k.conn == id && k.version < version {
			delete(p.lists, k)
		}
	}
	delete(p.breakers, id)
	p.mu.Unlock()
	if len(gone) > 0 {
		p.spawn(func() { p.closeAll(gone) })
	}
}
