package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"sync"
	"time"

	"patchbay/internal/plane"
)

// AuditStore is what keeping the audit needs of a database.
type AuditStore interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Lanes(ctx context.Context) ([]string, error)
	TakeLease(ctx context.Context, name, owner string, until time.Time) (bool, error)
	Seal(t plane.Tx, lane string, most int, sign func(before *plane.Checkpoint, entries []plane.AuditEntry) (plane.Checkpoint, error)) (bool, error)
	AuditReader
}

// AuditReader reads the audit back.
type AuditReader interface {
	Checkpoints(ctx context.Context, lane string, after int64, limit int) ([]plane.Checkpoint, error)
	Stretch(ctx context.Context, c plane.Checkpoint, after string, fn func(plane.AuditEntry)) error
	Uncovered(ctx context.Context, first, head plane.Checkpoint) (open, strays int64, err error)
	CutAudit(t plane.Tx, lane string, before time.Time) (more bool, err error)
}

// Signer signs with the active key, and checks signatures of keys it knows.
type Signer interface {
	SignBy(msg []byte) (key string, sig []byte)
	VerifyBy(key string, msg, sig []byte) (known, ok bool)
}

// Audit seals what every replica puts on record: lane by lane, each stretch chained to
// the one before and signed, so that a gap or an edit shows.
type Audit struct {
	Store  AuditStore
	Signer Signer
	Clock  plane.Clock
	Owner  string        // names this process in the lease
	Keep   time.Duration // retention; 0 for ever

	mu    sync.Mutex
	heads map[string]head // as this process saw them last
}

// head is where a lane ended.
type head struct {
	n    int64
	hash string
}

const (
	sealLease = 10 * time.Second
	sealMost  = 1000 // rows of one checkpoint
	lanePage  = 2000
	maxLanes  = 10_000
)

// Seal closes what is open, if no other replica does so already.
func (a *Audit) Seal(ctx context.Context) error {
	mine, err := a.Store.TakeLease(ctx, "audit", a.Owner, a.Clock.Now().Add(sealLease))
	if err != nil || !mine {
		return err
	}
	lanes, err := a.Store.Lanes(ctx)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		for more := true; more; {
			var made head
			err := a.Store.Write(ctx, func(t plane.Tx) (err error) {
				more, err = a.Store.Seal(t, lane, sealMost, func(before *plane.Checkpoint, entries []plane.AuditEntry) (plane.Checkpoint, error) {
					if err := a.continues(lane, before); err != nil {
						return plane.Checkpoint{}, err
					}
					c := a.checkpoint(t.Now(), lane, before, entries)
					made = head{c.N, c.Hash}
					return c, nil
				})
				return err
			})
			if plane.KindOf(err) == plane.Conflict {
				break // somebody wrote or sealed meanwhile: at the next round
			}
			if err != nil {
				return err
			}
			if more {
				a.saw(lane, made)
			}
		}
	}
	return nil
}

// continues refuses to seal a lane whose end is not the one that this process saw: what
// was taken out, or written anew, must not be signed.
func (a *Audit) continues(lane string, before *plane.Checkpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.heads[lane]
	switch {
	case !ok:
	case before == nil, before.N < known.n, before.N == known.n && before.Hash != known.hash:
		return plane.Errorf(plane.Internal, "The audit's lane %s ends before checkpoint %d, which was there: it was cut or rewritten, and is not sealed any more.", lane, known.n).Then("patchbay audit verify")
	}
	return nil
}

func (a *Audit) saw(lane string, h head) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.heads == nil || len(a.heads) >= maxLanes {
		a.heads = map[string]head{}
	}
	a.heads[lane] = h
}

func (a *Audit) checkpoint(now time.Time, lane string, before *plane.Checkpoint, entries []plane.AuditEntry) plane.Checkpoint {
	c := plane.Checkpoint{Lane: lane, N: 1, Entries: int64(len(entries)), Last: entries[len(entries)-1].ID, At: now}
	if before != nil {
		c.N, c.Prev = before.N+1, before.Hash
	}
	h := chain(lane, c.N, c.Prev)
	for i := range entries {
		addEntry(h, &entries[i])
	}
	c.Hash = hex.EncodeToString(h.Sum(nil))
	c.Key, c.Sig = a.Signer.SignBy(signed(&c))
	return c
}

// chain begins the hash of a stretch.
func chain(lane string, n int64, prev string) hash.Hash {
	h := sha256.New()
	field(h, "patchbay audit v1")
	field(h, lane)
	field(h, fmt.Sprint(n))
	field(h, prev)
	return h
}

func addEntry(h hash.Hash, e *plane.AuditEntry) {
	for _, v := range []string{e.ID, fmt.Sprint(plane.Micros(e.At)), e.Who, e.Action, e.What, e.Decision, e.Digest} {
		field(h, v)
	}
}

// field writes a length ahead of each value, so that no two sequences look alike.
func field(h hash.Hash, v string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(v)))
	h.Write(n[:])
	h.Write([]byte(v))
}

// signed is what a checkpoint's signature covers.
func signed(c *plane.Checkpoint) []byte {
	return fmt.Appendf(nil, "patchbay audit checkpoint v1\n%s\n%d\n%d\n%s\n%s\n%s\n%d\n", c.Lane, c.N, c.Entries, c.Last, c.Prev, c.Hash, plane.Micros(c.At))
}

// Verified is what a look at the whole audit found.
type Verified struct {
	Lanes  []VerifiedLane
	Faults []Fault
}

