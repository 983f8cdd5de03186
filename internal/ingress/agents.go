package ingress

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	Bridge  Bridge
	Agent   func(slug string) (plane.Agent, bool)
	Who     func(*http.Request) (plane.Principal, error)
	MAC     func(purpose string, msg []byte) []byte // and its check, by the ring
	Check   func(purpose string, msg, mac []byte) bool
	Clock   plane.Clock
	Version string
	Replica string        // names this process in session ids
	Idle    time.Duration // a session that is not used ends
	PerWho  int           // sessions of one principal
}

// Agents serves one MCP endpoint per agent: the tools that the agent may use, of
// all its connections, as one server.
type Agents struct {
	o    AgentsOptions
	mu   sync.Mutex
	live map[liveKey]*liveSession
	ends map[string]time.Time // session ids that were deleted, until they expire
	srv  map[string]*mcp.Server
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
}

// NewAgents makes the endpoint. Close it.
func NewAgents(o AgentsOptions) *Agents {
	return &Agents{o: o, live: map[liveKey]*liveSession{}, ends: map[string]time.Time{}, srv: map[string]*mcp.Server{}}
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
		if l.busy == 0 && now.Sub(l.used) > a.o.Idle {
			gone = append(gone, l)
			delete(a.live, k)
		}
	}
	for id, until := range a.ends {
		if now.After(until) {
			delete(a.ends, id)
		}
	}
	a.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

// Changed tells every client that listens that lists may differ now.
func (a *Agents) Changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.srv {
		s.ListChanged()
	}
}

type callerKey struct{}

type caller struct {
	who   plane.Principal
	agent string
}

// ServeHTTP serves one request. Who is calling is told before anything is read.
func (a *Agents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := a.o.Who(r)
	slug := strings.TrimPrefix(r.URL.Path, AgentsPath)
	if err != nil {
		challenge(w, r, err)
		return
	}
	agent, ok := a.o.Agent(slug)
	switch {
	case !ok || who.Kind == plane.KindAgent && who.Agent != slug:
		// Another agent's endpoint looks like one that does not exist.
		http.Error(w, "There is no such agent.", http.StatusNotFound)
		return
	case !agent.MCP:
		http.Error(w, "MCP is off for this agent.", http.StatusServiceUnavailable)
		return
	case who.Kind != plane.KindAgent && !who.Rights.Has(plane.MCPRead|plane.RunsWrite):
		w.Header().Set("WWW-Authenticate", `Bearer realm="patchbay", error="insufficient_scope", scope="mcp:read runs:write"`)
		http.Error(w, "The token lacks the scopes mcp:read and runs:write.", http.StatusForbidden)
		return
	}
	a.server(slug).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller{who, slug})))
}

