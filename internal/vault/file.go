package vault

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// File keeps a secret in a file of a directory, <team>/<ref>, or <ref> for the
// organisation's. What others put there, as orchestrators mount secrets, is read as it is;
// what Patchbay writes is sealed.
type File struct {
	dir   *os.Root
	path  string
	ring  *secret.Ring
	audit Writer
	clock plane.Clock
	mu    sync.Mutex // of writing
}

const (
	sealedMark  = "patchbay-sealed:"
	maxFile     = 64 << 10
	fileOpinion = 5 * time.Second // until a file is looked at again
)

// OpenFile uses a directory, and makes it where it is missing.
func OpenFile(path string, ring *secret.Ring, audit Writer, clock plane.Clock) (*File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The directory of secrets %s cannot be made.", path).At("vault.path").Because(err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The directory of secrets %s cannot be opened.", path).At("vault.path").Because(err)
	}
	return &File{dir: dir, path: path, ring: ring, audit: audit, clock: clock}, nil
}

// Close lets go of the directory.
func (f *File) Close() error { return f.dir.Close() }

// at is a secret's file. Names are checked where they are given; a stray one stays inside
// the directory all the same.
func (n Name) at() string {
	if n.Team == "" {
		return n.Ref
	}
	return n.Team + "/" + n.Ref
}

// Get reads a secret.
func (f *File) Get(_ context.Context, n Name) (Held, error) {
	text, rev, err := f.read(n)
	if err != nil {
		return Held{}, err
	}
	h := Held{Rev: rev, Until: f.clock.Now().Add(fileOpinion)}
	sealed, ours := strings.CutPrefix(text, sealedMark)
	if !ours {
		h.Value = secret.New(text)
		return h, nil
	}
	b, err := f.open(n, sealed)
	if err != nil {
		return Held{}, err
	}
	h.Value = secret.New(string(b))
	return h, nil
}

func (f *File) read(n Name) (string, int64, error) {
	file, err := f.dir.Open(n.at())
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, missing(n)
	}
	if err != nil {
		return "", 0, plane.Errorf(plane.Unavailable, "The file of the secret %s cannot be read.", n).Because(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err == nil && st.IsDir() {
		return "", 0, missing(n)
	}
	b, rerr := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err = errors.Join(err, rerr); err != nil || len(b) > maxFile {
		return "", 0, plane.Errorf(plane.Unavailable, "The file of the secret %s cannot be read, or is too large.", n).Because(err)
	}
	// Times of files are too coarse for two changes in a row, and a plain hash would tell of
	// a weak secret.
	rev := int64(binary.BigEndian.Uint64(f.ring.MAC("secret rev", b)) >> 1)
	return strings.TrimRight(string(b), "\r\n"), rev, nil
}

func (f *File) open(n Name, sealed string) ([]byte, error) {
	blob, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return nil, cannotOpen(n, err)
	}
	b, err := f.ring.Open(Bind(n), blob)
	if err != nil {
		return nil, cannotOpen(n, err)
	}
	return b, nil
}

// Put seals a secret and writes its file, whole or not at all.
func (f *File) Put(ctx context.Context, n Name, value secret.Text, _ string, audit Audit) error {
	if err := f.audit.Write(ctx, audit); err != nil {
		return err
	}
	var blob []byte
	value.Expose(func(v string) { blob = f.ring.Seal(Bind(n), []byte(v)) })
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write(n, blob)
}

func (f *File) write(n Name, blob []byte) error {
	bad := func(err error) error {
		return plane.Errorf(plane.Unavailable, "The file of the secret %s cannot be written: where somebody else mounts %s, the secret is theirs to put.", n, f.path).Because(err)
	}
	if n.Team != "" {
		if err := f.dir.Mkdir(n.Team, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return bad(err)
		}
	}
	var id [8]byte
	rand.Read(id[:])
	tmp := filepath.Join(n.Team, ".~"+hex.EncodeToString(id[:])) // no secret is called that
	file, err := f.dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return bad(err)
	}
	_, err = file.WriteString(sealedMark + base64.StdEncoding.EncodeToString(blob) + "\n")
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = f.dir.Rename(tmp, n.at())
	}
	if err != nil {
		return bad(errors.Join(err, f.dir.Remove(tmp)))
	}
	return nil
}

// Drop removes a secret's file.
func (f *File) Drop(ctx context.Context, n Name, audit Audit) error {
	if _, _, err := f.read(n); err != nil {
		return err
	}
	if err := f.audit.Write(ctx, audit); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.dir.Remove(n.at()); err != nil {
		return plane.Errorf(plane.Unavailable, "The file of the secret %s cannot be removed.", n).Because(err)
	}
	return nil
}

// Check looks at the directory.
func (f *File) Check(context.Context) error {
	_, err := f.dir.Stat(".")
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The directory of secrets %s cannot be looked at.", f.path).Because(err)
	}
	return nil
}

// Reseal seals every file of ours under the active key, and returns how many it sealed and
// how many did not open.
func (f *File) Reseal(ctx context.Context) (sealed, stuck int, err error) {
	err = fs.WalkDir(f.dir.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil || d.IsDir() || strings.Contains(path, ".~") || strings.Count(path, "/") > 1 {
			return errors.Join(err, ctx.Err())
		}
		var n Name
		if n.Team, n.Ref = filepath.Split(path); n.Team != "" {
			n.Team = strings.TrimSuffix(n.Team, "/")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		text, _, err := f.read(n)
		text, ours := strings.CutPrefix(text, sealedMark)
		if err != nil || !ours {
			return nil // of others
		}
		blob, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			stuck++
			return nil
		}
		fresh, done, err := f.ring.Reseal(Bind(n), blob)
		switch {
		case err != nil:
			stuck++
			return nil
		case !done:
			return nil
		}
		sealed++
		return f.write(n, fresh)
	})
	return sealed, stuck, err
}
