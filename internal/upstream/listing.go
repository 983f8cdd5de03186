package upstream

import (
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// listKey is whose listing it is. Who is empty where all are told the same.
type listKey struct {
	conn    plane.ConnectionID
	version int64
	who     string
}

// listOf is whose listing a grant reads.
func listOf(g policy.Grant) listKey {
	k := listKey{conn: g.ID(), version: g.Version()}
	if g.Sender().Agent != "" {
		k.who = owner(g.Connection(), g)
	}
	return k
}

// forAll reports that what a server lists under a grant is what everybody is shown. Of one
// that has a session for each who uses it, that is the session which nobody calls: what one
// left in theirs must not reach another.
func forAll(g policy.Grant) bool { return g.Sender().Agent == "" || g.Look() }

// list is the latest live listing of a connection.
type list struct {
	at        time.Time
	prints    map[string]string // name -> fingerprint; never changed in place
	fetching  chan struct{}
	fetchedBy error
	renewing  bool // a notice came, and it is read again soon
}

// printsOf are a listing's fingerprints by name.
func printsOf(l catalog.Listed) map[string]string {
	out := make(map[string]string, len(l.Tools))
	for _, raw := range l.Tools {
		name, print := catalog.Identify(raw)
		if _, dup := out[name]; !dup {
			out[name] = print
		}
	}
	return out
}

// know takes a listing that was made for the catalog for what calls are checked
// against too.
func (p *Pool) know(k listKey, began time.Time, prints map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lists[k]
	if l == nil {
		l = &list{}
		p.lists[k] = l
	}
	if !began.Before(l.at) { // a notice since then made it void
		l.prints, l.at = prints, began
	}
}
