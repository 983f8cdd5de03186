//go:build long

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// places are the dashboard's pages, by the name of their picture.
func (s *stage) places() [][2]string {
	return [][2]string{
		{"overview", "/"}, {"agents", "/agents"}, {"agent-tools", "/agents/general"}, {"agent-runs", "/agents/general/runs"}, {"agent-settings", "/agents/payroll/settings"},
		{"connections", "/connections"}, {"add-server", "/connections/add"}, {"connection", "/connections/" + s.conn}, {"tool", "/connections/" + s.conn + "/tools/look"},
		{"remove", "/connections/" + s.conn + "/remove"}, {"registry", "/registry"}, {"proposals", "/proposals"}, {"proposal", "/proposals/payments/crm"},
		{"runs", "/runs"}, {"run", "/runs/" + s.looked}, {"run-evidence", "/runs/" + s.looked + "?evidence=1"}, {"run-unknown", "/runs/" + s.paid}, {"calls", "/calls"}, {"call", "/calls/" + s.unknown},
		{"approvals", "/approvals"}, {"why", "/why"}, {"why-answered", "/why?agent=general&tool=books%2Fpay"}, {"audit", "/audit"}, {"egress", "/egress"},
		{"settings", "/settings"}, {"tokens", "/settings/tokens"}, {"keys", "/settings/keys"}, {"search", "/search?q=book"}, {"not-there", "/runs/run_0"},
	}
}

// Every page in both themes, wide and narrow: axe finds nothing, the policy that it comes
// with is not violated, nothing is wider than the screen or needs a mouse, with text twice
// as large and with colours that the system chose, too. SCREENSHOTS names a directory for
// pictures.
func TestSignInAndLookAtEveryPage(t *testing.T) {
	s := newStage(t)
	axe, err := os.ReadFile("../peers/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	b := s.signedIn(t, watched)
	look := func(name, path string) {
		t.Helper()
		for _, theme := range []string{"light", "dark"} {
			b.eval("document.cookie = 'theme=" + theme + "; path=/; samesite=lax'")
			for _, width := range []int64{1280, 375} {
				b.do("resize", chromedp.EmulateViewport(width, 900))
				b.open(s.base + path)
				where := fmt.Sprintf("%s, %s, %d px", name, theme, width)
				if dir := os.Getenv("SCREENSHOTS"); dir != "" && width == 1280 {
					b.eval(`document.querySelectorAll('dd').forEach((e) => { if (e.textContent.endsWith('/patchbay.yaml')) e.textContent = '/etc/patchbay/patchbay.yaml' }); ''`)
					b.picture(filepath.Join(dir, name+"-"+theme+".png"))
				}
				b.whole(where, string(axe))
			}
		}
	}
	for _, p := range s.places() {
		look(p[0], p[1])
	}
	s.lookAtClients(b, look, string(axe))
	out := s.must("mcp", "add", "notes", s.newServer.Endpoint(), "--auth", "bearer")
	look("connect", strings.TrimPrefix(link(t, out), s.base))
	b.press("Connect") // with nothing in it
	b.inspect("connect-refused", string(axe))
	b.fill("Token", "n0tes-t0ken")
	b.press("Connect")
	b.until("notes is connected")
	b.inspect("connected", string(axe))
	b.open(s.base + "/settings/tokens")
	b.fill("What it is for", "a laptop")
	b.selects("Agent", "general")
	b.press("Make the token")
	b.says("only time that the token is shown")
	b.inspect("token-made", string(axe))
	b.open(s.base + "/connections/add")
	b.fill("Its JSON, with mcpServers", `{"mcpServers":{"events":{"type":"sse","url":"https://e.example/sse"}}}`)
	b.press("Import")
	b.says("What was read")
	b.inspect("imported", string(axe))
	b.open(s.base + "/connections/" + s.conn)
	s.must("mcp", "tools-set", "books", "--exclude", "pay")
	b.press("Save which are used")
	b.says("Your choice is set below")
	b.inspect("connection-stale", string(axe))
	b.open(s.base + "/connections/add")
	b.fill("Name", "kept")
	if _, err := chromedp.Call(b.ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.press("Add the server")
	b.says("Your session has ended")
	b.inspect("kept", string(axe))
	words := strings.Fields(s.must("signin"))
	look("sign-in-first", "/oauth/authorize?client_id=x")
	look("sign-in", strings.TrimPrefix(words[len(words)-1], s.base))
	look("signed-out", "/connections")
}

// lookAtClients looks at what a person sees of MCP clients that sign them in.
func (s *stage) lookAtClients(b *browser, look func(name, path string), axe string) {
	s.t.Helper()
	back, _ := callbacks(s.t)
	reg := strings.NewReader(fmt.Sprintf(`{"client_name":"Claude Code (patchbay)","redirect_uris":[%q],"token_endpoint_auth_method":"none"}`, back))
	resp, err := http.Post(s.base+"/oauth/register", "application/json", reg)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var made struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
		s.t.Fatal(err)
	}
	asks := func(client, back, path, more string) string {
		return "/oauth/authorize?" + url.Values{"response_type": {"code"}, "client_id": {client}, "redirect_uri": {back}, "resource": {s.base + path}, "state": {"s"},
			"code_challenge_method": {"S256"}, "code_challenge": {strings.Repeat("c", 43)}}.Encode() + more
	}
	claude := asks(made.ID, back, "/mcp/agents/general", "")
	look("let-in", claude)
	look("let-in-commands", asks(made.ID, back, "/mcp", "&scope="+url.QueryEscape("mcp:read mcp:write runs:read runs:write config:write admin")))
	b.open(s.base + claude)
	b.lets("Let it in")
	b.until("Back at the client")
	look("let-in-again", claude)
	cursor := asks("cursor", "cursor://anysphere.cursor-mcp/oauth/callback", "/mcp/agents/general", "")
	look("let-in-cursor", cursor)
	own := s.signedIn(s.t, watched) // what asks about the scheme takes its clicks from then on
	own.open(s.base + cursor)
	own.lets("Let it in")
	own.says("It is let in")
	own.inspect("let-in-back", axe)
	look("clients", "/settings/clients")
	look("clients-all", "/settings/clients?all=1")
	look("let-in-refused", asks(made.ID, "http://localhost:1/elsewhere", "/mcp", ""))
}

// inspect looks at the page that is there, which a form led to, in both themes and widths.
func (b *browser) inspect(name, axe string) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.eval("document.documentElement.dataset.theme = '" + theme + "'")
		time.Sleep(300 * time.Millisecond) // colours pass over
		for _, width := range []int64{1280, 375} {
			b.do("resize", chromedp.EmulateViewport(width, 900))
			b.whole(fmt.Sprintf("%s, %s, %d px", name, theme, width), axe)
		}
	}
	b.do("resize", chromedp.EmulateViewport(1280, 900))
}

