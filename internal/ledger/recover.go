package ledger

import (
	"context"
	"time"

	"patchbay/internal/plane"
)

// RecoverSessions makes unknown what sessions that are not runs left dispatched
// before a time at which none of them can be under way any more, and effects that
// have waited for input for longer than that and plane.InputLife.
func (l *Ledger) RecoverSessions(ctx context.Context, before time.Time) error {
	stranded, err := l.store.StrandedCalls(ctx, l.clock.Now(), before, before.Add(-plane.InputLife))
	if err != nil {
		return err
	}
	for i := range stranded {
		c := &stranded[i]
		err := l.store.Write(ctx, func(t plane.Tx) error {
			row := *c
			row.State, row.Reason, row.DoneAt, row.Origin = plane.CallUnknown, stoppedDetail, t.Now(), plane.ByTransport
			if c.Class == plane.Query {
				row.State = plane.CallFailed
			}
			if c.State == plane.CallAwaitingInput {
				row.Reason = inputDetail
				if err := l.store.MoveCall(t, &row, c.State); err != nil {
					return ignoreConflict(err) // it may go on after all
				}
				return l.onRecord(t, &row)
			}
			if err := l.store.MoveCall(t, &row, plane.CallDispatched); err != nil {
				return ignoreConflict(err) // it ended after all
			}
			if err := l.onRecord(t, &row); err != nil {
				return err
			}
			return ignoreConflict(l.store.EndAttempt(t, plane.Attempt{Call: c.ID, N: c.Attempts, At: c.PlannedAt, Outcome: string(Uncertain), Detail: stoppedDetail}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Recover finds what a former holder of the run left in mid-air. An effect that
// was dispatched becomes unknown; a query may be attempted again. It returns
// the run's calls as they stand then.
func (l *Ledger) Recover(ctx context.Context, run plane.RunID) ([]plane.Call, error) {
	calls, err := l.store.CallsOfRun(ctx, run)
	if err != nil {
		return nil, err
	}
	for i := range calls {
		c := &calls[i]
		if c.State != plane.CallDispatched {
			continue
		}
		err := l.store.Write(ctx, func(t plane.Tx) error {
			lost := plane.Attempt{Call: c.ID, N: c.Attempts, At: c.PlannedAt, Outcome: string(Uncertain), Detail: stoppedDetail}
			if c.Class == plane.Query {
				lost.Outcome = "lost"
				return ignoreConflict(l.store.EndAttempt(t, lost))
			}
			row := *c
			row.State, row.Reason, row.DoneAt, row.Origin = plane.CallUnknown, stoppedDetail, t.Now(), plane.ByTransport
			if err := l.store.MoveCall(t, &row, plane.CallDispatched); err != nil {
				return err
			}
			*c = row
			if err := l.onRecord(t, &row); err != nil {
				return err
			}
			return ignoreConflict(l.store.EndAttempt(t, lost))
		})
		if err != nil {
			return nil, err
		}
	}
	return calls, nil
}

const inputDetail = "The server asked for input that never came; nobody knows what it had done by then."

const stoppedDetail = "Patchbay stopped while the call was under way; nobody knows whether it took effect."

func ignoreConflict(err error) error {
	if plane.KindOf(err) == plane.Conflict {
		return nil // the attempt was closed before its call was
	}
	return err
}
