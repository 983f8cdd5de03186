package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// callIDTime is how much of a call's id tells its time.
const callIDTime = len("cal_") + 10

// firstCallID is before the id of every call from a time on.
func firstCallID(at time.Time) string { return string(plane.NewCallID(at))[:callIDTime] }

// CallStats counts the calls since a time that a filter lets through, in slots of a length.
// Calls that have not ended are left out.
func (s *Store) CallStats(ctx context.Context, since time.Time, slot time.Duration, f plane.CallFilter) (plane.CallStats, error) {
	var out plane.CallStats
	bucket := strings.Builder{}
	bucket.WriteString("CASE")
	for i, b := range plane.StatBounds {
		fmt.Fprintf(&bucket, " WHEN done_at - planned_at <= %d THEN %d", b.Microseconds(), i)
	}
	fmt.Fprintf(&bucket, " ELSE %d END", len(plane.StatBounds))
	const bad = `CASE WHEN state IN ('failed', 'unknown') THEN 1 ELSE 0 END`
	cond, args := where("", []equal{{"agent", f.Agent}, {"server", f.Server}, {"connection", string(f.Connection)}})
	cond, args = ` FROM calls WHERE id >= ? AND done_at > 0 AND `+cond, append([]any{firstCallID(since)}, args...)
	// What a person took to approve is nobody's time.
	const whole, upstream = `SUM(CASE WHEN approval = '' THEN done_at - planned_at ELSE 0 END)`, `SUM(CASE WHEN approval = '' THEN upstream ELSE 0 END)`
	err := s.each(ctx, func(r *sql.Rows) error {
		var n, b, failed, count int
		var all, up int64
		if err := r.Scan(&n, &b, &failed, &count, &all, &up); err != nil {
			return err
		}
		if len(out.Slots) == 0 || out.Slots[len(out.Slots)-1].N != n {
			out.Slots = append(out.Slots, plane.CallSlot{N: n})
		}
		at := &out.Slots[len(out.Slots)-1]
		at.Calls[b] += count
		at.Failed += failed * count
		at.Upstream += time.Duration(up) * time.Microsecond
		at.Gateway += time.Duration(max(all-up, 0)) * time.Microsecond
		return nil
	}, `SELECT (planned_at - ?) / ?, `+bucket.String()+`, `+bad+`, COUNT(*), `+whole+`, `+upstream+cond+` GROUP BY 1, 2, 3 ORDER BY 1`, append([]any{plane.Micros(since), slot.Microseconds()}, args...)...)
	if err != nil {
		return out, err
	}
	err = s.each(ctx, func(r *sql.Rows) error {
		var server, tool string
		var b, failed, count int
		if err := r.Scan(&server, &tool, &b, &failed, &count); err != nil {
			return err
		}
		if n := len(out.Tools); n == 0 || out.Tools[n-1].Server != server || out.Tools[n-1].Tool != tool {
			out.Tools = append(out.Tools, plane.ToolStats{Server: server, Tool: tool})
		}
		at := &out.Tools[len(out.Tools)-1]
		at.Calls[b] += count
		at.Failed += failed * count
		return nil
	}, `SELECT server, tool, `+bucket.String()+`, `+bad+`, COUNT(*)`+cond+` GROUP BY 1, 2, 3, 4 ORDER BY 1, 2`, args...)
	if err != nil {
		return out, err
	}
	err = s.each(ctx, func(r *sql.Rows) error {
		var o plane.OriginStats
		err := r.Scan(&o.Origin, &o.Count)
		out.Origins = append(out.Origins, o)
		return err
	}, `SELECT origin, COUNT(*)`+cond+` AND state IN ('failed', 'unknown') GROUP BY 1 ORDER BY 2 DESC, 1`, args...)
	return out, err
}
