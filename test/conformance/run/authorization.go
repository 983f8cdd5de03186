package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"patchbay/bench/figures"
	"patchbay/test/peers"
)

// The suite against our authorization server: its metadata, and a sign-in in which this
// runner is the person.

var authorizationScenarios = []string{"authorization-server-metadata-endpoint", "authorization-code-grant"}

// person is a browser that the server's owner signed in.
type person struct{ http.Client }

func newPerson(patchbay, dir string) (*person, error) {
	out, err := exec.Command(patchbay, "--data", filepath.Join(dir, "data"), "signin").Output()
	if err != nil {
		return nil, fmt.Errorf("signin: %w", err)
	}
	link := regexp.MustCompile(`http://\S+`).FindString(string(out))
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	p := &person{http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	_, err = p.press(link, nil)
	return p, err
}

// press sends a page's form as the page would.
func (p *person) press(at string, form url.Values) (string, error) {
	req, err := http.NewRequest(http.MethodPost, at, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	return p.read(p.Do(req))
}

func (p *person) read(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 400 {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), err
}

var (
	hidden  = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)"`)
	goesOn  = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]+)"`)
	address = regexp.MustCompile(`^http://\S+/oauth/authorize\?\S+`)
)

// letsIn opens the address that a client sends a person to, presses the button and goes
// where the browser is sent.
func (p *person) letsIn(at string) error {
	page, err := p.read(p.Get(at))
	if err != nil {
		return err
	}
	form := url.Values{"do": {"allow"}}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	if page, err = p.press(at, form); err != nil {
		return err
	}
	m := goesOn.FindStringSubmatch(page)
	if m == nil {
		return fmt.Errorf("the browser is sent nowhere: %s", page)
	}
	_, err = p.read(p.Get(html.UnescapeString(m[1])))
	return err
}

// runAuthorization starts a Patchbay that knows the suite's client, and runs the scenarios.
func runAuthorization(patchbay string, sheet *figures.Sheet) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	g := &gateway{dir: dir}
	defer g.stop()
	at, err := peers.FreeAddr()
	if err != nil {
		return err
	}
	back, err := peers.FreeAddr()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(back)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "patchbay.yaml")
	text := fmt.Sprintf("listen: %s\ndata: %s/data\nclients: {known: {conformance: {name: Conformance, redirect_uris: [\"http://%s/callback\"]}}}\n", at, dir, back)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	if err := g.start(at, patchbay, "serve", "-c", file); err != nil {
		return err
	}
	who, err := newPerson(patchbay, dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, peers.Node(), filepath.Join(peers.Dir(), "node_modules", "conformance-next", "dist", "index.js"), "authorization", "--url", "http://"+at,
		"--client-id", "conformance", "--resource", "http://"+at+"/mcp/agents/general", "-p", port, "-o", filepath.Join(dir, "out"))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if a := address.FindString(lines.Text()); a != "" {
			if err := who.letsIn(a); err != nil {
				fmt.Fprintln(os.Stderr, err) // the scenario fails by itself
			}
		}
	}
	cmd.Wait() // a scenario that fails shows in the summary
	score("authorization 0.2.0-alpha.12", said.String(), authorizationScenarios, sheet)
	return lines.Err()
}

// score holds a summary to the scenarios that must be there.
func score(name, summary string, want []string, sheet *figures.Sheet) {
	got := map[string][]string{}
	for _, m := range line.FindAllStringSubmatch(summary, -1) {
		got[m[1]] = m[2:]
	}
	for _, s := range want {
		m, ok := got[s]
		delete(got, s)
		if !ok {
			sheet.Passed(name+" "+s, "did not run", "0 failed", false)
			continue
		}
		sheet.Passed(name+" "+s, fmt.Sprintf("%s passed, %s failed", m[0], m[1]), "0 failed", m[0] != "0" && m[1] == "0" && (m[2] == "" || m[2] == "0"))
	}
	for s := range got {
		sheet.Passed(name+" "+s, "not known here", "in the list", false)
	}
}
