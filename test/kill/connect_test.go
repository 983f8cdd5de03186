//go:build long

package kill

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/connect"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
	"patchbay/test/peers"
)

const manyCredentials = 10_000

// seal fills a database with connections and their credentials, as the server
// that has this ring would.
func seal(t *testing.T, st *store.Store, ring *secret.Ring, conns []plane.Connection, m connect.Material) {
	t.Helper()
	keeper := connect.New(connect.Options{Store: st, Ring: ring, Clock: plane.SystemClock{}})
	defer keeper.Close()
	for at := 0; at < len(conns); at += 500 {
		batch := conns[at:min(at+500, len(conns))]
		err := st.Write(t.Context(), func(tx plane.Tx) error {
			for i := range batch {
				if err := st.SaveConnection(tx, &batch[i]); err != nil {
					return err
				}
				if err := keeper.Put(tx, batch[i], m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// calling counts what came of calls.
type calling struct {
	wg           sync.WaitGroup
	failed, made atomic.Int64
}

// fiftyASecond calls a tool until ctx ends.
func fiftyASecond(t *testing.T, ctx context.Context, c *client.Client) *calling {
	x := &calling{}
	x.wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			x.wg.Go(func() {
				var out command.MCPCall
				err := c.Command(context.WithoutCancel(ctx), "mcp.call", command.MCPCallInput{Name: "c0", Tool: "look"}, &out)
				if x.made.Add(1); err != nil || out.IsError {
					x.failed.Add(1)
					t.Logf("a call failed: %v %s", err, out.Message)
				}
			})
		}
	})
	return x
}

// Sealing ten thousand credentials anew while fifty calls a second go on fails
// none of them; killed half way and started again, it ends by itself.
func TestKeysRotateUnderLoad(t *testing.T) {
	const token = "the-one-token-of-all"
	f := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	f.RequireToken(token)
	dir := t.TempDir()
	r := &rig{t: t, bin: build(t), file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d")}
	cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\nlimits: {connections_per_scope: 20000}\negress: {allow: [{to: %q, for: [c0]}]}\n", peers.FreePort(t), r.data, f.URL)
	if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := func(cmd *exec.Cmd, sig os.Signal) {
		cmd.Process.Signal(sig)
		cmd.Wait()
	}
	stop(r.serve(), syscall.SIGTERM) // makes the key and the database
	key, err := os.ReadFile(filepath.Join(r.data, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := secret.ParseRing(secret.New(string(key)))
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), store.Options{Path: filepath.Join(r.data, "patchbay.db")})
	if err != nil {
		t.Fatal(err)
	}
	var conns []plane.Connection
	for i := range manyCredentials {
		conns = append(conns, plane.Connection{ID: plane.NewConnectionID(time.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: fmt.Sprintf("c%d", i), Endpoint: f.Endpoint(),
			Auth: plane.AuthBearer, Enabled: i == 0, Version: 1, Origin: plane.Added, State: plane.StateConnected})
	}
	seal(t, st, ring, conns, connect.Pasted(secret.New(token)))
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	c := client.New("http://x", netguard.InfraSocket(filepath.Join(r.data, "patchbay.sock")))
	status := func() (out command.KeysStatus) {
		if err := c.Command(t.Context(), "keys.status", command.KeysStatusInput{}, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	cmd := r.serve()
	ctx, cancel := context.WithCancel(t.Context())
	calls := fiftyASecond(t, ctx, c)
	time.Sleep(time.Second)
	began := time.Now()
	var out command.KeysRotated
	if err := c.Command(t.Context(), "keys.rotate", command.KeysInput{}, &out); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	time.Sleep(time.Second)
	cancel()
	calls.wg.Wait()
	failed, made := &calls.failed, &calls.made
	if out.Sealed < manyCredentials || out.Stuck != 0 || len(out.Retired) != 1 || failed.Load() != 0 || made.Load() < 80 {
		t.Fatalf("%+v, %d of %d calls failed", out, failed.Load(), made.Load())
	}
	t.Logf("%d values sealed anew in %s, %d calls beside it, none failed", out.Sealed, took, made.Load())

	go c.Command(context.WithoutCancel(t.Context()), "keys.rotate", command.KeysInput{}, &command.KeysRotated{})
	for {
		ks := status().Keys
		if len(ks) == 2 && ks[0].Total > manyCredentials/10 && ks[1].Total > manyCredentials/10 {
			break
		}
		if len(ks) == 1 && ks[0].ID != out.Active {
			t.Fatal("the second rotation ended before it could be killed")
		}
	}
	stop(cmd, syscall.SIGKILL)
	cmd = r.serve()
	defer stop(cmd, syscall.SIGTERM)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ks := status().Keys
		if len(ks) == 1 && ks[0].Blobs["credential"] == manyCredentials && ks[0].ID != out.Active {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it was not finished: %+v", ks)
		}
	}
	var last command.MCPCall
	if err := c.Command(t.Context(), "mcp.call", command.MCPCallInput{Name: "c0", Tool: "look"}, &last); err != nil || last.IsError {
		t.Fatalf("after it: %v %+v", err, last)
	}
}

// replica is a server of its own on a shared database.
func replica(t *testing.T, bin, keys, url, mcpURL, asURL string) (*exec.Cmd, *client.Client) {
	dir := t.TempDir()
	r := &rig{t: t, bin: bin, file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d"), env: []string{"PATCHBAY_KEYS=" + keys}}
	cfg := fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\ndatabase: %q\nlimits: {discover_one: 3s}\negress: {allow: [{to: %q, for: [notes]}, {to: %q, for: [notes]}]}\n", peers.FreePort(t), r.data, url, mcpURL, asURL)
	if err := os.WriteFile(r.file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := r.serve()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	return cmd, client.New("http://x", netguard.InfraSocket(filepath.Join(r.data, "patchbay.sock")))
}

// look calls the one tool.
func look(c *client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var out command.MCPCall
	if err := c.Command(ctx, "mcp.call", command.MCPCallInput{Name: "notes", Tool: "look"}, &out); err != nil {
		return err
	}
	if out.IsError {
		return errors.New(out.Message)
	}
	return nil
}

// crowd has fifty callers at each replica at once, and counts whose call went
// well.
func crowd(clients ...*client.Client) int {
	var wg sync.WaitGroup
	var n atomic.Int64
	for _, c := range clients {
		for range 50 {
			wg.Go(func() {
				if look(c) == nil {
					n.Add(1)
				}
			})
		}
	}
	wg.Wait()
	return int(n.Load())
}

// A replica that is stopped between taking the lock and presenting the token
// keeps everybody else from presenting it, and goes on where it was.
func TestAStoppedHolderKeepsTheLock(t *testing.T) {
	url, stopPG, err := storetest.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopPG)
	bin := build(t)
	text, err := exec.Command(bin, "keys", "generate").Output()
	if err != nil {
		t.Fatal(err)
	}
	keys := strings.TrimSpace(string(text))
	ring, err := secret.ParseRing(secret.New(keys))
	if err != nil {
		t.Fatal(err)
	}
	m := fake.NewMCP(t, fake.Tool("look", `"annotations":{"readOnlyHint":true}`))
	as := fake.NewAS(t, m)
	access, refresh := as.Issue("c")
	st, err := store.Open(t.Context(), store.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	conn := plane.Connection{ID: plane.NewConnectionID(time.Now()), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: "notes", Endpoint: m.Endpoint(),
		Auth: plane.AuthOAuth, Enabled: true, Version: 1, Origin: plane.Added, State: plane.StateConnected}
	srv := &oauth.Server{Issuer: as.URL, Token: as.URL + "/token", Resource: as.Resource}
	seal(t, st, ring, []plane.Connection{conn}, connect.SignedIn(oauth.Tokens{Access: secret.New(access), Refresh: secret.New(refresh), ExpiresAt: time.Now().Add(-time.Minute), Scope: "read offline_access"},
		oauth.Identity{ID: "c", Method: oauth.MethodNone}, srv, time.Now().Add(-time.Hour)))

	a, onA := replica(t, bin, keys, url, m.URL, as.URL)
	_, onB := replica(t, bin, keys, url, m.URL, as.URL)
	_, onC := replica(t, bin, keys, url, m.URL, as.URL)
	// The row that a refresh writes first is held here, so that A stands between
	// the lock and the POST when it is stopped.
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`SELECT 1 FROM credentials WHERE connection = $1 FOR UPDATE`, string(conn.ID)); err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() { first <- look(onA) }()
	for held := 0; held == 0; time.Sleep(5 * time.Millisecond) {
		if err := db.QueryRow(`SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND granted`).Scan(&held); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	a.Process.Signal(syscall.SIGSTOP)
	tx.Rollback()
	if n := crowd(onB, onC); n != 0 {
		t.Errorf("%d calls of B and C went on while A held the lock", n)
	}
	if n := len(as.Asked("/token")); n != 0 {
		t.Fatalf("the token was presented %d times while A stood still", n)
	}
	a.Process.Signal(syscall.SIGCONT)
	<-first // A's own caller may have lost patience; what it began it ends
	for end := time.Now().Add(15 * time.Second); len(as.Asked("/token")) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("A never went on")
		}
		if err := look(onA); err != nil {
			t.Log(err)
		}
	}
	for _, c := range []*client.Client{onA, onB, onC} {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			err := look(c)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	if n := crowd(onA, onB, onC); n != 150 {
		t.Errorf("%d of 150 calls went well after it", n)
	}
	if as.Revoked() || as.MostAtOnce() != 1 || len(as.Asked("/token")) != 1 {
		t.Errorf("revoked %v, %d at once, presented %d times", as.Revoked(), as.MostAtOnce(), len(as.Asked("/token")))
	}
}

// The dump of a crashed process holds no credential that it was using.
func TestACrashDumpHoldsNoSecret(t *testing.T) {
	const key = "mk-crash-8Jh3Kd5Lq2Wz"
	f := fake.NewMCP(t, fake.Tool("look", ""))
	under, goOn := make(chan struct{}), make(chan struct{})
	f.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		close(under)
		<-goOn
		return fake.Text("late"), nil
	})
	f.RequireToken(key)
	dir := t.TempDir()
	r := &rig{t: t, bin: build(t), file: filepath.Join(dir, "patchbay.yaml"), data: filepath.Join(dir, "d")}
	if err := os.WriteFile(r.file, []byte(fmt.Sprintf("listen: 127.0.0.1:%d\ndata: %s\negress: {allow: [{to: %q, for: [up]}]}\n", peers.FreePort(t), r.data, f.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	var dump bytes.Buffer
	r.stderr = &dump
	cmd := r.serve()
	add := exec.Command(r.bin, "--data", r.data, "mcp", "add", "up", f.Endpoint(), "--header", "Authorization: -")
	add.Stdin = strings.NewReader("Bearer " + key + "\n")
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	go exec.Command(r.bin, "--data", r.data, "mcp", "call", "up", "look").Run()
	<-under // the call is on its way, the credential in use
	cmd.Process.Signal(syscall.SIGQUIT)
	cmd.Wait()
	close(goOn)
	if !strings.Contains(dump.String(), "goroutine ") {
		t.Fatalf("no dump:\n%s", &dump)
	}
	for _, form := range []string{key, "8Jh3Kd5Lq2Wz"} {
		if strings.Contains(dump.String(), form) {
			t.Errorf("the dump holds %s", form)
		}
	}
}
