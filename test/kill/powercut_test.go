//go:build long

package kill

import (
	"bufio"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

// Whenever the power goes, what an effect's server has seen is on the disk: with every
// page dropped that was not synced by then, and with any choice of them kept, the
// database opens, is whole, and knows every effect whose bytes had left.
func TestThePowerGoes(t *testing.T) {
	tracer, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is needed (Debian package strace)")
	}
	f, arrived := timekeeper(t)
	dir := t.TempDir()
	r := &rig{t: t, bin: build(t), file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d")}
	port := peers.FreePort(t)
	cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\norg: {connections: {up: {url: %q, targets: {pay: $.x}}}}\negress: {allow: [{to: %q, for: [up]}]}\n", port, r.data, f.Endpoint(), f.URL)
	if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(r.data, "patchbay.db")
	cmd := exec.Command(tracer, "-ff", "-ttt", "-T", "-xx", "-s", "2000000", "-y", "-o", filepath.Join(dir, "trace"), "-e", "trace=pwrite64,pwritev,pwritev2,write,fsync,fdatasync,ftruncate",
		"-P", db, "-P", db+"-wal", r.bin, "serve", "-c", r.file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); exec.Command(r.bin, "--data", r.data, "status").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not ready")
		}
	}
	r.load(t, port, 40)
	over := time.Now()
	// The tracer ends with its child: it is the child that is told.
	exec.Command("pkill", "-TERM", "-P", strconv.Itoa(cmd.Process.Pid)).Run()
	stopped := make(chan error, 1)
	go func() { stopped <- cmd.Wait() }()
	select {
	case <-stopped:
	case <-time.After(30 * time.Second):
		cmd.Process.Signal(syscall.SIGKILL)
		t.Fatal("it did not stop")
	}
	if len(arrived) != 160 {
		t.Fatalf("%d effects arrived", len(arrived))
	}
	ops := readTrace(t, filepath.Join(dir, "trace"))
	moments, first := pick(arrived, over, 40, 20)
	for _, at := range moments {
		for _, keep := range []float64{0, 0.5} {
			files := map[string][]byte{}
			for _, path := range []string{db, db + "-wal"} {
				files[filepath.Base(path)] = disk(nil, ops, path, at, keep)
			}
			if err := holdsSQLite(t, files, arrived, at); err != nil {
				t.Fatalf("%s after the first effect, %v of the unsynced pages kept: %v", at.Sub(first), keep, err)
			}
		}
	}
	t.Logf("%d moments, %d writes and syncs", len(moments), len(ops))
}

// load has four clients send effects.
func (r *rig) load(t *testing.T, port, each int) {
	t.Helper()
	var tok struct{ Token string }
	if err := r.json(&tok, "tokens", "create", "a", "--agent", "general"); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := range each {
				pay(t, fmt.Sprintf("http://127.0.0.1:%d/mcp/agents/general", port), tok.Token, fmt.Sprintf("%d-%d-%d", each, w, i))
			}
		})
	}
	work.Wait()
}

// pick chooses moments: when some of the effects arrived, and others between.
func pick(arrived map[string]time.Time, over time.Time, arrivals, others int) (moments []time.Time, first time.Time) {
	for _, at := range arrived {
		moments = append(moments, at)
	}
	slices.SortFunc(moments, time.Time.Compare)
	first = moments[0]
	rand.Shuffle(len(moments), func(i, j int) { moments[i], moments[j] = moments[j], moments[i] })
	moments = moments[:min(arrivals, len(moments))]
	for range others {
		moments = append(moments, first.Add(rand.N(over.Sub(first))))
	}
	return moments, first
}

