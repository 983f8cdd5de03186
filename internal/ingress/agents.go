package ingress

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// AgentsPath is where agents from elsewhere plug in, before the agent's slug.
const AgentsPath = "/mcp/agents/"

// Bridge opens sessions.
type Bridge interface {
	Open(ctx context.Context, o bridge.Opening) (*bridge.Session, error)
}

// AgentsOptions of the agents' endpoint.
type AgentsOptions struct {
	Bridge   Bridge
	Agent    func(slug string) (plane.Agent, bool)
	Who      func(*http.Request) (plane.Principal, error)
	Metadata func(*http.Request) string              // where the endpoint's description stands
	MAC      func(purpose string, msg []byte) []byte // and its check, by the ring
	Check    func(purpose string, msg, mac []byte) bool
	Clock    plane.Clock
	Log      *slog.Logger
	Version  string
	Replica  string                          // names this process in session ids
	Ended    Ended                           // sessions that were ended before their time
	Link     func(plane.ConnectionID) string // where a person signs a connection in
	Reaches  func(who plane.Principal, agent string, id plane.ConnectionID) bool
	// Pass tells the replica of that name, or every other one, of a message about a
	// request that is not here. Nil where there are no others.
	Pass func(ctx context.Context, to, agent, session string, message []byte) error
	Idle time.Duration // a session that is not used ends

	Stopping <-chan struct{} // ends the streams of notices
	Life     context.Context // ends the calls under way
	PerWho   int             // sessions of one principal
}

// Agents serves one MCP endpoint per agent: the tools that the agent may use, of
// all its connections, as one server.
type Agents struct {
	o    AgentsOptions
	mu   sync.Mutex
	live map[liveKey]*liveSession
	srv  map[string]*mcp.Server
}

// Ended knows the sessions that were ended before their time, at every replica.
type Ended interface {
	Add(ctx context.Context, session string, until time.Time) error
	Has(session string) bool
}

// liveKey is whose session it is: the client's own, or, where the client has no
// session, that of its principal.
type liveKey struct {
	agent string
	who   plane.Principal
	id    string
}

type liveSession struct {
	mu   sync.Mutex // while it is opened
	s    *bridge.Session
	used time.Time
	busy int

	there atomic.Pointer[bridge.Session] // s, for who does not wait
	peer  mcp.Peer                       // of a client with a session of its own
	until int64                          // when that ends, in seconds
}

// NewAgents makes the endpoint. Close it.
func NewAgents(o AgentsOptions) *Agents {
	return &Agents{o: o, live: map[liveKey]*liveSession{}, srv: map[string]*mcp.Server{}}
}

// Close ends every session.
func (a *Agents) Close() {
	a.mu.Lock()
	all := a.live
	a.live = map[liveKey]*liveSession{}
	a.mu.Unlock()
	for _, l := range all {
		l.close()
	}
}

// opened is the bridge session, once it is there.
func (l *liveSession) opened() *bridge.Session { return l.there.Load() }

func (l *liveSession) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s != nil {
		l.s.Close()
	}
}

// Reap ends sessions that were idle for long.
func (a *Agents) Reap() {
	now := a.o.Clock.Now()
	var gone []*liveSession
	a.mu.Lock()
	for k, l := range a.live {
		if s := l.opened(); l.busy == 0 && now.Sub(l.used) > a.o.Idle && (s == nil || !s.Watches()) {
			gone = append(gone, l)
			delete(a.live, k)
		}
	}
	a.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

// Changed tells the clients that listen and reach a connection, or, with none, all of
// them, that lists may differ now: of tools, and of what servers offer beside.
func (a *Agents) Changed(id plane.ConnectionID, tools, beside bool) {
	var to func(string, *http.Request) bool
	if id != "" && a.o.Reaches != nil {
		to = func(_ string, r *http.Request) bool {
			c := callerOf(r)
			return a.o.Reaches(c.who, c.agent, id)
		}
	}
	for _, s := range a.servers() {
		if tools {
			s.Tell(mcp.Notice{Method: mcp.MethodListChanged, To: to})
		}
		if beside {
			s.Tell(mcp.Notice{Method: mcp.MethodPromptsChanged, To: to})
			s.Tell(mcp.Notice{Method: mcp.MethodResourcesChanged, To: to})
		}
	}
}

func (a *Agents) servers() map[string]*mcp.Server {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.srv)
}

