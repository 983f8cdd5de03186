package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/upstream"
)

// Filters of a connection speak of resources and prompts by these and their name.
const (
	filterResource = "resource:"
	filterPrompt   = "prompt:"
)

// uriScheme makes a resource's name unlike every other server's:
// patchbay://<server>/<its own URI, escaped>.
const uriScheme = "patchbay://"

// extras are what servers offer beside tools, as one session sees them.
type extras struct {
	resources, templates, prompts []json.RawMessage // as they are listed
	byURI                         map[string]target
	patterns                      []pattern
	byPrompt                      map[string]target
	servers                       []target // those that have resources
}

// target is where a resource or prompt is, and its name there.
type target struct {
	conn    plane.ConnectionID
	version int64
	server  string
	name    string
}

type pattern struct {
	re *regexp.Regexp
	at target
}

// preparedExtras are those of one connection.
type preparedExtras struct {
	catalog   *plane.Catalog
	resources []extra
	templates []extra
	prompts   []extra
}

type extra struct {
	name string // its URI, template or name at the server
	raw  json.RawMessage
	re   *regexp.Regexp
}

// readExtras takes what a catalog lists beside tools, but for what the connection's
// filters leave out.
func readExtras(conn *plane.Connection, cat *plane.Catalog) *preparedExtras {
	out := &preparedExtras{catalog: cat}
	take := func(list []json.RawMessage, key, filter string) (found []extra) {
		for _, raw := range list {
			name, ok := mcp.String(member(raw, key))
			if ok && name != "" && conn.Out(filter+name) == "" {
				found = append(found, extra{name: name, raw: raw})
			}
		}
		return found
	}
	out.resources = take(cat.Resources, "uri", filterResource)
	out.templates = take(cat.Templates, "uriTemplate", filterResource)
	for i := range out.templates {
		out.templates[i].re = templateRE(out.templates[i].name)
	}
	out.prompts = take(cat.Prompts, "name", filterPrompt)
	return out
}

// templateRE matches the URIs that a template (RFC 6570) can make, roughly: each
// expression stands for any run of characters.
func templateRE(t string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("^")
	for n := 0; t != ""; n++ {
		i := strings.IndexByte(t, '{')
		j := strings.IndexByte(t, '}')
		if i < 0 || j < i {
			break
		}
		if i > 0 || n == 0 { // two that touch match what one does
			b.WriteString(regexp.QuoteMeta(t[:i]))
			b.WriteString("[^ ]*")
		}
		if t = t[j+1:]; n == maxExpressions {
			return regexp.MustCompile(`^\b$`)
		}
	}
	b.WriteString(regexp.QuoteMeta(t))
	b.WriteString("$")
	re, err := regexp.Compile(b.String())
	if err != nil { // too long
		return regexp.MustCompile(`^\b$`)
	}
	return re
}

// maxExpressions bounds a template.
const maxExpressions = 16

// add merges one connection's. A name that a server before it has taken is reached
// by a name of its own.
func (x *extras) add(a policy.Attached, p *preparedExtras, bare bool) {
	promptNames := promptAliases(a.Slug, p.prompts)
	at := target{conn: a.ID, version: a.Version, server: a.Slug}
	if len(p.resources)+len(p.templates) > 0 {
		x.servers = append(x.servers, at)
	}
	for _, r := range p.resources {
		at.name = r.name
		uri, raw := r.name, r.raw
		if _, taken := x.byURI[uri]; taken {
			uri = ownURI(a.Slug, r.name)
			raw = mcp.SetMember(raw, "uri", uri)
		}
		if _, taken := x.byURI[uri]; !taken {
			x.byURI[uri] = at
			x.resources = append(x.resources, raw)
		}
	}
	for _, t := range p.templates {
		at.name = t.name
		x.patterns = append(x.patterns, pattern{t.re, at})
		x.templates = append(x.templates, t.raw)
	}
	for i, pr := range p.prompts {
		at.name = pr.name
		alias := promptNames[i]
		if _, taken := x.byPrompt[pr.name]; bare && !taken {
			alias = pr.name
		}
		if _, taken := x.byPrompt[alias]; !taken {
			x.byPrompt[alias] = at
			x.prompts = append(x.prompts, mcp.SetMember(pr.raw, "name", alias))
		}
	}
}

func ownURI(server, uri string) string { return uriScheme + server + "/" + url.PathEscape(uri) }

