package vault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/fake"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/vault"
)

const marked = `m4rked-s3cret/with "quotes" & umläuts`

// bench is what a backend is opened with.
type bench struct {
	dir  string
	st   *store.Store
	ring *secret.Ring
	kv   *fake.KV
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir()}
	var err error
	if b.st, err = store.Open(t.Context(), store.Options{Path: filepath.Join(b.dir, "patchbay.db")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.st.Close() })
	if b.ring, err = secret.ParseRing(secret.GenerateKey()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) bao(t *testing.T, login vault.Login, lease, most time.Duration) *vault.OpenBao {
	t.Helper()
	if b.kv == nil {
		b.kv = fake.NewKV(t, lease, most)
	}
	v, err := vault.NewOpenBao(vault.OpenBaoOptions{Address: b.kv.URL, Transport: &http.Transport{}, Namespace: "team-a", Login: login, Audit: b.st})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

var appRole = vault.Login{Kind: "approle", RoleID: fake.KVRole, SecretID: secret.New(fake.KVSecretID)}

// backends are all that the suite runs on.
var backends = map[string]func(t *testing.T, b *bench) vault.Vault{
	"database": func(t *testing.T, b *bench) vault.Vault { return vault.NewDatabase(b.st, b.ring) },
	"memory":   func(t *testing.T, b *bench) vault.Vault { return vault.NewMemory(b.st) },
	"file": func(t *testing.T, b *bench) vault.Vault {
		f, err := vault.OpenFile(filepath.Join(b.dir, "secrets"), b.ring, b.st, plane.SystemClock{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	},
	"openbao": func(t *testing.T, b *bench) vault.Vault { return b.bao(t, appRole, time.Hour, 0) },
	"openbao, cached": func(t *testing.T, b *bench) vault.Vault {
		return vault.NewCached(b.bao(t, appRole, time.Hour, 0), plane.SystemClock{}, time.Minute, time.Second)
	},
}

func value(h vault.Held) string {
	out := ""
	h.Value.Expose(func(v string) { out = v })
	return out
}

// TestEveryVault is the suite: what any backend does.
func TestEveryVault(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			v := open(t, b)
			ctx := t.Context()
			audited := 0
			fine := func(plane.Tx) error { audited++; return nil }
			pay, org := vault.Name{Team: "payments", Ref: "linear"}, vault.Name{Ref: "linear"}
			wantMissing := func(n vault.Name) {
				t.Helper()
				_, err := v.Get(ctx, n)
				if e := plane.Public(err); e == nil || e.Kind != plane.NotFound || !strings.Contains(e.Next, "secrets put "+n.Ref) || !strings.Contains(e.Message, n.String()) {
					t.Errorf("%s: %+v", n, err)
				}
			}
			put := func(n vault.Name, text string) {
				t.Helper()
				if err := v.Put(ctx, n, secret.New(text), "ada", fine); err != nil {
					t.Fatal(err)
				}
			}
			get := func(n vault.Name, want string) int64 {
				t.Helper()
				h, err := v.Get(ctx, n)
				if err != nil || value(h) != want {
					t.Errorf("%s: %q %v", n, value(h), err)
				}
				return h.Rev
			}
			if err := v.Check(ctx); err != nil {
				t.Fatal(err)
			}
			wantMissing(pay)
			put(pay, marked)
			first := get(pay, marked)
			wantMissing(org) // the organisation's is another
			wantMissing(vault.Name{Team: "legal", Ref: "linear"})
			wantMissing(vault.Name{Team: "payments", Ref: "linea"})
			put(org, "the organisation's")
			get(pay, marked)
			get(org, "the organisation's")
			put(pay, strings.Repeat("x", 8192))
			if again := get(pay, strings.Repeat("x", 8192)); again == first {
				t.Error("another value has the same rev")
			}
			refused := errors.New("no audit")
			if err := v.Put(ctx, pay, secret.New("not written"), "ada", func(plane.Tx) error { return refused }); !errors.Is(err, refused) {
				t.Errorf("put without a record: %v", err)
			}
			if err := v.Drop(ctx, pay, func(plane.Tx) error { return refused }); !errors.Is(err, refused) {
				t.Errorf("drop without a record: %v", err)
			}
			get(pay, strings.Repeat("x", 8192))
			if err := v.Drop(ctx, pay, fine); err != nil {
				t.Fatal(err)
			}
			wantMissing(pay)
			if err := v.Drop(ctx, pay, fine); plane.KindOf(err) != plane.NotFound {
				t.Errorf("dropped twice: %v", err)
			}
			get(org, "the organisation's")
			if audited != 4 {
				t.Errorf("%d changes on record, want 4", audited)
			}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					n := vault.Name{Team: "payments", Ref: fmt.Sprintf("r%d", i)}
					if err := v.Put(ctx, n, secret.New(n.Ref), "ada", func(plane.Tx) error { return nil }); err != nil {
						t.Error(err)
					}
					if h, err := v.Get(ctx, n); err != nil || value(h) != n.Ref {
						t.Errorf("%s: %q %v", n, value(h), err)
					}
				})
			}
			wg.Wait()
			put(pay, marked)
			b.nowhere(t)
		})
	}
}

