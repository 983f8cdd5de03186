package app_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

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
