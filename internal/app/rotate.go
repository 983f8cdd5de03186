package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"patchbay/internal/authserver"
	"patchbay/internal/command"
	"patchbay/internal/connect"
	"patchbay/internal/consent"
	"patchbay/internal/egress"
	"patchbay/internal/plane"
	"patchbay/internal/run"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/vault"
)

// rotation seals everything anew. Where Patchbay made the key file by itself it
// also makes the new key and takes the old one out; elsewhere the ring is the
// operator's.
type rotation struct {
	a    *App
	work connect.Rotation
	mu   sync.Mutex // one at a time

	count    sync.Mutex // guards what follows
	counting chan struct{}
	counted  []connect.KeyUse
	at       time.Time
}

const metaRotating = "keys_rotating"

func (a *App) newRotation() *rotation {
	binds := map[string]func(plane.Sealed) secret.Bind{"credential": connect.CredentialBind, "revocation": connect.RevocationBind,
		"secret": vault.SealedBind, "authority": egress.AuthorityBind, "ticket": consent.TicketBind, "client": consent.ClientBind,
		"client.answer": authserver.AnswerBind, "chat": func(s plane.Sealed) secret.Bind { return chatBind(s.Key) }}
	places := store.SealedPlaces()
	for _, p := range places {
		if binds[p] == nil {
			binds[p] = run.ContentBind
		}
	}
	return &rotation{a: a, work: connect.Rotation{Blobs: a.store, Ring: a.ring, Places: places, Binds: binds, Log: a.o.Log}}
}

// Status counts the blobs of each key.
func (r *rotation) Status(ctx context.Context) ([]connect.KeyUse, error) { return r.work.Status(ctx) }

// countWait is how long a page waits for a count of all blobs.
const countWait = 50 * time.Millisecond

// Counted counts once for all who ask at the same time, and answers with the count
// before when that takes longer than a moment.
func (r *rotation) Counted(ctx context.Context) ([]connect.KeyUse, time.Time) {
	r.count.Lock()
	if r.counting == nil {
		r.counting = make(chan struct{})
		go r.recount(context.WithoutCancel(ctx))
	}
	done := r.counting
	r.count.Unlock()
	select {
	case <-done:
	case <-time.After(countWait):
	case <-ctx.Done():
	}
	r.count.Lock()
	defer r.count.Unlock()
	return r.counted, r.at
}

func (r *rotation) recount(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	at := r.a.o.Clock.Now()
	uses, err := r.work.Status(ctx)
	if err != nil {
		r.a.o.Log.Warn("what each key sealed could not be counted", "error", err)
	}
	r.count.Lock()
	defer r.count.Unlock()
	if err == nil {
		r.counted, r.at = uses, at
	}
	close(r.counting)
	r.counting = nil
}

// own is the key file that Patchbay made, or "".
func (r *rotation) own() string {
	a := r.a
	if a.cfg.Keys.Env != "" || a.cfg.Keys.File != "" || os.Getenv(DefaultKeysEnv) != "" || a.cfg.Database != "sqlite" {
		return ""
	}
	return filepath.Join(a.cfg.Data, keyFile)
}

// Rotate makes a new key where the ring is ours, seals everything anew under the
// active one, and takes keys that nothing uses any more out of a ring of ours.
func (r *rotation) Rotate(ctx context.Context) (command.KeysRotated, error) {
	if !r.mu.TryLock() {
		return command.KeysRotated{}, plane.Errorf(plane.Conflict, "A rotation is under way.").Then("patchbay keys status")
	}
	defer r.mu.Unlock()
	unfinished, err := r.a.store.Meta(ctx, metaRotating)
	if err != nil {
		return command.KeysRotated{}, err
	}
	if r.own() != "" && unfinished == "" {
		if err := r.newKey(); err != nil {
			return command.KeysRotated{}, err
		}
	}
	return r.finish(context.WithoutCancel(ctx))
}

