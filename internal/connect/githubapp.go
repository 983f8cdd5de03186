package connect

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// Apps mint tokens that are good for one team's repository.
type Apps interface {
	// Mint gives a token and when it ends.
	Mint(ctx context.Context, team, ref string) (secret.Text, time.Time, error)
}

const githubApp = "github_app:"

// mintAhead is how long before its end a minted token is replaced.
const mintAhead = 5 * time.Minute

// mint asks the app that a destination names for a token.
func (c *Connections) mint(ctx context.Context, team, ref string) (vault.Held, error) {
	if c.o.Apps == nil {
		return vault.Held{}, plane.Errorf(plane.Unavailable, "There is no GitHub App %s here.", ref).Then("An operator names it in patchbay.yaml: github_apps")
	}
	v, until, err := c.o.Apps.Mint(context.WithoutCancel(ctx), team, ref) // others may wait for it
	if err != nil {
		return vault.Held{}, err
	}
	now := c.o.Clock.Now()
	return vault.Held{Value: v, Until: until.Add(-min(mintAhead, until.Sub(now)/5))}, nil
}

// GitHubApp is one app of GitHub's, by its key.
type GitHubApp struct {
	ID          string
	Key         func() (secret.Text, error) // its private key, PEM
	API         string                      // https://api.github.com, or an Enterprise server's
	Permissions map[string]string           // what tokens are cut down to; empty: what the installation has
	Client      *http.Client                // to API and nowhere else
	Clock       plane.Clock
}

// maxGitHub bounds an answer of GitHub's, in bytes.
const maxGitHub = 1 << 20

// Token makes a token for one repository, good for about an hour.
func (g *GitHubApp) Token(ctx context.Context, owner, repo string) (secret.Text, time.Time, error) {
	jwt, err := g.jwt()
	if err != nil {
		return secret.Text{}, time.Time{}, plane.Errorf(plane.Unavailable, "The key of the GitHub App %s cannot be used.", g.ID).Then("It is the private key that GitHub gave, PEM.").Because(err)
	}
	var installation struct {
		ID int64 `json:"id"`
	}
	path := "/repos/" + url.PathEscape(owner) + "/" + url.PathEscape(repo) + "/installation"
	if err := g.ask(ctx, jwt, http.MethodGet, path, nil, &installation); err != nil {
		return secret.Text{}, time.Time{}, g.explain(err, owner+"/"+repo)
	}
	in := struct {
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{[]string{repo}, g.Permissions}
	var out struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if err := g.ask(ctx, jwt, http.MethodPost, "/app/installations/"+strconv.FormatInt(installation.ID, 10)+"/access_tokens", in, &out); err != nil {
		return secret.Text{}, time.Time{}, g.explain(err, owner+"/"+repo)
	}
	if out.Token == "" || strings.ContainsAny(out.Token, " \r\n\x00") || !out.Expires.After(g.Clock.Now()) {
		return secret.Text{}, time.Time{}, plane.Errorf(plane.Unavailable, "GitHub gave a token that cannot be used.")
	}
	return secret.New(out.Token), out.Expires, nil
}

// jwt says that we are the app, for a few minutes.
func (g *GitHubApp) jwt() (string, error) {
	text, err := g.Key()
	if err != nil {
		return "", err
	}
	var key any
	text.Expose(func(s string) {
		block, _ := pem.Decode([]byte(s))
		if block == nil {
			err = errors.New("connect: the key is no PEM")
			return
		}
		if key, err = x509.ParsePKCS1PrivateKey(block.Bytes); err != nil {
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		}
	})
	if err != nil {
		return "", errors.New("connect: the key is no RSA key") // the cause may quote it
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	now := g.Clock.Now()
	return jwt.Signed(signer).Claims(jwt.Claims{Issuer: g.ID, IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), Expiry: jwt.NewNumericDate(now.Add(9 * time.Minute))}).Serialize()
}

// statusError is how GitHub refused.
type statusError int

func (e statusError) Error() string { return "GitHub answered " + strconv.Itoa(int(e)) }

func (g *GitHubApp) ask(ctx context.Context, jwt, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(g.API, "/")+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+jwt)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	resp, err := g.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return statusError(resp.StatusCode)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxGitHub)).Decode(out)
}

func (g *GitHubApp) explain(err error, repo string) error {
	var status statusError
	errors.As(err, &status)
	switch status {
	case http.StatusNotFound:
		return plane.Errorf(plane.Unauthenticated, "The GitHub App %s is not installed for %s.", g.ID, repo).Then("Install it there, in the app's settings at GitHub.").Because(err)
	case http.StatusUnauthorized:
		return plane.Errorf(plane.Unauthenticated, "GitHub does not take the key of the app %s.", g.ID).Then("Check app_id and the private key in patchbay.yaml: github_apps").Because(err)
	case http.StatusUnprocessableEntity, http.StatusForbidden:
		return plane.Errorf(plane.Forbidden, "The GitHub App %s may not have what its permissions in patchbay.yaml ask for in %s.", g.ID, repo).Because(err)
	}
	return plane.Errorf(plane.Unavailable, "GitHub gives no token for %s now.", repo).Then("Try again in a minute.").Because(err)
}

// minted is the token of a connection that an app signs in.
type minted struct {
	team, ref string
	now       atomic.Pointer[set]
}

func (m *minted) key() string { return "github_app " + m.team + " " + m.ref }

// remint puts the present token in place, and mints one when that nears its end.
func (c *Connections) remint(ctx context.Context, conn plane.Connection, m *minted) error {
	held, err := c.heldSecret(ctx, m.key(), func() (vault.Held, error) { return c.mint(ctx, m.team, m.ref) })
	if err != nil {
		return err
	}
	if s := m.now.Load(); s != nil && s.redactor == held.redactor {
		return nil
	}
	s := prepare(conn.Auth, Pasted(held.value), 0, c.o.Clock.Now(), nil)
	s.redactor = held.redactor
	m.now.Store(s)
	return nil
}

// forgetHeld drops one value, so that it is read or minted anew.
func (c *Connections) forgetHeld(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, key)
}
