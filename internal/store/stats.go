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

// CallStats counts the calls since a time, in slots of a length; an agent, where one is
// named, alone. Calls that have not ended count in their slot, in no bucket.
func (s *Store) CallStats(ctx context.Context, since time.Time, slot time.Duration, agent string) (plane.CallStats, error) {
	var out plane.CallStats
	bucket := strings.Builder{}
	bucket.WriteString("CASE")
	for i, b := range plane.StatBounds {
		fmt.Fprintf(&bucket, " WHEN done_at - planned_at <= %d THEN %d", b.Microseconds(), i)
	}
	fmt.Fprintf(&bucket, " ELSE %d END", len(plane.StatBounds))
	from := string(plane.NewCallID(since))[:callIDTime]
	const bad = `CASE WHEN state IN ('failed', 'unknown') THEN 1 ELSE 0 END`
	cond, args := ` FROM calls WHERE id >= ? AND done_at > 0`, []any{from}
	if agent != "" {
		cond, args = cond+` AND agent = ?`, append(args, agent)
	}
	err := s.each(ctx, func(r *sql.Rows) error {
		var n, b, failed, count int
		if err := r.Scan(&n, &b, &failed, &count); err != nil {
			return err
		}
		if len(out.Slots) == 0 || out.Slots[len(out.Slots)-1].N != n {
			out.Slots = append(out.Slots, plane.CallSlot{N: n})
		}
		at := &out.Slots[len(out.Slots)-1]
		at.Calls[b] += count
		at.Failed += failed * count
		return nil
	}, `SELECT (planned_at - ?) / ?, `+bucket.String()+`, `+bad+`, COUNT(*)`+cond+` GROUP BY 1, 2, 3 ORDER BY 1`, append([]any{plane.Micros(since), slot.Microseconds()}, args...)...)
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
	return out, err
}
