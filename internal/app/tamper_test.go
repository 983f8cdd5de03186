package app_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
)

// tamper changes the SQLite file of an app that has stopped, and returns what puts the
// file back as it was.
func tamper(t *testing.T, dir, q string) (undo func()) {
	t.Helper()
	file := filepath.Join(dir, "d", "patchbay.db")
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	res, err := db.Exec(q)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s changed nothing", q)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		for _, more := range []string{"-wal", "-shm"} {
			os.Remove(file + more)
		}
		if err := os.WriteFile(file, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
