//go:build long

package kill

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

// kills is how often a database is put through it: KILLS, else 20.
func kills(t *testing.T) int {
	if v := os.Getenv("KILLS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 20
}

func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "patchbay")
	if out, err := exec.Command("go", "build", "-o", bin, "patchbay/cmd/patchbay").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

type rig struct {
	t         *testing.T
	bin, file string
	data      string
	env       []string
	stderr    io.Writer
}

func (r *rig) serve() *exec.Cmd {
	cmd := exec.Command(r.bin, "serve", "-c", r.file)
	cmd.Env, cmd.Stderr = append(os.Environ(), r.env...), r.stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if exec.Command(r.bin, "--data", r.data, "status").Run() == nil {
			return cmd
		}
		if time.Now().After(end) {
			r.t.Fatal("not ready")
		}
	}
}

func (r *rig) json(out any, args ...string) error {
	b, err := exec.Command(r.bin, append([]string{"--data", r.data, "--json"}, args...)...).Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

type shown struct {
	Run struct {
		ID, State string
		Waiting   string `json:"waiting_for"`
		Reason    string
	}
	Calls []struct{ ID, State, Replaces string }
}

func TestKillsOnSQLite(t *testing.T) {
	exercise(t, "sqlite", nil)
}

func TestKillsOnPostgres(t *testing.T) {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	key, err := exec.Command(build(t), "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	exercise(t, url, []string{"PATCHBAY_KEYS=" + strings.TrimSpace(string(key))})
}

// exercise starts a run of three effects and a query, kills the server at a
// random moment, starts it again, and resolves what is unknown by looking at
// the server's own count, as a person would.
func exercise(t *testing.T, database string, env []string) {
	var mu sync.Mutex
	executed := map[string]int{}
	f := fake.NewMCP(t, fake.Tool("pay", ""), fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		var args struct{ X string }
		json.Unmarshal(in.Arguments, &args)
		if in.Name == "pay" {
			mu.Lock()
			executed[args.X]++
			mu.Unlock()
		}
		time.Sleep(rand.N(12 * time.Millisecond))
		return fake.Text("ok " + args.X), nil
	})
	dir := t.TempDir()
	r := &rig{t: t, bin: build(t), file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d"), env: env}
	port := peers.FreePort(t)
	write := func(round int) {
		steps := fmt.Sprintf(`[{calls: [{tool: mcp__up__pay, input: {x: r%[1]d-a}}]}, {calls: [{tool: mcp__up__look, input: {x: l}}, {tool: mcp__up__pay, input: {x: r%[1]d-b}}, {tool: mcp__up__pay, input: {x: r%[1]d-c}}]}, {say: done}]`, round)
		cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\ndatabase: %q\nlimits: {run_lease: 1s}\norg: {connections: {up: {url: %q}}}\negress: {allow: [{to: %q, for: [up]}]}\nmodels: {default: {provider: scripted, script: %s}}\n",
			port, r.data, database, f.Endpoint(), f.URL, steps)
		if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tally := map[string]int{}
	for round := range kills(t) {
		write(round)
		cmd := r.serve()
		var started struct{ ID string }
		ask := exec.Command(r.bin, "--data", r.data, "--json", "ask", "pay")
		events, err := ask.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := ask.Start(); err != nil {
			t.Fatal(err)
		}
		if rand.N(10) > 0 { // else it may die before the run begins
			if _, err := bufio.NewReader(events).ReadBytes('\n'); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(rand.N(80 * time.Millisecond))
		cmd.Process.Kill()
		cmd.Wait()
		ask.Process.Kill()
		ask.Wait()
		cmd = r.serve()
		var list struct{ Runs []struct{ ID, State string } }
		if err := r.json(&list, "runs", "list", "--limit", "1"); err != nil {
			t.Fatal(err)
		}
		if len(list.Runs) == 0 || tally["seen "+list.Runs[0].ID] > 0 {
			tally["killed before the run began"]++
			cmd.Process.Kill()
			cmd.Wait()
			continue
		}
		started.ID = list.Runs[0].ID
		tally["seen "+started.ID]++
		tally[r.finish(started.ID, executed, &mu)]++
		text, _ := exec.Command(r.bin, "--data", r.data, "--json", "runs", "show", started.ID).Output()
		cmd.Process.Kill()
		cmd.Wait()
		mu.Lock()
		for key, n := range executed {
			if n > 1 {
				t.Logf("%s", text)
				t.Errorf("%s was executed %d times", key, n)
			}
		}
		for _, x := range []string{"a", "b", "c"} {
			if executed[fmt.Sprintf("r%d-%s", round, x)] != 1 {
				t.Errorf("round %d: %s was executed %d times although its run succeeded", round, x, executed[fmt.Sprintf("r%d-%s", round, x)])
			}
		}
		mu.Unlock()
		if t.Failed() {
			return
		}
	}
	for k, n := range tally {
		if !strings.HasPrefix(k, "seen ") {
			t.Logf("%s: %d", k, n)
		}
	}
}

// finish follows a run to its end and says how it got there.
func (r *rig) finish(id string, executed map[string]int, mu *sync.Mutex) string {
	how := "succeeded by itself"
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var s shown
		if err := r.json(&s, "runs", "show", id); err != nil {
			r.t.Fatal(err)
		}
		switch s.Run.State {
		case "succeeded":
			return how
		case "failed", "cancelled":
			r.t.Fatalf("run %s %s: %s", id, s.Run.State, s.Run.Reason)
		case "waiting":
			how = "waited for a person"
			r.resolve(s, executed, mu)
		}
		if time.Now().After(end) {
			r.t.Fatalf("run %s is %s for ever", id, s.Run.State)
		}
	}
}

// resolve looks at the far end, as a person would, and says what it saw.
func (r *rig) resolve(s shown, executed map[string]int, mu *sync.Mutex) {
	for i, c := range s.Calls {
		if c.State != "unknown" {
			continue
		}
		text, err := exec.Command(r.bin, "--data", r.data, "runs", "show", s.Run.ID).Output()
		if err != nil || !strings.Contains(string(text), "patchbay runs resolve "+c.ID+" done") || !strings.Contains(string(text), " was asked of up at ") ||
			!strings.Contains(string(text), "for cli:local. It may have happened") || !strings.Contains(string(text), "send-again  it did not, and is to be sent once more") {
			r.t.Fatalf("runs show does not explain it: %s", text)
		}
		time.Sleep(30 * time.Millisecond) // what is under way at the server ends
		outcome := "send-again"
		mu.Lock()
		if executed[r.key(s, i)] > 0 {
			outcome = "done"
		}
		mu.Unlock()
		if out, err := exec.Command(r.bin, "--data", r.data, "runs", "resolve", c.ID, outcome).CombinedOutput(); err != nil {
			r.t.Fatalf("resolve: %s", out)
		}
	}
}

// key is what the i-th call pays, by the script's order; a call that replaces
// another pays the same.
func (r *rig) key(s shown, i int) string {
	cfg, err := os.ReadFile(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(cfg), "{x: r")
	round, _, _ := strings.Cut(rest, "-")
	originals := 0
	order := []string{"a", "look", "b", "c"}
	at := map[string]string{}
	for j, c := range s.Calls {
		if c.Replaces != "" {
			at[c.ID] = at[c.Replaces]
		} else {
			at[c.ID] = order[min(originals, len(order)-1)]
			originals++
		}
		if j == i {
			return "r" + round + "-" + at[c.ID]
		}
	}
	return ""
}