// whole holds a page to everything that every page is held to.
func (b *browser) whole(where, axe string) {
	b.t.Helper()
	if v := b.eval("JSON.stringify(window.violations)"); v != "[]" {
		b.t.Errorf("%s: the policy is violated: %s", where, v)
	}
	b.fits(where)
	for _, c := range b.list(outOfReach) {
		b.t.Errorf("%s: the keyboard does not come to %s", where, c)
	}
	b.eval(axe + "; ''")
	for _, f := range b.axe() {
		b.t.Errorf("%s: %s", where, f)
	}
	b.strained(where)
}

// fits says how much of a page is beyond the side of the screen.
func (b *browser) fits(where string) {
	b.t.Helper()
	if over := b.eval("String(document.documentElement.scrollWidth - document.documentElement.clientWidth)"); over != "0" {
		b.t.Errorf("%s: %s px are beyond the screen: %q", where, over, b.list(widest))
	}
}

// strained looks at the page with text twice as large, then with the system's colours.
func (b *browser) strained(where string) {
	b.t.Helper()
	b.eval("document.documentElement.style.fontSize = '200%'; ''")
	b.fits(where + ", text of 200 %")
	for _, c := range b.list(cutOff) {
		b.t.Errorf("%s, text of 200 %%: cut off: %s", where, c)
	}
	b.eval("document.documentElement.style.fontSize = ''; ''")
	forced := func(v string) {
		if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: v}}}); err != nil {
			b.t.Fatal(err)
		}
	}
	forced("active")
	for _, c := range b.list(unmarked) {
		b.t.Errorf("%s, forced colours: nothing tells %s from text", where, c)
	}
	forced("none")
}

// What is wrong on a page, as expressions that give a list of strings.
const (
	widest     = `[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('.vh') && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).slice(-3).map((e) => e.outerHTML.slice(0, 90))`
	outOfReach = `[...document.querySelectorAll('a, button, input:not([type=hidden]), select, textarea, summary')].filter((e) => { if (!e.checkVisibility({visibilityProperty: true}) || e.disabled) return false; e.focus(); return document.activeElement !== e || e.tabIndex < 0 }).concat([...document.querySelectorAll('[onclick], [tabindex]:not([tabindex="0"], [tabindex="-1"])')]).map((e) => e.outerHTML.slice(0, 120))`
	cutOff     = `[...document.querySelectorAll('.btn, .chip, h1, h2, label, .input, .select')].filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.closest('.vh') && e.clientHeight > 0 && e.scrollHeight > e.clientHeight + 2 && getComputedStyle(e).overflowY !== 'visible' && getComputedStyle(e).overflowY !== 'auto').map((e) => e.outerHTML.slice(0, 120))`
	unmarked   = `[...document.querySelectorAll('.btn, .input, .select, .chip, [aria-current=page]')].filter((e) => e.checkVisibility({visibilityProperty: true}) && ['Top', 'Left'].every((s) => { const c = getComputedStyle(e); return c['border' + s + 'Style'] === 'none' || c['border' + s + 'Width'] === '0px' })).map((e) => e.outerHTML.slice(0, 120))`
)

// list is what a list of strings evaluates to.
func (b *browser) list(js string) (out []string) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.eval("JSON.stringify("+js+")")), &out); err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *browser) eval(js string) string {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](js))
	if err != nil {
		b.t.Fatalf("%.80s: %v", js, err)
	}
	return v
}

// axe is what axe-core finds on the page.
func (b *browser) axe() (found []string) {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.stringify(r.violations.map((v) => v.id + ': ' + v.help + ' at ' + v.nodes.slice(0, 3).map((n) => n.target + ' ' + n.html.slice(0, 160)).join(' | '))))`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		b.t.Fatal(err)
	}
	return found
}

func (b *browser) picture(file string) {
	b.t.Helper()
	time.Sleep(100 * time.Millisecond) // until what is drawn late is drawn
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
