package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
	"patchbay/internal/store/storetest"
)

// commit makes a commit of files in a repository, which is made when it is not there.
func commit(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	for name, body := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("add", "-A")
	git("commit", "-q", "-m", "x")
}

func servers(r command.RunsShow) string {
	var out []string
	for _, s := range r.Servers {
		out = append(out, s.Source+":"+s.Server)
	}
	return strings.Join(out, " ")
}

// TestARepositoryAndItsSkills: what a team's repository and its skills declare is attached
// for runs of that team, a registry entry that a skill wants too; a team's own declaration
// goes before them, and mcp why tells the same.
func TestARepositoryAndItsSkills(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	decl := func(name string) string { return fmt.Sprintf("name: %s\nurl: %s\n", name, m.Endpoint()) }
	commit(t, repo, map[string]string{".patchbay/mcp/docs.yaml": decl("docs"), ".patchbay/mcp/files.yaml": "name: files\ncommand: npx\n", ".mcp.json": fmt.Sprintf(`{"mcpServers":{"notes":{"type":"http","url":%q}}}`, m.Endpoint()),
		"skills/review/SKILL.md": fmt.Sprintf("---\nname: review\nmcp_servers: [{name: lint, url: %q}]\nmcp_tools: [linear]\n---\n", m.Endpoint())})
	config := "sandbox: none\n" + fmt.Sprintf("teams: {payments: {members: [\"cli:local\"], repo: %q}, legal: {members: [\"cli:local\"]}}\n", repo) +
		fmt.Sprintf("egress: {allow: [{to: %q, for: [\"team:payments/docs\", \"team:payments/notes\", \"team:payments/lint\", linear]}]}\n", m.URL)
	s := start(t, dir, config)
	if err := s.do("registry.add", command.RegistryAddInput{Name: "linear", Address: m.Endpoint(), Auth: "none"}, &command.RegistryShow{}); err != nil {
		t.Fatal(err)
	}
	if err := s.a.Declarations(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if run, _ := s.forTeam("Look", "general", "payments"); servers(run) != "repository:docs registry:linear skill:lint repository:notes" || !strings.Contains(fmt.Sprint(run.Steps), "mcp_dropped files") {
		t.Fatalf("%s\n%+v", servers(run), run.Steps)
	}
	if run, _ := s.forTeam("Look", "general", "legal"); servers(run) != "" {
		t.Errorf("another team: %s", servers(run))
	}
	if run, _ := s.forTeam("Look", "coding", "payments"); servers(run) != "" {
		t.Errorf("a guarded agent: %s", servers(run))
	}
	why := func(tool string) command.Why {
		t.Helper()
		var out command.Why
		if err := s.do("mcp.why", command.WhyInput{Tool: tool, Team: "payments"}, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if w := why("files/read"); w.Allowed || !strings.Contains(w.Answer, "no sandbox") || !strings.Contains(w.Answer, "declared by the repository (.patchbay/mcp/files.yaml at ") {
		t.Errorf("%+v", w)
	}
	if w := why("docs/look"); !w.Allowed || !strings.Contains(w.Trace[0].Detail, "declared by the repository") {
		t.Errorf("%+v", w)
	}
	x := newSurfaces(t, s)
	if b, status := x.overAPI("POST", "/api/v1/mcp-servers/payments", fmt.Sprintf(`{"name":"docs","url":%q,"tools":{"deny":["look"]}}`, m.Endpoint())); status != http.StatusCreated {
		t.Fatalf("%d %s", status, b)
	}
	if w := why("docs/look"); w.Allowed || !strings.Contains(w.Trace[0].Detail, "declared by the team (person:cli:local), accepted by cli:local, in place of the one of the repository") || !strings.Contains(w.Answer, "denied by look") {
		t.Errorf("%+v", w)
	}
	commit(t, repo, map[string]string{".mcp.json": `{"mcpServers":{}}`, ".patchbay/mcp/files.yaml": "name: files\ncommand: npx\nenv: {KEY: hunter2}\n"})
	if err := s.a.Declarations(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if run, _ := s.forTeam("Look", "general", "payments"); servers(run) != "team:docs registry:linear skill:lint" {
		t.Errorf("%s", servers(run))
	}
	if strings.Contains(s.log.String(), "hunter2") {
		t.Error("a secret of the repository stands in the log")
	}
	// A repository that is gone keeps what it declared.
	if err := os.Rename(repo, repo+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := s.a.Declarations(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if run, _ := s.forTeam("Look", "general", "payments"); servers(run) != "team:docs registry:linear skill:lint" {
		t.Errorf("%s", servers(run))
	}
}

// TestAServerOfTheRegistryIsAdded: its address and filters come from there, and it is used
// in place of the connection that a declaration made.
func TestAServerOfTheRegistryIsAdded(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("drop", ""))
	s := start(t, "", allow("notes", m.URL))
	entry := fmt.Sprintf("{name: notes, url: %q, auth: none, tools: {deny: [drop]}}", m.Endpoint())
	if err := s.do("registry.add", command.RegistryAddInput{Name: "notes", Declaration: entry}, &command.RegistryShow{}); err != nil {
		t.Fatal(err)
	}
	if err := s.do("registry.attach", command.AttachInput{Name: "notes", Agent: "general"}, &command.Attached{}); err != nil {
		t.Fatal(err)
	}
	var added command.MCPAdded
	if err := s.do("mcp.add", command.MCPAddInput{Name: "notes"}, &added); err != nil || added.Server.URL != m.Endpoint() || added.Server.Scope != "user:cli:local" {
		t.Fatalf("%+v %v", added, err)
	}
	var why command.Why
	if err := s.do("mcp.why", command.WhyInput{Tool: "agent:general/notes/look"}, &why); err != nil || why.Allowed || !strings.Contains(why.Answer, "replaced by user:cli:local/notes") {
		t.Errorf("%+v %v", why, err)
	}
	if err := s.do("mcp.why", command.WhyInput{Tool: "me/notes/drop"}, &why); err != nil || why.Allowed || !strings.Contains(why.Answer, "denied by drop") {
		t.Errorf("%+v %v", why, err)
	}
	if err := s.do("mcp.why", command.WhyInput{Tool: "me/notes/look"}, &why); err != nil || !why.Allowed {
		t.Errorf("%+v %v", why, err)
	}
	for _, c := range []struct {
		in   command.MCPAddInput
		want string
	}{
		{command.MCPAddInput{Name: "x", From: "nothing"}, "The registry has no"},
		{command.MCPAddInput{Name: "x"}, "Name the server's URL"},
		{command.MCPAddInput{Name: "x", From: "notes", Address: "https://other.example.com/mcp"}, "at another address"},
	} {
		if err := s.do("mcp.add", c.in, &added); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.in, err)
		}
	}
}

// TestServersOfAFileAreImported: a literal secret becomes a sealed credential, what cannot
// be used says why, and exports hold no secret.
func TestServersOfAFileAreImported(t *testing.T) {
	m, open := fake.NewMCP(t, fake.Tool("look", "")), fake.NewMCP(t, fake.Tool("see", ""))
	m.RequireToken("literal-secret-7")
	s := start(t, "", allow("vault", m.URL, "docs", open.URL))
	file := fmt.Sprintf(`{"mcpServers":{"vault":{"type":"http","url":%q,"headers":{"Authorization":"Bearer ${VAULT_TOKEN}"}},"docs":{"url":%q},"old":{"type":"sse","url":"https://o.example.com"}}}`, m.Endpoint(), open.Endpoint())
	var out command.Imported
	if err := s.do("mcp.import", command.MCPImportInput{Content: file, Values: map[string]string{"VAULT_TOKEN": "literal-secret-7"}}, &out); err != nil || len(out.Servers) != 3 {
		t.Fatalf("%+v %v", out, err)
	}
	got := map[string]string{}
	for _, r := range out.Servers {
		got[r.Name] = r.State + " " + r.Detail
	}
	if got["vault"] != "connected " || got["docs"] != "connected " || !strings.HasPrefix(got["old"], "refused HTTP with SSE") {
		t.Fatalf("%v", got)
	}
	if call, err := s.callTool("vault", "look"); err != nil || call.IsError {
		t.Errorf("%+v %v", call, err)
	}
	for _, in := range []command.MCPExportInput{{Format: "claude"}, {Format: "vscode"}, {Format: "declarations"}, {FilterRegex: true}, {Agent: "general"}} {
		var e command.Exported
		if err := s.do("mcp.export", in, &e); err != nil || strings.Contains(e.Content, "literal-secret-7") || e.Content == "" {
			t.Errorf("%+v: %s %v", in, e.Content, err)
		}
		switch {
		case in.FilterRegex:
			if !strings.HasPrefix(e.Content, "^(?:docs_(?:.*)|vault_(?:.*)|(?!(?:docs|vault)_).*)$") {
				t.Errorf("%s", e.Content)
			}
		case in.Format == "claude" && in.Agent == "":
			var again command.Imported
			if err := s.do("mcp.import", command.MCPImportInput{Content: e.Content, DryRun: true, Values: map[string]string{"VAULT_TOKEN": "x"}}, &again); err != nil || len(again.Servers) != 2 || again.Servers[1].State != "would_add" {
				t.Errorf("an export does not read back: %+v %v", again, err)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "d", "patchbay.db")); err != nil || strings.Contains(string(b), "literal-secret-7") {
		t.Errorf("the secret rests in the clear (%v)", err)
	}
	if err := s.do("mcp.import", command.MCPImportInput{Content: file}, &out); err != nil || !strings.Contains(fmt.Sprint(out.Servers), "the value of VAULT_TOKEN is missing") {
		t.Errorf("%+v %v", out, err)
	}
}

// upstreamRegistry answers like a registry: pages, and what changed since.
type upstreamRegistry struct {
	*httptest.Server
	asked atomic.Int64
	since atomic.Value
	down  atomic.Bool
}

func newUpstream(t *testing.T) *upstreamRegistry {
	u := &upstreamRegistry{}
	entry := func(name, version, status, updated string, latest bool) string {
		return fmt.Sprintf(`{"server":{"name":%q,"description":"About %s","version":%q,"remotes":[{"type":"streamable-http","url":"https://%s.example.com/mcp"}]},"_meta":{"io.modelcontextprotocol.registry/official":{"status":%q,"publishedAt":%q,"updatedAt":%q,"isLatest":%v}}}`,
			name, name, version, strings.ReplaceAll(name, "/", "-"), status, updated, updated, latest)
	}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.asked.Add(1)
		if u.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		if s := r.URL.Query().Get("updated_since"); s != "" {
			u.since.Store(s)
			fmt.Fprintf(w, `{"servers":[%s],"metadata":{"count":1}}`, entry("com.acme/crm", "1.0.0", "deleted", "2026-11-02T00:00:00Z", false))
			return
		}
		if r.URL.Query().Get("cursor") == "" {
			fmt.Fprintf(w, `{"servers":[%s,%s,{"server":7},{"nonsense":true}],"metadata":{"nextCursor":"p2","count":4}}`,
				entry("com.acme/crm", "1.0.0", "active", "2026-11-01T00:00:00Z", false), entry("com.acme/crm", "1.1.0", "active", "2026-11-01T00:00:00Z", true))
			return
		}
		fmt.Fprintf(w, `{"servers":[%s],"metadata":{"nextCursor":"p2","count":1}}`, entry("io.beta/notes", "0.1.0", "active", "2026-11-01T01:00:00Z", true))
	}))
	t.Cleanup(u.Close)
	return u
}

// TestARegistryIsMirrored: into a table of its own, hourly, with what changed since; and
// nothing of it is on offer or attached before an admin takes it over.
func TestARegistryIsMirrored(t *testing.T) {
	u := newUpstream(t)
	clock := storetest.NewClock()
	s := startWith(t, "", fmt.Sprintf("registry: {mirror: {url: %q, every: 1h}}\n", u.URL), func(o *app.Options) { o.Clock = clock })
	within(t, 10*time.Second, "the first look", func() bool {
		var l command.RegistryList
		return s.do("registry.list", command.RegistryListInput{Mirror: true, Limit: 10}, &l) == nil && len(l.Servers) == 2
	})
	var l command.RegistryList
	if err := s.do("registry.list", command.RegistryListInput{}, &l); err != nil || len(l.Servers) != 0 {
		t.Errorf("a mirrored server is on offer: %+v %v", l, err)
	}
	var show command.RegistryShow
	if err := s.do("registry.show", command.EntryInput{Name: "com.acme/crm"}, &show); err != nil || strings.Join(show.Versions, " ") != "1.0.0 1.1.0" || show.URL != "https://com.acme-crm.example.com/mcp" {
		t.Errorf("%+v %v", show, err)
	}
	asked := u.asked.Load()
	if err := s.a.Declarations(t.Context(), false); err != nil || u.asked.Load() != asked {
		t.Errorf("it was asked again within the hour: %v", err)
	}
	clock.Pass(61 * time.Minute)
	if err := s.a.Declarations(t.Context(), false); err != nil || u.since.Load() != "2026-11-01T01:00:00Z" {
		t.Errorf("%v %v", u.since.Load(), err)
	}
	if err := s.do("registry.show", command.EntryInput{Name: "com.acme/crm"}, &show); err != nil || strings.Join(show.Versions, " ") != "1.1.0" {
		t.Errorf("what upstream deleted stays: %+v %v", show.Versions, err)
	}
	u.down.Store(true)
	clock.Pass(61 * time.Minute)
	if err := s.a.Declarations(t.Context(), false); err == nil {
		t.Error("a failure is not told")
	}
	if err := s.do("registry.list", command.RegistryListInput{Mirror: true, Limit: 10}, &l); err != nil || len(l.Servers) != 2 {
		t.Errorf("a failure wiped the mirror: %+v %v", l, err)
	}
	if err := s.do("registry.add", command.RegistryAddInput{Name: "notes", FromMirror: "io.beta/notes"}, &show); err != nil || show.URL != "https://io.beta-notes.example.com/mcp" || show.Auth != plane.AuthOAuth {
		t.Errorf("%+v %v", show, err)
	}
}

// TestADestinationOfAConnection: a declaration whose destination is signed in by a
// connection uses that one.
func TestADestinationOfAConnection(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	at, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "", "agents: {general: {destinations: [up-api]}}\n"+upConfig(m))
	row := s.row("up")
	in := command.DestinationsSetInput{Name: "up-api", Hosts: []string{at.Hostname()}, Port: mustPort(t, at), Inject: "bearer", Secret: "connection:" + row.ID}
	if err := s.do("destinations.set", in, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	var list command.DestinationsList
	if err := s.do("destinations.list", command.DestinationsInput{}, &list); err != nil || len(list.Destinations) != 5 || !strings.HasPrefix(list.Placeholder, "PATCHBAY_PLACEHOLDER_") {
		t.Errorf("%+v %v", list, err)
	}
	entry := fmt.Sprintf("{name: upstream, url: %q, destination: up-api}", m.Endpoint())
	if err := s.do("registry.add", command.RegistryAddInput{Name: "upstream", Declaration: entry}, &command.RegistryShow{}); err != nil {
		t.Fatal(err)
	}
	if err := s.do("registry.attach", command.AttachInput{Name: "upstream", Agent: "general"}, &command.Attached{}); err != nil {
		t.Fatal(err)
	}
	run, _ := s.ask("Look", "general")
	if servers(run) != "registry:upstream (up-api)" {
		t.Errorf("%s", servers(run))
	}
	var l command.MCPList
	if err := s.do("mcp.list", command.MCPListInput{}, &l); err != nil || len(l.Servers) != 1 {
		t.Errorf("it made a connection of its own: %+v %v", l, err)
	}
	if err := s.do("destinations.remove", command.NamedInput{Name: "up-api"}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	if run, _ := s.ask("Look", "general"); servers(run) != "" || !strings.Contains(fmt.Sprint(run.Steps), "up-api is not in the policy of general") {
		t.Errorf("%s %+v", servers(run), run.Steps)
	}
}

func mustPort(t *testing.T, u *url.URL) int {
	t.Helper()
	var n int
	if err := json.Unmarshal([]byte(u.Port()), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWhyTellsTheSameStory: for every declaration that is left out, mcp why gives the
// reason of the merge, and the log says it once.
func TestWhyTellsTheSameStory(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "reg"), 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]string{"others": "agents: [research]", "unknown": "destination: nowhere", "away": "destination: named\nurl: https://elsewhere.example.com/mcp", "hub": "destination: github-mcp\nurl: https://api.githubcopilot.com/mcp/", "always": "default: true", "shell": "command: sh"} {
		body := "name: " + name + "\n" + more + "\n"
		if !strings.Contains(more, "url:") && !strings.Contains(more, "command:") {
			body += "url: " + m.Endpoint() + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "reg", name+".yaml"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := "sandbox: none\nregistry: {path: reg}\nteams: {payments: {members: [\"cli:local\"]}}\nagents: {general: {servers: [others, unknown, away, hub, shell, ghost], destinations: [named]}, coding: {destinations: [named]}}\n" +
		fmt.Sprintf("egress:\n  allow: [{to: %q, for: [always, \"team:payments/shared\"]}]\n  destinations: {named: {hosts: [%q], port: %s}}\n", m.URL, at.Hostname(), at.Port())
	s := start(t, dir, config)
	why := func(tool, agent, team string) string {
		t.Helper()
		var out command.Why
		if err := s.do("mcp.why", command.WhyInput{Tool: tool, Agent: agent, Team: team}, &out); err != nil {
			return err.Error()
		}
		return fmt.Sprint(out.Allowed, " ", out.Answer)
	}
	if run, _ := s.ask("Look", "general"); servers(run) != "registry:always" {
		t.Errorf("%s", servers(run))
	}
	for tool, want := range map[string]string{"others/look": "names other agents: research", "unknown/look": "the destination nowhere is not in the policy of general", "away/look": "its address is none of the destination named",
		"hub/issue_read": "needs a team's repository, and there is none", "shell/run": "no sandbox", "ghost/look": "the registry has no ghost", "always/look": "true general can call look at always"} {
		if got := why(tool, "general", ""); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", tool, got, want)
		}
	}
	if got := why("hub/issue_read", "general", "payments"); !strings.Contains(got, "needs a team's repository, and there is none") {
		t.Errorf("%s", got)
	}
	if n := strings.Count(s.log.String(), "the registry has no ghost"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	// A guarded agent takes from a team what an org admin accepted at a destination of its
	// policy: the local person is one.
	x := newSurfaces(t, s)
	put := func(more string) {
		t.Helper()
		if b, status := x.overAPI("PUT", "/api/v1/mcp-servers/payments/shared", fmt.Sprintf(`{"name":"shared","url":%q,"agents":["coding"]%s}`, m.Endpoint(), more)); status != http.StatusOK {
			t.Fatalf("%d %s", status, b)
		}
	}
	put("")
	if got := why("shared/look", "coding", "payments"); !strings.Contains(got, "only what goes to a destination of its policy") {
		t.Errorf("%s", got)
	}
	put(`,"destination":"named"`)
	if run, _ := s.forTeam("Look", "coding", "payments"); servers(run) != "team:shared (named)" {
		t.Errorf("%s", servers(run))
	}
	if got := why("shared/look", "coding", "payments"); !strings.Contains(got, "true coding can call look at shared") {
		t.Errorf("%s", got)
	}
	if got := why("shared/look", "coding", ""); strings.Contains(got, "true") {
		t.Errorf("without the team: %s", got)
	}
}
