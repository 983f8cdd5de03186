package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func aProposal(clock *Clock, team, name, source string) plane.Proposal {
	now := clock.Now()
	return plane.Proposal{ID: plane.NewProposalID(now), Team: team, State: plane.Proposed, Source: source, Why: "because", CreatedAt: now, ExpiresAt: now.Add(30 * 24 * time.Hour),
		Declaration: plane.Declaration{Name: name, Transport: plane.HTTP, URL: "https://a.example.com/mcp", Auth: plane.AuthNone, Deny: []string{"x_*"}}}
}

func declarationsMove(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	add := func(p *plane.Proposal) error {
		return s.Write(ctx, func(tx plane.Tx) error { return s.AddProposal(tx, p) })
	}
	move := func(p plane.Proposal, from, to plane.ProposalState) error {
		p.State, p.DecidedBy, p.DecidedAt, p.ByAdmin = to, "ada", clock.Now(), true
		return s.Write(ctx, func(tx plane.Tx) error { return s.MoveProposal(tx, &p, from) })
	}
	changed := func() string {
		c, err := s.Changes(ctx)
		must(t, err)
		return c.Connections
	}
	before := changed()
	p := aProposal(clock, "payments", "notes", "agent:payments/general")
	must(t, add(&p))
	again := aProposal(clock, "payments", "notes", "person:b")
	wantKind(t, add(&again), plane.Conflict)
	other := aProposal(clock, "legal", "notes", "person:b")
	must(t, add(&other))
	if changed() != before {
		t.Error("what is only proposed changed something")
	}
	got, err := s.ProposalNamed(ctx, "payments", "notes", plane.Proposed, plane.Curated)
	must(t, err)
	if got.ID != p.ID || got.Declaration.Deny[0] != "x_*" || got.Why != "because" || !got.ExpiresAt.Equal(p.ExpiresAt) {
		t.Errorf("%+v", got)
	}
	must(t, s.Write(ctx, func(tx plane.Tx) error { return s.SetFound(tx, p.ID, json.RawMessage(`{"health":"ok"}`)) }))
	must(t, move(p, plane.Proposed, plane.Curated))
	wantKind(t, move(p, plane.Proposed, plane.Curated), plane.Conflict)
	if changed() == before {
		t.Error("what is in force changed nothing")
	}
	must(t, add(&again)) // a change of what is in force may be proposed
	wantKind(t, move(again, plane.Proposed, plane.Curated), plane.Conflict)
	must(t, move(p, plane.Curated, plane.Forgotten))
	must(t, move(again, plane.Proposed, plane.Curated))
	list, err := s.CuratedDeclarations(ctx)
	must(t, err)
	if len(list) != 1 || list[0].ID != again.ID || !list[0].ByAdmin || list[0].DecidedBy != "ada" {
		t.Errorf("%+v", list)
	}
	all, err := s.Proposals(ctx, "payments")
	must(t, err)
	if len(all) != 2 || string(all[1].Found) == "" && string(all[0].Found) == "" {
		t.Errorf("%+v", all)
	}
	_, err = s.ProposalNamed(ctx, "payments", "nothing", plane.Proposed)
	wantKind(t, err, plane.NotFound)
	write(t, s, func(tx plane.Tx) error {
		lately, waiting, err := s.CountProposals(tx, "person:b", "legal", clock.Now().Add(-time.Minute))
		if lately != 2 || waiting != 1 {
			t.Errorf("%d %d", lately, waiting)
		}
		return err
	})
	clock.Pass(31 * 24 * time.Hour)
	write(t, s, func(tx plane.Tx) error {
		gone, err := s.ExpireProposals(tx)
		if len(gone) != 1 || gone[0].ID != other.ID {
			t.Errorf("%+v", gone)
		}
		return err
	})
	wantKind(t, move(other, plane.Proposed, plane.Curated), plane.Conflict)
	clock.Pass(500 * 24 * time.Hour)
	must(t, s.SweepDeclarations(ctx, clock.Now().Add(-400*24*time.Hour)))
	if all, err := s.Proposals(ctx, "legal"); err != nil || len(all) != 0 {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := s.Proposals(ctx, "payments"); err != nil || len(all) != 1 {
		t.Errorf("what is in force was swept: %+v %v", all, err)
	}
}

func settingsKeep(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	put := func(v plane.Layered) error {
		return s.Write(ctx, func(tx plane.Tx) error { w := v; return s.PutLayer(tx, &w) })
	}
	must(t, put(plane.Layered{Agent: "general", Servers: []string{"a"}, By: "ada"}))
	wantKind(t, put(plane.Layered{Agent: "general", Servers: []string{"b"}, By: "bob"}), plane.Conflict)
	must(t, put(plane.Layered{Agent: "general", Servers: []string{"a", "b"}, Rev: 1, By: "bob"}))
	wantKind(t, put(plane.Layered{Agent: "general", Servers: nil, Rev: 1}), plane.Conflict)
	layers, err := s.Layers(ctx)
	must(t, err)
	if len(layers) != 1 || layers[0].Rev != 2 || len(layers[0].Servers) != 2 || layers[0].By != "bob" || layers[0].Agent != "general" {
		t.Errorf("%+v", layers)
	}
	d := plane.Destination{Name: "x", Hosts: []string{"x.example.com"}, Port: 443}
	write(t, s, func(tx plane.Tx) error { return s.PutDestination(tx, &d, "ada") })
	d.Port = 8443
	write(t, s, func(tx plane.Tx) error { return s.PutDestination(tx, &d, "ada") })
	if list, err := s.Destinations(ctx); err != nil || len(list) != 1 || list[0].Port != 8443 {
		t.Errorf("%+v %v", list, err)
	}
	write(t, s, func(tx plane.Tx) error { return s.DropDestination(tx, "x") })
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.DropDestination(tx, "x") }), plane.NotFound)
	for i := range 2 {
		write(t, s, func(tx plane.Tx) error {
			return s.PutTeamSecret(tx, &plane.TeamSecret{Team: "payments", Ref: "linear", Blob: fmt.Appendf(nil, "blob %d", i), By: "ada"})
		})
	}
	if v, err := s.TeamSecret(ctx, "payments", "linear"); err != nil || v.Rev != 2 || string(v.Blob) != "blob 1" {
		t.Errorf("%+v %v", v, err)
	}
	write(t, s, func(tx plane.Tx) error { return s.DropTeamSecret(tx, "payments", "linear") })
	wantKind(t, s.Write(ctx, func(tx plane.Tx) error { return s.DropTeamSecret(tx, "payments", "linear") }), plane.NotFound)
	_, err = s.TeamSecret(ctx, "payments", "linear")
	wantKind(t, err, plane.NotFound)
	snap := plane.RepoSnapshot{Team: "payments", URL: "https://g.example.com/r", Commit: "c1", Declared: []plane.Declared{{Declaration: plane.Declaration{Name: "docs"}, Layer: plane.LayerRepository}}, Wanted: []string{"w"}, At: clock.Now()}
	write(t, s, func(tx plane.Tx) error { return s.PutRepository(tx, &snap, true) })
	snap.Commit = "c2"
	write(t, s, func(tx plane.Tx) error { return s.PutRepository(tx, &snap, false) })
	if list, err := s.Repositories(ctx); err != nil || len(list) != 1 || list[0].Commit != "c2" || list[0].Declared[0].Name != "docs" || list[0].Wanted[0] != "w" {
		t.Errorf("%+v %v", list, err)
	}
}

