package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"patchbay/internal/plane"
)

// StatsInput says which calls are counted.
type StatsInput struct {
	Period string `json:"period,omitempty" enum:"24h,7d,30d" default:"24h" help:"Of the last 24h, 7d or 30d."`
	Agent  string `json:"agent,omitempty" help:"Of one agent." predictor:"agent"`
}

// Stats are calls, counted.
type Stats struct {
	Period string     `json:"period"`
	Since  time.Time  `json:"since"`
	Calls  int        `json:"calls"`
	Failed int        `json:"failed"` // and those whose outcome nobody knows
	P50    int64      `json:"p50_ms"`
	P95    int64      `json:"p95_ms"`
	Slots  []StatSlot `json:"slots"`
	Tools  []StatTool `json:"tools"` // the busiest
}

// StatSlot is one hour, or one day.
type StatSlot struct {
	At     time.Time `json:"at"`
	Calls  int       `json:"calls"`
	Failed int       `json:"failed"`
	P50    int64     `json:"p50_ms"`
	P95    int64     `json:"p95_ms"`
}

// StatTool is one tool.
type StatTool struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
	Calls  int    `json:"calls"`
	Failed int    `json:"failed"`
	P50    int64  `json:"p50_ms"`
	P95    int64  `json:"p95_ms"`
}

// Text draws the busiest tools.
func (o *Stats) Text(w io.Writer, s Style) {
	fmt.Fprintf(w, "%d calls in %s, %d failed or unknown, p50 %d ms, p95 %d ms\n", o.Calls, o.Period, o.Failed, o.P50, o.P95)
	var rows [][]string
	for _, t := range o.Tools {
		rows = append(rows, []string{t.Server, t.Tool, fmt.Sprint(t.Calls), fmt.Sprint(t.Failed), fmt.Sprint(t.P50), fmt.Sprint(t.P95)})
	}
	table(w, s, []string{"SERVER", "TOOL", "CALLS", "FAILED", "P50 MS", "P95 MS"}, rows)
}

// maxStatTools is how many tools are named.
const maxStatTools = 20

var periods = map[string]struct {
	slot time.Duration
	n    int
}{"24h": {time.Hour, 24}, "7d": {6 * time.Hour, 28}, "30d": {24 * time.Hour, 30}}

func statsCommand(d Deps) *Command {
	return define(About{Name: "stats", Summary: "Counts the calls of a time: how many, how many failed, how long they took.", ReadOnly: true, Right: plane.RunsRead, Example: "stats --period 7d"},
		func(ctx context.Context, who plane.Principal, in *StatsInput) (*Stats, error) {
			if !d.Policy().Admin(who) && (in.Agent == "" || !d.Policy().Operator(who, in.Agent)) {
				return nil, plane.Errorf(plane.Forbidden, "All calls are the org admins' to count, and those of an agent its operators'.").Then("patchbay stats --agent NAME")
			}
			in.Period = cmp.Or(in.Period, "24h")
			p, ok := periods[in.Period]
			if !ok {
				return nil, plane.Errorf(plane.InvalidInput, "The period is 24h, 7d or 30d.").At("period")
			}
			since := d.Now().Truncate(p.slot).Add(-time.Duration(p.n-1) * p.slot)
			got, err := d.Stats(ctx, since, p.slot, in.Agent)
			if err != nil {
				return nil, err
			}
			return statsOf(in.Period, since, p.slot, p.n, got), nil
		})
}

func statsOf(period string, since time.Time, slot time.Duration, n int, got plane.CallStats) *Stats {
	out := &Stats{Period: period, Since: since, Tools: []StatTool{}}
	var all plane.Histogram
	for i := range n {
		out.Slots = append(out.Slots, StatSlot{At: since.Add(time.Duration(i) * slot)})
	}
	ms := func(h *plane.Histogram, q float64) int64 { return h.Quantile(q).Milliseconds() }
	for _, s := range got.Slots {
		if s.N < 0 || s.N >= n {
			continue
		}
		at := &out.Slots[s.N]
		at.Calls, at.Failed, at.P50, at.P95 = s.Calls.Count(), s.Failed, ms(&s.Calls, .5), ms(&s.Calls, .95)
		all.Add(s.Calls)
		out.Failed += s.Failed
	}
	out.Calls, out.P50, out.P95 = all.Count(), ms(&all, .5), ms(&all, .95)
	for _, t := range got.Tools {
		out.Tools = append(out.Tools, StatTool{t.Server, t.Tool, t.Calls.Count(), t.Failed, ms(&t.Calls, .5), ms(&t.Calls, .95)})
	}
	slices.SortStableFunc(out.Tools, func(a, b StatTool) int { return b.Calls - a.Calls })
	out.Tools = out.Tools[:min(len(out.Tools), maxStatTools)]
	return out
}
