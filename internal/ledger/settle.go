package ledger

import (
	"context"
	"time"

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
	if c.Waited && c.Class != plane.Query && verdict == NothingRan && from == plane.CallDispatched {
		// Nothing of this leg: what the server did before it asked for input is not known.
		to, reason = plane.CallUnknown, inputDetail
	}
	if _, ok := Next(from, eventOf(to)); !ok && from != "" {
		return plane.Errorf(plane.Internal, "A call cannot go from %s to %s.", from, to)
	}
	c.State, c.Reason, c.Upstream = to, reason, end.Upstream
	if to != plane.CallSucceeded {
		c.Origin = end.Origin()
	}
	c.DoneAt = l.clock.Now()
	row := c // nothing changes it any more
	if inserted {
		kept := *c
		row = &kept
	}
	late := false
	write := func(t plane.Tx) (err error) {
		late = false
		if !inserted {
			if err := l.store.InsertCall(t, row); err != nil {
				return err
			}
		} else if late, err = l.move(t, row, from, verdict); err != nil {
			return err
		}
		if late && row.ResolvedBy == "" {
			return nil
		}
		if late {
			if err := l.onRecord(t, row); err != nil || end.Late == nil {
				return err
			}
			return end.Late(t)
		}
		if inserted && from == plane.CallDispatched && !plain(row, verdict) {
			// Again has closed it already where a second attempt was not reached.
			a := plane.Attempt{Call: row.ID, N: attempted, At: row.PlannedAt, Outcome: string(verdict), Detail: end.Detail}
			if err := ignoreConflict(l.store.EndAttempt(t, a)); err != nil {
				return err
			}
		}
		if err := l.observed(t, row); err != nil || end.Observe == nil {
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
	if err := l.insist(ctx, c, write); err != nil {
		return err
	}
	if c.State = row.State; late && c.Fence > 0 {
		return plane.Errorf(plane.Conflict, "The run has another holder, which goes on with what was answered.")
	}
	return nil
}

// insist writes the end of a call although the database may be gone for a while: what
// is known of an effect must not be lost over it. What a client's call owes is written
// some time, as long as the process lives.
func (l *Ledger) insist(ctx context.Context, c *plane.Call, write func(plane.Tx) error) error {
	pause := 50 * time.Millisecond
	for began := time.Now(); ; pause = min(2*pause, time.Second) {
		err := l.store.Write(ctx, write)
		if plane.KindOf(err) != plane.Unavailable {
			return err
		}
		if time.Since(began) > l.Insist {
			if c.Fence == 0 {
				l.owe(ctx, write)
			}
			return err
		}
		select {
		case <-time.After(pause):
		case <-l.done:
			return err
		}
	}
}

// maxOwed bounds the ends of calls that wait for the database.
const maxOwed = 4096

// owe writes when the database is there again, as long as the process lives.
func (l *Ledger) owe(ctx context.Context, write func(plane.Tx) error) {
	if l.owed.Add(1) > maxOwed {
		l.owed.Add(-1)
		return
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer l.owed.Add(-1)
		for {
			select {
			case <-time.After(time.Second):
			case <-l.done:
				return
			}
			if plane.KindOf(l.store.Write(ctx, write)) != plane.Unavailable {
				return
			}
		}
	}()
}

// unsent settles an effect whose dispatch the database did not confirm: it may be on
// record, and nothing was sent. Whoever began it anew meanwhile goes on.
func (l *Ledger) unsent(ctx context.Context, c *plane.Call, n int) {
	row := *c
	row.State, row.Reason = plane.CallFailed, "The database did not confirm the call; nothing was sent."
	l.owe(ctx, func(t plane.Tx) error {
		r := row
		if r.Nonce != "" {
			if ours, err := l.store.BegunAs(t, r.ID, n, r.Nonce); err != nil || !ours {
				return err
			}
		}
		r.DoneAt = t.Now()
		late, err := l.move(t, &r, plane.CallDispatched, NothingRan)
		if err != nil {
			return ignoreConflict(err) // it is not
		}
		if err := l.onRecord(t, &r); err != nil || !late || l.Late == nil {
			return err
		}
		return l.Late(t, &r)
	})
}

// move takes a call to its end. One that was given up for unknown while its answer was
// on its way is settled by the answer, and nobody has to say what became of it.
func (l *Ledger) move(t plane.Tx, row *plane.Call, from plane.CallState, v Verdict) (late bool, err error) {
	err = l.store.MoveCall(t, row, from)
	if plane.KindOf(err) != plane.Conflict || from != plane.CallDispatched || row.Class == plane.Query || v == Uncertain {
		return false, err
	}
	after := *row
	after.State, after.ResolvedBy, after.Note = plane.CallResolvedNotDone, "patchbay", "The server's answer came after all."
	switch v {
	case Answered:
		after.State = plane.CallResolvedDone
	case NothingRan:
		after.Note = "It turned out that nothing had run."
	}
	if l.store.MoveCall(t, &after, plane.CallUnknown) != nil {
		if row.Fence > 0 || v != Answered {
			return false, err // a person was first, or a new attempt is under way
		}
		// A person was first. Their word stands, the client gets its answer, and the
		// audit has both.
		return true, l.store.AddAudit(t, plane.AuditEntry{Who: row.Principal, Action: "call.late", What: string(row.ID), Decision: string(v), Digest: row.Result})
	}
	*row = after
	if row.Evidence != "" && v == Answered {
		return true, l.store.ObserveEvidence(t, row)
	}
	return true, nil
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
	return l.store.AddAudit(t, plane.AuditEntry{Who: c.Principal, Action: plane.AuditCall, What: string(c.ID), Decision: string(c.State), Digest: c.ArgsDigest})
}

// plain is a session's call that was answered at its first attempt: the call's own row
// says all that the attempt's would.
func plain(c *plane.Call, v Verdict) bool {
	return c.Fence == 0 && c.Attempts == 1 && !c.Waited && v == Answered
}
