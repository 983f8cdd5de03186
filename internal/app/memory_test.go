package app_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/internal/app"
	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/fake"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// rememberer is an agent that reads, remembers and recalls as its question says.
func rememberer(t *testing.T, search bool) (*served, *fake.MCP, *fake.LLM) {
	t.Setenv("FAKE_KEY", "sk-test-marker-1234567890")
	m := fake.NewMCP(t, fake.Tool("read", `"annotations":{"readOnlyHint":true}`))
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		return fake.Text("The quarterly harvest of pomegranates was 4711 tons."), nil
	})
	l := fake.NewLLM(t)
	s := start(t, "", fmt.Sprintf("memory: {search: %v}\nagents: {general: {tools: [memory]}}\n", search)+llmConfig(l, "anthropic")+
		fmt.Sprintf("org: {connections: {up: {url: %q, labels: [private, untrusted]}}}\n", m.Endpoint())+allow("up", m.URL))
	return s, m, l
}

func call(name, input string) fake.Turn {
	return fake.Turn{Calls: []fake.ToolCall{{ID: "use_" + name, Name: name, Input: input}}}
}

// as is the API for another caller: a service whose runs are another conversation.
func (s *served) as(label string) *client.Client {
	s.t.Helper()
	var tok command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: label, Service: true, Scopes: []string{"runs:read", "runs:write"}}, &tok); err != nil {
		s.t.Fatal(err)
	}
	return client.New("http://"+s.a.Addr(), bearer(tok.Value))
}

// An excerpt of a tool's result is remembered with that source alone, and may be recalled
// by everybody's runs of the agent; what people said stays in their conversation. What
// is recalled brings its sources and its labels.
func TestMemoryKeepsItsSources(t *testing.T) {
	for _, search := range []bool{false, true} {
		t.Run(fmt.Sprintf("search %v", search), func(t *testing.T) {
			s, m, l := rememberer(t, search)
			play := func(turns ...fake.Turn) func(int, string) fake.Turn {
				n := -1
				return func(int, string) fake.Turn { n++; return turns[min(n, len(turns)-1)] }
			}
			l.Script(play(call("mcp__up__read", `{}`), call("remember", `{"text":"quarterly harvest of pomegranates was 4711 tons"}`),
				fake.Turn{Calls: []fake.ToolCall{{ID: "use_2", Name: "remember", Input: `{"text":"Ada thinks the pomegranates are overpriced"}`}}}, fake.Turn{Text: "Noted."}))
			show, _ := s.ask("note it", "general")
			show = s.ended(show.Run.ID)
			if show.Run.State != "succeeded" {
				t.Fatalf("%+v\n%s", show.Run, s.log)
			}
			evd := show.Evidence[0].ID
			recall := func(c *client.Client) (text string, sources []string) {
				t.Helper()
				l.Script(play(call("recall", `{"query":"what about pomegranates?"}`), fake.Turn{Text: "Done."}))
				var row command.RunRow
				if err := c.Command(t.Context(), "runs.start", command.RunsStartInput{Prompt: "recall", Agent: "general"}, &row); err != nil {
					t.Fatal(err)
				}
				got := s.ended(row.ID)
				reqs := l.Requests()
				return string(reqs[len(reqs)-1]), got.Sources
			}
			text, sources := recall(s.c)
			if !strings.Contains(text, "4711 tons") || !strings.Contains(text, "overpriced") || !strings.Contains(text, "what was remembered") || fmt.Sprint(sources) != fmt.Sprint([]string{evd, "message:person:cli:local"}) {
				t.Errorf("its own conversation: %v\n%s", sources, text)
			}
			text, sources = recall(s.as("other"))
			if !strings.Contains(text, "4711 tons") || strings.Contains(text, "overpriced") || len(sources) != 2 || sources[0] != evd || strings.Contains(sources[1], "cli:local") {
				t.Errorf("another conversation: %v\n%s", sources, text)
			}
			// What a server only gives back of what people said is no quotation.
			l.Script(play(call("mcp__up__read", `{"x":"whether Ada is ill"}`), call("remember", `{"text":"No results for whether Ada is ill in the quarterly harvest"}`), fake.Turn{Text: "Noted."}))
			m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
				return fake.Text("No results for whether Ada is ill in the quarterly harvest"), nil
			})
			show, _ = s.ask("look it up", "general")
			s.ended(show.Run.ID)
			if text, _ := recall(s.as("third")); strings.Contains(text, "ill in") {
				t.Errorf("it reached another conversation: %s", text)
			}
			s.stop()
			b, err := os.ReadFile(filepath.Join(s.dir, "d", "patchbay.db"))
			if err != nil {
				t.Fatal(err)
			}
			if found := strings.Contains(string(b), "overpriced"); found != search {
				t.Errorf("in the clear: %v", found)
			}
		})
	}
}

