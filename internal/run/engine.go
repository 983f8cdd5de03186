// Package run is the runtime of Patchbay's own agents. A run is durable: every
// turn, call and event is committed before the next step, a killed process's
// runs are found and resumed, and a former holder of a run cannot write to it.
// It promises that no effect is sent twice by resuming, that a run with an
// unknown call, or one that needs approval, waits for a person, that what a run
// answers and remembers keeps its sources and labels, and that a model request of
// an agent without MCP carries no trace of it.
package run

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"patchbay/internal/bridge"
	"patchbay/internal/ledger"
	"patchbay/internal/model"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Sessions opens the bridge for a run.
type Sessions interface {
	Open(ctx context.Context, o bridge.Opening) (*bridge.Session, error)
}

// Calls is what a run needs of the ledger beside the bridge.
type Calls interface {
	Recover(ctx context.Context, run plane.RunID) ([]plane.Call, error)
	RecoverSessions(ctx context.Context, before time.Time) error
	Resolve(ctx context.Context, who plane.Principal, id plane.CallID, as ledger.Resolution, note string,
		also func(t plane.Tx, old plane.Call, again *plane.Call) error) (*plane.Call, error)
	Decide(ctx context.Context, who plane.Principal, id plane.ApprovalID, as plane.Decision, note string, also func(plane.Tx, plane.Approval) error) (plane.Approval, error)
	Expire(ctx context.Context, also func(plane.Tx, plane.Approval) error) error
}

// Agents looks agents and their models up, as config has them now.
type Agents interface {
	Agent(slug string) (plane.Agent, bool)
	Model(name string) (model.Provider, error)
	// Attachments are what became of declarations for an agent that works for who.
	Attachments(agent string, who plane.Principal) []plane.Attachment
	// Propose stores a declaration that an agent asks a team to accept.
	Propose(ctx context.Context, who plane.Principal, team, declaration, why string) (string, error)
}

// Options of an Engine.
type Options struct {
	Store  Store
	Bridge Sessions
	Ledger Calls
	Agents Agents
	Ring   *secret.Ring
	Clock  plane.Clock
	Limits plane.Limits
	Tracer trace.Tracer
	Log    *slog.Logger
	Owner  string // names this process in leases
	// Lease says for a while that this process is there; nil where nobody else asks.
	Lease  func(ctx context.Context, until time.Time) error
	Sole   bool // nobody else uses the database: old leases mean nothing
	Search bool // memories rest in a full-text index too, in the clear
}

// Engine starts, holds and resumes runs.
type Engine struct {
	o   Options
	hub *hub

	mu      sync.Mutex
	active  map[plane.RunID]context.CancelCauseFunc
	wake    chan struct{}
	stop    context.CancelCauseFunc
	life    context.Context
	drain   context.CancelFunc // begin nothing new
	drained context.Context
	workers sync.WaitGroup
}

// New makes an engine; Start sets it going.
func New(o Options) *Engine {
	e := &Engine{o: o, hub: newHub(), active: map[plane.RunID]context.CancelCauseFunc{}, wake: make(chan struct{}, 1)}
	e.life, e.stop = context.WithCancelCause(context.Background())
	e.drained, e.drain = context.WithCancel(e.life)
	return e
}

// Causes of the end of a run's context.
var (
	errStopping  = plane.Errorf(plane.Unavailable, "Patchbay is stopping.")
	errCancelled = plane.Errorf(plane.Gone, "The run was cancelled.")
	errLost      = plane.Errorf(plane.Conflict, "The run was taken over.")
)

// Start recovers what a former process left and begins to look for due runs.
func (e *Engine) Start(ctx context.Context) error {
	if e.o.Sole {
		if err := e.o.Store.Write(ctx, e.o.Store.DropLeases); err != nil {
			return err
		}
	}
	if err := e.recoverSessions(ctx, e.o.Sole); err != nil {
		return err
	}
	e.renew()
	e.workers.Go(e.dispatch)
	e.nudge()
	return nil
}

