package main

import (
	"bufio"
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
	Team   string   `help:"The team it is for, whose connections it may use."`
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
	if err := e.client.Command(e.ctx, "runs.start", command.RunsStartInput{Prompt: prompt, Agent: c.Agent, Team: c.Team}, &row); err != nil {
		return err
	}
	w := &watcher{e: e, progress: newProgress(e.err)}
	defer w.progress.clear()
	for {
		if err := e.client.Events(e.ctx, row.ID, w.seq, w.event); err != nil {
			w.progress.clear()
			w.newline()
			fmt.Fprintf(e.err, "No longer watching. The run goes on by itself: patchbay runs show %[1]s, or stop it: patchbay runs cancel %[1]s\n", row.ID)
			if e.ctx.Err() != nil {
				return exitCode(exitUsage)
			}
			return err
		}
		if decided, err := w.decide(); err != nil || !decided {
			if err != nil {
				return err
			}
			err = w.end(row.ID)
			if e.ctx.Err() != nil {
				return exitCode(exitUsage)
			}
			return err
		}
	}
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
	seq     int64    // of the last event
	waiting []string // calls whose outcome is unknown
	asked   []string // approvals that wait
	working []use    // tool uses that have no result yet, in order
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
	w.seq = max(w.seq, ev.Seq)
	var d struct{ ID, Text, Name, Call, Server, Reason, Approval, Kind string }
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
		switch d.Kind {
		case "taint":
			fmt.Fprintf(w.e.err, "%s: %s\n", d.Server, bridge.Visible(d.Reason))
			return nil
		case "mcp_attached":
			return nil
		}
		fmt.Fprintf(w.e.err, "%s is not available: %s\n", d.Server, bridge.Visible(d.Reason))
	case plane.EventApprovalRequested:
		w.asked = append(w.asked, d.Approval)
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
	case len(w.asked) > 0:
		fmt.Fprintf(w.e.err, "patchbay: A call waits for a person's approval, and the run with it.\nNext: patchbay approvals show %s\n", w.asked[0])
		return exitCode(exitFailed)
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

// decide asks whoever sits at the terminal about the calls that wait for an approval.
// It reports whether all of them were decided, so that the run goes on.
func (w *watcher) decide() (bool, error) {
	in, ok := w.e.in.(*os.File)
	if len(w.asked) == 0 || w.e.json || !ok || !isTerminal(in) {
		return false, nil
	}
	w.progress.clear()
	w.newline()
	said := make(chan string, 1)
	lines := bufio.NewReader(in)
	for len(w.asked) > 0 {
		var a command.ApprovalRow
		if err := w.e.client.Command(w.e.ctx, "approvals.show", command.ApprovalInput{ID: w.asked[0]}, &a); err != nil {
			return false, err
		}
		if a.State == string(plane.ApprovalPending) {
			fmt.Fprintf(w.e.err, "\n%s wants to call %s at %s: %s.\n  %s\nAllow it? y once, a always, n no, anything else later: ", a.Agent, bridge.Visible(a.Tool), a.Server, a.Why, bridge.Visible(a.Arguments))
			go func() {
				line, _ := lines.ReadString('\n') // an end of the input is no answer
				said <- line
			}()
			line := ""
			select {
			case line = <-said:
			case <-w.e.ctx.Done():
				fmt.Fprintln(w.e.err)
				return false, nil
			}
			as := map[string]plane.Decision{"y": plane.Approve, "yes": plane.Approve, "a": plane.AlwaysAllow, "always": plane.AlwaysAllow, "n": plane.Deny, "no": plane.Deny}[strings.ToLower(strings.TrimSpace(line))]
			if as == "" {
				return false, nil
			}
			if err := w.e.client.Command(w.e.ctx, "approvals.decide", command.DecideInput{ID: a.ID, Decision: string(as)}, &command.Decided{}); err != nil {
				return false, err
			}
		}
		w.asked = w.asked[1:]
	}
	return true, nil
}
