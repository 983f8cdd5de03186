// Package natsbus answers the one command of the bus, mcp: plain request and reply on
// <prefix>.controller.command, for one agent each on
// <prefix>.agent.<slug>.controller.command, and for one agent of one team on
// <prefix>.agent.<slug>.<team>.controller.command. It promises that a claim of who asks is
// believed only as far as the subject, or config, vouches for it, that every request is
// answered once by one of the replicas, and that what goes wrong is said in words for a
// chat.
package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/internal/plane"
)

// Servers are teams' declarations.
type Servers interface {
	Propose(ctx context.Context, who plane.Principal, team, body, why string) (plane.Proposal, error)
	List(ctx context.Context, who plane.Principal, team string, states ...plane.ProposalState) ([]plane.Proposal, error)
	Show(ctx context.Context, who plane.Principal, team, name string) (plane.Proposal, error)
	Accept(ctx context.Context, who plane.Principal, team, name, id string) (plane.Proposal, error)
	Forget(ctx context.Context, who plane.Principal, team, name string) (plane.Proposal, error)
}

// Options of a Bus.
type Options struct {
	Servers Servers
	Agent   func(slug string) bool // whether there is one
	Prefix  string                 // of subjects
	Trusted bool                   // whoever may publish on the bare subject says who asks
	Decides bool                   // accept and forget are taken
	MCP     bool
	Log     *slog.Logger
}

// Bus answers requests. Close it.
type Bus struct {
	o      Options
	conn   *nats.Conn
	subs   []*nats.Subscription
	in     chan *nats.Msg
	work   sync.WaitGroup
	mu     sync.Mutex
	closed bool
	life   context.Context
	end    context.CancelFunc
}

// Bounds of the bus.
const (
	queueGroup = "patchbay" // one of the replicas answers
	workers    = 8
	waiting    = 256
	maxRequest = 256 << 10
	askTime    = 30 * time.Second
	closeTime  = 5 * time.Second // for what is under way when the bus is closed
)

// Serve subscribes over a connection, which the bus takes over.
func Serve(conn *nats.Conn, o Options) (*Bus, error) {
	b := &Bus{o: o, conn: conn, in: make(chan *nats.Msg, waiting)}
	b.life, b.end = context.WithCancel(context.Background())
	for _, subject := range []string{o.Prefix + ".controller.command", o.Prefix + ".agent.*.controller.command", o.Prefix + ".agent.*.*.controller.command"} {
		sub, err := conn.QueueSubscribe(subject, queueGroup, b.take)
		if err != nil {
			b.Close()
			return nil, err
		}
		b.subs = append(b.subs, sub)
	}
	for range workers {
		b.work.Go(b.serve)
	}
	return b, nil
}

// take hands a request on; when too many wait it is refused at once.
func (b *Bus) take(m *nats.Msg) {
	if !strings.HasPrefix(m.Reply, "_INBOX") {
		return // nobody asks, or the answer should go where an inbox is not
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return // another replica's
	}
	select {
	case b.in <- m:
	default:
		b.answer(m, refusal(plane.Errorf(plane.Limited, "Too many requests wait; ask again in a moment.")))
	}
}

func (b *Bus) serve() {
	for m := range b.in {
		ctx, cancel := context.WithTimeout(b.life, askTime)
		b.answer(m, b.handle(ctx, m.Subject, m.Data))
		cancel()
	}
}

func (b *Bus) answer(m *nats.Msg, r response) {
	body, err := json.Marshal(r)
	if err == nil {
		err = m.Respond(body)
	}
	if err != nil {
		b.o.Log.Warn("a request on the bus could not be answered", "subject", m.Subject, "err", err)
	}
}

// Close answers what is under way and leaves the bus.
func (b *Bus) Close() {
	for _, s := range b.subs {
		s.Unsubscribe() // an error means that the connection is gone, and so is the subscription
	}
	b.mu.Lock()
	b.closed = true
	close(b.in)
	b.mu.Unlock()
	late := time.AfterFunc(closeTime, b.end)
	b.work.Wait()
	late.Stop()
	b.end()
	b.conn.FlushTimeout(time.Second) // what was answered gets out, where the connection is there
	b.conn.Close()
}

// request is the seed's, to the letter.
type request struct {
	Command string   `json:"command"`
	Team    string   `json:"team"`
	Args    []string `json:"args"`
	Source  string   `json:"source,omitempty"` // agent:<team>/<agent>
	User    string   `json:"user,omitempty"`   // a person
}

