package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"patchbay/internal/plane"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

func TestSQLite(t *testing.T) {
	storetest.Exercise(t, openSQLite)
}

func openSQLite(t *testing.T, clock plane.Clock) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "a?b#c%.db"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestPostgres starts a cluster of its own. It fails where PostgreSQL is
// missing: a database that is promised must not go untested.
func TestPostgres(t *testing.T) {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	admin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	var n atomic.Int32
	storetest.Exercise(t, func(t *testing.T, clock plane.Clock) *store.Store {
		name := fmt.Sprintf("t%d", n.Add(1))
		if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		cfg, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(t.Context(), store.Options{URL: fmt.Sprintf("postgres://postgres@%s:%d/%s?sslmode=disable", cfg.Host, cfg.Port, name), Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// What Close is told to write is on the disk when it returns.
func TestCloseFlushes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := s.WriteBehind(func(tx plane.Tx) error { return s.SetMeta(tx, fmt.Sprint(i), "v") }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), func(plane.Tx) error { return nil }); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("a write to a closed store: %v", err)
	}
	again, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if v, err := again.Meta(t.Context(), "99"); err != nil || v != "v" {
		t.Fatalf("%q, %v", v, err)
	}
}

func TestBatchesShareCommits(t *testing.T) {
	s := openSQLite(t, nil)
	before := s.Stats()
	var wg sync.WaitGroup
	hold := make(chan struct{})
	wg.Go(func() { // keeps the writer busy so that the rest gathers
		s.Write(t.Context(), func(plane.Tx) error { <-hold; return nil })
	})
	time.Sleep(20 * time.Millisecond)
	for i := range 100 {
		wg.Go(func() {
			if err := s.Write(t.Context(), func(tx plane.Tx) error { return s.SetMeta(tx, fmt.Sprint(i), "v") }); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	close(hold)
	wg.Wait()
	after := s.Stats()
	if commits := after.Commits - before.Commits; commits > 10 || after.Writes-before.Writes != 101 {
		t.Errorf("%d writes took %d commits", after.Writes-before.Writes, commits)
	}
}

// An error of the library may hold the URL with its password.
func TestOpenErrorHidesThePassword(t *testing.T) {
	_, err := store.Open(t.Context(), store.Options{URL: "postgres://u:s3cretpw@127.0.0.1:1/x?bogus=%zz"})
	if err == nil {
		t.Fatal("opened")
	}
	for e := err; e != nil; e = unwrap(e) {
		if contains(e.Error(), "s3cretpw") {
			t.Errorf("shows the password: %v", e)
		}
	}
}

func unwrap(err error) error {
	u, ok := err.(interface{ Unwrap() error })
	if !ok {
		return nil
	}
	return u.Unwrap()
}

func contains(s, sub string) bool {
	for i := 0; i+len(sub) <= len(s); i++ {
		if s[i:i+len(sub)] == sub {
			return true
		}
	}
	return false
}

func TestFilesAreInTheDirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "p.db")})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Stat(filepath.Join(dir, "p.db")); err != nil {
		t.Fatal(err)
	}
}
