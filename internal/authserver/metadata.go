package authserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// refusal is an error answer (RFC 6749, section 5.2; RFC 7591, section 3.2.2).
type refusal struct {
	code, text string
	basic      bool // the client showed itself by Basic
	wait       time.Duration
	cause      error
}

func (e *refusal) status() int {
	switch e.code {
	case "invalid_client":
		return http.StatusUnauthorized
	case "access_denied":
		return http.StatusForbidden
	case "temporarily_unavailable":
		if e.wait > 0 {
			return http.StatusTooManyRequests
		}
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

func (s *Server) refuse(w http.ResponseWriter, e *refusal) {
	if e.cause != nil {
		s.o.Log.Warn("a client could not be answered", "error", e.code, "err", e.cause, "cause", errors.Unwrap(e.cause))
	}
	if e.basic {
		w.Header().Set("WWW-Authenticate", `Basic realm="patchbay"`)
	}
	if e.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(e.wait/time.Second)))
	}
	answer(w, e.status(), map[string]string{"error": e.code, "error_description": ascii(e.text)})
}

// ascii keeps a description within what RFC 6749, section 5.2 admits.
func ascii(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '"' || r == '\\' {
			return '\''
		}
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// answer writes JSON that nobody keeps.
func answer(w http.ResponseWriter, status int, body any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // who asked is gone, if that fails
}

// serverMetadata describes the authorization server (RFC 8414, section 2).
type serverMetadata struct {
	Issuer     string   `json:"issuer"`
	Authorize  string   `json:"authorization_endpoint"`
	Token      string   `json:"token_endpoint"`
	Register   string   `json:"registration_endpoint,omitempty"`
	Revoke     string   `json:"revocation_endpoint"`
	Scopes     []string `json:"scopes_supported"`
	Responses  []string `json:"response_types_supported"`
	Modes      []string `json:"response_modes_supported"`
	Grants     []string `json:"grant_types_supported"`
	TokenAuth  []string `json:"token_endpoint_auth_methods_supported"`
	RevokeAuth []string `json:"revocation_endpoint_auth_methods_supported"`
	Challenges []string `json:"code_challenge_methods_supported"`
	Iss        bool     `json:"authorization_response_iss_parameter_supported"`
	Documents  bool     `json:"client_id_metadata_document_supported"`

	// What OpenID's form of the document must have (OpenID Connect Discovery 1.0, section
	// 3). No ID token is issued, openid being no scope here, so that the set of keys is empty.
	Keys     string   `json:"jwks_uri,omitempty"`
	Subjects []string `json:"subject_types_supported,omitempty"`
	Signing  []string `json:"id_token_signing_alg_values_supported,omitempty"`
}

func (s *Server) metadata(openID bool) serverMetadata {
	at := s.Issuer()
	methods := []string{authNone, authBasic, authPost}
	m := serverMetadata{Issuer: at, Authorize: at + AuthorizePath, Token: at + TokenPath, Revoke: at + RevokePath, Scopes: plane.RightNames(),
		Responses: []string{"code"}, Modes: []string{"query"}, Grants: []string{"authorization_code", "refresh_token"}, TokenAuth: methods, RevokeAuth: methods,
		Challenges: []string{"S256"}, Iss: true, Documents: s.docs.client != nil}
	if s.o.Register {
		m.Register = at + RegisterPath
	}
	if openID {
		m.Keys, m.Subjects, m.Signing = at+KeysPath, []string{"public"}, []string{"RS256"}
	}
	return m
}

// resourceMetadata describes one MCP endpoint (RFC 9728, section 2).
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
	Methods  []string `json:"bearer_methods_supported"`
	Name     string   `json:"resource_name"`
}

// Handler serves what clients ask for without a person: metadata, registration, tokens. No
// cookie counts there, so that pages of others may ask too (CORS).
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	metadata := func(openID bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			rest := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, ServerMetadataPath), OpenIDMetadataPath), "/")
			rest = strings.TrimSuffix(rest, OpenIDMetadataPath)
			if _, ok := s.endpoint(rest); rest != "" && !ok {
				http.NotFound(w, r)
				return
			}
			public(w, s.metadata(openID))
		}
	}
	resource := func(w http.ResponseWriter, r *http.Request) {
		res, ok := s.endpoint(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, ResourceMetadataPath), "/"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		m := resourceMetadata{Resource: s.origin(r) + res.Path, Servers: []string{s.Issuer()}, Scopes: res.usual().Names(), Methods: []string{"header"}, Name: "Patchbay: commands"}
		if res.Agent != "" {
			m.Name = "Patchbay: " + res.Agent
		}
		public(w, m)
	}
	for _, p := range []string{ServerMetadataPath, ServerMetadataPath + "/"} {
		mux.HandleFunc("GET "+p, metadata(false))
	}
	for _, p := range []string{OpenIDMetadataPath, OpenIDMetadataPath + "/", s.o.Agents + "{slug}" + OpenIDMetadataPath, s.o.Commands + OpenIDMetadataPath} {
		mux.HandleFunc("GET "+p, metadata(true))
	}
	mux.HandleFunc("GET "+ResourceMetadataPath, http.NotFound) // there is no MCP endpoint at the root
	mux.HandleFunc("GET "+ResourceMetadataPath+"/", resource)
	mux.HandleFunc("GET "+KeysPath, func(w http.ResponseWriter, _ *http.Request) { public(w, map[string][]string{"keys": {}}) })
	mux.HandleFunc("POST "+TokenPath, s.token)
	mux.HandleFunc("POST "+RevokePath, s.revoke)
	mux.HandleFunc("POST "+RegisterPath, s.register)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
			h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, MCP-Protocol-Version")
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Serves reports whether a path is one of Handler's.
func (s *Server) Serves(path string) bool {
	switch path {
	case TokenPath, RevokePath, RegisterPath, KeysPath:
		return true
	}
	for _, p := range [...]string{ServerMetadataPath, OpenIDMetadataPath, ResourceMetadataPath} {
		if rest, ok := strings.CutPrefix(path, p); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	endpoint, ok := strings.CutSuffix(path, OpenIDMetadataPath)
	if !ok {
		return false
	}
	slug, ok := strings.CutPrefix(endpoint, s.o.Agents)
	return endpoint == s.o.Commands || ok && plane.ValidSlug(slug)
}

// Metadata is where the description of the endpoint that a request came to stands, for a
// challenge (RFC 9728, section 5.1); "" where no endpoint is.
func (s *Server) Metadata(r *http.Request) string {
	res, ok := s.endpoint(r.URL.Path)
	if !ok {
		return ""
	}
	return s.origin(r) + ResourceMetadataPath + res.Path
}

// public writes a document that may be kept for a while.
func public(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	json.NewEncoder(w).Encode(body) // who asked is gone, if that fails
}
