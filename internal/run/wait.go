package run

import (
	"context"
	"errors"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
)

// What a run waits for.
const (
	waitReconcile = "reconcile" // somebody must say what became of a call
	waitApproval  = "approval"  // somebody must let a call pass
	waitRound     = "round"     // of a pipeline: a child run
)

// wait leaves the run to a person.
func (w *worker) wait(ctx context.Context, held []*plane.Call) error {
	var events []pending
	w.run.WaitingFor, w.run.Reason = waitApproval, "A call waits for a person's approval."
	for _, c := range held {
		switch {
		case c == nil:
		case c.State == plane.CallUnknown:
			w.run.WaitingFor, w.run.Reason = waitReconcile, "It is not known whether a call took effect."
			events = append(events, pending{kind: plane.EventCallUnknown, span: spanName(c), data: map[string]any{"call": c.ID, "tool": c.Alias, "reason": c.Reason,
				"next": "patchbay runs resolve " + string(c.ID) + " done|not-done|send-again"}})
		default:
			events = append(events, pending{kind: plane.EventApprovalRequested, span: spanName(c), data: map[string]any{"approval": c.Approval, "call": c.ID, "tool": c.Alias, "server": c.Server,
				"next": "patchbay approvals decide " + string(c.Approval) + " approve|deny|always-allow"}})
		}
	}
	return w.leave(ctx, events...)
}

// leave lets go of the run until what it waits for has come, which it may have by now.
func (w *worker) leave(ctx context.Context, events ...pending) error {
	if w.run.WaitingFor != waitRound { // nobody has to do anything about that
		events = append(events, pending{kind: plane.EventRunWaiting, data: map[string]any{"for": w.run.WaitingFor}})
	}
	w.run.State, w.run.Spent = plane.RunWaiting, w.spent()
	return w.commit(context.WithoutCancel(ctx), func(t plane.Tx) error {
		if err := w.e.o.Store.LeaveRun(t, &w.run, nil); err != nil {
			return err
		}
		still, err := w.e.o.Store.WaitsStill(t, w.run.ID)
		if err != nil || still {
			return err
		}
		_, err = w.e.o.Store.RequeueRun(t, w.run.ID)
		return err
	}, events...)
}

// observation is a stored result with the source that it was reserved for.
type observation struct {
	plane.ToolOutcome
	source *plane.Evidence
}

// seen are the results of the run's calls, by call.
func (w *worker) seen(ctx context.Context) (map[plane.CallID]observation, error) {
	results, err := w.e.observations(ctx, w.run.ID)
	if err != nil || len(results) == 0 {
		return nil, err
	}
	sources, err := w.e.o.Store.EvidenceOfRun(ctx, w.run.ID)
	if err != nil {
		return nil, err
	}
	out := make(map[plane.CallID]observation, len(results))
	for id, o := range results {
		out[id] = observation{ToolOutcome: o}
	}
	for i := range sources {
		if o, ok := out[sources[i].Call]; ok {
			o.source = &sources[i]
			out[sources[i].Call] = o
		}
	}
	return out, nil
}

// adopt reuses what a call returned before the run was resumed, without asking the
// server again. A query's must be exactly its own: the source that was reserved for it,
// observed, of an account that nobody signed in anew since. What an effect returned is
// never lost.
func (w *worker) adopt(call *plane.Call, o observation) plane.ToolOutcome {
	if call.Class != plane.Query || call.State != plane.CallSucceeded {
		return o.ToolOutcome
	}
	why := ""
	switch {
	case o.source == nil || !o.source.Stamps(call):
		why = "its source is not on record"
	case o.source.ObservedAt.IsZero() || o.source.Digest != call.Result:
		why = "its source was not observed"
	case w.session == nil || !w.session.Current(call.Connection, call.Version):
		why = "the connection was changed since"
	default:
		return o.ToolOutcome
	}
	return plane.ToolOutcome{Text: "What this call returned is not used again: " + why + ". Make the call anew.", IsError: true}
}

// sourced adds what a call read to what the run's answer comes from.
func (w *worker) sourced(t plane.Tx, call *plane.Call) error {
	if call.Evidence != "" && call.State == plane.CallSucceeded {
		if err := w.e.o.Store.SetLineage(t, string(w.run.ID), []string{string(call.Evidence)}); err != nil {
			return err
		}
	}
	return w.taint(t, w.session.Labels()) // a failure has words too
}

// taint keeps the labels of what the run has read.
func (w *worker) taint(t plane.Tx, labels plane.Labels) error {
	if labels&^w.run.Labels == 0 {
		return nil
	}
	w.run.Labels |= labels
	thread := ""
	if isThread(w.run.Conversation) {
		thread = w.run.Conversation
	}
	return w.e.o.Store.Taint(t, w.run.ID, thread, labels)
}

// isThread reports a conversation that goes on over several runs; a person's own is
// no thread.
func isThread(conversation string) bool {
	return conversation != "" && !strings.HasPrefix(conversation, "person:")
}

// answered records what the run's answer comes from, beside its tools: what people
// said in the conversation.
func (w *worker) answered(t plane.Tx) error {
	if w.run.Conversation != "" {
		if err := w.e.o.Store.SetLineage(t, string(w.run.ID), []string{plane.MessageSource(w.run.Conversation)}); err != nil {
			return err
		}
	}
	return w.e.o.Store.CompactLineage(t, string(w.run.ID))
}

// late keeps the answer of a call that was given up for unknown, after the run was
// taken over, and lets the run go on with it.
func (w *worker) late(u plane.ToolUse, call *plane.Call) func(plane.Tx, *bridge.Out) error {
	return func(t plane.Tx, out *bridge.Out) error {
		o := plane.ToolOutcome{Text: out.Text, IsError: out.IsError}
		id := plane.NewResultID(t.Now())
		whole := w.whole(&o, id, out)
		body := w.e.seal(w.run.ID, "result/"+string(id), []byte(o.Text))
		if err := w.e.o.Store.SaveResult(t, id, w.run.ID, call.ID, o.IsError, body, whole); err != nil {
			return err
		}
		if call.Evidence != "" && !o.IsError {
			if err := w.e.o.Store.SetLineage(t, string(w.run.ID), []string{string(call.Evidence)}); err != nil {
				return err
			}
		}
		if err := w.taint(t, w.session.Labels()); err != nil {
			return err
		}
		waited, err := w.e.o.Store.RequeueRun(t, w.run.ID)
		if err != nil || !waited {
			return err
		}
		return w.e.appendFree(t, w.run.ID, plane.EventCallResolved, map[string]any{"call": call.ID, "tool": call.Alias, "outcome": "answered", "by": "patchbay"})
	}
}

// toTheEnd is the context of a call: it ends with the run's, but not because the run was
// taken over. What the server answers then still says what became of the call.
func (w *worker) toTheEnd(ctx context.Context) (context.Context, func()) {
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, errLost) {
			cancel(cause)
		}
	})
	end := context.AfterFunc(w.e.life, func() { cancel(context.Cause(w.e.life)) })
	return call, func() { stop(); end(); cancel(nil) }
}
