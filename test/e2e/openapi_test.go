package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/internal/fake"
	"patchbay/test/peers"
)

// The OpenAPI document is valid to somebody else's validator, and a client that
// somebody else's generator makes of it type-checks and works.
func TestAGeneratedClientWorks(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("read_issue", ""), fake.Tool("save_issue", ""), fake.Tool("drop_issue", ""))
	port := peers.FreePort(t)
	d := serveOn(t, port, fmt.Sprintf("egress: {allow: [{to: %q, for: [\"agent:general/linear-support\"]}]}\n", m.URL))
	var token struct{ Token string }
	if err := json.Unmarshal([]byte(d.must("--json", "tokens", "create", "api", "--scopes", "admin")), &token); err != nil || token.Token == "" {
		t.Fatal(err)
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	get := func(path string) []byte {
		req, _ := http.NewRequest(http.MethodGet, base+path, nil)
		req.Header.Set("Authorization", "Bearer "+token.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %v %d %s", path, err, resp.StatusCode, b)
		}
		return b
	}
	doc := get("/api/openapi.json")
	if v1 := get("/api/v1/openapi.json"); string(v1) != string(doc) {
		t.Error("/api/v1 is not the same")
	}
	page := string(get("/api/reference"))
	for _, bad := range []string{"<script", "//cdn", "https://"} {
		if strings.Contains(page, bad) {
			t.Errorf("the reference page holds %q", bad)
		}
	}
	if !strings.Contains(page, "providers.enable") || !strings.Contains(page, "tool_classifications") {
		t.Error("the reference page lacks an operation")
	}
	gen := filepath.Join(peers.Dir(), "generated")
	os.RemoveAll(gen)
	if err := os.MkdirAll(gen, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(gen) })
	if err := os.WriteFile(filepath.Join(gen, "openapi.json"), doc, 0o644); err != nil {
		t.Fatal(err)
	}
	node := func(env []string, args ...string) {
		t.Helper()
		cmd := exec.Command(peers.Node(), args...)
		cmd.Dir, cmd.Env = peers.Dir(), append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	node(nil, "openapi.mjs", "generated/openapi.json", "generated/api.d.ts")
	node(nil, "node_modules/typescript/bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext", "--lib", "es2022,dom",
		"--outDir", "generated", "--rootDir", ".", "--skipLibCheck", "client.ts")
	node([]string{"PATCHBAY_URL=" + base, "PATCHBAY_TOKEN=" + token.Token, "MCP_URL=" + m.Endpoint()}, "generated/client.js")
}
