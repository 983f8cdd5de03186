package consent

import (
	"context"
	"slices"
	"strings"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
)

// lookTime bounds a look at a proposed server; lookTools what is told of it.
const (
	lookTime  = 20 * time.Second
	lookTools = 256
	lookChars = 400
)

// Look asks a proposed server once, without a credential, what it offers and how it
// wants to be signed in to. Nothing is stored.
func (s *Service) Look(ctx context.Context, who plane.Principal, team string, d plane.Declaration) plane.Found {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	out := plane.Found{At: s.o.Clock.Now(), Health: plane.HealthUnavailable}
	fail := func(err error) plane.Found {
		e := plane.Public(err)
		_, short, ok := strings.Cut(e.Message, d.Name+": ") // whose scope's it would be is said above
		if !ok {
			short = e.Message
		}
		out.Detail, out.Next = short, e.Next
		return out
	}
	if d.Transport == plane.Stdio {
		out.Health, out.Detail = plane.HealthPending, "it is a stdio server, which is not started before it is accepted"
		return out
	}
	conn := plane.Connection{Slug: d.Name, Endpoint: d.URL, Auth: plane.AuthNone, Origin: plane.Added, CreatedBy: who.ID, Enabled: true,
		Scope: plane.Scope{Kind: plane.ScopeTeam, Name: team}} // whose exceptions it would have
	if err := s.o.CheckURL(conn.EgressName(), conn.Endpoint); err != nil {
		return fail(err)
	}
	g, err := s.o.Policy().Retry(who, conn)
	if err != nil {
		return fail(err)
	}
	probed, err := s.o.Upstream.Probe(ctx, g, s.o.Connections.TryNone(g))
	if err == nil {
		out.Health, out.SignIn = plane.HealthOK, plane.AuthNone
		for _, raw := range probed.Listed.Tools {
			t := catalog.Read(raw, s.o.Limits)
			if len(out.Tools) == lookTools {
				out.Detail = "only the first tools are shown"
				break
			}
			out.Tools = append(out.Tools, plane.FoundTool{Name: t.Name, Hint: hint(&t), Description: clip(t.Description, lookChars)})
		}
		slices.SortFunc(out.Tools, func(a, b plane.FoundTool) int { return strings.Compare(a.Name, b.Name) })
		return out
	}
	if !probed.Refused {
		return fail(err)
	}
	out.Health, out.SignIn, out.Detail = plane.HealthUnauthorized, plane.AuthBearer, "it tells its tools to those who are signed in"
	disc, _, err := s.o.OAuth(conn.EgressName()).Discover(ctx, discovery(conn, probed.Challenges))
	if err == nil {
		out.SignIn, out.Scopes = plane.AuthOAuth, oauth.WantedScopes(disc, nil, false)
	}
	return out
}

func hint(t *plane.Definition) string {
	switch {
	case t.Destructive:
		return "may destroy"
	case t.ReadOnly:
		return "read-only"
	case t.Harmless:
		return "may write"
	}
	return "none"
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
