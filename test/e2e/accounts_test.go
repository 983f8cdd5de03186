package e2e

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

// accounts is a server on PostgreSQL with MCP servers behind TLS, and a client of
// its administration API.
type accounts struct {
	t      *testing.T
	d      *daemon
	pg     string
	base   string
	token  string
	mcp    *fake.MCP
	front  *httptest.Server // TLS
	second *httptest.Server // the same server at another address
	mu     sync.Mutex
	good   []string // tokens that the server takes
}

func newAccounts(t *testing.T) *accounts {
	pg, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	x := &accounts{t: t, pg: pg, good: []string{"tok-engineering-1", "tok-support-2", "tok-new-3"}}
	x.mcp = fake.NewMCP(t, fake.Tool("read_issue", `"annotations":{"readOnlyHint":true}`), fake.Tool("save_issue", ""), fake.Tool("drop_issue", ""),
		`{"name":"odd","inputSchema":{"type":"object","properties":{"a":{"$ref":"https://elsewhere.example/s"}}}}`)
	x.mcp.Guard(func(r *http.Request) (string, int) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if !slices.Contains(x.good, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
			return "Bearer", http.StatusUnauthorized
		}
		return "", 0
	})
	x.front, x.second = httptest.NewTLSServer(x.mcp.Config.Handler), httptest.NewTLSServer(x.mcp.Config.Handler)
	for _, s := range []*httptest.Server{x.front, x.second} {
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	}
	certs := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.front.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := exec.Command(binary, "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, agent := range []string{"general", "coding"} {
		for _, n := range []string{"eng", "support", "slot", "slot-two", "late", "linear", "linear-2"} {
			names = append(names, fmt.Sprintf("%q", "agent:"+agent+"/"+n))
		}
	}
	dead := fmt.Sprintf("127.0.0.1:%d", peers.FreePort(t))
	port := peers.FreePort(t)
	config := fmt.Sprintf("database: %q\nlimits: {catalog_refresh: 6s}\negress: {allow: [", pg)
	for _, to := range []string{host(x.front.URL), host(x.second.URL), dead} {
		config += fmt.Sprintf("{to: %q, for: [%s]}, ", to, strings.Join(names, ", "))
	}
	x.d = serveOn(t, port, config+"]}\n", "PATCHBAY_KEYS="+strings.TrimSpace(string(keys)), "SSL_CERT_FILE="+certs)
	x.base = fmt.Sprintf("http://127.0.0.1:%d", port)
	var token struct{ Token string }
	if err := json.Unmarshal([]byte(x.d.must("--json", "tokens", "create", "api", "--scopes", "admin")), &token); err != nil {
		t.Fatal(err)
	}
	x.token = token.Token
	return x
}

// answer is what a route said.
type answer struct {
	command.Provider
	Code    string
	Detail  string
	Field   string
	Current *command.Provider
	status  int
	raw     string
}

func (x *accounts) do(method, path, body string, header ...string) answer {
	x.t.Helper()
	req, err := http.NewRequest(method, x.base+path, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+x.token)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	out := answer{status: resp.StatusCode, raw: string(b)}
	if len(header) == 0 {
		if err := json.Unmarshal(b, &out); err != nil || resp.Header.Get("Cache-Control") != "no-store" {
			x.t.Fatalf("%s %s: %v %s", method, path, err, b)
		}
	}
	for _, secret := range x.good {
		if bytes.Contains(b, []byte(secret)) {
			x.t.Errorf("%s %s returned a token", method, path)
		}
	}
	return out
}

const general = "/api/agents/general/mcp/providers"

// ok is do that must go well.
func (x *accounts) ok(method, path, format string, args ...any) answer {
	x.t.Helper()
	a := x.do(method, path, fmt.Sprintf(format, args...))
	if a.status != http.StatusOK {
		x.t.Fatalf("%s %s: %d %s", method, path, a.status, a.raw)
	}
	return a
}

