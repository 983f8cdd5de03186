package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"patchbay/internal/plane"
)

// StatsInput says which calls are counted.
type StatsInput struct {
	Period string `json:"period,omitempty" enum:"24h,7d,30d" default:"24h" help:"Of the last 24h, 7d or 30d."`
	Agent  string `json:"agent,omitempty" help:"Of one agent." predictor:"agent"`
	Server string `json:"server,omitempty" help:"Of one server, by name or id." predictor:"server"`
}

// Stats are calls, counted.
type Stats struct {
	Period   string       `json:"period"`
	Since    time.Time    `json:"since"`
	Calls    int          `json:"calls"`
	Failed   int          `json:"failed"` // and those whose outcome nobody knows
	P50      int64        `json:"p50_ms"`
	P95      int64        `json:"p95_ms"`
	Gateway  float64      `json:"gateway_mean_ms"`  // spent in Patchbay, of a call, without what a person took to approve it
	Upstream float64      `json:"upstream_mean_ms"` // waiting for its server
	Slots    []StatSlot   `json:"slots"`
	Tools    []StatTool   `json:"tools"`   // the busiest
	Origins  []StatOrigin `json:"origins"` // of failures
}

// StatOrigin counts the failures of one origin.
type StatOrigin struct {
	Origin string `json:"origin"` // auth, policy, transport, protocol, tool, or empty: not kept
	Count  int    `json:"count"`
}

// StatSlot is one hour, or one day.
type StatSlot struct {
	At       time.Time `json:"at"`
	Calls    int       `json:"calls"`
	Failed   int       `json:"failed"`
	P50      int64     `json:"p50_ms"`
	P95      int64     `json:"p95_ms"`
	Gateway  float64   `json:"gateway_mean_ms"`
	Upstream float64   `json:"upstream_mean_ms"`
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
	fmt.Fprintf(w, "%d calls in %s, %d failed or unknown, p50 %d ms, p95 %d ms; of a call %.1f ms here, %.1f ms at its server\n", o.Calls, o.Period, o.Failed, o.P50, o.P95, o.Gateway, o.Upstream)
	for _, f := range o.Origins {
		fmt.Fprintf(w, "failed by %s: %d\n", cmp.Or(f.Origin, "nobody knows what"), f.Count)
	}
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
			in.Period = cmp.Or(in.Period, "24h")
			p, ok := periods[in.Period]
			if !ok {
				return nil, plane.Errorf(plane.InvalidInput, "The period is 24h, 7d or 30d.").At("period")
			}
			since := d.Now().Truncate(p.slot).Add(-time.Duration(p.n-1) * p.slot)
			f, own := plane.CallFilter{Agent: in.Agent}, false
			if in.Server != "" {
				c, err := connection(d.Policy(), who, in.Server)
				if err != nil {
					return nil, err
				}
				f.Connection = c.ID
				own = c.Scope.Kind == plane.ScopeUser && c.Scope.Name == who.ID
			}
			if !own && !d.Policy().Admin(who) && (in.Agent == "" || !d.Policy().Operator(who, in.Agent)) {
				return nil, plane.Errorf(plane.Forbidden, "All calls are the org admins' to count, those of an agent its operators', and those of a connection of your own yours.").Then("patchbay stats --agent NAME")
			}
			got, err := d.Stats(ctx, since, p.slot, f)
			if err != nil {
				return nil, err
			}
			return statsOf(in.Period, since, p.slot, p.n, got), nil
		})
}

func statsOf(period string, since time.Time, slot time.Duration, n int, got plane.CallStats) *Stats {
	out := &Stats{Period: period, Since: since, Tools: []StatTool{}, Origins: []StatOrigin{}}
	var all plane.Histogram
	var gateway, upstream time.Duration
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
		at.Gateway, at.Upstream = mean(s.Gateway, at.Calls), mean(s.Upstream, at.Calls)
		gateway, upstream = gateway+s.Gateway, upstream+s.Upstream
		all.Add(s.Calls)
		out.Failed += s.Failed
	}
	out.Calls, out.P50, out.P95 = all.Count(), ms(&all, .5), ms(&all, .95)
	out.Gateway, out.Upstream = mean(gateway, out.Calls), mean(upstream, out.Calls)
	for _, o := range got.Origins {
		out.Origins = append(out.Origins, StatOrigin{string(o.Origin), o.Count})
	}
	for _, t := range got.Tools {
		out.Tools = append(out.Tools, StatTool{t.Server, t.Tool, t.Calls.Count(), t.Failed, ms(&t.Calls, .5), ms(&t.Calls, .95)})
	}
	slices.SortStableFunc(out.Tools, func(a, b StatTool) int { return b.Calls - a.Calls })
	out.Tools = out.Tools[:min(len(out.Tools), maxStatTools)]
	return out
}

// mean is a sum's part of each, in ms.
func mean(sum time.Duration, n int) float64 {
	if n == 0 {
		return 0
	}
	return math.Round(float64(sum.Microseconds())/float64(n)) / 1000
}
