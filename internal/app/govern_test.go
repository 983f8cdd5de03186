package app_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// The page of a connection shows what changed, reads again, lets in and keeps
// out, by forms alone.
func TestThePageOfAConnection(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", ""))
	s := start(t, "", strings.Replace(upConfig(m), "url:", "new_tools: hold, url:", 1))
	s.refresh("up")
	var show command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil {
		t.Fatal(err)
	}
	page := "http://" + s.a.Addr() + "/connections/" + show.Server.ID
	v := newVisitor(t)
	if code, body := v.get(page); code != 401 || strings.Contains(body, "look") {
		t.Errorf("a stranger sees %d %s", code, body)
	}
	if code, _ := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("signing in: %d", code)
	}
	m.SetTools(fake.Tool("look", `"title":"<b>now</b> see https://evil.example/x"`), fake.Tool("change", ""))
	done := func(f url.Values) (int, string) { // a form that was done leads to a page that tells it
		code, body := v.post(page, f)
		if code == http.StatusSeeOther {
			return v.get(page)
		}
		return code, body
	}
	code, body := done(url.Values{"do": {"refresh"}})
	if code != 200 || !strings.Contains(body, "It was read just now: 2 tools.") || !strings.Contains(body, "new_url") || strings.Contains(body, "<b>now") || !strings.Contains(body, "held: changed") {
		t.Fatalf("%d %s", code, body)
	}
	field := func(name string) string {
		f := regexp.MustCompile(`name="` + name + `" value="([^"]+)"`).FindStringSubmatch(body)
		if f == nil {
			t.Fatalf("the page has no field %s", name)
		}
		return f[1]
	}
	accept := url.Values{"do": {"accept"}, "tool": {"look"}, "fingerprint": {field("fingerprint")}, "version": {field("version")}}
	stale := url.Values{"do": {"accept"}, "tool": {"look"}, "fingerprint": {strings.Repeat("0", 64)}, "version": {field("version")}}
	if code, body := done(stale); code != 409 || !strings.Contains(body, "changed since you looked") {
		t.Errorf("a stale form: %d", code)
	}
	if code, body = done(accept); code != 200 || !strings.Contains(body, "look is let in.") || s.tool("up", "look").Held != "" {
		t.Fatalf("%d %s", code, body)
	}
	if code, _ := done(accept); code != 409 {
		t.Errorf("the same form again: %d", code)
	}
	if code, body = done(url.Values{"do": {"block"}, "tool": {"look"}, "version": {field("version")}}); code != 200 || s.tool("up", "look").Held == "" {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := done(url.Values{"do": {"drop"}, "version": {"1"}}); code != 409 {
		t.Errorf("an unknown action: %d", code)
	}
	if regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(body) {
		t.Error("the page holds script")
	}
}

// A server whose definition differs in every listing is offered as it was listed
// last, and no call runs under another definition than the offered one.
func TestAServerThatFlipsOnEveryList(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", upConfig(m)+"limits: {fingerprint_max_age: 0s}\n")
	n := 0
	flip := func() { n++; m.SetTools(fake.Tool("look", fmt.Sprintf(`"title":"%d"`, n))) }
	flip()
	s.refresh("up")
	for range 8 {
		flip()
		before := len(m.Calls())
		out, err := s.callOn("look")
		if err == nil && !out.IsError {
			t.Fatal("a definition ran that was not offered")
		}
		if len(m.Calls()) != before || !strings.Contains(out.Message, "changed since it was offered, from ") {
			t.Errorf("%q, %d calls", out.Message, len(m.Calls())-before)
		}
	}
	out, err := s.callOn("look") // it stood still for once
	if err != nil || out.IsError {
		t.Errorf("%+v %v", out, err)
	}
	changed := 0
	for _, e := range s.audit() {
		if e.Action == "definition.changed" {
			changed++
		}
	}
	if changed == 0 || changed > 3 {
		t.Errorf("%d changes are on record: one that keeps changing is not put there each time", changed)
	}
}