func (a *answer) tools() (out []string) {
	for _, t := range a.Tools {
		out = append(out, t.Name)
	}
	return out
}

// call calls a tool of a connection as the agent, and returns the token that went
// along.
func (x *accounts) call(server, tool string, args ...string) (token string, failed bool) {
	x.t.Helper()
	before := len(x.mcp.Calls())
	_, _, code := x.d.run(append([]string{"mcp", "call", server, tool}, args...)...)
	calls := x.mcp.Calls()
	if len(calls) == before {
		return "", true
	}
	return strings.TrimPrefix(calls[len(calls)-1].Header.Get("Authorization"), "Bearer "), code != 0
}

// Several agents, servers and accounts at one endpoint: each account has its own
// credential, preferences, version and off switch; a credential is sealed, used
// again after a restart and kept by an edit that does not name another.
func TestAccountsAtOneEndpoint(t *testing.T) {
	x := newAccounts(t)
	endpoint := x.front.URL + "/mcp"
	eng := x.ok("POST", general, `{"name":"Eng","endpoint":%q,"token":"tok-engineering-1","new_account":true}`, endpoint)
	sup := x.ok("POST", general, `{"name":"Support","endpoint":%q,"token":"tok-support-2","new_account":true}`, endpoint)
	cod := x.ok("POST", "/api/agents/coding/mcp/providers", `{"name":"Eng","endpoint":%q,"token":"tok-new-3"}`, endpoint)
	if eng.ID == sup.ID || eng.Slug != "eng" || sup.Slug != "support" || eng.AuthKind != "bearer" || eng.Catalog.Health != "ok" || !eng.NewAccount || cod.NewAccount {
		t.Fatalf("%+v %+v %+v", eng, sup, cod)
	}
	if got := eng.tools(); !slices.Equal(got, []string{"read_issue", "save_issue", "drop_issue"}) {
		t.Errorf("offered: %v", got)
	}
	if i := slices.IndexFunc(eng.Discovered, func(p command.ProviderTool) bool { return p.Name == "odd" }); i < 0 || eng.Discovered[i].Supported || eng.Discovered[i].Reason == "" {
		t.Error("an unsupported tool is not shown with its reason")
	}
	if l := x.do("GET", general, ""); strings.Contains(l.raw, cod.ID) || !strings.Contains(l.raw, eng.ID) || !strings.Contains(l.raw, `"linear":"https://mcp.linear.app/mcp"`) {
		t.Errorf("general sees %s", l.raw)
	}
	if a := x.do("POST", general+"/"+cod.ID+"/disable", `{}`); a.status != http.StatusNotFound {
		t.Errorf("another agent's account: %d", a.status)
	}
	for server, want := range map[string]string{"eng": "tok-engineering-1", "support": "tok-support-2"} {
		for _, tool := range []string{"read_issue", "save_issue"} { // a read and a write
			if got, failed := x.call(server, tool, "-a", "x=1"); got != want || failed {
				t.Errorf("%s %s went out with %q, failed %v", server, tool, got, failed)
			}
		}
	}

	// One account's changes are its own.
	path := general + "/" + eng.ID
	out := x.ok("POST", path+"/enable", `{"version":%d,"disabled_tools":["drop_issue"]}`, eng.Version)
	off := x.ok("POST", general+"/"+sup.ID+"/disable", `{"version":%d}`, sup.Version)
	if off.Enabled || len(off.Tools) != 0 || slices.Contains(out.tools(), "drop_issue") {
		t.Errorf("%+v %v", off, out.tools())
	}
	if token, _ := x.call("support", "read_issue", "-a", "x=1"); token != "" {
		t.Error("an account that is off was used")
	}
	edited := x.ok("PUT", path, `{"version":%d,"name":"Engineering","endpoint":%q,"token":""}`, out.Version, x.second.URL+"/mcp")
	if edited.ID != eng.ID || edited.Name != "Engineering" || edited.Slug != "eng" || !slices.Equal(edited.Disabled, []string{"drop_issue"}) {
		t.Errorf("%+v", edited)
	}
	if got, failed := x.call("eng", "save_issue", "-a", "x=1"); got != "tok-engineering-1" || failed {
		t.Errorf("a blank token did not keep the saved one: %q %v", got, failed)
	}
	x.sealed()
}

