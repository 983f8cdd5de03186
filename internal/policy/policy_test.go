package policy

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/internal/plane"
)

func rules() Rules {
	scope := func(k plane.ScopeKind, n string) plane.Scope { return plane.Scope{Kind: k, Name: n} }
	c := func(id, slug string, s plane.Scope, agents ...string) plane.Connection {
		return plane.Connection{ID: plane.ConnectionID(id), Slug: slug, Scope: s, Agents: agents, Endpoint: "https://" + slug + ".example/mcp", Enabled: true, Version: 3}
	}
	return Rules{
		Agents: map[string]plane.Agent{"general": {Slug: "general", Trust: plane.Open, MCP: true}, "coding": {Slug: "coding", Trust: plane.Guarded, MCP: true}, "quiet": {Slug: "quiet", Trust: plane.Open}},
		Teams:  map[string]Team{"pay": {Members: []string{"ada"}}},
		Connections: []plane.Connection{c("org", "linear", scope(plane.ScopeOrg, "")), c("orgc", "repo", scope(plane.ScopeOrg, ""), "coding"),
			c("agent", "bench", scope(plane.ScopeAgent, "coding")), c("team", "bank", scope(plane.ScopeTeam, "pay")), c("ada", "linear", scope(plane.ScopeUser, "ada")), c("bob", "notes", scope(plane.ScopeUser, "bob"))},
	}
}

func TestDecide(t *testing.T) {
	s, err := Compile(rules())
	if err != nil {
		t.Fatal(err)
	}
	ada, adaInPay, bob := plane.Principal{Kind: plane.KindPerson, ID: "ada"}, plane.Principal{Kind: plane.KindPerson, ID: "ada", Team: "pay"}, plane.Principal{Kind: plane.KindPerson, ID: "bob", Team: "pay"}
	for _, c := range []struct {
		name    string
		who     plane.Principal
		agent   string
		conn    plane.ConnectionID
		version int64
		want    plane.Kind // empty for a grant
	}{
		{"an org connection", ada, "general", "org", 3, ""},
		{"of an older version", ada, "general", "org", 2, plane.Conflict},
		{"that names no guarded agent", ada, "coding", "org", 0, plane.Forbidden},
		{"that names one", ada, "coding", "orgc", 0, ""},
		{"but not the open one", ada, "general", "orgc", 0, plane.Forbidden},
		{"an agent's own", ada, "coding", "agent", 0, ""},
		{"another agent's own", ada, "general", "agent", 0, plane.NotFound},
		{"a team's, in the team", adaInPay, "general", "team", 0, ""},
		{"a team's, outside", ada, "general", "team", 0, plane.NotFound},
		{"a team's, by somebody who only says so", bob, "general", "team", 0, plane.NotFound},
		{"one's own", ada, "general", "ada", 0, ""},
		{"one's own, for a guarded agent", ada, "coding", "ada", 0, plane.Forbidden},
		{"somebody else's", ada, "general", "bob", 0, plane.NotFound},
		{"one that is not there", ada, "general", "nope", 0, plane.NotFound},
		{"an agent that is not there", ada, "nobody", "org", 0, plane.NotFound},
		{"an agent without MCP", ada, "quiet", "org", 0, plane.Forbidden},
		{"a call for no agent", ada, "", "org", 0, plane.Forbidden},
	} {
		g, denial := s.Decide(c.who, Call, Resource{Agent: c.agent, Connection: c.conn, Version: c.version})
		switch {
		case c.want == "" && (denial != nil || !g.Valid() || g.ID() != c.conn):
			t.Errorf("%s: %+v", c.name, denial)
		case c.want != "" && (denial == nil || denial.Kind != c.want || g.Valid()):
			t.Errorf("%s: %+v, want %s", c.name, denial, c.want)
		}
	}
	off := rules()
	off.Connections[0].Enabled = false
	if s, err = Compile(off); err != nil {
		t.Fatal(err)
	}
	if _, denial := s.Decide(ada, Call, Resource{Agent: "general", Connection: "org"}); denial == nil || denial.Kind != plane.Forbidden {
		t.Errorf("turned off: %+v", denial)
	}
	if (Grant{}).Valid() || (Grant{}).Admits("", "") {
		t.Error("the zero grant opens something")
	}
}

// Only org and agent connections may name a guarded agent, at load too.
func TestGuardedAgents(t *testing.T) {
	for i, ok := range map[int]bool{0: true, 2: true, 3: false, 4: false} {
		r := rules()
		r.Connections[i].Agents = []string{"coding"}
		if _, err := Compile(r); (err == nil) != ok {
			t.Errorf("%s naming coding: %v", r.Connections[i].Scope, err)
		}
	}
}

func TestHigherTiersWinNames(t *testing.T) {
	s, err := Compile(rules())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range s.Resolve("general", plane.Principal{Kind: plane.KindPerson, ID: "ada", Team: "pay"}) {
		got = append(got, string(a.ID)+":"+a.Why)
	}
	want := []string{"org:", "team:", "ada:shadowed by the org connection of the same name"}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%q", got)
	}
	for who, hidden := range map[string][]plane.ConnectionID{"ada": {"bob", "agent"}, "bob": {"ada", "team", "agent"}} {
		for _, a := range s.Visible(plane.Principal{Kind: plane.KindPerson, ID: who}) {
			if slices.Contains(hidden, a.ID) {
				t.Errorf("%s sees %s", who, a.ID)
			}
		}
	}
}

// manyRules are ten thousand connections, as a place with many teams has.
func manyRules() Rules {
	r := rules()
	for i := range 10_000 {
		r.Connections = append(r.Connections, plane.Connection{ID: plane.ConnectionID(fmt.Sprintf("many%d", i)), Slug: fmt.Sprintf("many%d", i),
			Scope: plane.Scope{Kind: plane.ScopeOrg}, Endpoint: "https://many.example/mcp", Enabled: i%100 == 0, Version: 1})
	}
	return r
}

// Every session resolves: what that costs must not grow with a copy of each
// connection, or a few calls a second at many connections use up the memory.
func TestResolveCopiesNothing(t *testing.T) {
	s, err := Compile(manyRules())
	if err != nil {
		t.Fatal(err)
	}
	ada := plane.Principal{Kind: plane.KindPerson, ID: "ada"}
	var got []Attached
	allocs := testing.AllocsPerRun(5, func() { got = s.Resolve("general", ada) })
	if len(got) < 10_000 || allocs > 40 {
		t.Fatalf("%d connections, %.0f allocations", len(got), allocs)
	}
	first := got[0].Connection
	if again := s.Resolve("general", ada); again[0].Connection != first {
		t.Fatal("a connection is copied for each session")
	}
}

func BenchmarkResolve(b *testing.B) {
	s, err := Compile(manyRules())
	if err != nil {
		b.Fatal(err)
	}
	ada := plane.Principal{Kind: plane.KindPerson, ID: "ada"}
	b.ReportAllocs()
	for b.Loop() {
		s.Resolve("general", ada)
	}
}
