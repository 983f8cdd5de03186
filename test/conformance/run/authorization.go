package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"patchbay/bench/figures"
	"patchbay/test/peers"
)

// The suite against our authorization server: its metadata, and a sign-in in which this
// runner is the person.

var authorizationScenarios = []string{"authorization-server-metadata-endpoint", "authorization-code-grant"}

var address = regexp.MustCompile(`^http://\S+/oauth/authorize\?\S+`)

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
	who, err := peers.NewPerson(patchbay, filepath.Join(dir, "data"))
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
			if err := letsIn(who, a); err != nil {
				fmt.Fprintln(os.Stderr, err) // the scenario fails by itself
			}
		}
	}
	cmd.Wait() // a scenario that fails shows in the summary
	score("authorization 0.2.0-alpha.12", said.String(), authorizationScenarios, sheet)
	return lines.Err()
}

// letsIn has the person let the suite's client in, and goes back to it.
func letsIn(who *peers.Person, at string) error {
	to, err := who.LetsIn(at)
	if err != nil {
		return err
	}
	resp, err := http.Get(to)
	if err != nil {
		return err
	}
	return resp.Body.Close()
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
