package store

import (
	"patchbay/internal/plane"
)

// foldMost bounds the lines of a folded entry of the audit.
const foldMost = 200

// fold keeps what closures of this transaction say about calls, to be written once
// for all of them at its end.
func (t *tx) fold(e plane.AuditEntry) {
	t.calls, t.changed = append(t.calls, e), true
}

// unfold forgets what a closure said that is taken back.
func (t *tx) unfold(to int) { t.calls = t.calls[:to] }

// flush writes what was kept, before the commit.
func (t *tx) flush() error {
	if err := t.writeRows(); err != nil {
		return err
	}
	for said := t.calls; len(said) > 0; {
		n := min(len(said), foldMost)
		e := said[0]
		if n > 1 {
			e = plane.FoldAudit(said[:n])
		}
		if err := t.addAudit(e); err != nil {
			return err
		}
		said = said[n:]
	}
	return nil
}
