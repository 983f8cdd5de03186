package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/store"
)

func chat(t *testing.T, s *store.Store, clock *Clock) {
	ctx := context.Background()
	add := func(id string) (fresh bool) {
		t.Helper()
		write(t, s, func(tx plane.Tx) (err error) {
			fresh, err = s.AddChatWork(tx, &plane.ChatWork{ID: id, Kind: "message", Body: []byte("sealed"), By: "U1", Channel: "C1"})
			return err
		})
		return fresh
	}
	for _, id := range []string{"a", "b", "c"} {
		if !add(id) {
			t.Errorf("%s is not new", id)
		}
	}
	if add("a") {
		t.Error("an event that comes twice is two")
	}
	var got atomic.Int64
	var wg sync.WaitGroup
	for _, owner := range []string{"one", "two", "three"} {
		wg.Go(func() {
			works, err := s.ClaimChatWork(ctx, owner, clock.Now().Add(time.Minute), 10)
			if err != nil {
				t.Error(err)
			}
			got.Add(int64(len(works)))
		})
	}
	wg.Wait()
	if got.Load() != 3 {
		t.Errorf("%d works were taken up of 3", got.Load())
	}
	clock.Pass(2 * time.Minute) // their processes are dead
	works, err := s.ClaimChatWork(ctx, "next", clock.Now().Add(time.Minute), 1)
	must(t, err)
	if len(works) != 1 || works[0].ID != "a" || works[0].Attempts != 2 || works[0].Owner != "next" || string(works[0].Body) != "sealed" {
		t.Fatalf("%+v", works)
	}
	w := works[0]
	w.Run, w.Message = "run_1", "1.5"
	write(t, s, func(tx plane.Tx) error { return s.SaveChatWork(tx, &w) })
	for _, find := range []func() (plane.ChatWork, error){
		func() (plane.ChatWork, error) { return s.ChatWorkOfRun(ctx, "run_1") },
		func() (plane.ChatWork, error) { return s.ChatWorkOfMessage(ctx, "C1", "1.5") },
		func() (plane.ChatWork, error) { return s.ChatWorkByID(ctx, "a") },
	} {
		if x, err := find(); err != nil || x.ID != "a" || x.Message != "1.5" || x.By != "U1" {
			t.Errorf("%+v %v", x, err)
		}
	}
	for _, find := range []func() (plane.ChatWork, error){
		func() (plane.ChatWork, error) { return s.ChatWorkOfRun(ctx, "") },
		func() (plane.ChatWork, error) { return s.ChatWorkOfMessage(ctx, "C2", "1.5") },
	} {
		if x, err := find(); plane.KindOf(err) != plane.NotFound {
			t.Errorf("%+v %v", x, err)
		}
	}
	stranger := w
	stranger.Owner = "one"
	if err := s.Write(ctx, func(tx plane.Tx) error { return s.SaveChatWork(tx, &stranger) }); plane.KindOf(err) != plane.Conflict {
		t.Errorf("a former holder writes: %v", err)
	}
	write(t, s, func(tx plane.Tx) error { return s.HoldChatWork(tx, "next", clock.Now().Add(time.Hour)) })
	clock.Pass(10 * time.Minute)
	write(t, s, func(tx plane.Tx) error {
		for who, want := range map[string]bool{"one": false, "next": true} {
			x := w
			x.Owner = who
			if ok, err := s.EndChatWork(tx, &x); err != nil || ok != want {
				t.Errorf("%s ends it: %v %v", who, ok, err)
			}
		}
		return nil
	})
	if x, err := s.ChatWorkByID(ctx, "a"); err != nil || len(x.Body) != 0 {
		t.Errorf("what was said is kept: %+v %v", x, err)
	}
	if add("a") {
		t.Error("an event that was answered comes again")
	}
	givenBack(t, s, clock)
	cards(t, s)
	clock.Pass(30 * 24 * time.Hour)
	must(t, s.SweepChat(ctx, clock.Now().Add(-24*time.Hour)))
	if !add("a") {
		t.Error("it is remembered for ever")
	}
	if x, err := s.ChatWorkByID(ctx, "b"); err != nil || x.ID != "b" {
		t.Errorf("one that nobody answered is gone: %v", err)
	}
}

func cards(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := context.Background()
	c := plane.ChatCard{Hash: "h1", Subject: "apr_1", Asked: "U1"}
	write(t, s, func(tx plane.Tx) error {
		for _, want := range []bool{true, false} {
			if fresh, err := s.AddChatCard(tx, &c); err != nil || fresh != want {
				t.Errorf("%v %v", fresh, err)
			}
			c.Hash = "h2"
		}
		return nil
	})
	c.Hash, c.Channel, c.Message = "h1", "D1", "2.5"
	write(t, s, func(tx plane.Tx) error { return s.PostedChatCard(tx, &c) })
	write(t, s, func(tx plane.Tx) error { return s.DropChatCard(tx, "h1") }) // it is posted
	for _, hash := range []string{"h1", ""} {
		if got, err := s.ChatCards(ctx, hash); err != nil || len(got) != 1 || got[0].Message != "2.5" || got[0].State != "open" || got[0].Asked != "U1" {
			t.Errorf("%+v %v", got, err)
		}
	}
	write(t, s, func(tx plane.Tx) error {
		for _, want := range []bool{true, false} {
			if ok, err := s.EndChatCard(tx, "h1"); err != nil || ok != want {
				t.Errorf("%v %v", ok, err)
			}
		}
		return nil
	})
	if got, err := s.ChatCards(ctx, ""); err != nil || len(got) != 0 {
		t.Errorf("%+v %v", got, err)
	}
}

// givenBack: what a process gives back when it ends was not tried, and what is left for
// later is taken up then.
func givenBack(t *testing.T, s *store.Store, clock *Clock) {
	t.Helper()
	ctx := context.Background()
	works, err := s.ClaimChatWork(ctx, "last", clock.Now().Add(time.Minute), 10)
	must(t, err)
	if len(works) != 2 || works[0].Attempts != 2 {
		t.Fatalf("%+v", works)
	}
	write(t, s, func(tx plane.Tx) error { return s.DeferChatWork(tx, &works[0], clock.Now().Add(time.Hour)) })
	write(t, s, func(tx plane.Tx) error { return s.ReleaseChatWork(tx, "last") })
	again, err := s.ClaimChatWork(ctx, "other", clock.Now().Add(time.Minute), 10)
	must(t, err)
	if len(again) != 1 || again[0].ID != works[1].ID || again[0].Attempts != 2 {
		t.Errorf("what was given back counts as tried, or what is for later is taken: %+v", again)
	}
}
