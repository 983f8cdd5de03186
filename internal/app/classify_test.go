package app_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// tool is the row of one tool.
func (s *served) tool(server, name string) command.ToolRow {
	s.t.Helper()
	var out command.MCPTools
	if err := s.do("mcp.tools", command.MCPToolsInput{Name: server}, &out); err != nil {
		s.t.Fatal(err)
	}
	for _, row := range out.Tools {
		if row.Name == name {
			return row
		}
	}
	return command.ToolRow{}
}

func (s *served) refresh(name string) {
	s.t.Helper()
	if err := s.do("mcp.refresh", command.NameInput{Name: name}, &command.MCPTest{}); err != nil {
		s.t.Fatal(err)
	}
}

// A tool may be repeated only when a person said so of its very definition: what
// an uncertain call ends as follows from it, and a changed definition takes the
// word away.
func TestClassify(t *testing.T) {
	changed := fake.Tool("get_a", `"annotations":{"readOnlyHint":true,"destructiveHint":true}`)
	const odd = "odd"
	m := fake.NewMCP(t, fake.Tool("get_a", ""), fake.Tool("drop_a", ""), `{"name":"odd","inputSchema":{"type":"object","properties":{"a":{"$ref":"https://elsewhere.example/schema"}}}}`)
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return nil, &mcp.RPCError{Code: -32000, Message: "half way"}
	})
	s := start(t, "", upConfig(m))
	s.refresh("up")
	classify := func(in command.ClassifyInput) error {
		in.Name = "up"
		return s.do("mcp.classify", in, &command.MCPChanged{})
	}
	fp := s.tool("up", "get_a").Fingerprint
	for what, c := range map[string]struct {
		in   command.ClassifyInput
		want plane.Kind
	}{
		"a query without a fingerprint":   {command.ClassifyInput{Tool: "get_a", Class: "query"}, plane.InvalidInput},
		"with too little of one":          {command.ClassifyInput{Tool: "get_a", Class: "query", Fingerprint: fp[:31]}, plane.InvalidInput},
		"with another one":                {command.ClassifyInput{Tool: "get_a", Class: "query", Fingerprint: strings.Repeat("0", 64)}, plane.Conflict},
		"an unknown class":                {command.ClassifyInput{Tool: "get_a", Class: "mutation", Fingerprint: fp}, plane.InvalidInput},
		"a tool that is not there":        {command.ClassifyInput{Tool: "get_z", Class: "query", Fingerprint: fp}, plane.Conflict},
		"a tool that is not supported":    {command.ClassifyInput{Tool: odd, Class: "query", Fingerprint: s.tool("up", odd).Fingerprint}, plane.InvalidInput},
		"what changed since it was shown": {command.ClassifyInput{Tool: "get_a", Class: "query", Fingerprint: fp, Version: 99}, plane.Conflict},
	} {
		if err := classify(c.in); plane.KindOf(err) != c.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	if row := s.tool("up", "get_a"); row.Class != "effect" || row.Reviewed {
		t.Fatalf("a refused review left something: %+v", row)
	}
	ends := func(tool string) string {
		t.Helper()
		out, err := s.callTool("up", tool)
		if err != nil {
			t.Fatal(err)
		}
		return out.State
	}
	if got := ends("get_a"); got != string(plane.CallUnknown) {
		t.Errorf("an uncertain effect ended as %s", got)
	}
	s.settle(1)
	if err := classify(command.ClassifyInput{Tool: "get_a", Class: "query", Fingerprint: fp[:32]}); err != nil {
		t.Fatal(err)
	}
	if a, b := ends("get_a"), ends("drop_a"); a != string(plane.CallFailed) || b != string(plane.CallUnknown) {
		t.Errorf("a reviewed query ended as %s, another tool as %s", a, b)
	}

	is := func(want string, when string) {
		t.Helper()
		if row := s.tool("up", "get_a"); row.Name != "" && row.Class != want || row.Name != "" && row.Reviewed != (want == "query") {
			t.Errorf("%s: %+v", when, row)
		}
	}
	set := func(in command.ToolsSetInput) {
		t.Helper()
		in.Name = "up"
		if err := s.do("mcp.tools-set", in, &command.MCPChanged{}); err != nil {
			t.Fatal(err)
		}
	}
	set(command.ToolsSetInput{Exclude: []string{"get_a"}})
	is("query", "left out")
	set(command.ToolsSetInput{All: true})
	is("query", "and used again")
	m.SetTools(fake.Tool("drop_a", ""))
	s.refresh("up")
	m.SetTools(fake.Tool("get_a", ""), fake.Tool("drop_a", ""))
	s.refresh("up")
	is("query", "gone for a while")
	if err := classify(command.ClassifyInput{Tool: "get_a", Class: "effect"}); err != nil {
		t.Fatal(err)
	}
	ends("get_a") // lists, and may be believed for a while
	m.SetTools(changed, fake.Tool("drop_a", ""))
	if out, err := s.callTool("up", "get_a"); err != nil || !out.IsError || !strings.Contains(out.Message, "changed since it was offered") {
		t.Errorf("a reviewed effect that changed without a word: %+v %v", out, err)
	}
	s.refresh("up")
	is("effect", "changed")
	m.SetTools(fake.Tool("get_a", ""), fake.Tool("drop_a", ""))
	s.refresh("up")
	is("effect", "and changed back")
}

// Two people who review the same at once: the second looks again.
func TestTwoReviewersAtOnce(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("get_a", ""))
	s := start(t, "", upConfig(m))
	s.refresh("up")
	row, v := s.tool("up", "get_a"), s.row("up")
	var show command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: v.Name}, &show); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, class := range []string{"query", "effect"} {
		wg.Go(func() {
			errs[i] = s.c.Command(t.Context(), "mcp.classify", command.ClassifyInput{Name: "up", Tool: "get_a", Class: class, Fingerprint: row.Fingerprint, Version: show.Version}, &command.MCPChanged{})
		})
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("%v, %v", errs[0], errs[1])
	}
	for i, want := range []string{"query", "effect"} {
		if errs[i] == nil && s.tool("up", "get_a").Class != want {
			t.Errorf("the one that won said %s", want)
		} else if errs[i] != nil && plane.KindOf(errs[i]) != plane.Conflict {
			t.Error(errs[i])
		}
	}
}

// A server that does not answer is no mistake of whoever adds it: nothing is
// kept, and what is wrong is said as an outage.
func TestAddingADeadServer(t *testing.T) {
	dead := fake.NewMCP(t)
	s := start(t, "", allow("dead", dead.URL))
	dead.Close()
	err := s.do("mcp.add", command.MCPAddInput{Name: "dead", Address: dead.Endpoint()}, &command.MCPAdded{})
	if plane.KindOf(err) != plane.Unavailable || !strings.Contains(plane.Public(err).Next, "Check that it runs") {
		t.Fatalf("%v", err)
	}
	var list command.MCPList
	if err := s.do("mcp.list", command.MCPListInput{}, &list); err != nil || len(list.Servers) != 0 {
		t.Fatalf("%+v %v", list, err)
	}
}
