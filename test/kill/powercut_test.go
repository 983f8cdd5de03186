//go:build long

package kill

import (
	"bufio"
	"cmp"
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
	var tok struct{ Token string }
	if err := r.json(&tok, "tokens", "create", "a", "--agent", "general"); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := range 40 {
				pay(t, fmt.Sprintf("http://127.0.0.1:%d/mcp/agents/general", port), tok.Token, fmt.Sprintf("%d-%d", w, i))
			}
		})
	}
	work.Wait()
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
	ops := readTrace(t, filepath.Join(dir, "trace"), db)
	var moments []time.Time
	for _, at := range arrived {
		moments = append(moments, at)
	}
	slices.SortFunc(moments, time.Time.Compare)
	first := moments[0]
	moments = slices.DeleteFunc(moments, func(time.Time) bool { return rand.N(4) > 0 })
	for range 20 {
		moments = append(moments, first.Add(rand.N(over.Sub(first))))
	}
	for _, at := range moments {
		for _, keep := range []float64{0, 0.5} {
			image := disk(ops, at, keep)
			if err := image.holds(t, arrived, at); err != nil {
				t.Fatalf("%s after the first effect, %v of the unsynced pages kept: %v", at.Sub(first), keep, err)
			}
		}
	}
	t.Logf("%d moments, %d writes and syncs", len(moments), len(ops))
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
	wal         bool
	sync        bool
	cut         int64 // of a truncation; -1 for a write
	at          int64
	data        []byte
	begun, done time.Time
}

var traced = regexp.MustCompile(`^(\d+)\.(\d+) (\w+)\((.*)\) += (-?\d+).* <(\d+\.\d+)>$`)

// readTrace reads what every thread wrote and synced, in the order it was done.
func readTrace(t *testing.T, prefix, db string) []op {
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
			if o, ok := parseOp(t, m, db); ok {
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

func parseOp(t *testing.T, m []string, db string) (op, bool) {
	sec, _ := strconv.ParseInt(m[1], 10, 64)
	micro, _ := strconv.ParseInt(m[2], 10, 64)
	took, _ := strconv.ParseFloat(m[6], 64)
	o := op{cut: -1, begun: time.UnixMicro(sec*1e6 + micro)}
	o.done = o.begun.Add(time.Duration(took * float64(time.Second)))
	fd, rest, _ := strings.Cut(m[4], ">")
	_, name, _ := strings.Cut(fd, "<")
	switch path := string(unhex(name)); path {
	case db:
	case db + "-wal":
		o.wal = true
	default:
		return o, false
	}
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

// image is what a disk holds of the database and its log.
type image struct{ db, wal []byte }

// disk is what is left when the power goes at a moment: everything that was synced by
// then, and of what was not, a part by chance.
func disk(ops []op, at time.Time, keep float64) image {
	var img image
	for _, wal := range []bool{false, true} {
		synced := time.Time{} // what was done before a sync began that was done in time
		for _, o := range ops {
			if o.wal == wal && o.sync && !o.done.After(at) && o.begun.After(synced) {
				synced = o.begun
			}
		}
		var file []byte
		for _, o := range ops {
			if o.wal != wal || o.sync || o.done.After(synced) && (o.begun.After(at) || rand.Float64() >= keep) {
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
		if wal {
			img.wal = file
		} else {
			img.db = file
		}
	}
	return img
}

// holds opens what is left and looks for every effect that had arrived.
func (m image) holds(t *testing.T, arrived map[string]time.Time, at time.Time) error {
	dir := t.TempDir()
	file := filepath.Join(dir, "left.db")
	if err := cmp.Or(os.WriteFile(file, m.db, 0o600), os.WriteFile(file+"-wal", m.wal, 0o600)); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", file)
	if err != nil {
		return err
	}
	defer db.Close()
	var whole string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&whole); err != nil || whole != "ok" {
		return fmt.Errorf("integrity: %s %v", whole, err)
	}
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
