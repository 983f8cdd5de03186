package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// Names of the tools that stand for all others where there are too many to offer.
const (
	searchTool = "tool_search"
	callTool   = "tool_call"
)

// How many tools a search returns.
const (
	searchHits = 5
	searchMost = 20
)

var searchDefinitions = [...]plane.Definition{
	ownDefinition(searchTool, true, "Finds tools of the connected servers by what they do. Returns the best ones, each with its name and the schema of its arguments, for "+callTool+".",
		`{"type":"object","properties":{"query":{"type":"string","description":"What the tool should do, in a few words; name the service if you know it."},"limit":{"type":"integer","minimum":1,"maximum":20,"description":"How many tools to return; 5 when left out."}},"required":["query"]}`),
	ownDefinition(callTool, false, "Calls a tool that "+searchTool+" found, by its name and with arguments that fit its schema.",
		`{"type":"object","properties":{"name":{"type":"string","description":"The tool's name, as `+searchTool+` gave it."},"arguments":{"type":"object","description":"The arguments, as the tool's schema wants them."}},"required":["name"]}`),
}

func ownDefinition(name string, reads bool, text, schema string) plane.Definition {
	raw := fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":%s,"annotations":{"readOnlyHint":%v,"openWorldHint":true}}`, name, text, schema, reads)
	return plane.Definition{Name: name, Raw: json.RawMessage(raw), Description: text, InputSchema: json.RawMessage(schema), ReadOnly: reads, Class: plane.Effect}
}

// ownTools are the two, as a caller of that dialect is shown them.
func ownTools(d Dialect) []*Tool {
	out := make([]*Tool, len(searchDefinitions))
	for i := range searchDefinitions {
		def := &searchDefinitions[i]
		schema, back, _ := project(def.InputSchema, d) // of ours: every dialect takes them
		out[i] = &Tool{Alias: def.Name, Definition: def, back: back, Spec: plane.ToolSpec{Name: def.Name, Description: def.Description, Schema: schema}}
	}
	return out
}

// segment is the tools of a connection as they are searched.
func (p *preparedTools) segment() *Segment {
	p.once.Do(func() {
		entries := make([]Entry, len(p.tools))
		for i, c := range p.tools {
			entries[i] = Entry{c.def.Name, c.def.Description, c.def.InputSchema}
		}
		about, _ := clipRunes(p.catalog.Instructions, 2000)
		p.seg = NewSegment(p.conn.Slug+" "+p.conn.Label, p.catalog.Server+" "+about, entries)
	})
	return p.seg
}

// indexes keeps the latest indexes: callers with the same view share one.
type indexes struct {
	mu  sync.Mutex
	all []*builtIndex // the newest last
}

type builtIndex struct {
	lists []*preparedTools
	once  sync.Once
	x     *Index
}

const maxIndexes = 8

func (x *indexes) of(lists []*preparedTools) *Index {
	b := x.entry(lists)
	b.once.Do(func() {
		segments := make([]*Segment, 0, len(lists))
		for _, l := range lists {
			if l != nil {
				segments = append(segments, l.segment())
			}
		}
		b.x = NewIndex(segments)
	})
	return b.x
}

func (x *indexes) entry(lists []*preparedTools) *builtIndex {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.all {
		if slices.Equal(b.lists, lists) {
			return b
		}
	}
	b := &builtIndex{lists: lists}
	if len(x.all) == maxIndexes {
		x.all = slices.Delete(x.all, 0, 1)
	}
	x.all = append(x.all, b)
	return b
}

// find returns the places of the best tools for a question.
func (b *Bridge) find(ctx context.Context, o *offer, question string, n int) []int {
	x := b.indexes.of(o.lists)
	if b.Embeds == nil {
		return x.Search(question, n)
	}
	var texts []string
	for _, l := range o.lists {
		if l != nil {
			for _, c := range l.tools {
				texts = append(texts, l.conn.Slug+" "+c.def.Name+": "+c.def.Description)
			}
		}
	}
	return fuse(n, x.Search(question, closely), b.vectors.rank(ctx, b.Embeds, question, texts))
}

