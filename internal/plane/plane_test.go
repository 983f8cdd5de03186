package plane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIDsSortByTime(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var ids []string
	for i := range 500 {
		ids = append(ids, string(NewCallID(now.Add(time.Duration(i/100)*time.Millisecond))))
	}
	for i := range 500 { // a transaction's time is older than the clock's
		ids = append(ids, string(NewCallID(now.Add(5*time.Millisecond-time.Duration(i%2)*time.Second))))
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Error("ids are out of order, or one stands twice")
	}
	for _, id := range ids {
		if !IsCallID(id) || IsRunID(id) || len(id) != 30 || strings.ToLower(id) != id {
			t.Fatalf("%q", id)
		}
	}
	for _, bad := range []string{"", "cal_", "cal_xyz", "cal_" + strings.Repeat("u", 26), ids[0] + "0", strings.ToUpper(ids[0])} {
		if IsCallID(bad) {
			t.Errorf("%q passes", bad)
		}
	}
	at := string(NewRunID(time.UnixMilli(1469918176385)))
	if !strings.HasPrefix(at, "run_01aryz6s41") { // the specification's example
		t.Errorf("the time part of %s", at)
	}
}

func TestErrorsHideTheirCause(t *testing.T) {
	secret := errors.New("password=hunter2")
	e := Errorf(Unavailable, "The database is away.").Because(secret).Because(errors.New("second")).Then("try again")
	if strings.Contains(e.Error(), "hunter2") || !errors.Is(e, secret) || KindOf(fmt.Errorf("x: %w", e)) != Unavailable {
		t.Errorf("%v", e)
	}
	p := Public(secret)
	if p.Kind != Internal || strings.Contains(p.Message, "hunter2") || p.Cause != secret {
		t.Errorf("%+v", p)
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"connections", "egress", "listen", "models"}
	for word, want := range map[string]string{"conections": "connections", "egres": "egress", "LISTEN": "listen", "zebra": "", "modle": "models"} {
		if got := Nearest(word, keys); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestSlug(t *testing.T) {
	for s, ok := range map[string]bool{"a": true, "linear-2": true, "9": true, "": false, "-a": false, "A": false, "a_b": false, "a.b": false, "é": false, strings.Repeat("a", 32): true, strings.Repeat("a", 33): false} {
		if ValidSlug(s) != ok {
			t.Errorf("%q", s)
		}
	}
}

func TestLimits(t *testing.T) {
	if err := DefaultLimits().Validate(); err != nil {
		t.Fatal(err)
	}
	l := DefaultLimits()
	l.CallsPerRun = 0
	if err := l.Validate(); err == nil || !strings.Contains(err.Error(), "limits.calls_per_run") {
		t.Errorf("%v", err)
	}
	l = DefaultLimits()
	l.ResultChars = 1 << 30
	if err := l.Validate(); err == nil {
		t.Error("result_chars has no bound")
	}
}