// Noticed hands on what a server said by itself: to the clients that subscribed to
// the resource, or, a log message, to the one whose session it is.
func (a *Agents) Noticed(n bridge.Notice) {
	a.mu.Lock()
	live := maps.Clone(a.live)
	a.mu.Unlock()
	for k, l := range live {
		s := l.opened()
		if s == nil || n.Session != "" && n.Session != s.ID() {
			continue
		}
		note := mcp.Notice{Method: n.Method, Params: n.Params, To: func(session string, r *http.Request) bool {
			return session == k.id && caller{k.who, k.agent} == callerOf(r)
		}}
		switch n.Method {
		case mcp.MethodUpdated:
			name, ok := s.Hears(n.Connection, n.URI())
			if !ok {
				continue
			}
			note.URI, note.Params = name, mcp.SetMember(n.Params, "uri", name)
		case mcp.MethodLog:
			if n.Session == "" || k.id == "" {
				continue // nobody's in particular
			}
		}
		if srv := a.servers()[k.agent]; srv != nil {
			srv.Tell(note)
		}
	}
}

type callerKey struct{}

type caller struct {
	who   plane.Principal
	agent string
}

func callerOf(r *http.Request) caller {
	c, _ := r.Context().Value(callerKey{}).(caller)
	return c
}

// ServeHTTP serves one request. Who is calling is told before anything is read.
func (a *Agents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := a.o.Who(r)
	slug := strings.TrimPrefix(r.URL.Path, AgentsPath)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	agent, ok := a.o.Agent(slug)
	switch {
	case !ok || who.Kind == plane.KindAgent && who.Agent != slug:
		// Another agent's endpoint looks like one that does not exist.
		http.Error(w, "There is no such agent, or the token is for another one. patchbay agents list shows the agents, patchbay tokens list whose a token is.", http.StatusNotFound)
		return
	case !agent.MCP:
		http.Error(w, "MCP is off for this agent. An operator sets agents."+slug+".mcp.enabled in patchbay.yaml.", http.StatusServiceUnavailable)
		return
	case who.Kind != plane.KindAgent && !who.Rights.Has(plane.MCPRead|plane.RunsWrite):
		w.Header().Set("WWW-Authenticate", challenge(r, a.o.Metadata, false, agentScopes)+`, error="insufficient_scope"`)
		http.Error(w, "The token lacks the scopes mcp:read and runs:write.", http.StatusForbidden)
		return
	}
	a.server(slug).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller{who, slug})))
}

func owner(r *http.Request) string {
	who := callerOf(r).who
	return string(who.Kind) + "|" + who.ID + "|" + who.Token
}

// allowed reports that who began to listen still may.
func (a *Agents) allowed(r *http.Request) bool {
	c := callerOf(r)
	who, err := a.o.Who(r)
	agent, ok := a.o.Agent(c.agent)
	return err == nil && who == c.who && ok && agent.MCP
}

// Scopes that the endpoints take.
const (
	agentScopes   = "mcp:read runs:write"
	commandScopes = "mcp:read mcp:write runs:read runs:write"
)

// challenge says what lets a caller in, and where it is described (RFC 6750, section 3; RFC
// 9728, section 5.1).
func challenge(r *http.Request, metadata func(*http.Request) string, unknown bool, scopes string) string {
	text := `Bearer realm="patchbay"`
	if at := metadata(r); at != "" {
		text += `, resource_metadata="` + at + `"`
	}
	text += `, scope="` + scopes + `"`
	if unknown && r.Header.Get("Authorization") != "" {
		text += `, error="invalid_token"`
	}
	return text
}

// refusalStatus is the status that somebody who is not let in is answered.
func refusalStatus(err error) int {
	switch plane.KindOf(err) {
	case plane.Unauthenticated:
		return http.StatusUnauthorized
	case plane.Unavailable, plane.Internal:
		return http.StatusServiceUnavailable
	}
	return http.StatusForbidden
}

// refuse says why a caller is not let in.
func (a *Agents) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if code := refusalStatus(err); code != http.StatusUnauthorized {
		http.Error(w, plane.Public(err).Message, code)
		return
	}
	w.Header().Set("WWW-Authenticate", challenge(r, a.o.Metadata, true, agentScopes))
	http.Error(w, plane.Public(err).Message+" A client signs a person in (docs/agents.md), or sends the token that patchbay tokens create --agent AGENT makes, as Authorization: Bearer.", http.StatusUnauthorized)
}

func (a *Agents) server(slug string) *mcp.Server {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.srv[slug]
	if s == nil {
		s = &mcp.Server{Info: mcp.Implementation{Name: "patchbay/" + slug, Version: a.o.Version}, Handler: a, Capabilities: offers, Sessions: true, Keeper: a,
			Name: a.o.Replica, Elsewhere: a.elsewhere, Stopping: a.o.Stopping, Life: a.o.Life, Allowed: a.allowed, Owner: owner}
		a.srv[slug] = s
	}
	return s
}
