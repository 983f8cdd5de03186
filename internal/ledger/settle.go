package ledger

import (
	"context"

	"patchbay/internal/plane"
)

// Settle writes down how the call ended and sets c's state, with its evidence, its
// claim and its entry in the audit. For a session the outcome goes with the next batch,
// unless it has something to observe, holds a claim, or spent an approval.
func (l *Ledger) Settle(ctx context.Context, c *plane.Call, end plane.Settlement) error {
	from, attempted := c.State, c.Attempts
	verdict := Judge(end.Ending)
	inserted := recorded(c) && from != ""
	to, reason := Outcome(c.Class, end.Ending)
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
		if err := l.observed(t, &row); err != nil || end.Observe == nil {
			return err
		}
		return end.Observe(t)
	}
	if end.Observe == nil && c.Fence == 0 && c.State != plane.CallUnknown && c.Spec == "" && c.Approval == "" && c.Hold == "" {
		err := l.store.WriteBehind(write)
		if plane.KindOf(err) != plane.Limited {
			return err
		}
		// More waits than the database takes: this caller waits for its own.
	}
	err := l.store.Write(ctx, write)
	if plane.KindOf(err) == plane.Conflict && from == plane.CallDispatched {
		return l.late(ctx, &row, end, verdict, err)
	}
	return err
}

// observed is what goes with the end of a call: its evidence and its audit entry.
func (l *Ledger) observed(t plane.Tx, row *plane.Call) error {
	if row.Evidence != "" && row.State == plane.CallSucceeded {
		if err := l.store.ObserveEvidence(t, row); err != nil {
			return err
		}
	}
	return l.onRecord(t, row)
}

// onRecord puts a call's state into the audit: digests, never arguments.
func (l *Ledger) onRecord(t plane.Tx, c *plane.Call) error {
	return l.store.AddAudit(t, plane.AuditEntry{Who: c.Principal, Action: "call", What: string(c.ID), Decision: string(c.State), Digest: c.ArgsDigest})
}

// late settles a call that was given up for unknown while its answer was on its way:
// the answer says what became of it, and nobody has to.
func (l *Ledger) late(ctx context.Context, c *plane.Call, end plane.Settlement, v Verdict, was error) error {
	if c.Class == plane.Query || v == Uncertain {
		return was
	}
	row := *c
	row.State, row.Reason, row.ResolvedBy, row.Note = plane.CallResolvedNotDone, c.Reason, "patchbay", "The server's answer came after all."
	if v == Answered {
		row.State = plane.CallResolvedDone
	}
	err := l.store.Write(ctx, func(t plane.Tx) error {
		if err := l.store.MoveCall(t, &row, plane.CallUnknown); err != nil {
			return err
		}
		if row.Evidence != "" && v == Answered {
			if err := l.store.ObserveEvidence(t, &row); err != nil {
				return err
			}
		}
		if err := l.onRecord(t, &row); err != nil || end.Late == nil {
			return err
		}
		return end.Late(t)
	})
	if err != nil {
		return was // a person was first, or a new attempt is under way
	}
	c.State = row.State
	if c.Fence > 0 {
		return was // the run has another holder; it goes on with what was observed
	}
	return nil
}

// plain is a session's call that was answered at its first attempt: the call's own row
// says all that the attempt's would.
func plain(c *plane.Call, v Verdict) bool {
	return c.Fence == 0 && c.Attempts == 1 && !c.Waited && v == Answered
}