// response is the seed's; code is ours, for programs.
type response struct {
	OK      bool       `json:"ok"`
	Text    string     `json:"text,omitempty"`
	Entries *[]string  `json:"entries,omitempty"` // of a list, empty too
	Error   string     `json:"error,omitempty"`
	Code    plane.Kind `json:"code,omitempty"`
}

func refusal(err error) response {
	return response{Error: plane.Sentence(err), Code: plane.Public(err).Kind}
}

// handle answers one request.
func (b *Bus) handle(ctx context.Context, subject string, data []byte) response {
	out, err := b.do(ctx, subject, data)
	if err != nil {
		if plane.Public(err).Kind == plane.Internal {
			b.o.Log.Error("a request on the bus failed", "subject", subject, "err", err)
		}
		return refusal(err)
	}
	out.OK = true
	return out
}

func (b *Bus) do(ctx context.Context, subject string, data []byte) (response, error) {
	var r request
	switch {
	case len(data) > maxRequest:
		return response{}, plane.Errorf(plane.InvalidInput, "The request is larger than %d bytes.", maxRequest)
	case json.Unmarshal(data, &r) != nil:
		return response{}, plane.Errorf(plane.InvalidInput, `The request is no JSON object like {"command": "mcp", "team": "payments", "args": ["list"]}.`)
	case r.Command != "mcp":
		return response{}, plane.Errorf(plane.InvalidInput, "The command is %q; mcp is the one that is taken here.", short(r.Command))
	case !b.o.MCP:
		return response{}, plane.Errorf(plane.Unavailable, "MCP is off on this server.")
	case len(r.Args) == 0:
		return response{}, plane.Errorf(plane.InvalidInput, "Say what: %s.", strings.Join(operations, ", "))
	case r.Team == "":
		return response{}, plane.Errorf(plane.InvalidInput, "Say which team.")
	}
	who, err := b.caller(subject, &r)
	if err != nil {
		return response{}, err
	}
	return b.operate(ctx, who, r.Team, r.Args[0], r.Args[1:])
}

var operations = []string{"propose", "list", "list_curated", "show", "accept", "forget"}

// caller is who asks, as far as the subject or config vouches for it.
func (b *Bus) caller(subject string, r *request) (plane.Principal, error) {
	none := plane.Principal{}
	switch {
	case r.Source != "" && r.User != "":
		return none, plane.Errorf(plane.InvalidInput, "A request is an agent's, with source, or a person's, with user; this one says both.")
	case r.Source == "" && r.User == "":
		return none, plane.Errorf(plane.Unauthenticated, "The request says neither source nor user, so nobody asks.")
	}
	slug, held := agentOf(subject, b.o.Prefix)
	if slug == "" && !b.o.Trusted {
		return none, plane.Errorf(plane.Unauthenticated, "Who asks on this subject is not believed.").
			Then("Publish on " + b.o.Prefix + ".agent.<slug>.controller.command, or set nats.trusted_publishers.")
	}
	if r.User != "" {
		if slug != "" {
			return none, plane.Errorf(plane.Forbidden, "On an agent's subject only that agent asks, with source.")
		}
		p := plane.Principal{Kind: plane.KindPerson, ID: r.User, Rights: plane.MCPRead | plane.MCPWrite | plane.ConfigWrite}
		if strings.Contains(r.User, "@") && !strings.Contains(r.User, "|") {
			p.Email = r.User
		}
		return p, nil
	}
	team, agent, ok := strings.Cut(strings.TrimPrefix(r.Source, "agent:"), "/")
	switch {
	case !ok || !strings.HasPrefix(r.Source, "agent:") || team == "" || agent == "":
		return none, plane.Errorf(plane.InvalidInput, "source is agent:<team>/<agent>.")
	case slug != "" && agent != slug:
		return none, plane.Errorf(plane.Forbidden, "This subject is the agent %s's, and the request says it is %s's.", slug, short(agent))
	case held != "" && team != held:
		return none, plane.Errorf(plane.Forbidden, "This subject is for the team %s, and the request is for %s.", held, short(team))
	case team != r.Team:
		return none, plane.Errorf(plane.Forbidden, "The agent works for %s, and the request is about %s.", short(team), short(r.Team))
	case !b.o.Agent(agent):
		return none, plane.Errorf(plane.Unauthenticated, "There is no agent %s.", short(agent))
	}
	return plane.Principal{Kind: plane.KindAgent, ID: r.Source, Agent: agent, Team: team}, nil
}

// agentOf is the agent whose subject it is, and the team where it is one team's; "" for
// the bare one.
func agentOf(subject, prefix string) (agent, team string) {
	rest, ok := strings.CutPrefix(subject, prefix+".agent.")
	if !ok {
		return "", ""
	}
	agent, team, _ = strings.Cut(strings.TrimSuffix(rest, ".controller.command"), ".")
	return agent, team
}

