package vault_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// TestMountedSecrets: what an orchestrator mounts is read; names reach nothing outside.
func TestMountedSecrets(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(b.dir, "secrets")
	for name, text := range map[string]string{"secrets/billing": "of the org\n", "secrets/payments/linear": "of payments", "outside": "not a secret of ours", "secrets/huge": strings.Repeat("x", 65<<10)} {
		p := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(b.dir, "outside"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	f, err := vault.OpenFile(dir, b.ring, b.st, plane.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		n    vault.Name
		want string
		kind plane.Kind
	}{
		{vault.Name{Ref: "billing"}, "of the org", ""},
		{vault.Name{Team: "payments", Ref: "linear"}, "of payments", ""},
		{vault.Name{Ref: "payments"}, "", plane.NotFound}, // a directory
		{vault.Name{Team: "..", Ref: "outside"}, "", plane.Unavailable},
		{vault.Name{Ref: "link"}, "", plane.Unavailable},
		{vault.Name{Ref: "huge"}, "", plane.Unavailable},
	} {
		h, err := f.Get(t.Context(), c.n)
		if value(h) != c.want || plane.KindOf(err) != c.kind && (err != nil || c.kind != "") {
			t.Errorf("%s: %q %v", c.n, value(h), err)
		}
	}
}

// TestFilesDoNotMix: whoever writes at once, what is read is whole, and no name is
// another's.
func TestFilesDoNotMix(t *testing.T) {
	b := newBench(t)
	f, err := vault.OpenFile(filepath.Join(b.dir, "secrets"), b.ring, b.st, plane.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fine := func(plane.Tx) error { return nil }
	if err := f.Put(t.Context(), vault.Name{Ref: "billing.new"}, secret.New("another"), "ada", fine); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if err := f.Put(context.Background(), vault.Name{Ref: "billing"}, secret.New(strings.Repeat(fmt.Sprint(i), 2000)), "ada", fine); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		h, err := f.Get(t.Context(), vault.Name{Ref: "billing"})
		if v := value(h); err != nil || len(v) != 2000 || v != strings.Repeat(v[:1], 2000) {
			t.Fatalf("%d bytes, %v", len(v), err)
		}
	}
	if h, err := f.Get(t.Context(), vault.Name{Ref: "billing.new"}); err != nil || value(h) != "another" {
		t.Errorf("%q %v", value(h), err)
	}
}

// TestFilesAreSealedAnew: after a rotation the old key opens nothing of ours any more.
func TestFilesAreSealedAnew(t *testing.T) {
	b, old := newBench(t), secret.GenerateKey()
	dir := filepath.Join(b.dir, "secrets")
	first, err := secret.ParseRing(old)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Replace(first)
	f, err := vault.OpenFile(dir, b.ring, b.st, plane.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := vault.Name{Team: "payments", Ref: "linear"}
	if err := f.Put(t.Context(), n, secret.New(marked), "ada", func(plane.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mounted"), []byte("by others"), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := secret.GenerateKey()
	var both *secret.Ring
	fresh.Expose(func(a string) { old.Expose(func(b string) { both, err = secret.ParseRing(secret.New(a + "," + b)) }) })
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Replace(both)
	if sealed, stuck, err := f.Reseal(t.Context()); sealed != 1 || stuck != 0 || err != nil {
		t.Fatalf("%d %d %v", sealed, stuck, err)
	}
	only, err := secret.ParseRing(fresh)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Replace(only)
	if h, err := f.Get(t.Context(), n); err != nil || value(h) != marked {
		t.Errorf("%q %v", value(h), err)
	}
	if h, err := f.Get(t.Context(), vault.Name{Ref: "mounted"}); err != nil || value(h) != "by others" {
		t.Errorf("%q %v", value(h), err)
	}
}
