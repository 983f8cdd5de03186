package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
)

// Bounds of memory.
const (
	maxMemory    = 8 << 10 // bytes of one entry
	maxMemories  = 10_000  // of an agent
	maxScanned   = 2_000   // entries that are looked through without an index
	maxRecalled  = 20
	minQuote     = 20 // characters of an excerpt that is known by its words alone
	maxRecallFor = 64 // words of a question
)

var rememberTool = ownTool{plane.ToolSpec{Name: "remember",
	Description: "Keeps a short text beyond this run. Text that is taken word for word from a tool's result may be recalled in every conversation of this agent; anything else only in this conversation.",
	Schema:      json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)}, remember}

var recallTool = ownTool{plane.ToolSpec{Name: "recall",
	Description: "Looks for what was remembered, by words. It returns the texts with where they come from.",
	Schema:      json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":1,"maximum":20}},"required":["query"]}`)}, recall}

// remember keeps a text with its sources. An excerpt of one tool's result comes from
// that call and nothing else; everything else is taken for a mixture of all that the
// run has read and of what people said, and keeps the conversation's restriction.
func remember(ctx context.Context, w *worker, u plane.ToolUse) (string, error) {
	var in struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(u.Input, &in); err != nil || strings.TrimSpace(in.Text) == "" {
		return "", plane.Errorf(plane.InvalidInput, "Give the text to remember.")
	}
	if len(in.Text) > maxMemory {
		return "", plane.Errorf(plane.InvalidInput, "A memory has at most %d bytes.", maxMemory)
	}
	m := plane.Memory{ID: plane.MemoryIDFor(w.run.ID, u.ID+" "+in.Text), Agent: w.run.Agent, Run: w.run.ID, Author: w.run.Principal}
	quoted, err := w.quoted(ctx, in.Text)
	if err != nil {
		return "", err
	}
	if len(quoted) > 0 {
		for _, e := range quoted {
			m.Sources = append(m.Sources, string(e.ID))
			m.Labels |= e.Labels & (plane.Private | plane.Untrusted)
		}
	} else {
		if m.Sources, err = w.e.o.Store.Lineage(ctx, string(w.run.ID)); err != nil {
			return "", err
		}
		m.Labels, m.Conversation = w.run.Labels, w.run.Conversation
		if src := plane.MessageSource(w.run.Conversation); !slices.Contains(m.Sources, src) {
			m.Sources = append(m.Sources, src)
		}
	}
	if len(m.Sources) > plane.MaxSources {
		return "", plane.Errorf(plane.Limited, "The text comes from %d sources; a memory keeps at most %d. Remember an excerpt of one result instead.", len(m.Sources), plane.MaxSources)
	}
	words := ""
	if w.e.o.Search {
		words = in.Text
	}
	body := w.e.o.Ring.Seal(memoryBind(m.ID), []byte(in.Text))
	err = w.e.o.Store.Write(ctx, func(t plane.Tx) error {
		n, err := w.e.o.Store.CountMemories(t, m.Agent)
		if err != nil {
			return err
		}
		if n >= maxMemories {
			return plane.Errorf(plane.Limited, "The agent has %d memories already.", n)
		}
		return w.e.o.Store.AddMemory(t, &m, body, words)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Remembered as %s, from %d sources.", m.ID, len(m.Sources)), nil
}

// quoted are the sources whose results hold a text word for word. A text that repeats
// what people said, or what was sent to a tool, which may give it back, is no quotation;
// nor is what comes from a connection that is not the whole agent's.
func (w *worker) quoted(ctx context.Context, text string) ([]plane.Evidence, error) {
	text = squeezed(text)
	if len([]rune(text)) < minQuote || w.repeats(text) {
		return nil, nil
	}
	seen, err := w.seen(ctx)
	if err != nil {
		return nil, err
	}
	var out []plane.Evidence
	for _, o := range seen {
		if o.source == nil || o.source.ObservedAt.IsZero() || !strings.Contains(squeezed(o.Text), text) {
			continue
		}
		if w.session == nil || !w.session.Shared(o.source.Connection) {
			return nil, nil
		}
		out = append(out, *o.source)
	}
	return out, nil
}

// repeats reports that a text has words of the conversation in it: three in a row that
// somebody said, or anything that was given to a tool.
func (w *worker) repeats(text string) bool {
	text = strings.ToLower(text)
	for _, m := range w.msgs {
		for _, p := range m.Parts {
			switch {
			case p.ToolUse != nil && p.ToolUse.Name != "remember":
				var v any
				if json.Unmarshal(p.ToolUse.Input, &v) != nil || anyWithin(v, text) {
					return true
				}
			case p.Text != "" && m.Role == "user":
				words := strings.Fields(strings.ToLower(p.Text))
				for i := range words {
					if run := strings.Join(words[i:min(i+3, len(words))], " "); len(run) > minEcho && strings.Contains(text, run) {
						return true
					}
				}
			}
		}
	}
	return false
}

// minEcho is the shortest repetition that counts, in bytes.
const minEcho = 3

// anyWithin reports that a string or number somewhere in a value is part of a text.
func anyWithin(v any, text string) bool {
	switch v := v.(type) {
	case string:
		s := strings.ToLower(squeezed(v))
		return len(s) > minEcho && strings.Contains(text, s)
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return anyWithin(x, text) })
	case map[string]any:
		for k, x := range v {
			if anyWithin(k, text) || anyWithin(x, text) {
				return true
			}
		}
	}
	return false
}

// squeezed makes every run of white space one space.
func squeezed(s string) string { return strings.Join(strings.Fields(s), " ") }

// recall looks for memories. What it returns becomes part of what the run has read.
func recall(ctx context.Context, w *worker, u plane.ToolUse) (string, error) {
	var in struct {
		Query string `json:"query"`
		Limit int    `json:"limit"`
	}
	if err := json.Unmarshal(u.Input, &in); err != nil || strings.TrimSpace(in.Query) == "" {
		return "", plane.Errorf(plane.InvalidInput, "Say what to look for.")
	}
	limit := min(cmp.Or(max(in.Limit, 0), 5), maxRecalled)
	found, err := w.find(ctx, wordsOf(in.Query), limit)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "Nothing like that was remembered.", nil
	}
	var labels plane.Labels
	var sources []string
	var b strings.Builder
	for _, m := range found {
		from, err := w.e.o.Store.Lineage(ctx, string(m.ID))
		if err != nil {
			return "", err
		}
		labels |= m.Labels
		sources = append(sources, from...)
		fmt.Fprintf(&b, "%s, %s, from %d sources:\n%s\n\n", m.ID, m.At.UTC().Format("2006-01-02"), len(from), m.Text)
	}
	w.mu.Lock()
	err = w.e.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := w.e.o.Store.SetLineage(t, string(w.run.ID), sources); err != nil {
			return err
		}
		return w.taint(t, labels)
	})
	w.mu.Unlock()
	if err != nil {
		return "", err
	}
	if w.session != nil {
		w.session.AddLabels(labels)
	}
	return bridge.Mark("what was remembered", strings.TrimSpace(b.String()), ""), nil
}

