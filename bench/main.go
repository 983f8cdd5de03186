// Command bench measures the bridge, the ledger and the server against their
// bars, in one interleaved run with the bare relay as the yardstick. Compare
// ratios and CPU per call, never absolute rates: machines are shared and noisy.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"patchbay/bench/figures"
	"patchbay/bench/rawload"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

func main() {
	bin := flag.String("bin", "bench/out", "folder of the built programs")
	app := flag.String("patchbay", "bin/patchbay", "the built patchbay")
	rounds := flag.Int("rounds", 5, "interleaved rounds")
	millis := flag.Int("ms", 1500, "length of one side of one round, in ms")
	only := flag.String("only", "", "gateway, egress, pages or tokens measures that alone; egress-load loads the credential gateway for -ms, to be profiled; a tool's name (echo, note, big) loads it with that for -ms, to be profiled")
	sessions := flag.Int("sessions", 64, "of such a load")
	token := flag.String("token", "client", "what the endpoint is called with: client, the token of a client that a person signed in, or agent, an agent's")
	flag.Parse()
	b := &bench{bin: *bin, app: *app, rounds: *rounds, millis: *millis, only: *only, token: *token, sessions: *sessions, sheet: figures.New(os.Stdout)}
	code := 1
	err := b.run()
	if err != nil {
		log.Print(err)
	} else {
		code = b.sheet.End()
	}
	b.stop()
	os.Exit(code)
}

type bench struct {
	bin, app, only string
	token          string
	rounds, millis int
	sessions       int
	sheet          *figures.Sheet
	procs          []*exec.Cmd
	up, ref        string
	upPID, refPID  int
}

func (b *bench) run() error {
	var err error
	if b.up, b.upPID, err = b.serve("upstream"); err != nil {
		return err
	}
	if b.ref, b.refPID, err = b.serve("refproxy", "-upstream", "http://"+b.up+"/mcp"); err != nil {
		return err
	}
	if b.only == "egress" || b.only == "egress-load" {
		return b.egress()
	}
	if b.only == "pages" {
		return b.pages()
	}
	if b.only == "tokens" {
		return b.tokens()
	}
	if b.only != "" && b.only != "gateway" {
		return b.load()
	}
	if err := b.gateway(); err != nil {
		return err
	}
	if b.only == "gateway" {
		return nil
	}
	if err := b.bridge(); err != nil {
		return err
	}
	if err := b.ledger(); err != nil {
		return err
	}
	if err := b.egress(); err != nil {
		return err
	}
	if err := b.pages(); err != nil {
		return err
	}
	if err := b.tokens(); err != nil {
		return err
	}
	return b.server()
}

// serve starts a program of ours on a free port and waits until it listens.
func (b *bench) serve(name string, args ...string) (addr string, pid int, err error) {
	if addr, err = peers.FreeAddr(); err != nil {
		return "", 0, err
	}
	cmd := exec.Command(filepath.Join(b.bin, name), append([]string{"-addr", addr}, args...)...)
	cmd.Stderr = os.Stderr
	if err := b.start(cmd); err != nil {
		return "", 0, err
	}
	return addr, cmd.Process.Pid, waitFor(addr, 10*time.Second)
}

func (b *bench) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	b.procs = append(b.procs, cmd)
	return nil
}

func (b *bench) stop() {
	for _, c := range slices.Backward(b.procs) {
		c.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { c.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			c.Process.Kill()
		}
	}
}

func waitFor(addr string, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("%s does not listen", addr)
}

// child is a bridgeload.
type child struct {
	in  io.Writer
	out *bufio.Scanner
}

type order struct {
	Kind     string `json:"kind"`
	Sessions int    `json:"sessions"`
	Millis   int    `json:"ms"`
}

type result struct {
	Calls   int64   `json:"calls"`
	CPU     float64 `json:"cpu_us_per_call"`
	PerS    float64 `json:"per_s"`
	Commits int64   `json:"commits"`
	Writes  int64   `json:"writes"`
	Error   string  `json:"error"`
}

func (b *bench) child(database string) (*child, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(b.bin, "bridgeload"), dir, "http://"+b.up+"/mcp", database)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.start(cmd); err != nil {
		return nil, err
	}
	c := &child{in, bufio.NewScanner(out)}
	if !c.out.Scan() || c.out.Text() != "ready" {
		return nil, fmt.Errorf("bridgeload did not start")
	}
	return c, nil
}

func (c *child) do(kind string, sessions, millis int) (result, error) {
	var r result
	line, err := json.Marshal(order{kind, sessions, millis})
	if err != nil {
		return r, err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return r, err
	}
	if !c.out.Scan() {
		return r, fmt.Errorf("bridgeload ended")
	}
	if err := json.Unmarshal(c.out.Bytes(), &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s at %d sessions: %s", kind, sessions, r.Error)
	}
	return r, nil
}

