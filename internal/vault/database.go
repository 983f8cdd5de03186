package vault

import (
	"context"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Rows are the sealed secrets of the database.
type Rows interface {
	Writer
	TeamSecret(ctx context.Context, team, ref string) (plane.TeamSecret, error)
	PutTeamSecret(t plane.Tx, v *plane.TeamSecret) error
	DropTeamSecret(t plane.Tx, team, ref string) error
}

// Database keeps secrets sealed in the database, beside everything else.
type Database struct {
	rows Rows
	ring *secret.Ring
}

// NewDatabase seals with the ring.
func NewDatabase(rows Rows, ring *secret.Ring) *Database { return &Database{rows, ring} }

// Get opens a secret.
func (d *Database) Get(ctx context.Context, n Name) (Held, error) {
	v, err := d.rows.TeamSecret(ctx, n.Team, n.Ref)
	if plane.KindOf(err) == plane.NotFound {
		return Held{}, missing(n)
	}
	if err != nil {
		return Held{}, err
	}
	b, err := d.ring.Open(Bind(n), v.Blob)
	if err != nil {
		return Held{}, cannotOpen(n, err)
	}
	return Held{Value: secret.New(string(b)), Rev: v.Rev}, nil
}

// Put seals a secret and stores it.
func (d *Database) Put(ctx context.Context, n Name, value secret.Text, by string, audit Audit) error {
	var blob []byte
	value.Expose(func(v string) { blob = d.ring.Seal(Bind(n), []byte(v)) })
	return d.rows.Write(ctx, func(t plane.Tx) error {
		if err := d.rows.PutTeamSecret(t, &plane.TeamSecret{Team: n.Team, Ref: n.Ref, Blob: blob, By: by}); err != nil {
			return err
		}
		return audit(t)
	})
}

// Drop takes a secret away.
func (d *Database) Drop(ctx context.Context, n Name, audit Audit) error {
	return d.rows.Write(ctx, func(t plane.Tx) error {
		if err := d.rows.DropTeamSecret(t, n.Team, n.Ref); err != nil {
			return err
		}
		return audit(t)
	})
}

// Check is the server's own business.
func (*Database) Check(context.Context) error { return nil }
