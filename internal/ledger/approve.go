package ledger

import (
	"context"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Approvals are people's words on calls.
type Approvals interface {
	AddApproval(t plane.Tx, a *plane.Approval) error
	DecideApproval(t plane.Tx, id plane.ApprovalID, to plane.ApprovalState, by, note string) error
	ExpireApprovals(t plane.Tx) ([]plane.Approval, error)
	LockRun(t plane.Tx, id plane.RunID) error
	CountApprovals(t plane.Tx, agent, principal string) (all, theirs int, err error)
	ApprovalReader
}

// ApprovalReader reads approvals back.
type ApprovalReader interface {
	Approval(ctx context.Context, id plane.ApprovalID) (plane.Approval, error)
	ApprovalOf(ctx context.Context, call plane.CallID) (plane.Approval, error)
	OpenApproval(ctx context.Context, c *plane.Call, now time.Time) (plane.Approval, error)
}

// Rules are people's standing words on tools.
type Rules interface {
	PutRule(t plane.Tx, r *plane.Rule) error
}

const (
	// ApprovalLife is how long an approval waits for a decision and then for its use.
	ApprovalLife = 24 * time.Hour
	// MaxPending bounds the approvals of one agent that wait for people, and
	// MaxPendingOfOne those of one of its callers.
	MaxPending      = 1000
	MaxPendingOfOne = 100
)

// Ask records that a person is asked before the call is sent.
func (l *Ledger) Ask(ctx context.Context, c *plane.Call, arguments []byte, why string) (*plane.Approval, error) {
	now := l.clock.Now()
	a := &plane.Approval{ID: plane.NewApprovalID(now), Call: c.ID, Run: c.Run, Agent: c.Agent, Principal: c.Principal, Connection: c.Connection,
		Version: c.Version, Server: c.Server, Tool: c.Tool, Alias: c.Alias, Fingerprint: c.Fingerprint, ArgsDigest: c.ArgsDigest, Arguments: []byte{},
		Why: why, State: plane.ApprovalPending, AskedAt: now, ExpiresAt: now.Add(ApprovalLife)}
	if l.Seal != nil {
		a.Arguments = l.Seal(a.ID, arguments)
	}
	from := c.State
	row := *c
	row.State = plane.CallAwaitingApproval
	if row.PlannedAt.IsZero() {
		row.PlannedAt = now
	}
	err := l.store.Write(ctx, func(t plane.Tx) error {
		n, theirs, err := l.store.CountApprovals(t, c.Agent, c.Principal)
		switch {
		case err != nil:
			return err
		case n >= MaxPending || theirs >= MaxPendingOfOne:
			return plane.Errorf(plane.Limited, "%d calls of %s wait for approval already, %d of this caller; nothing was sent.", n, c.Agent, theirs).Then("patchbay approvals list")
		case from == "":
			err = l.store.InsertCall(t, &row)
		case from != plane.CallAwaitingApproval:
			err = l.store.MoveCall(t, &row, from)
		}
		if err != nil {
			return err
		}
		if err := l.store.AddAudit(t, plane.AuditEntry{Who: c.Principal, Action: "approval.ask", What: string(a.ID), Decision: "pending", Digest: c.ArgsDigest}); err != nil {
			return err
		}
		return l.store.AddApproval(t, a)
	})
	if err != nil {
		return nil, err
	}
	c.State, c.PlannedAt, c.Approval = row.State, row.PlannedAt, a.ID
	return a, nil
}

// Word is the latest approval of a call; nil when nobody was asked.
func (l *Ledger) Word(ctx context.Context, c *plane.Call) (*plane.Approval, error) {
	a, err := l.store.ApprovalOf(ctx, c.ID)
	if plane.KindOf(err) == plane.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if (a.State == plane.ApprovalPending || a.State == plane.ApprovalApproved) && !l.clock.Now().Before(a.ExpiresAt) {
		a.State = plane.ApprovalExpired
	}
	return &a, nil
}

// Asked finds the call for which a client's same request was asked about before, with
// the word on it, and makes it c.
func (l *Ledger) Asked(ctx context.Context, c *plane.Call) (*plane.Approval, error) {
	a, err := l.store.OpenApproval(ctx, c, l.clock.Now())
	if plane.KindOf(err) == plane.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if a.State == plane.ApprovalDenied {
		return &a, nil
	}
	row, err := l.store.CallByID(ctx, a.Call)
	if err != nil {
		return nil, err
	}
	if row.State != plane.CallAwaitingApproval {
		return nil, nil
	}
	row.Approval = a.ID
	*c = row
	return &a, nil
}

// Decide takes a person's word on a call. Whoever may give it was asked before. also
// joins the transaction.
func (l *Ledger) Decide(ctx context.Context, who plane.Principal, id plane.ApprovalID, as plane.Decision, note string, also func(plane.Tx, plane.Approval) error) (plane.Approval, error) {
	to := map[plane.Decision]plane.ApprovalState{plane.Approve: plane.ApprovalApproved, plane.AlwaysAllow: plane.ApprovalApproved, plane.Deny: plane.ApprovalDenied}[as]
	if to == "" {
		return plane.Approval{}, plane.Errorf(plane.InvalidInput, "An approval is decided by approve, deny or always-allow.").At("decision")
	}
	if strings.ContainsRune(note, 0) {
		return plane.Approval{}, plane.Errorf(plane.InvalidInput, "The note holds a character that is none.").At("note")
	}
	if len(note) > MaxNote {
		return plane.Approval{}, plane.Errorf(plane.InvalidInput, "The note is longer than %d bytes.", MaxNote).At("note")
	}
	a, err := l.store.Approval(ctx, id)
	if err != nil {
		return a, err
	}
	if err := open(&a, l.clock.Now()); err != nil {
		return a, err
	}
	err = l.store.Write(ctx, func(t plane.Tx) error {
		if err := l.store.LockRun(t, a.Run); err != nil { // before the approval, as whoever ends a run does
			return err
		}
		if err := l.store.DecideApproval(t, id, to, who.ID, note); err != nil {
			return err
		}
		if as == plane.AlwaysAllow {
			r := &plane.Rule{ID: plane.NewRuleID(t.Now()), Agent: a.Agent, Connection: a.Connection, Server: a.Server, Tool: a.Tool, Fingerprint: a.Fingerprint, Mode: plane.Always, By: who.ID}
			if err := l.store.PutRule(t, r); err != nil {
				return err
			}
			if err := l.store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "rule.add", What: r.ID, Decision: string(plane.Always), Digest: a.Fingerprint}); err != nil {
				return err
			}
		}
		if err := l.store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "approval.decide", What: string(id), Decision: string(as), Digest: a.ArgsDigest}); err != nil {
			return err
		}
		a.State, a.DecidedBy, a.DecidedAt, a.Note = to, who.ID, t.Now(), note
		if as == plane.Deny && !plane.IsRunID(string(a.Run)) {
			if err := l.unapproved(t, a, a.Refusal()); err != nil {
				return err
			}
		}
		if also != nil {
			return also(t, a)
		}
		return nil
	})
	return a, err
}

