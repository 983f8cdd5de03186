package store

import (
	"context"
	"database/sql"
	"slices"

	"patchbay/internal/plane"
)

// holder finds who keeps a call from being sent.
func (s *Store) holder(x *tx, c *plane.Call) error {
	var held plane.HeldError
	err := x.each(func(r *sql.Rows) error {
		var at int64
		err := r.Scan(&held.Connection, &held.Target, &held.Call, &held.Tool, &held.Spec, &held.Why, &at, &held.State)
		held.At = plane.FromMicros(at)
		return err
	}, `SELECT c.connection, c.target, c.call, c.tool, c.spec, c.why, c.at, COALESCE((SELECT state FROM calls k WHERE k.id = c.call), '')
		FROM (SELECT * FROM claims WHERE`+claimed+` ORDER BY at LIMIT 1) c`, claimedArgs(c)...)
	if err != nil || held.Call == "" {
		return err
	}
	if held.State == plane.CallDispatched || held.State == plane.CallAwaitingInput {
		return plane.Errorf(plane.Conflict, "Another call is under way on the same target (%s of %s); nothing was sent.", held.Tool, held.Call).
			Then("Try again when it has ended.").Because(&held)
	}
	return plane.Errorf(plane.Conflict, "It is not settled what became of an earlier call on the same target (%s at %s, %s); nothing was sent.",
		held.Tool, held.At.UTC().Format("2006-01-02 15:04 UTC"), held.Call).Then("patchbay runs resolve " + string(held.Call) + " done|not-done").Because(&held)
}

// moveClaim keeps the claim of an effect whose outcome is open, and lets that of one
// that is settled go.
func (s *Store) moveClaim(x *tx, c *plane.Call, from plane.CallState) error {
	if c.Class == plane.Query || c.Target == "" {
		return nil
	}
	why := c.Hold
	switch {
	case c.State == plane.CallUnknown:
		why = c.Reason
	case !c.State.Final():
		return nil
	}
	if why != "" {
		// A named target has one claim; what nobody named may have several, each by its
		// call. (A partial index would have SQLite prepare each dispatch anew, since
		// whether it serves hangs on what is bound.)
		beside := string(c.ID)
		if c.Spec != "" {
			beside = ""
		}
		_, err := x.exec(`INSERT INTO claims (connection, target, call, tool, spec, why, at, beside) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (connection, target, call) DO UPDATE SET why = excluded.why`,
			c.Connection, c.Target, c.ID, c.Tool, c.Spec, why, plane.Micros(x.now), beside)
		return err
	}
	if c.Spec == "" && from != plane.CallUnknown {
		return nil // it had none
	}
	_, err := x.exec(`DELETE FROM claims WHERE connection = ? AND target = ? AND call = ?`, c.Connection, c.Target, c.ID)
	return err
}

// ReleaseClaim lets the claim of a settled call go, by a person's word. It reports
// whether there was one.
func (s *Store) ReleaseClaim(t plane.Tx, id plane.CallID) (bool, error) {
	res, err := own(t).exec(`DELETE FROM claims WHERE call = ? AND EXISTS (SELECT 1 FROM calls WHERE id = ? AND state IN ('succeeded', 'resolved_done'))`, id, id)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// Claims returns the claims that wait for a person, oldest first.
func (s *Store) Claims(ctx context.Context) ([]plane.Claim, error) {
	var out []plane.Claim
	err := s.each(ctx, func(r *sql.Rows) error {
		var c plane.Claim
		var at int64
		err := r.Scan(&c.Connection, &c.Target, &c.Call, &c.Tool, &c.Spec, &c.Why, &at)
		c.At = plane.FromMicros(at)
		out = append(out, c)
		return err
	}, `SELECT connection, target, call, tool, spec, why, at FROM claims WHERE why <> '' ORDER BY at, call LIMIT 1000`)
	return out, err
}

// ClaimsOf returns the claims on a connection's targets that wait for a person.
func (s *Store) ClaimsOf(ctx context.Context, id plane.ConnectionID) ([]plane.Claim, error) {
	all, err := s.Claims(ctx)
	return slices.DeleteFunc(all, func(c plane.Claim) bool { return c.Connection != id }), err
}
