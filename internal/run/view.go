package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"patchbay/internal/plane"
)

// View is a run as people see it.
type View struct {
	plane.Run
	Calls    []plane.Call
	Attempts []plane.Attempt
	Rounds   []plane.Run // of a pipeline
}

// List returns the latest runs that a filter lets through, newest first.
func (e *Engine) List(ctx context.Context, f plane.RunFilter) ([]plane.Run, error) {
	rows, err := e.o.Store.Runs(ctx, f)
	if err != nil {
		return nil, err
	}
	out := make([]plane.Run, 0, len(rows))
	for _, r := range rows {
		out = append(out, e.unseal(r))
	}
	return out, nil
}

// unseal opens what a run says of itself. Text sealed with a key that is gone
// is left out; the record stands without it.
func (e *Engine) unseal(r StoredRun) plane.Run {
	if b, err := e.open(r.ID, "prompt", r.SealedPrompt); err == nil {
		r.Prompt = string(b)
	}
	if len(r.SealedAnswer) > 0 {
		if b, err := e.open(r.ID, "answer", r.SealedAnswer); err == nil {
			r.Answer = string(b)
		}
	}
	return r.Run
}

// Get returns one run.
func (e *Engine) Get(ctx context.Context, id plane.RunID) (plane.Run, error) {
	r, err := e.o.Store.RunByID(ctx, id)
	if err != nil {
		return plane.Run{}, err
	}
	return e.unseal(r), nil
}

// Show returns one run with its calls and their attempts.
func (e *Engine) Show(ctx context.Context, id plane.RunID) (View, error) {
	r, err := e.Get(ctx, id)
	if err != nil {
		return View{}, err
	}
	v := View{Run: r}
	if v.Calls, err = e.o.Store.CallsOfRun(ctx, id); err != nil {
		return View{}, err
	}
	if v.Attempts, err = e.o.Store.AttemptsOfRun(ctx, id); err != nil {
		return View{}, err
	}
	rounds, err := e.o.Store.Rounds(ctx, id)
	for _, r := range rounds {
		v.Rounds = append(v.Rounds, e.unseal(r))
	}
	return v, err
}

// Evidence returns the sources of a run's calls, and what its answer comes from.
func (e *Engine) Evidence(ctx context.Context, id plane.RunID) ([]plane.Evidence, []string, error) {
	ev, err := e.o.Store.EvidenceOfRun(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	sources, err := e.o.Store.Lineage(ctx, string(id))
	return ev, sources, err
}

// Arguments are those of a run's call, from its transcript; a client's are not kept.
func (e *Engine) Arguments(ctx context.Context, c plane.Call) string {
	if !plane.IsRunID(string(c.Run)) {
		return ""
	}
	msgs, err := e.transcript(ctx, c.Run)
	if err != nil {
		return ""
	}
	found := ""
	for _, m := range msgs {
		for _, p := range m.Parts {
			if p.ToolUse == nil || p.ToolUse.ID != c.ToolUse {
				continue
			}
			found = string(p.ToolUse.Input) // some models repeat an id in a later turn
			if sum := sha256.Sum256(p.ToolUse.Input); hex.EncodeToString(sum[:]) == c.ArgsDigest {
				return found
			}
		}
	}
	return found
}
