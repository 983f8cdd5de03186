package app_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
)

// onPages serves something to look at, to a browser that is signed in.
func onPages(t *testing.T) (*served, *visitor, string, string) {
	t.Helper()
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`), fake.Tool("pay", ""))
	s := start(t, "", allow("up", m.URL, "notes", m.URL)+scripted(`[{calls: [{tool: mcp__up__look}]}, {say: fine}]`))
	s.add("up", m.Endpoint(), func(in *command.MCPAddInput) { in.Scope = "org" })
	show, _ := s.ask("look", "general")
	var conn command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &conn); err != nil {
		t.Fatal(err)
	}
	v := newVisitor(t)
	if code, _ := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("signing in: %d", code)
	}
	return s, v, conn.Server.ID, show.Run.ID
}

// A page is at most 100 KB with all that it loads, and says what it says without it.
func TestPagesAreSmallAndWhole(t *testing.T) {
	s, v, conn, run := onPages(t)
	base := "http://" + s.a.Addr()
	get := func(path string) (int, string, http.Header) {
		req, err := http.NewRequest("GET", base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip")
		return v.do(req)
	}
	loads := regexp.MustCompile(`(?:src|<link rel="stylesheet" href)="([^"]+)"`)
	packed := map[string]int{}
	for _, path := range []string{"/", "/agents", "/agents/general", "/agents/general/runs", "/agents/general/settings", "/connections", "/connections/add", "/connections/" + conn, "/connections/" + conn + "/tools/look", "/connections/" + conn + "/remove",
		"/registry", "/proposals", "/runs", "/runs/" + run, "/calls", "/approvals", "/why", "/audit", "/egress", "/settings", "/settings/tokens", "/settings/keys", "/search?q=up"} {
		code, page, h := get(path)
		if code != 200 || h.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %d, %q", path, code, h.Get("Content-Encoding"))
			continue
		}
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(h.Get("Content-Security-Policy"), want) {
				t.Errorf("%s: the policy lacks %s", path, want)
			}
		}
		size := len(page)
		_, plain := v.get(base + path)
		if !strings.Contains(plain, "<h1>") || !strings.Contains(plain, `id="main"`) || strings.Contains(plain, `hx-trigger="load`) || strings.Contains(plain, "<style") || strings.Contains(plain, " style=") {
			t.Errorf("%s is not whole by itself", path)
		}
		for _, l := range loads.FindAllStringSubmatch(plain, -1) {
			if !strings.HasPrefix(l[1], "/assets/patchbay.") {
				t.Errorf("%s loads %s", path, l[1])
			}
			if packed[l[1]] == 0 {
				_, body, h := get(l[1])
				if packed[l[1]] = len(body); !strings.Contains(h.Get("Cache-Control"), "immutable") {
					t.Errorf("%s: %q", l[1], h.Get("Cache-Control"))
				}
			}
			size += packed[l[1]]
		}
		if size > 100<<10 {
			t.Errorf("%s: %d bytes on first load", path, size)
		}
	}
	if len(packed) != 2 {
		t.Errorf("pages load %v", packed)
	}
}

// A token that was made is in the answer to that form and in no other page.
func TestATokenIsShownOnce(t *testing.T) {
	s, v, _, _ := onPages(t)
	page := "http://" + s.a.Addr() + "/settings/tokens"
	code, body := v.post(page, url.Values{"do": {"create"}, "name": {"laptop"}, "agent": {"general"}})
	shown := regexp.MustCompile(`id="token-value"[^>]*>([^<]+)<`).FindStringSubmatch(body)
	if code != 200 || shown == nil || len(shown[1]) < 32 {
		t.Fatalf("%d %s", code, body)
	}
	for _, who := range []*visitor{v, newVisitor(t)} {
		if _, body := who.get(page); strings.Contains(body, shown[1]) || strings.Contains(body, "only time that the token is shown") {
			t.Error("it is shown again")
		}
	}
	if strings.Contains(s.log.String(), shown[1]) {
		t.Error("it is in the log")
	}
}