// relay drives the yardstick and returns its CPU per call, in µs.
func (b *bench) relay(tool, args string, sessions, millis int) (float64, error) {
	m, err := b.drive(side{pid: b.refPID, to: rawload.Target{Host: b.ref, Path: "/mcp"}}, sessions, millis, calling(tool, args))
	return m.cpu, err
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// bridge compares CPU per call with the relay's, round by round.
func (b *bench) bridge() error {
	c, err := b.child("sqlite")
	if err != nil {
		return err
	}
	for _, n := range []int{1, 16, 64} {
		var ratios, ours, theirs []float64
		for range b.rounds {
			ref, err := b.relay("echo", `{"text":"hello, world"}`, n, b.millis)
			if err != nil {
				return err
			}
			r, err := c.do("query", n, b.millis)
			if err != nil {
				return err
			}
			ratios, ours, theirs = append(ratios, r.CPU/ref), append(ours, r.CPU), append(theirs, ref)
		}
		b.sheet.Told(fmt.Sprintf("relay CPU per small call, %d sessions", n), median(theirs), "us")
		b.sheet.Told(fmt.Sprintf("bridge CPU per small query, %d sessions", n), median(ours), "us")
		name := fmt.Sprintf("bridge CPU / relay CPU, %d sessions", n)
		if n == 1 {
			b.sheet.Told(name, median(ratios), "x")
		} else {
			b.sheet.AtMost(name, median(ratios), 1.25, "x")
		}
	}
	var big, refBig []float64
	for range b.rounds {
		ref, err := b.relay("big", `{"kib":256}`, 4, b.millis)
		if err != nil {
			return err
		}
		r, err := c.do("big", 4, b.millis)
		if err != nil {
			return err
		}
		big, refBig = append(big, r.CPU/1000), append(refBig, ref/1000)
	}
	b.sheet.Told("relay CPU per 256 KiB result", median(refBig), "ms")
	b.sheet.AtMost("bridge CPU per 256 KiB result", median(big), 1, "ms")
	return nil
}

// ledger measures durable effects on both databases.
func (b *bench) ledger() error {
	pg, stop, err := storetest.StartPostgres()
	if err != nil {
		return err
	}
	defer stop()
	for name, url := range map[string]string{"sqlite": "sqlite", "postgres": pg} {
		c, err := b.child(url)
		if err != nil {
			return err
		}
		for _, n := range []int{1, 16, 64} {
			r, err := c.do("ledger", n, b.millis)
			if err != nil {
				return err
			}
			at := fmt.Sprintf("%s, %d sessions", name, n)
			b.sheet.Told("effects per second, "+at, r.PerS, "/s")
			perEffect, rows := float64(r.Commits)/float64(r.Calls), 2*float64(r.Writes)/float64(r.Commits)
			if name == "sqlite" && n == 64 {
				b.sheet.AtMost("commits per effect, "+at, perEffect, 0.15, "")
				b.sheet.AtLeast("rows per commit, "+at, rows, 16, "")
			} else {
				b.sheet.Told("commits per effect, "+at, perEffect, "")
			}
		}
	}
	return nil
}

// server measures how long a start takes and what it costs to wait.
func (b *bench) server() error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	addr, err := peers.FreeAddr()
	if err != nil {
		return err
	}
	var cfg strings.Builder
	fmt.Fprintf(&cfg, "listen: %s\ndata: %s/data\norg:\n  connections:\n", addr, dir)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("up%d", i))
		fmt.Fprintf(&cfg, "    up%d: {url: \"http://%s/mcp\"}\n", i, b.up)
	}
	fmt.Fprintf(&cfg, "egress: {allow: [{to: \"http://%s\", for: [%s]}]}\n", b.up, strings.Join(names, ", "))
	file := filepath.Join(dir, "patchbay.yaml")
	if err := os.WriteFile(file, []byte(cfg.String()), 0o600); err != nil {
		return err
	}
	start := func() (*exec.Cmd, time.Duration, error) {
		cmd := exec.Command(b.app, "serve", "-c", file)
		began := time.Now()
		if err := b.start(cmd); err != nil {
			return nil, 0, err
		}
		err := waitFor(addr, 30*time.Second)
		return cmd, time.Since(began), err
	}
	end := func(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() }
	cmd, cold, err := start()
	if err != nil {
		return err
	}
	for _, n := range names { // fill the catalogs
		if out, err := exec.Command(b.app, "--data", filepath.Join(dir, "data"), "mcp", "test", n).CombinedOutput(); err != nil {
			return fmt.Errorf("mcp test %s: %w: %s", n, err, out)
		}
	}
	end(cmd)
	var warm []float64
	for i := range 5 {
		c, d, err := start()
		if err != nil {
			return err
		}
		warm = append(warm, float64(d.Microseconds())/1000)
		if cmd = c; i < 4 {
			end(c)
		}
	}
	b.sheet.Told("start to ready, cold", float64(cold.Microseconds())/1000, "ms")
	b.sheet.AtMost("start to ready, warm, 10 connections, median of 5", median(warm), 200, "ms")
	time.Sleep(3 * time.Second)
	before, err := cpuOf(cmd.Process.Pid)
	if err != nil {
		return err
	}
	const idle = 10
	time.Sleep(idle * time.Second)
	after, err := cpuOf(cmd.Process.Pid)
	if err != nil {
		return err
	}
	anon, err := rssAnon(cmd.Process.Pid)
	if err != nil {
		return err
	}
	b.sheet.AtMost("idle RssAnon", anon, 24, "MB")
	b.sheet.AtMost("idle CPU", float64((after-before).Milliseconds())/idle, 20, "ms/s")
	end(cmd)
	return nil
}

// cpuOf is the CPU time of a process, by its own count of nanoseconds.
func cpuOf(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	var sum time.Duration
	for _, t := range tasks {
		raw, err := os.ReadFile(t)
		if err != nil {
			continue // a thread that ended in between
		}
		if f := strings.Fields(string(raw)); len(f) > 0 {
			ns, err := strconv.ParseInt(f[0], 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}

func rssAnon(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "RssAnon:" {
			kb, err := strconv.ParseFloat(f[1], 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("no RssAnon of %d", pid)
}
