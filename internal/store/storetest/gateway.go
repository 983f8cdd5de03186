package storetest

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func bareNames(t *testing.T, s *store.Store, _ *Clock) {
	ctx := context.Background()
	claim := func(conn plane.ConnectionID, gone []plane.ConnectionID, names ...string) {
		t.Helper()
		var claims []plane.BareName
		for _, n := range names {
			claims = append(claims, plane.BareName{Name: n, Connection: conn, Tool: n})
		}
		must(t, s.ClaimNames(ctx, "general", claims, gone))
	}
	owners := func() map[string]plane.ConnectionID {
		t.Helper()
		list, err := s.BareNames(ctx, "general")
		must(t, err)
		out := map[string]plane.ConnectionID{}
		for _, n := range list {
			out[n.Name] = n.Connection
		}
		return out
	}
	claim("con_a", nil, "look", "find")
	claim("con_b", nil, "look", "send") // the first claim stands
	if got, want := owners(), (map[string]plane.ConnectionID{"look": "con_a", "find": "con_a", "send": "con_b"}); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	claim("con_b", []plane.ConnectionID{"con_a"}, "look") // unless its connection is gone
	if got, want := owners(), (map[string]plane.ConnectionID{"look": "con_b", "send": "con_b"}); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if other, err := s.BareNames(ctx, "review"); err != nil || len(other) != 0 {
		t.Errorf("another agent's: %v %v", other, err)
	}
}

func endedSessions(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	before, err := s.Changes(ctx)
	must(t, err)
	must(t, s.RevokeSession(ctx, "one", clock.Now().Add(time.Hour)))
	must(t, s.RevokeSession(ctx, "two", clock.Now().Add(3*time.Hour)))
	must(t, s.RevokeSession(ctx, "two", clock.Now().Add(9*time.Hour))) // said once
	after, err := s.Changes(ctx)
	must(t, err)
	if before.Sessions == after.Sessions {
		t.Error("replicas are not told")
	}
	clock.Pass(2 * time.Hour)
	got, err := s.RevokedSessions(ctx, clock.Now())
	must(t, err)
	if len(got) != 1 || !got["two"].Equal(clock.Now().Add(time.Hour)) {
		t.Errorf("%v", got)
	}
	must(t, s.SweepSessions(ctx))
	got, err = s.RevokedSessions(ctx, clock.Now().Add(-24*time.Hour))
	must(t, err)
	if keys := slices.Collect(maps.Keys(got)); len(keys) != 1 || keys[0] != "two" {
		t.Errorf("after the sweep: %v", keys)
	}
}

func advertised(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	must(t, s.Advertise(ctx, "a", "http://10.0.0.1:7717", clock.Now().Add(30*time.Second)))
	must(t, s.Advertise(ctx, "b", "http://10.0.0.2:7717", clock.Now().Add(30*time.Second)))
	clock.Pass(20 * time.Second)
	must(t, s.Advertise(ctx, "b", "http://10.0.0.3:7717", clock.Now().Add(30*time.Second)))
	clock.Pass(15 * time.Second) // a has said nothing since
	got, err := s.Replicas(ctx, clock.Now())
	must(t, err)
	if !maps.Equal(got, map[string]string{"b": "http://10.0.0.3:7717"}) {
		t.Errorf("%v", got)
	}
}
