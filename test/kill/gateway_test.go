//go:build long

package kill

import (
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

// What goes through the credential gateway is on record before it is sent, is sent once, and
// is unknown when the process dies before the answer.
func TestTheGatewayIsKilledOnSQLite(t *testing.T) {
	throughTheGateway(t, "sqlite", nil, min(kills(t), 8))
}

// On PostgreSQL the replica that is there says it of the one that died.
func TestTheGatewayIsKilledOnPostgres(t *testing.T) {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	key, err := exec.Command(build(t), "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	throughTheGateway(t, url, []string{"PATCHBAY_KEYS=" + strings.TrimSpace(string(key))}, 4)
}

// until90 is longer than a lease and the minute after which the others look.
const until90 = 90 * time.Second

func throughTheGateway(t *testing.T, database string, env []string, rounds int) {
	var mu sync.Mutex
	arrived := map[string]int{}
	far := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		arrived[r.URL.Path]++
		mu.Unlock()
		time.Sleep(rand.N(30 * time.Millisecond))
	}))
	defer far.Close()
	dir := t.TempDir()
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: far.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, bin: build(t), file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d"), env: append(env, "SSL_CERT_FILE="+roots)}
	cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\ndatabase: %q\nlimits: {run_lease: 1s}\nagents: {general: {destinations: [api]}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: %q, for: [api]}]\n  destinations: {api: {hosts: [127.0.0.1], port: %s, inject: {kind: bearer}, inject_secret: \"secret:api\"}}\n",
		peers.FreePort(t), r.data, database, strings.TrimPrefix(far.URL, "https://"), far.URL[strings.LastIndex(far.URL, ":")+1:])
	if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := r.serve()
	put := exec.Command(r.bin, "--data", r.data, "secrets", "put", "api")
	put.Stdin = strings.NewReader("s3cret")
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for round := range rounds {
		loop := fmt.Sprintf(`i=0; while [ $i -lt 60 ]; do i=$((i+1)); curl --noproxy '' -s -m 5 -o /dev/null -X POST %s/%d-%s-$i || exit 0; done`, far.URL, round, "$0")
		var clients []*exec.Cmd
		for _, name := range []string{"a", "b", "c"} {
			c := exec.Command(r.bin, "--data", r.data, "egress", "run", "--", "sh", "-c", loop, name)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
		}
		count := func() int { mu.Lock(); defer mu.Unlock(); return len(arrived) }
		for before, end := count(), time.Now().Add(10*time.Second); count() < before+5; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing comes")
			}
		}
		time.Sleep(rand.N(60 * time.Millisecond))
		cmd.Process.Kill()
		cmd.Wait()
		for _, c := range clients {
			c.Wait() // what nobody answers ends at once
		}
		cmd = r.serve()
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	rows := r.settled(database == "sqlite")
	mu.Lock()
	defer mu.Unlock()
	tally := map[string]int{}
	for path, n := range arrived {
		if n != 1 || rows[path] == "" {
			t.Errorf("%s came %d times and is %q on record", path, n, rows[path])
		}
	}
	for path, state := range rows {
		if tally[state]++; state == "succeeded" && arrived[path] == 0 {
			t.Errorf("%s is %s and never came", path, state)
		}
	}
	if t.Logf("%d came; on record: %v", len(arrived), tally); tally["unknown"] == 0 || tally["succeeded"] == 0 {
		t.Error("no kill came between")
	}
}

// settled are all requests on record by path, once none is under way any more.
func (r *rig) settled(now bool) map[string]string {
	r.t.Helper()
	for end := time.Now().Add(until90); ; time.Sleep(time.Second) {
		rows, open, before := map[string]string{}, 0, ""
		for {
			var page struct {
				Requests []struct{ ID, Path, State string }
			}
			if err := r.json(&page, "egress", "log", "--limit", "200", "--before", before); err != nil {
				r.t.Fatal(err)
			}
			for _, e := range page.Requests {
				if rows[e.Path] != "" {
					r.t.Errorf("%s is on record twice", e.Path)
				}
				if rows[e.Path] = e.State; e.State == "dispatched" {
					open++
				}
				before = e.ID
			}
			if len(page.Requests) < 200 {
				break
			}
		}
		if open == 0 {
			return rows
		}
		if now || time.Now().After(end) {
			r.t.Fatalf("%d are under way still", open)
		}
	}
}
