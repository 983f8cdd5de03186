package authserver

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/store"
	"patchbay/internal/store/storetest"
)

// rig is a Server on a database of its own, with two clients.
func rig(t testing.TB) (*Server, *storetest.Clock) {
	t.Helper()
	clock := storetest.NewClock()
	db, err := store.Open(context.Background(), store.Options{Path: filepath.Join(t.TempDir(), "p.db"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	ring, err := secret.ParseRing(secret.GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]Known{"a": {Name: "A", Redirects: []string{"https://a.example/cb"}}, "b": {Name: "B", Redirects: []string{"https://a.example/cb"}}}
	return New(Options{Store: db, Ring: ring, Clock: clock, Limits: plane.DefaultLimits(), Known: known, Address: func(*http.Request) string { return "" }, Origins: func() []string { return []string{"https://p.example"} },
		Commands: "/mcp", Agents: "/mcp/agents/", Agent: func(slug string) (plane.Agent, bool) { return plane.Agent{Slug: slug, MCP: true}, slug == "general" },
		May: func(_ plane.Principal, r plane.Rights) plane.Rights { return r }, Teams: func(plane.Principal) []string { return nil }, Forget: func() {}, Token: Prefixes{"pbs_", "pbr_"}}), clock
}

var ada = plane.Principal{Kind: plane.KindPerson, ID: "i|ada", Rights: plane.AllRights}

const verifier = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv"

func query(client string) string {
	sum := sha256.Sum256([]byte(verifier))
	return "response_type=code&client_id=" + client + "&redirect_uri=https://a.example/cb&resource=https://p.example/mcp/agents/general&code_challenge_method=S256&code_challenge=" +
		base64.RawURLEncoding.EncodeToString(sum[:])
}

// letIn has the person let a client in, and returns the code.
func letIn(t interface{ Fatalf(string, ...any) }, s *Server, who plane.Principal, client string) string {
	ctx := context.Background()
	ask, back, err := s.Begin(ctx, query(client), who, true)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if back == "" {
		if back, _, err = s.Decide(ctx, query(client), who, Decision{Allow: true, Print: ask.Print, Rights: ask.Wanted}); err != nil {
			t.Fatalf("%v", err)
		}
	}
	_, rest, _ := strings.Cut(back, "code=")
	code, _, ok := strings.Cut(rest, "&")
	if !ok {
		t.Fatalf("%s", back)
	}
	return code
}

// line is what the model knows of one sign-in.
type line struct {
	client  string
	code    string
	until   time.Time // the code's
	spent   bool
	over    bool
	ends    time.Time
	refresh []tokens // by generation
	rotated time.Time
}

// model is the grants as they must stand.
type model struct {
	s     *Server
	who   plane.Principal // another for every sequence
	clock *storetest.Clock
	lines []*line
	let   map[string]time.Time
}

// live reports whether the last access token of a line opens anything.
func (m *model) live(t *rapid.T, l *line) bool {
	k, err := m.s.o.Store.(*store.Store).AccessByHash(context.Background(), secret.Digest(l.refresh[len(l.refresh)-1].Access))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return k.RevokedAt.IsZero() && m.clock.Now().Before(k.ExpiresAt)
}

// TestAGrantsLife drives clients' sign-ins through whatever may happen to them, and holds
// them to the machine that verdict draws: a code is good once and for a minute, a refresh
// token once and for whoever lost its answer half a minute longer, and who shows what is
// over ends all that came of it.
func TestAGrantsLife(t *testing.T) {
	s, clock := rig(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		m := &model{s: s, who: ada, clock: clock, let: map[string]time.Time{}}
		m.who.ID += strconv.Itoa(n)
		rt.Repeat(map[string]func(*rapid.T){
			"let in":  m.letIn,
			"redeem":  m.redeem,
			"refresh": m.refresh,
			"revoke":  m.revoke,
			"time":    func(t *rapid.T) { clock.Pass(time.Duration(rapid.IntRange(1, 2500).Draw(t, "s")) * time.Second) },
			"long":    func(t *rapid.T) { clock.Pass(time.Duration(rapid.IntRange(1, 400).Draw(t, "h")) * time.Hour) },
			"":        m.hold,
		})
	})
}

func (m *model) letIn(t *rapid.T) {
	client := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "client")
	now := m.clock.Now()
	if end, ok := m.let[client]; !ok || !now.Before(end) {
		m.let[client] = now.Add(m.s.o.Limits.ConsentLife)
	}
	m.lines = append(m.lines, &line{client: client, code: letIn(t, m.s, m.who, client), until: now.Add(codeLife), ends: m.let[client]})
}

func (m *model) pick(t *rapid.T) *line {
	if len(m.lines) == 0 {
		m.letIn(t)
	}
	return rapid.SampledFrom(m.lines).Draw(t, "line")
}

func (m *model) redeem(t *rapid.T) {
	l := m.pick(t)
	by := shown{client: l.client, redirect: "https://a.example/cb", verifier: verifier}
	wrong := rapid.SampledFrom([]string{"", "", "", "client", "verifier", "redirect", "resource"}).Draw(t, "wrong")
	switch wrong {
	case "client":
		by.client = map[string]string{"a": "b", "b": "a"}[l.client]
	case "verifier":
		by.verifier = strings.Repeat("w", 43)
	case "redirect":
		by.redirect += "/"
	case "resource":
		by.resource = "/mcp"
	}
	now := m.clock.Now()
	good := !l.spent && !l.over && wrong == "" && now.Before(l.until) && now.Before(l.ends)
	out, bad := m.s.hand(context.Background(), l.code, plane.CodeToken, &by, ofCode)
	if (bad == nil) != good {
		t.Fatalf("wrong=%q spent=%v over=%v: %+v %+v", wrong, l.spent, l.over, out, bad)
	}
	if good {
		l.spent, l.refresh, l.rotated = true, []tokens{out}, now
	} else if l.spent || wrong != "" {
		l.over = true
	}
}

func (m *model) refresh(t *rapid.T) {
	l := m.pick(t)
	if len(l.refresh) == 0 {
		return
	}
	gen := rapid.IntRange(0, len(l.refresh)-1).Draw(t, "gen")
	by := shown{client: l.client}
	foreign := rapid.IntRange(0, 9).Draw(t, "foreign") == 0
	if foreign {
		by.client = "c"
	}
	now := m.clock.Now()
	last := len(l.refresh) - 1
	fresh := gen == last
	grace := gen == last-1 && now.Sub(l.rotated) < graceLife
	gone := l.over || !now.Before(l.ends)
	out, bad := m.s.hand(context.Background(), l.refresh[gen].Refresh, plane.RefreshToken, &by, ofRefresh)
	if good := !gone && !foreign && (fresh || grace); (bad == nil) != good {
		t.Fatalf("gen %d of %d, over=%v foreign=%v: %+v", gen, last, l.over, foreign, bad)
	}
	switch {
	case bad == nil && fresh:
		l.refresh, l.rotated = append(l.refresh, out), now
	case bad == nil:
		if out.Access != l.refresh[last].Access || out.Refresh != l.refresh[last].Refresh {
			t.Fatalf("the answer that was lost is another")
		}
	case !gone:
		l.over = true // it was shown by whom it was not given to, or after it was replaced
	}
}

func (m *model) revoke(t *rapid.T) {
	client := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "client")
	all, err := m.s.List(context.Background(), m.who.ID)
	if err != nil {
		t.Fatalf("%v", err)
	}
	i := slices.IndexFunc(all, func(a plane.Authorization) bool { return a.Client == client })
	if i < 0 {
		return
	}
	if err := m.s.Revoke(context.Background(), m.who, all[i].ID); err != nil {
		t.Fatalf("%v", err)
	}
	delete(m.let, client)
	for _, l := range m.lines {
		l.over = l.over || l.client == client
	}
}