// The same of PostgreSQL: what its files were at the last checkpoint, with what was
// synced of its log by then, is brought back by its own recovery.
func TestThePowerGoesAtPostgres(t *testing.T) {
	tracer, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is needed (Debian package strace)")
	}
	pg, err := storetest.StartCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Stop)
	f, arrived := timekeeper(t)
	dir := t.TempDir()
	bin := build(t)
	key, err := exec.Command(bin, "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, bin: bin, file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d"), env: []string{"PATCHBAY_KEYS=" + strings.TrimSpace(string(key))}}
	port := peers.FreePort(t)
	cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\ndatabase: %q\norg: {connections: {up: {url: %q, targets: {pay: $.x}}}}\negress: {allow: [{to: %q, for: [up]}]}\n", port, r.data, pg.URL, f.Endpoint(), f.URL)
	if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := r.serve()
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	r.load(t, port, 1) // everything that is made once is there
	base := filepath.Join(dir, "base")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	db, err := sql.Open("pgx", pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var segment string
	if _, err := db.Exec(`CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(`SELECT pg_walfile_name(pg_current_wal_lsn())`).Scan(&segment); err != nil {
		t.Fatal(err)
	}
	run("cp", "-a", pg.Data(), base)
	head, _, _ := strings.Cut(run("cat", filepath.Join(pg.Data(), "postmaster.pid")), "\n")
	args := []string{"-ff", "-ttt", "-T", "-xx", "-s", "20000000", "-y", "-o", filepath.Join(dir, "trace"), "-e", "trace=pwrite64,pwritev,pwritev2,fsync,fdatasync", "-P", filepath.Join(pg.Data(), "pg_wal", segment), "-p", head}
	for _, pid := range strings.Fields(run("pgrep", "-P", head)) {
		args = append(args, "-p", pid)
	}
	trace := exec.Command(tracer, args...)
	if err := trace.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	clear(arrived)
	r.load(t, port, 30)
	over := time.Now()
	trace.Process.Signal(syscall.SIGINT)
	trace.Wait()
	ops := readTrace(t, filepath.Join(dir, "trace"))
	if len(arrived) != 120 || len(ops) < 100 {
		t.Fatalf("%d effects arrived, %d writes and syncs", len(arrived), len(ops))
	}
	wal := filepath.Join(pg.Data(), "pg_wal", segment)
	was, err := os.ReadFile(filepath.Join(base, "pg_wal", segment))
	if err != nil {
		t.Fatal(err)
	}
	moments, first := pick(arrived, over, 5, 2)
	for i, at := range moments {
		left := filepath.Join(dir, fmt.Sprint("left", i))
		run("cp", "-a", base, left)
		if err := os.WriteFile(filepath.Join(left, "pg_wal", segment), disk(was, ops, wal, at, 0), 0o600); err != nil {
			t.Fatal(err)
		}
		run("chmod", "755", dir, filepath.Dir(dir))
		url, stop, err := pg.Reopen(left)
		if err != nil {
			t.Fatal(err)
		}
		there, err := sql.Open("pgx", url)
		if err == nil {
			err = knows(there, arrived, at)
			there.Close()
		}
		stop()
		if err != nil {
			t.Fatalf("%s after the first effect: %v", at.Sub(first), err)
		}
	}
	t.Logf("%d moments, %d writes and syncs", len(moments), len(ops))
}

// timekeeper is a server that notes when each effect arrived.
func timekeeper(t *testing.T) (*fake.MCP, map[string]time.Time) {
	var mu sync.Mutex
	arrived := map[string]time.Time{}
	f := fake.NewMCP(t, fake.Tool("pay", ""))
	f.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		now := time.Now()
		mu.Lock()
		arrived[string(in.Arguments)] = now
		mu.Unlock()
		return fake.Text("ok"), nil
	})
	return f, arrived
}

// pay sends one effect as a client of the agent.
func pay(t *testing.T, url, token, x string) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"name":"mcp__up__pay","arguments":{"x":%q}}}`, x)
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token,
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "mcp__up__pay"} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "ok") {
		t.Errorf("%s %v", b, err)
	}
}

// op is a change to a file, or its sync, with when it was begun and done.
type op struct {
	file        string
	sync        bool
	cut         int64 // of a truncation; -1 for a write
	at          int64
	data        []byte
	begun, done time.Time
}

var traced = regexp.MustCompile(`^(\d+)\.(\d+) (\w+)\((.*)\) += (-?\d+).* <(\d+\.\d+)>$`)

