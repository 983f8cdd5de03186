//go:build long

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"patchbay/test/peers"
)

// What people do on the dashboard, with script and without.
func TestSignInAndGovern(t *testing.T) {
	t.Run("with script", func(t *testing.T) { govern(t, watched) })
	t.Run("without script", func(t *testing.T) { govern(t, scriptless) })
}

func govern(t *testing.T, prepare func(*browser)) {
	s := newStage(t)
	b := s.signedIn(t, prepare)
	b.says("1 call whose outcome nobody knows")

	// Which tools are used.
	b.open(s.base + "/connections/" + s.conn)
	b.choose("Use refund")
	b.press("Save which are used")
	b.says("2 of 3 tools are used.")
	if _, errs, code := s.run("mcp", "call", "books", "refund"); code == 0 || !strings.Contains(errs, "excluded") {
		t.Errorf("a tool that was left out: %d %s", code, errs)
	}

	// What changed, and what is let in.
	b.says("Before you use any other tool")
	b.press("Let it in: look")
	b.says("look is let in.")
	if strings.Contains(b.text(), "held: ") {
		t.Errorf("after it was let in:\n%s", b.text())
	}

	// Whether a tool may be repeated, of exactly what was seen.
	b.follow("look")
	b.until("look")
	b.choose("You have read the definition")
	b.press("Save the class")
	b.says("look is of class query.")
	if out := s.must("mcp", "show", "books"); !strings.Contains(out, "query") {
		t.Errorf("%s", out)
	}

	// What became of a call that nobody knows the end of.
	b.open(s.base + "/")
	b.follow("Say what happened")
	b.says("invoice 7, 1,200.00 EUR")
	b.choose("You have looked, and it is there")
	b.fill("Note", "in the bank's list")
	b.press("Say so")
	b.says("The call is settled as done.")
	if out := s.must("calls", "show", s.unknown); !strings.Contains(out, "resolved_done") || !strings.Contains(out, "in the bank's list") {
		t.Errorf("%s", out)
	}

	// What was proposed.
	b.open(s.base + "/proposals")
	b.follow("crm")
	b.says("the agent asks for customers three times a day")
	b.says("find_customer")
	b.press("Accept crm for payments")
	b.says("crm is accepted for payments.")
	if out := s.must("proposals", "list", "--team", "payments"); !strings.Contains(out, "curated") {
		t.Errorf("%s", out)
	}

	// A token, and a client that uses it.
	b.open(s.base + "/settings/tokens")
	b.fill("What it is for", "a laptop")
	b.selects("Agent", "general")
	b.press("Make the token")
	b.says("This is the only time that the token is shown.")
	token, err := chromedp.Run(b.ctx, chromedp.Text(chromedp.CSS("#token-value")))
	if err != nil {
		t.Fatal(err)
	}
	if names := toolsOf(t, s.base+"/mcp/agents/general", strings.TrimSpace(token)); !strings.Contains(names, "mcp__books__look") || strings.Contains(names, "refund") {
		t.Errorf("the client sees %s", names)
	}
	b.follow("Keys")
	b.says("Rotation")
	b.follow("Tokens")
	b.says("Make a token")
	if strings.Contains(b.text(), strings.TrimSpace(token)) {
		t.Errorf("the token %q is shown twice:\n%s", token, b.text())
	}
	b.press("End it: a laptop")
	b.says("The token is ended.")

	// A server with a key, by way of its one-time page.
	b.open(s.base + "/connections/add")
	b.fill("Name", "notes")
	b.fill("Address", s.newServer.Endpoint())
	b.selects("Signs in by", "a token")
	b.press("Add the server")
	b.until("Connect notes")
	b.fill("Token", "n0tes-t0ken")
	b.press("Connect")
	b.until("notes is connected")
	if s.show("notes").Server.Tools != 1 {
		t.Errorf("%+v", s.show("notes"))
	}
	if v := b.eval("JSON.stringify(window.violations || [])"); v != "[]" {
		t.Errorf("the policy is violated: %s", v)
	}
}

// toolsOf are the names that a client sees.
func toolsOf(t *testing.T, url, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %v", resp.StatusCode, err)
	}
	var names []string
	for _, x := range out.Result.Tools {
		names = append(names, x.Name)
	}
	return strings.Join(names, " ")
}