// resumed is a run that read something in a turn that is not over: a payment beside it
// waits for approval. change happens while nothing runs; then the payment is denied and
// the run goes on.
func resumed(t *testing.T, tampered string, change func(s *served), then ...fake.Turn) (show command.RunsShow, reads int, told string) {
	t.Helper()
	t.Setenv("FAKE_KEY", "sk-test-marker-1234567890")
	turns := append([]fake.Turn{{Calls: []fake.ToolCall{{ID: "u1", Name: "mcp__up__read", Input: `{"x":"1"}`}, {ID: "u2", Name: "mcp__up__pay", Input: `{"x":"1"}`}}}}, then...)
	l := fake.NewLLM(t, append(turns, fake.Turn{Text: "Done."})...)
	m := fake.NewMCP(t, fake.Tool("read", ""), fake.Tool("pay", ""))
	m.OnCall(func(in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		if in.Name == "read" {
			reads++
		}
		return fake.Text("what was read"), nil
	})
	cfg := llmConfig(l, "anthropic") + "agents: {general: {tools: [memory], approvals: {mcp__up__pay: ask}}}\n" + upConfig(m)
	s := start(t, "", cfg)
	s.refresh("up")
	if err := s.do("mcp.classify", command.ClassifyInput{Name: "up", Tool: "read", Class: "query", Fingerprint: s.tool("up", "read").Fingerprint}, &command.MCPChanged{}); err != nil {
		t.Fatal(err)
	}
	show, _ = s.ask("go", "general")
	if show.Run.Waiting != "approval" || reads != 1 {
		t.Fatalf("%+v %d", show.Run, reads)
	}
	a := s.pending()
	s.stop()
	if tampered != "" {
		tamper(t, s.dir, tampered)
	}
	s = start(t, s.dir, cfg)
	if change != nil {
		change(s)
	}
	if err := s.decide(a.ID, "deny"); err != nil {
		t.Fatal(err)
	}
	show = s.ended(show.Run.ID)
	reqs := l.Requests()
	return show, reads, string(reqs[len(reqs)-1])
}

// A completed observation of the same call is used again without asking the server; a
// reservation that was never observed is none, and a pending query repeats only as what
// it was: same call, account, version, arguments, source.
func TestWhatAResumedRunAdopts(t *testing.T) {
	show, reads, told := resumed(t, "", nil)
	if reads != 1 || show.Calls[0].State != "succeeded" || len(show.Calls[0].Attempts) != 1 || !strings.Contains(told, "what was read") {
		t.Errorf("an exact observation: %d reads, %+v", reads, show.Calls)
	}
	const pending = `UPDATE calls SET state = 'dispatched', done_at = 0, result = '' WHERE tool = 'read' AND fence > 0; UPDATE attempts SET outcome = '', done_at = 0`
	for what, c := range map[string]struct {
		tamper string
		reads  int
		state  string
	}{
		"a reservation without an observation": {pending + `; DELETE FROM results; UPDATE evidence SET observed_at = 0, digest = '' WHERE tool = 'read'`, 2, "succeeded"},
		"a source of another definition":       {pending + `; DELETE FROM results; UPDATE evidence SET observed_at = 0, digest = '', fingerprint = 'x' WHERE tool = 'read'`, 1, "failed"},
		"a source of another account":          {pending + `; DELETE FROM results; UPDATE evidence SET observed_at = 0, digest = '', connection = 'con_x' WHERE tool = 'read'`, 1, "failed"},
		"no source at all":                     {pending + `; DELETE FROM results; DELETE FROM evidence WHERE tool = 'read'`, 1, "failed"},
	} {
		show, reads, _ := resumed(t, c.tamper, nil)
		if reads != c.reads || show.Calls[0].State != c.state || len(show.Calls) != 2 {
			t.Errorf("%s: %d reads, %+v", what, reads, show.Calls)
		}
	}
	for what, c := range map[string]struct {
		tamper string
		change func(*served)
	}{
		"a source that was not observed": {`UPDATE evidence SET observed_at = 0, digest = '' WHERE tool = 'read'`, nil},
		"a source that is gone":          {`DELETE FROM evidence WHERE tool = 'read'`, nil},
		"another result":                 {`UPDATE evidence SET digest = 'x' WHERE tool = 'read'`, nil},
		"a connection that was changed": {"", func(s *served) {
			if err := s.do("mcp.tool-set", command.ToolSetInput{Name: "up", Tool: "pay", Target: "$.x"}, &command.MCPChanged{}); err != nil {
				s.t.Fatal(err)
			}
		}},
	} {
		show, reads, told := resumed(t, c.tamper, c.change)
		if reads != 1 || show.Run.State != "succeeded" || !strings.Contains(told, "not used again") || strings.Contains(told, "what was read") {
			t.Errorf("%s: %d reads, %+v %s", what, reads, show.Run, told)
		}
	}
}

