package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"time"

	"patchbay/internal/plane"
)

// AuditStore is what keeping the audit needs of a database.
type AuditStore interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	Lanes(ctx context.Context) ([]string, error)
	TakeLease(ctx context.Context, name, owner string, until time.Time) (bool, error)
	Seal(t plane.Tx, lane string, most int, sign func(before *plane.Checkpoint, entries []plane.AuditEntry) plane.Checkpoint) (bool, error)
	AuditReader
}

// AuditReader reads the audit back.
type AuditReader interface {
	Checkpoints(ctx context.Context, lane string, after int64, limit int) ([]plane.Checkpoint, error)
	Lane(ctx context.Context, lane, after string, limit int, fn func(plane.AuditEntry)) (last string, err error)
	CutAudit(t plane.Tx, lane string, before time.Time) error
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
	Owner  string // names this process in the lease
}

const (
	sealLease = 10 * time.Second
	sealMost  = 5000 // entries of one checkpoint
	lanePage  = 2000
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
			err := a.Store.Write(ctx, func(t plane.Tx) (err error) {
				more, err = a.Store.Seal(t, lane, sealMost, func(before *plane.Checkpoint, entries []plane.AuditEntry) plane.Checkpoint {
					return a.checkpoint(t.Now(), lane, before, entries)
				})
				return err
			})
			if plane.KindOf(err) == plane.Conflict {
				break // somebody wrote or sealed meanwhile: at the next round
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
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
func (a *Audit) Verify(ctx context.Context) (Verified, error) {
	var out Verified
	lanes, err := a.Store.Lanes(ctx)
	if err != nil {
		return out, err
	}
	for _, lane := range lanes {
		v := &verifier{a: a, lane: VerifiedLane{Lane: lane}, by: map[int64]*stretch{}}
		if err := v.run(ctx); err != nil {
			return out, err
		}
		out.Lanes = append(out.Lanes, v.lane)
		out.Faults = append(out.Faults, v.faults...)
	}
	return out, nil
}

type stretch struct {
	plane.Checkpoint
	hash    hash.Hash
	entries int64
}

type verifier struct {
	a      *Audit
	lane   VerifiedLane
	by     map[int64]*stretch
	faults []Fault
}

// maxFaults bounds what is told of one lane.
const maxFaults = 100

func (v *verifier) fault(at, format string, args ...any) {
	if len(v.faults) < maxFaults {
		v.faults = append(v.faults, Fault{v.lane.Lane, at, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) run(ctx context.Context) error {
	if err := v.checkpoints(ctx); err != nil {
		return err
	}
	for after := ""; ; {
		last, err := v.a.Store.Lane(ctx, v.lane.Lane, after, lanePage, v.entry)
		if err != nil {
			return err
		}
		if last == "" {
			break
		}
		after = last
	}
	for n := v.lane.First; n <= v.lane.Head && n > 0; n++ {
		s := v.by[n]
		if s == nil {
			continue
		}
		if n == v.lane.First && n > 1 && s.entries == 0 {
			continue // the cut of retention: its entries are gone, the checkpoint stays
		}
		switch {
		case s.entries != s.Entries:
			v.fault(fmt.Sprintf("checkpoint %d", n), "%d entries were sealed, %d are there", s.Entries, s.entries)
		case hex.EncodeToString(s.hash.Sum(nil)) != s.Hash:
			v.fault(fmt.Sprintf("checkpoint %d", n), "an entry is not what was sealed")
		}
	}
	return nil
}

func (v *verifier) checkpoints(ctx context.Context) error {
	var before *stretch
	vouched := false
	for {
		page, err := v.a.Store.Checkpoints(ctx, v.lane.Lane, v.lane.Head, lanePage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			s := &stretch{Checkpoint: page[i], hash: chain(v.lane.Lane, page[i].N, page[i].Prev)}
			at := fmt.Sprintf("checkpoint %d", s.N)
			switch {
			case before == nil:
				v.lane.First = s.N
			case s.N != before.N+1:
				v.fault(at, "checkpoint %d is missing", before.N+1)
			case s.Prev != before.Hash:
				v.fault(at, "it is not chained to the one before")
			}
			known, ok := v.a.Signer.VerifyBy(s.Key, signed(&s.Checkpoint), s.Sig)
			if vouched = known && ok; known && !ok {
				v.fault(at, "its signature is not of what it says")
			}
			v.by[s.N], before = s, s
			v.lane.Checkpoints++
			v.lane.Head, v.lane.HeadHash = s.N, s.Hash
		}
	}
	if before != nil && !vouched {
		v.fault(fmt.Sprintf("checkpoint %d", v.lane.Head), "the newest checkpoint is not signed by a key of the ring (%s)", before.Key)
	}
	return nil
}

func (v *verifier) entry(e plane.AuditEntry) {
	v.lane.Entries++
	if e.Seal == 0 {
		v.lane.Open++
		return
	}
	s := v.by[e.Seal]
	if s == nil {
		v.fault(e.ID, "it says that checkpoint %d covers it, which is not there", e.Seal)
		return
	}
	s.entries++
	addEntry(s.hash, &e)
}

// Cut forgets what is older than a time, stretch by stretch.
func (a *Audit) Cut(ctx context.Context, before time.Time) error {
	lanes, err := a.Store.Lanes(ctx)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		if err := a.Store.Write(ctx, func(t plane.Tx) error { return a.Store.CutAudit(t, lane, before) }); err != nil {
			return err
		}
	}
	return nil
}