// A server with a sign-in of its own, added on the page.
func TestSignInFromTheAddPage(t *testing.T) {
	p := peers.OIDC(t)
	d := serve(t, useNotes+allow("notes", p.Issuer, p.MCP))
	b := d.signedIn(t, scriptless)
	b.open(d.publicURL(t) + "/connections/add")
	b.fill("Name", "notes")
	b.fill("Address", p.MCP)
	b.press("Add the server")
	b.until("Connect notes")
	b.press("Continue to sign in")
	b.until("Sign-in")
	b.signIn(host(p.Issuer), "ada")
	b.until("notes is connected")
	if out := d.must("ask", "What is the latest note?"); !strings.Contains(out, "buy oat milk") {
		t.Errorf("%s", out)
	}
}

// A run's page follows it, without a load of the page.
func TestSignInAndFollowARun(t *testing.T) {
	s := newStage(t)
	b := s.signedIn(t, watched)
	s.must("mcp", "diff", "books", "--accept", "look")
	s.must("runs", "start", "Look twice.", "--agent", "slow")
	b.open(s.base + "/runs/" + s.lastRun())
	b.eval("window.same = 'yes'")
	b.says("Look twice.")
	if text := b.text(); !strings.Contains(text, "running") && !strings.Contains(text, "queued") {
		t.Fatalf("it is over already:\n%s", text)
	}
	b.says("turn 2")
	b.says("Both are there.")
	b.says("succeeded")
	if b.eval("window.same || 'no'") != "yes" {
		t.Error("the page was loaded anew")
	}
	if v := b.eval("JSON.stringify(window.violations)"); v != "[]" {
		t.Errorf("the policy is violated: %s", v)
	}
	// And the list of connections sees health change.
	b.open(s.base + "/connections")
	b.eval("window.same = 'yes'")
	s.must("mcp", "disable", "mail")
	b.says("off")
	if b.eval("window.same || 'no'") != "yes" {
		t.Error("the page was loaded anew")
	}
}

