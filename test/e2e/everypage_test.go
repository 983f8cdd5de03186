//go:build long

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		{"settings", "/settings"}, {"tokens", "/settings/tokens"}, {"keys", "/settings/keys"}, {"search", "/search?q=book"},
	}
}

// Every page in both themes, wide and narrow: axe finds nothing, the policy that it comes
// with is not violated, nothing is wider than the screen. SCREENSHOTS names a directory
// for pictures.
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
				if v := b.eval("JSON.stringify(window.violations)"); v != "[]" {
					t.Errorf("%s: the policy is violated: %s", where, v)
				}
				if over := b.eval("String(document.documentElement.scrollWidth - document.documentElement.clientWidth)"); over != "0" {
					t.Errorf("%s: %s px are beyond the screen", where, over)
				}
				b.eval(string(axe) + "; ''")
				for _, f := range b.axe() {
					t.Errorf("%s: %s", where, f)
				}
				if dir := os.Getenv("SCREENSHOTS"); dir != "" && width == 1280 {
					b.picture(filepath.Join(dir, name+"-"+theme+".png"))
				}
			}
		}
	}
	for _, p := range s.places() {
		look(p[0], p[1])
	}
	out := s.must("mcp", "add", "notes", s.newServer.Endpoint(), "--auth", "bearer")
	look("connect", strings.TrimPrefix(link(t, out), s.base))
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
