package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// The vectors are what other programs may check themselves against: a change
// here would make every stored review stale.
func TestFingerprintVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/fingerprints.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Tool, Canonical, Fingerprint string
		Error                              bool
	}
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 10 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		c, err := Canonical([]byte(v.Tool))
		if v.Error {
			if err == nil {
				t.Errorf("%s: taken", v.Name)
			}
			continue
		}
		f, _ := Fingerprint([]byte(v.Tool))
		if err != nil || string(c) != v.Canonical || f != v.Fingerprint {
			t.Errorf("%s:\n%s\n%s\nwant\n%s\n%s (%v)", v.Name, c, f, v.Canonical, v.Fingerprint, err)
		}
	}
}

func TestRead(t *testing.T) {
	lim := plane.DefaultLimits()
	deep := strings.Repeat(`{"properties":{"a":`, 40) + `{}` + strings.Repeat(`}}`, 40)
	for _, c := range []struct{ name, tool, unsupported string }{
		{"plain", `{"name":"a","inputSchema":{"type":"object"}}`, ""},
		{"no schema", `{"name":"a"}`, ""},
		{"a schema that is true", `{"name":"a","inputSchema":true}`, ""},
		{"a schema that is a string", `{"name":"a","inputSchema":{"type":"string"}}`, ""},
		{"local references", `{"name":"a","inputSchema":{"type":"object","properties":{"x":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}}`, ""},
		{"recursion by reference", `{"name":"a","inputSchema":{"$defs":{"n":{"properties":{"c":{"$ref":"#/$defs/n"}}}}}}`, ""},
		{"a remote reference", `{"name":"a","inputSchema":{"properties":{"x":{"$ref":"https://evil.example/s.json"}}}}`, "another document"},
		{"a relative reference", `{"name":"a","inputSchema":{"properties":{"x":{"$ref":"other.json"}}}}`, "another document"},
		{"a property named $ref", `{"name":"a","inputSchema":{"properties":{"$ref":{"type":"string"}}}}`, ""},
		{"too deep", `{"name":"a","inputSchema":` + deep + `}`, "schema_depth"},
		{"too large", `{"name":"a","inputSchema":{"description":"` + strings.Repeat("x", 33<<10) + `"}}`, "schema_bytes"},
		{"a bad output schema hides nothing", `{"name":"a","outputSchema":{"$ref":"https://x/"}}`, ""},
		{"no name", `{"description":"x"}`, "no name"},
		{"a name that is no string", `{"name":5}`, "no name"},
		{"an endless name", `{"name":"` + strings.Repeat("n", 2000) + `"}`, "longer"},
		{"a member twice", `{"name":"a","name":"b"}`, "unambiguous"},
		{"a lone surrogate", `{"name":"a","description":"\ud800"}`, "unambiguous"},
		{"not an object", `["a"]`, "not an object"},
		{"null", `null`, "not an object"},
		{"a bad header annotation", `{"name":"a","inputSchema":{"properties":{"x":{"type":"string","x-mcp-header":"a b"}}}}`, "x-mcp-header"},
	} {
		d := Read(json.RawMessage(c.tool), lim)
		if (d.Unsupported == "") != (c.unsupported == "") || !strings.Contains(d.Unsupported, c.unsupported) {
			t.Errorf("%s: %q, want %q", c.name, d.Unsupported, c.unsupported)
		}
		if d.Class != plane.Effect || string(d.Raw) != c.tool || d.Fingerprint == "" {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
	for ann, free := range map[string]bool{
		``: false, `,"annotations":{}`: false, `,"annotations":{"readOnlyHint":true}`: true, `,"annotations":{"readOnlyHint":true,"destructiveHint":false}`: true,
		`,"annotations":{"readOnlyHint":true,"destructiveHint":true}`: false, `,"annotations":{"readOnlyHint":"true"}`: false, `,"annotations":{"READONLYHINT":true}`: false,
	} {
		d := Read(json.RawMessage(`{"name":"a"`+ann+`}`), lim)
		if d.SideEffectFree() != free {
			t.Errorf("%s: side effect free %v", ann, d.SideEffectFree())
		}
	}
	long := Read(json.RawMessage(`{"name":"a","description":"`+strings.Repeat("é", 4000)+`"}`), lim)
	if len(long.Description) > lim.DescriptionBytes || !strings.HasPrefix(long.Description, "éé") || strings.ContainsRune(long.Description, '\uFFFD') {
		t.Errorf("a long description has %d bytes", len(long.Description))
	}
}

type memory struct {
	mu   sync.Mutex
	rows map[plane.ConnectionID]plane.Catalog
	pins map[string]plane.Pin
	fail error
}

func (m *memory) Write(_ context.Context, fn func(plane.Tx) error) error { return fn(nil) }

func (m *memory) Reviews(context.Context, plane.ConnectionID) ([]plane.Review, error) {
	return nil, nil
}

func (m *memory) DropReview(plane.Tx, *plane.Review) error { return nil }

func (m *memory) AddAudit(plane.Tx, plane.AuditEntry) error { return nil }

func (m *memory) Catalogs(context.Context) ([]plane.Catalog, error) { return nil, nil }

func (m *memory) CatalogByID(_ context.Context, id plane.ConnectionID) (plane.Catalog, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.rows[id]; ok {
		return c, nil
	}
	return plane.Catalog{}, plane.Errorf(plane.NotFound, "none")
}

func (m *memory) CatalogsSince(context.Context, int64) ([]plane.ConnectionID, int64, error) {
	return nil, 0, nil
}

func (m *memory) ConvertPrefs(plane.Tx, plane.ConnectionID, int64, plane.Preferences) error {
	return nil
}

func (m *memory) Pins(context.Context, plane.ConnectionID) ([]plane.Pin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.pins)), nil
}

