// Package vault keeps the secrets that people and operators put under a name, a team's or
// the organisation's, and that destinations name as secret:<ref>. It promises that a value
// rests sealed wherever Patchbay writes it, that it leaves only as secret.Text, that what is
// not there and what cannot be asked are told apart, and that every backend behaves alike:
// one suite runs on all.
package vault

import (
	"context"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Name is a secret's. Team is empty for the organisation's.
type Name struct{ Team, Ref string }

// String is for people.
func (n Name) String() string {
	if n.Team == "" {
		return "org/" + n.Ref
	}
	return n.Team + "/" + n.Ref
}

// Held is a secret as it was read.
type Held struct {
	Value secret.Text
	Rev   int64     // differs when the value was put anew
	Until time.Time // when to ask again; zero: when told of a change
}

// Audit writes down who did what, in the transaction of the change where the backend has
// one, else before it.
type Audit func(plane.Tx) error

// Vault is a backend. Get gives plane.NotFound where there is no such secret and
// plane.Unavailable where nobody can say; Drop gives plane.NotFound too. Check reports
// whether the backend answers.
type Vault interface {
	Get(ctx context.Context, n Name) (Held, error)
	Put(ctx context.Context, n Name, value secret.Text, by string, audit Audit) error
	Drop(ctx context.Context, n Name, audit Audit) error
	Check(ctx context.Context) error
}

// missing says that a secret is not there, and how it gets there.
func missing(n Name) *plane.Error {
	next := "patchbay secrets put " + n.Ref
	if n.Team != "" {
		next += " --team " + n.Team
	}
	return plane.Errorf(plane.NotFound, "There is no secret %s.", n).At("ref").Then(next)
}

// Bind ties a sealed secret to its name.
func Bind(n Name) secret.Bind {
	return secret.Bind{Purpose: "secret", Scope: "team:" + n.Team, Record: n.Ref}
}

// SealedBind is Bind for a row of the database, whose key is the team and the ref.
func SealedBind(s plane.Sealed) secret.Bind {
	team, ref, _ := strings.Cut(s.Key, " ")
	return Bind(Name{team, ref})
}

// cannotOpen names a secret whose key is not in the ring.
func cannotOpen(n Name, err error) *plane.Error {
	return plane.Errorf(plane.Unavailable, "The secret %s does not open: the key that it was sealed with is missing.", n).Because(err)
}

// Writer opens a transaction for an audit entry.
type Writer interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
}

// Memory forgets everything at its end.
type Memory struct {
	audit Writer
	mu    sync.Mutex
	held  map[Name]Held
	rev   int64
}

// NewMemory makes an empty one.
func NewMemory(w Writer) *Memory { return &Memory{audit: w, held: map[Name]Held{}} }

// Get reads a secret.
func (m *Memory) Get(_ context.Context, n Name) (Held, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.held[n]
	if !ok {
		return h, missing(n)
	}
	return h, nil
}

// Put keeps a secret.
func (m *Memory) Put(ctx context.Context, n Name, value secret.Text, _ string, audit Audit) error {
	if err := m.audit.Write(ctx, audit); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	m.held[n] = Held{Value: value, Rev: m.rev}
	return nil
}

// Drop forgets a secret.
func (m *Memory) Drop(ctx context.Context, n Name, audit Audit) error {
	if _, err := m.Get(ctx, n); err != nil {
		return err
	}
	if err := m.audit.Write(ctx, audit); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, n)
	return nil
}

// Check is always fine.
func (*Memory) Check(context.Context) error { return nil }