// resource finds whose a URI is: listed, made by a template, or named with its
// server. A URI that nobody lists, which a tool's result may link to, is that of
// the only server that has resources.
func (x *extras) resource(uri string) (target, bool) {
	if t, ok := x.byURI[uri]; ok {
		return t, true
	}
	if rest, ok := strings.CutPrefix(uri, uriScheme); ok {
		server, escaped, _ := strings.Cut(rest, "/")
		own, err := url.PathUnescape(escaped)
		for _, t := range x.servers {
			if t.server == server && err == nil {
				t.name = own
				return t, true
			}
		}
		return target{}, false
	}
	for _, p := range x.patterns {
		if p.re.MatchString(uri) {
			p.at.name = uri
			return p.at, true
		}
	}
	if len(x.servers) == 1 {
		t := x.servers[0]
		t.name = uri
		return t, true
	}
	return target{}, false
}

// preparedOnce keeps readExtras per catalog and connection.
type preparedOnce struct {
	mu sync.Mutex
	by map[plane.ConnectionID]struct {
		conn *plane.Connection
		x    *preparedExtras
	}
}

func (p *preparedOnce) of(conn *plane.Connection, cat *plane.Catalog) *preparedExtras {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, ok := p.by[conn.ID]
	if ok && have.x.catalog == cat && (have.conn == conn || sameRules(have.conn, conn)) {
		return have.x
	}
	if p.by == nil || len(p.by) >= maxPrepared {
		p.by = map[plane.ConnectionID]struct {
			conn *plane.Connection
			x    *preparedExtras
		}{}
	}
	have.conn, have.x = conn, readExtras(conn, cat)
	p.by[conn.ID] = have
	return have.x
}

// current is the offer as it stands.
func (s *Session) current() *offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offer
}

// Resources, their Templates and Prompts are what servers list beside tools, in
// their own words but for a prompt's name.
func (s *Session) Resources() []json.RawMessage { return s.current().extras.resources }

// Templates are of resources.
func (s *Session) Templates() []json.RawMessage { return s.current().extras.templates }

// Prompts are listed under the names that Read takes.
func (s *Session) Prompts() []json.RawMessage { return s.current().extras.prompts }

// Reading is a request for something beside tools.
type Reading struct {
	Method    string // resources/read, prompts/get or completion/complete
	Name      string // a resource's URI or a prompt's name, as this session lists them
	Prompt    bool   // which of the two a completion is about
	Arguments json.RawMessage
	Extra     json.RawMessage // further members of a completion's params, without braces
	Caller    Caller
	Inputs    json.RawMessage
	State     string
}

// Read asks a server for a resource, a prompt or a completion, on the same road as
// a call. What failed is in Out.RPC.
func (s *Session) Read(ctx context.Context, in Reading) (*Out, error) {
	x := &s.current().extras
	at, ok := x.byPrompt[in.Name]
	if !in.Prompt {
		at, ok = x.resource(in.Name)
	}
	if !ok {
		return notThere(in), nil
	}
	if len(in.Arguments)+len(in.Extra)+len(in.Inputs) > MaxArguments {
		return &Out{IsError: true, RPC: &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: fmt.Sprintf("The arguments are larger than %d bytes.", MaxArguments)}}, nil
	}
	filter := filterResource
	if in.Prompt {
		filter = filterPrompt
	}
	g, denial, err := s.may(ctx, policy.Call, at, filter)
	switch {
	case err != nil:
		return nil, err
	case denial == nil:
	case denial.Kind == plane.NotFound:
		return notThere(in), nil
	default:
		s.markStale(at.conn, denial.Kind)
		out := &Out{IsError: true, Text: denial.Reason}
		if denial.Kind == plane.Unauthenticated {
			out.SignIn = at.conn
		}
		return out, nil
	}
	req := upstream.Request{Session: s.id, Method: in.Method, Name: at.name, Arguments: in.Arguments, Extra: in.Extra, Caller: in.Caller}
	if in.Method == mcp.MethodComplete {
		ref := map[string]string{"type": "ref/resource", "uri": at.name}
		if in.Prompt {
			ref = map[string]string{"type": "ref/prompt", "name": at.name}
		}
		b, _ := json.Marshal(ref) // strings always marshal
		req.Name, req.Extra = "", append(append([]byte(`"ref":`), b...), prefixed(in.Extra)...)
	}
	args := slices.Concat([]byte(in.Name), []byte{0}, in.Arguments, in.Extra)
	call := &plane.Call{ID: plane.NewCallID(s.b.Clock.Now()), Run: plane.RunID(s.id), Agent: s.o.Agent, Principal: s.o.Principal.ID,
		Connection: at.conn, Version: at.version, Server: at.server, Tool: in.Method, Alias: clipName(in.Name), Class: plane.Query, ArgsDigest: digestOf(args)}
	if in.State != "" {
		l, err := s.resume(in.State, in.Method, clipName(in.Name), at.conn, args)
		if err != nil {
			return &Out{IsError: true, RPC: badState(err)}, nil
		}
		call = l.call(s, at.server)
		req.Extra = l.extra(in.Inputs)
	}
	conn := g.Connection()
	leave, err := s.b.traffic.enter(s.b.Clock.Now(), s.bounds(s.current().agent, &conn, in.Method))
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.read(ctx, in, g, call, req, args)
}

