package registry

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// TeamSources is what a team's repository, its skills and its people declare.
type TeamSources struct {
	HasRepo      bool
	Destinations *[]string        // in place of the agents' own; nil for those
	Repository   []plane.Declared // of its default branch
	Skills       []plane.Declared
	Wanted       []string // registry entries that skills name
	Curated      []plane.Declared
}

// Merged is one name after the merge.
type Merged struct {
	plane.Declared
	NamedBy   plane.Layer // who asked for it; decides whose connection it is
	Overrides []plane.Layer
	Missing   bool // it is named and nobody declares it
}

// Merge is the merge of design D3 for one agent, guarded or open, and one team: registry < agent's list <
// repository < skill < team, by name, the later in place of the earlier. A registry
// entry counts only where something names it, or it says default: true. The result is
// in order of names.
func Merge(registry []plane.Declared, servers []string, team *TeamSources, guarded bool) []Merged {
	byName := map[string]plane.Declared{}
	for _, d := range registry {
		byName[d.Name] = d
	}
	out := map[string]*Merged{}
	name := func(n string, by plane.Layer) {
		if m := out[n]; m != nil {
			if m.NamedBy == plane.LayerRegistry {
				m.NamedBy = by // asked for, and not only there by itself
			}
			return
		}
		d, ok := byName[n]
		if !ok {
			d = plane.Declared{Declaration: plane.Declaration{Name: n}, Layer: by}
		}
		out[n] = &Merged{Declared: d, NamedBy: by, Missing: !ok}
	}
	for _, d := range registry {
		if d.Default {
			name(d.Name, plane.LayerRegistry)
		}
	}
	for _, n := range servers {
		name(n, plane.LayerAgent)
	}
	if team != nil {
		declare := func(list []plane.Declared, by plane.Layer) {
			for _, d := range list {
				if guarded && out[d.Name] != nil && !(by == plane.LayerTeam && d.Admin) {
					continue // what a guarded agent could not take takes nothing away from it
				}
				m := &Merged{Declared: d, NamedBy: by}
				if was := out[d.Name]; was != nil {
					m.Overrides = was.Overrides
					if !was.Missing {
						m.Overrides = append(m.Overrides, was.Layer)
					}
				} else if r, ok := byName[d.Name]; ok {
					m.Overrides = []plane.Layer{r.Layer}
				}
				out[d.Name] = m
			}
		}
		declare(team.Repository, plane.LayerRepository)
		for _, n := range team.Wanted {
			name(n, plane.LayerSkill)
		}
		declare(team.Skills, plane.LayerSkill)
		declare(team.Curated, plane.LayerTeam)
	}
	list := make([]Merged, 0, len(out))
	for _, m := range out {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b Merged) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Reach is what an agent may reach by name.
type Reach map[string]plane.Destination

// scope says whose connection a declaration becomes: the agent's for its own list and
// what the registry attaches by itself, the team's for the rest.
func (m *Merged) scope(agent, team string) plane.Scope {
	if m.NamedBy == plane.LayerAgent || m.NamedBy == plane.LayerRegistry {
		return plane.Scope{Kind: plane.ScopeAgent, Name: agent}
	}
	return plane.Scope{Kind: plane.ScopeTeam, Name: team}
}

// forOthers reports that a declaration names agents, and not this one.
func (m *Merged) forOthers(agent *plane.Agent) bool {
	return len(m.Agents) > 0 && !slices.Contains(m.Agents, agent.Slug)
}

// forOpen reports that a declaration names no agents, and this one is guarded.
func (m *Merged) forOpen(agent *plane.Agent) bool {
	return agent.Trust != plane.Open && len(m.Agents) == 0 && m.NamedBy != plane.LayerAgent
}

// Drop says why a declaration is not attached for an agent, or nothing. A declaration
// never widens what the agent may reach: that stands in reach already, or is dropped.
func Drop(m *Merged, agent *plane.Agent, team string, hasRepo, sandbox bool, reach Reach) string {
	switch {
	case m.Missing:
		return fmt.Sprintf("the registry has no %s", m.Name)
	case m.Transport == plane.Stdio && !sandbox:
		return "there is no sandbox to run a stdio server in"
	case m.forOthers(agent):
		return "it names other agents: " + strings.Join(m.Agents, ", ")
	case m.forOpen(agent):
		return "it names no agents, so it serves open ones only"
	}
	d, known := reach[m.Destination]
	if agent.Trust != plane.Open && m.scope(agent.Slug, team).Kind == plane.ScopeTeam {
		switch {
		case m.Layer != plane.LayerTeam || !m.Admin:
			return "a guarded agent takes from a team only what an org admin accepted"
		case m.Destination == "" || !known:
			return "a guarded agent takes from a team only what goes to a destination of its policy"
		}
	}
	switch {
	case m.Destination == "":
		return ""
	case !known:
		return fmt.Sprintf("the destination %s is not in the policy of %s", m.Destination, agent.Slug)
	case d.NeedsRepo() && !hasRepo:
		return fmt.Sprintf("the destination %s needs a team's repository, and there is none", m.Destination)
	case m.Transport == plane.HTTP && !Admits(&d, m.URL):
		return fmt.Sprintf("its address is none of the destination %s", m.Destination)
	case m.Transport == plane.HTTP && d.Secret != "" && !agrees(m.Auth, d.Inject):
		return fmt.Sprintf("its auth is not how the secret of the destination %s goes in", m.Destination)
	}
	return ""
}

// agrees reports that a declaration signs in as its destination says that the secret goes
// in: elsewhere it would be shown to who was not meant to see it.
func agrees(a plane.Auth, in plane.Injection) bool {
	user, basic := a.BasicUser()
	switch {
	case a == plane.AuthNone || a == plane.AuthOAuth:
		return true // the secret is not used
	case in.Kind == "bearer":
		return a == plane.AuthBearer
	case in.Kind == "header":
		return a.Pasted() && a != plane.AuthBearer && !basic && strings.EqualFold(a.Header(), in.Name) && in.Prefix == ""
	case in.Kind == "basic":
		return basic && (in.User == "" || in.User == user)
	}
	return false
}

// Admits reports whether an MCP server's address is at one of a destination's hosts, by its
// methods and paths.
func Admits(d *plane.Destination, raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return false
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	if port != strconv.Itoa(d.Port) {
		return false
	}
	if len(d.Methods) > 0 && !slices.Contains(d.Methods, "POST") { // an MCP server is spoken to by POST
		return false
	}
	if p := cmp.Or(u.Path, "/"); !policy.CleanPath(cmp.Or(u.EscapedPath(), "/"), p) || len(d.Paths) > 0 && !slices.ContainsFunc(d.Paths, func(g string) bool { return plane.Glob(g, p) }) {
		return false
	}
	return slices.ContainsFunc(d.Hosts, func(h string) bool { return policy.HostMatches(h, u.Hostname()) })
}

// BuiltIn are the destinations that are there without a word of config. Each needs a
// team's repository: its token is minted for that and no other.
func BuiltIn() map[string]plane.Destination {
	out := map[string]plane.Destination{}
	for _, d := range []plane.Destination{
		{Name: "github-api", Hosts: []string{"api.github.com"}},
		{Name: "github-git", Hosts: []string{"github.com"}, Inject: plane.Injection{Kind: "basic", User: "x-access-token"}},
		{Name: "github-repo-metadata", Hosts: []string{"api.github.com"}, Methods: []string{"GET"}, Paths: []string{"/repos/*"}},
		{Name: "github-mcp", Hosts: []string{"api.githubcopilot.com"}},
	} {
		d.Port, d.Needs, d.Secret, d.Built = 443, []string{"repo"}, "github_app:default", true
		if d.Inject.Kind == "" {
			d.Inject.Kind = "bearer"
		}
		out[d.Name] = d
	}
	return out
}

// CheckDestination holds a destination to what one may say.
func CheckDestination(d *plane.Destination) error {
	bad := func(field, format string, args ...any) error {
		return plane.Errorf(plane.InvalidInput, "The destination %s: %s", d.Name, fmt.Sprintf(format, args...)).At(field)
	}
	if d.Port == 0 {
		d.Port = 443
	}
	if d.Inject.Kind == "" {
		d.Inject.Kind = "bearer"
	}
	switch {
	case !plane.ValidSlug(d.Name):
		return plane.Errorf(plane.InvalidInput, "%q cannot be the name of a destination; use a-z, 0-9 and -.", bounded(d.Name)).At("name")
	case BuiltIn()[d.Name].Built:
		return bad("name", "it is built in.")
	case len(d.Hosts) == 0 || len(d.Hosts) > 64:
		return bad("hosts", "it names 1 to 64 hosts.")
	case d.Port < 1 || d.Port > 65535:
		return bad("port", "the port is 1 to 65535.")
	case d.Tunnel && (d.Secret != "" || len(d.Methods)+len(d.Paths) > 0):
		return bad("tunnel", "what is passed through is not looked into: it takes no secret, methods or paths.")
	case len(d.Methods) > 32 || len(d.Paths) > 256:
		return bad("paths", "it names at most 32 methods and 256 paths.")
	case !slices.Contains([]string{"bearer", "header", "basic", "query", "body", "aws_sigv4", "hmac"}, d.Inject.Kind):
		return bad("inject", "the secret goes in as bearer, header, basic, query or body, or signs: aws_sigv4, hmac.")
	case d.Inject.Kind == "basic" && d.Inject.User == "", d.Inject.Kind != "basic" && d.Inject.User != "":
		return bad("inject", "user goes with basic, and basic with a user.")
	case slices.Contains([]string{"header", "query", "body", "hmac"}, d.Inject.Kind) == (d.Inject.Name == ""):
		return bad("inject", "name goes with header, query, body and hmac.")
	case d.Inject.Kind != "aws_sigv4" && d.Inject.Region+d.Inject.Service != "":
		return bad("inject", "region and service go with aws_sigv4.")
	case d.Inject.Kind != "hmac" && (len(d.Inject.Over) > 0 || d.Inject.Stamp != ""):
		return bad("inject", "over and stamp go with hmac.")
	case slices.Contains(d.Inject.Over, "timestamp") && d.Inject.Stamp == "":
		return bad("inject", "a signature over the timestamp tells it in a header: stamp.")
	}
	for _, o := range d.Inject.Over {
		if !slices.Contains([]string{"method", "path", "query", "timestamp", "body"}, o) {
			return bad("inject", "%q cannot be signed; method, path, query, timestamp and body can.", bounded(o))
		}
	}
	for _, h := range d.Hosts {
		bare := strings.TrimPrefix(h, "*.")
		if bare == "" || len(h) > 253 || strings.ContainsAny(bare, "*/:@ ?#\\") || strings.Trim(bare, ".") != bare || !strings.Contains(bare, ".") && bare != "localhost" {
			return bad("hosts", "%q is no host; write api.example.com or *.example.com.", bounded(h))
		}
	}
	for _, p := range d.Paths {
		if !strings.HasPrefix(p, "/") || len(p) > 1024 || strings.Count(p, "*") > 8 {
			return bad("paths", "%q is no path; write /repos/*.", bounded(p))
		}
	}
	for _, m := range d.Methods {
		if m == "" || strings.ToUpper(m) != m || len(m) > 20 {
			return bad("methods", "%q is no method; write GET.", bounded(m))
		}
	}
	for _, n := range d.Needs {
		if n != "repo" {
			return bad("needs", "%q is not known; repo is.", bounded(n))
		}
	}
	if d.Secret != "" {
		if _, _, err := SecretRef(d.Secret); err != nil {
			return bad("inject_secret", "%s", plane.Public(err).Message)
		}
	}
	return nil
}

// SecretRef reads secret:<ref>, connection:<id> or github_app:<ref>.
func SecretRef(s string) (kind, ref string, err error) {
	kind, ref, ok := strings.Cut(s, ":")
	good := ok && (kind == "secret" || kind == "github_app") && ValidRef(ref)
	if ok && kind == "connection" {
		good = strings.HasPrefix(ref, "con_") && len(ref) == len("con_")+26
	}
	if !good {
		return "", "", plane.Errorf(plane.InvalidInput, "%q names no secret; write secret:<ref>, connection:<id> or github_app:<ref>.", bounded(s)).At("inject_secret")
	}
	return kind, ref, nil
}

// ValidRef reports whether a secret may be called that.
func ValidRef(ref string) bool {
	if ref == "" || len(ref) > 64 {
		return false
	}
	for i := range len(ref) {
		c := ref[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && (i == 0 || !strings.ContainsRune("-_.", rune(c))) {
			return false
		}
	}
	return true
}
