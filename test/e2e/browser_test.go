//go:build long

package e2e

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// browser is a Chromium of its own, with no script to fall back on.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// newBrowser starts Chromium; flags are added to what a test machine needs.
func newBrowser(t *testing.T, flags ...string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: make deps")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true))
	for _, f := range flags {
		name, value, _ := strings.Cut(f, "=")
		if value == "" {
			opts = append(opts, chromedp.Flag(name, true))
			continue
		}
		opts = append(opts, chromedp.Flag(name, value))
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() { cancel(); stop() })
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, ctx: ctx}
}

func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v\nat %s\n%s", what, err, b.location(), b.text())
	}
}

func (b *browser) location() string { return b.ask(chromedp.Location()) }

func (b *browser) title() string { return b.ask(chromedp.Title()) }

// text is what the page says.
func (b *browser) text() string {
	return b.ask(chromedp.Evaluate[string]("document.body ? document.body.innerText : ''"))
}

// ask has an empty answer when the page cannot say, which it cannot while a dialog is open.
func (b *browser) ask(a chromedp.Action[string]) string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	s, _ := chromedp.Run(ctx, a)
	return s
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.do("open "+url, chromedp.Navigate(url))
}

// press presses the button of that name, what only a screen reader hears included.
func (b *browser) press(name string) {
	b.t.Helper()
	b.loaded() // what moves while it loads is missed
	b.do("press "+name, chromedp.Click(chromedp.Search(`//main//button[normalize-space()="`+name+`"]`)))
}

// until waits for a title.
func (b *browser) until(title string) {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if strings.Contains(b.title(), title) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the title is %q, not %q, at %s\n%s", b.title(), title, b.location(), b.text())
		}
	}
}

// says waits for words on the page.
func (b *browser) says(words string) {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(b.text(), words); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("the page does not say %q, at %s\n%s", words, b.location(), b.text())
		}
	}
}

// signIn fills oidc-provider's own login and consent pages, as far as they show.
func (b *browser) signIn(host, user string) {
	b.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("the sign-in does not end, at %s\n%s", b.location(), b.text())
		}
		at := b.location()
		if !strings.Contains(at, host) {
			if strings.HasPrefix(b.title(), "On to") {
				continue // the page that sends the browser on
			}
			return
		}
		has, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.querySelector('input[name=login]') ? 'login' : document.querySelector('button[type=submit]') ? 'consent' : ''"))
		if err != nil {
			continue
		}
		switch has {
		case "login":
			b.do("log in", chromedp.SendKeys(chromedp.CSS("input[name=login]"), user), chromedp.SendKeys(chromedp.CSS("input[name=password]"), "x"), chromedp.Click(chromedp.CSS("button[type=submit]")))
		case "consent":
			b.do("consent", chromedp.Click(chromedp.CSS("button[type=submit]")))
		}
	}
}

var linkRE = regexp.MustCompile(`https?://\S+/mcp/connect/\S+`)

// link takes the one-time link out of a command's text.
func link(t *testing.T, out string) string {
	t.Helper()
	l := linkRE.FindAllString(out, -1)
	if len(l) != 1 {
		t.Fatalf("%d links in %q", len(l), out)
	}
	return l[0]
}