// sealed holds that no token stands in the database as it is.
func (x *accounts) sealed() {
	db, err := sql.Open("pgx", x.pg)
	if err != nil {
		x.t.Fatal(err)
	}
	defer db.Close()
	tables, err := db.Query(`SELECT tablename FROM pg_tables WHERE schemaname = 'public'`)
	if err != nil {
		x.t.Fatal(err)
	}
	var names []string
	for tables.Next() {
		var n string
		if err := tables.Scan(&n); err != nil {
			x.t.Fatal(err)
		}
		names = append(names, n)
	}
	tables.Close()
	if len(names) < 15 {
		x.t.Fatalf("%d tables", len(names))
	}
	for _, n := range names {
		var text sql.NullString
		if err := db.QueryRow(`SELECT string_agg(t::text, '|') FROM "` + n + `" t`).Scan(&text); err != nil {
			x.t.Fatal(err)
		}
		for _, secret := range x.good {
			if strings.Contains(text.String, secret) || strings.Contains(text.String, fmt.Sprintf("%x", secret)) {
				x.t.Errorf("%s holds a token", n)
			}
		}
	}
}

// Reviews and selections are all or nothing, whatever is wrong with one of them.
func TestAccountReviews(t *testing.T) {
	x := newAccounts(t)
	a := x.ok("POST", general, `{"name":"Eng","endpoint":%q,"token":"tok-engineering-1","new_account":true}`, x.front.URL+"/mcp")
	path := general + "/" + a.ID
	fp := map[string]string{}
	for _, d := range a.Discovered {
		fp[d.Name] = d.Fingerprint
	}
	one := func(name, print, class, more string) string {
		return fmt.Sprintf(`{"name":%q,"fingerprint":%q,"class":%q%s}`, name, print, class, more)
	}
	good := one("read_issue", fp["read_issue"], "query", "")
	before := x.ok("GET", path, "").raw
	for what, c := range map[string]struct {
		body   string
		status int
	}{
		"a stale version":             {fmt.Sprintf(`{"version":%d,"disabled_tools":[]}`, a.Version+7), 409},
		"a stale fingerprint":         {fmt.Sprintf(`{"version":%d,"disabled_tools":["save_issue"],"tool_classifications":[%s,%s]}`, a.Version, good, one("save_issue", strings.Repeat("0", 64), "effect", "")), 409},
		"an unknown class":            {fmt.Sprintf(`{"version":%d,"tool_classifications":[%s,%s]}`, a.Version, good, one("save_issue", fp["save_issue"], "harmless", "")), 400},
		"an unsupported tool":         {fmt.Sprintf(`{"version":%d,"tool_classifications":[%s,%s]}`, a.Version, good, one("odd", fp["odd"], "query", "")), 400},
		"an unknown tool":             {fmt.Sprintf(`{"version":%d,"tool_classifications":[%s,%s]}`, a.Version, good, one("nothing", fp["odd"], "query", "")), 409},
		"a tool twice":                {fmt.Sprintf(`{"version":%d,"tool_classifications":[%s,%s]}`, a.Version, good, good), 400},
		"an unknown contract":         {fmt.Sprintf(`{"version":%d,"tool_classifications":[%s]}`, a.Version, one("save_issue", fp["save_issue"], "effect", `,"completion_contract":"linear-atomic-append-v1"`)), 400},
		"both forms":                  {fmt.Sprintf(`{"version":%d,"tools":["read_issue"],"tool_classifications":[%s]}`, a.Version, good), 400},
		"both selections":             {fmt.Sprintf(`{"version":%d,"tools":["read_issue"],"disabled_tools":[]}`, a.Version), 400},
		"kept and changed":            {fmt.Sprintf(`{"version":%d,"keep_preferences":true,"disabled_tools":[]}`, a.Version), 400},
		"no version":                  {`{"disabled_tools":[]}`, 400},
		"nothing said":                {fmt.Sprintf(`{"version":%d}`, a.Version), 400},
		"an unknown field":            {fmt.Sprintf(`{"version":%d,"disabled_tools":[],"tolls":1}`, a.Version), 400},
		"a selection of what is odd":  {fmt.Sprintf(`{"version":%d,"tools":["read_issue","odd"]}`, a.Version), 409},
		"a selection of an old one":   {fmt.Sprintf(`{"version":%d,"tools":[{"name":"read_issue","fingerprint":"00"}]}`, a.Version), 409},
		"a selection that says twice": {fmt.Sprintf(`{"version":%d,"tools":["read_issue","read_issue"]}`, a.Version), 400},
	} {
		got := x.do("POST", path+"/enable", c.body)
		if got.status != c.status {
			t.Errorf("%s: %d %s", what, got.status, got.raw)
		}
		if c.status == 409 && (got.Current == nil || got.Current.Version != a.Version) {
			t.Errorf("%s: the conflict does not say how it stands: %s", what, got.raw)
		}
		if now := x.ok("GET", path, "").raw; now != before {
			t.Fatalf("%s changed something:\n%s\n%s", what, before, now)
		}
	}
	b := x.ok("POST", path+"/enable", `{"version":%d,"keep_state":true,"disabled_tools":["read_issue"],"tool_classifications":[%s]}`, a.Version, good)
	if len(b.Classes) != 1 || b.Classes[0].Class != "query" || slices.Contains(b.tools(), "read_issue") {
		t.Fatalf("a disabled tool keeps its review and stays off: %+v", b)
	}
	// Nothing of it is lost by whatever else is edited.
	c := x.ok("PUT", path, `{"version":%d,"name":"Renamed"}`, b.Version)
	c = x.ok("PUT", path, `{"version":%d,"token":"tok-new-3"}`, c.Version)
	c = x.ok("PUT", path, `{"version":%d,"endpoint":%q}`, c.Version, x.second.URL+"/mcp")
	c = x.ok("POST", path+"/disable", `{}`)
	c = x.ok("POST", path+"/enable", `{"version":%d,"keep_preferences":true}`, c.Version)
	c = x.ok("POST", path+"/enable", `{"version":%d,"keep_state":true,"tool_classifications":[%s]}`, c.Version, one("save_issue", fp["save_issue"], "effect", ""))
	if !c.Enabled || !slices.Equal(c.Disabled, []string{"read_issue"}) || len(c.Classes) != 2 {
		t.Errorf("after every edit: %+v", c.Provider)
	}
	// A tool that goes away keeps both; a changed definition loses the review.
	x.mcp.SetTools(fake.Tool("save_issue", ""))
	if c = x.ok("POST", path+"/discover", ""); len(c.Classes) != 2 || !slices.Equal(c.Disabled, []string{"read_issue"}) {
		t.Errorf("a missing tool: %+v", c.Provider)
	}
	x.mcp.SetTools(fake.Tool("save_issue", ""), fake.Tool("read_issue", `"title":"other"`))
	c = x.ok("POST", path+"/discover", "")
	if len(c.Classes) != 1 || c.Classes[0].Name != "save_issue" || !slices.Equal(c.Disabled, []string{"read_issue"}) {
		t.Errorf("a changed tool: %+v", c.Provider)
	}
	if d := x.do("GET", path+"/drift", ""); !strings.Contains(d.raw, `"tool":"read_issue"`) {
		t.Errorf("drift: %s", d.raw)
	}
	all := x.ok("POST", path+"/enable", `{"version":%d,"disabled_tools":["save_issue","read_issue"]}`, c.Version)
	if len(all.Tools) != 0 || !all.Enabled {
		t.Errorf("every tool off: %+v", all.Provider)
	}
}

