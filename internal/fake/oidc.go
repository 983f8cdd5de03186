package fake

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// OIDC is an OpenID Connect issuer that signs in whoever As said last, without a question.
type OIDC struct {
	URL string

	t     testing.TB
	key   *rsa.PrivateKey
	mu    sync.Mutex
	email string
	codes map[string]oidcCode
}

type oidcCode struct{ email, nonce, client string }

// NewOIDC starts an issuer.
func NewOIDC(t testing.TB, email string) *OIDC {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	o := &OIDC{t: t, key: key, email: email, codes: map[string]oidcCode{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"issuer": o.URL, "authorization_endpoint": o.URL + "/authorize", "token_endpoint": o.URL + "/token", "jwks_uri": o.URL + "/keys",
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", o.authorize)
	mux.HandleFunc("POST /token", o.token)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	o.URL = s.URL
	return o
}

// As says who is signed in from now on.
func (o *OIDC) As(email string) { o.mu.Lock(); o.email = email; o.mu.Unlock() }

func (o *OIDC) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	code := rand.Text()
	o.mu.Lock()
	o.codes[code] = oidcCode{o.email, q.Get("nonce"), q.Get("client_id")}
	o.mu.Unlock()
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
}

func (o *OIDC) token(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	c, ok := o.codes[r.PostFormValue("code")]
	delete(o.codes, r.PostFormValue("code"))
	o.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant"})
		return
	}
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"iss": o.URL, "sub": "sub-of-" + c.email, "aud": c.client, "nonce": c.nonce, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"email": c.email, "email_verified": true, "name": c.email})
	if err != nil {
		o.t.Error(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: o.key, KeyID: "k"}}, nil)
	if err != nil {
		o.t.Error(err)
		return
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		o.t.Error(err)
		return
	}
	id, err := signed.CompactSerialize()
	if err != nil {
		o.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 3600, "id_token": id})
}