// What a run says in its own words after reading a thousand sources comes from all of
// them, which is more than a memory keeps: it is refused, and the model is told what it may do.
func TestAMemoryOfTooManySources(t *testing.T) {
	note := call("remember", `{"text":"It was all about the harvest."}`)
	many := fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) INSERT INTO lineage (owner, source) SELECT runs.id, 'evd_' || i FROM runs, n`, plane.MaxSources)
	for tampered, want := range map[string]string{many: fmt.Sprintf("a memory keeps at most %d", plane.MaxSources), "": "from 2 sources"} {
		if show, _, told := resumed(t, tampered, nil, note); show.Run.State != "succeeded" || !strings.Contains(told, want) {
			t.Errorf("no %q: %+v %s", want, show.Run, told)
		}
	}
}

// An answer that comes after its run was taken over settles the call that was given up,
// and the run goes on with it: nobody is asked, nothing is sent again.
func TestALateAnswerSettlesItsCall(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	begun, release := make(chan struct{}), make(chan struct{})
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		close(begun)
		<-release
		return fake.Text("paid at last"), nil
	})
	cfg := onPostgres(c.URL, scripted(`[{calls: [{tool: mcp__up__pay}]}, {say: "it said {{last}}"}]`)+upConfig(m))
	a := startWith(t, "", cfg, func(*app.Options) {})
	var row command.RunRow
	if err := a.do("runs.start", command.RunsStartInput{Prompt: "pay", Agent: "general"}, &row); err != nil {
		t.Fatal(err)
	}
	<-begun
	// Another replica believes that the first is gone.
	db, err := sql.Open("pgx", c.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`UPDATE runs SET lease_until = 1`); err != nil {
		t.Fatal(err)
	}
	b := start(t, "", cfg)
	var show command.RunsShow
	within(t, 20*time.Second, "the takeover", func() bool {
		err := b.do("runs.show", command.RunsShowInput{RunInput: command.RunInput{Run: row.ID}}, &show)
		return err == nil && show.Run.Waiting == "reconcile"
	})
	close(release)
	show = b.ended(row.ID)
	if show.Run.State != "succeeded" || show.Calls[0].State != string(plane.CallResolvedDone) || show.Calls[0].ResolvedBy != "patchbay" || !strings.Contains(show.Run.Answer, "paid at last") || len(m.Calls()) != 1 {
		t.Errorf("%+v, %d payments", show, len(m.Calls()))
	}
}

// The database is gone while a server answers: what it answered is put on record when
// the database is back, of a run and of a client, and nobody has to say what became of it.
func TestAnAnswerOutlivesTheDatabasesAbsence(t *testing.T) {
	t.Parallel()
	pg := cluster(t)
	p := newProxy(t, pg.URL)
	m := fake.NewMCP(t, fake.Tool("pay", ""))
	begun := make(chan struct{}, 2)
	release := make(chan struct{})
	m.OnCall(func(*mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
		begun <- struct{}{}
		<-release
		return fake.Text("paid"), nil
	})
	s := start(t, "", onPostgres(p.url, "limits: {run_lease: 1s}\n"+scripted(`[{calls: [{tool: mcp__up__pay, input: {x: run}}]}, {say: "it said {{last}}"}]`)+
		fmt.Sprintf("org: {connections: {up: {url: %q, targets: {pay: $.x}}}}\n", m.Endpoint())+allow("up", m.URL)))
	c := s.plug("general", s.agentToken("general"), "2025-11-25", nil)
	var row command.RunRow
	if err := s.do("runs.start", command.RunsStartInput{Prompt: "pay", Agent: "general"}, &row); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp__up__pay", Arguments: map[string]any{"x": "client"}})
		if err != nil {
			said <- err.Error()
			return
		}
		said <- textOf(r)
	}()
	<-begun
	<-begun
	p.cut()
	close(release)
	time.Sleep(4 * time.Second)
	p.mend()
	if got := <-said; got != "paid" {
		t.Errorf("the client was told %q", got)
	}
	show := s.ended(row.ID)
	if show.Run.State != "succeeded" || !strings.Contains(show.Run.Answer, "paid") || len(m.Calls()) != 2 {
		t.Errorf("%+v, %d payments", show, len(m.Calls()))
	}
	var l command.CallsList
	if err := s.do("calls.list", command.CallsListInput{Limit: 10}, &l); err != nil || len(l.Calls) != 2 {
		t.Fatalf("%+v %v", l, err)
	}
	for _, c := range l.Calls {
		if c.State != "succeeded" && c.State != "resolved_done" || c.ResolvedBy != "" && c.ResolvedBy != "patchbay" {
			t.Errorf("%+v", c)
		}
	}
}