// unapproved ends a session's call: no worker comes back to it.
func (l *Ledger) unapproved(t plane.Tx, a plane.Approval, why string) error {
	c := plane.Call{ID: a.Call, State: plane.CallFailed, Reason: why, DoneAt: t.Now(), Principal: a.Principal, ArgsDigest: a.ArgsDigest, Class: plane.Query}
	if err := l.store.MoveCall(t, &c, plane.CallAwaitingApproval); err != nil {
		return ignoreConflict(err)
	}
	return l.onRecord(t, &c)
}

// open says why an approval can no longer be decided.
func open(a *plane.Approval, now time.Time) error {
	switch {
	case a.State == plane.ApprovalPending && now.Before(a.ExpiresAt):
		return nil
	case a.State == plane.ApprovalPending, a.State == plane.ApprovalExpired:
		return plane.Errorf(plane.Gone, "The approval expired at %s; the call was not sent.", a.ExpiresAt.UTC().Format("2006-01-02 15:04 UTC")).Then("Ask for it again.")
	}
	by := ""
	if a.DecidedBy != "" {
		by = " by " + a.DecidedBy
	}
	return plane.Errorf(plane.Conflict, "The approval is %s already%s.", a.State, by).Then("patchbay approvals list --all")
}

// Expire ends the approvals that nobody gave or used in time, and the calls of sessions
// that waited for them. also hears of each that an own run waits for.
func (l *Ledger) Expire(ctx context.Context, also func(plane.Tx, plane.Approval) error) error {
	return l.store.Write(ctx, func(t plane.Tx) error {
		gone, err := l.store.ExpireApprovals(t)
		if err != nil {
			return err
		}
		for _, a := range gone {
			if err := l.store.AddAudit(t, plane.AuditEntry{Who: "patchbay", Action: "approval.expire", What: string(a.ID), Decision: "deny", Digest: a.ArgsDigest}); err != nil {
				return err
			}
			if plane.IsRunID(string(a.Run)) {
				err = also(t, a)
			} else {
				err = l.unapproved(t, a, "Nobody approved the call in time.")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
