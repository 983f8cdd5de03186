package plane

import (
	"strings"
	"time"
)

// Labels say what kind of data a connection brings, and whether it carries data out.
type Labels uint8

// The labels.
const (
	Private   Labels = 1 << iota // what its tools read is not for everybody
	Untrusted                    // what its tools read was written by outsiders
	Outward                      // its effects reach others
)

var labelNames = []string{"private", "untrusted", "outward"}

// DefaultLabels are a connection's that nobody labelled.
const DefaultLabels = Untrusted

// Names lists labels as people write them.
func (l Labels) Names() []string {
	out := []string{}
	for i, n := range labelNames {
		if l&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return out
}

// ParseLabels reads names of labels; "none" stands for no label.
func ParseLabels(names []string) (Labels, error) {
	var out Labels
next:
	for _, name := range names {
		if name == "none" {
			continue
		}
		for i, n := range labelNames {
			if n == name {
				out |= 1 << i
				continue next
			}
		}
		return 0, Errorf(InvalidInput, "There is no label %q; known are %s and none.", name, strings.Join(labelNames, ", ")).At("labels")
	}
	return out, nil
}

// TaintUse says what an agent's runs do about an outward effect after they read
// private and untrusted data.
type TaintUse string

// Enforce asks a person first.
const (
	TaintOff     TaintUse = "off"
	TaintWarn    TaintUse = "warn"
	TaintEnforce TaintUse = "enforce"
)

// Evidence is where an observation came from: reserved before the call, observed by
// its answer. One without ObservedAt is a reservation, and no result.
type Evidence struct {
	ID          EvidenceID
	Call        CallID
	Run         RunID
	Agent       string
	Provider    string // the endpoint, without a query
	Connection  ConnectionID
	Version     int64
	Tool        string
	Fingerprint string
	Labels      Labels
	ReservedAt  time.Time
	ObservedAt  time.Time
	Digest      string // hex SHA-256 of what the server answered
}

// Stamps reports whether the evidence is the call's own: same account, version,
// tool and definition.
func (e *Evidence) Stamps(c *Call) bool {
	return e.ID == c.Evidence && e.Call == c.ID && e.Connection == c.Connection && e.Version == c.Version && e.Tool == c.Tool && e.Fingerprint == c.Fingerprint
}

// Bounds of provenance.
const (
	MaxSources = 1000 // of one memory or answer
	MaxLineage = 5000 // of a combined lineage; above it is compacted to UnknownSource
)

// UnknownSource stands for provenance that was compacted away.
const UnknownSource = "unknown"

// MessageSource is the provenance of what people said in a conversation.
func MessageSource(conversation string) string { return "message:" + conversation }

// Memory is what an agent keeps beyond a run, with where it came from.
type Memory struct {
	ID           MemoryID
	Agent        string
	Run          RunID
	Author       string // whose run it was
	Conversation string // the only one it may be recalled in; empty for all of the agent's
	Labels       Labels
	Text         string // sealed in the store, but where search is switched on
	At           time.Time
	Sources      []string
}

// Checkpoint closes a stretch of one lane of the audit: every entry of it, in the
// order of their ids, chained to what was before, and signed.
type Checkpoint struct {
	Lane    string
	N       int64
	Entries int64
	Last    string // the highest id
	Prev    string // hash of the checkpoint before; empty for the first
	Hash    string
	At      time.Time
	Ranged  bool   // it covers every id after the one before's last; else the entries say so
	Key     string // id of the key that signed
	Sig     []byte
}

// AuditEntry is a fact that must be on record: what was decided or done, by whom,
// about what, and a digest of the rest.
type AuditEntry struct {
	Lane     string // one per replica
	ID       string
	Seal     int64 // number of the checkpoint that covers it; 0 until then
	At       time.Time
	Who      string
	Action   string
	What     string
	Decision string
	Digest   string
}

// AuditFilter says which entries; the zero value of a field is any. Action and What
// match from their beginning.
type AuditFilter struct {
	Who, Action, What string
	Since, Until      time.Time
	Limit             int
}