// The account known by its address, from before accounts were told apart.
func TestLegacyAccounts(t *testing.T) {
	x := newAccounts(t)
	first, second := x.front.URL+"/mcp", x.second.URL+"/mcp"
	own := x.ok("POST", general, `{"name":"Linear","endpoint":%q,"token":"tok-support-2","new_account":true}`, first)
	slot := x.ok("POST", general, `{"name":"Slot","endpoint":%q,"token":"tok-engineering-1"}`, first)
	if slot.ID == own.ID || slot.NewAccount {
		t.Fatal("an account of its own was taken for the one known by its address")
	}
	x.ok("POST", general+"/"+slot.ID+"/enable", `{"version":%d,"disabled_tools":["drop_issue"]}`, slot.Version)
	x.ok("POST", general+"/"+slot.ID+"/disable", `{}`)
	again := x.ok("POST", general, `{"name":"Slot renamed","endpoint":%q,"token":"tok-new-3"}`, first)
	if again.ID != slot.ID || again.Enabled || again.Name != "Slot renamed" || !slices.Equal(again.Disabled, []string{"drop_issue"}) {
		t.Errorf("reconnected: %+v", again.Provider)
	}
	on := x.ok("POST", general+"/"+slot.ID+"/enable", `{"version":%d,"keep_preferences":true}`, again.Version)
	if got, _ := x.call("slot", "save_issue", "-a", "x=1"); got != "tok-new-3" {
		t.Errorf("the credential was not replaced: %q", got)
	}
	two := x.ok("POST", general, `{"name":"Slot two","endpoint":%q,"token":"tok-engineering-1"}`, second)
	if a := x.do("PUT", general+"/"+two.ID, fmt.Sprintf(`{"version":%d,"endpoint":%q}`, two.Version, first)); a.status != 409 || a.Field != "endpoint" || a.Current == nil {
		t.Errorf("a collision of two known by their address: %d %s", a.status, a.raw)
	}
	if a := x.do("PUT", general+"/"+own.ID, fmt.Sprintf(`{"version":%d,"endpoint":%q}`, own.Version, second)); a.status != 200 {
		t.Errorf("an account of its own collides with nobody: %d %s", a.status, a.raw)
	}
	// A full selection, from before exclusions.
	sel := x.ok("POST", general+"/"+slot.ID+"/enable", `{"version":%d,"tools":[{"name":"read_issue","class":"effect","fingerprint":%q},"save_issue"]}`, on.Version, on.Discovered[0].Fingerprint)
	if !slices.Equal(sel.tools(), []string{"read_issue", "save_issue"}) || !slices.Equal(sel.Disabled, []string{"drop_issue"}) {
		t.Errorf("%v, off %v", sel.tools(), sel.Disabled)
	}
	for what, c := range map[string]struct {
		body   string
		status int
	}{
		"both kinds of start": {fmt.Sprintf(`{"provider_id":%q,"new_account":true}`, slot.ID), 400},
		"a bearer account":    {fmt.Sprintf(`{"provider_id":%q}`, slot.ID), 400},
	} {
		if a := x.do("POST", "/api/agents/general/mcp/oauth/start", c.body); a.status != c.status {
			t.Errorf("%s: %d %s", what, a.status, a.raw)
		}
	}
}

