package run

import (
	"context"
	"fmt"
	"strings"

	"patchbay/internal/plane"
)

// pipeline takes a run of an agent that has rounds to its end: each round is a run of
// another agent, with the tools that one gets, and begins when the one before has
// succeeded. The run waits meanwhile and holds no worker; its rounds are rows, so that
// whoever resumes it finds where it stands.
func (w *worker) pipeline(ctx context.Context) error {
	rounds, err := w.e.o.Store.Rounds(ctx, w.run.ID)
	if err != nil {
		return err
	}
	if n := len(rounds); n > 0 {
		last := w.e.unseal(rounds[n-1])
		switch {
		case !last.State.Ended():
			return w.awaitRound(ctx, &last)
		case last.State != plane.RunSucceeded:
			return plane.Errorf(plane.Unavailable, "Round %d (%s) %s: %s", last.Round, last.Agent, last.State, last.Reason).Then("patchbay runs show " + string(last.ID))
		case n >= len(w.agent.Rounds):
			return w.finish(ctx, last.Answer)
		}
	}
	return w.beginRound(ctx, rounds)
}

// beginRound starts the next round with what the ones before gave.
func (w *worker) beginRound(ctx context.Context, before []StoredRun) error {
	n := len(before) + 1
	agent := w.agent.Rounds[n-1]
	if _, ok := w.e.o.Agents.Agent(agent); !ok {
		return plane.Errorf(plane.NotFound, "Round %d needs the agent %s, which is no longer in the configuration.", n, agent)
	}
	child := plane.Run{ID: plane.NewRunID(w.e.o.Clock.Now()), Agent: agent, Principal: w.run.Principal, Caller: w.run.Caller, State: plane.RunQueued,
		Prompt: w.brief(before), Parent: w.run.ID, Round: n, Conversation: w.run.Conversation, Labels: w.run.Labels}
	for _, r := range before {
		child.Labels |= r.Labels
	}
	w.run.Turns = n
	err := w.commit(ctx, func(t plane.Tx) error {
		asked, err := w.e.o.Store.HoldRun(t, w.run.ID, w.run.Fence, t.Now().Add(w.e.o.Limits.RunLease), w.spent())
		if err != nil {
			return err
		}
		if asked {
			return errCancelled // since this run was last looked at
		}
		if err := w.e.o.Store.TurnRun(t, w.run.ID, w.run.Fence, n); err != nil {
			return err
		}
		return w.e.insert(t, &child, "")
	}, pending{kind: plane.EventTurnStarted, data: map[string]any{"turn": n, "round": child.ID, "agent": agent}})
	if err != nil {
		return err
	}
	w.e.nudge()
	return w.awaitRound(ctx, &child)
}

// awaitRound leaves the run until its round has ended.
func (w *worker) awaitRound(ctx context.Context, round *plane.Run) error {
	w.run.WaitingFor, w.run.Reason = waitRound, fmt.Sprintf("Round %d (%s) is under way: %s.", round.Round, round.Agent, round.ID)
	return w.leave(ctx)
}

// brief is what a round is asked: the request, and what the rounds before said.
func (w *worker) brief(before []StoredRun) string {
	if len(before) == 0 {
		return w.run.Prompt
	}
	var b strings.Builder
	b.WriteString(w.run.Prompt)
	for _, r := range before {
		v := w.e.unseal(r)
		fmt.Fprintf(&b, "\n\n--- Round %d, %s, said:\n%s", v.Round, v.Agent, v.Answer)
	}
	fmt.Fprintf(&b, "\n\n--- This is round %d. Go on from there.", len(before)+1)
	out := b.String()
	if most := w.e.o.Limits.PromptBytes; len(out) > most {
		out = clipText(out, most-len("…"))
	}
	return out
}

// roundEnded lets a pipeline go on when one of its rounds is over.
func (e *Engine) roundEnded(t plane.Tx, r *plane.Run) error {
	if r.Parent == "" {
		return nil
	}
	if lineage := string(r.ID); r.State == plane.RunSucceeded {
		// What the round's answer comes from, the pipeline's does too.
		if err := e.o.Store.CopyLineage(t, lineage, string(r.Parent)); err != nil {
			return err
		}
		if err := e.o.Store.Taint(t, r.Parent, "", r.Labels); err != nil {
			return err
		}
	}
	_, err := e.o.Store.RequeueRun(t, r.Parent)
	return err
}