// grace is how long Close lets calls that are under way come to their end, so
// that stopping makes no effect unknown that a moment would have settled.
const grace = 10 * time.Second

// recoverSessions makes unknown what sessions left behind: at the sole user's
// start everything, else what is older than any request can be.
func (e *Engine) recoverSessions(ctx context.Context, all bool) error {
	before := e.o.Clock.Now().Add(time.Microsecond)
	if !all {
		// A call stands still while somebody is asked on the server's behalf.
		before = before.Add(-e.o.Limits.RequestTimeout - e.o.Limits.RunLease - plane.AskedMost)
	}
	return e.o.Ledger.RecoverSessions(ctx, before)
}

// Close stops the runs of this process: nothing new is begun, calls under way
// get their grace, and the leases are given back for whoever goes on.
func (e *Engine) Close() {
	e.drain()
	done := make(chan struct{})
	go func() { e.workers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(grace):
	}
	e.stop(errStopping)
	<-done
}

func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// lookEvery is how often due runs are looked for when nothing nudges: for those
// whose holder on another replica died.
const (
	lookEvery  = 2 * time.Second
	maxRecover = 15 // ticks
)

// recoverEvery is after how many ticks calls that were left behind are looked for.
func (e *Engine) recoverEvery() int {
	return max(1, min(maxRecover, int(e.o.Limits.RunLease/lookEvery)))
}

// renew says that this process is there, for two ticks more than a run's lease.
func (e *Engine) renew() {
	if e.o.Lease == nil {
		return
	}
	if err := e.o.Lease(e.drained, e.o.Clock.Now().Add(e.o.Limits.RunLease+2*lookEvery)); err != nil && e.drained.Err() == nil {
		e.o.Log.Warn("the other replicas could not be told that this one is there", "err", err)
	}
}

func (e *Engine) dispatch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	n := 0
	for {
		select {
		case <-e.drained.Done():
			return
		case <-tick.C:
			n++
			if err := e.Expire(e.drained); err != nil && e.drained.Err() == nil {
				e.o.Log.Warn("looking for approvals that nobody gave failed", "err", err)
			}
			e.renew()
			if n%e.recoverEvery() == 0 {
				if err := e.recoverSessions(e.drained, false); err != nil && e.drained.Err() == nil {
					e.o.Log.Warn("looking for calls left behind failed", "err", err)
				}
			}
		case <-e.wake:
		}
		if err := e.Tick(e.drained); err != nil && e.drained.Err() == nil {
			e.o.Log.Warn("looking for due runs failed", "err", err)
		}
	}
}

// Tick claims the runs that are due now, as far as there is room.
func (e *Engine) Tick(ctx context.Context) error {
	e.mu.Lock()
	room := e.o.Limits.RunsAtOnce - len(e.active)
	e.mu.Unlock()
	if room <= 0 {
		return nil
	}
	due, err := e.o.Store.DueRuns(ctx, e.o.Clock.Now(), room)
	if err != nil {
		return err
	}
	for _, id := range due {
		if err := e.claim(ctx, id); err != nil && plane.KindOf(err) != plane.Conflict {
			return err
		}
	}
	return nil
}

// claim takes a run and works on it.
func (e *Engine) claim(ctx context.Context, id plane.RunID) error {
	e.mu.Lock()
	_, mine := e.active[id]
	e.mu.Unlock()
	if mine {
		return nil
	}
	err := e.o.Store.Write(ctx, func(t plane.Tx) error {
		return e.o.Store.ClaimRun(t, id, e.o.Owner, t.Now().Add(e.o.Limits.RunLease))
	})
	if err != nil {
		return err
	}
	stored, err := e.o.Store.RunByID(ctx, id)
	if err != nil {
		return err
	}
	rctx, cancel := context.WithCancelCause(e.life)
	e.mu.Lock()
	e.active[id] = cancel
	e.mu.Unlock()
	e.workers.Go(func() {
		defer func() {
			cancel(nil)
			e.mu.Lock()
			delete(e.active, id)
			e.mu.Unlock()
			e.nudge()
		}()
		w := newWorker(e, stored.Run)
		if err := w.work(rctx, stored.SealedPrompt); err != nil {
			w.endBadly(rctx, err)
		}
	})
	return nil
}

