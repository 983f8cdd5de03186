// Package ledger keeps a call's life: planned, dispatched, settled, and what a
// person later says of an unknown one. It promises that an effect's dispatched
// row is durable before the first byte leaves and is inserted only if the
// connection's version, its enablement and the run's fence still stand; that an
// effect is sent a second time only on proof that nothing ran; and that what
// nobody knows is recorded as unknown.
package ledger

import (
	"context"
	"time"

	"patchbay/internal/plane"
)

// Store is what the ledger needs of a database.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	WriteBehind(fn func(plane.Tx) error) error
	Calls
	Reader
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Calls are the writes to the tables of calls and attempts.
type Calls interface {
	InsertCall(t plane.Tx, c *plane.Call) error
	InsertDispatched(t plane.Tx, c *plane.Call) error
	Dispatch(t plane.Tx, c *plane.Call, n int) error
	EndAttempt(t plane.Tx, a plane.Attempt) error
	MoveCall(t plane.Tx, c *plane.Call, from plane.CallState) error
}

// Reader reads calls back.
type Reader interface {
	CallByID(ctx context.Context, id plane.CallID) (plane.Call, error)
	CallsOfRun(ctx context.Context, run plane.RunID) ([]plane.Call, error)
	StrandedCalls(ctx context.Context, dispatched, waiting time.Time) ([]plane.Call, error)
}

// Ledger writes the life of calls to the store.
type Ledger struct {
	store Store
	clock plane.Clock
}

// New makes a ledger over a store.
func New(store Store, clock plane.Clock) *Ledger { return &Ledger{store: store, clock: clock} }

// MaxAttempts is how often a call may be dispatched: once, and once more on
// proof that nothing ran.
const MaxAttempts = 2

// Plan records a call with the turn that asked for it, before anything is sent.
func (l *Ledger) Plan(t plane.Tx, c *plane.Call) error {
	c.State, c.PlannedAt = plane.CallPlanned, t.Now()
	return l.store.InsertCall(t, c)
}

// Begin makes the next attempt of c durable. A planned call is moved; an effect
// of a session is inserted; a query of a session is recorded when it settles.
// When Begin returns nil for an effect, and only then, bytes may leave.
func (l *Ledger) Begin(ctx context.Context, c *plane.Call) error {
	n := c.Attempts + 1
	switch {
	case c.State == plane.CallAwaitingInput:
		if err := l.store.Write(ctx, func(t plane.Tx) error { return l.store.Dispatch(t, c, n) }); err != nil {
			return err
		}
		c.Waited = true
	case planned(c):
		if err := l.store.Write(ctx, func(t plane.Tx) error { return l.store.Dispatch(t, c, n) }); err != nil {
			return err
		}
	case c.Class == plane.Query:
		if c.PlannedAt.IsZero() {
			c.PlannedAt = l.clock.Now()
		}
	default:
		first := n == 1
		at := c.PlannedAt
		err := l.store.Write(ctx, func(t plane.Tx) error {
			if !first {
				return l.store.Dispatch(t, c, n)
			}
			row := *c
			row.State, row.Attempts, row.PlannedAt = plane.CallDispatched, 1, t.Now()
			at = row.PlannedAt
			return l.store.InsertDispatched(t, &row)
		})
		if err != nil {
			return err
		}
		c.PlannedAt = at
	}
	c.State, c.Attempts = plane.CallDispatched, n
	return nil
}

// planned reports that the call had its row before it was first dispatched: it
// belongs to an own run.
func planned(c *plane.Call) bool { return c.State == plane.CallPlanned || c.Fence > 0 }

// recorded reports that the call has its row before it settles, when it has begun.
func recorded(c *plane.Call) bool { return planned(c) || c.Waited || c.Class != plane.Query }

// Wait records that the server wants input of the call's caller before it goes on.
// The next attempt of the call brings it.
func (l *Ledger) Wait(ctx context.Context, c *plane.Call) error {
	row := *c
	row.State = plane.CallAwaitingInput
	err := l.store.Write(ctx, func(t plane.Tx) error {
		if !recorded(c) {
			if err := l.store.InsertCall(t, &row); err != nil {
				return err
			}
			return l.store.EndAttempt(t, plane.Attempt{Call: c.ID, N: c.Attempts, At: c.PlannedAt, Outcome: string(plane.CallAwaitingInput)})
		}
		if err := l.store.MoveCall(t, &row, plane.CallDispatched); err != nil {
			return err
		}
		return l.store.EndAttempt(t, plane.Attempt{Call: c.ID, N: c.Attempts, At: c.PlannedAt, Outcome: string(plane.CallAwaitingInput)})
	})
	if err == nil {
		c.State, c.Waited = row.State, true
	}
	return err
}