func (b *Bus) operate(ctx context.Context, who plane.Principal, team, op string, args []string) (response, error) {
	want := map[string]int{"propose": 2, "list": 0, "list_curated": 0, "show": 1, "accept": 1, "forget": 1}
	n, ok := want[op]
	switch {
	case !ok:
		return response{}, plane.Errorf(plane.InvalidInput, "mcp cannot %s; it can %s.", short(op), strings.Join(operations, ", "))
	case len(args) < n || len(args) > n && op != "propose" && op != "accept" || len(args) > n+1:
		return response{}, plane.Errorf(plane.InvalidInput, "mcp %s takes %s.", op, []string{"nothing more", "a name", "a name and a declaration"}[n])
	case who.Kind == plane.KindAgent && (op == "accept" || op == "forget"):
		return response{}, plane.Errorf(plane.Forbidden, "An agent can propose a server; a person accepts it.")
	case (op == "accept" || op == "forget") && !b.o.Decides:
		return response{}, plane.Errorf(plane.Forbidden, "Servers are not accepted or forgotten over the bus here.").Then("patchbay mcp " + op + ", or nats.allow_decisions.")
	}
	switch op {
	case "propose":
		return b.propose(ctx, who, team, args)
	case "list", "list_curated":
		var states []plane.ProposalState
		if op == "list_curated" {
			states = []plane.ProposalState{plane.Curated}
		}
		list, err := b.o.Servers.List(ctx, who, team, states...)
		out := response{Text: fmt.Sprintf("%d mcp server(s)", len(list)), Entries: &[]string{}}
		for i := range list {
			*out.Entries = append(*out.Entries, render(&list[i]))
		}
		return out, err
	case "show":
		p, err := b.o.Servers.Show(ctx, who, team, args[0])
		return response{Text: strings.Replace(render(&p), "\n", " ", 1)}, err // text is one line
	case "accept":
		id := "" // of the proposal that was looked at
		if len(args) == 2 {
			id = args[1]
		}
		p, err := b.o.Servers.Accept(ctx, who, team, args[0], id)
		return response{Text: fmt.Sprintf("%s is accepted for %s.", p.Declaration.Name, team)}, err
	}
	p, err := b.o.Servers.Forget(ctx, who, team, args[0])
	return response{Text: fmt.Sprintf("%s is forgotten.", p.Declaration.Name)}, err
}

func (b *Bus) propose(ctx context.Context, who plane.Principal, team string, args []string) (response, error) {
	why := ""
	if len(args) == 3 {
		why = args[2]
	}
	p, err := b.o.Servers.Propose(ctx, who, team, args[1], why)
	if err != nil {
		return response{}, err
	}
	if p.Declaration.Name != args[0] {
		return response{Text: fmt.Sprintf("%s is proposed to %s, under the name of its declaration. A person accepts it.", p.Declaration.Name, team)}, nil
	}
	return response{Text: fmt.Sprintf("%s is proposed to %s. A person accepts it.", p.Declaration.Name, team)}, nil
}

// render is a declaration as a model or a person is shown it. Those who read it off the
// bus know agents as roles.
func render(p *plane.Proposal) string {
	d := &p.Declaration
	type tools struct {
		Allow []string `json:"allow,omitempty"`
		Deny  []string `json:"deny,omitempty"`
	}
	doc := struct {
		Name        string            `json:"name"`
		Transport   plane.Transport   `json:"transport"`
		URL         string            `json:"url,omitempty"`
		Command     string            `json:"command,omitempty"`
		Args        []string          `json:"args,omitempty"`
		Env         map[string]string `json:"env,omitempty"`
		Destination string            `json:"destination,omitempty"`
		Roles       []string          `json:"roles,omitempty"`
		Auth        plane.Auth        `json:"auth"`
		Tools       *tools            `json:"tools,omitempty"`
		Description string            `json:"description,omitempty"`
	}{d.Name, d.Transport, d.URL, d.Command, d.Args, d.Env, d.Destination, d.Agents, d.Auth, nil, d.Description}
	if len(d.Allow)+len(d.Deny) > 0 {
		doc.Tools = &tools{d.Allow, d.Deny}
	}
	body, err := json.Marshal(doc)
	if err != nil { // strings always marshal
		body = nil
	}
	return fmt.Sprintf("[%s] %s (from %s)\n%s", p.State, d.Name, p.Source, body)
}

func short(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}
