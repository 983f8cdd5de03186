// Package ledger keeps a call's life: planned, approved, dispatched, settled, and what
// a person later says of an unknown one. It promises that an effect's dispatched row is
// durable before the first byte leaves and is inserted only if the connection's version,
// its enablement, the run's fence, the target's claim and the approval still stand; that
// an approval is good once, for one call as it was shown; that an effect is sent a second
// time only on proof that nothing ran; and that what nobody knows is recorded as unknown,
// keeps its target from further effects, and waits for a person. It also signs the
// audit, and promises that an entry that was changed or taken out is found.
package ledger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/internal/plane"
)

// Store is what the ledger needs of a database.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	WriteBehind(fn func(plane.Tx) error) error
	Calls
	Reader
	Approvals
	Sources
	Rules
}

// Calls are the writes to the tables of calls and attempts.
type Calls interface {
	InsertCall(t plane.Tx, c *plane.Call) error
	InsertDispatched(t plane.Tx, c *plane.Call) error
	Dispatch(t plane.Tx, c *plane.Call, n int) error
	EndAttempt(t plane.Tx, a plane.Attempt) error
	MoveCall(t plane.Tx, c *plane.Call, from plane.CallState) error
	Attempted
}

// Attempted tells whose attempt is open.
type Attempted interface {
	BegunAs(t plane.Tx, id plane.CallID, n int, nonce string) (bool, error)
}

// Reader reads calls back.
type Reader interface {
	CallByID(ctx context.Context, id plane.CallID) (plane.Call, error)
	CallsOfRun(ctx context.Context, run plane.RunID) ([]plane.Call, error)
	StrandedCalls(ctx context.Context, now, dispatched, waiting time.Time) ([]plane.Call, error)
}

// Sources are where observations come from, and the claims that stay.
type Sources interface {
	ReserveEvidence(t plane.Tx, e *plane.Evidence) error
	ObserveEvidence(t plane.Tx, c *plane.Call) error
	EvidenceByID(ctx context.Context, id plane.EvidenceID) (plane.Evidence, error)
	ReleaseClaim(t plane.Tx, id plane.CallID) (bool, error)
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Ledger writes the life of calls to the store.
type Ledger struct {
	store Store
	clock plane.Clock
	// Seal keeps the arguments that somebody is asked about; nil keeps none.
	Seal func(id plane.ApprovalID, arguments []byte) []byte
	// Patience is how long a call waits for another on the target that it names.
	Patience time.Duration
	// Owner names this process, whose lease says that it is there; empty for none.
	Owner string
	// Insist is how long a caller waits for the database to take the end of its call.
	Insist time.Duration
	// Late hears of a run's call that was unknown and turned out not to have run.
	Late func(t plane.Tx, c *plane.Call) error
	// Stall is how long making an attempt durable may take. Whoever was stopped for
	// longer may have been given up by others: nothing is sent any more.
	Stall time.Duration

	owed atomic.Int64 // ends of calls that wait for the database
	done chan struct{}
	once sync.Once
}

// Close gives up on what the database does not take.
func (l *Ledger) Close() { l.once.Do(func() { close(l.done) }) }

// New makes a ledger over a store.
func New(store Store, clock plane.Clock) *Ledger {
	return &Ledger{store: store, clock: clock, Patience: patience, Stall: stall, Insist: insist, done: make(chan struct{})}
}

// MaxAttempts is how often a call may be dispatched: once, and once more on
// proof that nothing ran.
const MaxAttempts = 2

const (
	patience = 10 * time.Second
	stall    = 5 * time.Second
	insist   = time.Minute
	lookFor  = 50 * time.Millisecond // between two looks at a target that is held
)

// Plan records a call with the turn that asked for it, before anything is sent, and
// reserves its source.
func (l *Ledger) Plan(t plane.Tx, c *plane.Call, e *plane.Evidence) error {
	c.State, c.PlannedAt = plane.CallPlanned, t.Now()
	if e != nil {
		if err := l.Reserve(t, c, e); err != nil {
			return err
		}
	}
	return l.store.InsertCall(t, c)
}

// Reserve records the source of a call that is about to be planned.
func (l *Ledger) Reserve(t plane.Tx, c *plane.Call, e *plane.Evidence) error {
	e.ID, e.Call, e.Run, e.Agent = plane.NewEvidenceID(t.Now()), c.ID, c.Run, c.Agent
	e.Connection, e.Version, e.Tool, e.Fingerprint = c.Connection, c.Version, c.Tool, c.Fingerprint
	c.Evidence = e.ID
	return l.store.ReserveEvidence(t, e)
}

// Begin makes the next attempt of c durable. A planned call is moved; an effect
// of a session is inserted; a query of a session is recorded when it settles. It waits
// a while for another call that is under way on the target that c names.
// When Begin returns nil for an effect, and only then, bytes may leave.
func (l *Ledger) Begin(ctx context.Context, c *plane.Call) error {
	for end := l.clock.Now().Add(l.Patience); ; {
		n := c.Attempts + 1
		c.Nonce = ""
		began := time.Now() // steady, also while the process is stopped
		err := l.begin(ctx, c)
		if err == nil && c.Class != plane.Query && time.Since(began) > l.Stall {
			return plane.Errorf(plane.Conflict, "It took too long to put the call on record; nothing was sent.")
		}
		if plane.KindOf(err) == plane.Unavailable && c.Class != plane.Query {
			l.unsent(ctx, c, n) // it may be on record all the same
		}
		var held *plane.HeldError
		if !errors.As(err, &held) || held.State != plane.CallDispatched || !l.clock.Now().Before(end) {
			return err
		}
		select {
		case <-time.After(lookFor):
		case <-ctx.Done():
			return err
		}
	}
}

func (l *Ledger) begin(ctx context.Context, c *plane.Call) error {
	n := c.Attempts + 1
	if _, ok := Next(c.State, EvDispatch); !ok && c.State != "" {
		return plane.Errorf(plane.Conflict, "A %s call is not sent.", c.State)
	}
	if c.Fence == 0 {
		c.Owner = l.Owner
	}
	switch {
	case recorded(c) && (c.Attempts > 0 || c.State != ""):
		c.Nonce = string(plane.NewCallID(l.clock.Now()))
		if err := l.store.Write(ctx, func(t plane.Tx) error { return l.store.Dispatch(t, c, n) }); err != nil {
			return err
		}
		c.Waited = c.Waited || c.State == plane.CallAwaitingInput
	case c.Class == plane.Query:
		if c.PlannedAt.IsZero() {
			c.PlannedAt = l.clock.Now()
		}
	default:
		at := c.PlannedAt
		err := l.store.Write(ctx, func(t plane.Tx) error {
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

// recorded reports that the call has its row before it settles, when it has begun or
// somebody was asked.
func recorded(c *plane.Call) bool {
	return planned(c) || c.Waited || c.Approval != "" || c.Class != plane.Query
}

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
