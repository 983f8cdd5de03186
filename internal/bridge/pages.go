package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// pageItems is how many items one page of a list holds.
const pageItems = 250

// pages are an offer's lists as they are sent, written out once for all sessions
// that have the offer.
type pages struct {
	mu sync.Mutex
	by map[string]pagedList
}

type pagedList struct {
	mark  string // of this list in its cursors
	pages []json.RawMessage
}

// Page is one page of a list, as the result of its method. A cursor is good for the
// list that it came with.
func (s *Session) Page(method, cursor string) (json.RawMessage, error) {
	o := s.current()
	o.pages.mu.Lock()
	l, ok := o.pages.by[method]
	if !ok {
		l = o.write(method, s.results())
		if o.pages.by == nil {
			o.pages.by = map[string]pagedList{}
		}
		o.pages.by[method] = l
	}
	o.pages.mu.Unlock()
	if cursor == "" {
		return l.pages[0], nil
	}
	mark, at, _ := strings.Cut(cursor, ".")
	n, err := strconv.Atoi(at)
	if err != nil || mark != l.mark || n < 1 || n >= len(l.pages) {
		return nil, plane.Errorf(plane.InvalidInput, "The cursor is of another list; the list may have changed. Begin without one.")
	}
	return l.pages[n], nil
}

func (o *offer) write(method string, results plane.Results) pagedList {
	var what string
	var items []json.RawMessage
	switch method {
	case mcp.MethodToolsList:
		what, items = "tools", make([]json.RawMessage, 0, len(o.tools))
		for _, t := range o.tools {
			items = append(items, t.Listed(results))
		}
	case mcp.MethodResourcesList:
		what, items = "resources", o.extras.resources
	case mcp.MethodTemplatesList:
		what, items = "resourceTemplates", o.extras.templates
	default:
		what, items = "prompts", o.extras.prompts
	}
	l := pagedList{mark: "0"}
	if len(items) > pageItems {
		h := sha256.New()
		for _, raw := range items {
			h.Write(raw)
		}
		l.mark = hex.EncodeToString(h.Sum(nil)[:8])
	}
	for n := 1; ; n++ {
		rest := items
		next := ""
		if len(items) > pageItems {
			rest, next = items[:pageItems], l.mark+"."+strconv.Itoa(n)
		}
		l.pages = append(l.pages, mcp.ListOf(what, rest, next))
		items = items[len(rest):]
		if len(items) == 0 {
			return l
		}
	}
}
