package app_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/internal/catalog"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/store/storetest"
)

// cluster is a PostgreSQL and what replicas on it share.
func cluster(t *testing.T) *storetest.Cluster {
	t.Helper()
	pg, err := storetest.StartCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Stop)
	return pg
}

func onPostgres(url, more string) string {
	return fmt.Sprintf("database: %q\nkeys: {env: REPLICA_KEYS}\n%s", url, more)
}

// manyServers is one server that stands for many, told apart by their paths.
func manyServers(t *testing.T, n int) (m *fake.MCP, config string) {
	m = fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", ""))
	var b strings.Builder
	b.WriteString("org: {connections: {")
	for i := range n {
		fmt.Fprintf(&b, "c%d: {url: %q}, ", i, fmt.Sprintf("%s/mcp/%d", m.URL, i))
	}
	b.WriteString("}}\negress: {allow: [{to: \"" + m.URL + "\", for: [")
	for i := range n {
		fmt.Fprintf(&b, "c%d, ", i)
	}
	b.WriteString("]}]}\n")
	return m, b.String()
}

// listings notes who was asked for tools, and when.
type listings struct {
	mu sync.Mutex
	at map[string][]time.Time // by path
}

func (l *listings) note(m *fake.MCP, now func() time.Time) {
	m.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // a memory of bytes
			if strings.Contains(string(body), `"tools/list"`) {
				l.mu.Lock()
				l.at[r.URL.Path] = append(l.at[r.URL.Path], now())
				l.mu.Unlock()
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			next.ServeHTTP(w, r)
		})
	})
}

// Three replicas, two hundred connections, half an hour: every catalog is read
// once in every period of its own and none twice.
func TestEveryCatalogOncePerPeriod(t *testing.T) {
	t.Parallel()
	const n, period, step = 200, 15 * time.Minute, 20 * time.Second
	pg := cluster(t)
	m, config := manyServers(t, n)
	clock := storetest.NewClock()
	seen := &listings{at: map[string][]time.Time{}}
	seen.note(m, clock.Now)
	var apps []*served
	for range 3 {
		apps = append(apps, startWith(t, "", onPostgres(pg.URL, config), func(o *app.Options) { o.Clock = clock }))
	}
	pass := func(d time.Duration) (rounds [3]int) {
		for ; d > 0; d -= step {
			clock.Pass(step)
			var wg sync.WaitGroup
			for i, s := range apps {
				wg.Go(func() {
					k, err := s.a.Refresh(t.Context())
					if err != nil {
						t.Error(err)
					}
					rounds[i] += k
				})
			}
			wg.Wait()
		}
		return rounds
	}
	pass(period + period/5) // until all were read
	from := clock.Now()
	rounds := pass(3 * period)
	var list command.MCPList
	if err := apps[0].do("mcp.list", command.MCPListInput{}, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Servers) != n {
		t.Fatalf("%d servers", len(list.Servers))
	}
	whole := 0
	for _, row := range list.Servers {
		id := plane.ConnectionID(row.ID)
		u, _ := url.Parse(row.URL)
		slots := map[int64]int{}
		for _, at := range seen.at[u.Path] {
			slots[catalog.Slot(id, at, period)]++
		}
		for k := catalog.Slot(id, from, period) + 1; k < catalog.Slot(id, clock.Now(), period); k++ {
			whole++
			if slots[k] != 1 {
				t.Errorf("%s was read %d times in its period %d: %v", row.Name, slots[k], k, seen.at[u.Path])
			}
		}
		if row.Health != string(plane.HealthOK) {
			t.Errorf("%+v", row)
		}
	}
	if whole < 2*n {
		t.Fatalf("%d whole periods were looked at", whole)
	}
	for i, k := range rounds {
		if k == 0 {
			t.Errorf("replica %d took no round: %v", i, rounds)
		}
	}
}

// effects calls a tool at a replica.
func (s *served) callOn(tool string) (command.MCPCall, error) {
	var out command.MCPCall
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	err := s.c.Command(ctx, "mcp.call", command.MCPCallInput{Name: "up", Tool: tool}, &out)
	return out, err
}

// within waits until cond holds, and fails after d.
func within(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, d)
		}
	}
}

