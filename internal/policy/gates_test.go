package policy

import (
	"strings"
	"testing"

	"patchbay/internal/plane"
)

func person(id string) plane.Principal {
	return plane.Principal{Kind: plane.KindPerson, ID: "https://idp|" + id, Email: id + "@example.com", Rights: plane.AllRights}
}

func gates(t *testing.T, more ...plane.Connection) *Snapshot {
	t.Helper()
	s, err := Compile(Rules{
		Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true}, "coding": {Slug: "coding", Trust: plane.Guarded, MCP: true, Operators: []string{"olga@example.com"}}},
		Teams:  map[string]Team{"pay": {Members: []string{"ada@example.com", "https://idp|max"}, ConfigWrite: []string{"ada@example.com"}}},
		Admins: []string{"Root@example.com"}, Connections: more})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func with(p plane.Principal, r plane.Rights) plane.Principal {
	p.Rights, p.Token = r, "tok_x"
	return p
}

// The gate of each tier, for every kind of caller.
func TestGates(t *testing.T) {
	s := gates(t)
	org, agent, team := plane.Scope{Kind: plane.ScopeOrg}, plane.Scope{Kind: plane.ScopeAgent, Name: "coding"}, plane.Scope{Kind: plane.ScopeTeam, Name: "pay"}
	own := func(p plane.Principal) plane.Scope { return plane.Scope{Kind: plane.ScopeUser, Name: p.ID} }
	ada, max, olga, root, eve := person("ada"), person("max"), person("olga"), person("root"), person("eve")
	service := plane.Principal{Kind: plane.KindService, ID: "tok_s", Rights: plane.MCPWrite}
	for _, c := range []struct {
		name string
		who  plane.Principal
		sc   plane.Scope
		ok   bool
	}{
		{"one's own", eve, own(eve), true},
		{"somebody else's", eve, own(ada), false},
		{"an admin, somebody else's", root, own(ada), false},
		{"the local admin's own", plane.Local, own(plane.Local), true},
		{"a member with config:write", ada, team, true},
		{"a member without", max, team, false},
		{"nobody's member", eve, team, false},
		{"a member's token without config:write", with(ada, plane.MCPWrite), team, false},
		{"a member's token with it", with(ada, plane.MCPWrite|plane.ConfigWrite), team, true},
		{"an admin, a team's", root, team, true},
		{"an operator", olga, agent, true},
		{"no operator", ada, agent, false},
		{"an agent that is not there", root, plane.Scope{Kind: plane.ScopeAgent, Name: "x"}, false},
		{"an admin", root, org, true},
		{"a person", ada, org, false},
		{"the local admin", plane.Local, org, true},
		{"a service with mcp:write", service, org, true},
		{"a service with mcp:read", with(service, plane.MCPRead), org, false},
		{"a service has no scope of its own", service, plane.Scope{Kind: plane.ScopeUser, Name: "tok_s"}, false},
		{"an admin's token without admin", with(root, plane.MCPWrite), org, false},
		{"a person's token that says admin", with(ada, plane.AllRights), org, false},
		{"the local admin's token without admin", with(plane.Local, plane.MCPWrite), org, false},
		{"the local admin's token, its own", with(plane.Local, plane.MCPWrite), own(plane.Local), true},
		{"an agent token", plane.Principal{Kind: plane.KindAgent, ID: ada.ID, Agent: "general"}, own(ada), false},
	} {
		d := s.MayWrite(c.who, c.sc)
		if (d == nil) != c.ok {
			t.Errorf("%s: %+v", c.name, d)
		}
		if d != nil && c.who.HasUserScope() && c.who.Rights.Has(plane.MCPWrite) && c.sc.Kind != plane.ScopeUser && d.Kind == plane.Forbidden && !strings.Contains(d.Next, "--scope me") {
			t.Errorf("%s: the refusal does not name --scope me: %+v", c.name, d)
		}
	}
}

