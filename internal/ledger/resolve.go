package ledger

import (
	"context"
	"strings"

	"patchbay/internal/plane"
)

// Resolution is what a person says of an unknown call.
type Resolution string

// Resolutions, as people write them.
const (
	Done      Resolution = "done"
	NotDone   Resolution = "not-done"
	SendAgain Resolution = "send-again"
)

// MaxNote is the longest note beside a resolution, in bytes.
const MaxNote = 2000

// Resolve ends an unknown call. SendAgain resolves it as not done and plans a
// new call of the same arguments, which it returns. also joins the transaction.
func (l *Ledger) Resolve(ctx context.Context, who plane.Principal, id plane.CallID, as Resolution, note string,
	also func(t plane.Tx, old plane.Call, again *plane.Call) error) (*plane.Call, error) {
	event := map[Resolution]Event{Done: EvResolveDone, NotDone: EvResolveNotDone, SendAgain: EvResolveNotDone}[as]
	if event == "" {
		return nil, plane.Errorf(plane.InvalidInput, "An unknown call is resolved as done, not-done or send-again.").At("outcome")
	}
	if strings.ContainsRune(note, 0) {
		return nil, plane.Errorf(plane.InvalidInput, "The note holds a character that is none.").At("note")
	}
	if len(note) > MaxNote {
		return nil, plane.Errorf(plane.InvalidInput, "The note is longer than %d bytes.", MaxNote).At("note")
	}
	c, err := l.store.CallByID(ctx, id)
	if err != nil {
		return nil, err
	}
	if (c.State == plane.CallSucceeded || c.State == plane.CallResolvedDone) && as != SendAgain {
		return nil, l.release(ctx, who, c, as)
	}
	to, ok := Next(c.State, event)
	if !ok {
		return nil, plane.Errorf(plane.Conflict, "Only an unknown call can be resolved; this one is %s.", c.State)
	}
	if as == SendAgain && !plane.IsRunID(string(c.Run)) {
		return nil, plane.Errorf(plane.Conflict, "Nobody waits for this call any more, and its arguments were not kept: it cannot be sent again.").
			Then("Resolve it as done or not-done, and make the call anew.")
	}
	var source *plane.Evidence
	if as == SendAgain && c.Evidence != "" {
		e, err := l.store.EvidenceByID(ctx, c.Evidence)
		if err != nil {
			return nil, err
		}
		source = &plane.Evidence{Provider: e.Provider, Labels: e.Labels}
	}
	var again *plane.Call
	err = l.store.Write(ctx, func(t plane.Tx) error {
		row := c
		row.State, row.ResolvedBy, row.Note = to, who.ID, note
		if row.DoneAt.IsZero() {
			row.DoneAt = t.Now()
		}
		if err := l.store.MoveCall(t, &row, plane.CallUnknown); err != nil {
			return err
		}
		if as == SendAgain {
			n := c
			n.ID, n.Replaces, n.Idem = plane.NewCallID(t.Now()), c.ID, c.Key()
			n.Reason, n.Attempts, n.Bytes, n.ResolvedBy, n.Note = "", 0, 0, "", ""
			n.Approval, n.Evidence, n.Result, n.Proof = "", "", "", ""
			n.DoneAt = plane.FromMicros(0)
			if err := l.Plan(t, &n, source); err != nil {
				return err
			}
			again = &n
		}
		err := l.store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "call.resolve", What: string(c.ID), Decision: string(as), Digest: c.ArgsDigest})
		if err != nil || also == nil {
			return err
		}
		return also(t, row, again)
	})
	return again, err
}

// release lets the claim of an answered call go that its contract kept.
func (l *Ledger) release(ctx context.Context, who plane.Principal, c plane.Call, as Resolution) error {
	return l.store.Write(ctx, func(t plane.Tx) error {
		held, err := l.store.ReleaseClaim(t, c.ID)
		if err != nil {
			return err
		}
		if !held {
			return plane.Errorf(plane.Conflict, "Only an unknown call can be resolved; this one is %s.", c.State)
		}
		return l.store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "claim.release", What: string(c.ID), Decision: string(as), Digest: c.ArgsDigest})
	})
}