// Asked is where a question was asked.
type Asked struct {
	Conversation string                                 // a thread that goes on over several runs; "" for the caller's own
	Before       string                                 // what was said in it before, for the model
	Also         func(t plane.Tx, id plane.RunID) error // is written with the run, or neither is
}

// Begin records a new run and has it worked on.
func (e *Engine) Begin(ctx context.Context, who plane.Principal, agent, prompt string) (plane.Run, error) {
	return e.BeginIn(ctx, who, agent, prompt, Asked{})
}

// BeginIn is Begin in a conversation.
func (e *Engine) BeginIn(ctx context.Context, who plane.Principal, agent, prompt string, in Asked) (plane.Run, error) {
	switch a, ok := e.o.Agents.Agent(agent); {
	case !ok:
		return plane.Run{}, plane.Errorf(plane.NotFound, "There is no agent %q.", agent).At("agent").Then("patchbay agents list")
	case prompt == "":
		return plane.Run{}, plane.Errorf(plane.InvalidInput, "Ask something: the prompt is empty.").At("prompt")
	case len(prompt) > e.o.Limits.PromptBytes:
		return plane.Run{}, plane.Errorf(plane.InvalidInput, "The prompt is longer than %d bytes.", e.o.Limits.PromptBytes).At("prompt").Over("prompt_bytes")
	default:
		if _, err := e.o.Agents.Model(a.Model); err != nil {
			return plane.Run{}, err
		}
	}
	r := plane.Run{ID: plane.NewRunID(e.o.Clock.Now()), Agent: agent, Principal: who.ID, Caller: who, Prompt: prompt, State: plane.RunQueued, Conversation: plane.ThreadOf(who)}
	if in.Conversation != "" {
		r.Conversation = in.Conversation
	}
	err := e.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := e.insert(t, &r, in.Before); err != nil || in.Also == nil {
			return err
		}
		return in.Also(t, r.ID)
	})
	if err != nil {
		return plane.Run{}, err
	}
	e.nudge()
	return r, nil
}

// insert records a new run with its first message.
func (e *Engine) insert(t plane.Tx, r *plane.Run, before string) error {
	r.CreatedAt = t.Now()
	if err := e.o.Store.InsertRun(t, r, e.seal(r.ID, "prompt", []byte(r.Prompt))); err != nil {
		return err
	}
	if err := e.addMessage(t, r.ID, 1, firstMessage(before, r.Prompt)); err != nil {
		return err
	}
	return e.o.Store.AddAudit(t, plane.AuditEntry{Who: r.Principal, Action: "run.start", What: string(r.ID), Decision: "allow"})
}

// firstMessage is the question, after what was said before it.
func firstMessage(before, prompt string) plane.Message {
	m := plane.Message{Role: "user", Parts: []plane.Part{{Text: prompt}}}
	if before != "" {
		before = bridge.MarkThread(before)
		m.Parts = []plane.Part{{Text: before}, {Text: prompt}}
	}
	return m
}

// Cancel asks a run to stop. One that nobody works on ends at once.
func (e *Engine) Cancel(ctx context.Context, who plane.Principal, id plane.RunID) error {
	stored, err := e.o.Store.RunByID(ctx, id)
	if err != nil {
		return err
	}
	ended := false
	err = e.o.Store.Write(ctx, func(t plane.Tx) (err error) {
		ended, err = e.o.Store.AskCancel(t, id, "Cancelled by "+who.ID+".")
		if err != nil {
			return err
		}
		if ended {
			if err := e.appendFree(t, id, plane.EventRunEnded, map[string]any{"state": plane.RunCancelled, "reason": "Cancelled by " + who.ID + "."}); err != nil {
				return err
			}
			over := stored.Run
			over.State = plane.RunCancelled
			if err := e.roundEnded(t, &over); err != nil {
				return err
			}
		}
		return e.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "run.cancel", What: string(id), Decision: "allow"})
	})
	if err != nil {
		if _, gone := e.o.Store.RunByID(ctx, id); gone != nil {
			return gone
		}
		return err
	}
	e.mu.Lock()
	cancel := e.active[id]
	e.mu.Unlock()
	if cancel != nil {
		cancel(errCancelled)
	}
	e.hub.poke(id)
	return e.cancelRounds(ctx, who, id)
}