// readTrace reads what every thread wrote and synced, in the order it was done.
func readTrace(t *testing.T, prefix string) []op {
	files, err := filepath.Glob(prefix + ".*")
	if err != nil || len(files) == 0 {
		t.Fatal("no trace")
	}
	var out []op
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			m := traced.FindStringSubmatch(lines.Text())
			if m == nil || strings.HasPrefix(m[5], "-") {
				continue
			}
			if o, ok := parseOp(t, m); ok {
				out = append(out, o)
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	slices.SortStableFunc(out, func(a, b op) int { return a.done.Compare(b.done) })
	return out
}

func parseOp(t *testing.T, m []string) (op, bool) {
	sec, _ := strconv.ParseInt(m[1], 10, 64)
	micro, _ := strconv.ParseInt(m[2], 10, 64)
	took, _ := strconv.ParseFloat(m[6], 64)
	o := op{cut: -1, begun: time.UnixMicro(sec*1e6 + micro)}
	o.done = o.begun.Add(time.Duration(took * float64(time.Second)))
	fd, rest, _ := strings.Cut(m[4], ">")
	_, name, _ := strings.Cut(fd, "<")
	o.file = string(unhex(name))
	rest = strings.TrimPrefix(rest, ", ")
	switch m[3] {
	case "fsync", "fdatasync":
		o.sync = true
	case "ftruncate":
		o.cut, _ = strconv.ParseInt(rest, 10, 64)
	case "pwrite64":
		q := strings.LastIndex(rest, `"`)
		o.data = unhex(rest[1:q])
		nums := strings.Split(rest[q+1:], ", ")
		o.at, _ = strconv.ParseInt(nums[len(nums)-1], 10, 64)
		if want, _ := strconv.Atoi(m[5]); len(o.data) != want {
			t.Fatalf("the trace has %d bytes of %d", len(o.data), want)
		}
	default:
		t.Fatalf("the database writes by %s", m[3])
	}
	return o, true
}

// unhex reads \x41\x42.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, `\x`, ""))
	if err != nil {
		return []byte(s)
	}
	return b
}

// disk is what is left of a file when the power goes at a moment: what it was, everything
// that was synced by then, and of what was not, a part by chance.
func disk(was []byte, ops []op, path string, at time.Time, keep float64) []byte {
	synced := time.Time{} // what was done before a sync began that was done in time
	for _, o := range ops {
		if o.file == path && o.sync && !o.done.After(at) && o.begun.After(synced) {
			synced = o.begun
		}
	}
	file := slices.Clone(was)
	for _, o := range ops {
		if o.file != path || o.sync || o.done.After(synced) && (o.begun.After(at) || rand.Float64() >= keep) {
			continue
		}
		if o.cut >= 0 {
			file = append(file, make([]byte, max(0, int(o.cut)-len(file)))...)[:o.cut]
			continue
		}
		if end := int(o.at) + len(o.data); end > len(file) {
			file = append(file, make([]byte, end-len(file))...)
		}
		copy(file[o.at:], o.data)
	}
	return file
}

// holdsSQLite opens what is left and looks for every effect that had arrived.
func holdsSQLite(t *testing.T, files map[string][]byte, arrived map[string]time.Time, at time.Time) error {
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "patchbay.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	var whole string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&whole); err != nil || whole != "ok" {
		return fmt.Errorf("integrity: %s %v", whole, err)
	}
	return knows(db, arrived, at)
}

// knows reports an effect that had arrived by a moment and is not on record.
func knows(db *sql.DB, arrived map[string]time.Time, at time.Time) error {
	known := map[string]bool{}
	rows, err := db.Query(`SELECT args_digest FROM calls WHERE state IN ('dispatched', 'succeeded')`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var d string
		if err := rows.Scan(&d); err != nil {
			return err
		}
		known[d] = true
	}
	for args, when := range arrived {
		sum := sha256.Sum256([]byte(args))
		if !when.After(at) && !known[hex.EncodeToString(sum[:])] {
			return fmt.Errorf("%s had arrived and is not on record", args)
		}
	}
	return rows.Err()
}
