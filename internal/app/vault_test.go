package app_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/app"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// moved is this machine's clock with what a test passes.
type moved struct {
	mu sync.Mutex
	by time.Duration
}

func (m *moved) Now() time.Time       { m.mu.Lock(); defer m.mu.Unlock(); return time.Now().Add(m.by) }
func (m *moved) pass(d time.Duration) { m.mu.Lock(); defer m.mu.Unlock(); m.by += d }

// reaching is a server whose agent general may reach a TLS server of ours by name api, with
// a client of its gateway for a team.
func reaching(t *testing.T, config, team string, with func(*app.Options)) *outward {
	t.Helper()
	far := newFarEnd(t)
	dir, port := trusting(t, far.Server)
	s := startWith(t, dir, strings.ReplaceAll(config, "%PORT%", port), with)
	var ca command.EgressCA
	if err := s.do("egress.ca", command.EgressCAInput{}, &ca); err != nil {
		t.Fatal(err)
	}
	o := &outward{served: s, far: far, placeholder: ca.Placeholder, ca: filepath.Join(dir, "ca.pem"), host: "127.0.0.1:" + port}
	if err := os.WriteFile(o.ca, []byte(ca.PEM), 0o644); err != nil {
		t.Fatal(err)
	}
	o.forTeam(t, team)
	return o
}

// forTeam takes a token of the agent general for a team.
func (o *outward) forTeam(t *testing.T, team string) {
	t.Helper()
	var token command.TokenCreated
	if err := o.do("tokens.create", command.TokensCreateInput{Label: "gateway", Agent: "general", Team: team}, &token); err != nil {
		t.Fatal(err)
	}
	o.proxy = strings.Replace(o.a.EgressURL(), "http://", "http://agent:"+token.Value+"@", 1)
}

// TestSecretsInOpenBao: what a person puts goes to the store that config names and is lent
// from there; an outage is told as one, and signs nobody out.
func TestSecretsInOpenBao(t *testing.T) {
	kv := fake.NewKV(t, time.Hour, 0)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.RequireToken(outSecret)
	t.Setenv("BAO_SECRET_ID", fake.KVSecretID)
	clock := &moved{}
	at, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := reaching(t, fmt.Sprintf(`vault: {kind: openbao, address: %q, login: {kind: approle, role_id: %s, secret_id_env: BAO_SECRET_ID}}
registry: {path: reg}
agents: {general: {servers: [notes], destinations: [api, notes]}}
egress:
  listen: 127.0.0.1:0
  allow: [{to: "127.0.0.1:%%PORT%%", for: [api]}, {to: %q, for: [notes]}]
  destinations:
    api: {hosts: [127.0.0.1], port: %%PORT%%, inject: {kind: bearer}, inject_secret: "secret:api"}
    notes: {hosts: [127.0.0.1], port: %s, inject: {kind: bearer}, inject_secret: "secret:api"}
`, kv.URL, fake.KVRole, m.URL, at.Port()), "", func(op *app.Options) { op.Clock = clock })
	if err := os.MkdirAll(filepath.Join(o.dir, "reg"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.dir, "reg", "notes.yaml"), []byte("name: notes\nurl: "+m.Endpoint()+"\nauth: bearer\ndestination: notes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.do("secrets.put", command.SecretsPutInput{Ref: "api", Value: outSecret}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	if err := o.do("config.reload", map[string]any{}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	if kv.Asked("put") != 1 {
		t.Errorf("%d writes", kv.Asked("put"))
	}
	c := o.client(t, false)
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", nil); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if _, auth := o.far.requests(); auth != "Bearer "+outSecret {
		t.Errorf("the far end got %q", auth)
	}
	if out, err := o.callTool("notes", "look"); err != nil || out.State != string(plane.CallSucceeded) {
		t.Errorf("%+v %v", out, err)
	}
	kv.Down(true)
	clock.pass(2 * time.Minute)
	if err := o.do("config.reload", map[string]any{}, &command.Changed{}); err != nil {
		t.Errorf("a reload in an outage: %v", err)
	}
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "org/api cannot be read: the vault at "+kv.URL) {
		t.Errorf("an outage: %d %s", status, body)
	}
	if row := o.row("notes"); row.State != string(plane.StateConnected) {
		t.Errorf("an outage signed it out: %+v", row)
	}
	if out, err := o.callTool("notes", "look"); err != nil || out.State != string(plane.CallSucceeded) {
		t.Errorf("what is signed in already: %+v %v", out, err)
	}
	if err := o.do("secrets.put", command.SecretsPutInput{Ref: "other", Value: "v"}, &command.Changed{}); err == nil || !strings.Contains(err.Error(), "does not take it") {
		t.Errorf("put in an outage: %v", err)
	}
	kv.Down(false)
	clock.pass(10 * time.Second)
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", nil); status != 200 {
		t.Errorf("after the outage: %d %s", status, body)
	}
}

