package connect

import (
	"context"
	"encoding/hex"
	"log/slog"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Blobs is what rotation needs of a database.
type Blobs interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	SealedUnder(ctx context.Context, place string) (map[string]int, error)
	SealedElsewhere(ctx context.Context, place string, active []byte, after plane.Sealed, limit int) ([]plane.Sealed, error)
	ReplaceSealed(t plane.Tx, s plane.Sealed, blob []byte) error
}

// Rotation seals everything anew under the ring's active key, while the server
// serves. It keeps no state of its own: what is still sealed under another key
// is what is left to do, so that one that was killed goes on where it stopped.
type Rotation struct {
	Blobs  Blobs
	Ring   *secret.Ring
	Places []string
	// Binds says what a blob of a place is bound to; places of other packages
	// are theirs to name.
	Binds map[string]func(s plane.Sealed) secret.Bind
	Log   *slog.Logger
}

// CredentialBind and RevocationBind name this package's places.
func CredentialBind(s plane.Sealed) secret.Bind { return bindCredential(plane.ConnectionID(s.Key)) }

// RevocationBind names what a revocation's blob is bound to.
func RevocationBind(s plane.Sealed) secret.Bind { return bindRevocation(s.Key) }

// KeyUse is how many blobs of each place one key sealed.
type KeyUse struct {
	ID     string         `json:"id"`
	Active bool           `json:"active"`
	InRing bool           `json:"in_ring"`
	Blobs  map[string]int `json:"blobs"`
	Total  int            `json:"total"`
}

// Status counts the blobs per key, keys of the ring first.
func (r *Rotation) Status(ctx context.Context) ([]KeyUse, error) {
	var out []KeyUse
	at := map[string]int{}
	for i, id := range r.Ring.KeyIDs() {
		at[id] = len(out)
		out = append(out, KeyUse{ID: id, Active: i == 0, InRing: true, Blobs: map[string]int{}})
	}
	for _, place := range r.Places {
		counts, err := r.Blobs.SealedUnder(ctx, place)
		if err != nil {
			return nil, err
		}
		for raw, n := range counts {
			id := hex.EncodeToString([]byte(raw))
			i, ok := at[id]
			if !ok {
				i = len(out)
				at[id] = i
				out = append(out, KeyUse{ID: id, Blobs: map[string]int{}})
			}
			out[i].Blobs[place] += n
			out[i].Total += n
		}
	}
	return out, nil
}

// rotateBatch is how many blobs one transaction seals anew: few enough that
// others do not wait.
const rotateBatch = 100

// Run seals anew what another key sealed, and returns how many were and how many
// could not be opened. A failure of the store ends it; the next Run goes on.
func (r *Rotation) Run(ctx context.Context) (done, stuck int, err error) {
	active := r.Ring.Active()
	for _, place := range r.Places {
		bind := r.Binds[place]
		after := plane.Sealed{Num: -1}
		for {
			found, err := r.Blobs.SealedElsewhere(ctx, place, active, after, rotateBatch)
			if err != nil {
				return done, stuck, err
			}
			if len(found) == 0 {
				break
			}
			after = found[len(found)-1]
			err = r.Blobs.Write(ctx, func(t plane.Tx) error {
				for _, s := range found {
					blob, _, err := r.Ring.Reseal(bind(s), s.Blob)
					if err != nil {
						stuck++
						continue
					}
					if err := r.Blobs.ReplaceSealed(t, s, blob); err != nil {
						return err
					}
					done++
				}
				return nil
			})
			if err != nil {
				return done, stuck, err
			}
			if ctx.Err() != nil {
				return done, stuck, ctx.Err()
			}
		}
	}
	if stuck > 0 {
		r.Log.Warn("sealed values do not open with the keys of this server and stay as they are", "count", stuck)
	}
	return done, stuck, nil
}
