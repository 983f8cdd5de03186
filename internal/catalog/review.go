package catalog

import "patchbay/internal/plane"

// review gives each definition the class that a person gave to its very bytes,
// and every other one effect. It returns the reviews of tools that are listed
// with other bytes now. A tool that is not listed keeps its review.
func review(defs []plane.Definition, reviews []plane.Review) (gone []plane.Review) {
	by := make(map[string]*plane.Review, len(reviews))
	for i := range reviews {
		by[reviews[i].Name] = &reviews[i]
	}
	for i := range defs {
		d := &defs[i]
		d.Class, d.Reviewed = plane.Effect, false
		switch r := by[d.Name]; {
		case r == nil:
		case r.Fingerprint == d.Fingerprint:
			d.Class, d.Reviewed = r.Class, true
		default:
			gone = append(gone, *r)
		}
	}
	return gone
}

// withdraw takes back what was said of definitions that changed since: whoever
// looks at the new one says it again.
func (c *Catalogs) withdraw(t plane.Tx, gone []plane.Review) error {
	for i := range gone {
		r := &gone[i]
		if err := c.store.DropReview(t, r); err != nil {
			return err
		}
		if err := c.store.AddAudit(t, plane.AuditEntry{Who: "server", Action: "review.withdrawn", What: string(r.Connection) + " " + r.Name, Decision: "changed", Digest: r.Fingerprint}); err != nil {
			return err
		}
	}
	return nil
}