// A catalog as large as it may be: 256 tools with schemas of 32 KiB. It is
// stored, offered, called and read again after a restart, and one byte more of a
// schema costs that tool alone.
func TestTheLargestCatalog(t *testing.T) {
	schema := func(size int) string {
		head, tail := `{"type":"object","properties":{"x":{"type":"string","description":"`, `"}}}`
		return head + strings.Repeat("d", size-len(head)-len(tail)) + tail
	}
	var tools []string
	for i := range 257 {
		size := 32 << 10
		if i == 7 {
			size++
		}
		tools = append(tools, fmt.Sprintf(`{"name":"t%03d","inputSchema":%s}`, i, schema(size)))
	}
	m := fake.NewMCP(t, tools...)
	config := strings.Replace(upConfig(m), "url:", "response_bytes: 16000000, url:", 1)
	s := start(t, "", config)
	for range 2 {
		s.refresh("up")
		var show command.MCPShow
		if err := s.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil {
			t.Fatal(err)
		}
		unsupported := 0
		for _, row := range show.Tools {
			if row.Unsupported != "" {
				unsupported++
			}
		}
		if len(show.Tools) != 256 || unsupported != 1 || !strings.Contains(show.Server.Detail, "catalog_tools") || show.Tools[7].Unsupported == "" {
			t.Fatalf("%d tools, %d unsupported, %s", len(show.Tools), unsupported, show.Server.Detail)
		}
		if out, err := s.callOn("t000"); err != nil || out.IsError {
			t.Fatalf("%v %+v", err, out)
		}
		s.stop()
		s = start(t, s.dir, config)
	}
	var tools2 command.MCPTools
	if err := s.do("mcp.tools", command.MCPToolsInput{Name: "up"}, &tools2); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(tools2.Offers, func(o command.Offered) bool { return o.Agent == "general" })
	if i < 0 || tools2.Offers[i].Warning == "" || len(tools2.Suggest) == 0 || len(tools2.Suggest) > 40 {
		t.Errorf("nothing is said of its size: %+v %v", tools2.Offers, tools2.Suggest)
	}
}

// A program that is too old for the database begins nothing, and stops when the
// database is brought further while it runs.
func TestAnOlderProgramRefuses(t *testing.T) {
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", onPostgres(pg.URL, upConfig(m)))
	s.refresh("up")
	db, err := sql.Open("pgx", pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`UPDATE meta SET value = '99' WHERE key = 'min_binary'`); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the running one", func() bool {
		out, err := s.callOn("look")
		return err != nil && out.Call == ""
	})
	cfg, err := app.LoadConfig(filepath.Join(s.dir, "patchbay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Data = t.TempDir()
	_, err = app.New(t.Context(), app.Options{Config: cfg, Version: "old", Log: slog.New(slog.DiscardHandler)})
	if plane.KindOf(err) != plane.Gone || !strings.Contains(plane.Public(err).Next, "newer Patchbay") {
		t.Errorf("a start: %v", err)
	}
	s.gone = true
}

// A SQLite file is copied before its schema is changed, and the copy is whole.
func TestTheFileIsCopiedBeforeAnUpgrade(t *testing.T) {
	s := start(t, "", "")
	file := filepath.Join(s.dir, "d", "patchbay.db")
	s.stop()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	undo := ""
	for _, m := range []string{"00011_clients", "00010_chat", "00009_dashboard", "00008_egress", "00007_declarations", "00006_ledger"} {
		latest, err := os.ReadFile("../store/migrations/sqlite/" + m + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		_, down, _ := strings.Cut(string(latest), "-- +goose Down")
		undo += down
	}
	for _, q := range []string{undo, `DELETE FROM goose_db_version WHERE version_id >= 4`, `DROP INDEX calls_waiting`, `DROP INDEX calls_run`, `CREATE INDEX calls_run ON calls (run)`, `DROP TABLE bare_names`, `DROP TABLE session_revocations`, `DROP TABLE replicas`,
		`DROP INDEX connections_slot`, `ALTER TABLE connections DROP COLUMN slot`, `DROP TABLE refreshes`, `DROP TABLE pins`,
		`DROP TABLE extras`, `ALTER TABLE definitions DROP COLUMN held`, `DROP INDEX catalogs_seq`, `ALTER TABLE catalogs DROP COLUMN instructions_at`,
		`ALTER TABLE catalogs DROP COLUMN instructions_before`, `ALTER TABLE catalogs DROP COLUMN seq`, `DELETE FROM meta WHERE key = 'min_binary'`, `INSERT INTO meta (key, value) VALUES ('mark', 'before')`} {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	db.Close()
	s = start(t, s.dir, "")
	s.stop()
	before, err := sql.Open("sqlite", file+".before-11")
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	var mark string
	if err := before.QueryRow(`SELECT value FROM meta WHERE key = 'mark'`).Scan(&mark); err != nil || mark != "before" {
		t.Errorf("%q %v", mark, err)
	}
	if fi, err := os.Stat(file + ".before-11"); err != nil || fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("the copy is open to others: %v %v", fi.Mode(), err)
	}
}

// Whoever loses a race of edits is told how it stands now and what they sent, by
// command as by the accounts' routes.
func TestAConflictTellsBothStates(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", allow("up", m.URL))
	s.add("up", m.Endpoint(), func(in *command.MCPAddInput) { in.Scope = "org" })
	x := newSurfaces(t, s)
	if body, code := x.overAPI("POST", "/api/commands/mcp.edit", `{"name":"up","label":"First","version":1}`); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	body, code := x.overAPI("POST", "/api/commands/mcp.edit", `{"name":"up","label":"Second","version":1}`)
	var p struct {
		Current   command.Provider
		Submitted command.EditInput
	}
	mustJSON(t, body, &p)
	if code != 409 || p.Current.Version != 2 || p.Current.Name != "First" || p.Submitted.Label != "Second" {
		t.Errorf("%d %s", code, body)
	}
}
