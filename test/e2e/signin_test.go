//go:build long

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"patchbay/internal/fake"
	"patchbay/test/peers"
)

// door is an install with one tool, a person's browser, and a place for clients' metadata
// documents.
type door struct {
	*daemon
	b    *browser
	port int
	docs string // address of a metadata document
}

// doorLife is so short that every call some seconds later takes a refresh.
const doorLife = 2 * time.Second

func newDoor(t *testing.T) *door {
	t.Helper()
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	far := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"client_id": "https://" + r.Host + "/client.json", "client_name": "Peer by document", "redirect_uris": []string{"http://127.0.0.1/callback"},
			"grant_types": []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"}, "token_endpoint_auth_method": "none"})
	}))
	t.Cleanup(far.Close)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: far.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &door{port: peers.FreePort(t), docs: far.URL + "/client.json"}
	d.daemon = serveOn(t, d.port, fmt.Sprintf("limits: {access_life: %s}\negress: {allow: [{to: %q, for: [mine]}, {to: %q, for: [\"clients:documents\"]}]}\n",
		doorLife, m.URL, strings.TrimPrefix(far.URL, "https://")), "SSL_CERT_FILE="+roots)
	d.must("mcp", "add", "mine", m.Endpoint())
	// What a kill leaves open of a query holds nothing up.
	var l struct {
		Tools []struct{ Fingerprint string }
	}
	d.json(&l, "mcp", "tools", "mine")
	d.must("mcp", "classify", "mine", "look", "query", "--fingerprint", l.Tools[0].Fingerprint)
	d.b = d.signedIn(t)
	return d
}

// letsIn is the person's part: they look at what a client asks, and press the button.
func (d *door) letsIn(at, name string) {
	d.t.Helper()
	d.b.open(at)
	d.b.says("Let " + name + " use general?")
	d.b.says("a program on this computer")
	d.b.lets("Let it in")
	d.b.until("Back at the client")
}

// goesOn is the same for a client that they let in before, under the one id that it has
// wherever it runs.
func (d *door) goesOn(at, name string) {
	d.t.Helper()
	d.b.open(at)
	d.b.says("Go on with " + name + "?")
	d.b.lets("Go on")
	d.b.until("Back at the client")
}

// lets presses a button that takes no pointer in a page's first moment, which a person spends
// on reading it.
func (b *browser) lets(name string) {
	b.t.Helper()
	time.Sleep(time.Second)
	b.press(name)
}

// callbacks is where a client is come back to.
func callbacks(t *testing.T) (redirect string, came chan url.Values) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	came = make(chan url.Values, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "<title>Back at the client</title>")
		if r.URL.Path == "/callback" {
			came <- r.URL.Query()
		}
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String() + "/callback", came
}

// TestSignInOfTheGoSDK: the Go SDK's client registers, or is named by its document, has its
// person let it in, calls, refreshes and goes on after the server was killed.
func TestSignInOfTheGoSDK(t *testing.T) {
	d := newDoor(t)
	for _, by := range []string{"registration", "document"} {
		t.Run(by, func(t *testing.T) {
			redirect, came := callbacks(t)
			name := "Go peer"
			cfg := &auth.AuthorizationCodeHandlerConfig{RedirectURL: redirect, RequestRefreshToken: true}
			if by == "document" {
				name = "Peer by document"
				cfg.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: d.docs}
			} else {
				cfg.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{ClientName: name, RedirectURIs: []string{redirect},
					GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: "none"}}
			}
			asked := 0
			cfg.AuthorizationCodeFetcher = func(_ context.Context, a *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
				asked++
				d.letsIn(a.URL, name)
				q := <-came
				return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
			}
			h, err := auth.NewAuthorizationCodeHandler(cfg)
			if err != nil {
				t.Fatal(err)
			}
			c, err := sdk.NewClient(&sdk.Implementation{Name: "peer", Version: "1"}, nil).Connect(t.Context(),
				&sdk.StreamableClientTransport{Endpoint: fmt.Sprintf("http://127.0.0.1:%d/mcp/agents/general", d.port), OAuthHandler: h, DisableStandaloneSSE: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			call := func(when string) {
				t.Helper()
				out, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__mine__look"})
				if err != nil || out.IsError {
					t.Fatalf("%s: %s %v", when, asJSON(t, out, err), err)
				}
			}
			call("at once")
			time.Sleep(doorLife + time.Second)
			call("after a refresh")
			d.killed()
			call("after a kill")
			time.Sleep(doorLife + time.Second)
			call("after another refresh")
			if asked != 1 {
				t.Errorf("the person was asked %d times", asked)
			}
		})
	}
	if out := d.must("clients", "list"); !strings.Contains(out, "Go peer") || !strings.Contains(out, "Peer by document") {
		t.Error(out)
	}
}

// peer is a client in a process of its own.
type peer struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

