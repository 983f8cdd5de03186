package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"patchbay/internal/fake"
)

// A provider that sends browsers to loopback only: the command line takes the
// answer on its own machine, or lets the person paste where the browser ended.
func TestConnectOnTheOwnMachine(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("latest_note", ""))
	as := fake.NewAS(t, m)
	d := serve(t, allow("notes", as.URL, m.URL))
	d.must("mcp", "add", "notes", m.Endpoint())
	authorize := func(u string) string {
		c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := c.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("Location")
	}
	for _, flags := range [][]string{{"--local"}, {"--local", "--no-browser"}} {
		cmd := exec.Command(binary, append([]string{"--data", d.data, "mcp", "connect", "notes"}, flags...)...)
		cmd.Env = append(os.Environ(), "PATH=/nonexistent") // no browser is opened
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(errs)
		to := ""
		for to == "" {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("no address: %v", err)
			}
			if l := strings.TrimSpace(line); strings.HasPrefix(l, "http") {
				to = l
			}
		}
		back := authorize(to)
		if !strings.HasPrefix(back, "http://127.0.0.1:") || strings.HasPrefix(back, d.publicURL(t)) {
			t.Fatalf("the answer goes to %s", back)
		}
		if len(flags) == 2 {
			fmt.Fprintln(in, back)
		} else {
			resp, err := http.Get(back)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		io.Copy(io.Discard, lines)
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "notes is connected: 1 tool.") {
			t.Errorf("%v: %v %q", flags, err, out.String())
		}
	}
	d.must("mcp", "call", "notes", "latest_note")
}

// A server elsewhere is reached by address and token, from any machine.
func TestARemoteCommandLine(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("latest_note", ""))
	d := serve(t, allow("notes", m.URL))
	token := strings.TrimSpace(d.must("tokens", "create", "laptop", "--scopes", "mcp:read,mcp:write"))
	run := func(token string, args ...string) (string, int) {
		cmd := exec.Command(binary, args...)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PATCHBAY_URL="+d.publicURL(t), "PATCHBAY_TOKEN="+token)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run(token, "mcp", "add", "notes", m.Endpoint()); code != 0 || !strings.Contains(out, "notes is connected") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := run(token, "mcp", "ls", "--json"); code != 0 || !strings.Contains(out, `"name": "notes"`) {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := run("pbt_wrong", "mcp", "ls"); code != 4 || !strings.Contains(out, "token") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := run(token, "keys", "rotate"); code != 1 || !strings.Contains(out, "admin") {
		t.Errorf("exit %d: %s", code, out)
	}
}