// github is GitHub's API for apps.
type github struct {
	*httptest.Server
	key *rsa.PrivateKey
	mu  sync.Mutex
	n   int
	ask []string
}

func newGitHub(t *testing.T, now func() time.Time) *github {
	g := &github{}
	var err error
	if g.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.known(r.Header.Get("Authorization"), now()) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch {
		case r.Method == "GET" && r.URL.Path == "/repos/acme/pay/installation":
			fmt.Fprint(w, `{"id": 42, "account": {"login": "acme"}}`)
		case r.Method == "POST" && r.URL.Path == "/app/installations/42/access_tokens":
			var in struct {
				Repositories []string
				Permissions  map[string]string
			}
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			g.ask = append(g.ask, fmt.Sprint(in.Repositories, in.Permissions))
			g.n++
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"token": "ghs_minted%d", "expires_at": %q}`, g.n, now().Add(time.Hour).UTC().Format(time.RFC3339))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(g.Close)
	return g
}

// known checks an app's JWT as GitHub does.
func (g *github) known(auth string, now time.Time) bool {
	parts := strings.Split(strings.TrimPrefix(auth, "Bearer "), ".")
	if len(parts) != 3 {
		return false
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err != nil || rsa.VerifyPKCS1v15(&g.key.PublicKey, crypto.SHA256, sum[:], sig) != nil {
		return false
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	var c struct {
		Iss      string
		Iat, Exp int64
	}
	return err == nil && json.Unmarshal(body, &c) == nil && c.Iss == "4711" && c.Iat <= now.Unix() && c.Exp > now.Unix() && c.Exp-c.Iat <= 600
}

// TestAGitHubAppMints: a destination's secret is a token that the app makes for the team's
// repository and no other; it is used until it nears its end, and made anew.
func TestAGitHubAppMints(t *testing.T) {
	clock := &moved{}
	g := newGitHub(t, clock.Now)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "app.pem")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(g.key)}), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := reaching(t, fmt.Sprintf(`github_apps: {default: {app_id: "4711", private_key_file: %q, api: %q, permissions: {contents: write}}}
registry: {path: reg}
teams: {payments: {members: ["cli:local"], repo: "%s/acme/pay"}, legal: {members: ["cli:local"], repo: "%s/acme/other.git/"}}
agents: {general: {servers: [hub], destinations: [api, hub]}}
egress:
  listen: 127.0.0.1:0
  allow: [{to: "127.0.0.1:%%PORT%%", for: [api]}, {to: %q, for: [hub]}]
  destinations:
    api: {hosts: [127.0.0.1], port: %%PORT%%, inject: {kind: basic, user: x-access-token}, inject_secret: "github_app:default"}
    hub: {hosts: [127.0.0.1], port: %s, inject: {kind: bearer}, inject_secret: "github_app:default"}
`, keyFile, g.URL, g.URL, g.URL, m.URL, at.Port()), "payments", func(op *app.Options) { op.Clock = clock })
	if err := os.MkdirAll(filepath.Join(o.dir, "reg"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.dir, "reg", "hub.yaml"), []byte("name: hub\nurl: "+m.Endpoint()+"\nauth: bearer\ndestination: hub\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.do("config.reload", map[string]any{}, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	basic := func(r *http.Request) { r.SetBasicAuth("x-access-token", o.placeholder) }
	got := func() string {
		_, auth := o.far.requests()
		b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(auth, "Basic "))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for i := range 3 {
		if status, body, _ := o.sends(t, o.client(t, i == 1), "GET", "/plain", "", basic); status != 200 || strings.Contains(body, "ghs_") || got() != "x-access-token:ghs_minted1" {
			t.Fatalf("%d %s; the far end got %s", status, body, got())
		}
	}
	if len(g.ask) != 1 || g.ask[0] != "[pay] map[contents:write]" {
		t.Errorf("%v", g.ask)
	}
	clock.pass(56 * time.Minute)
	if status, _, _ := o.sends(t, o.client(t, false), "GET", "/plain", "", basic); status != 200 || got() != "x-access-token:ghs_minted2" {
		t.Errorf("after 56 minutes the far end got %s", got())
	}
	// A declared server is signed in by the same token, for a run of that team.
	m.RequireToken("ghs_minted2")
	run, _ := o.served.forTeam("Look", "general", "payments")
	if servers(run) != "registry:hub (hub)" {
		t.Errorf("%s", servers(run))
	}
	if out, err := o.callTool("hub", "look"); err == nil && out.State == string(plane.CallSucceeded) || !strings.Contains(out.Message+fmt.Sprint(err), "for a team that has one there") {
		t.Errorf("for no team: %+v %v", out, err)
	}
	session := o.plug("general", strings.TrimSuffix(strings.TrimPrefix(o.proxy, "http://agent:"), "@"+strings.TrimPrefix(o.a.EgressURL(), "http://")), "2025-11-25", nil)
	res, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__hub__look"})
	if err != nil || res.IsError {
		t.Errorf("%+v %v", res, err)
	}
	m.RequireToken("ghs_minted3") // the second was taken back
	if res, err = session.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__hub__look"}); err != nil || res.IsError {
		t.Errorf("a token that was taken back: %+v %v", res, err)
	}
	o.forTeam(t, "legal")
	if status, body, _ := o.sends(t, o.client(t, false), "GET", "/plain", "", basic); status != http.StatusBadGateway || !strings.Contains(body, "not installed for acme/other") {
		t.Errorf("where it is not installed: %d %s", status, body)
	}
	o.forTeam(t, "")
	if status, body, _ := o.sends(t, o.client(t, false), "GET", "/plain", "", basic); status != http.StatusForbidden || !strings.Contains(body, "for a team that has one there") {
		t.Errorf("for no team: %d %s", status, body)
	}
}

// TestAConnectionSignsADestinationIn: plain requests of an agent carry a connection's
// credential, where a destination names it; a refusal of the far end is read anew and not
// taken for the connection's end.
func TestAConnectionSignsADestinationIn(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("look", ""))
	m.RequireToken(outSecret)
	t.Setenv("UP_TOKEN", outSecret)
	o := reaching(t, fmt.Sprintf("org: {connections: {up: {url: %q, auth: bearer, token_env: UP_TOKEN}}}\nagents: {general: {destinations: [api]}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: %q, for: [up]}, {to: \"127.0.0.1:%%PORT%%\", for: [api]}]\n", m.Endpoint(), m.URL), "", nil)
	port := strings.TrimPrefix(o.host, "127.0.0.1:")
	in := command.DestinationsSetInput{Name: "api", Hosts: []string{"127.0.0.1"}, Inject: "bearer", Secret: "connection:" + o.row("up").ID}
	if _, err := fmt.Sscan(port, &in.Port); err != nil {
		t.Fatal(err)
	}
	if err := o.do("destinations.set", in, &command.Changed{}); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := o.sends(t, o.client(t, true), "GET", "/plain", "", nil); status != 200 || strings.Contains(body, outSecret) {
		t.Errorf("%d %s", status, body)
	}
	if _, auth := o.far.requests(); auth != "Bearer "+outSecret {
		t.Errorf("the far end got %q", auth)
	}
	o.far.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	if status, _, _ := o.sends(t, o.client(t, true), "GET", "/plain", "", nil); status != http.StatusUnauthorized {
		t.Errorf("%d", status)
	}
	if row := o.row("up"); row.State != string(plane.StateConnected) {
		t.Errorf("a request of the agent's own signed the connection out: %+v", row)
	}
	if out, err := o.callTool("up", "look"); err != nil || out.State != string(plane.CallSucceeded) {
		t.Errorf("%+v %v", out, err)
	}
}