// Two tabs change one connection: the second sees both states and chooses. A session that
// ends in mid-form loses nothing that was typed.
func TestSignInTwiceAndLoseNothing(t *testing.T) {
	s := newStage(t)
	b := s.signedIn(t)
	b.open(s.base + "/connections/" + s.conn)
	s.must("mcp", "tools-set", "books", "--exclude", "pay")
	b.choose("Use refund")
	b.press("Save which are used")
	b.says("Your choice is set below")
	b.says("it is left out now") // pay, which is ticked here
	b.says("it is used now")     // refund, which is not
	b.press("Save which are used")
	b.says("2 of 3 tools are used.")

	b.open(s.base + "/connections/add")
	b.fill("Name", "notes")
	b.fill("Address", s.newServer.Endpoint())
	if _, err := chromedp.Call(b.ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.press("Add the server")
	b.says("Your session has ended")
	words := strings.Fields(s.must("signin"))
	tab, closeTab := chromedp.NewContext(b.ctx)
	defer closeTab()
	if err := chromedp.Do(tab); err != nil { // opens it, for longer than a step's time
		t.Fatal(err)
	}
	other := &browser{t: t, ctx: tab}
	other.open(words[len(words)-1])
	other.press("Sign in")
	other.until("Overview")
	b.press("Send it again")
	b.until("notes")
	if s.show("notes").Server.Auth == "" {
		t.Error("it is not there")
	}
}

// Names that somebody else chose are text and nothing else.
func TestSignInAmongOddNames(t *testing.T) {
	s := newStage(t)
	s.must("mcp", "rename", "mail", "mail", "--label", "<script>document.title='owned'</script> שלום "+strings.Repeat("long", 8))
	s.books.SetTools(strings.Replace(bookTools("x")[0], "\"description\":\"x\"", `"description":"<img src=x onerror=alert(1)> data:text/html,<b>x</b> \u001b[31mred <script>document.title='owned'</script>"`, 1))
	s.must("mcp", "refresh", "books")
	s.must("mcp", "propose", "name: odd\ndescription: "+strings.Repeat("w", 200)+"\nurl: https://"+strings.Repeat("h", 60)+".example/mcp\n", "--team", "payments", "--why", strings.Repeat("y", 200))
	s.asks("general", strings.Repeat("W", 200)+" <img src=x onerror=alert(1)> \u202eesrever")
	long := "/runs/" + s.lastRun()
	b := s.signedIn(t, watched)
	for _, path := range []string{long, "/runs", "/calls", "/proposals", "/proposals/payments/odd", "/agents/general/runs", "/connections", "/connections/" + s.mail, "/connections/" + s.conn, "/connections/" + s.conn + "/tools/look", "/search?q=" + "%3Cscript%3E", "/"} {
		for _, width := range []int64{1280, 375} {
			b.do("resize", chromedp.EmulateViewport(width, 900))
			b.open(s.base + path)
			if b.title() == "owned" || b.eval("String(document.querySelectorAll('main script, main img').length)") != "0" {
				t.Errorf("%s: markup of a name is markup", path)
			}
			if over := b.eval("String(document.documentElement.scrollWidth - document.documentElement.clientWidth)"); over != "0" {
				t.Errorf("%s at %d: %s px are beyond the screen", path, width, over)
			}
			if strings.ContainsAny(b.text(), "\u202e\u001b") {
				t.Errorf("%s: an invisible character is as it came", path)
			}
		}
	}
	if v := b.eval("JSON.stringify(window.violations)"); v != "[]" {
		t.Errorf("the policy is violated: %s", v)
	}
}

// The keyboard alone settles what nobody knows, and finds a connection by its name.
func TestSignInWithoutAMouse(t *testing.T) {
	s := newStage(t)
	b := s.signedIn(t)
	b.loaded()
	b.key("/")
	b.do("select what the slash left", chromedp.KeyEvent("a", chromedp.KeyModifiers(2))) // the protocol's key press is two events, of which the page can stop one
	b.keys("bookkeep" + kb.Enter)
	b.until("Found")
	b.tabTo("Bookkeeping")
	b.key(kb.Enter)
	b.until("Bookkeeping")
	b.tabTo("Use refund")
	b.key(" ")
	b.tabBack("Save which are used")
	b.key(kb.Enter)
	b.says("2 of 3 tools are used.")
	b.open(s.base + "/")
	b.tabTo("Say what happened")
	b.key(kb.Enter)
	b.until("Calls")
	b.tabTo("Done")
	b.key(" ")
	b.tabTo("Say so")
	b.key(kb.Enter)
	b.says("The call is settled as done.")
}

// loaded waits until the page's script has run.
func (b *browser) loaded() {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); b.eval("document.readyState") != "complete" && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

func (b *browser) key(k string) {
	b.t.Helper()
	b.do("press a key", chromedp.KeyEvent(k))
}

func (b *browser) keys(text string) {
	b.t.Helper()
	for _, r := range text {
		b.key(string(r))
	}
}

// focused is the name of what has the focus, as a screen reader says it, roughly.
const focused = `(() => { const e = document.activeElement; const l = e.labels && e.labels[0]; return (l ? l.textContent : e.textContent || e.getAttribute('aria-label') || '').replace(/\s+/g, ' ').trim() })()`

// tabTo goes on with Tab until something of that name has the focus, and can be seen to.
func (b *browser) tabTo(name string) { b.t.Helper(); b.tab(name, false) }

func (b *browser) tabBack(name string) { b.t.Helper(); b.tab(name, true) }

func (b *browser) tab(name string, back bool) {
	b.t.Helper()
	var seen []string
	for range 150 {
		if back {
			b.do("tab back", chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(8)))
		} else {
			b.key(kb.Tab)
		}
		at := b.eval(focused)
		if len(at) > 80 { // the page itself
			continue
		}
		if seen = append(seen, at); strings.HasPrefix(at, name) {
			if b.eval("String(document.activeElement.matches(':focus-visible'))") != "true" {
				b.t.Errorf("the focus on %q cannot be seen", name)
			}
			return
		}
	}
	b.t.Fatalf("Tab does not come to %q, only to %q", name, seen[max(0, len(seen)-40):])
}