func (m *memory) PutPin(_ plane.Tx, p *plane.Pin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pins[p.Name] = *p
	return nil
}

func (m *memory) DropPin(_ plane.Tx, _ plane.ConnectionID, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pins, name)
	return nil
}

func (m *memory) SaveCatalog(_ plane.Tx, c *plane.Catalog, whole bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if have, ok := m.rows[c.Connection]; ok && (have.Revision >= c.Revision || have.Version > c.Version) {
		return plane.Errorf(plane.Conflict, "newer")
	}
	row := *c
	if !whole {
		row.Definitions = m.rows[c.Connection].Definitions
	}
	m.rows[c.Connection] = row
	return nil
}

type lister func(ctx context.Context, g policy.Grant) (Listed, error)

func (l lister) List(ctx context.Context, g policy.Grant) (Listed, error) { return l(ctx, g) }

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

// grants makes n connections and a Discover grant for each.
func grants(t *testing.T, n int, version int64) []policy.Grant {
	t.Helper()
	var conns []plane.Connection
	for i := range n {
		conns = append(conns, plane.Connection{ID: plane.ConnectionID(fmt.Sprintf("con_%d", i)), Scope: plane.Scope{Kind: plane.ScopeOrg}, Slug: fmt.Sprintf("s%d", i),
			Endpoint: "https://x.example/mcp", Enabled: true, Version: version})
	}
	snap, err := policy.Compile(policy.Rules{Connections: conns})
	if err != nil {
		t.Fatal(err)
	}
	var out []policy.Grant
	for _, c := range conns {
		g, denial := snap.Decide(plane.Local, policy.Discover, policy.Resource{Connection: c.ID})
		if denial != nil {
			t.Fatal(denial.Reason)
		}
		out = append(out, g)
	}
	return out
}

func newCatalogs(t *testing.T, l lister) (*Catalogs, *memory) {
	t.Helper()
	m := &memory{rows: map[plane.ConnectionID]plane.Catalog{}, pins: map[string]plane.Pin{}}
	c, err := Load(t.Context(), m, l, realClock{}, plane.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return c, m
}

func tools(names ...string) Listed {
	var l Listed
	for _, n := range names {
		l.Tools = append(l.Tools, json.RawMessage(fmt.Sprintf(`{"name":%q}`, n)))
	}
	return l
}

// Three dead servers and two slow ones take no other down, stay in the budget,
// and at most four are asked at once.
func TestDiscoveryKeepsItsBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		c, _ := newCatalogs(t, func(ctx context.Context, g policy.Grant) (Listed, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			defer now.Add(-1)
			switch i := g.ID(); {
			case i == "con_0" || i == "con_1" || i == "con_2":
				return Listed{}, plane.Errorf(plane.Unavailable, "dead")
			case i == "con_3" || i == "con_4":
				<-ctx.Done()
				return Listed{}, ctx.Err()
			}
			time.Sleep(time.Second)
			return tools("a"), nil
		})
		began := time.Now()
		failed, err := c.Ensure(t.Context(), grants(t, 12, 1))
		if err != nil || len(failed) != 5 {
			t.Fatalf("%d failed, %v", len(failed), err)
		}
		// Quick ones may be asked first; then a slow one has its 20 s.
		if d := time.Since(began); d < 20*time.Second || d > 24*time.Second {
			t.Errorf("it took %v; one operation has 20 s", d)
		}
		if most.Load() > 4 {
			t.Errorf("%d at once", most.Load())
		}
		for i := range 12 {
			cat := c.Get(plane.ConnectionID(fmt.Sprintf("con_%d", i)))
			if want := map[bool]plane.Health{true: plane.HealthUnavailable, false: plane.HealthOK}[i < 5]; cat == nil || cat.Health != want {
				t.Errorf("con_%d: %+v", i, cat)
			}
		}
		if cat := c.Get("con_3"); !strings.Contains(cat.Detail, "in time") {
			t.Errorf("a slow server's detail: %q", cat.Detail)
		}
	})
}