// A name that stands in the same tier, or in a higher one that the caller's runs
// would see, is refused; a higher tier may take a lower one's.
func TestNames(t *testing.T) {
	ada, eve := person("ada"), person("eve")
	c := func(slug string, sc plane.Scope) plane.Connection {
		return plane.Connection{ID: plane.ConnectionID(sc.String() + slug), Slug: slug, Scope: sc, Endpoint: "https://x.example/mcp", Origin: plane.Added, Enabled: true}
	}
	org, team := plane.Scope{Kind: plane.ScopeOrg}, plane.Scope{Kind: plane.ScopeTeam, Name: "pay"}
	own := func(p plane.Principal) plane.Scope { return plane.Scope{Kind: plane.ScopeUser, Name: p.ID} }
	s := gates(t, c("orgs", org), c("teams", team), c("coders", plane.Scope{Kind: plane.ScopeAgent, Name: "coding"}), c("mine", own(ada)))
	for _, x := range []struct {
		who  plane.Principal
		slug string
		sc   plane.Scope
		ok   bool
	}{
		{ada, "orgs", own(ada), false}, {ada, "teams", own(ada), false}, {eve, "teams", own(eve), true}, // eve's runs never see the team's
		{ada, "mine", own(ada), false}, {eve, "mine", own(eve), true}, {ada, "mine", team, true}, {plane.Local, "mine", org, true},
		{ada, "coders", own(ada), true}, // a person's never reach a guarded agent
		{plane.Local, "orgs", org, false}, {ada, "orgs", team, false},
	} {
		_, err := s.Candidate(x.who, plane.Connection{Slug: x.slug, Scope: x.sc, Endpoint: "https://x.example/mcp"})
		if (err == nil) != x.ok || err != nil && plane.KindOf(err) != plane.Conflict {
			t.Errorf("%s takes %s in %s: %v", x.who.Name(), x.slug, x.sc, err)
		}
	}
	guarded := plane.Connection{Slug: "g", Scope: own(ada), Endpoint: "https://x.example/mcp", Agents: []string{"coding"}}
	if _, err := s.Candidate(ada, guarded); plane.KindOf(err) != plane.InvalidInput {
		t.Errorf("a person names a guarded agent: %v", err)
	}
	// One that was right when it was added serves nobody now, and spoils nothing.
	guarded.ID, guarded.Origin, guarded.Enabled = "con_bad", plane.Added, true
	s = gates(t, guarded, c("orgs", org))
	for _, a := range s.Resolve("general", ada) {
		if a.Slug == "g" {
			t.Errorf("it is offered: %+v", a)
		}
	}
}

// Added at run time goes before pinned in config within a tier, and says so.
func TestAddedBeforePinned(t *testing.T) {
	ada := person("ada")
	sc := plane.Scope{Kind: plane.ScopeUser, Name: "ada@example.com"}
	pinned := plane.Connection{ID: "p", Slug: "x", Scope: sc, Endpoint: "https://p.example/mcp", Origin: plane.Pinned, Enabled: true}
	added := pinned
	added.ID, added.Origin = "a", plane.Added
	got := gates(t, pinned, added).Resolve("general", ada)
	if len(got) != 2 || got[0].ID != "a" || got[0].Why != "" || got[1].Why == "" {
		t.Errorf("%+v", got)
	}
	if _, err := gates(t, pinned).Candidate(ada, plane.Connection{Slug: "x", Scope: plane.Scope{Kind: plane.ScopeUser, Name: ada.ID}, Endpoint: "https://x.example"}); plane.KindOf(err) != plane.Conflict {
		t.Errorf("a name that is pinned for her by address: %v", err)
	}
	if got := gates(t, pinned).Resolve("general", ada); len(got) != 1 || got[0].Why != "" {
		t.Errorf("without it: %+v", got)
	}
}

// A connection that is not signed in is told, not offered; the trace and the
// decision are one.
func TestTraceIsTheDecision(t *testing.T) {
	c := plane.Connection{ID: "c", Slug: "x", Scope: plane.Scope{Kind: plane.ScopeOrg}, Endpoint: "https://p.example/mcp", Enabled: true, Origin: plane.Added}
	for state, want := range map[plane.ConnectionState]plane.Kind{plane.StateAwaiting: plane.Unauthenticated, plane.StateAuthError: plane.Unauthenticated, plane.StateConnected: ""} {
		c.State, c.Reason = state, plane.ReasonRevoked
		s := gates(t, c)
		var steps []Step
		g, d := s.Trace(person("ada"), Call, Resource{Agent: "general", Connection: "c"}, func(x Step) { steps = append(steps, x) })
		_, same := s.Decide(person("ada"), Call, Resource{Agent: "general", Connection: "c"})
		if (want == "") != (d == nil) || (d == nil) != (same == nil) || g.Valid() != (d == nil) || len(steps) < 2 {
			t.Errorf("%s: %+v %+v %+v", state, d, same, steps)
		}
		if d != nil && (d.Kind != want || *d != *same || steps[len(steps)-1].Reason != d.Reason) {
			t.Errorf("%s: %+v, traced %+v", state, d, steps[len(steps)-1])
		}
	}
}