// Again reports whether an attempt that ended so may be followed by another,
// and closes the attempt's row if so.
func (l *Ledger) Again(ctx context.Context, c *plane.Call, end plane.Ending) (bool, error) {
	if Judge(end) != NothingRan || c.Attempts >= MaxAttempts || end.Fault == plane.FaultCancelled {
		return false, nil
	}
	if !recorded(c) {
		return true, nil
	}
	return true, l.store.Write(ctx, func(t plane.Tx) error {
		return l.store.EndAttempt(t, plane.Attempt{Call: c.ID, N: c.Attempts, At: c.PlannedAt, Outcome: string(NothingRan), Detail: end.Detail})
	})
}

// Settle writes down how the call ended and sets c's state. also joins the
// transaction: an own run commits its observation with the outcome. For a
// session the outcome goes with the next batch, unless it has an also.
func (l *Ledger) Settle(ctx context.Context, c *plane.Call, end plane.Ending, also func(plane.Tx) error) error {
	from, attempted := c.State, c.Attempts
	verdict := Judge(end)
	inserted := recorded(c) && from != ""
	to, reason := Outcome(c.Class, end)
	if _, ok := Next(from, eventOf(to)); !ok && from != "" {
		return plane.Errorf(plane.Internal, "A call cannot go from %s to %s.", from, to)
	}
	c.State, c.Reason = to, reason
	c.DoneAt = l.clock.Now()
	row := *c
	write := func(t plane.Tx) error {
		switch {
		case !inserted:
			if err := l.store.InsertCall(t, &row); err != nil {
				return err
			}
		default:
			if err := l.store.MoveCall(t, &row, from); err != nil {
				return err
			}
			if from == plane.CallDispatched && !plain(&row, verdict) {
				// Again has closed it already where a second attempt was not reached.
				a := plane.Attempt{Call: row.ID, N: attempted, At: row.PlannedAt, Outcome: string(verdict), Detail: end.Detail}
				if err := ignoreConflict(l.store.EndAttempt(t, a)); err != nil {
					return err
				}
			}
		}
		if also != nil {
			return also(t)
		}
		return nil
	}
	if also == nil && c.Fence == 0 && c.State != plane.CallUnknown {
		err := l.store.WriteBehind(write)
		if plane.KindOf(err) != plane.Limited {
			return err
		}
		// More waits than the database takes: this caller waits for its own.
	}
	return l.store.Write(ctx, write)
}

// plain is a session's call that was answered at its first attempt: the call's own row
// says all that the attempt's would.
func plain(c *plane.Call, v Verdict) bool {
	return c.Fence == 0 && c.Attempts == 1 && !c.Waited && v == Answered
}

// RecoverSessions makes unknown what sessions that are not runs left dispatched
// before a time at which none of them can be under way any more, and effects that
// have waited for input for longer than that and plane.InputLife.
func (l *Ledger) RecoverSessions(ctx context.Context, before time.Time) error {
	stranded, err := l.store.StrandedCalls(ctx, before, before.Add(-plane.InputLife))
	if err != nil {
		return err
	}
	for i := range stranded {
		c := &stranded[i]
		err := l.store.Write(ctx, func(t plane.Tx) error {
			row := *c
			row.State, row.Reason, row.DoneAt = plane.CallUnknown, stoppedDetail, t.Now()
			if c.State == plane.CallAwaitingInput {
				row.Reason = inputDetail
				if c.Class == plane.Query {
					row.State = plane.CallFailed
				}
				return ignoreConflict(l.store.MoveCall(t, &row, c.State)) // it may go on after all
			}
			if err := l.store.MoveCall(t, &row, plane.CallDispatched); err != nil {
				return ignoreConflict(err) // it ended after all
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
			row.State, row.Reason, row.DoneAt = plane.CallUnknown, stoppedDetail, t.Now()
			if err := l.store.MoveCall(t, &row, plane.CallDispatched); err != nil {
				return err
			}
			*c = row
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
