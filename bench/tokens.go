package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"patchbay/internal/authn"
	"patchbay/internal/plane"
	"patchbay/internal/store"
)

// Tokens of clients that are checked in turn, of so many that are stored.
const (
	checkedTokens = 1000
	storedTokens  = 10_000
)

// tokens measures what telling a client by its access token costs on the way of a call: the
// one that was looked up a moment ago, and the one that the database is asked for.
func (b *bench) tokens() error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{Path: filepath.Join(dir, "p.db")})
	if err != nil {
		return err
	}
	defer db.Close()
	token := func(i int) string { return fmt.Sprintf("%s%043d", authn.AccessPrefix, i) }
	until := time.Now().Add(time.Hour)
	for at := 0; at < storedTokens; at += 1000 {
		err := db.Write(ctx, func(t plane.Tx) error {
			for i := at; i < at+1000; i++ {
				id := fmt.Sprint(i)
				a := plane.Authorization{ID: "aut_" + id, Person: plane.Local.ID, Client: "c" + id, Path: "/mcp/agents/general", Rights: plane.MCPRead | plane.RunsWrite, ExpiresAt: until}
				if err := db.Authorize(t, &a); err != nil {
					return err
				}
				n := plane.SignIn{ID: "sgn_" + id, Authorization: a.ID, Client: a.Client, ExpiresAt: until}
				sum := sha256.Sum256([]byte(token(i)))
				if err := db.AddSignIn(t, &n, plane.ClientToken{Hash: hex.EncodeToString(sum[:]), SignIn: n.ID, Kind: plane.AccessToken, ExpiresAt: until}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	a := authn.New(authn.Options{Store: db, Clock: db.Clock(), Log: slog.New(slog.DiscardHandler), Local: true, Secure: func() bool { return false }})
	var reqs []*http.Request
	for i := range checkedTokens {
		r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp/agents/general", nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token(i*storedTokens/checkedTokens))
		reqs = append(reqs, r)
	}
	check := func(n int, forget bool) (float64, error) {
		before, err := cpuOf(os.Getpid())
		if err != nil {
			return 0, err
		}
		for i := range n {
			if forget {
				a.Forget()
			}
			if who, err := a.Principal(reqs[i%len(reqs)]); err != nil || who.Kind != plane.KindLocal {
				return 0, fmt.Errorf("%+v: %w", who, err)
			}
		}
		after, err := cpuOf(os.Getpid())
		return float64((after - before).Nanoseconds()) / 1e3 / float64(n), err
	}
	var known, asked []float64
	for range b.rounds {
		k, err := check(2_000_000, false)
		if err != nil {
			return err
		}
		q, err := check(20_000, true)
		if err != nil {
			return err
		}
		known, asked = append(known, k), append(asked, q)
	}
	b.sheet.AtMost(fmt.Sprintf("tokens checked of %d clients in turn, each looked up once a second", checkedTokens), median(known), 5, "us CPU")
	b.sheet.Told("tokens looked up in the database", median(asked), "us CPU")
	return nil
}
