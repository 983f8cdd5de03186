package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/internal/mcp"
	"patchbay/internal/oauth"
	"patchbay/internal/secret"
)

const (
	redirect = "http://localhost:3000/callback"
	document = "https://conformance-test.local/client-metadata.json"
	maxTries = 3 // sign-ins for one call
)

// signedIn lets a scenario run with whatever sign-in its server asks for, and
// calls a tool if there is one.
func signedIn(ctx context.Context, endpoint string) error {
	s := &signIn{endpoint: endpoint, client: &oauth.Client{Transport: &http.Transport{}, Now: time.Now, Check: func(string) error { return nil }},
		known: map[string]oauth.Identity{}}
	if raw := os.Getenv("MCP_CONFORMANCE_CONTEXT"); raw != "" {
		var given struct {
			ID     string `json:"client_id"`
			Secret string `json:"client_secret"`
		}
		if err := json.Unmarshal([]byte(raw), &given); err != nil {
			return err
		}
		if given.ID != "" {
			s.given = &oauth.Identity{ID: given.ID, Secret: secret.New(given.Secret)}
		}
	}
	c, err := mcp.NewClient(mcp.Options{Endpoint: endpoint, Transport: &http.Transport{}, Info: mcp.Implementation{Name: "patchbay-conformance", Version: "1"},
		Inject: s.inject, Bounds: mcp.Bounds{Header: 10 * time.Second, Idle: 20 * time.Second, Total: 25 * time.Second, Body: 2 << 20, Tools: 256, Pages: 16, Resumes: 3}})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := s.retry(ctx, func() error { return c.Open(ctx) }); err != nil {
		return err
	}
	var tools []tool
	if err := s.retry(ctx, func() (err error) { tools, err = list(ctx, c); return err }); err != nil {
		return err
	}
	for _, t := range tools {
		if err := s.retry(ctx, func() error { return call(ctx, c, tools, t.Name, `{}`) }); err != nil {
			return err
		}
	}
	return nil
}

// signIn does in one process what Patchbay does with a person and a database.
type signIn struct {
	endpoint string
	client   *oauth.Client
	given    *oauth.Identity

	mu     sync.Mutex
	token  secret.Text
	scopes []string
	known  map[string]oauth.Identity // by issuer
}

func (s *signIn) inject(r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.token.Empty() {
		s.token.Expose(func(v string) { r.Header["Authorization"] = []string{"Bearer " + v} })
	}
	return nil
}

// retry signs in when the server asks for it, up to a bound.
func (s *signIn) retry(ctx context.Context, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		var e *mcp.Error
		if err == nil || !errors.As(err, &e) || !e.Ending.Challenge || try == maxTries {
			return err
		}
		hint := oauth.ReadHint(e.Challenges)
		if e.Ending.Status == http.StatusForbidden && hint.Error != "insufficient_scope" {
			return err
		}
		if err := s.flow(ctx, e.Challenges, e.Ending.Status == http.StatusForbidden); err != nil {
			return err
		}
	}
}

func (s *signIn) flow(ctx context.Context, challenges []string, stepUp bool) error {
	legacy := strings.Contains(os.Getenv("MCP_CONFORMANCE_SCENARIO"), "2025-03-26")
	srv, tried, err := s.client.Discover(ctx, oauth.Discovery{Endpoint: s.endpoint, Challenges: challenges, Guess: legacy})
	if err != nil {
		return fmt.Errorf("%w, tried %v", err, tried)
	}
	var also []string
	if stepUp {
		also = s.scopes
	}
	scopes := oauth.WantedScopes(srv, also, false)
	id, err := s.identity(ctx, srv, scopes)
	if err != nil {
		return err
	}
	state, verifier := fmt.Sprintf("state-%d", time.Now().UnixNano()), oauth.Verifier()
	to := oauth.Authorize{Server: srv, ClientID: id.ID, Redirect: redirect, State: state, Verifier: verifier, Scopes: scopes}.URL()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	back, err := url.Parse(resp.Header.Get("Location"))
	if err != nil {
		return err
	}
	q := back.Query()
	switch {
	case q.Get("state") != state:
		return fmt.Errorf("the state is %q", q.Get("state"))
	case q.Get("error") != "":
		return oauth.Declined(q.Get("error"), q.Get("error_description"))
	}
	if err := oauth.CheckIssuer(srv, q.Get("iss"), q.Has("iss")); err != nil {
		return err
	}
	tokens, err := s.client.Exchange(ctx, srv, id, q.Get("code"), redirect, verifier, scopes, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = tokens.Access
	for _, sc := range append(strings.Fields(tokens.Scope), scopes...) {
		if !slices.Contains(s.scopes, sc) {
			s.scopes = append(s.scopes, sc)
		}
	}
	return nil
}

func (s *signIn) identity(ctx context.Context, srv *oauth.Server, scopes []string) (oauth.Identity, error) {
	if s.given != nil {
		return srv.Registered(*s.given), nil
	}
	if srv.CIMD {
		return oauth.Identity{ID: document, Method: oauth.MethodNone}, nil
	}
	if id, ok := s.known[srv.Issuer]; ok {
		return id, nil
	}
	id, err := s.client.Register(ctx, srv, redirect, scopes)
	if err == nil {
		s.known[srv.Issuer] = id
	}
	return id, err
}
