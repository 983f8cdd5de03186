package registry

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"patchbay/internal/plane"
)

// Watcher reads teams' repositories now and then, each by one replica, and keeps what they
// declare. A repository that cannot be read keeps what it declared before.
type Watcher struct {
	Repos       func() map[string]string                // team -> address
	Client      func(team string) (*http.Client, error) // reaches that team's address and nothing else
	Renew       func(ctx context.Context) error
	Store       Store
	Clock       plane.Clock
	Every       time.Duration
	Owner       string
	Placeholder string
	Scan        *Scanner
	Log         *slog.Logger
}

// readTime bounds one look at a repository.
const readTime = 60 * time.Second

// Tick reads the repositories that are due, or all of them.
func (w *Watcher) Tick(ctx context.Context, all bool) error {
	repos := w.Repos()
	if len(repos) == 0 {
		return nil
	}
	mine, err := w.Store.TakeLease(ctx, "repositories", w.Owner, w.Clock.Now().Add(w.Every/2+readTime))
	if err != nil || !mine && !all {
		return err
	}
	stored, err := w.Store.Repositories(ctx)
	if err != nil {
		return err
	}
	known := map[string]plane.RepoSnapshot{}
	for _, s := range stored {
		known[s.Team] = s
	}
	changed := false
	for _, team := range sortedNames(repos) {
		k := known[team]
		if k.Team = team; !all && k.URL == repos[team] && w.Clock.Now().Sub(k.At) < w.Every {
			continue
		}
		differs, err := w.read(ctx, k, repos[team])
		if err != nil {
			return err
		}
		changed = changed || differs
	}
	if changed {
		return w.Renew(ctx)
	}
	return nil
}

func (w *Watcher) read(ctx context.Context, known plane.RepoSnapshot, address string) (differs bool, err error) {
	rctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	client, err := w.Client(known.Team)
	next := known
	if err == nil {
		next, err = ReadRepository(rctx, known, address, client, w.Placeholder, w.Scan)
	}
	if next.Detail = ""; err != nil {
		w.Log.Warn("a team's repository cannot be read; what it declared before stands", "team", known.Team, "err", err, "cause", cause(err))
		if known.URL != address {
			next = plane.RepoSnapshot{Team: known.Team, URL: address} // another's declarations do not stand for it
		}
		next.Detail = plane.Public(err).Message
	}
	next.At = w.Clock.Now()
	differs = next.URL != known.URL || !reflect.DeepEqual(next.Declared, known.Declared) || !reflect.DeepEqual(next.Wanted, known.Wanted)
	for _, p := range next.Problems {
		if next.Commit != known.Commit {
			w.Log.Warn("a team's repository declares what cannot be used", "team", next.Team, "problem", p)
		}
	}
	return differs, w.Store.Write(ctx, func(t plane.Tx) error { return w.Store.PutRepository(t, &next, differs) })
}

func cause(err error) string {
	if e, ok := err.(interface{ Unwrap() error }); ok && e.Unwrap() != nil {
		return e.Unwrap().Error()
	}
	return ""
}