// find ranks memories by the words they share with a question: by the index where it
// is switched on, else by reading the latest.
func (w *worker) find(ctx context.Context, words []string, limit int) ([]plane.Memory, error) {
	var rows []StoredMemory
	var err error
	if w.e.o.Search {
		rows, err = w.e.o.Store.SearchMemories(ctx, w.run.Agent, w.run.Conversation, words, limit)
	} else {
		rows, err = w.e.o.Store.Memories(ctx, w.run.Agent, w.run.Conversation, maxScanned)
	}
	if err != nil {
		return nil, err
	}
	type hit struct {
		m plane.Memory
		n int
	}
	var hits []hit
	for _, r := range rows {
		text, err := w.e.o.Ring.Open(memoryBind(r.ID), r.Sealed)
		if err != nil {
			continue // sealed with a key that is gone
		}
		m := r.Memory
		m.Text = string(text)
		n := 0
		for _, word := range wordsOf(m.Text) {
			if slices.Contains(words, word) {
				n++
			}
		}
		if n > 0 || w.e.o.Search {
			hits = append(hits, hit{m, n})
		}
	}
	if !w.e.o.Search {
		slices.SortStableFunc(hits, func(a, b hit) int { return b.n - a.n })
	}
	out := make([]plane.Memory, 0, limit)
	for _, h := range hits[:min(limit, len(hits))] {
		out = append(out, h.m)
	}
	return out, nil
}

// wordsOf are the different words of a text, in lower case.
func wordsOf(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	slices.Sort(words)
	words = slices.Compact(words)
	return words[:min(len(words), maxRecallFor)]
}