// challenge says why a caller is not let in (RFC 6750 §3).
func challenge(w http.ResponseWriter, r *http.Request, err error) {
	if plane.KindOf(err) != plane.Unauthenticated {
		http.Error(w, plane.Public(err).Message, http.StatusForbidden)
		return
	}
	text := `Bearer realm="patchbay"`
	if r.Header.Get("Authorization") != "" {
		text += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", text)
	http.Error(w, plane.Public(err).Message, http.StatusUnauthorized)
}

func (a *Agents) server(slug string) *mcp.Server {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.srv[slug]
	if s == nil {
		s = &mcp.Server{Info: mcp.Implementation{Name: "patchbay/" + slug, Version: a.o.Version}, Tools: a, Sessions: true, Keeper: a}
		a.srv[slug] = s
	}
	return s
}

// session finds or opens the bridge session of a request; done gives it back.
func (a *Agents) session(r *http.Request) (s *bridge.Session, done func(), err error) {
	c := r.Context().Value(callerKey{}).(caller)
	k := liveKey{c.agent, c.who, r.Header.Get("Mcp-Session-Id")}
	a.mu.Lock()
	l := a.live[k]
	if l == nil {
		if err := a.room(c.who); err != nil {
			a.mu.Unlock()
			return nil, nil, err
		}
		l = &liveSession{}
		a.live[k] = l
	}
	l.busy++
	a.mu.Unlock()
	done = func() {
		a.mu.Lock()
		l.busy--
		l.used = a.o.Clock.Now()
		a.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s == nil {
		// Others of the same session wait for the one who opens it, so that the
		// opening must not end with its request.
		l.s, err = a.o.Bridge.Open(context.WithoutCancel(r.Context()), bridge.Opening{Agent: c.agent, Principal: c.who, Results: plane.Raw})
	} else {
		err = l.s.Renew(r.Context())
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return l.s, done, nil
}

// room holds the bound on sessions of one principal: the one that was idle for
// longest has to go. The lock is held.
func (a *Agents) room(who plane.Principal) error {
	n := 0
	var oldest liveKey
	var found *liveSession
	for k, l := range a.live {
		if k.who != who {
			continue
		}
		n++
		if l.busy == 0 && (found == nil || l.used.Before(found.used)) {
			oldest, found = k, l
		}
	}
	if n < a.o.PerWho {
		return nil
	}
	if found == nil {
		e := plane.Errorf(plane.Limited, "You have %d sessions in use.", n).Over("ingress_sessions")
		e.RetryAfter = time.Second
		return e
	}
	delete(a.live, oldest)
	go found.close()
	return nil
}

// Session ids are <replica>.<random>.<expiry>.<mac>: whoever has the ring knows
// them again, after a restart too, and for whom they were made.
const (
	sessionPurpose = "mcp session"
	sessionLife    = 24 * time.Hour
	maxEnded       = 10_000
)

// Begin makes a session id for the caller.
func (a *Agents) Begin(r *http.Request) (string, error) {
	c := r.Context().Value(callerKey{}).(caller)
	var random [16]byte
	rand.Read(random[:])
	head := fmt.Sprintf("%s.%s.%d", a.o.Replica, base64.RawURLEncoding.EncodeToString(random[:]), a.o.Clock.Now().Add(sessionLife).Unix())
	return head + "." + base64.RawURLEncoding.EncodeToString(a.o.MAC(sessionPurpose, bound(head, c))), nil
}

// bound is what a session's MAC covers: the id, and for whom it is.
func bound(head string, c caller) []byte {
	var b bytes.Buffer
	for _, s := range []string{head, c.agent, string(c.who.Kind), c.who.ID, c.who.Team, c.who.Token} {
		binary.Write(&b, binary.BigEndian, uint32(len(s))) // into memory
		b.WriteString(s)
	}
	return b.Bytes()
}

// Known reports that a session id is the caller's, not over and not ended.
func (a *Agents) Known(r *http.Request, id string) bool {
	c := r.Context().Value(callerKey{}).(caller)
	i := strings.LastIndexByte(id, '.')
	if i < 0 || len(id) > 256 {
		return false
	}
	head := id[:i]
	mac, err := base64.RawURLEncoding.DecodeString(id[i+1:])
	if err != nil || !a.o.Check(sessionPurpose, bound(head, c), mac) {
		return false
	}
	var until int64
	if _, err := fmt.Sscan(head[strings.LastIndexByte(head, '.')+1:], &until); err != nil || a.o.Clock.Now().Unix() > until {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ended := a.ends[id]
	return !ended
}

// End ends a session.
func (a *Agents) End(r *http.Request, id string) {
	c := r.Context().Value(callerKey{}).(caller)
	k := liveKey{c.agent, c.who, id}
	a.mu.Lock()
	l := a.live[k]
	delete(a.live, k)
	if len(a.ends) < maxEnded {
		a.ends[id] = a.o.Clock.Now().Add(sessionLife)
	}
	a.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Tools lists what the agent may use, as the servers said it but for the name.
func (a *Agents) Tools(_ context.Context, r *http.Request) ([]json.RawMessage, error) {
	s, done, err := a.session(r)
	if err != nil {
		return nil, err
	}
	defer done()
	tools := s.Tools()
	out := make([]json.RawMessage, 0, len(tools))
	for _, t := range tools {
		out = append(out, t.Renamed())
	}
	return out, nil
}

// CallTool takes a call down the road. What was refused or failed before the
// server answered is a tool error: a model can read it.
func (a *Agents) CallTool(ctx context.Context, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	s, done, err := a.session(in.HTTP)
	if err != nil {
		return nil, rpcError(err)
	}
	defer done()
	call := bridge.In{Alias: in.Name, Arguments: slices.Clone(in.Arguments)}
	if in.Progress != nil {
		call.Progress = func(params json.RawMessage) {
			var p struct {
				Progress, Total float64
				Message         string
			}
			if json.Unmarshal(params, &p) == nil {
				in.Progress(p.Progress, p.Total, p.Message)
			}
		}
	}
	if _, ok := s.Tool(in.Name); !ok {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "There is no tool of that name here."}
	}
	out, err := s.Call(ctx, call)
	if err != nil {
		return nil, rpcError(err)
	}
	if out.Raw != nil {
		return out.Raw, nil
	}
	return failed(out), nil
}

// failed is a call without an answer of the server as a tool error, which names
// the call where there is one.
func failed(out *bridge.Out) json.RawMessage {
	text := out.Text
	if out.Next != "" {
		text += " Next: " + out.Next
	}
	body := map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}, "isError": true}
	if out.Call != nil {
		body["_meta"] = map[string]string{"patchbay/call": string(out.Call.ID), "patchbay/state": string(out.Call.State)}
	}
	b, _ := json.Marshal(body) // strings always marshal
	return b
}

// rpcError is a refusal with the code that every surface gives.
func rpcError(err error) *mcp.RPCError {
	e := plane.Public(err)
	data, _ := json.Marshal(struct { // strings and a number always marshal
		Code       plane.Kind `json:"code"`
		Next       string     `json:"next,omitempty"`
		Limit      string     `json:"limit,omitempty"`
		RetryAfter float64    `json:"retry_after,omitempty"`
	}{e.Kind, e.Next, e.Limit, e.RetryAfter.Seconds()})
	return &mcp.RPCError{Code: mcp.CodeInternal, Message: e.Message, Data: data}
}
