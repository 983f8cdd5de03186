package app_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// visitor is a browser: it keeps cookies, follows nothing by itself and says
// where its forms come from.
type visitor struct {
	t *testing.T
	c *http.Client
}

func newVisitor(t *testing.T) *visitor {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{t, &http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (v *visitor) do(req *http.Request) (int, string, http.Header) {
	resp, err := v.c.Do(req)
	if err != nil {
		v.t.Error(err)
		return 0, "", nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Error(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func (v *visitor) get(u string) (int, string) {
	req, err := http.NewRequest("GET", u, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	code, body, _ := v.do(req)
	return code, body
}

func (v *visitor) post(u string, form url.Values) (int, string) {
	req, err := http.NewRequest("POST", u, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	code, body, _ := v.do(req)
	return code, body
}

var refreshRE = regexp.MustCompile(`http-equiv="refresh" content="1; url=([^"]+)"`)

// start presses the button and returns where the browser is sent.
func (v *visitor) start(link string) string {
	v.t.Helper()
	code, body := v.post(link, url.Values{"action": {"start"}})
	m := refreshRE.FindStringSubmatch(body)
	if code != 200 || m == nil {
		v.t.Fatalf("start: %d %s", code, body)
	}
	return strings.ReplaceAll(m[1], "&amp;", "&")
}

// approve lets the authorization server approve, and returns our callback.
func (v *visitor) approve(to string) string {
	v.t.Helper()
	req, err := http.NewRequest("GET", to, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	code, body, h := v.do(req)
	if code != http.StatusFound {
		v.t.Fatalf("authorize: %d %s", code, body)
	}
	return h.Get("Location")
}

// protected is an app beside a protected server.
func protected(t *testing.T, more string) (*served, *fake.MCP, *fake.AS) {
	t.Helper()
	m := fake.NewMCP(t, fake.Tool("read", `"annotations":{"readOnlyHint":true}`), fake.Tool("write", ""))
	as := fake.NewAS(t, m)
	return start(t, "", "models: {default: {provider: scripted, script: [{calls: [{tool: mcp__notes__read}]}, {say: done}]}}\negress: {allow: [{to: \""+m.URL+"\", for: [notes, other]}, {to: \""+as.URL+"\", for: [notes, other]}]}\n"+more), m, as
}

func (s *served) add(name, u string, change func(*command.MCPAddInput)) command.MCPAdded {
	s.t.Helper()
	in := command.MCPAddInput{Name: name, Address: u}
	if change != nil {
		change(&in)
	}
	var out command.MCPAdded
	if err := s.do("mcp.add", in, &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *served) row(name string) command.ServerRow {
	s.t.Helper()
	var out command.MCPShow
	if err := s.do("mcp.show", command.NameInput{Name: name}, &out); err != nil {
		s.t.Fatal(err)
	}
	return out.Server
}

func (s *served) callTool(name, tool string) (command.MCPCall, error) {
	s.t.Helper()
	var out command.MCPCall
	err := s.do("mcp.call", command.MCPCallInput{Name: name, Tool: tool}, &out)
	return out, err
}

// signedIn connects notes by OAuth.
func signedIn(t *testing.T, s *served, m *fake.MCP) command.MCPAdded {
	t.Helper()
	out := s.add("notes", m.Endpoint(), nil)
	v := newVisitor(t)
	code, body := v.get(v.approve(v.start(out.Link)))
	if code != 200 || !strings.Contains(body, "notes is connected") || !strings.Contains(body, "2 tools are</b> on offer") {
		t.Fatalf("callback: %d %s", code, body)
	}
	return out
}

func TestASignInFromLinkToCall(t *testing.T) {
	s, m, as := protected(t, "")
	out := signedIn(t, s, m)
	if out.Detected != "oauth" || out.Server.State != "awaiting_credential" {
		t.Errorf("%+v", out)
	}
	if got, err := s.callTool("notes", "read"); err != nil || got.IsError {
		t.Fatalf("%+v %v", got, err)
	}
	asked := as.Asked("/authorize")[0].Form
	if asked.Get("scope") != "read write offline_access" || asked.Get("resource") != m.Endpoint() || asked.Get("code_challenge") == "" {
		t.Errorf("authorize asked for %v", asked)
	}
	// The access token ends in the middle of a session: one refresh, one more try.
	as.Expire()
	if got, err := s.callTool("notes", "read"); err != nil || got.IsError || len(as.Asked("/token")) != 2 {
		t.Fatalf("after the token ended: %+v %v, %d token requests", got, err, len(as.Asked("/token")))
	}
	// A second account at the same endpoint is another connection.
	other := s.add("other", m.Endpoint(), func(in *command.MCPAddInput) { in.Label = "Second account" })
	if other.Server.ID == s.row("notes").ID || len(as.Asked("/register")) != 1 {
		t.Errorf("a second account: %+v", other.Server)
	}
	v := newVisitor(t)
	if code, body := v.get(v.approve(v.start(other.Link))); code != 200 {
		t.Fatal(code, body)
	}
	if n := len(as.Asked("/register")); n != 1 {
		t.Errorf("registered %d times", n)
	}
	// Withdrawn at the server: the call says why, and the other account still works.
	before := s.row("notes")
	if err := s.do("mcp.logout", command.NameInput{Name: "other"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if revoked := as.Asked("/revoke"); len(revoked) != 2 || revoked[0].Form.Get("token_type_hint") != "refresh_token" {
		t.Errorf("revoked %v", revoked)
	}
	as.Withdraw()
	got, err := s.callTool("notes", "read")
	if err != nil || !got.IsError {
		t.Fatalf("%+v %v", got, err)
	}
	if row := s.row("notes"); row.State != "auth_error" || row.Reason != "revoked" || row.ID != before.ID {
		t.Errorf("%+v", row)
	}
	if _, err := s.callTool("notes", "read"); err == nil || !strings.Contains(err.Error(), "withdrew") {
		t.Errorf("the next call: %v", err)
	}
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "notes"}, &again); err != nil {
		t.Fatal(err)
	}
	v = newVisitor(t)
	if code, body := v.get(v.approve(v.start(again.Link))); code != 200 {
		t.Fatal(code, body)
	}
	if got, err := s.callTool("notes", "read"); err != nil || got.IsError {
		t.Errorf("after signing in again: %+v %v", got, err)
	}
	if err := s.do("mcp.remove", command.NameInput{Name: "notes"}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	if err := s.do("mcp.show", command.NameInput{Name: "notes"}, &command.MCPShow{}); plane.KindOf(err) != plane.NotFound {
		t.Errorf("removed: %v", err)
	}
}

func TestHowAServerSignsInIsFoundOut(t *testing.T) {
	open := fake.NewMCP(t, fake.Tool("a", ""))
	keyed := fake.NewMCP(t, fake.Tool("a", ""))
	keyed.RequireToken("the-right-token")
	broken := fake.NewMCP(t)
	broken.Override(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	lists := fake.NewMCP(t, fake.Tool("a", "")) // lets initialize through and nothing else
	lists.Guard(func(r *http.Request) (string, int) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		if bytes.Contains(b, []byte("tools/list")) && r.Header.Get("Authorization") == "" {
			return "Bearer", 401
		}
		return "", 0
	})
	s := start(t, "", allow("open", open.URL, "keyed", keyed.URL, "broken", broken.URL, "lists", lists.URL))
	if out := s.add("open", open.Endpoint(), nil); out.Detected != "none" || out.Link != "" || out.Tools != 1 || out.Server.State != "connected" {
		t.Errorf("an open server: %+v", out)
	}
	if out := s.add("keyed", keyed.Endpoint(), nil); out.Detected != "bearer" || out.Link == "" {
		t.Errorf("a server that wants a token: %+v", out)
	}
	if out := s.add("lists", lists.Endpoint(), nil); out.Detected != "bearer" {
		t.Errorf("a server that lets initialize through: %+v", out)
	}
	err := s.do("mcp.add", command.MCPAddInput{Name: "broken", Address: broken.Endpoint()}, &command.MCPAdded{})
	if plane.KindOf(err) != plane.InvalidInput || !strings.Contains(plane.Public(err).Next, "--auth") {
		t.Errorf("a server that fails: %v", err)
	}
	if err := s.do("mcp.show", command.NameInput{Name: "broken"}, &command.MCPShow{}); plane.KindOf(err) != plane.NotFound {
		t.Errorf("a refused add left something: %v", err)
	}
	asked := len(broken.Calls())
	if out := s.add("broken", broken.Endpoint(), func(in *command.MCPAddInput) { in.Auth = "bearer" }); out.Detected != "" || out.Link == "" || len(broken.Calls()) != asked {
		t.Errorf("an explicit kind was probed: %+v", out)
	}
	// A server that was open and now wants a sign-in changes the answer.
	open.RequireToken("from-now-on")
	if got, err := s.callTool("open", "a"); err != nil || !got.IsError {
		t.Errorf("%+v %v", got, err)
	}
	if row := s.row("open"); row.State != "auth_error" || row.Reason != "needs_auth" {
		t.Errorf("%+v", row)
	}
	var again command.MCPAdded
	if err := s.do("mcp.connect", command.ConnectInput{Name: "open"}, &again); err != nil || again.Detected != "bearer" || again.Link == "" {
		t.Fatalf("%+v %v", again, err)
	}
	v := newVisitor(t)
	if code, body := v.post(again.Link, url.Values{"token": {"from-now-on"}}); code != 200 || !strings.Contains(body, "open is connected") {
		t.Errorf("%d %s", code, body)
	}
	if got, err := s.callTool("open", "a"); err != nil || got.IsError {
		t.Errorf("%+v %v", got, err)
	}
}

func TestEveryPastedKindReachesTheServer(t *testing.T) {
	for auth, want := range map[string]string{"bearer": "Authorization: Bearer the-Secret-1", "api_key:X-Api-Key": "X-Api-Key: the-Secret-1",
		"basic:ada": "Authorization: Basic YWRhOnRoZS1TZWNyZXQtMQ=="} {
		m := fake.NewMCP(t, fake.Tool("a", ""))
		m.Guard(func(r *http.Request) (string, int) {
			name, value, _ := strings.Cut(want, ": ")
			if r.Header.Get(name) != value {
				return "Bearer", 401
			}
			return "", 0
		})
		s := start(t, "", allow("up", m.URL))
		out := s.add("up", m.Endpoint(), func(in *command.MCPAddInput) { in.Auth = auth })
		v := newVisitor(t)
		if code, body := v.post(out.Link, url.Values{"token": {"wrong"}}); code != 400 || !strings.Contains(body, "The server rejected the token") || !strings.Contains(body, `name="token"`) || strings.Contains(body, "wrong") {
			t.Errorf("%s: a wrong one: %d %s", auth, code, body)
		}
		if code, body := v.post(out.Link, url.Values{"token": {" the-Secret-1 "}}); code != 200 {
			t.Errorf("%s: %d %s", auth, code, body)
		}
		if got, err := s.callTool("up", "a"); err != nil || got.IsError {
			t.Errorf("%s: %+v %v", auth, got, err)
		}
		s.stop()
	}
}

// Refusals of the page: each has its status, and the link is as good as before
// where it should be.
func TestThePageRefuses(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("a", ""))
	m.RequireToken("good")
	s := start(t, "", allow("up", m.URL))
	link := s.add("up", m.Endpoint(), nil).Link
	v := newVisitor(t)
	for name, c := range map[string]struct {
		token  string
		status int
		says   string
	}{
		"empty":             {"", 400, "That is no token"},
		"two lines":         {"a\nb", 400, "That is no token"},
		"not ASCII":         {"tökén", 400, "That is no token"},
		"too long":          {strings.Repeat("a", 8193), 400, "That is no token"},
		"as long as it may": {strings.Repeat("%", 8192), 400, "The server rejected the token"},
		"no token at all":   {strings.Repeat("a", 80_000), 413, "No token is that long"},
	} {
		if code, body := v.post(link, url.Values{"token": {c.token}}); code != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d, want %d %q in %.300s", name, code, c.status, c.says, body)
		}
	}
	if code, _ := v.post(link, url.Values{"action": {"start"}}); code != 400 {
		t.Errorf("a sign-in on a link for a token: %d", code)
	}
	for _, bad := range []map[string]string{{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {}} {
		req, _ := http.NewRequest("POST", link, strings.NewReader("token=good"))
		for k, val := range bad {
			req.Header.Set(k, val)
		}
		if code, _, _ := v.do(req); code != 403 {
			t.Errorf("a form of %v: %d", bad, code)
		}
	}
	req, _ := http.NewRequest("DELETE", link, nil)
	if code, _, _ := v.do(req); code != 405 {
		t.Errorf("DELETE: %d", code)
	}
	if code, _ := v.get(link + "x"); code != 404 {
		t.Errorf("an unknown link: %d", code)
	}
	// Looking spends nothing, however often and by whom; a bot binds nobody.
	for range 3 {
		if code, body := newVisitor(t).get(link); code != 200 || !strings.Contains(body, "Connect up") {
			t.Fatalf("a look: %d", code)
		}
	}
	if code, body := v.post(link, url.Values{"token": {"good"}}); code != 200 || !strings.Contains(body, "up is connected") {
		t.Fatalf("%d %s", code, body)
	}
	if code, _ := v.post(link, url.Values{"token": {"good"}}); code != 410 {
		t.Errorf("used twice: %d", code)
	}
	if code, _ := newVisitor(t).get(link); code != 403 { // now it is bound to the browser that used it
		t.Errorf("a stranger after its use: %d", code)
	}
	req, _ = http.NewRequest("GET", link, nil)
	_, _, h := v.do(req)
	for k, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
		if h.Get(k) != want {
			t.Errorf("%s: %q", k, h.Get(k))
		}
	}
	if csp := h.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "form-action 'self'") {
		t.Errorf("CSP %q", csp)
	}
}

// An unreachable server is connected with a warning; nothing is known of it.
func TestAnUnreachableServerIsStoredWithAWarning(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("a", ""))
	s := start(t, "", allow("up", m.URL))
	out := s.add("up", m.Endpoint(), func(in *command.MCPAddInput) { in.Auth = "bearer" })
	m.Server.Close()
	if code, body := newVisitor(t).post(out.Link, url.Values{"token": {"good"}}); code != 200 || !strings.Contains(body, "could not be asked") {
		t.Errorf("%d %s", code, body)
	}
	if row := s.row("up"); row.State != "connected" || row.Tools != 0 {
		t.Errorf("%+v", row)
	}
}

// Two completions, two openers, a start against a callback: one wins, the loser
// is told.
func TestRacesHaveOneWinner(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("a", ""))
	m.RequireToken("good")
	s := start(t, "", allow("up", m.URL))
	link := s.add("up", m.Endpoint(), nil).Link
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for range 8 {
		wg.Go(func() {
			code, _ := newVisitor(t).post(link, url.Values{"token": {"good"}})
			mu.Lock()
			codes[code]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if codes[200] != 1 || codes[403]+codes[410] != 7 {
		t.Errorf("eight completions: %v", codes)
	}

	s2, m2, as := protected(t, "")
	out := s2.add("notes", m2.Endpoint(), nil)
	v := newVisitor(t)
	back := v.approve(v.start(out.Link))
	results := map[int]int{}
	for range 6 { // a replayed callback
		wg.Go(func() {
			code, _ := v.get(back)
			mu.Lock()
			results[code]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if n := len(as.Asked("/token")); results[200] != 1 || n != 1 {
		t.Errorf("six callbacks: %v, the code presented %d times", results, n)
	}
	if code, _ := v.get(back); code != 410 {
		t.Errorf("a replayed callback: %d", code)
	}
	if got, err := s2.callTool("notes", "read"); err != nil || got.IsError {
		t.Errorf("%+v %v", got, err)
	}
}

// The callback's refusals: state first, then the issuer, then the rest; nothing
// is stored and the link can be used again.
func TestTheCallbackRefuses(t *testing.T) {
	s, m, as := protected(t, "")
	out := s.add("notes", m.Endpoint(), nil)
	v := newVisitor(t)
	good := v.approve(v.start(out.Link))
	base := good[:strings.Index(good, "/mcp/oauth/callback")]
	q := func(change func(url.Values)) string {
		u, err := url.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		vals := u.Query()
		change(vals)
		u.RawQuery = vals.Encode()
		return u.String()
	}
	for name, c := range map[string]struct {
		url  string
		code int
		says string
	}{
		"an error and no state":      {base + "/mcp/oauth/callback?error=access_denied", 400, "without the answer"},
		"a made-up state":            {base + "/mcp/oauth/callback?code=x&state=abc.def", 404, "no such link"},
		"another random part":        {q(func(v url.Values) { v.Set("state", v.Get("state")[:44]+strings.Repeat("A", 32)) }), 502, "another sign-in"},
		"an error under that":        {q(func(v url.Values) { v.Set("state", v.Get("state")[:44]+"x"); v.Set("error", "access_denied") }), 502, "another sign-in"},
		"another issuer":             {q(func(v url.Values) { v.Set("iss", "https://evil.example") }), 502, "another authorization server"},
		"no issuer":                  {q(func(v url.Values) { v.Del("iss") }), 502, "does not say which authorization server"},
		"a declined consent":         {q(func(v url.Values) { v.Set("error", "access_denied"); v.Del("code") }), 502, "Access was declined"},
		"neither code nor error":     {q(func(v url.Values) { v.Del("code") }), 502, "without a code"},
		"the other path of the same": {strings.Replace(q(func(v url.Values) { v.Set("iss", "x") }), "/mcp/oauth", "/api/mcp/oauth", 1), 502, "another authorization server"},
	} {
		if code, body := v.get(c.url); code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d, want %d %q in %.600s", name, code, c.code, c.says, body)
		}
	}
	if code, _ := newVisitor(t).get(good); code != 403 {
		t.Errorf("a stranger's browser: %d", code)
	}
	if code, body := v.get(q(func(v url.Values) { v.Set("code", "stolen") })); code != 502 || !strings.Contains(body, "invalid_grant") {
		t.Errorf("a code that is not theirs: %d %.600s", code, body)
	}
	if code, body := v.get(good); code != 409 || !strings.Contains(body, "presented already") {
		t.Errorf("an answer is presented twice: %d %.600s", code, body)
	}
	req, _ := http.NewRequest("POST", good, nil)
	if code, _, _ := v.do(req); code != 405 && code != 403 {
		t.Errorf("POST: %d", code)
	}
	if row := s.row("notes"); row.State != "awaiting_credential" {
		t.Errorf("%+v", row)
	}
	before := len(as.Asked("/token"))
	if code, body := v.get(v.approve(v.start(out.Link))); code != 200 {
		t.Errorf("the link no longer works: %d %s", code, body)
	}
	if n := len(as.Asked("/token")) - before; n != 1 {
		t.Errorf("%d exchanges", n)
	}
}
