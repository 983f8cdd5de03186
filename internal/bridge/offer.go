package bridge

import (
	"slices"
	"strings"
	"sync"

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
}

type preparedTools struct {
	catalog *plane.Catalog
	conn    *plane.Connection
	tools   []*Tool // by alias
	left    []Left
}

// of returns a connection's tools. The connection is the policy's own: another
// policy has another pointer, and the same content where nothing changed.
func (p *prepared) of(b *Bridge, a policy.Attached, cat *plane.Catalog, d Dialect) *preparedTools {
	k := preparedKey{a.ID, d}
	p.mu.Lock()
	have := p.by[k]
	p.mu.Unlock()
	if have != nil && have.catalog == cat && (have.conn == a.Connection || have.conn.Version == a.Version && have.conn.Slug == a.Slug && sameRules(have.conn, a.Connection)) {
		return have
	}
	made := &preparedTools{catalog: cat, conn: a.Connection}
	made.tools, made.left = b.offered(a, cat, d)
	slices.SortFunc(made.tools, func(x, y *Tool) int { return strings.Compare(x.Alias, y.Alias) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = map[preparedKey]*preparedTools{}
	}
	p.by[k] = made
	return made
}

func sameRules(a, b *plane.Connection) bool {
	same := func(x, y *plane.Preferences) bool {
		return slices.Equal(x.Allow, y.Allow) && slices.Equal(x.Deny, y.Deny) && slices.Equal(x.Excluded, y.Excluded) && x.Legacy == nil && y.Legacy == nil
	}
	return same(&a.Prefs, &b.Prefs) && same(&a.Fixed, &b.Fixed)
}

// makeOffer turns what is attached into tools.
func (b *Bridge) makeOffer(snap *policy.Snapshot, attached []policy.Attached, failed map[plane.ConnectionID]error, d Dialect) *offer {
	o := &offer{policy: snap, byAlias: map[string]*Tool{}, servers: make([]Server, 0, len(attached))}
	total := 0
	for _, a := range attached {
		srv := Server{Slug: a.Slug, Scope: a.Scope, ID: a.ID, Why: a.Why}
		var cat *plane.Catalog
		if srv.Why == "" {
			if cat = b.Catalogs.Get(a.ID); cat != nil {
				o.catalogs = append(o.catalogs, cat)
			}
			if err := failed[a.ID]; err != nil {
				srv.Why = plane.Public(err).Message
			} else if cat == nil || cat.Stale(a.Version) {
				srv.Why = "its tools have not been read yet"
			}
		}
		if srv.Why == "" {
			ready := b.prepared.of(b, a, cat, d)
			srv.Tools, srv.Left = len(ready.tools), ready.left
			total += len(ready.tools)
			// Of each connection no more than all of an offer can be in it.
			o.tools = append(o.tools, ready.tools[:min(len(ready.tools), b.Limits.ToolsOffered)]...)
		}
		o.servers = append(o.servers, srv)
	}
	slices.SortFunc(o.tools, func(x, y *Tool) int { return strings.Compare(x.Alias, y.Alias) })
	// Two slugs cannot make one alias; a duplicate degrades.
	o.tools = slices.CompactFunc(o.tools, func(x, y *Tool) bool { return x.Alias == y.Alias })
	if total > b.Limits.ToolsOffered && len(o.tools) > b.Limits.ToolsOffered {
		o.cut = total - b.Limits.ToolsOffered
		o.tools = slices.Clip(o.tools[:b.Limits.ToolsOffered])
	}
	for _, t := range o.tools {
		o.byAlias[t.Alias] = t
	}
	return o
}

// offered are a connection's tools that may be used, and those that the dialect
// has no form for.
func (b *Bridge) offered(a policy.Attached, cat *plane.Catalog, dialect Dialect) (out []*Tool, left []Left) {
	names := Aliases(a.Slug, cat.Definitions)
	for i := range cat.Definitions {
		d := &cat.Definitions[i]
		if d.Unsupported != "" || d.Held != "" || a.Out(d.Name) != "" {
			continue
		}
		schema, back, why := project(d.InputSchema, dialect)
		if why != "" {
			left = append(left, Left{d.Name, why})
			continue
		}
		al := names[d.Name]
		out = append(out, &Tool{Alias: al, Definition: d, Connection: a.ID, Version: a.Version, Server: a.Slug, back: back,
			Spec: plane.ToolSpec{Name: al, Description: describe(a.Slug, d.Description, b.Limits.DescriptionOffered), Schema: schema}})
	}
	return out, left
}
