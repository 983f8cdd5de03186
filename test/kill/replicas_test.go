//go:build long

package kill

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"patchbay/internal/catalog"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

// fleet is some processes on one database.
type fleet struct {
	t    *testing.T
	url  string
	rigs []*rig
	cmds []*exec.Cmd
}

func newFleet(t *testing.T, n int, config string) *fleet {
	url, stop, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	bin := build(t)
	keys, err := exec.Command(bin, "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, url: url}
	// A replica that is stopped in the middle of a transaction holds up the others for so long.
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	url += sep + "idle_in_transaction_session_timeout=1000"
	for range n {
		dir := t.TempDir()
		r := &rig{t: t, bin: bin, file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d"), env: []string{"PATCHBAY_KEYS=" + strings.TrimSpace(string(keys))}}
		cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\ndatabase: %q\n%s", peers.FreePort(t), r.data, url, config)
		if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
			t.Fatal(err)
		}
		f.rigs = append(f.rigs, r)
		f.cmds = append(f.cmds, r.serve())
	}
	t.Cleanup(func() {
		for _, c := range f.cmds {
			c.Process.Signal(syscall.SIGCONT)
			c.Process.Signal(syscall.SIGTERM)
			c.Wait()
		}
	})
	return f
}

// over speaks to one process by its socket and nothing between.
func (f *fleet) over(i int) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(f.rigs[i].data, "patchbay.sock"))
	}}}
}

// rounds watches the schedule of a fleet.
type rounds struct {
	t                    *testing.T
	db                   *sql.DB
	period               time.Duration
	last                 map[plane.ConnectionID]round
	slots, missed, twice int
}

// round is how many rounds a connection had, and the period that the last ended.
type round struct{ count, slot int64 }

func (x *rounds) look() {
	rows, err := x.db.Query(`SELECT connection, rounds, due_at, tries FROM refreshes`)
	if err != nil {
		x.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id plane.ConnectionID
		var r round
		var due, tries int64
		if err := rows.Scan(&id, &r.count, &due, &tries); err != nil {
			x.t.Fatal(err)
		}
		if tries > 0 {
			x.t.Fatalf("%s failed", id)
		}
		r.slot = catalog.Slot(id, plane.FromMicros(due), x.period) - 1
		was, ok := x.last[id]
		x.last[id] = r
		if !ok || was.count == 0 || r.count == was.count {
			continue
		}
		x.slots++
		switch d := r.slot - was.slot; {
		case r.count-was.count > d:
			x.twice++
			x.t.Errorf("%s: %d rounds in %d periods", id, r.count-was.count, d)
		case r.count-was.count < d:
			x.missed++
		}
	}
}

func (x *rounds) watch(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		x.look()
	}
}

// atWork waits until a process holds a claim.
func (x *rounds) atWork(cmd *exec.Cmd) {
	like := fmt.Sprintf("%%/%d/%%", cmd.Process.Pid)
	for end := time.Now().Add(10 * time.Second); ; {
		var n int
		if err := x.db.QueryRow(`SELECT COUNT(*) FROM refreshes WHERE owner LIKE $1 AND lease_until > 0`, like).Scan(&n); err != nil {
			x.t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(end) {
			x.t.Fatal("a process holds no claim")
		}
	}
}

// Three processes read two hundred catalogs every two seconds. One is killed and
// one stands still for longer than its lease: still every catalog is read once in
// every period of its own, and no round is counted twice.
func TestCatalogsAreReadOnceWhateverDies(t *testing.T) {
	const n, period = 200, 2 * time.Second
	m := fake.NewMCP(t, fake.Tool("look", ""))
	var listed atomic.Int64
	m.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil && strings.Contains(string(body), `"tools/list"`) {
				listed.Add(1)
				time.Sleep(20 * time.Millisecond) // long enough to be killed in
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			next.ServeHTTP(w, r)
		})
	})
	var servers, names []string
	for i := range n {
		servers = append(servers, fmt.Sprintf("c%d: {url: \"%s/mcp/%d\"}", i, m.URL, i))
		names = append(names, fmt.Sprint("c", i))
	}
	f := newFleet(t, 3, fmt.Sprintf("limits: {catalog_refresh: 2s, discover_one: 700ms}\norg: {connections: {%s}}\negress: {allow: [{to: %q, for: [%s]}]}\n",
		strings.Join(servers, ", "), m.URL, strings.Join(names, ", ")))
	db, err := sql.Open("pgx", f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	x := &rounds{t: t, db: db, period: period, last: map[plane.ConnectionID]round{}}
	x.watch(4 * period) // until all are under way
	x.slots, x.missed = 0, 0
	x.watch(4 * period)
	x.atWork(f.cmds[0])
	f.cmds[0].Process.Kill()
	f.cmds[0].Wait()
	x.watch(4 * period)
	x.atWork(f.cmds[1])
	f.cmds[1].Process.Signal(syscall.SIGSTOP)
	x.watch(2 * period) // longer than its lease of about a second
	f.cmds[1].Process.Signal(syscall.SIGCONT)
	x.watch(3 * period)
	f.cmds[0] = f.rigs[0].serve()
	x.watch(3 * period)
	// What the servers saw is read before the claims: rounds go on, and a claim comes before its listing.
	seen := listed.Load()
	var taken, claims int64
	if err := db.QueryRow(`SELECT SUM(fence - rounds), SUM(fence) FROM refreshes`).Scan(&taken, &claims); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rounds, %d periods missed, %d rounds twice, %d claims taken over", x.slots, x.missed, x.twice, taken)
	// A claim makes one listing, and nothing else makes any.
	if seen > claims {
		t.Errorf("%d listings for %d claims", seen, claims)
	}
	if x.missed > 0 {
		t.Errorf("%d periods went by without their round", x.missed)
	}
	if want := 14 * n; x.slots < want {
		t.Errorf("%d rounds were seen, %d at least were due", x.slots, want)
	}
	if taken < 1 {
		t.Error("no claim was taken over")
	}
}