// hold checks what stands after every step.
func (m *model) hold(t *rapid.T) {
	now := m.clock.Now()
	for _, l := range m.lines {
		if len(l.refresh) == 0 {
			continue
		}
		want := !l.over && now.Before(l.ends) && now.Before(l.rotated.Add(m.s.o.Limits.AccessLife))
		if got := m.live(t, l); got != want {
			t.Fatalf("a token opens: %v, not %v (over=%v)", got, want, l.over)
		}
	}
}

// TestARefreshOfTwo: two that refresh at once get one answer.
func TestARefreshOfTwo(t *testing.T) {
	s, _ := rig(t)
	by := shown{client: "a", redirect: "https://a.example/cb", verifier: verifier}
	first, bad := s.hand(t.Context(), letIn(t, s, ada, "a"), plane.CodeToken, &by, ofCode)
	if bad != nil {
		t.Fatal(bad)
	}
	got := make(chan string, 16)
	for range cap(got) {
		go func() {
			out, bad := s.hand(context.Background(), first.Refresh, plane.RefreshToken, &shown{client: "a"}, ofRefresh)
			if bad != nil {
				got <- "false"
				return
			}
			got <- out.Access + out.Refresh
		}()
	}
	all := map[string]bool{}
	for range cap(got) {
		all[<-got] = true
	}
	if len(all) != 1 || all["false"] {
		t.Errorf("%d answers: %v", len(all), all)
	}
}
