package app_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"patchbay/internal/command"
	"patchbay/internal/fake"
)

// A completion contract is given with a review, is kept by what only says which tools
// are used, and goes with a review that does not name it.
func TestAContractThroughTheAPI(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("save_issue", ""), fake.Tool("get_issue", ""))
	cfg := allow(`"agent:general/mine"`, m.URL)
	s := start(t, "", cfg)
	x := newSurfaces(t, s)
	add := func(name, endpoint string) (p command.Provider) {
		t.Helper()
		body, code := x.overAPI("POST", "/api/agents/general/mcp/providers", fmt.Sprintf(`{"name":%q,"endpoint":%q,"token":"tok-1","new_account":true}`, name, endpoint))
		if code != 200 || json.Unmarshal(body, &p) != nil {
			t.Fatalf("%d %s", code, body)
		}
		return p
	}
	mine, linear := add("mine", m.Endpoint()), add("linear", "https://mcp.linear.app/mcp")
	s.stop()
	// Nobody here reaches Linear: what the other server lists stands for its listing.
	tamper(t, s.dir, fmt.Sprintf(`UPDATE catalogs SET version = %[3]d, health = 'ok', captured_at = (SELECT captured_at FROM catalogs WHERE connection = '%[1]s') WHERE connection = '%[2]s';
INSERT INTO definitions (connection, ord, fingerprint, raw, held) SELECT '%[2]s', ord, fingerprint, raw, held FROM definitions WHERE connection = '%[1]s'`, mine.ID, linear.ID, linear.Version))
	s = start(t, s.dir, cfg)
	x = newSurfaces(t, s)
	path := "/api/agents/general/mcp/providers/"
	look := func(id string) (p command.Provider) {
		t.Helper()
		body, code := x.overAPI("GET", path+id, "")
		if code != 200 || json.Unmarshal(body, &p) != nil {
			t.Fatalf("%d %s", code, body)
		}
		return p
	}
	enable := func(id, what string) int {
		t.Helper()
		_, code := x.overAPI("POST", path+id+"/enable", fmt.Sprintf(`{"version":%d,"keep_state":true,%s}`, look(id).Version, what))
		return code
	}
	held := func() string {
		for _, c := range look(linear.ID).Classes {
			if c.Name == "save_issue" {
				return c.Class + " " + c.Contract
			}
		}
		return ""
	}
	print := func(id string) string {
		t.Helper()
		for _, d := range look(id).Discovered {
			if d.Name == "save_issue" {
				return d.Fingerprint
			}
		}
		t.Fatalf("%+v", look(id))
		return ""
	}(linear.ID)
	review := func(class, contract string) string {
		return fmt.Sprintf(`"tool_classifications":[{"name":"save_issue","fingerprint":%q,"class":%q,"completion_contract":%q}]`, print, class, contract)
	}
	const atomic = "linear-atomic-append-v1"
	for what, c := range map[string]struct {
		id, body string
		want     int
	}{
		"another endpoint":      {mine.ID, review("effect", atomic), 400},
		"a query":               {linear.ID, review("query", atomic), 400},
		"a contract of no name": {linear.ID, review("effect", "linear-atomic-append-v2"), 400},
	} {
		if code := enable(c.id, c.body); code != c.want || held() != "" {
			t.Errorf("%s: %d, %q", what, code, held())
		}
	}
	for _, step := range []struct{ body, want string }{
		{review("effect", atomic), "effect " + atomic},
		{`"disabled_tools":["get_issue"]`, "effect " + atomic},
		{`"disabled_tools":[]`, "effect " + atomic},
		{review("effect", ""), "effect "},
	} {
		if code := enable(linear.ID, step.body); code != 200 || held() != step.want {
			t.Errorf("%s: %d, %q", step.body, code, held())
		}
	}
}
