package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"patchbay/internal/bridge"
	"patchbay/internal/model"
	"patchbay/internal/plane"
)

// ownTool is a tool of the agent itself. It has no effect outside.
type ownTool struct {
	spec plane.ToolSpec
	run  func(ctx context.Context, w *worker, u plane.ToolUse) (string, error)
}

// OwnToolNames are the tools that an agent's toolset may name.
var OwnToolNames = []string{"current_time", "mcp_propose", "memory"}

func ownNames(m map[string]ownTool) []string { return slices.Sorted(maps.Keys(m)) }

func (w *worker) ownTools() map[string]ownTool {
	out := map[string]ownTool{}
	if slices.Contains(w.agent.Tools, "current_time") {
		out["current_time"] = ownTool{plane.ToolSpec{Name: "current_time", Description: "The current date and time in UTC.",
			Schema: json.RawMessage(`{"type":"object","properties":{}}`)}, currentTime}
	}
	if slices.Contains(w.agent.Tools, "memory") {
		out["remember"], out["recall"] = rememberTool, recallTool
	}
	if slices.Contains(w.agent.Tools, "mcp_propose") && w.session != nil {
		out["mcp_propose"] = proposeTool
	}
	if w.session != nil {
		out["result_read"] = ownTool{plane.ToolSpec{Name: "result_read",
			Description: "Reads on in a tool result of this run that was cut. Give the id from the notice and the character to start from.",
			Schema:      json.RawMessage(`{"type":"object","properties":{"result":{"type":"string"},"from":{"type":"integer","minimum":0}},"required":["result","from"]}`)}, readResult}
	}
	return out
}

func currentTime(_ context.Context, w *worker, _ plane.ToolUse) (string, error) {
	return w.e.o.Clock.Now().Format(time.RFC3339), nil
}

func readResult(ctx context.Context, w *worker, u plane.ToolUse) (string, error) {
	var in struct {
		Result plane.ResultID `json:"result"`
		From   int            `json:"from"`
	}
	if err := json.Unmarshal(u.Input, &in); err != nil || in.From < 0 {
		return "", plane.Errorf(plane.InvalidInput, "Give a result id and a character to start from.")
	}
	row, err := w.e.o.Store.WholeResult(ctx, w.run.ID, in.Result)
	if err != nil {
		return "", err
	}
	if len(row.Whole) == 0 {
		return "", plane.Errorf(plane.NotFound, "That result was not kept; only what was shown is left.")
	}
	b, err := w.e.open(w.run.ID, "whole/"+string(row.ID), row.Whole)
	if err != nil {
		return "", err
	}
	whole := []rune(string(b))
	if in.From >= len(whole) {
		return "", plane.Errorf(plane.InvalidInput, "The result has %d characters.", len(whole))
	}
	to := min(len(whole), in.From+w.e.o.Limits.ResultChars)
	notice := fmt.Sprintf("[Characters %d to %d of %d.]", in.From, to, len(whole))
	return bridge.Mark("an earlier call of this run", string(whole[in.From:to]), notice), nil
}

// keep commits what the model said: the message, a planned row for every call,
// and the events, before anything is sent.
func (w *worker) keep(ctx context.Context, a model.Answer) ([]plane.ToolUse, []plane.Call, error) {
	msg := plane.Message{Seq: len(w.msgs) + 1, Role: "assistant", Parts: a.Parts}
	var uses []plane.ToolUse
	var planned []plane.Call
	events := []pending{{kind: plane.EventUsage, data: map[string]any{"input_tokens": a.Input, "output_tokens": a.Output, "stop": a.Stop}}}
	if text := a.Text(); text != "" {
		events = append(events, pending{kind: plane.EventText, data: map[string]any{"text": text}})
	}
	taken := map[string]bool{}
	for i := range msg.Parts {
		if u := msg.Parts[i].ToolUse; u != nil {
			// Some models repeat an id or leave it out; the record needs them apart.
			if u.ID == "" || taken[u.ID] || len(u.ID) > maxUseID || strings.ContainsRune(u.ID, 0) {
				u.ID = fmt.Sprintf("use_%d_%d", w.run.Turns, i+1)
			}
			taken[u.ID] = true
			uses = append(uses, *u)
			events = append(events, pending{kind: plane.EventToolCall, data: map[string]any{"id": u.ID, "name": u.Name, "input": shownInput(u.Input)}})
		}
	}
	err := w.commit(ctx, func(t plane.Tx) error {
		planned = planned[:0]
		if w.session != nil {
			for _, u := range uses {
				c, err := w.session.Plan(t, u)
				if err != nil {
					return err
				}
				if c != nil {
					planned = append(planned, *c)
				}
			}
		}
		return w.e.addMessage(t, w.run.ID, msg.Seq, msg)
	}, events...)
	if err == nil && len(msg.Parts) > 0 {
		w.msgs = append(w.msgs, msg)
	}
	return uses, planned, err
}

