package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/bench/rawload"
	"patchbay/internal/app"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/netguard"
	"patchbay/test/peers"
)

// How much there is to look at.
const (
	manyConnections = 1000
	manyRuns        = 10000
)

// pages measures the dashboard where there is much: the time to the first byte of each
// page, on SQLite, median of the rounds.
func (b *bench) pages() error {
	p, conn, run, err := b.crowd()
	if p != nil {
		defer os.RemoveAll(p.dir)
	}
	if err != nil {
		return err
	}
	c, err := b.reader(p)
	if err != nil {
		return err
	}
	worst, where := 0.0, ""
	for _, path := range []string{"/", "/?period=30d", "/agents", "/agents/general", "/agents/general/runs", "/connections", "/connections/" + conn, "/connections/" + conn + "/tools/echo", "/connections/add", "/registry",
		"/runs", "/runs/" + run, "/calls", "/approvals", "/proposals", "/why?agent=general&tool=large%2Fecho", "/audit", "/egress", "/settings", "/settings/tokens", "/settings/keys", "/search?q=c0"} {
		var took []float64
		for range 2*b.rounds + 1 {
			ms, err := firstByte(c, "http://"+p.to.Host+path)
			if err != nil {
				return err
			}
			took = append(took, ms)
		}
		if m := median(took); m > worst {
			worst, where = m, path
		}
		if b.only == "pages" {
			b.sheet.Told("pages "+strings.NewReplacer(conn, "ID", run, "ID").Replace(path), median(took), "ms")
		}
	}
	b.sheet.AtMost(fmt.Sprintf("pages first byte with %d connections, 256 tools, %d runs, worst page (%s)", manyConnections, manyRuns, strings.NewReplacer(conn, "ID", run, "ID").Replace(where)), worst, 100, "ms")
	return nil
}

// crowd starts Patchbay and fills it.
func (b *bench) crowd() (p *plugged, conn, run string, err error) {
	few, _, err := b.serve("upstream", "-fillers", "0")
	if err != nil {
		return nil, "", "", err
	}
	large, _, err := b.serve("upstream", "-fillers", "251")
	if err != nil {
		return nil, "", "", err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, "", "", err
	}
	p = &plugged{dir: dir, data: filepath.Join(dir, "data")}
	addr, err := peers.FreeAddr()
	if err != nil {
		return p, "", "", err
	}
	p.side = side{to: rawload.Target{Host: addr}}
	var config, names strings.Builder
	fmt.Fprintf(&config, "listen: %s\ndata: %s\nmodels: {default: {provider: scripted, script: [{calls: [{tool: mcp__large__echo, input: {text: hi}}]}, {say: \"There are three.\"}]}}\nagents: {general: {}, crowd: {}}\norg:\n  connections:\n    large: {url: \"http://%s/mcp\", agents: [general]}\n", addr, p.data, large)
	for i := range manyConnections - 1 {
		fmt.Fprintf(&config, "    c%04d: {url: \"http://%s/mcp\", agents: [crowd]}\n", i, few)
		fmt.Fprintf(&names, ", c%04d", i)
	}
	fmt.Fprintf(&config, "egress: {allow: [{to: \"http://%s\", for: [large]}, {to: \"http://%s\", for: [%s]}]}\n", large, few, strings.TrimPrefix(names.String(), ", "))
	file := filepath.Join(dir, "patchbay.yaml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return p, "", "", err
	}
	p.cmd = exec.Command(b.app, "serve", "-c", file)
	if err := b.start(p.cmd); err != nil {
		return p, "", "", err
	}
	if err := waitFor(addr, 60*time.Second); err != nil {
		return p, "", "", err
	}
	if err := b.cli(p, nil, "mcp", "refresh", "large"); err != nil {
		return p, "", "", err
	}
	c := client.New("http://x", netguard.InfraSocket(filepath.Join(p.data, app.SocketName)))
	if run, err = b.ask(c); err != nil {
		return p, "", "", err
	}
	var show command.MCPShow
	err = c.Command(context.Background(), "mcp.show", command.NameInput{Name: "large"}, &show)
	return p, show.Server.ID, run, err
}

// ask starts the runs, some at once, and waits until they have ended.
func (b *bench) ask(c *client.Client) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var left atomic.Int64
	left.Store(manyRuns)
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 16 {
		wg.Go(func() {
			for left.Add(-1) >= 0 && failed.Load() == nil {
				if err := c.Command(ctx, "runs.start", command.RunsStartInput{Prompt: "How many invoices are there?", Agent: "general"}, &command.RunRow{}); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return "", *err
	}
	for _, state := range []string{"queued", "running"} {
		for l := (command.RunsList{Runs: make([]command.RunRow, 1)}); len(l.Runs) > 0; time.Sleep(100 * time.Millisecond) {
			if err := c.Command(ctx, "runs.list", command.RunsListInput{State: state, Limit: 1}, &l); err != nil {
				return "", err
			}
		}
	}
	var l command.RunsList
	err = c.Command(ctx, "runs.list", command.RunsListInput{State: "succeeded", Limit: 1}, &l)
	if err == nil && len(l.Runs) == 0 {
		err = errors.New("no run succeeded")
	}
	if err != nil {
		return "", err
	}
	return l.Runs[0].ID, nil
}

// reader is a browser that is signed in.
func (b *bench) reader(p *plugged) (*http.Client, error) {
	out, err := exec.Command(b.app, "--data", p.data, "signin").Output()
	if err != nil {
		return nil, err
	}
	words := strings.Fields(string(out))
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	c := &http.Client{Jar: jar, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequest("POST", words[len(words)-1], strings.NewReader(url.Values{}.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	return c, resp.Body.Close()
}

// firstByte is how long a page lets a browser wait, in ms.
func firstByte(c *http.Client, page string) (float64, error) {
	var first time.Time
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotFirstResponseByte: func() { first = time.Now() }})
	req, err := http.NewRequestWithContext(ctx, "GET", page, nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", page, resp.Status)
	}
	return float64(first.Sub(began).Microseconds()) / 1000, nil
}