func TestFailureKeepsTheLastGoodSnapshot(t *testing.T) {
	var err error
	list := tools("a", "b", "b")
	c, m := newCatalogs(t, func(context.Context, policy.Grant) (Listed, error) { return list, err })
	g := grants(t, 1, 1)[0]
	if e := c.Refresh(t.Context(), g); e != nil || len(c.Get("con_0").Definitions) != 2 {
		t.Fatalf("%v: a name listed twice stands once", e)
	}
	err = plane.Errorf(plane.Unauthenticated, "rejected")
	if e := c.Refresh(t.Context(), g); plane.KindOf(e) != plane.Unauthenticated {
		t.Fatal(e)
	}
	if cat := c.Get("con_0"); cat.Health != plane.HealthUnauthorized || len(cat.Definitions) != 2 || cat.FailedAt.IsZero() || cat.Stale(1) || cat.Revision != 2 {
		t.Fatalf("%+v", cat)
	}
	if len(m.rows["con_0"].Definitions) != 2 {
		t.Error("the stored definitions are gone")
	}
	// Another version of the connection does not live on what the old one had.
	err = plane.Errorf(plane.Unavailable, "down")
	c.Refresh(t.Context(), grants(t, 1, 2)[0])
	if cat := c.Get("con_0"); !cat.Stale(2) || len(cat.Definitions) != 0 {
		t.Fatalf("%+v", cat)
	}
}

// An empty list right after a full one is suspicious: it counts only when it
// stays empty.
func TestBriefEmptinessWipesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := tools("a")
		c, _ := newCatalogs(t, func(context.Context, policy.Grant) (Listed, error) { return list, nil })
		g := grants(t, 1, 1)[0]
		have := func() int { c.Refresh(t.Context(), g); return len(c.Get("con_0").Definitions) }
		have()
		list = tools()
		for range 2 {
			if have() != 1 {
				t.Fatal("wiped at once")
			}
		}
		time.Sleep(emptyBackoff)
		if have() != 0 {
			t.Fatal("never adopted")
		}
	})
}

func TestUnchangedListIsNotWritten(t *testing.T) {
	c, m := newCatalogs(t, func(context.Context, policy.Grant) (Listed, error) { return tools("a"), nil })
	g := grants(t, 1, 1)[0]
	c.Refresh(t.Context(), g)
	first := c.Get("con_0")
	m.fail = errors.New("must not be called")
	if err := c.Refresh(t.Context(), g); err != nil || c.Get("con_0") != first {
		t.Fatal(err)
	}
}

// One caller's end fails nobody else and says nothing about the server.
func TestACallersEndIsNoFailure(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c, _ := newCatalogs(t, func(ctx context.Context, _ policy.Grant) (Listed, error) {
		once.Do(func() { close(reached) })
		select {
		case <-release:
			return tools("a"), nil
		case <-ctx.Done():
			return Listed{}, ctx.Err()
		}
	})
	g := grants(t, 1, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- c.Refresh(ctx, g) }()
	<-reached
	go func() { second <- c.Refresh(t.Context(), g) }()
	cancel()
	if err := <-first; err == nil {
		t.Error("the cancelled caller was served")
	}
	close(release)
	if err := <-second; err != nil || c.Get("con_0").Health != plane.HealthOK {
		t.Errorf("the other caller: %v %+v", err, c.Get("con_0"))
	}
}

// Our own store's failure stops discovery; a server's does not.
func TestStoreFailureIsFatal(t *testing.T) {
	c, m := newCatalogs(t, func(context.Context, policy.Grant) (Listed, error) { return tools("a"), nil })
	m.fail = errors.New("disk full")
	if _, err := c.Ensure(t.Context(), grants(t, 2, 1)); err == nil {
		t.Fatal("it went on")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Ensure(ctx, grants(t, 2, 1)); !errors.Is(err, context.Canceled) {
		t.Fatalf("after the run's end: %v", err)
	}
}
