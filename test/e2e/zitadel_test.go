//go:build long

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"patchbay/internal/fake"
	"patchbay/test/peers"
)

// zitadel's example provider: OpenID discovery only, a client that its operator
// made, refresh tokens. The MCP server asks its userinfo whether a token holds.
func TestSignInAtZitadelsExample(t *testing.T) {
	port := peers.FreePort(t)
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	issuer := fmt.Sprintf("http://localhost:%d", l.Addr().(*net.TCPAddr).Port)
	storage.RegisterClients(storage.WebClient("gw", "the-gateways-secret", fmt.Sprintf("http://127.0.0.1:%d/mcp/oauth/callback", port)))
	op := httptest.NewUnstartedServer(exampleop.SetupServer(issuer, storage.NewStorage(storage.NewUserStore(issuer)), slog.New(slog.DiscardHandler), false))
	op.Listener.Close()
	op.Listener = l
	op.Start()
	t.Cleanup(op.Close)

	m := fake.NewMCP(t, fake.Tool("latest_note", `"annotations":{"readOnlyHint":true}`))
	m.Guard(func(r *http.Request) (string, int) {
		req, _ := http.NewRequest("GET", issuer+"/userinfo", nil)
		req.Header.Set("Authorization", r.Header.Get("Authorization"))
		if resp, err := http.DefaultClient.Do(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return "", 0
			}
		}
		return fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, m.URL), 401
	})
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/.well-known/") {
				fmt.Fprintf(w, `{"resource":%q,"authorization_servers":[%q],"scopes_supported":["openid"]}`, m.Endpoint(), issuer)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	d := serveOn(t, port, allow("notes", issuer, m.URL))
	add := exec.Command(binary, "--data", d.data, "mcp", "add", "notes", m.Endpoint(), "--client-id", "gw", "--client-auth", "client_secret_basic")
	add.Stdin = strings.NewReader("the-gateways-secret\n")
	var errs bytes.Buffer
	add.Stderr = &errs
	out, err := add.Output()
	if err != nil {
		t.Fatalf("%v %s", err, &errs)
	}
	b := newBrowser(t)
	b.open(link(t, string(out)))
	b.press("Continue to sign in")
	b.until("Login")
	b.do("log in", chromedp.SendKeys(chromedp.CSS("input[name=username]"), "test-user@localhost"), chromedp.SendKeys(chromedp.CSS("input[name=password]"), "verysecure"), chromedp.Click(chromedp.CSS("button[type=submit]")))
	b.until("notes is connected")
	if out := d.must("mcp", "call", "notes", "latest_note"); !strings.Contains(out, "{}") {
		t.Errorf("%q", out)
	}
}
