package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// schedule is one play: what is asked, and what goes wrong meanwhile.
type schedule struct {
	p    *plant
	n    int
	r    *rand.Rand
	runs []started
	asks []*asked
	log  []string

	mu sync.Mutex
}

// started is a run that was asked for, with what its calls are about.
type started struct {
	id string
	xs []step
}

type step struct{ tool, x string }

// asked is a client's call.
type asked struct {
	step
	answered bool // with the tool's result
	denied   bool
}

func (s *schedule) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

var tools = []string{"pay", "pay", "pay", "look", "ask"}

// play runs the schedule to where everything is calm again.
func (s *schedule) play(t *tally) {
	var work sync.WaitGroup
	for i := range 2 {
		var steps []step
		for j := range 1 + s.r.IntN(3) {
			steps = append(steps, step{tools[s.r.IntN(len(tools))], fmt.Sprintf("s%d-r%d-%d", s.n, i, j)})
		}
		wait, to := time.Duration(s.r.IntN(60))*time.Millisecond, s.p.replicas[s.r.IntN(len(s.p.replicas))]
		work.Go(func() { time.Sleep(wait); s.begin(to, steps) })
	}
	for i := range 5 {
		a := &asked{step: step{tools[s.r.IntN(len(tools))], fmt.Sprintf("s%d-c%d", s.n, i)}}
		s.asks = append(s.asks, a)
		wait, to := time.Duration(s.r.IntN(150))*time.Millisecond, s.p.replicas[s.r.IntN(len(s.p.replicas))]
		work.Go(func() { time.Sleep(wait); s.call(to, a) })
	}
	calm := make(chan struct{})
	var people sync.WaitGroup
	people.Go(func() { s.approver(calm) })
	s.fault(t)
	work.Wait()
	t.check(s)
	close(calm)
	people.Wait()
}

// begin asks for a run: its prompt says what its calls are, in order.
func (s *schedule) begin(to *replica, steps []step) {
	var words []string
	for _, st := range steps {
		words = append(words, st.tool+":"+st.x)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var row command.RunRow
	err := to.client.Command(ctx, "runs.start", command.RunsStartInput{Prompt: "do " + strings.Join(words, " "), Agent: "general"}, &row)
	if err != nil {
		return // it may have begun all the same: its calls are looked for by what they are about
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, started{row.ID, steps})
}

// call is a client of the agent: it sends its call once, and again only when it was
// told that nothing was sent.
func (s *schedule) call(to *replica, a *asked) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		text, isError, err := s.p.tool(to, a.tool, a.x)
		if err != nil {
			s.note("%s %s: %v", a.tool, a.x, err)
			return
		}
		switch {
		case isError && strings.Contains(text, "waits for a person's approval"):
			continue
		case isError && strings.Contains(text, "denied"):
			a.denied = true
		case !isError && strings.HasPrefix(text, "did"):
			a.answered = true
		}
		s.note("%s %s: %.80s", a.tool, a.x, text)
		return
	}
}

// tool sends one tools/call of the modern era.
func (p *plant) tool(to *replica, tool, x string) (text string, isError bool, err error) {
	name := "mcp__far__" + tool
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"name":%q,"arguments":%s}}`, name, arguments(x))
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+to.addr+"/mcp/agents/general", strings.NewReader(body))
	if err != nil {
		return "", false, err
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + p.token,
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name} {
		req.Header.Set(k, v)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", false, err
	}
	if i := bytes.LastIndex(b, []byte("data: ")); i >= 0 {
		b, _, _ = bytes.Cut(b[i+6:], []byte("\n"))
	}
	var m struct {
		Result struct {
			IsError bool
			Content []struct{ Text string }
		}
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return "", false, err
	}
	if m.Error != nil {
		return m.Error.Message, true, nil
	}
	for _, c := range m.Result.Content {
		text += c.Text
	}
	return text, m.Result.IsError, nil
}

func arguments(x string) string { return fmt.Sprintf(`{"x":%q}`, x) }

func digest(x string) string {
	sum := sha256.Sum256([]byte(arguments(x)))
	return hex.EncodeToString(sum[:])
}

// approver decides what waits for a person, one way or the other.
func (s *schedule) approver(calm <-chan struct{}) {
	for {
		select {
		case <-calm:
			return
		case <-time.After(40 * time.Millisecond):
		}
		var l command.ApprovalsList
		if s.p.do("approvals.list", command.ApprovalsListInput{Limit: 50}, &l) != nil {
			continue
		}
		for _, a := range l.Approvals {
			if s.p.do("approvals.show", command.ApprovalInput{ID: a.ID}, &a) != nil {
				continue
			}
			as := plane.Approve
			if denies(about(json.RawMessage(a.Arguments))) {
				as = plane.Deny
			}
			s.p.do("approvals.decide", command.DecideInput{ID: a.ID, Decision: string(as)}, &command.Decided{}) // another click may have been first
		}
	}
}

// denies is the person's mind about a call.
func denies(x string) bool { return hash(x+"?")%3 == 0 }

// do asks whichever replica answers.
func (p *plant) do(name string, in, out any) (err error) {
	for _, r := range p.replicas {
		r.mu.Lock()
		paused := r.paused
		r.mu.Unlock()
		if paused {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = r.client.Command(ctx, name, in, out)
		cancel()
		if k := plane.KindOf(err); err == nil || k == plane.Conflict || k == plane.Gone || k == plane.NotFound || k == plane.InvalidInput {
			return err
		}
	}
	return err
}

// fault lets one thing go wrong, and mends it.
func (s *schedule) fault(t *tally) {
	time.Sleep(time.Duration(s.r.IntN(220)) * time.Millisecond)
	r := s.p.replicas[s.r.IntN(len(s.p.replicas))]
	kinds := []string{"kill", "kill", "kill", "pause", "pause", "disconnect", "slow"}
	if s.p.pg != nil {
		kinds = append(kinds, "database", "database", "crash")
	}
	kind := kinds[s.r.IntN(len(kinds))]
	t.faults[kind]++
	s.note("%s of %s", kind, r.name)
	switch kind {
	case "kill":
		s.p.kill(r)
		time.Sleep(time.Duration(s.r.IntN(60)) * time.Millisecond)
		if err := s.p.serve(r); err != nil {
			t.broken(err)
		}
	case "pause":
		r.mu.Lock()
		r.paused = true
		r.mu.Unlock()
		r.signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(200+s.r.IntN(2500)) * time.Millisecond)
		r.signal(syscall.SIGCONT)
		r.mu.Lock()
		r.paused = false
		r.mu.Unlock()
	case "disconnect":
		s.p.far.MCP.CloseClientConnections()
	case "slow":
		s.p.far.slowFor(400 * time.Millisecond)
	case "database":
		r.wire.cut()
		time.Sleep(time.Duration(100+s.r.IntN(1500)) * time.Millisecond)
		r.wire.mend()
	case "crash":
		if err := s.p.pg.Restart(); err != nil {
			t.broken(err)
		}
	}
	time.Sleep(300 * time.Millisecond) // people look when it is calm
}
