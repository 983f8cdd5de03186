package bridge

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// prepared keeps the tools of each connection as they are offered, so that an
// offer is made of what is there: they change with the catalog, the connection
// and the dialect alone.
type prepared struct {
	mu sync.Mutex
	by map[preparedKey]*preparedTools
}

type preparedKey struct {
	id      plane.ConnectionID
	dialect Dialect
	bare    string // the agent whose clients see bare names
}

type preparedTools struct {
	catalog *plane.Catalog
	conn    *plane.Connection
	tools   []*candidate // by alias
	once    sync.Once
	seg     *Segment
}

// candidate is a tool that may be offered. It is made into one when an offer has a
// place for it: most of a large catalog never are.
type candidate struct {
	alias string
	apart bool // its bare name belongs to another
	def   *plane.Definition
	once  sync.Once
	tool  *Tool
	why   string // the dialect has no form for it
}

// of returns a connection's tools. The connection is the policy's own: another
// policy has another pointer, and the same content where nothing changed.
func (p *prepared) of(ctx context.Context, b *Bridge, snap *policy.Snapshot, a policy.Attached, cat *plane.Catalog, o offerKey) (*preparedTools, error) {
	k := preparedKey{id: a.ID, dialect: o.dialect}
	if o.bare {
		k.bare = o.agent
	}
	p.mu.Lock()
	have := p.by[k]
	p.mu.Unlock()
	if have != nil && have.catalog == cat && (have.conn == a.Connection || have.conn.Version == a.Version && have.conn.Slug == a.Slug && sameRules(have.conn, a.Connection)) {
		return have, nil
	}
	made := &preparedTools{catalog: cat, conn: a.Connection}
	names := aliases(a.Slug, cat.Definitions)
	if o.bare {
		var err error
		if names, err = b.bare.names(ctx, b, snap, o.agent, a, cat.Definitions); err != nil {
			return nil, err
		}
	}
	made.tools = make([]*candidate, 0, len(cat.Definitions))
	all := make([]candidate, len(cat.Definitions))
	for i := range cat.Definitions {
		d := &cat.Definitions[i]
		if d.Unsupported == "" && d.Held == "" && a.Out(d.Name) == "" {
			all[i].alias, all[i].def, all[i].apart = names[i], d, o.bare && names[i] != d.Name
			made.tools = append(made.tools, &all[i])
		}
	}
	slices.SortFunc(made.tools, func(x, y *candidate) int { return strings.Compare(x.alias, y.alias) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil || len(p.by) >= maxPrepared {
		p.by = map[preparedKey]*preparedTools{}
	}
	p.by[k] = made
	return made, nil
}

func sameRules(a, b *plane.Connection) bool {
	same := func(x, y *plane.Preferences) bool {
		return slices.Equal(x.Allow, y.Allow) && slices.Equal(x.Deny, y.Deny) && slices.Equal(x.Excluded, y.Excluded) && x.Legacy == nil && y.Legacy == nil
	}
	return same(&a.Prefs, &b.Prefs) && same(&a.Fixed, &b.Fixed)
}

// offers keeps the latest offer of each caller, for its other sessions.
type offers struct {
	mu sync.Mutex
	by map[offerKey]*offer
}

type offerKey struct {
	agent   string
	who     plane.Principal
	dialect Dialect
	bare    bool
	search  plane.SearchUse
	client  bool // of an agent from elsewhere, not a run of ours
}

// signsIn reports that a client of ours is shown a connection's tools although
// somebody has to sign it in again first: their calls say so, with the link.
func (k offerKey) signsIn(a policy.Attached) bool {
	return k.client && a.Enabled && a.State == plane.StateAuthError && a.ShadowedBy == (plane.Scope{})
}

// maxPrepared bounds the memory, of connections that are gone too.
const maxPrepared = 50_000

// maxOffers bounds the memory; over it all are made again.
const maxOffers = 4096

// same returns the caller's offer when nothing has changed since it was made.
func (x *offers) same(s *Session, snap *policy.Snapshot, failed map[plane.ConnectionID]error) *offer {
	if len(failed) > 0 {
		return nil
	}
	x.mu.Lock()
	o := x.by[s.kind(snap)]
	x.mu.Unlock()
	if o == nil || o.policy != snap || !s.unchanged(o) {
		return nil
	}
	return o
}

func (x *offers) keep(s *Session, snap *policy.Snapshot, o *offer, failed map[plane.ConnectionID]error) {
	if len(failed) > 0 {
		return // the next session tries again
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil || len(x.by) >= maxOffers {
		x.by = map[offerKey]*offer{}
	}
	x.by[s.kind(snap)] = o
}

// place is a candidate with the server it belongs to.
type place struct {
	*candidate
	server int
}

// makeOffer turns what is attached into tools.
func (b *Bridge) makeOffer(ctx context.Context, snap *policy.Snapshot, k offerKey, attached []policy.Attached, failed map[plane.ConnectionID]error) (*offer, error) {
	o := &offer{policy: snap, extras: extras{byURI: map[string]target{}, byPrompt: map[string]target{}}, byAlias: map[string]*Tool{}, servers: make([]Server, 0, len(attached))}
	o.agent, _ = snap.Agent(k.agent)
	lists := make([]*preparedTools, 0, len(attached))
	total := 0
	for _, a := range attached {
		srv := Server{Slug: a.Slug, Scope: a.Scope, ID: a.ID, Why: a.Why}
		var cat *plane.Catalog
		if srv.Why == "" || k.signsIn(a) {
			if cat = b.Catalogs.Get(a.ID); cat != nil {
				o.catalogs = append(o.catalogs, cat)
			}
			if err := failed[a.ID]; err != nil {
				srv.Why = plane.Public(err).Message
			} else if srv.Why != "" {
				// it says that somebody has to sign in
			} else if cat == nil || cat.Stale(a.Version) {
				srv.Why = "its tools have not been read yet"
			}
		}
		var ready *preparedTools
		if srv.Why == "" || k.signsIn(a) && cat != nil && !cat.Stale(a.Version) {
			var err error
			if ready, err = b.prepared.of(ctx, b, snap, a, cat, k); err != nil {
				return nil, err
			}
			if k.dialect == DialectPlain {
				o.extras.add(a, b.beside.of(a.Connection, cat), k.bare)
			}
			srv.Tools = len(ready.tools)
			total += srv.Tools
		}
		o.servers, lists = append(o.servers, srv), append(lists, ready)
	}
	o.lists, o.attached, o.dialect = lists, attached, k.dialect
	if o.searched = k.search == plane.SearchOn || k.search == plane.SearchAuto && total > b.Limits.ToolsOffered; o.searched {
		o.tools, o.hidden = ownTools(k.dialect), total
		for _, t := range o.tools {
			o.byAlias[t.Alias] = t
		}
		return o, nil
	}
	b.fill(o)
	return o, nil
}

// fill offers every tool, in the order of their aliases.
func (b *Bridge) fill(o *offer) {
	var places []place
	for i, l := range o.lists {
		if l != nil {
			for j := range l.tools {
				places = append(places, o.place(i, j))
			}
		}
	}
	slices.SortFunc(places, func(x, y place) int { return strings.Compare(x.alias, y.alias) })
	for _, p := range places {
		t := p.tool(b, o)
		switch {
		case t == nil:
			o.servers[p.server].Left = append(o.servers[p.server].Left, Left{p.def.Name, p.why})
			o.servers[p.server].Tools--
		case o.byAlias[p.alias] == nil: // two slugs cannot make one alias; a duplicate degrades
			o.byAlias[p.alias] = t
			o.tools = append(o.tools, t)
		}
	}
}

func (o *offer) place(server, tool int) place { return place{o.lists[server].tools[tool], server} }

// tool is what a candidate is as it is offered, made at its first use; nil where the
// dialect has no form for it.
func (p place) tool(b *Bridge, o *offer) *Tool {
	p.once.Do(func() { p.make(b, o.attached[p.server], o.dialect) })
	return p.candidate.tool
}

// find returns the tool of an alias.
func (o *offer) find(b *Bridge, alias string) (*Tool, bool) {
	if t, ok := o.byAlias[alias]; ok || !o.searched {
		return t, ok
	}
	for i, l := range o.lists {
		if l == nil {
			continue
		}
		j, ok := slices.BinarySearchFunc(l.tools, alias, func(c *candidate, alias string) int { return strings.Compare(c.alias, alias) })
		if ok {
			t := o.place(i, j).tool(b, o)
			return t, t != nil
		}
	}
	return nil, false
}

// served names the servers that are.
func (o *offer) served() string {
	var names []string
	for _, s := range o.servers {
		if s.Why == "" {
			names = append(names, s.Slug)
		}
	}
	return strings.Join(names, ", ")
}

// make makes the tool that a session is offered.
func (c *candidate) make(b *Bridge, a policy.Attached, d Dialect) {
	schema, back, why := project(c.def.InputSchema, d)
	if c.why = why; why != "" {
		return
	}
	c.tool = &Tool{Alias: c.alias, apart: c.apart, Definition: c.def, Connection: a.ID, Version: a.Version, Server: a.Slug, back: back,
		Spec: plane.ToolSpec{Name: c.alias, Description: describe(a.Slug, c.def.Description, b.Limits.DescriptionOffered), Schema: schema}}
}

// Listed is the server's own definition under the tool's alias, everything else of
// it byte by byte. Marked results have no structure, so their tools promise none.
func (t *Tool) Listed(results plane.Results) json.RawMessage {
	raw := t.Definition.Raw
	name, _ := json.Marshal(t.Alias) // a string always marshals
	out := make([]byte, 0, len(raw)+len(name))
	out = append(append(out, `{"name":`...), name...)
	schema, apart := false, t.apart
	err := mcp.Members(raw, mcp.Strict, func(key string, v []byte) error {
		switch key {
		case "name":
			return nil
		case "outputSchema":
			if results == plane.Marked {
				return nil
			}
		case "inputSchema":
			schema = true
		case "_meta":
			if t.apart && v[0] == '{' {
				apart = false
				v = mcp.WithMembers(v, namedApart(t.Definition.Name))
			}
		}
		q, err := json.Marshal(key)
		if err != nil {
			return err
		}
		out = append(append(append(append(out, ','), q...), ':'), v...)
		return nil
	})
	if err != nil { // it was read once
		out = append(append(out[:0], `{"name":`...), name...)
	}
	if apart {
		out = append(append(append(out, `,"_meta":{`...), namedApart(t.Definition.Name)...), '}')
	}
	if !schema {
		out = append(out, `,"inputSchema":{"type":"object"}`...)
	}
	return append(out, '}')
}