func newPeer(t *testing.T, script string, env ...string) *peer {
	t.Helper()
	cmd := exec.Command(peers.Node(), filepath.Join(peers.Dir(), script))
	cmd.Dir, cmd.Stderr = peers.Dir(), os.Stderr
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p := &peer{t, in, bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	return p
}

func (p *peer) line() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatal("the client ended")
	}
	return p.out.Text()
}

func (p *peer) say(line string) string {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
	return p.line()
}

// TestSignInOfTheTypeScriptSDK: the same with the TypeScript SDK's client, in both eras.
func TestSignInOfTheTypeScriptSDK(t *testing.T) {
	d := newDoor(t)
	for _, c := range []struct{ by, era string }{{"registration", "2025-11-25"}, {"document", "2025-11-25"}, {"registration", "2026-07-28"}, {"document", "2026-07-28"}} {
		t.Run(c.by+" "+c.era, func(t *testing.T) {
			env := []string{fmt.Sprintf("MCP_URL=http://127.0.0.1:%d/mcp/agents/general", d.port), "MCP_ERA=" + c.era, fmt.Sprintf("PORT=%d", peers.FreePort(t))}
			name, client := "TypeScript peer", "clt_"
			if c.by == "document" {
				name, client = "Peer by document", d.docs
				env = append(env, "CLIENT_DOCUMENT="+d.docs)
			}
			p := newPeer(t, "signin.mjs", env...)
			at, ok := strings.CutPrefix(p.line(), "open ")
			if !ok {
				t.Fatal(at)
			}
			lets := d.letsIn
			if c.by == "document" && c.era == "2026-07-28" {
				lets = d.goesOn
			}
			lets(at, name)
			times := 0
			call := func(when string) {
				t.Helper()
				var got struct {
					Tools     []string
					Text      string
					Client    string
					Times     int
					Refreshes bool
				}
				said := p.say("call")
				if err := json.Unmarshal([]byte(said), &got); err != nil || len(got.Tools) != 1 || !strings.HasPrefix(got.Client, client) || !got.Refreshes {
					t.Fatalf("%s: %s %v", when, said, err)
				}
				times = got.Times
			}
			call("at once")
			time.Sleep(doorLife + time.Second)
			call("after a refresh")
			if times < 2 {
				t.Errorf("tokens were stored %d times", times)
			}
			d.killed()
			time.Sleep(doorLife)
			before := times
			call("after a kill")
			if times == before {
				t.Error("nothing was refreshed after the kill")
			}
		})
	}
}

// TestSignInOfTheInspector: the MCP Inspector's pages sign in and list tools.
func TestSignInOfTheInspector(t *testing.T) {
	d := newDoor(t)
	d.b.open(peers.Inspector(t, fmt.Sprintf("http://127.0.0.1:%d/mcp/agents/general", d.port)))
	d.b.says("Disconnected")
	d.b.eval(`(() => { document.querySelector('[role=switch]').click(); return '' })()`)
	d.b.says("Let MCP Inspector use general?")
	d.b.lets("Let it in")
	d.b.says("Authentication succeeded")
	d.b.says("Resources")
	d.b.eval(`(() => { [...document.querySelectorAll('label')].find(l => l.innerText.trim() === 'Tools').click(); return '' })()`)
	d.b.says("mcp__mine__look")
	if out := d.must("clients", "list"); !strings.Contains(out, "MCP Inspector") {
		t.Error(out)
	}
}

// TestSignInOfAStranger: a browser that is nobody yet comes back to the question by the
// printed link, and where the question has an answer already, on to the client.
func TestSignInOfAStranger(t *testing.T) {
	d := newDoor(t)
	redirect, came := callbacks(t)
	base := d.publicURL(t)
	resp, err := http.Post(base+"/oauth/register", "application/json", strings.NewReader(fmt.Sprintf(`{"client_name":"Stranger","redirect_uris":[%q],"token_endpoint_auth_method":"none"}`, redirect)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var client struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&client); err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{"general", "nobody"} {
		b := newBrowser(t)
		b.open(base + "/oauth/authorize?" + url.Values{"response_type": {"code"}, "client_id": {client.ID}, "redirect_uri": {redirect}, "resource": {base + "/mcp/agents/" + agent},
			"state": {agent}, "code_challenge_method": {"S256"}, "code_challenge": {strings.Repeat("c", 43)}}.Encode())
		b.says("Sign in first")
		words := strings.Fields(d.must("signin"))
		b.open(words[len(words)-1])
		b.press("Sign in")
		if agent == "general" {
			b.says("Let Stranger use general?")
			b.lets("Let it in")
		}
		b.until("Back at the client")
		q := <-came
		if agent == "general" && q.Get("code") == "" || agent == "nobody" && q.Get("error") != "invalid_target" || q.Get("state") != agent {
			t.Errorf("%s: the client hears %v", agent, q)
		}
	}
}
