package app_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// TestALinkIsForTheServerThatWasShown: a declaration that moves to another address is
// another connection; a link that was made for the old one takes no credential to the new.
func TestALinkIsForTheServerThatWasShown(t *testing.T) {
	real, evil := fake.NewMCP(t, fake.Tool("look", "")), fake.NewMCP(t, fake.Tool("look", ""))
	real.RequireToken("the-real-token")
	var seen atomic.Value
	evil.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if a := r.Header.Get("Authorization"); a != "" {
				seen.Store(a)
			}
			next.ServeHTTP(w, r)
		})
	})
	s := start(t, "", "teams: {payments: {members: [\"cli:local\"], config_write: [\"cli:local\"]}}\n"+fmt.Sprintf("egress: {allow: [{to: %q, for: [\"team:payments/notes\"]}, {to: %q, for: [\"team:payments/notes\"]}]}\n", real.URL, evil.URL))
	x := newSurfaces(t, s)
	put := func(m *fake.MCP) {
		t.Helper()
		if b, status := x.overAPI("PUT", "/api/v1/mcp-servers/payments/notes", fmt.Sprintf(`{"name":"notes","url":%q,"auth":"bearer"}`, m.Endpoint())); status != http.StatusOK {
			t.Fatalf("%d %s", status, b)
		}
	}
	put(real)
	before := s.row("team:payments/notes")
	var link command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "team:payments/notes"}, &link); err != nil {
		t.Fatal(err)
	}
	v := newVisitor(t)
	v.get(link.Link)
	put(evil)
	if status, page := v.post(link.Link, url.Values{"token": {"the-real-token"}}); seen.Load() != nil || strings.Contains(page, "is connected") {
		t.Errorf("the other server saw %v: %d %s", seen.Load(), status, page)
	}
	if after := s.row("team:payments/notes"); after.ID == before.ID || after.State != "awaiting_credential" {
		t.Errorf("%+v", after)
	}
}

// TestWhatWasDecidedIsNotUndone: a member does not take away what an org admin accepted for
// a guarded agent, by whatever they accept in its place.
func TestWhatWasDecidedIsNotUndone(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", "teams: {payments: {members: [ada@example.com, \"cli:local\"]}}\nagents: {coding: {destinations: []}}\nnats: {embedded: true, listen: \"127.0.0.1:0\", trusted_publishers: true, allow_decisions: true}\n")
	x := newSurfaces(t, s)
	if b, status := x.overAPI("PUT", "/api/v1/mcp-servers/payments/lk", fmt.Sprintf(`{"name":"lk","url":%q,"agents":["coding"]}`, m.Endpoint())); status != http.StatusOK {
		t.Fatalf("%d %s", status, b)
	}
	var admin command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Scopes: []string{"admin"}, Service: true}, &admin); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("nats://"+s.a.BusAddr(), nats.Token(admin.Value))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ask := func(args ...string) busAnswer {
		return onBus(t, nc, "patchbay.controller.command", busRequest("payments", "", "ada@example.com", args...))[0]
	}
	if a := ask("forget", "lk"); a.OK || !strings.Contains(a.Error, "an org admin decides") {
		t.Errorf("%+v", a)
	}
	if a := ask("propose", "lk", "name: lk\nurl: "+m.Endpoint()+"\n"); !a.OK {
		t.Fatalf("%+v", a)
	}
	if a := ask("accept", "lk"); a.OK || !strings.Contains(a.Error, "an org admin decides") {
		t.Errorf("%+v", a)
	}
	// What waits is not replaced, so that what was seen is what is accepted.
	if a := ask("propose", "lk", "name: lk\nurl: https://evil.example.com/mcp\n"); a.OK || a.Code != string(plane.Conflict) {
		t.Errorf("%+v", a)
	}
	var row command.ProposalRow
	if err := s.do("mcp.accept", command.ProposalInput{Name: "lk", Team: "payments", ID: "prp_00000000000000000000000000"}, &row); plane.KindOf(err) != plane.Conflict {
		t.Errorf("another proposal than the one that was looked at: %v", err)
	}
	var show command.ProposalShow
	if err := s.do("proposals.show", command.ProposalShowInput{Name: "lk", Team: "payments", NoLook: true}, &show); err != nil || !strings.Contains(fmt.Sprint(show.Changes), "agents: none, in force coding") {
		t.Errorf("%+v %v", show.Changes, err)
	}
	if b, status := x.overAPI("POST", "/api/v1/mcp-servers/payments/lk/accept", `{"id":"`+show.ID+`"}`); status != http.StatusOK || !strings.Contains(string(b), `"curated"`) {
		t.Errorf("%d %s", status, b)
	}
}

// TestReplicasWhoseFilesDiffer: one uses no record that the other's file made otherwise.
func TestReplicasWhoseFilesDiffer(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("drop", ""))
	with := func(deny string) *served {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "reg"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "reg", "notes.yaml"), []byte("name: notes\nurl: "+m.Endpoint()+"\n"+deny), 0o600); err != nil {
			t.Fatal(err)
		}
		return start(t, dir, onPostgres(pg.URL, allow("notes", m.URL)+"registry: {path: reg}\nagents: {general: {servers: [notes]}}\n"))
	}
	strict := with("tools: {deny: [drop]}\n")
	call := func(s *served, tool string) error {
		var out command.MCPCall
		return s.do("mcp.call", command.MCPCallInput{Name: "notes", Tool: tool}, &out)
	}
	if err := call(strict, "look"); err != nil {
		t.Fatal(err)
	}
	loose := with("")
	if err := call(loose, "drop"); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the strict replica to notice", func() bool {
		err := call(strict, "look")
		return err != nil
	})
	if err := call(strict, "drop"); err == nil {
		t.Error("the strict replica called what its file denies")
	}
	if err := strict.do("config.reload", map[string]any{}, &command.Changed{}); err != nil {
		t.Logf("%v", err)
	}
	if err := call(strict, "drop"); err == nil {
		t.Error("the strict replica called what its file denies, after a reload")
	}
}