// some names the servers, and tools where they are few, for who found nothing.
func (o *offer) some() string {
	text := "The servers are " + o.served() + "."
	if o.hidden > namedTools {
		return text
	}
	var names []string
	for _, l := range o.lists {
		if l != nil {
			for _, c := range l.tools {
				names = append(names, c.alias)
			}
		}
	}
	return text + " Their tools: " + strings.Join(names, ", ") + "."
}

// namedTools is how many tools are named where none was found.
const namedTools = 100

// at is the candidate at a place of the index.
func (o *offer) at(place int) (p place, ok bool) {
	for i, l := range o.lists {
		if l == nil {
			continue
		}
		if place < len(l.tools) {
			return o.place(i, place), true
		}
		place -= len(l.tools)
	}
	return p, false
}

// Searching reports that the name is that of the search, where the session has it
// instead of its tools.
func (s *Session) Searching(name string) bool { return name == searchTool && s.current().searched }

// foundTool is a tool as a search shows it.
type foundTool struct {
	Name        string          `json:"name"`
	Server      string          `json:"server"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// Search answers tool_search. What it shows, a session may call: policy has left
// the rest out already.
func (s *Session) Search(ctx context.Context, input json.RawMessage) (*Out, error) {
	var in struct {
		Query string `json:"query"`
		Limit int    `json:"limit"`
	}
	if json.Unmarshal(normalized(input), &in) != nil || strings.TrimSpace(in.Query) == "" {
		return &Out{IsError: true, Text: searchTool + " needs a query: what the tool should do, in a few words.", Fault: "bad_arguments"}, nil
	}
	if len(in.Query) > maxQuery {
		in.Query, _ = clipRunes(in.Query, maxQuery)
	}
	if in.Limit <= 0 {
		in.Limit = searchHits
	}
	o := s.current()
	var hits []foundTool
	for _, at := range s.b.find(ctx, o, in.Query, min(in.Limit, searchMost)) {
		p, ok := o.at(at)
		if !ok {
			continue
		}
		if t := p.tool(s.b, o); t != nil {
			hits = append(hits, foundTool{t.Alias, t.Server, t.Spec.Description, t.Spec.Schema})
		}
	}
	if len(hits) == 0 {
		return &Out{Text: "No tool fits that. Try other words. " + o.some()}, nil
	}
	text := ""
	for ; len(hits) > 0; hits = hits[:len(hits)-1] { // as many as one answer takes
		b, err := json.Marshal(map[string]any{"tools": hits})
		if err != nil {
			return nil, err
		}
		if text = string(b); utf8.RuneCountInString(text) <= s.b.Limits.ResultChars {
			break
		}
	}
	out := &Out{Text: Mark(searchTool, Visible(text), "Call one by "+callTool+" with its name.")}
	if s.results() == plane.Raw {
		out.Raw = append(append([]byte(`{"content":[{"type":"text","text":`), quoted(text)...), "}],\"structuredContent\":"+text+"}"...)
	}
	return out, nil
}

// maxQuery is how long a question may be, in characters.
const maxQuery = 2000

func quoted(s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return b
}

// unwrap takes a call of tool_call for the call that it means.
func (s *Session) unwrap(alias string, args json.RawMessage) (string, json.RawMessage) {
	if alias != callTool || !s.current().searched || len(args) == 0 || args[0] != '{' {
		return alias, args
	}
	name, inner := "", json.RawMessage(nil)
	if mcp.Members(args, mcp.Strict, func(key string, v []byte) error {
		switch key {
		case "name":
			name, _ = mcp.String(v)
		case "arguments":
			inner = v
		}
		return nil
	}) != nil || name == callTool || name == searchTool {
		return alias, args
	}
	return name, inner
}

// SideEffectFree reports that a use may run beside others (design D6).
func (s *Session) SideEffectFree(use plane.ToolUse) bool {
	alias, _ := s.unwrap(use.Name, use.Input)
	t, ok := s.Tool(alias)
	return ok && t.Definition.SideEffectFree()
}
