package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

type askCmd struct {
	Prompt []string `arg:"" optional:"" help:"The question; - or nothing reads it from standard input."`
	Agent  string   `help:"The agent that answers." default:"general" predictor:"agent"`
}

const maxPrompt = 1 << 20

func (c *askCmd) Run(e *env) error {
	prompt := strings.Join(c.Prompt, " ")
	if prompt == "" || prompt == "-" {
		b, err := io.ReadAll(io.LimitReader(e.in, maxPrompt))
		if err != nil {
			return plane.Errorf(plane.InvalidInput, "The question cannot be read from standard input.").Because(err)
		}
		prompt = string(b)
	}
	prompt = strings.TrimSpace(prompt)
	var row command.RunRow
	if err := e.client.Command(e.ctx, "runs.start", command.RunsStartInput{Prompt: prompt, Agent: c.Agent}, &row); err != nil {
		return err
	}
	w := &watcher{e: e, progress: newProgress(e.err)}
	defer w.progress.clear()
	if err := e.client.Events(e.ctx, row.ID, w.event); err != nil {
		w.progress.clear()
		w.newline()
		fmt.Fprintf(e.err, "No longer watching. The run goes on by itself: patchbay runs show %[1]s, or stop it: patchbay runs cancel %[1]s\n", row.ID)
		if e.ctx.Err() != nil {
			return exitCode(exitUsage)
		}
		return err
	}
	return w.end(row.ID)
}

// watcher writes a run's answer as it comes.
type watcher struct {
	e        *env
	progress *progress
	streamed bool // this turn's text was written as deltas
	wrote    bool // something stands on the line
	ended    struct {
		State  string `json:"state"`
		Reason string `json:"reason"`
	}
	waiting []string
	working []use // tool uses that have no result yet, in order
}

type use struct{ id, name string }

func (w *watcher) event(ev plane.Event) error {
	if w.e.json {
		b, err := json.Marshal(ev)
		if err != nil {
			return err
		}
		fmt.Fprintf(w.e.out, "%s\n", b)
	}
	var d struct{ ID, Text, Name, Call, Server, Reason string }
	json.Unmarshal(ev.Data, &d) // an unknown shape has nothing to show
	switch ev.Kind {
	case plane.EventTurnStarted:
		w.progress.say("thinking")
	case plane.EventTextDelta:
		w.text(d.Text)
		w.streamed = true
	case plane.EventText:
		if !w.streamed {
			w.text(d.Text)
		}
		w.streamed = false
		w.newline()
	case plane.EventToolCall:
		w.working = append(w.working, use{d.ID, d.Name})
		w.progress.say(w.working[0].name)
	case plane.EventToolResult:
		w.working = slices.DeleteFunc(w.working, func(u use) bool { return u.id == d.ID })
		w.progress.clear()
		if len(w.working) > 0 {
			w.progress.say(w.working[0].name)
		}
	case plane.EventRunNote:
		w.progress.clear()
		fmt.Fprintf(w.e.err, "%s is not available: %s\n", d.Server, bridge.Visible(d.Reason))
	case plane.EventCallUnknown:
		w.waiting = append(w.waiting, d.Call)
	case plane.EventRunEnded:
		json.Unmarshal(ev.Data, &w.ended)
	}
	return nil
}

func (w *watcher) text(s string) {
	if w.e.json || s == "" {
		return
	}
	w.progress.clear()
	if w.e.style.Terminal {
		s = bridge.Visible(s)
	}
	fmt.Fprint(w.e.out, s)
	w.wrote = !strings.HasSuffix(s, "\n")
}

func (w *watcher) newline() {
	if w.wrote {
		fmt.Fprintln(w.e.out)
		w.wrote = false
	}
}

func (w *watcher) end(id string) error {
	w.progress.clear()
	w.newline()
	switch {
	case len(w.waiting) > 0:
		fmt.Fprintf(w.e.err, "patchbay: It is not known whether a call took effect, so the run waits for you.\nNext: patchbay runs show %s\n", id)
		return exitCode(exitFailed)
	case w.ended.State != string(plane.RunSucceeded):
		fmt.Fprintf(w.e.err, "patchbay: The run %s: %s\nNext: patchbay runs show %s\n", w.ended.State, w.ended.Reason, id)
		return exitCode(exitFailed)
	}
	return nil
}

// progress is one quiet line on a terminal, shown only when work takes long.
type progress struct {
	w     io.Writer
	on    bool
	timer *time.Timer
	lines chan string
}

const progressAfter = 2 * time.Second

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok {
		p.on = isTerminal(f)
	}
	return p
}

func (p *progress) say(what string) {
	if !p.on {
		return
	}
	p.clear()
	done := make(chan string, 1)
	p.lines = done
	p.timer = time.AfterFunc(progressAfter, func() {
		fmt.Fprintf(p.w, "\r\x1b[K%s …", bridge.Visible(what))
		done <- what
	})
}

func (p *progress) clear() {
	if p.timer == nil {
		return
	}
	if !p.timer.Stop() {
		<-p.lines
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.timer = nil
}
