package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"patchbay/bench/rawload"
	"patchbay/internal/plane"
	"patchbay/internal/store"
	"patchbay/test/peers"
)

// side is one of what is compared: an endpoint, and the process that serves it.
type side struct {
	pid int
	to  rawload.Target
}

// measured is what one side did in one round.
type measured struct {
	perS, cpu float64 // calls per second, µs of CPU per call
	p50       float64 // µs
}

type step func(s *rawload.Session) error

func calling(tool, args string) step {
	return func(s *rawload.Session) error { return s.Call(tool, args) }
}

// drive runs step after step in so many sessions, for a while.
func (b *bench) drive(at side, sessions, millis int, do step) (measured, error) {
	var open []*rawload.Session
	defer func() {
		for _, s := range open {
			s.Close()
		}
	}()
	for range sessions {
		s, err := rawload.Open(at.to)
		if err != nil {
			return measured{}, err
		}
		open = append(open, s)
		if err := do(s); err != nil {
			return measured{}, err
		}
	}
	before, err := cpuOf(at.pid)
	if err != nil {
		return measured{}, err
	}
	began := time.Now()
	end := began.Add(time.Duration(millis) * time.Millisecond)
	var calls atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	times := make([][]float64, sessions)
	for i, s := range open {
		wg.Go(func() {
			for {
				at := time.Now()
				if !at.Before(end) {
					return
				}
				if err := do(s); err != nil {
					failed.Store(&err)
					return
				}
				times[i] = append(times[i], float64(time.Since(at).Nanoseconds())/1000)
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	wall := time.Since(began)
	if err := failed.Load(); err != nil {
		return measured{}, *err
	}
	time.Sleep(60 * time.Millisecond) // what is written behind belongs to the cost
	after, err := cpuOf(at.pid)
	if err != nil {
		return measured{}, err
	}
	n := float64(max(calls.Load(), 1))
	return measured{perS: n / wall.Seconds(), cpu: float64((after - before).Microseconds()) / n, p50: median(slices.Concat(times...))}, nil
}

// plugged is a Patchbay with an agent whose endpoint is measured.
type plugged struct {
	side
	cmd  *exec.Cmd
	dir  string
	data string
}

// plug starts Patchbay with everything on: a client that a person signed in, policy, approvals, claims,
// ledger, evidence, taint, the sealed audit.
// echo, big and sleep are reviewed as queries; note is an effect.
func (b *bench) plug() (*plugged, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	p := &plugged{dir: dir, data: filepath.Join(dir, "data")}
	addr, err := peers.FreeAddr()
	if err != nil {
		return p, err
	}
	config := fmt.Sprintf("listen: %s\ndata: %s\nagents: {general: {names: bare, search: \"off\", taint: warn, approvals: {mcp__up__drop_*: block, \"mcp__up__*\": always}}}\norg: {connections: {up: {url: \"http://%s/mcp\", auth: bearer, token_env: BENCH_TOKEN}}}\negress: {allow: [{to: \"http://%s\", for: [up]}]}\n",
		addr, p.data, b.up, b.up)
	file := filepath.Join(dir, "patchbay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return p, err
	}
	p.cmd = exec.Command(b.app, "serve", "-c", file)
	p.cmd.Env = append(os.Environ(), "BENCH_TOKEN=pTq7Zk2mXw9RvLs4YhNd8JcFgB6aUe3K")
	if err := b.start(p.cmd); err != nil {
		return p, err
	}
	if err := waitFor(addr, 20*time.Second); err != nil {
		return p, err
	}
	token, err := b.tokenAt(p, "http://"+addr, "/mcp/agents/general")
	if err != nil {
		return p, err
	}
	if err := b.cli(p, nil, "mcp", "refresh", "up"); err != nil {
		return p, err
	}
	var tools struct {
		Tools []struct{ Name, Fingerprint string }
	}
	if err := b.cli(p, &tools, "mcp", "tools", "up"); err != nil {
		return p, err
	}
	for _, t := range tools.Tools {
		if slices.Contains([]string{"echo", "big", "page", "sleep"}, t.Name) {
			if err := b.cli(p, nil, "mcp", "classify", "up", t.Name, "query", "--fingerprint", t.Fingerprint); err != nil {
				return p, err
			}
		}
	}
	p.side = side{p.cmd.Process.Pid, rawload.Target{Host: addr, Path: "/mcp/agents/general", Token: token}}
	return p, nil
}

// tokenAt is what an endpoint is called with.
func (b *bench) tokenAt(p *plugged, base, path string) (string, error) {
	if b.token == "agent" {
		var made struct{ Token string }
		err := b.cli(p, &made, "tokens", "create", "bench", "--agent", "general")
		return made.Token, err
	}
	who, err := peers.NewPerson(b.app, p.data)
	if err != nil {
		return "", err
	}
	return who.ClientToken(base, path)
}

func (b *bench) cli(p *plugged, into any, args ...string) error {
	out, err := exec.Command(b.app, append(append([]string{"--data", p.data}, args...), "--json")...).Output()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("%v: %w: %.300s", args, err, out)
	}
	return nil
}

// seen is how many requests of each method reached the far end.
func (b *bench) seen() (map[string]int, error) {
	resp, err := http.Get("http://" + b.up + "/seen")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var out map[string]int
	return out, json.Unmarshal(raw, &out)
}

// gateway compares an agent's endpoint with direct calls and the bare relay.
func (b *bench) gateway() error {
	p, err := b.plug()
	if p != nil {
		defer os.RemoveAll(p.dir)
	}
	if err != nil {
		return err
	}
	idle, err := rssAnon(p.pid)
	if err != nil {
		return err
	}
	b.sheet.AtMost("gateway RssAnon, idle", idle, 24, "MB")
	direct := side{b.upPID, rawload.Target{Host: b.up, Path: "/mcp"}}
	ref := side{b.refPID, rawload.Target{Host: b.ref, Path: "/mcp"}}
	began := time.Now()
	before, err := b.seen()
	if err != nil {
		return err
	}
	if err := b.small(p, direct, ref); err != nil {
		return err
	}
	if err := b.quiet(before, began); err != nil {
		return err
	}
	if err := b.large(p, direct, ref); err != nil {
		return err
	}
	if err := b.lists(p, direct); err != nil {
		return err
	}
	if err := b.opening(p, direct); err != nil {
		return err
	}
	if err := b.crowded(p); err != nil {
		return err
	}
	if err := b.churn(p); err != nil {
		return err
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.cmd.Wait()
}

// load drives the gateway with one tool, for a profiler.
func (b *bench) load() error {
	p, err := b.plug()
	if p != nil {
		defer os.RemoveAll(p.dir)
	}
	if err != nil {
		return err
	}
	m, err := b.drive(p.side, b.sessions, b.millis, calling(b.only, `{"text":"hello, world","kib":256,"ms":50}`))
	if err != nil {
		return err
	}
	b.sheet.Told("calls per second", m.perS, "/s")
	b.sheet.Told("CPU per call", m.cpu, "us")
	b.sheet.Told("p50", m.p50, "us")
	r, err := b.drive(side{b.refPID, rawload.Target{Host: b.ref, Path: "/mcp"}}, b.sessions, min(b.millis, 3000), calling(b.only, `{"text":"hello, world","kib":256,"ms":50}`))
	if err != nil {
		return err
	}
	b.sheet.Told("relay CPU per call", r.cpu, "us")
	b.sheet.Told("relay calls per second", r.perS, "/s")
	mb, err := rssAnon(p.pid)
	b.sheet.Told("RssAnon", mb, "MB")
	return err
}

// small are calls whose cost is all ours: a reviewed query and an effect.
func (b *bench) small(p *plugged, direct, ref side) error {
	const args = `{"text":"hello, world"}`
	for _, n := range []int{1, 16, 64} {
		var d, r, q, e []measured
		for range b.rounds {
			for _, x := range []struct {
				into *[]measured
				at   side
				do   step
			}{{&d, direct, calling("echo", args)}, {&r, ref, calling("echo", args)}, {&q, p.side, calling("echo", args)}, {&e, p.side, calling("note", args)}} {
				m, err := b.drive(x.at, n, b.millis, x.do)
				if err != nil {
					return err
				}
				*x.into = append(*x.into, m)
			}
		}
		at := fmt.Sprintf(", %d sessions", n)
		cpu := func(m measured) float64 { return m.cpu }
		rate := func(m measured) float64 { return m.perS }
		p50 := func(m measured) float64 { return m.p50 }
		b.sheet.Told("relay CPU per call"+at, median(each(r, cpu)), "us")
		b.sheet.Told("gateway CPU per query"+at, median(each(q, cpu)), "us")
		b.sheet.Told("gateway CPU per effect"+at, median(each(e, cpu)), "us")
		b.sheet.Told("relay / direct calls per second"+at, median(ratios(r, d, rate)), "x")
		b.sheet.Told("gateway query / direct calls per second"+at, median(ratios(q, d, rate)), "x")
		b.sheet.Told("gateway effect / direct calls per second"+at, median(ratios(e, d, rate)), "x")
		if n == 1 {
			b.sheet.AtMost("gateway p50 - relay p50 of a query"+at, median(each(q, p50))-median(each(r, p50)), 60, "us")
			commit, err := commitTime(filepath.Dir(p.data))
			if err != nil {
				return err
			}
			added := median(each(e, p50)) - median(each(r, p50))
			b.sheet.Told("a commit", commit, "us")
			b.sheet.Told("gateway p50 - relay p50 of an effect"+at, added, "us")
			b.sheet.AtMost("the same, without the commit in its path"+at, added-commit, 500, "us")
			continue
		}
		b.sheet.AtMost("gateway query CPU / relay CPU"+at, median(ratios(q, r, cpu)), 1.25, "x")
		b.sheet.AtLeast("gateway query / relay calls per second"+at, median(ratios(q, r, rate)), 0.88, "x")
		b.sheet.AtMost("gateway effect CPU / relay CPU"+at, median(ratios(e, r, cpu)), 1.7, "x")
		b.sheet.AtLeast("gateway effect / relay calls per second"+at, median(ratios(e, r, rate)), 0.75, "x")
		if n == 64 {
			mb, err := rssAnon(p.pid)
			if err != nil {
				return err
			}
			b.sheet.AtMost("gateway RssAnon, 64 sessions", mb, 45, "MB")
		}
	}
	return nil
}

func each(list []measured, of func(measured) float64) (out []float64) {
	for _, m := range list {
		out = append(out, of(m))
	}
	return out
}

// ratios compares round by round.
func ratios(a, b []measured, of func(measured) float64) (out []float64) {
	for i := range a {
		out = append(out, of(a[i])/of(b[i]))
	}
	return out
}

// quiet checks that calls brought the far end nothing beside themselves.
func (b *bench) quiet(before map[string]int, began time.Time) error {
	after, err := b.seen()
	if err != nil {
		return err
	}
	// Direct calls and the relay's open sessions of their own; what lists is ours.
	lists := after["tools/list"] - before["tools/list"]
	periods := time.Since(began).Minutes() + 1
	b.sheet.AtMost("lists of the far end per fingerprint_max_age", float64(lists)/periods, 1, "")
	other := 0
	for method, n := range after {
		switch method {
		case "initialize", "notifications/initialized", "tools/list", "GET", "DELETE":
		default:
			other += n - before[method]
		}
	}
	b.sheet.AtMost("other requests to the far end", float64(other), 0, "")
	return nil
}

// large are results whose bytes cost, and calls that wait; the relay stands beside
// both, for what the machine itself takes.
func (b *bench) large(p *plugged, direct, ref side) error {
	rate := func(m measured) float64 { return m.perS }
	three := func(sessions int, do step) (d, r, g []measured, err error) {
		for range b.rounds {
			for _, x := range []struct {
				into *[]measured
				at   side
			}{{&d, direct}, {&r, ref}, {&g, p.side}} {
				m, err := b.drive(x.at, sessions, b.millis, do)
				if err != nil {
					return nil, nil, nil, err
				}
				*x.into = append(*x.into, m)
			}
		}
		return d, r, g, nil
	}
	_, _, g, err := three(4, calling("big", `{"kib":256}`))
	if err != nil {
		return err
	}
	b.sheet.AtMost("gateway CPU per 256 KiB result", median(each(g, func(m measured) float64 { return m.cpu }))/1000, 1, "ms")
	d, r, g, err := three(4, calling("page", `{"kib":256}`))
	if err != nil {
		return err
	}
	b.sheet.Told("relay / direct calls per second, 256 KiB", median(ratios(r, d, rate)), "x")
	b.sheet.AtLeast("gateway / direct calls per second, 256 KiB", median(ratios(g, d, rate)), 0.85, "x")
	if d, r, g, err = three(64, calling("sleep", `{"ms":50}`)); err != nil {
		return err
	}
	b.sheet.Told("relay / direct calls per second, 50 ms at 64 sessions", median(ratios(r, d, rate)), "x")
	b.sheet.AtLeast("gateway / direct calls per second, 50 ms at 64 sessions", median(ratios(g, d, rate)), 0.97, "x")
	return nil
}

func (b *bench) lists(p *plugged, direct side) error {
	list := func(s *rawload.Session) error { _, err := s.List(); return err }
	var d, g []measured
	for range b.rounds {
		for into, at := range map[*[]measured]side{&d: direct, &g: p.side} {
			m, err := b.drive(at, 4, b.millis, list)
			if err != nil {
				return err
			}
			*into = append(*into, m)
		}
	}
	b.sheet.AtLeast("gateway / direct tools/list of 103 tools", median(ratios(g, d, func(m measured) float64 { return m.perS })), 1.5, "x")
	// A cold view: the policy was renewed, so the list is written anew.
	var cold []float64
	s, err := rawload.Open(p.to)
	if err != nil {
		return err
	}
	defer s.Close()
	for range 5 {
		if err := b.cli(p, nil, "config", "reload"); err != nil {
			return err
		}
		began := time.Now()
		if _, err := s.List(); err != nil {
			return err
		}
		cold = append(cold, float64(time.Since(began).Microseconds())/1000)
	}
	b.sheet.Told("tools/list of a cold view", median(cold), "ms")
	return nil
}

// opening compares the handshake, on a connection that is there.
func (b *bench) opening(p *plugged, direct side) error {
	begin := func(s *rawload.Session) error { return s.Begin() }
	var d, g []measured
	for range b.rounds {
		for into, at := range map[*[]measured]side{&d: direct, &g: p.side} {
			m, err := b.drive(at, 1, b.millis/3, begin)
			if err != nil {
				return err
			}
			*into = append(*into, m)
		}
	}
	p50 := func(m measured) float64 { return m.p50 }
	b.sheet.AtMost("connect: gateway p50 - direct p50", (median(each(g, p50))-median(each(d, p50)))/1000, 0.5, "ms")
	return nil
}

// commitTime is the median of a small durable write by itself, in µs.
func commitTime(dir string) (float64, error) {
	st, err := store.Open(context.Background(), store.Options{Path: filepath.Join(dir, "commit.db")})
	if err != nil {
		return 0, err
	}
	defer st.Close()
	var times []float64
	for i := range 300 {
		at := time.Now()
		if err := st.Write(context.Background(), func(t plane.Tx) error { return st.SetMeta(t, "n", fmt.Sprint(i)) }); err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(at).Nanoseconds())/1000)
	}
	return median(times), nil
}