// What is changed through one replica fences an effect on another at once, and a
// query within a second, whether the database tells of changes or not.
func TestAChangeIsSeenByEveryReplica(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""), fake.Tool("change", ""))
	a := start(t, "", onPostgres(pg.URL, allow("up", m.URL)))
	gate := newProxy(t, pg.URL)
	b := start(t, "", onPostgres(gate.url, allow("up", m.URL)))
	if err := a.do("mcp.add", command.MCPAddInput{Name: "up", Address: m.Endpoint(), Scope: "org"}, &command.MCPAdded{}); err != nil {
		t.Fatal(err)
	}
	if err := a.do("mcp.classify", command.ClassifyInput{Name: "up", Tool: "look", Class: "query", Fingerprint: a.tool("up", "look").Fingerprint}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	works := func(s *served, tool string) bool { out, err := s.callOn(tool); return err == nil && !out.IsError }
	within(t, 10*time.Second, "the added server at B", func() bool { return works(b, "look") && works(b, "change") })
	turn := func(on bool) {
		t.Helper()
		name := map[bool]string{true: "mcp.enable", false: "mcp.disable"}[on]
		if err := a.do(name, command.NameInput{Name: "up"}, &command.MCPChanged{}); err != nil {
			t.Fatal(err)
		}
	}
	round := func(how string) {
		turn(false)
		before := len(m.Calls())
		if works(b, "change") || len(m.Calls()) != before {
			t.Errorf("%s: an effect went out at B after A had turned the server off", how)
		}
		time.Sleep(time.Second)
		before = len(m.Calls())
		if works(b, "look") || len(m.Calls()) != before {
			t.Errorf("%s: a query went out at B a second after A had turned the server off", how)
		}
		turn(true)
		within(t, 10*time.Second, how+": the server that was turned on again, at B", func() bool { return works(b, "look") && works(b, "change") })
	}
	round("told by the database")
	gate.mute.Store(true) // notices get lost; everything else passes
	round("polling")
	gate.mute.Store(false)

	// A replica that cannot see changes decides nothing.
	gate.cut()
	time.Sleep(1100 * time.Millisecond)
	before := len(m.Calls())
	for _, tool := range []string{"look", "change"} {
		if works(b, tool) {
			t.Errorf("%s went out at a replica that does not see the database", tool)
		}
	}
	if len(m.Calls()) != before {
		t.Error("the server was called")
	}
	gate.mend()
	within(t, 20*time.Second, "B after the database is back", func() bool { return works(b, "look") && works(b, "change") })
}

// A catalog that one replica read is the other's too.
func TestACatalogIsSeenByEveryReplica(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	config := onPostgres(pg.URL, upConfig(m))
	a, b := start(t, "", config), start(t, "", config)
	a.refresh("up")
	within(t, 5*time.Second, "A's catalog at B", func() bool { return b.tool("up", "look").Name != "" })
	m.SetTools(fake.Tool("look", `"title":"other"`))
	a.refresh("up")
	want := a.tool("up", "look").Fingerprint
	within(t, 5*time.Second, "the changed definition at B", func() bool { return b.tool("up", "look").Fingerprint == want })
}

// A replica whose own clock is wrong goes by the database's.
func TestAWrongClockDoesNoHarm(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("look", ""))
	config := onPostgres(pg.URL, strings.Replace(upConfig(m), "for: [up]", "for: [up, later]", 1)+"limits: {ticket_life: 4m}\n")
	a := start(t, "", config)
	a.refresh("up")
	// A round that is due in three minutes, and a link that is good for four.
	db, err := sql.Open("pgx", pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	within(t, 15*time.Second, "the round in the schedule", func() bool {
		a.a.Refresh(t.Context()) // it may be taken just now
		res, err := db.Exec(`UPDATE refreshes SET due_at = $1`, plane.Micros(time.Now().Add(3*time.Minute)))
		if err != nil {
			t.Fatal(err)
		}
		n, err := res.RowsAffected()
		return err == nil && n == 1
	})
	var link command.MCPAdded
	if err := a.do("mcp.add", command.MCPAddInput{Name: "later", Address: m.Endpoint(), Auth: "bearer"}, &link); err != nil {
		t.Fatal(err)
	}
	for _, skew := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		b := startWith(t, "", config, func(o *app.Options) { o.Local = skewed(skew) })
		if n, err := b.a.Refresh(t.Context()); err != nil || n != 0 {
			t.Errorf("a clock %v off took %d rounds that are not due (%v)", skew, n, err)
		}
		_, path, _ := strings.Cut(strings.TrimPrefix(link.Link, "http://"), "/")
		if code, body := newVisitor(t).get("http://" + b.a.Addr() + "/" + path); code != 200 {
			t.Errorf("a clock %v off ends a link that is good: %d %s", skew, code, body)
		}
		out, err := b.callOn("look")
		if err != nil || out.IsError {
			t.Fatalf("%v %+v", err, out)
		}
		b.refresh("up")
		var show command.MCPShow
		if err := a.do("mcp.show", command.NameInput{Name: "up"}, &show); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(show.Server.CapturedAt).Abs(); d > 30*time.Second {
			t.Errorf("a clock %v off wrote a time %v off", skew, d)
		}
		b.stop()
	}
}

