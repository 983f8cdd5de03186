package fake

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// KV is an OpenBao or Vault with one KV v2 engine at secret/ and the auth methods token,
// approle and kubernetes. Its tokens run out, and it can be down, forget its tokens, and
// refuse.
type KV struct {
	*httptest.Server

	mu       sync.Mutex
	lease    time.Duration // of a sign-in
	most     time.Duration // all renewals together; 0 for no end
	down     bool
	refuses  map[string]bool // paths that the policy does not admit
	tokens   map[string]kvToken
	secrets  map[string]kvSecret
	asked    map[string]int // kind of request: how many
	jwts     []string
	headers  http.Header // of the last request
	sequence int
}

type kvToken struct{ born, ends time.Time }

type kvSecret struct {
	version int
	data    map[string]any
}

// What NewKV's sign-ins want.
const (
	KVRole     = "patchbay"
	KVSecretID = "the-secret-id"
	KVToken    = "bao-root-token"
)

// NewKV starts one whose sign-ins hold for lease.
func NewKV(t testing.TB, lease, most time.Duration) *KV {
	k := &KV{lease: lease, most: most, tokens: map[string]kvToken{}, secrets: map[string]kvSecret{}, asked: map[string]int{}, refuses: map[string]bool{}}
	k.tokens[KVToken] = kvToken{born: time.Now(), ends: time.Now().Add(lease)}
	k.Server = httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(k.Server.Close)
	return k
}

// Down has it answer nothing sensible.
func (k *KV) Down(down bool) { k.mu.Lock(); defer k.mu.Unlock(); k.down = down }

// Forget takes every token back.
func (k *KV) Forget() { k.mu.Lock(); defer k.mu.Unlock(); clear(k.tokens) }

// Asked is how many requests of a kind came: login, renew, get, put, delete.
func (k *KV) Asked(kind string) int { k.mu.Lock(); defer k.mu.Unlock(); return k.asked[kind] }

// JWTs are the service accounts' tokens that were presented.
func (k *KV) JWTs() []string { k.mu.Lock(); defer k.mu.Unlock(); return append([]string{}, k.jwts...) }

// Refuse has the policy not admit a path.
func (k *KV) Refuse(path string) { k.mu.Lock(); defer k.mu.Unlock(); k.refuses[path] = true }

// Header is one of the last request.
func (k *KV) Header(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.headers.Get(name)
}

// Set writes a secret as somebody else would.
func (k *KV) Set(path string, data map[string]any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.secrets[path] = kvSecret{k.secrets[path].version + 1, data}
}

func (k *KV) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.headers = r.Header
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	data, isData := strings.CutPrefix(path, "secret/data/")
	meta, isMeta := strings.CutPrefix(path, "secret/metadata/")
	kind := map[bool]string{true: "get", false: "put"}[r.Method == http.MethodGet]
	switch {
	case strings.HasSuffix(path, "/login"):
		kind = "login"
	case strings.HasSuffix(path, "renew-self"):
		kind = "renew"
	case r.Method == http.MethodDelete:
		kind = "delete"
	case strings.HasSuffix(path, "lookup-self"):
		kind = "lookup"
	}
	k.asked[kind]++
	if k.down {
		kvError(w, http.StatusServiceUnavailable, "Vault is sealed")
		return
	}
	var body map[string]any
	if r.Body != nil && r.Method != http.MethodGet && r.Method != http.MethodDelete {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil && r.ContentLength > 0 {
			kvError(w, http.StatusBadRequest, "failed to parse JSON input")
			return
		}
	}
	switch kind {
	case "login":
		k.login(w, path, body)
		return
	case "renew":
		k.renew(w, r.Header.Get("X-Vault-Token"))
		return
	}
	if t, ok := k.tokens[r.Header.Get("X-Vault-Token")]; !ok || time.Now().After(t.ends) {
		kvError(w, http.StatusForbidden, "permission denied")
		return
	}
	if path == "auth/token/lookup-self" {
		kvAnswer(w, map[string]any{"data": map[string]any{"policies": []string{"patchbay"}}})
		return
	}
	if k.refuses[data] {
		kvError(w, http.StatusForbidden, "1 error occurred:\n\t* permission denied\n\n")
		return
	}
	switch {
	case isData && kind == "get":
		s, ok := k.secrets[data]
		if !ok {
			kvError(w, http.StatusNotFound)
			return
		}
		kvAnswer(w, map[string]any{"data": map[string]any{"data": s.data, "metadata": kvMeta(s.version)}})
	case isData && kind == "put":
		in, ok := body["data"].(map[string]any)
		if !ok {
			kvError(w, http.StatusBadRequest, "no data provided")
			return
		}
		s := kvSecret{k.secrets[data].version + 1, in}
		k.secrets[data] = s
		kvAnswer(w, map[string]any{"data": kvMeta(s.version)})
	case isMeta && kind == "delete":
		delete(k.secrets, meta)
		w.WriteHeader(http.StatusNoContent)
	default:
		kvError(w, http.StatusNotFound, "no handler for route "+path)
	}
}

func kvMeta(version int) map[string]any {
	return map[string]any{"version": version, "created_time": "2026-01-02T03:04:05.678901234Z", "deletion_time": "", "destroyed": false, "custom_metadata": nil}
}

func (k *KV) login(w http.ResponseWriter, path string, body map[string]any) {
	switch {
	case strings.HasPrefix(path, "auth/approle/"):
		if body["role_id"] != KVRole || body["secret_id"] != KVSecretID {
			kvError(w, http.StatusBadRequest, "invalid role or secret ID")
			return
		}
	case strings.HasPrefix(path, "auth/kubernetes/"):
		jwt, _ := body["jwt"].(string)
		k.jwts = append(k.jwts, jwt)
		if body["role"] != KVRole || jwt == "" {
			kvError(w, http.StatusForbidden, "permission denied")
			return
		}
	default:
		kvError(w, http.StatusNotFound, "no handler for route "+path)
		return
	}
	k.sequence++
	token := "s.token-" + strconv.Itoa(k.sequence)
	now := time.Now()
	k.tokens[token] = kvToken{now, now.Add(k.lease)}
	k.auth(w, token, k.lease)
}

func (k *KV) renew(w http.ResponseWriter, token string) {
	t, ok := k.tokens[token]
	if !ok || time.Now().After(t.ends) {
		kvError(w, http.StatusForbidden, "permission denied")
		return
	}
	life := k.lease
	if k.most > 0 {
		life = min(life, time.Until(t.born.Add(k.most)))
	}
	t.ends = time.Now().Add(life)
	k.tokens[token] = t
	k.auth(w, token, life)
}

func (k *KV) auth(w http.ResponseWriter, token string, life time.Duration) {
	kvAnswer(w, map[string]any{"auth": map[string]any{"client_token": token, "lease_duration": int(life.Seconds()), "renewable": true, "policies": []string{"patchbay"}}})
}

func kvAnswer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func kvError(w http.ResponseWriter, status int, words ...string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"errors": append([]string{}, words...)})
}