// maxUseID is the longest id of a tool use that is kept as it is.
const maxUseID = 200

// shownInput keeps an event small.
func shownInput(in json.RawMessage) json.RawMessage {
	if len(in) > maxEventText {
		return json.RawMessage(fmt.Sprintf(`"[%d bytes]"`, len(in)))
	}
	return in
}

// unanswered are the tool uses of the last message, when it is the model's.
func (w *worker) unanswered() []plane.ToolUse {
	if len(w.msgs) == 0 || w.msgs[len(w.msgs)-1].Role != "assistant" {
		return nil
	}
	var out []plane.ToolUse
	for _, p := range w.msgs[len(w.msgs)-1].Parts {
		if p.ToolUse != nil {
			out = append(out, *p.ToolUse)
		}
	}
	return out
}

// answer gets an outcome for every tool use and commits them as one message.
// waits is true when a call's outcome is unknown or a person is asked first: the run
// then waits.
func (w *worker) answer(ctx context.Context, uses []plane.ToolUse, calls []plane.Call) (waits bool, err error) {
	latest := map[string]*plane.Call{}
	for i := range calls {
		latest[calls[i].ToolUse] = &calls[i] // in the order they were planned: the last replaces
	}
	seen, err := w.seen(ctx)
	if err != nil {
		return false, err
	}
	outcomes := make([]plane.ToolOutcome, len(uses))
	held := make([]*plane.Call, len(uses)) // what waits for a person
	for i := 0; i < len(uses); {
		n := i + 1
		if w.parallel(uses[i]) {
			for n < len(uses) && n-i < maxBeside && w.parallel(uses[n]) {
				n++
			}
		}
		var wg sync.WaitGroup
		errs := make([]error, n-i)
		for j := i; j < n; j++ {
			wg.Go(func() {
				outcomes[j], held[j], errs[j-i] = w.one(ctx, uses[j], latest[uses[j].ID], seen)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return false, err
			}
		}
		if slices.ContainsFunc(held[i:n], func(c *plane.Call) bool { return c != nil }) {
			if cause := context.Cause(ctx); errors.Is(cause, errCancelled) {
				return false, cause // the call stays unknown; the run does not wait for it
			}
			return true, w.wait(ctx, held)
		}
		if err := w.over(ctx); err != nil {
			return false, err
		}
		i = n
	}
	msg := plane.Message{Seq: len(w.msgs) + 1, Role: "user"}
	for i := range outcomes {
		outcomes[i].ID = uses[i].ID
		msg.Parts = append(msg.Parts, plane.Part{Result: &outcomes[i]})
	}
	err = w.commit(ctx, func(t plane.Tx) error { return w.e.addMessage(t, w.run.ID, msg.Seq, msg) })
	if err == nil {
		w.msgs = append(w.msgs, msg)
	}
	return false, err
}

// maxBeside is how many side-effect-free calls run beside each other.
const maxBeside = 8

// parallel says whether a call may run beside others (design D6).
func (w *worker) parallel(u plane.ToolUse) bool {
	if _, own := w.own[plane.CanonicalToolName(u.Name)]; own {
		return true
	}
	if w.session == nil {
		return false
	}
	return w.session.SideEffectFree(u)
}

// one gets the outcome of one tool use: from the record where there is one, from
// a person's word, else by making the call.
func (w *worker) one(ctx context.Context, u plane.ToolUse, call *plane.Call, seen map[plane.CallID]observation) (plane.ToolOutcome, *plane.Call, error) {
	if call != nil {
		if o, ok := seen[call.ID]; ok {
			return w.adopt(call, o), nil, nil
		}
		switch call.State {
		case plane.CallUnknown:
			return plane.ToolOutcome{}, call, nil
		case plane.CallResolvedDone:
			return plane.ToolOutcome{Text: "A person confirmed that this call took effect. What the server answered is not known." + noteText(call)}, nil, nil
		case plane.CallResolvedNotDone:
			return plane.ToolOutcome{Text: "A person confirmed that this call did not take effect." + noteText(call), IsError: true}, nil, nil
		case plane.CallSucceeded, plane.CallFailed:
			return plane.ToolOutcome{Text: "The call has ended; what it returned was not kept.", IsError: call.State == plane.CallFailed}, nil, nil
		}
		call.Fence = w.run.Fence
		return w.remote(ctx, u, call)
	}
	if t, ok := w.own[plane.CanonicalToolName(u.Name)]; ok {
		return w.local(ctx, u, t)
	}
	if w.session != nil && w.session.Searching(u.Name) {
		return w.local(ctx, u, ownTool{run: searchTools})
	}
	o := plane.ToolOutcome{Text: "There is no tool of that name.", IsError: true}
	return o, nil, w.commit(ctx, nil, resultEvent(u, o, nil))
}

func noteText(c *plane.Call) string {
	if c.Note == "" {
		return ""
	}
	return " Their note: " + c.Note
}

// searchTools looks for tools of the connected servers.
func searchTools(ctx context.Context, w *worker, u plane.ToolUse) (string, error) {
	out, err := w.session.Search(ctx, u.Input)
	switch {
	case err != nil:
		return "", err
	case out.IsError:
		return "", plane.Errorf(plane.InvalidInput, "%s", out.Text)
	}
	return out.Text, nil
}

func (w *worker) local(ctx context.Context, u plane.ToolUse, t ownTool) (plane.ToolOutcome, *plane.Call, error) {
	text, err := t.run(ctx, w, u)
	o := plane.ToolOutcome{Text: text}
	if err != nil {
		o = plane.ToolOutcome{Text: plane.Public(err).Message, IsError: true}
	}
	return o, nil, w.commit(ctx, nil, resultEvent(u, o, nil))
}

// remote makes a call through the bridge. The observation and the events join
// the commit that settles it.
func (w *worker) remote(ctx context.Context, u plane.ToolUse, call *plane.Call) (plane.ToolOutcome, *plane.Call, error) {
	began := w.e.o.Clock.Now()
	var o plane.ToolOutcome
	var evs []plane.Event
	locked := false
	callCtx, done := w.toTheEnd(ctx)
	defer done()
	out, err := w.session.Call(callCtx, bridge.In{Alias: u.Name, Arguments: u.Input, Planned: call, Late: w.late(u, call),
		Observe: func(t plane.Tx, out *bridge.Out) error {
			o = plane.ToolOutcome{Text: out.Text, IsError: out.IsError}
			if call.State == plane.CallUnknown {
				evs = nil
				return nil // the run's wait says it
			}
			if err := w.sourced(t, call); err != nil {
				return err
			}
			id := plane.NewResultID(t.Now())
			whole := w.whole(&o, id, out)
			body := w.e.seal(w.run.ID, "result/"+string(id), []byte(o.Text))
			if err := w.e.o.Store.SaveResult(t, id, w.run.ID, call.ID, o.IsError, body, whole); err != nil {
				return err
			}
			span := spanName(call)
			var err error
			evs, err = w.append(t, pending{kind: plane.EventSpanStart, span: span, data: map[string]any{"call": call.ID}, at: plane.Micros(began)},
				pending{kind: plane.EventSpanEnd, span: span, data: spanData(call, out, began, w.e.o.Clock.Now())}, resultEvent(u, o, call))
			return err
		}, Before: func() { w.mu.Lock(); locked = true }})
	if locked {
		w.mu.Unlock()
	}
	if err != nil {
		return o, nil, err
	}
	w.e.hub.publish(evs)
	if call.State == plane.CallUnknown || out.Waiting != nil {
		return o, call, nil
	}
	if out.Warning != "" {
		if err := w.commit(ctx, nil, pending{kind: plane.EventRunNote, data: map[string]any{"kind": "taint", "server": call.Server, "reason": out.Warning}}); err != nil {
			return o, nil, err
		}
	}
	if out.Call == nil {
		o = plane.ToolOutcome{Text: out.Text, IsError: true}
		return o, nil, w.commit(ctx, nil, resultEvent(u, o, nil))
	}
	return o, nil, nil
}

// whole keeps the uncut text of a result and says in the outcome how to read on.
func (w *worker) whole(o *plane.ToolOutcome, id plane.ResultID, out *bridge.Out) []byte {
	if out.Whole == "" {
		return nil
	}
	if len(out.Whole) > w.e.o.Limits.ResultKept || w.kept+len(out.Whole) > w.e.o.Limits.ResultKeptRun {
		o.Text += "\n[The rest was not kept: it is over result_kept.]"
		return nil
	}
	w.kept += len(out.Whole)
	o.Text += fmt.Sprintf("\n[Read on with result_read, result %q, from %d.]", id, out.Shown)
	return w.e.seal(w.run.ID, "whole/"+string(id), []byte(out.Whole))
}

func spanName(c *plane.Call) string { return "mcp." + c.Server + "." + c.Tool }

func spanData(c *plane.Call, out *bridge.Out, began, now time.Time) map[string]any {
	d := map[string]any{"call": c.ID, "ok": !out.IsError, "bytes": out.Bytes, "ms": now.Sub(began).Milliseconds(), "attempts": c.Attempts, "class": c.Class}
	if out.Fault != "" {
		d["error"] = out.Fault
	}
	return d
}

// maxEventText bounds the text of a result in an event; the transcript has all
// that the model saw.
const maxEventText = 8 << 10

func resultEvent(u plane.ToolUse, o plane.ToolOutcome, c *plane.Call) pending {
	d := map[string]any{"id": u.ID, "name": u.Name, "ok": !o.IsError, "output": clipText(o.Text, maxEventText)}
	if c != nil {
		d["call"], d["state"] = c.ID, c.State
	}
	return pending{kind: plane.EventToolResult, data: d}
}

func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

func textData(s string) json.RawMessage {
	b, err := json.Marshal(map[string]string{"text": s})
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return b
}
