package plane

import "time"

// CallStats are calls of a time, counted.
type CallStats struct {
	Slots   []CallSlot // in order; those without a call are left out
	Tools   []ToolStats
	Origins []OriginStats // of those that failed or are unknown, most first
}

// OriginStats counts the failures of one origin; it is empty for those of before origins
// were kept.
type OriginStats struct {
	Origin ErrorOrigin
	Count  int
}

// CallSlot is the calls that were planned within one slot, by how long they took.
type CallSlot struct {
	N                 int // from the beginning of the time
	Calls             Histogram
	Failed            int
	Gateway, Upstream time.Duration // sums: spent here, and waiting for servers
}

// ToolStats are one tool's calls.
type ToolStats struct {
	Server, Tool string
	Calls        Histogram
	Failed       int
}

// StatBounds are the upper bounds of a Histogram's buckets but the last, which has none.
var StatBounds = []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// Histogram counts by length of time.
type Histogram [14]int

// Count is how many there are.
func (h *Histogram) Count() int {
	n := 0
	for _, c := range h {
		n += c
	}
	return n
}

// Add counts another's.
func (h *Histogram) Add(o Histogram) {
	for i, c := range o {
		h[i] += c
	}
}

// Quantile is about how long the q-th part took at most; q is between 0 and 1.
func (h *Histogram) Quantile(q float64) time.Duration {
	want := q * float64(h.Count())
	seen := 0.0
	for i, c := range h {
		if seen+float64(c) < want || c == 0 {
			seen += float64(c)
			continue
		}
		var from, to time.Duration
		if i > 0 {
			from = StatBounds[i-1]
		}
		if to = 2 * StatBounds[len(StatBounds)-1]; i < len(StatBounds) {
			to = StatBounds[i]
		}
		return from + time.Duration(float64(to-from)*(want-seen)/float64(c))
	}
	return 0
}
