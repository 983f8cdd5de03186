package main

import (
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/bench/rawload"
)

// crowded loads 64 sessions while other programs want every CPU twice.
func (b *bench) crowded(p *plugged) error {
	var busy []*exec.Cmd
	defer func() {
		for _, c := range busy {
			c.Process.Kill()
			c.Wait()
		}
	}()
	for range 4 {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			return err
		}
		busy = append(busy, c)
	}
	for _, tool := range []string{"echo", "note"} {
		m, err := b.drive(p.side, 64, 2*b.millis, calling(tool, `{"text":"hello"}`))
		if err != nil {
			b.sheet.Passed("calls with the CPUs wanted twice, "+tool, err.Error(), "no error", false)
			continue
		}
		b.sheet.Passed("calls with the CPUs wanted twice, "+tool, fmt.Sprintf("%.0f /s", m.perS), "no error", true)
	}
	return nil
}

// churn opens sessions, uses each once and leaves it, 20,000 times.
func (b *bench) churn(p *plugged) error {
	const n, at = 20_000, 8
	rss := func() (float64, error) {
		time.Sleep(500 * time.Millisecond)
		return rssAnon(p.pid)
	}
	round := func(n int) error {
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		for range at {
			wg.Go(func() {
				s, err := rawload.Open(p.to)
				if err != nil {
					failed.Store(&err)
					return
				}
				defer s.Close()
				for range n / at {
					err := s.Begin()
					if err == nil {
						err = s.Call("echo", `{"text":"x"}`)
					}
					if err != nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		wg.Wait()
		if err := failed.Load(); err != nil {
			return *err
		}
		return nil
	}
	if err := round(n / 10); err != nil { // the bound on sessions is reached
		return err
	}
	first, err := rss()
	if err != nil {
		return err
	}
	if err := round(n); err != nil {
		return err
	}
	last, err := rss()
	if err != nil {
		return err
	}
	b.sheet.Told("gateway RssAnon after 2,000 sessions", first, "MB")
	b.sheet.AtMost("growth over 20,000 more", last-first, 4, "MB")
	return nil
}
