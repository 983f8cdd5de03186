package plane

import (
	"fmt"
	"strconv"
	"strings"
)

// AuditCall is the action of an entry that says how a call ended. Calls that are
// committed together are kept as one entry, AuditCalls, with a line for each: a row
// of the audit costs a tenth of a small query.
const (
	AuditCall  = "call"
	AuditCalls = "calls"
)

// Foldable reports whether an entry can be kept as a line of a folded one.
func (e *AuditEntry) Foldable() bool {
	return e.Action == AuditCall && e.At.IsZero() && !strings.ContainsAny(e.Who, "\t\n") && !strings.ContainsAny(e.What+e.Decision+e.Digest, "\t\n")
}

// FoldAudit makes one entry of several that are foldable.
func FoldAudit(entries []AuditEntry) AuditEntry {
	var b strings.Builder
	b.Grow(len(entries) * 160)
	for i := range entries {
		e := &entries[i]
		for _, v := range []string{e.What, "\t", e.Decision, "\t", e.Digest, "\t", e.Who, "\n"} {
			b.WriteString(v)
		}
	}
	return AuditEntry{Who: "patchbay", Action: AuditCalls, What: b.String(), Decision: strconv.Itoa(len(entries))}
}

// Unfold returns the entries that were made one, in their order; any other entry is
// returned as it is. What does not read as a line is kept whole, so that nothing an
// entry says is left out.
func (e AuditEntry) Unfold() []AuditEntry {
	if e.Action != AuditCalls {
		return []AuditEntry{e}
	}
	var out []AuditEntry
	for line := range strings.Lines(e.What) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
		if len(f) != 4 {
			return []AuditEntry{e}
		}
		one := e
		one.ID, one.Action = fmt.Sprintf("%s.%03d", e.ID, len(out)), AuditCall
		one.What, one.Decision, one.Digest, one.Who = f[0], f[1], f[2], f[3]
		out = append(out, one)
	}
	if strconv.Itoa(len(out)) != e.Decision {
		return []AuditEntry{e}
	}
	return out
}
