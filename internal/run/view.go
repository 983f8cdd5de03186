package run

import (
	"context"

	"patchbay/internal/plane"
)

// View is a run as people see it.
type View struct {
	plane.Run
	Calls    []plane.Call
	Attempts []plane.Attempt
}

// List returns the latest runs of a principal, or of all when it is empty,
// newest first.
func (e *Engine) List(ctx context.Context, principal string, limit int) ([]plane.Run, error) {
	rows, err := e.o.Store.Runs(ctx, principal, limit)
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
	v.Attempts, err = e.o.Store.AttemptsOfRun(ctx, id)
	return v, err
}
