package fake

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// AS is an OAuth authorization server that approves by itself, rotates refresh
// tokens and revokes a whole family when one is used twice. Any of its endpoints
// can be told to answer otherwise.
type AS struct {
	*httptest.Server
	Resource string // the protected MCP endpoint

	mu       sync.Mutex
	override map[string]http.HandlerFunc // by path
	metadata func(m map[string]any)
	prm      func(m map[string]any)
	clients  map[string]asClient
	codes    map[string]asCode
	spent    map[string]*family // by code
	access   map[string]*family
	refresh  map[string]*family
	life     int
	n        int
	log      []Asked
	issued   []string

	inFlight, most atomic.Int32
	refreshDelay   time.Duration
}

type asClient struct{ secret, method, redirect string }

type asCode struct{ client, challenge, redirect, scope string }

// family is one grant: the tokens that descend from one consent.
type family struct {
	client, scope string
	live          string // the one refresh token that may be used
	revoked       bool
}

// Asked is one request that arrived, with its form or query.
type Asked struct {
	Path string
	Form url.Values
	Auth string
}

// NewAS starts an authorization server for one MCP server, which from now on
// wants its tokens.
func NewAS(t testing.TB, m *MCP) *AS {
	t.Helper()
	a := &AS{Resource: m.Endpoint(), override: map[string]http.HandlerFunc{}, clients: map[string]asClient{}, codes: map[string]asCode{}, spent: map[string]*family{},
		access: map[string]*family{}, refresh: map[string]*family{}, life: 3600}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() { a.CloseClientConnections(); a.Server.Close() })
	m.Guard(func(r *http.Request) (string, int) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		a.mu.Lock()
		defer a.mu.Unlock()
		if f := a.access[token]; f != nil && !f.revoked {
			return "", 0
		}
		hint := fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, m.URL)
		if token != "" {
			hint += `, error="invalid_token"`
		}
		return hint, http.StatusUnauthorized
	})
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/.well-known/") {
				a.resource(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	return a
}

// Override serves one path by fn; nil ends it.
func (a *AS) Override(path string, fn http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.override[path] = fn
}

// Metadata changes the server's metadata, PRM the resource's.
func (a *AS) Metadata(fn func(m map[string]any)) { a.mu.Lock(); defer a.mu.Unlock(); a.metadata = fn }

// PRM changes the protected resource's metadata.
func (a *AS) PRM(fn func(m map[string]any)) { a.mu.Lock(); defer a.mu.Unlock(); a.prm = fn }

// Life sets how long access tokens say they live, in seconds.
func (a *AS) Life(seconds int) { a.mu.Lock(); defer a.mu.Unlock(); a.life = seconds }

// SlowRefresh makes each refresh take a while.
func (a *AS) SlowRefresh(d time.Duration) { a.mu.Lock(); defer a.mu.Unlock(); a.refreshDelay = d }

// Expire makes all access tokens invalid, as if their time were over.
func (a *AS) Expire() { a.mu.Lock(); defer a.mu.Unlock(); a.access = map[string]*family{} }

// Withdraw revokes every grant.
func (a *AS) Withdraw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.refresh {
		f.revoked = true
	}
	a.access = map[string]*family{}
}

// Forget makes the server forget its clients.
func (a *AS) Forget() { a.mu.Lock(); defer a.mu.Unlock(); a.clients = map[string]asClient{} }

// AddClient pre-registers a client.
func (a *AS) AddClient(id, secret, method, redirect string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[id] = asClient{secret, method, redirect}
}

// Asked are the requests to a path, in order.
func (a *AS) Asked(path string) []Asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Asked
	for _, x := range a.log {
		if x.Path == path {
			out = append(out, x)
		}
	}
	return out
}

// Revoked reports whether any family was revoked for reuse or by anybody.
func (a *AS) Revoked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.refresh {
		if f.revoked {
			return true
		}
	}
	return false
}

// MostAtOnce is how many refreshes were under way beside each other at most.
func (a *AS) MostAtOnce() int { return int(a.most.Load()) }

func (a *AS) resource(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	fn, change := a.override[r.URL.Path], a.prm
	a.mu.Unlock()
	if fn != nil {
		fn(w, r)
		return
	}
	if r.URL.Path != "/.well-known/oauth-protected-resource/mcp" {
		http.NotFound(w, r)
		return
	}
	m := map[string]any{"resource": a.Resource, "authorization_servers": []string{a.URL}, "scopes_supported": []string{"read", "write"}}
	if change != nil {
		change(m)
	}
	writeJSON(w, http.StatusOK, m)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func (a *AS) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	form, _ := url.ParseQuery(string(body)) // a registration is JSON
	if r.Method == http.MethodGet {
		form = r.URL.Query()
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	a.mu.Lock()
	a.log = append(a.log, Asked{r.URL.Path, form, r.Header.Get("Authorization")})
	fn, change := a.override[r.URL.Path], a.metadata
	a.mu.Unlock()
	if fn != nil {
		fn(w, r)
		return
	}
	switch r.URL.Path {
	case "/.well-known/oauth-authorization-server":
		m := map[string]any{"issuer": a.URL, "authorization_endpoint": a.URL + "/authorize", "token_endpoint": a.URL + "/token",
			"registration_endpoint": a.URL + "/register", "revocation_endpoint": a.URL + "/revoke", "code_challenge_methods_supported": []string{"S256"},
			"grant_types_supported": []string{"authorization_code", "refresh_token"}, "authorization_response_iss_parameter_supported": true,
			"scopes_supported": []string{"read", "write", "offline_access"}}
		if change != nil {
			change(m)
		}
		writeJSON(w, http.StatusOK, m)
	case "/register":
		a.register(w, body)
	case "/authorize":
		a.authorize(w, r, form)
	case "/token":
		a.token(w, r, form)
	case "/revoke":
		a.mu.Lock()
		if f := a.refresh[form.Get("token")]; f != nil {
			f.revoked = true
		}
		delete(a.access, form.Get("token"))
		a.mu.Unlock()
		w.WriteHeader(http.StatusOK)
	default:
		http.NotFound(w, r)
	}
}

// secret makes a value that a test can look for. The lock is held.
func (a *AS) secret(kind string) string {
	v := "mk-" + kind + "-" + rand.Text()
	a.issued = append(a.issued, v)
	return v
}

// Issued are all codes and tokens that were given out.
func (a *AS) Issued() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.issued)
}

