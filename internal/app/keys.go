package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// DefaultKeysEnv is where the key ring is looked for when config is silent.
const DefaultKeysEnv = "PATCHBAY_KEYS"

const (
	keyFile  = "keys"
	metaRing = "key_checks"
)

// openRing finds the key ring. Only SQLite on loopback may make one by itself.
func (a *App) openRing() (*secret.Ring, error) {
	if env := a.cfg.Keys.Env; env != "" {
		v := os.Getenv(env)
		if v == "" {
			return nil, plane.Errorf(plane.Unavailable, "The variable %s, which config names for the key ring, is not set.", env).Then("patchbay keys generate")
		}
		return parseRing(secret.New(v))
	}
	if v := os.Getenv(DefaultKeysEnv); v != "" && a.cfg.Keys.File == "" {
		return parseRing(secret.New(v))
	}
	path, made := a.cfg.Keys.File, false
	if path == "" {
		path = filepath.Join(a.cfg.Data, keyFile)
		made = true
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && made {
		if a.cfg.Database != "sqlite" {
			return nil, plane.Errorf(plane.Unavailable, "There is no key ring, and with PostgreSQL none is made by itself.").
				Then("export " + DefaultKeysEnv + "=$(patchbay keys generate)")
		}
		key := secret.GenerateKey()
		key.Expose(func(s string) { b = []byte(s + "\n") })
		if err := writeNew(path, b); err != nil {
			return nil, plane.Errorf(plane.Unavailable, "The key file %s cannot be written.", path).Because(err)
		}
		a.o.Notice("A key that seals credentials and transcripts was made in %s. Back it up: without it they cannot be read.", path)
	} else if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The key file %s cannot be read.", path).Because(err)
	}
	return parseRing(secret.New(string(b)))
}

func parseRing(t secret.Text) (*secret.Ring, error) {
	r, err := secret.ParseRing(t)
	if err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "The key ring cannot be used: each key is %d bytes in base64.", secret.KeyBytes).Then("patchbay keys generate").Because(err)
	}
	return r, nil
}

// writeNew writes a file that must not exist, readable by its owner only, and
// makes sure that it is on the disk.
func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// checkRing refuses a ring that is foreign to the database: none of its keys
// has ever been active there.
func (a *App) checkRing(ctx context.Context, r *secret.Ring) error {
	known, err := a.store.Meta(ctx, metaRing)
	if err != nil {
		return err
	}
	checks := r.Checks()
	if known != "" && !slices.Contains(checks, known) {
		return plane.Errorf(plane.Unavailable, "The key ring does not hold the key that this database was last used with.").
			Then("Set " + DefaultKeysEnv + " or keys to the ring that belongs to this database.")
	}
	if known == checks[0] {
		return nil
	}
	return a.store.Write(ctx, func(t plane.Tx) error { return a.store.SetMeta(t, metaRing, checks[0]) })
}

// dataLock keeps a second process away from the data directory.
type dataLock struct{ f *os.File }

func lockData(dir string) (*dataLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The data directory %s cannot be written to.", dir).Because(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, plane.Errorf(plane.Conflict, "Another Patchbay uses the data directory %s.", dir).Then("patchbay status").Because(err)
	}
	return &dataLock{f: f}, nil
}

func (l *dataLock) release() { l.f.Close() }