// Resume ends a rotation that was killed.
func (r *rotation) Resume(ctx context.Context) {
	unfinished, err := r.a.store.Meta(ctx, metaRotating)
	if err != nil || unfinished == "" || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	if out, err := r.finish(ctx); err != nil {
		r.a.o.Log.Error("a key rotation could not be finished", "err", err, "sealed", out.Sealed)
	}
}

// finish seals what is left. The mark in the database stands until it is done.
func (r *rotation) finish(ctx context.Context) (command.KeysRotated, error) {
	a := r.a
	mark := func(v string) error {
		return a.store.Write(ctx, func(t plane.Tx) error {
			if err := a.store.SetMeta(t, metaRing, a.ring.Checks()[0]); err != nil {
				return err
			}
			return a.store.SetMeta(t, metaRotating, v)
		})
	}
	out := command.KeysRotated{Active: a.ring.KeyIDs()[0], Own: r.own() != ""}
	if err := mark("yes"); err != nil {
		return out, err
	}
	var err error
	if out.Sealed, out.Stuck, err = r.work.Run(ctx); err != nil {
		return out, err
	}
	if a.files != nil {
		sealed, stuck, err := a.files.Reseal(ctx)
		out.Sealed, out.Stuck = out.Sealed+sealed, out.Stuck+stuck
		if err != nil {
			return out, err
		}
	}
	if err := mark(""); err != nil {
		return out, err
	}
	use, err := r.work.Status(ctx)
	if err != nil {
		return out, err
	}
	for _, k := range use {
		if k.InRing && !k.Active && k.Total == 0 {
			out.Unused = append(out.Unused, k.ID)
		}
	}
	if r.own() != "" && len(out.Unused) > 0 {
		// What was sealed under an old key a moment before the new one came, and
		// written after it was looked at, is sealed anew now.
		time.Sleep(settleTime)
		more, _, err := r.work.Run(ctx)
		if err != nil {
			return out, err
		}
		out.Sealed += more
		if err := r.retire(out.Unused); err != nil {
			return out, err
		}
		out.Retired, out.Unused = out.Unused, nil
	}
	return out, nil
}

// settleTime is longer than a transaction that seals something takes.
const settleTime = 500 * time.Millisecond

// newKey puts a key in front of our own file, on the disk before it is used.
func (r *rotation) newKey() error {
	old, err := os.ReadFile(r.own())
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The key file cannot be read.").Because(err)
	}
	var text string
	secret.GenerateKey().Expose(func(k string) { text = k + "\n" + string(old) })
	return r.replace(text)
}

// retire takes keys out of our own file.
func (r *rotation) retire(ids []string) error {
	old, err := os.ReadFile(r.own())
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The key file cannot be read.").Because(err)
	}
	var keep []string
next:
	for _, line := range strings.Fields(string(old)) {
		one, err := secret.ParseRing(secret.New(line))
		if err != nil {
			return err
		}
		for _, id := range ids {
			if one.KeyIDs()[0] == id {
				continue next
			}
		}
		keep = append(keep, line)
	}
	return r.replace(strings.Join(keep, "\n") + "\n")
}

// replace writes the file whole or not at all, then uses it.
func (r *rotation) replace(text string) error {
	ring, err := secret.ParseRing(secret.New(text))
	if err != nil {
		return err
	}
	path := r.own()
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return plane.Errorf(plane.Unavailable, "The key file cannot be written.").Because(err)
	}
	if err := writeNew(path+".new", []byte(text)); err != nil {
		return plane.Errorf(plane.Unavailable, "The key file cannot be written.").Because(err)
	}
	if err := errors.Join(os.Rename(path+".new", path), syncDir(filepath.Dir(path))); err != nil {
		return plane.Errorf(plane.Unavailable, "The key file cannot be put in place.").Because(err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte(text)) {
		return plane.Errorf(plane.Unavailable, "The key file did not keep what was written.").Because(err)
	}
	r.a.ring.Replace(ring)
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