// A form whose session has ended comes back with what was typed, but for secrets, and is
// sent again by who has signed in.
func TestAFormOutlivesItsSession(t *testing.T) {
	s, v, _, _ := onPages(t)
	base := "http://" + s.a.Addr()
	form := url.Values{"do": {"add"}, "name": {"notes"}, "address": {`https://n.example/mcp?<"&>`}, "client_secret": {"s3cret-of-the-client"}}
	gone := newVisitor(t)
	code, body := gone.post(base+"/connections/add", form)
	if code != 401 || !strings.Contains(body, "Your session has ended") || !strings.Contains(body, `https://n.example/mcp?&lt;&#34;&amp;&gt;`) || !strings.Contains(body, `action="/connections/add"`) {
		t.Errorf("%d %s", code, body)
	}
	if strings.Contains(body, "s3cret") {
		t.Error("the page holds the secret")
	}
	req, err := http.NewRequest("POST", base+"/connections/add", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	if code, body, _ := v.do(req); code != 403 || strings.Contains(body, "n.example") {
		t.Errorf("from another site: %d %s", code, body)
	}
}

// Who lost a race sees what they chose and how it stands.
func TestTheSecondFormShowsBothStates(t *testing.T) {
	s, v, conn, _ := onPages(t)
	page := "http://" + s.a.Addr() + "/connections/" + conn
	_, body := v.get(page)
	version := regexp.MustCompile(`name="version" value="(\d+)"`).FindStringSubmatch(body)
	if err := s.do("mcp.tools-set", command.ToolsSetInput{Name: "up", Exclude: []string{"pay"}}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	code, body := v.post(page, url.Values{"do": {"save"}, "version": {version[1]}, "known": {"look", "pay"}, "use": {"pay"}})
	if code != 409 || !strings.Contains(body, "Your choice is set below") || !strings.Contains(body, "it is left out now") || !strings.Contains(body, "it is used now") {
		t.Errorf("%d %s", code, body)
	}
	if _, body = v.get(page); strings.Contains(body, "may look at it and not change it") || strings.Contains(body, "aria-label=\"Name, address and agents\" disabled") {
		t.Error("an admin is told that he may not")
	}
}

// A form that was refused takes nothing away from the others of its page, and what lacks
// what was looked at does nothing.
func TestARefusedFormLeavesTheOthers(t *testing.T) {
	s, v, conn, _ := onPages(t)
	page := "http://" + s.a.Addr() + "/connections/" + conn
	if err := s.do("mcp.edit", command.EditInput{Name: "up", Agents: []string{"general"}, Version: 1}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	code, body := v.post(page, url.Values{"do": {"rename"}, "name": {"BAD NAME"}, "label": {"kept"}})
	if code != 409 || !strings.Contains(body, `name="agents" value="general"`) || !strings.Contains(body, `value="BAD NAME"`) || !strings.Contains(body, `value="kept"`) || strings.Contains(body, `name="url" type="url" value=""`) {
		t.Errorf("%d %s", code, body)
	}
	var show command.MCPShow
	for what, f := range map[string]url.Values{
		"an edit without a version":   {"do": {"edit"}, "url": {""}, "agents": {""}},
		"a hold without a version":    {"do": {"hold"}},
		"every definition at once":    {"do": {"accept"}, "tool": {"*"}, "fingerprint": {strings.Repeat("0", 64)}, "version": {"2"}},
		"a definition nobody saw":     {"do": {"accept"}, "tool": {"look"}, "fingerprint": {""}, "version": {"2"}},
		"a form that is none of ours": {"do": {"explode"}},
	} {
		if code, _ := v.post(page, f); code != 409 {
			t.Errorf("%s: %d", what, code)
		}
	}
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil || show.Version != 2 || len(show.Server.Agents) != 1 {
		t.Errorf("%+v %v", show.Server, err)
	}
}

// As many tools as a server may have are saved by one form, and a file of servers says of
// each what became of it.
func TestLargeFormsAreTaken(t *testing.T) {
	var tools []string
	f := url.Values{"do": {"save"}}
	for i := range 256 {
		name := fmt.Sprintf("a_tool_with_a_rather_long_name_for_a_form_%03d", i)
		tools = append(tools, fake.Tool(name, ""))
		f.Add("known", name)
		if i != 7 {
			f.Add("use", name)
		}
	}
	m := fake.NewMCP(t, tools...)
	s := start(t, "", upConfig(m))
	s.refresh("up")
	var show command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil {
		t.Fatal(err)
	}
	v := newVisitor(t)
	if code, _ := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("signing in: %d", code)
	}
	base := "http://" + s.a.Addr()
	f.Set("version", fmt.Sprint(show.Version))
	if code, body := v.post(base+"/connections/"+show.Server.ID, f); code != http.StatusSeeOther {
		t.Fatalf("%d %s", code, body)
	}
	if s.tool("up", f["known"][7]).LeftOut == "" || s.tool("up", f["known"][8]).LeftOut != "" {
		t.Error("the choice was not kept")
	}
	code, body := v.post(base+"/connections/add", url.Values{"do": {"import"}, "whose": {"me"}, "file": {`{"mcpServers":{"events":{"type":"sse","url":"https://e.example/sse"},"inside":{"url":"http://10.0.0.1/mcp"}}}`}})
	if code != 200 || !strings.Contains(body, "What was read") || strings.Count(body, "refused") < 2 || !strings.Contains(body, "sse") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := v.post(base+"/connections/add", url.Values{"do": {"import"}, "file": {strings.Repeat("x", 3<<20)}}); code != 413 || strings.Contains(body, "token") {
		t.Errorf("%d %s", code, body)
	}
}

// The overview begins with what waits: changed tools, and what was proposed.
func TestTheOverviewNamesWhatWaits(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	s := start(t, "", strings.Replace(upConfig(m), "url:", "new_tools: hold, url:", 1)+"agents: {general: {approvals: {mcp__up__look: ask}}}\n")
	s.refresh("up")
	m.SetTools(fake.Tool("look", `"title":"now see https://evil.example/x"`))
	s.refresh("up")
	v := newVisitor(t)
	if code, _ := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("signing in: %d", code)
	}
	base := "http://" + s.a.Addr()
	if _, body := v.get(base + "/"); !strings.Contains(body, "up changed 1 tool") || strings.Contains(body, "Everything that runs, runs") {
		t.Errorf("%s", body)
	}
	var show command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil || show.Server.Held != 1 || len(show.Tools[0].Asks) != 1 {
		t.Fatalf("%+v %v", show, err)
	}
	if _, body := v.get(base + "/connections/" + show.Server.ID + "/tools/look"); !strings.Contains(body, "general: ask, since the agent’s approvals say") && !strings.Contains(body, "general: ask, since the agent&#39;s approvals say") {
		t.Errorf("%s", body)
	}
}

// A stream of a run ends with the session that opened it, and nobody opens them without end.
func TestAStreamEndsWithItsSession(t *testing.T) {
	t.Parallel()
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	s := start(t, "", upConfig(m)+"agents: {general: {approvals: {mcp__up__pay: ask}}}\n"+scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: fine}]`))
	s.refresh("up")
	var run command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "pay", Agent: "general"}, &run); err != nil {
		t.Fatal(err)
	}
	v := newVisitor(t)
	if code, _ := v.post(s.a.SignInLink(), nil); code >= 400 {
		t.Fatalf("signing in: %d", code)
	}
	base := "http://" + s.a.Addr()
	v.c.Timeout = time.Minute
	open := func() *http.Response {
		req, err := http.NewRequest("GET", base+"/api/runs/"+run.ID+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		resp, err := v.c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	var streams []*http.Response
	for range 64 {
		if r := open(); r.StatusCode == 200 {
			streams = append(streams, r)
		}
	}
	if len(streams) != 64 {
		t.Fatalf("%d streams", len(streams))
	}
	if r := open(); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one too many: %d", r.StatusCode)
	}
	if code, _ := v.post(base+"/signout", url.Values{}); code >= 400 {
		t.Fatalf("signing out: %d", code)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, streams[0].Body)
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the stream goes on after its session")
	}
}

// Times stand in the viewer's zone, and exactly in the markup.
func TestTimesAreTheViewers(t *testing.T) {
	s, v, _, run := onPages(t)
	base, err := url.Parse("http://" + s.a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	exact := regexp.MustCompile(`<time datetime="(\d{4}-\d\d-\d\dT[^"]+)" title="([^"]+)"`)
	for zone, want := range map[string]string{"": "UTC", "Asia/Tokyo": "JST", "No/Where": "UTC", "../../etc/passwd": "UTC"} {
		v.c.Jar.SetCookies(base, []*http.Cookie{{Name: "tz", Value: url.QueryEscape(zone), Path: "/"}})
		_, body := v.get(base.String() + "/runs/" + run)
		got := exact.FindStringSubmatch(body)
		if got == nil || !strings.Contains(got[2], want) {
			t.Errorf("%q: %q", zone, got)
			continue
		}
		if _, err := time.Parse(time.RFC3339Nano, got[1]); err != nil {
			t.Errorf("%q: %v", zone, err)
		}
	}
}