// may decides about a resource or prompt, on a policy that is fresh.
func (s *Session) may(ctx context.Context, action policy.Action, at target, filter string) (policy.Grant, *policy.Denial, error) {
	if s.b.Fresh != nil {
		if err := s.b.Fresh(ctx); err != nil {
			return policy.Grant{}, nil, err
		}
	}
	snap := s.b.Policy()
	if conn, ok := snap.Connection(at.conn); !ok || conn.Out(filter+at.name) != "" {
		return policy.Grant{}, &policy.Denial{Kind: plane.NotFound, Reason: "There is no such resource here."}, nil
	}
	g, denial := snap.Decide(s.o.Principal, action, policy.Resource{Agent: s.o.Agent, Connection: at.conn, Version: at.version})
	return g, denial, nil
}

func (s *Session) read(ctx context.Context, in Reading, g policy.Grant, call *plane.Call, req upstream.Request, args []byte) (*Out, error) {
	t := s.travel(ctx, g, call, req)
	out := &Out{Call: call, Bytes: t.res.Bytes, Raw: t.res.Raw, Typed: t.res.Typed}
	switch {
	case t.ours != nil && !t.sent:
		t.end(out)
		return nil, t.ours
	case t.err != nil:
		out.IsError, out.Fault = true, faultOf(t.ending, t.err)
		out.RPC = theirError(t.err)
		if plane.KindOf(t.err) == plane.Unauthenticated {
			out.SignIn = call.Connection
		}
		if !t.sent && in.State != "" {
			t.end(out)
			return out, nil
		}
	case t.res.Asks:
		t.end(out)
		return out, s.wait(ctx, out, call, t.res, in.Method, args)
	case out.Raw == nil:
		out.IsError, out.Text = true, t.ending.Detail
	case s.results() == plane.Marked:
		out.Raw = markParts(call.Server, out.Raw)
	}
	if t.res.Raw != nil {
		call.Result = digestOf(t.res.Raw)
		conn := g.Connection()
		s.AddLabels(conn.Labels())
	}
	call.Bytes = t.res.Bytes
	t.end(out)
	return out, s.settle(ctx, In{}, out, call, t.ending)
}

// theirError is what a caller is told of a reading that failed: the server's own
// error where it gave one.
func theirError(err error) *mcp.RPCError {
	if e := mcp.AsError(err); e.RPC != nil && e.Ending.RPC {
		return e.RPC
	}
	return &mcp.RPCError{Code: mcp.CodeInternal, Message: plane.Sentence(err)}
}

func notThere(in Reading) *Out {
	what := "resource"
	if in.Prompt {
		what = "prompt"
	}
	data, _ := json.Marshal(map[string]string{"uri": in.Name}) // a string always marshals
	e := &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "There is no such " + what + " here.", Data: data}
	if !in.Prompt && !in.Caller.Modern {
		e.Code = mcp.CodeResourceNotFound
	}
	return &Out{IsError: true, RPC: e}
}

func prefixed(extra json.RawMessage) []byte {
	if len(extra) == 0 {
		return nil
	}
	return append([]byte{','}, extra...)
}

// clipName bounds a name that goes into the ledger.
func clipName(name string) string {
	text, _ := clipRunes(Visible(name), 256)
	return text
}

// markParts marks the texts of a resource or prompt as data, for callers that want
// that.
func markParts(server string, raw json.RawMessage) json.RawMessage {
	var body map[string]json.RawMessage
	if json.Unmarshal(raw, &body) != nil {
		return raw
	}
	mark := func(part map[string]json.RawMessage) {
		if text, ok := mcp.String(part["text"]); ok {
			b, _ := json.Marshal(Mark(server, Visible(text), "")) // a string always marshals
			part["text"] = b
		}
	}
	for key, inner := range map[string]string{"contents": "", "messages": "content"} {
		var list []map[string]json.RawMessage
		if body[key] == nil || json.Unmarshal(body[key], &list) != nil {
			continue
		}
		for _, part := range list {
			if inner == "" {
				mark(part)
				continue
			}
			var content map[string]json.RawMessage
			if json.Unmarshal(part[inner], &content) == nil {
				mark(content)
				part[inner], _ = json.Marshal(content) // it was JSON
			}
		}
		body[key], _ = json.Marshal(list) // so was this
	}
	out, err := json.Marshal(body)
	if err != nil {
		return raw
	}
	return out
}