type skewed time.Duration

func (s skewed) Now() time.Time { return time.Now().Add(time.Duration(s)) }

// PostgreSQL crashes under load and comes back: every call has an answer, no
// effect is done twice, and the replicas go on by themselves.
func TestPostgresRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	m := fake.NewMCP(t, fake.Tool("change", ""))
	var ran sync.Map
	var twice atomic.Int64
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if _, dup := ran.LoadOrStore(string(in.Arguments), true); dup {
			twice.Add(1)
		}
		return fake.Text("ok"), nil
	})
	config := onPostgres(pg.URL, upConfig(m))
	apps := []*served{start(t, "", config), start(t, "", config), start(t, "", config)}
	apps[0].refresh("up")
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sent, good atomic.Int64
	for i := range 12 {
		s := apps[i%3]
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				var out command.MCPCall
				bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				err := s.c.Command(bound, "mcp.call", command.MCPCallInput{Name: "up", Tool: "change", Arguments: command.Object(fmt.Sprintf(`{"n":"%d-%d"}`, i, k))}, &out)
				if bound.Err() != nil {
					t.Error("a call had no answer")
				}
				cancel()
				sent.Add(1)
				if err == nil && !out.IsError {
					good.Add(1)
				} else {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	within(t, 20*time.Second, "calls before the crash", func() bool { return good.Load() > 50 })
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	after := good.Load()
	within(t, 30*time.Second, "calls after the crash", func() bool { return good.Load() > after+100 })
	end()
	wg.Wait()
	if twice.Load() != 0 {
		t.Errorf("%d effects were done twice", twice.Load())
	}
	// What is changed at one is seen at the others again, by notice or not.
	for range 2 {
		m.SetTools(fake.Tool("change", fmt.Sprintf(`"title":"%d"`, time.Now().UnixNano())))
		apps[0].refresh("up")
		want := apps[0].tool("up", "change").Fingerprint
		within(t, 10*time.Second, "a change after the crash", func() bool { return apps[2].tool("up", "change").Fingerprint == want })
	}
	t.Logf("%d calls, %d answered well", sent.Load(), good.Load())
}

// proxy stands between a replica and its database.
type proxy struct {
	url, to string
	mute    atomic.Bool // swallows the database's notices
	hold    atomic.Bool // keeps every answer back
	l       net.Listener
	mu      sync.Mutex
	conns   []net.Conn
	down    bool
}

func newProxy(t *testing.T, pgURL string) *proxy {
	u, _ := url.Parse(pgURL)
	p := &proxy{to: u.Host}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); p.cut() })
	p.l = l
	u.Host = l.Addr().String()
	p.url = u.String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(c)
		}
	}()
	return p
}

func (p *proxy) pass(c net.Conn) {
	d, err := net.Dial("tcp", p.to)
	p.mu.Lock()
	if err != nil || p.down {
		p.mu.Unlock()
		c.Close()
		return
	}
	p.conns = append(p.conns, c, d)
	p.mu.Unlock()
	go func() { io.Copy(d, c); d.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := d.Read(buf)
		for p.hold.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		if n > 0 && !(p.mute.Load() && buf[0] == 'A') { // NotificationResponse
			c.Write(buf[:n])
		}
		if err != nil {
			c.Close()
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) mend() { p.mu.Lock(); p.down = false; p.mu.Unlock() }