func (a *AS) register(w http.ResponseWriter, body []byte) {
	var in struct {
		Redirects []string `json:"redirect_uris"`
		Method    string   `json:"token_endpoint_auth_method"`
	}
	if json.Unmarshal(body, &in) != nil || len(in.Redirects) != 1 {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_client_metadata"})
		return
	}
	a.mu.Lock()
	a.n++
	id := fmt.Sprintf("client-%d", a.n)
	a.clients[id] = asClient{method: in.Method, redirect: in.Redirects[0]}
	a.mu.Unlock()
	writeJSON(w, http.StatusCreated, map[string]any{"client_id": id, "redirect_uris": in.Redirects, "token_endpoint_auth_method": in.Method})
}

func (a *AS) authorize(w http.ResponseWriter, r *http.Request, q url.Values) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.clients[q.Get("client_id")]
	if !ok || c.redirect != q.Get("redirect_uri") || q.Get("code_challenge_method") != "S256" || q.Get("resource") != a.Resource {
		w.WriteHeader(http.StatusUnprocessableEntity)
		io.WriteString(w, `{"message":"unknown client"}`)
		return
	}
	a.n++
	code := a.secret("code")
	a.codes[code] = asCode{q.Get("client_id"), q.Get("code_challenge"), c.redirect, q.Get("scope")}
	back, _ := url.Parse(c.redirect)
	back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {a.URL}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (a *AS) token(w http.ResponseWriter, r *http.Request, f url.Values) {
	if f.Get("grant_type") == "refresh_token" {
		n := a.inFlight.Add(1)
		defer a.inFlight.Add(-1)
		for old := a.most.Load(); n > old && !a.most.CompareAndSwap(old, n); old = a.most.Load() {
		}
		a.mu.Lock()
		d := a.refreshDelay
		a.mu.Unlock()
		time.Sleep(d)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	bad := func(word string) { writeJSON(w, http.StatusBadRequest, map[string]any{"error": word}) }
	id, sec, basic := r.BasicAuth()
	if !basic {
		id, sec = f.Get("client_id"), f.Get("client_secret")
	}
	id, _ = url.QueryUnescape(id)
	sec, _ = url.QueryUnescape(sec)
	c, ok := a.clients[id]
	if !ok || c.secret != sec || c.method == "client_secret_post" && basic || c.method == "client_secret_basic" && !basic {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	if f.Get("resource") != a.Resource {
		bad("invalid_target")
		return
	}
	var fam *family
	switch f.Get("grant_type") {
	case "authorization_code":
		code, ok := a.codes[f.Get("code")]
		delete(a.codes, f.Get("code"))
		if spent := a.spent[f.Get("code")]; spent != nil { // RFC 6749 §4.1.2
			spent.revoked = true
			for t, fam := range a.access {
				if fam == spent {
					delete(a.access, t)
				}
			}
		}
		sum := sha256.Sum256([]byte(f.Get("code_verifier")))
		if !ok || code.client != id || code.redirect != f.Get("redirect_uri") || code.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			bad("invalid_grant")
			return
		}
		fam = &family{client: id, scope: code.scope}
		a.spent[f.Get("code")] = fam
	case "refresh_token":
		fam = a.refresh[f.Get("refresh_token")]
		if fam == nil || fam.revoked || fam.client != id {
			bad("invalid_grant")
			return
		}
		if fam.live != f.Get("refresh_token") { // used twice: the whole family goes
			fam.revoked = true
			bad("invalid_grant")
			return
		}
	default:
		bad("unsupported_grant_type")
		return
	}
	a.n++
	access, refresh := a.secret("access"), a.secret("refresh")
	a.access[access], a.refresh[refresh] = fam, fam
	fam.live = refresh
	out := map[string]any{"access_token": access, "token_type": "bearer", "expires_in": a.life, "scope": fam.scope}
	if slices.Contains(strings.Fields(fam.scope), "offline_access") {
		out["refresh_token"] = refresh
	}
	writeJSON(w, http.StatusOK, out)
}

// Issue makes a grant without a browser, for a public client of that name.
func (a *AS) Issue(client string) (access, refresh string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[client] = asClient{method: "none"}
	a.n++
	access, refresh = a.secret("access"), a.secret("refresh")
	f := &family{client: client, scope: "read offline_access", live: refresh}
	a.access[access], a.refresh[refresh] = f, f
	return access, refresh
}