// A fleet is restarted process by process under load. Every call that was taken
// has an answer that names it.
func TestARollingRestartAnswersEveryCall(t *testing.T) {
	m := fake.NewMCP(t, fake.Tool("change", ""))
	var done sync.Map
	var twice atomic.Int64
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		time.Sleep(200 * time.Millisecond)
		if _, dup := done.LoadOrStore(string(in.Arguments), true); dup {
			twice.Add(1)
		}
		return fake.Text("ok"), nil
	})
	f := newFleet(t, 3, fmt.Sprintf("limits: {drain_notice: 500ms}\norg: {connections: {up: {url: %q}}}\negress: {allow: [{to: %q, for: [up]}]}\n", m.Endpoint(), m.URL))
	clients := []*http.Client{f.over(0), f.over(1), f.over(2)}
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered, failed, refused atomic.Int64
	for i := range 18 {
		wg.Go(func() {
			at := i % 3
			for k := 0; ctx.Err() == nil; k++ {
				body := fmt.Sprintf(`{"name":"up","tool":"change","arguments":{"n":"%d-%d"}}`, i, k)
				resp, err := clients[at].Post("http://x/api/commands/mcp.call", "application/json", strings.NewReader(body))
				if err != nil {
					var op *net.OpError
					if errors.As(err, &op) && op.Op == "dial" { // it was not taken
						refused.Add(1)
						at = (at + 1) % 3
						time.Sleep(10 * time.Millisecond)
						continue
					}
					t.Errorf("a call has no answer: %v", err)
					continue
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				var out struct {
					Call string `json:"call"`
					Code string `json:"code"`
				}
				if err != nil || json.Unmarshal(text, &out) != nil || out.Call == "" && out.Code == "" {
					t.Errorf("a call's answer names nothing: %v %s", err, text)
				}
				answered.Add(1)
				if out.Call == "" {
					failed.Add(1)
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	for i := range f.cmds {
		f.cmds[i].Process.Signal(syscall.SIGTERM)
		if err := f.cmds[i].Wait(); err != nil {
			t.Errorf("process %d ended with %v", i, err)
		}
		f.cmds[i] = f.rigs[i].serve()
		time.Sleep(time.Second)
	}
	end()
	wg.Wait()
	t.Logf("%d answered, %d of them with an error, %d connections refused", answered.Load(), failed.Load(), refused.Load())
	if twice.Load() != 0 {
		t.Errorf("%d effects were done twice", twice.Load())
	}
	if answered.Load() < 100 {
		t.Error("there was no load")
	}
	db, err := sql.Open("pgx", f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// The last outcomes are written with the next batch.
	for by := time.Now().Add(3 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var open int
		if err := db.QueryRow(`SELECT COUNT(*) FROM calls WHERE state IN ('dispatched', 'planned')`).Scan(&open); err != nil {
			t.Fatal(err)
		}
		if open == 0 {
			break
		}
		if time.Now().After(by) {
			t.Fatalf("%d calls are left in the air", open)
		}
	}
}