// A server that is down, or rejects the credential, keeps its account; the health
// says so, and it heals by itself.
func TestAccountHealth(t *testing.T) {
	x := newAccounts(t)
	down := true
	x.mcp.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x.mu.Lock()
			d := down
			x.mu.Unlock()
			if d {
				http.Error(w, "down", http.StatusBadGateway)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	set := func(d bool) { x.mu.Lock(); down = d; x.mu.Unlock() }
	a := x.ok("POST", general, `{"name":"Late","endpoint":%q,"token":"tok-engineering-1","new_account":true}`, x.front.URL+"/mcp")
	path := general + "/" + a.ID
	if a.Catalog.Health != "unavailable" || a.Catalog.Detail == "" || a.Catalog.FailedAt.IsZero() || !a.Catalog.CapturedAt.IsZero() || !a.Catalog.Stale {
		t.Fatalf("%+v", a.Catalog)
	}
	// A selection from before exclusions waits for the first listing.
	if a = x.ok("POST", path+"/enable", `{"version":%d,"tools":["read_issue"]}`, a.Version); a.LegacyTools == nil {
		t.Fatalf("%+v", a.Provider)
	}
	set(false)
	for end := time.Now().Add(30 * time.Second); a.Catalog.Health != "ok"; time.Sleep(200 * time.Millisecond) {
		if a = x.ok("GET", path, ""); time.Now().After(end) {
			t.Fatalf("it never healed by itself: %+v", a.Catalog)
		}
	}
	if a.LegacyTools != nil || !slices.Equal(a.tools(), []string{"read_issue"}) || !slices.Equal(a.Disabled, []string{"drop_issue", "save_issue"}) {
		t.Errorf("the selection became %v, off %v", a.tools(), a.Disabled)
	}
	captured := a.Catalog.CapturedAt
	set(true)
	a = x.ok("POST", path+"/discover", "")
	if a.Catalog.Health != "unavailable" || a.Catalog.Stale || !slices.Equal(a.tools(), []string{"read_issue"}) || a.Catalog.CapturedAt.Before(captured) {
		t.Errorf("a failure took the last good catalog: %+v", a.Catalog)
	}
	// Turning off needs no network.
	if a = x.ok("POST", path+"/disable", `{}`); a.Enabled {
		t.Error("not off")
	}
	a = x.ok("POST", path+"/enable", `{"version":%d,"keep_preferences":true}`, a.Version)
	set(false)
	x.mu.Lock()
	x.good = slices.DeleteFunc(x.good, func(s string) bool { return s == "tok-engineering-1" })
	x.mu.Unlock()
	if a = x.ok("POST", path+"/discover", ""); a.Catalog.Health != "unauthorized" {
		t.Errorf("a revoked token: %+v", a.Catalog)
	}
	if token, failed := x.call("late", "read_issue", "-a", "x=1"); token != "" || !failed {
		t.Error("a revoked token was used for a call")
	}
	a = x.ok("GET", path, "")
	if a = x.ok("PUT", path, `{"version":%d,"token":"tok-new-3"}`, a.Version); a.Catalog.Health != "ok" || a.AuthError != "" || !slices.Equal(a.tools(), []string{"read_issue"}) {
		t.Errorf("after another token: %+v", a.Provider)
	}

	// The boundary of the routes.
	if got := x.do("POST", general, `{"name":"x","endpoint":"http://10.0.0.1/mcp","new_account":true}`); got.status != 400 || got.Field != "endpoint" {
		t.Errorf("an address that is not allowed: %d %s", got.status, got.raw)
	}
	for what, c := range map[string]struct {
		path   string
		header []string
		status int
	}{
		"an unknown agent":  {"/api/agents/nobody/mcp/providers", nil, 404},
		"an unknown one":    {general + "/con_00000000000000000000000000", nil, 404},
		"another origin":    {general, []string{"Origin", "https://evil.example"}, 403},
		"from another site": {general, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"nobody":            {general, []string{"Authorization", "Bearer pbt_nothing"}, 401},
	} {
		if got := x.do("GET", c.path, "", c.header...); got.status != c.status {
			t.Errorf("%s: %d %s", what, got.status, got.raw)
		}
	}
	if got := x.do("GET", strings.Replace(path, "/api/", "/api/v1/", 1), ""); got.status != 200 || got.ID != a.ID {
		t.Errorf("/api/v1: %d", got.status)
	}
}