// cancelRounds stops what a pipeline has under way, after it begins nothing new.
func (e *Engine) cancelRounds(ctx context.Context, who plane.Principal, id plane.RunID) error {
	rounds, err := e.o.Store.Rounds(ctx, id)
	if err != nil {
		return err
	}
	for _, r := range rounds {
		if !r.State.Ended() {
			if err := e.Cancel(ctx, who, r.ID); err != nil && plane.KindOf(err) != plane.Conflict {
				return err
			}
		}
	}
	return nil
}

// Resolve ends an unknown call and lets its run go on.
func (e *Engine) Resolve(ctx context.Context, who plane.Principal, id plane.CallID, as ledger.Resolution, note string) error {
	var run plane.RunID
	_, err := e.o.Ledger.Resolve(ctx, who, id, as, note, func(t plane.Tx, old plane.Call, again *plane.Call) error {
		run = old.Run
		data := map[string]any{"call": old.ID, "tool": old.Alias, "outcome": as, "by": who.ID, "note": note}
		if again != nil {
			data["again"] = again.ID
		}
		if !plane.IsRunID(string(run)) {
			return nil // a session's call: there is no run to tell
		}
		waited, err := e.o.Store.RequeueRun(t, run)
		switch {
		case err != nil:
			return err
		case waited:
			return e.appendFree(t, run, plane.EventCallResolved, data)
		case again != nil:
			return plane.Errorf(plane.Conflict, "The run does not wait for this call, so there is nobody to send it again.").Then("Resolve it as done or not-done.")
		}
		return nil
	})
	if err == nil {
		e.hub.poke(run)
		e.nudge()
	}
	return err
}

// Decide takes a person's word on a call that waits for it, and lets its run go on.
func (e *Engine) Decide(ctx context.Context, who plane.Principal, id plane.ApprovalID, as plane.Decision, note string) (plane.Approval, error) {
	a, err := e.o.Ledger.Decide(ctx, who, id, as, note, func(t plane.Tx, a plane.Approval) error { return e.decided(t, a, string(as)) })
	if err == nil {
		e.hub.poke(a.Run)
		e.nudge()
	}
	return a, err
}

// Expire lets runs go on whose approvals nobody gave in time.
func (e *Engine) Expire(ctx context.Context) error {
	return e.o.Ledger.Expire(ctx, func(t plane.Tx, a plane.Approval) error { return e.decided(t, a, string(plane.ApprovalExpired)) })
}

// decided tells the run of an approval, when it waits: one that is at work finds it by
// itself.
func (e *Engine) decided(t plane.Tx, a plane.Approval, as string) error {
	if !plane.IsRunID(string(a.Run)) {
		return nil
	}
	waited, err := e.o.Store.RequeueRun(t, a.Run)
	if err != nil || !waited {
		return err
	}
	return e.appendFree(t, a.Run, plane.EventApprovalDecided, map[string]any{"approval": a.ID, "call": a.Call, "tool": a.Alias, "decision": as, "by": a.DecidedBy, "note": a.Note})
}

// Late lets a run go on whose unknown call was settled by itself.
func (e *Engine) Late(t plane.Tx, c *plane.Call) error {
	if !plane.IsRunID(string(c.Run)) {
		return nil
	}
	waited, err := e.o.Store.RequeueRun(t, c.Run)
	if err != nil || !waited {
		return err
	}
	return e.appendFree(t, c.Run, plane.EventCallResolved, map[string]any{"call": c.ID, "tool": c.Alias, "outcome": "not-done", "by": "patchbay"})
}
