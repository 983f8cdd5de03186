package bridge

import (
	"context"
	"slices"
	"strings"
	"sync"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// NameStore keeps which tool has which bare name for an agent's clients.
type NameStore interface {
	BareNames(ctx context.Context, agent string) ([]plane.BareName, error)
	// ClaimNames stores claims; of a name that another claim has, that one stands,
	// unless its connection is among gone.
	ClaimNames(ctx context.Context, agent string, claims []plane.BareName, gone []plane.ConnectionID) error
}

// bareNames holds the names of agents whose clients see tools without their server:
// a name once offered keeps its tool, and a newcomer that has it too is prefixed.
type bareNames struct {
	mu sync.Mutex
	by map[string]map[string]plane.BareName // agent, name
}

// reserved are names of our own.
var reserved = []string{searchTool, callTool}

// names are those of a connection's tools, in the definitions' order. It refuses when
// the store does.
func (x *bareNames) names(ctx context.Context, b *Bridge, snap *policy.Snapshot, agent string, a policy.Attached, defs []plane.Definition) ([]string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	have, err := x.load(ctx, b, agent)
	if err != nil {
		return nil, err
	}
	out := aliases(a.Slug, defs)
	if a.Scope.Rank() > 1 {
		return out, nil // an agent's names are everybody's, and no person's or team's to take
	}
	room := maxBare
	for _, n := range have {
		if n.Connection == a.ID {
			room--
		}
	}
	var claims []plane.BareName
	var gone []plane.ConnectionID
	for i := range defs {
		name := defs[i].Name
		if defs[i].Unsupported != "" || a.Out(name) != "" || cleanName(name) != name || len(name) > maxAlias || slices.Contains(reserved, name) || strings.HasPrefix(name, aliasPrefix) {
			continue
		}
		owner, taken := have[name]
		if taken && (owner.Connection != a.ID || owner.Tool != name) {
			if _, there := snap.Connection(owner.Connection); there {
				continue
			}
			gone = append(gone, owner.Connection)
		}
		if (!taken || owner.Connection != a.ID) && len(claims) < room {
			claims = append(claims, plane.BareName{Name: name, Connection: a.ID, Tool: name})
		}
	}
	if len(claims) > 0 && b.Names != nil {
		if err := b.Names.ClaimNames(ctx, agent, claims, gone); err != nil {
			return nil, err
		}
		delete(x.by, agent)
		if have, err = x.load(ctx, b, agent); err != nil { // another replica may have been faster
			return nil, err
		}
	}
	for i := range defs {
		if owner, ok := have[defs[i].Name]; ok && owner.Connection == a.ID {
			out[i] = defs[i].Name
		}
	}
	return out, nil
}

func (x *bareNames) load(ctx context.Context, b *Bridge, agent string) (map[string]plane.BareName, error) {
	if have, ok := x.by[agent]; ok {
		return have, nil
	}
	have := map[string]plane.BareName{}
	if b.Names != nil {
		list, err := b.Names.BareNames(ctx, agent)
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			have[n.Name] = n
		}
	}
	if x.by == nil {
		x.by = map[string]map[string]plane.BareName{}
	}
	x.by[agent] = have
	return have, nil
}

// maxBare is how many names one connection may keep, also of tools that vanished.
const maxBare = 1024

// namedApart is what a tool's definition says when its bare name belongs to another.
func namedApart(name string) string {
	return `"patchbay/prefixed":"The name ` + name + ` belongs to another tool."`
}
