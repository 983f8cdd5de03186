package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"patchbay/internal/bridge"
	"patchbay/internal/model"
	"patchbay/internal/plane"
	"patchbay/internal/telemetry"
)

// worker is one process's hold on one run.
type worker struct {
	e        *Engine
	run      plane.Run
	agent    plane.Agent
	provider model.Provider
	session  *bridge.Session // nil when MCP is off
	own      map[string]ownTool
	began    time.Time

	mu   sync.Mutex // one commit of the run at a time
	seq  int64      // of the last event
	kept int        // bytes of whole results kept
	msgs []plane.Message
}

func newWorker(e *Engine, r plane.Run) *worker {
	return &worker{e: e, run: r, began: e.o.Clock.Now()}
}

func (w *worker) spent() time.Duration { return w.run.Spent + w.e.o.Clock.Now().Sub(w.began) }

// work takes the run from where it stands to its end, or to where it waits.
func (w *worker) work(ctx context.Context, sealedPrompt []byte) error {
	prompt, err := w.e.open(w.run.ID, "prompt", sealedPrompt)
	if err != nil {
		return err
	}
	w.run.Prompt = string(prompt)
	if w.run.Cancel {
		err := w.commit(ctx, w.numberOn)
		return cmp.Or(err, error(errCancelled))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	beat := w.hold(ctx, cancel)
	defer beat()
	calls, err := w.prepare(ctx)
	if err != nil {
		return err
	}
	if w.session != nil {
		defer w.session.Close()
	}
	ctx, span := w.e.o.Tracer.Start(ctx, telemetry.InvokeAgent+" "+w.agent.Slug)
	span.SetAttributes(attribute.String(telemetry.Operation, telemetry.InvokeAgent), attribute.String(telemetry.AgentID, w.agent.Slug),
		attribute.String(telemetry.AgentName, w.agent.Slug), attribute.String(telemetry.Conversation, string(w.run.ID)))
	defer span.End()
	if len(w.agent.Rounds) > 0 {
		return w.pipeline(ctx)
	}
	return w.turns(ctx, span, calls)
}

// prepare loads what is stored and opens the session.
func (w *worker) prepare(ctx context.Context) ([]plane.Call, error) {
	var ok bool
	if w.agent, ok = w.e.o.Agents.Agent(w.run.Agent); !ok {
		return nil, plane.Errorf(plane.NotFound, "The agent %s is no longer in the configuration.", w.run.Agent)
	}
	var err error
	if w.provider, err = w.e.o.Agents.Model(w.agent.Model); err != nil {
		return nil, err
	}
	if w.msgs, err = w.e.transcript(ctx, w.run.ID); err != nil {
		return nil, err
	}
	if w.kept, err = w.e.o.Store.KeptBytes(ctx, w.run.ID); err != nil {
		return nil, err
	}
	calls, err := w.e.o.Ledger.Recover(ctx, w.run.ID)
	if err != nil {
		return nil, err
	}
	if err := w.announce(ctx); err != nil {
		return nil, err
	}
	if isThread(w.run.Conversation) {
		labels, err := w.e.o.Store.ThreadLabels(ctx, w.run.Conversation)
		if err != nil {
			return nil, err
		}
		w.run.Labels |= labels
	}
	if w.agent.MCP && len(w.agent.Rounds) == 0 {
		used := 0
		for _, c := range calls {
			if c.Attempts > 0 {
				used++
			}
		}
		w.session, err = w.e.o.Bridge.Open(ctx, bridge.Opening{Agent: w.agent.Slug, Principal: w.run.Caller, Run: w.run.ID,
			Fence: w.run.Fence, CallsUsed: used, Labels: w.run.Labels, Results: plane.Marked, Dialect: bridge.Dialect(w.provider.Schemas())})
		if err != nil {
			return nil, err
		}
		if err := w.noteServers(ctx); err != nil {
			return nil, err
		}
		if err := w.attribute(ctx); err != nil {
			return nil, err
		}
		if w.run.Parent != "" && len(w.session.Tools()) == 0 && len(calls) == 0 {
			w.session.Close()
			w.session = nil // a round that gets no tools carries no invitation to connect some
		}
	}
	w.own = w.ownTools()
	return calls, w.collisions()
}

// announce writes the run's first event, or that it goes on.
func (w *worker) announce(ctx context.Context) error {
	resumed := len(w.msgs) > 1 || w.run.Fence > 1
	return w.commit(ctx, w.numberOn, func() pending {
		if resumed {
			return pending{kind: plane.EventRunResumed, data: map[string]any{"fence": w.run.Fence}}
		}
		return pending{kind: plane.EventRunStarted, data: map[string]any{"agent": w.agent.Slug, "model": w.provider.Describe(), "prompt": w.run.Prompt}}
	}())
}

// numberOn goes on with the numbers of the run's stored events.
func (w *worker) numberOn(t plane.Tx) error {
	next, err := w.e.o.Store.NextSeq(t, w.run.ID)
	w.seq = next - 1
	return err
}

// noteServers says on the run's record why a server is missing.
func (w *worker) noteServers(ctx context.Context) error {
	var notes []pending
	for _, s := range w.session.Servers() {
		if s.Why != "" {
			notes = append(notes, pending{kind: plane.EventRunNote, data: map[string]any{"kind": "mcp_unavailable", "server": s.Slug, "reason": clipText(strings.TrimPrefix(s.Why, s.Slug+": "), 300)}})
		}
	}
	if len(notes) == 0 {
		return nil
	}
	return w.commit(ctx, nil, notes...)
}

// collisions fails the run where a server's tool would hide one of its own.
func (w *worker) collisions() error {
	if w.session == nil {
		return nil
	}
	for _, t := range w.session.Tools() {
		if _, taken := w.own[t.Alias]; taken {
			return plane.Errorf(plane.Internal, "The tool name %s is taken twice.", t.Alias)
		}
	}
	return nil
}

// hold keeps the lease, learns of a cancellation, and lets go when the run was
// taken over. The returned function stops it.
func (w *worker) hold(ctx context.Context, cancel context.CancelCauseFunc) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(w.e.o.Limits.RunLease / 3)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			asked := false
			err := w.e.o.Store.Write(ctx, func(t plane.Tx) (err error) {
				asked, err = w.e.o.Store.HoldRun(t, w.run.ID, w.run.Fence, t.Now().Add(w.e.o.Limits.RunLease), w.spent())
				return err
			})
			switch {
			case plane.KindOf(err) == plane.Conflict:
				cancel(errLost)
			case asked:
				cancel(errCancelled)
			case w.spent() > w.e.o.Limits.RunTime:
				cancel(w.overtime())
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func (w *worker) overtime() *plane.Error {
	return plane.Errorf(plane.Limited, "The run took longer than %s (run_time).", w.e.o.Limits.RunTime).Over("run_time")
}

// turns is the loop: what is left of the last turn, then turns until the model
// asks for no more tools.
func (w *worker) turns(ctx context.Context, span trace.Span, calls []plane.Call) error {
	if uses := w.unanswered(); len(uses) > 0 {
		waits, err := w.answer(ctx, uses, calls)
		if err != nil || waits {
			return err
		}
	}
	for {
		if err := w.over(ctx); err != nil {
			return err
		}
		if w.run.Turns >= w.e.o.Limits.TurnsPerRun {
			return plane.Errorf(plane.Limited, "The run has had its %d turns (turns_per_run).", w.e.o.Limits.TurnsPerRun).Over("turns_per_run")
		}
		if w.spent() > w.e.o.Limits.RunTime {
			return w.overtime()
		}
		if w.session != nil {
			if err := w.session.Renew(ctx); err != nil {
				return err
			}
			if err := w.collisions(); err != nil {
				return err
			}
		}
		a, err := w.turn(ctx)
		if err != nil {
			return err
		}
		span.SetAttributes(attribute.Int(telemetry.Turns, w.run.Turns))
		uses, planned, err := w.keep(ctx, a)
		if err != nil {
			return err
		}
		if len(uses) == 0 {
			return w.finish(ctx, a.Text())
		}
		waits, err := w.answer(ctx, uses, planned)
		if err != nil || waits {
			return err
		}
	}
}

// over says why nothing new may be begun.
func (w *worker) over(ctx context.Context) error {
	if w.e.drained.Err() != nil {
		return errStopping
	}
	return context.Cause(ctx)
}

const modelTries = 3

// turn asks the model. A failure that may pass is tried again: nothing outside
// has happened yet.
func (w *worker) turn(ctx context.Context) (model.Answer, error) {
	w.run.Turns++
	err := w.commit(ctx, func(t plane.Tx) error {
		return w.e.o.Store.TurnRun(t, w.run.ID, w.run.Fence, w.run.Turns)
	}, pending{kind: plane.EventTurnStarted, data: map[string]any{"turn": w.run.Turns}})
	if err != nil {
		return model.Answer{}, err
	}
	req := model.Request{System: w.system(), Messages: w.msgs, Tools: w.specs()}
	for try := 1; ; try++ {
		a, err := w.ask(ctx, req)
		var me *model.Error
		if err == nil {
			return a, nil
		}
		if cause := w.over(ctx); cause != nil {
			return a, cause
		}
		if !errors.As(err, &me) {
			return a, plane.Errorf(plane.Unavailable, "The model's provider failed.").Because(err)
		}
		if !me.Transient || try == modelTries {
			w.e.o.Log.Warn("model turn failed", "run", w.run.ID, "err", me.Cause)
			return a, plane.Errorf(plane.Unavailable, "%s", me.Sentence).Because(err)
		}
		pause := max(me.RetryAfter, time.Duration(try)*500*time.Millisecond+rand.N(250*time.Millisecond))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
}

func (w *worker) ask(ctx context.Context, req model.Request) (model.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.e.o.Limits.ModelTimeout)
	defer cancel()
	defer context.AfterFunc(w.e.drained, cancel)() // an answer may be asked for again
	return w.provider.Turn(ctx, req, func(text string) {
		w.e.hub.delta(plane.Event{At: w.e.o.Clock.Now(), Run: w.run.ID, Turn: w.run.Turns, Kind: plane.EventTextDelta, Data: textData(text)})
	})
}

// system is the agent's prompt and, with MCP on, one configuration line.
func (w *worker) system() string {
	if w.session == nil {
		return w.agent.Prompt
	}
	if w.agent.Prompt == "" {
		return w.session.Line()
	}
	return w.agent.Prompt + "\n\n" + w.session.Line()
}

// specs are the tools that the model is shown: the agent's own, then those of
// servers.
func (w *worker) specs() []plane.ToolSpec {
	var out []plane.ToolSpec
	for _, name := range ownNames(w.own) {
		out = append(out, w.own[name].spec)
	}
	if w.session != nil {
		for _, t := range w.session.Tools() {
			out = append(out, t.Spec)
		}
	}
	return out
}

// finish ends the run well.
func (w *worker) finish(ctx context.Context, answer string) error {
	w.run.State, w.run.Reason, w.run.Answer, w.run.Spent = plane.RunSucceeded, "", answer, w.spent()
	return w.commit(ctx, func(t plane.Tx) error {
		if err := w.answered(t); err != nil {
			return err
		}
		if err := w.e.o.Store.LeaveRun(t, &w.run, w.e.seal(w.run.ID, "answer", []byte(answer))); err != nil {
			return err
		}
		return w.e.roundEnded(t, &w.run)
	}, pending{kind: plane.EventRunEnded, data: map[string]any{"state": w.run.State, "turns": w.run.Turns, "seconds": w.run.Spent.Seconds()}})
}

// waitsFor makes a run that would have failed wait when one of its effects is
// unknown: its outcome must not be lost with the run.
func (w *worker) waitsFor(ctx context.Context, calls []plane.Call) bool {
	var unknown []*plane.Call
	for i := range calls {
		if calls[i].State == plane.CallUnknown {
			unknown = append(unknown, &calls[i])
		}
	}
	if len(unknown) == 0 {
		return false
	}
	if err := w.wait(ctx, unknown); err != nil && plane.KindOf(err) != plane.Conflict {
		w.e.o.Log.Error("a run could not be left to a person", "run", w.run.ID, "err", err)
	}
	return true
}

// letGo gives the lease back, so that whoever is there goes on at once.
func (w *worker) letGo(ctx context.Context) {
	err := w.e.o.Store.Write(context.WithoutCancel(ctx), func(t plane.Tx) error {
		_, err := w.e.o.Store.HoldRun(t, w.run.ID, w.run.Fence, t.Now().Add(-time.Second), w.spent())
		return err
	})
	if err != nil && plane.KindOf(err) != plane.Conflict {
		w.e.o.Log.Warn("a lease could not be given back; it ends by itself", "run", w.run.ID, "err", err)
	}
}

// endBadly ends the run after an error. Where it was taken over meanwhile, the
// fence refuses the write and its new holder goes on.
func (w *worker) endBadly(ctx context.Context, err error) {
	cause := context.Cause(ctx)
	if errors.Is(err, errStopping) || errors.Is(cause, errStopping) {
		w.letGo(ctx)
		return
	}
	calls, rerr := w.e.o.Ledger.Recover(context.WithoutCancel(ctx), w.run.ID)
	if rerr != nil {
		// The store does not answer. The run stays claimed: when its lease ends,
		// whoever takes it finds its calls as they are.
		w.e.o.Log.Error("a run that failed could not be looked through", "run", w.run.ID, "err", rerr)
		return
	}
	w.run.State, w.run.Reason, w.run.Spent = plane.RunFailed, plane.Public(err).Message, w.spent()
	if errors.Is(err, errCancelled) || errors.Is(cause, errCancelled) {
		w.run.State, w.run.Reason = plane.RunCancelled, errCancelled.Message
	}
	if w.run.State == plane.RunFailed && w.waitsFor(ctx, calls) {
		return
	}
	w.e.o.Log.Warn("run ended", "run", w.run.ID, "state", w.run.State, "reason", w.run.Reason, "err", err, "cause", errors.Unwrap(err))
	werr := w.commit(context.WithoutCancel(ctx), func(t plane.Tx) error {
		if err := w.e.o.Store.LeaveRun(t, &w.run, nil); err != nil {
			return err
		}
		return w.e.roundEnded(t, &w.run)
	},
		pending{kind: plane.EventRunEnded, data: map[string]any{"state": w.run.State, "reason": w.run.Reason, "turns": w.run.Turns, "seconds": w.run.Spent.Seconds()}})
	if werr != nil && plane.KindOf(werr) != plane.Conflict {
		w.e.o.Log.Error("the end of a run could not be written", "run", w.run.ID, "err", fmt.Sprint(werr))
	}
}