// VerifiedLane is one lane, with the head that a person may keep to compare with later.
type VerifiedLane struct {
	Lane        string
	Checkpoints int
	Entries     int64
	Open        int64 // not sealed yet
	First       int64 // number of the oldest checkpoint that is kept
	Head        int64
	HeadHash    string
}

// Fault is a place where the audit is not what was signed.
type Fault struct {
	Lane, At, What string
}

// Verify reads every lane: each entry against the hash of its stretch, each stretch
// against the one before, the signatures against the ring. A lane's newest checkpoint
// must be signed by a key of the ring; what older keys signed is vouched for by it.
// What is written meanwhile is left for the next time.
func (a *Audit) Verify(ctx context.Context) (Verified, error) {
	var out Verified
	lanes, err := a.Store.Lanes(ctx)
	if err != nil {
		return out, err
	}
	for _, lane := range lanes {
		v := &verifier{a: a, lane: VerifiedLane{Lane: lane}}
		if err := v.run(ctx); err != nil {
			return out, err
		}
		if v.cutMeanwhile(ctx) {
			v = &verifier{a: a, lane: VerifiedLane{Lane: lane}}
			if err := v.run(ctx); err != nil {
				return out, err
			}
		}
		out.Lanes = append(out.Lanes, v.lane)
		out.Faults = append(out.Faults, v.faults...)
	}
	return out, nil
}

type verifier struct {
	a           *Audit
	lane        VerifiedLane
	first, head plane.Checkpoint
	vouched     bool // the newest one so far is signed by a key of the ring
	faults      []Fault
}

// maxFaults bounds what is told of one lane.
const maxFaults = 100

func (v *verifier) fault(at, format string, args ...any) {
	if len(v.faults) < maxFaults {
		v.faults = append(v.faults, Fault{v.lane.Lane, at, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) run(ctx context.Context) error {
	v.head.Lane = v.lane.Lane
	for {
		page, err := v.a.Store.Checkpoints(ctx, v.lane.Lane, v.head.N, lanePage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, c := range page {
			if err := v.checkpoint(ctx, c); err != nil {
				return err
			}
		}
	}
	at := fmt.Sprintf("checkpoint %d", v.head.N)
	if v.head.N > 0 && !v.vouched {
		v.fault(at, "the newest checkpoint is not signed by a key of the ring (%s)", v.head.Key)
	}
	if known, ok := v.a.known(v.lane.Lane); ok && (v.head.N < known.n) {
		v.fault(at, "the lane went on to checkpoint %d, which is gone", known.n)
	}
	open, strays, err := v.a.Store.Uncovered(ctx, v.first, v.head)
	if err != nil {
		return err
	}
	if v.lane.Open = open; strays > 0 {
		// Another checkpoint may have been made since.
		if more, err := v.a.Store.Checkpoints(ctx, v.lane.Lane, v.head.N, 1); err != nil || len(more) > 0 {
			return err
		}
		v.fault("entries", "%d stand where no checkpoint covers them", strays)
	}
	v.lane.First, v.lane.Head, v.lane.HeadHash = v.first.N, v.head.N, v.head.Hash
	v.lane.Entries += open
	return nil
}

// known is the lane's head as this process saw it last.
func (a *Audit) known(lane string) (head, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.heads[lane]
	return h, ok
}

func (v *verifier) checkpoint(ctx context.Context, c plane.Checkpoint) error {
	at := fmt.Sprintf("checkpoint %d", c.N)
	cut := false
	switch {
	case v.lane.Checkpoints == 0:
		v.first = c
		if cut = c.N > 1; cut && (v.a.Keep <= 0 || c.At.After(v.a.Clock.Now().Add(-v.a.Keep))) {
			v.fault(at, "the lane begins with it, although it is younger than the retention: what was before is missing")
		}
	case c.N != v.head.N+1:
		v.fault(at, "checkpoint %d is missing", v.head.N+1)
	case c.Prev != v.head.Hash:
		v.fault(at, "it is not chained to the one before")
	}
	known, ok := v.a.Signer.VerifyBy(c.Key, signed(&c), c.Sig)
	if v.vouched = known && ok; known && !ok {
		v.fault(at, "its signature is not of what it says")
	}
	v.lane.Checkpoints++
	after := v.head.Last
	if v.head = c; cut {
		return nil // the checkpoint at the cut of retention: its entries are gone
	}
	h, n := chain(c.Lane, c.N, c.Prev), int64(0)
	err := v.a.Store.Stretch(ctx, c, after, func(e plane.AuditEntry) {
		n++
		v.lane.Entries += int64(len(e.Unfold()))
		addEntry(h, &e)
	})
	switch {
	case err != nil:
		return err
	case n != c.Entries:
		v.fault(at, "%d entries were sealed, %d are there", c.Entries, n)
	case hex.EncodeToString(h.Sum(nil)) != c.Hash:
		v.fault(at, "an entry is not what was sealed")
	}
	return nil
}

// cutMeanwhile reports that retention took something away while the lane was read.
func (v *verifier) cutMeanwhile(ctx context.Context) bool {
	page, err := v.a.Store.Checkpoints(ctx, v.lane.Lane, 0, 1)
	return err == nil && len(v.faults) > 0 && len(page) == 1 && page[0].N > v.first.N
}

// Cut forgets what is older than a time, stretch by stretch.
func (a *Audit) Cut(ctx context.Context, before time.Time) error {
	lanes, err := a.Store.Lanes(ctx)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		for more := true; more; {
			err := a.Store.Write(ctx, func(t plane.Tx) (err error) {
				more, err = a.Store.CutAudit(t, lane, before)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
