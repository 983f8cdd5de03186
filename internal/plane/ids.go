package plane

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"sync"
	"time"
)

// Ids are a prefix and a 26-character lower-case ULID, so they sort by time.
type (
	ConnectionID string // con_…
	RunID        string // run_…
	CallID       string // cal_…
	SessionID    string // ses_…
	ResultID     string // res_…
	ApprovalID   string // apr_…
	EvidenceID   string // evd_…
	MemoryID     string // mem_…
)

// Prefixes of the ids.
const (
	prefixConnection = "con_"
	prefixRun        = "run_"
	prefixCall       = "cal_"
	prefixSession    = "ses_"
	prefixResult     = "res_"
	prefixAudit      = "aud_"
	prefixApproval   = "apr_"
	prefixEvidence   = "evd_"
	prefixMemory     = "mem_"
	prefixRule       = "rul_"
	prefixTicket     = "tkt_"
	prefixToken      = "tok_"
	prefixRevocation = "rvk_"
	prefixClient     = "clt_"
	prefixAuthorized = "aut_"
	prefixSignIn     = "sgn_"
)

// NewConnectionID makes an id; now gives its time part.
func NewConnectionID(now time.Time) ConnectionID { return ConnectionID(newID(prefixConnection, now)) }

// NewRunID makes an id; now gives its time part.
func NewRunID(now time.Time) RunID { return RunID(newID(prefixRun, now)) }

// NewCallID makes an id; now gives its time part.
func NewCallID(now time.Time) CallID { return CallID(newID(prefixCall, now)) }

// NewSessionID makes an id; now gives its time part.
func NewSessionID(now time.Time) SessionID { return SessionID(newID(prefixSession, now)) }

// NewResultID makes an id; now gives its time part.
func NewResultID(now time.Time) ResultID { return ResultID(newID(prefixResult, now)) }

// NewApprovalID makes an id; now gives its time part.
func NewApprovalID(now time.Time) ApprovalID { return ApprovalID(newID(prefixApproval, now)) }

// NewEvidenceID makes an id; now gives its time part.
func NewEvidenceID(now time.Time) EvidenceID { return EvidenceID(newID(prefixEvidence, now)) }

// NewRuleID makes an id; now gives its time part.
func NewRuleID(now time.Time) string { return newID(prefixRule, now) }

// NewAuditID makes an id; now gives its time part.
func NewAuditID(now time.Time) string { return newID(prefixAudit, now) }

// NewTicketID makes an id; now gives its time part.
func NewTicketID(now time.Time) string { return newID(prefixTicket, now) }

// NewTokenID makes an id; now gives its time part.
func NewTokenID(now time.Time) string { return newID(prefixToken, now) }

// NewClientID makes an id; now gives its time part.
func NewClientID(now time.Time) string { return newID(prefixClient, now) }

// NewAuthorizationID makes an id; now gives its time part.
func NewAuthorizationID(now time.Time) string { return newID(prefixAuthorized, now) }

// NewSignInID makes an id; now gives its time part.
func NewSignInID(now time.Time) string { return newID(prefixSignIn, now) }

// NewRevocationID makes an id; now gives its time part.
func NewRevocationID(now time.Time) string { return newID(prefixRevocation, now) }

const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// sequence keeps ids of one millisecond in the order they were made: a list
// sorted by id is a list sorted by time.
var sequence struct {
	mu   sync.Mutex
	ms   uint64
	hi   uint16 // of the 80 bits of chance
	lo   uint64
	used bool
}

// idsBehind is by how much, in milliseconds, a time may be older than the last one's
// and still be numbered after it.
const idsBehind = 2000

// newID writes prefix and a ULID: 48 bits of milliseconds, 80 bits of chance,
// counted up within a millisecond.
func newID(prefix string, now time.Time) string {
	var raw [16]byte
	ms := uint64(now.UnixMilli())
	sequence.mu.Lock()
	if behind := sequence.ms - ms; sequence.used && ms < sequence.ms && behind <= idsBehind {
		ms = sequence.ms // a transaction's time is a little older than the clock's
	}
	if !sequence.used || ms != sequence.ms {
		var chance [10]byte
		rand.Read(chance[:]) // never fails: the runtime stops the program instead
		sequence.ms, sequence.used = ms, true
		sequence.hi = binary.BigEndian.Uint16(chance[:2]) &^ (1 << 15) // room to count
		sequence.lo = binary.BigEndian.Uint64(chance[2:])
	} else if sequence.lo++; sequence.lo == 0 {
		sequence.hi++
	}
	binary.BigEndian.PutUint64(raw[:8], ms<<16|uint64(sequence.hi))
	binary.BigEndian.PutUint64(raw[8:], sequence.lo)
	sequence.mu.Unlock()
	out := make([]byte, len(prefix)+26)
	copy(out, prefix)
	encodeULID(out[len(prefix):], raw)
	return string(out)
}

// encodeULID writes 128 bits as 26 base-32 digits, the first carrying three.
func encodeULID(dst []byte, raw [16]byte) {
	hi := uint64(0)
	for _, b := range raw[:8] {
		hi = hi<<8 | uint64(b)
	}
	lo := uint64(0)
	for _, b := range raw[8:] {
		lo = lo<<8 | uint64(b)
	}
	for i := 25; i >= 0; i-- {
		dst[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
}

// ValidID reports whether s is prefix and a well-formed ULID.
func ValidID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != 26 {
		return false
	}
	for i := range len(rest) {
		if strings.IndexByte(crockford, rest[i]) < 0 {
			return false
		}
	}
	return true
}

// IsRunID and IsCallID tell the two ids that people type apart.
func IsRunID(s string) bool { return ValidID(prefixRun, s) }

// IsConnectionID reports whether s is the id of a connection.
func IsConnectionID(s string) bool { return ValidID(prefixConnection, s) }

// IsCallID reports whether s is the id of a call.
func IsCallID(s string) bool { return ValidID(prefixCall, s) }

// IsApprovalID reports whether s is the id of an approval.
func IsApprovalID(s string) bool { return ValidID(prefixApproval, s) }

// MemoryIDFor is the id of what one tool use of a run remembers: the same however often
// it is done.
func MemoryIDFor(run RunID, use string) MemoryID {
	sum := sha256.Sum256([]byte(string(run) + " " + use))
	out := make([]byte, len(prefixMemory)+26)
	copy(out, prefixMemory)
	encodeULID(out[len(prefixMemory):], [16]byte(sum[:16]))
	return MemoryID(out)
}