// nowhere looks for the marked secret in everything that was written here.
func (b *bench) nowhere(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte("m4rked")) {
			t.Errorf("%s holds the secret in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOpenBaoSignsIn: one sign-in serves many questions, its lease is renewed, and where
// that ends, or the token is taken back, there is another.
func TestOpenBaoSignsIn(t *testing.T) {
	for name, login := range map[string]vault.Login{"approle": appRole, "kubernetes": {Kind: "kubernetes", Role: fake.KVRole}, "token": {Kind: "token", Token: secret.New(fake.KVToken)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jwt := filepath.Join(t.TempDir(), "token")
			if login.Kind == "kubernetes" {
				login.JWTFile = jwt
			}
			if err := os.WriteFile(jwt, []byte("jwt-1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			b := newBench(t)
			v := b.bao(t, login, 2*time.Second, 0)
			b.kv.Set("patchbay/payments/linear", map[string]any{"value": "there"})
			n := vault.Name{Team: "payments", Ref: "linear"}
			for range 20 {
				if h, err := v.Get(t.Context(), n); err != nil || value(h) != "there" || h.Rev != 1 {
					t.Fatalf("%q %d %v", value(h), h.Rev, err)
				}
			}
			logins := 1
			if login.Kind == "token" {
				logins = 0
			}
			if b.kv.Asked("login") != logins || b.kv.Header("X-Vault-Namespace") != "team-a" {
				t.Errorf("%d sign-ins, namespace %q", b.kv.Asked("login"), b.kv.Header("X-Vault-Namespace"))
			}
			time.Sleep(4 * time.Second) // twice the lease, without a question
			if h, err := v.Get(t.Context(), n); err != nil || value(h) != "there" || b.kv.Asked("login") != logins || b.kv.Asked("renew") < 2 {
				t.Errorf("after the lease: %v; %d sign-ins, %d renewals", err, b.kv.Asked("login"), b.kv.Asked("renew"))
			}
			b.kv.Forget()
			if err := os.WriteFile(jwt, []byte("jwt-2\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := v.Get(t.Context(), n)
			if login.Kind == "token" {
				if e := plane.Public(err); e.Kind != plane.Unavailable || !strings.Contains(e.Message, "payments/linear") || !strings.Contains(e.Message, "refuses") {
					t.Errorf("a token that was taken back: %v", err)
				}
				return
			}
			if err != nil || b.kv.Asked("login") != logins+1 {
				t.Errorf("after the token was taken back: %v, %d sign-ins", err, b.kv.Asked("login"))
			}
			if got := b.kv.JWTs(); login.Kind == "kubernetes" && fmt.Sprint(got) != "[jwt-1 jwt-2]" {
				t.Errorf("presented: %v", got)
			}
		})
	}
}

// TestOpenBaoIsAskedFairly: a refusal is told apart from a sign-in that is over, and absence
// from an outage.
func TestOpenBaoIsAskedFairly(t *testing.T) {
	t.Run("a path that its policy does not admit", func(t *testing.T) {
		b := newBench(t)
		v := b.bao(t, appRole, time.Hour, 0)
		b.kv.Refuse("patchbay/_org/x")
		b.kv.Set("patchbay/_org/y", map[string]any{"value": "there"})
		for range 10 {
			if _, err := v.Get(t.Context(), vault.Name{Ref: "x"}); plane.KindOf(err) != plane.Unavailable || !strings.Contains(plane.Public(err).Next, "policy") {
				t.Fatal(err)
			}
			if _, err := v.Get(t.Context(), vault.Name{Ref: "y"}); err != nil {
				t.Fatal(err)
			}
		}
		if b.kv.Asked("login") != 1 {
			t.Errorf("%d sign-ins", b.kv.Asked("login"))
		}
	})
	t.Run("many after it was taken back", func(t *testing.T) {
		b := newBench(t)
		v := b.bao(t, appRole, time.Hour, 0)
		b.kv.Set("patchbay/_org/y", map[string]any{"value": "there"})
		for range 3 {
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if _, err := v.Get(context.Background(), vault.Name{Ref: "y"}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			b.kv.Forget()
		}
		if n := b.kv.Asked("login"); n != 3 {
			t.Errorf("%d sign-ins", n)
		}
	})
	t.Run("what is no word of the engine", func(t *testing.T) {
		b := newBench(t)
		b.kv = fake.NewKV(t, time.Hour, 0)
		for _, mount := range []string{"nowhere", "secret/deeper"} {
			v, err := vault.NewOpenBao(vault.OpenBaoOptions{Address: b.kv.URL, Transport: &http.Transport{}, Mount: mount, Login: appRole, Audit: b.st})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(v.Close)
			if _, err := v.Get(t.Context(), vault.Name{Ref: "y"}); plane.KindOf(err) != plane.Unavailable {
				t.Errorf("a wrong mount is taken for absence: %v", err)
			}
		}
	})
	t.Run("its last end", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		v := b.bao(t, appRole, 2*time.Second, 3*time.Second)
		b.kv.Set("patchbay/_org/x", map[string]any{"value": "there"})
		for range 12 {
			if _, err := v.Get(t.Context(), vault.Name{Ref: "x"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if b.kv.Asked("login") < 2 {
			t.Error("it did not sign in anew")
		}
	})
}

// TestAnOutageIsNamed: what cannot be asked is not what is not there; answers and failures
// are remembered for a time each, and nothing older is used.
func TestAnOutageIsNamed(t *testing.T) {
	b := newBench(t)
	clock := &hand{now: time.Now()}
	v := vault.NewCached(b.bao(t, appRole, time.Hour, 0), clock, time.Minute, 5*time.Second)
	b.kv.Set("patchbay/payments/linear", map[string]any{"value": "there"})
	b.kv.Set("patchbay/payments/odd", map[string]any{"other": "field"})
	n := vault.Name{Team: "payments", Ref: "linear"}
	ask := func(n vault.Name) error { _, err := v.Get(context.Background(), n); return err }
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := ask(n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := b.kv.Asked("get"); got != 1 {
		t.Errorf("fifty askers asked %d times", got)
	}
	b.kv.Down(true)
	clock.pass(59 * time.Second)
	if err := ask(n); err != nil {
		t.Errorf("while it is remembered: %v", err)
	}
	clock.pass(2 * time.Second)
	for range 10 {
		e := plane.Public(ask(n))
		if e.Kind != plane.Unavailable || !strings.Contains(e.Message, "payments/linear") || !strings.Contains(e.Message, b.kv.URL) || strings.Contains(e.Message, "sealed") {
			t.Fatalf("the outage: %+v", e)
		}
	}
	if got := b.kv.Asked("get"); got != 2 {
		t.Errorf("ten askers of an outage asked %d times", got-1)
	}
	if err := v.Put(t.Context(), n, secret.New("x"), "ada", func(plane.Tx) error { return nil }); plane.KindOf(err) != plane.Unavailable {
		t.Errorf("put: %v", err)
	}
	b.kv.Down(false)
	clock.pass(6 * time.Second)
	if err := ask(n); err != nil {
		t.Errorf("after the outage: %v", err)
	}
	if e := plane.Public(ask(vault.Name{Team: "payments", Ref: "odd"})); e.Kind != plane.Unavailable || !strings.Contains(e.Message, "no field value") {
		t.Errorf("another's form: %+v", e)
	}
	if err := v.Put(t.Context(), n, secret.New("changed"), "ada", func(plane.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if h, err := v.Get(t.Context(), n); err != nil || value(h) != "changed" || !h.Until.Equal(clock.Now().Add(time.Minute)) {
		t.Errorf("after a change: %q until %s, %v", value(h), h.Until, err)
	}
	gone := newBench(t)
	dead := gone.bao(t, appRole, time.Hour, 0)
	gone.kv.Close()
	if err := dead.Check(t.Context()); plane.KindOf(err) != plane.Unavailable {
		t.Error(err)
	}
	if _, err := dead.Get(t.Context(), n); plane.KindOf(err) != plane.Unavailable {
		t.Error(err)
	}
}

// hand is a clock that somebody moves.
type hand struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hand) Now() time.Time { h.mu.Lock(); defer h.mu.Unlock(); return h.now }

func (h *hand) pass(d time.Duration) { h.mu.Lock(); defer h.mu.Unlock(); h.now = h.now.Add(d) }