func mirrorKeeps(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	entry := func(name, version string, latest bool) plane.MirrorEntry {
		return plane.MirrorEntry{Name: name, Version: version, Latest: latest, Body: []byte(`{"server":{"name":"` + name + `"}}`), UpdatedAt: clock.Now()}
	}
	write(t, s, func(tx plane.Tx) error {
		return s.PutMirror(tx, []plane.MirrorEntry{entry("com.a/x", "1", true), entry("com.a/x", "2", true), entry("com.b/100%_y", "1", true)})
	})
	find := func(name, search, afterName, afterVersion string, latest bool) (out string) {
		list, err := s.Mirror(ctx, name, search, afterName, afterVersion, latest, 10)
		must(t, err)
		for _, e := range list {
			out += e.Name + "@" + e.Version + " "
		}
		return out
	}
	for _, c := range []struct{ got, want string }{
		{find("", "", "", "", true), "com.a/x@2 com.b/100%_y@1 "}, {find("", "", "", "", false), "com.a/x@1 com.a/x@2 com.b/100%_y@1 "}, {find("com.a/x", "", "", "", false), "com.a/x@1 com.a/x@2 "},
		{find("", "A/X", "", "", true), "com.a/x@2 "}, {find("", "%_Y", "", "", true), "com.b/100%_y@1 "}, {find("", "_", "", "", true), "com.b/100%_y@1 "}, {find("", "", "com.a/x", "1", false), "com.a/x@2 com.b/100%_y@1 "},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	write(t, s, func(tx plane.Tx) error { return s.DropMirror(tx, "com.a/x", "2") })
	if got := find("com.a/x", "", "", "", true); got != "com.a/x@1 " {
		t.Errorf("the latest is gone, and what is left is %q", got)
	}
	if n, err := s.CountMirror(ctx); err != nil || n != 2 {
		t.Errorf("%d %v", n, err)
	}
}

// egressKeeps holds the gateway's records and its authority.
func egressKeeps(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	add := func(agent, host string, state plane.EgressState, owner string) *plane.EgressRecord {
		clock.Pass(time.Second)
		e := &plane.EgressRecord{ID: plane.NewEgressID(clock.Now()), At: clock.Now(), Agent: agent, Team: "payments", Principal: "ada", Host: host, Port: 443, Method: "POST", Path: "/x", State: state, Owner: owner}
		write(t, s, func(tx plane.Tx) error { return s.AddEgress(tx, e) })
		return e
	}
	list := func(f plane.EgressFilter) []plane.EgressRecord {
		t.Helper()
		f.Limit = 100
		out, err := s.Egress(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	a, b := add("general", "a.example.com", plane.EgressDispatched, "one"), add("coding", "b.example.com", plane.EgressDispatched, "two")
	add("general", "c.example.com", plane.EgressDenied, "")
	a.State, a.Status, a.Sent, a.Received, a.DoneAt = plane.EgressSucceeded, 200, 3, 4, clock.Now()
	write(t, s, func(tx plane.Tx) error { return s.SettleEgress(tx, a) })
	late := *a
	late.State = plane.EgressFailed
	write(t, s, func(tx plane.Tx) error { return s.SettleEgress(tx, &late) }) // it has ended already
	if got := list(plane.EgressFilter{Host: "a.example.com"}); len(got) != 1 || got[0].State != plane.EgressSucceeded || got[0].Status != 200 || got[0].Sent != 3 || got[0].Received != 4 || got[0].Team != "payments" {
		t.Errorf("%+v", got)
	}
	if got := list(plane.EgressFilter{Agent: "general"}); len(got) != 2 || got[0].Host != "c.example.com" {
		t.Errorf("%+v", got)
	}
	if got := list(plane.EgressFilter{Before: b.ID}); len(got) != 1 || got[0].ID != a.ID {
		t.Errorf("%+v", got)
	}
	strand := func() {
		write(t, s, func(tx plane.Tx) error { return s.StrandEgress(tx, clock.Now().Add(-time.Hour)) })
	}
	lease := func(owner string, until time.Time) {
		if _, err := s.TakeLease(ctx, "process/"+owner, owner, until); err != nil {
			t.Fatal(err)
		}
	}
	lease("two", clock.Now().Add(time.Minute))
	strand()
	if got := list(plane.EgressFilter{State: plane.EgressUnknown}); len(got) != 0 {
		t.Errorf("what a process holds was stranded: %+v", got)
	}
	lease("two", clock.Now().Add(-time.Second))
	strand()
	if got := list(plane.EgressFilter{State: plane.EgressUnknown}); len(got) != 1 || got[0].ID != b.ID || got[0].DoneAt.IsZero() {
		t.Errorf("%+v", got)
	}
	_, err := s.Authority(ctx, "egress")
	wantKind(t, err, plane.NotFound)
	put := func(cert string, renew bool) {
		write(t, s, func(tx plane.Tx) error {
			return s.PutAuthority(tx, &plane.Authority{Name: "egress", Cert: cert, Blob: []byte("sealed " + cert)}, renew)
		})
	}
	put("first", false)
	put("another that came too late", false)
	if got, err := s.Authority(ctx, "egress"); err != nil || got.Cert != "first" {
		t.Errorf("%+v %v", got, err)
	}
	put("second", true)
	if got, err := s.Authority(ctx, "egress"); err != nil || got.Cert != "second" || string(got.Blob) != "sealed second" {
		t.Errorf("%+v %v", got, err)
	}
}
