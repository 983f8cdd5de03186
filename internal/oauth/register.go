package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/secret"
)

// Ways to authenticate at a token endpoint.
const (
	MethodNone  = "none"
	MethodBasic = "client_secret_basic"
	MethodPost  = "client_secret_post"
)

// Identity is who we are at one authorization server.
type Identity struct {
	ID     string
	Secret secret.Text
	Method string // none, client_secret_basic, client_secret_post
}

// Metadata is what a registration or a client ID metadata document says of us.
type Metadata struct {
	ClientID    string   `json:"client_id,omitempty"`
	Name        string   `json:"client_name"`
	URI         string   `json:"client_uri,omitempty"`
	Redirects   []string `json:"redirect_uris"`
	Grants      []string `json:"grant_types"`
	Responses   []string `json:"response_types"`
	Method      string   `json:"token_endpoint_auth_method"`
	Application string   `json:"application_type"`
	Scope       string   `json:"scope,omitempty"`
}

// Describe is our metadata for a redirect URI.
func Describe(redirect string) Metadata {
	m := Metadata{Name: "Patchbay", Redirects: []string{redirect}, Grants: []string{"authorization_code", "refresh_token"},
		Responses: []string{"code"}, Method: MethodNone, Application: "web"}
	if u, err := url.Parse(redirect); err == nil && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1") {
		m.Application = "native"
	}
	return m
}

// method is how to authenticate: none where the server allows it.
func (s *Server) method() string {
	for _, m := range []string{MethodNone, MethodBasic, MethodPost} {
		if len(s.Methods) == 0 || slices.Contains(s.Methods, m) {
			return m
		}
	}
	return MethodNone
}

// secretMethod is how to send a secret when nobody said: RFC 7591's default, or
// the other one where the server lists only that.
func (s *Server) secretMethod() string {
	if len(s.Methods) > 0 && !slices.Contains(s.Methods, MethodBasic) && slices.Contains(s.Methods, MethodPost) {
		return MethodPost
	}
	return MethodBasic
}

// Registered fills in what an operator left out of a pre-registered identity.
func (s *Server) Registered(id Identity) Identity {
	if id.Method == "" {
		id.Method = MethodNone
		if !id.Secret.Empty() {
			id.Method = s.secretMethod()
		}
	}
	return id
}

// Register registers us (RFC 7591). What the server answers governs, not what
// was asked for.
func (c *Client) Register(ctx context.Context, s *Server, redirect string, scopes []string) (Identity, error) {
	if s.Registration == "" {
		return Identity{}, failed(nil, "The authorization server %s registers no clients; it wants one that its operator made.", text(s.Issuer))
	}
	m := Describe(redirect)
	m.Method, m.Scope = s.method(), strings.Join(scopes, " ")
	id, err := c.register(ctx, s, m)
	if e, ok := err.(*Error); ok && e.Code == "invalid_redirect_uri" && m.Method == MethodNone && (len(s.Methods) == 0 || slices.Contains(s.Methods, s.secretMethod())) {
		m.Method = s.secretMethod() // F035: some take a hosted redirect from confidential clients only
		if id, err = c.register(ctx, s, m); err != nil {
			e.Sentence = "The authorization server refuses our redirect address; it wants a client that its operator made."
			return id, e
		}
	}
	return id, err
}

func (c *Client) register(ctx context.Context, s *Server, m Metadata) (Identity, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return Identity{}, err
	}
	u, err := url.Parse(s.Registration)
	if err != nil {
		return Identity{}, failed(err, "The registration endpoint cannot be read.")
	}
	req, err := http.NewRequest(http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return Identity{}, failed(err, "The registration endpoint cannot be read.")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	a, err := c.send(ctx, req)
	if err != nil {
		return Identity{}, err
	}
	var got struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
		Method string `json:"token_endpoint_auth_method"`
		Error  string `json:"error"`
		About  string `json:"error_description"`
	}
	if a.json {
		json.Unmarshal(a.body, &got) // another shape leaves it empty
	}
	if got.ID == "" || a.status >= 300 || len(got.ID) > 2048 || len(got.Secret) > 8192 {
		e := failed(nil, "The authorization server %s did not register Patchbay (HTTP %d).", text(u.Host), a.status)
		e.Status, e.Description, e.Transient = a.status, text(got.About), a.status >= 500
		if got.Error != "" {
			e.Code = code(got.Error)
		}
		return Identity{}, e
	}
	id := Identity{ID: got.ID, Secret: secret.New(got.Secret), Method: got.Method}
	if id.Method == "" {
		id.Method = MethodNone
		if got.Secret != "" {
			id.Method = s.secretMethod()
		}
	}
	if id.Method != MethodNone && id.Method != MethodBasic && id.Method != MethodPost {
		return Identity{}, failed(nil, "The authorization server wants the client to authenticate by %s, which Patchbay does not do.", code(id.Method))
	}
	return id, nil
}
