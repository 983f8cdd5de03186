package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

// Peer is what the other side of a session says of itself.
type Peer struct {
	Version      string
	Capabilities json.RawMessage // one JSON object: what it may be asked; nil for nothing
	LogLevel     string          // of the log messages it wants; empty for none
}

// Modern reports that the peer speaks the era without sessions.
func (p Peer) Modern() bool { return p.Version >= Version20260728 }

// Incoming is one request as it was read.
type Incoming struct {
	Method    string
	Name      string          // of a tool or prompt, or a resource's URI
	Arguments json.RawMessage // one JSON object, or nil
	Params    json.RawMessage // all of them: one JSON object, or nil
	Cursor    string
	Inputs    json.RawMessage // answers to what an earlier leg asked for (2026-07-28); nil for none
	State     string          // what that leg gave with it
	Peer      Peer
	HTTP      *http.Request

	// Progress and Notify send to the caller ahead of the answer, and Ask asks it
	// something meanwhile. Progress is nil where nobody listens, Ask where the caller
	// cannot be asked.
	Progress func(params json.RawMessage) // of a progress notification, whatever its token
	Notify   func(method string, params json.RawMessage)
	Ask      func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)

	// Typed is set by who serves the request when the result says its resultType, and
	// Asks when it wants input instead of being one.
	Typed, Asks bool
}

// params are the members of a request's params that the server reads.
type params struct {
	raw                               json.RawMessage
	bad                               bool
	name, uri, cursor, state          string
	version, level                    string // of _meta
	arguments, inputs, token, capable json.RawMessage
}

// read takes them in one pass; raw was checked with its message.
func (p *params) read(raw json.RawMessage) {
	if len(raw) == 0 || raw[0] != '{' {
		return
	}
	p.raw = raw
	object := func(into *json.RawMessage, v []byte) {
		if v[0] != '{' {
			p.bad = p.bad || string(v) != "null"
			return
		}
		*into = v
	}
	err := topMembers(raw, func(k string, v []byte) {
		switch k {
		case "name":
			p.name, _ = String(v)
		case "uri":
			p.uri, _ = String(v)
		case "cursor":
			p.cursor, _ = String(v)
		case "requestState":
			p.state, _ = String(v)
		case "arguments":
			object(&p.arguments, v)
		case "inputResponses":
			object(&p.inputs, v)
		case "_meta":
			if v[0] == '{' {
				p.readMeta(v)
			}
		}
	})
	p.bad = p.bad || err != nil
}

func (p *params) readMeta(meta json.RawMessage) {
	p.bad = topMembers(meta, func(k string, v []byte) {
		switch k {
		case "progressToken":
			if v[0] == '"' || validID(v) && string(v) != "null" {
				p.token = v
			}
		case metaVersion:
			p.version, _ = String(v)
		case metaLogLevel:
			p.level, _ = String(v)
		case metaCapabilities:
			if v[0] == '{' {
				p.capable = v
			}
		}
	}) != nil || p.bad
}

// named is what the method's request is about, and whether it must say so.
func (p *params) named(method string) (name string, must bool) {
	switch method {
	case MethodToolsCall, MethodPromptsGet:
		return p.name, true
	case MethodResourcesRead, MethodSubscribe, MethodUnsubscribe:
		return p.uri, true
	}
	return "", false
}

// serve hands a request to the handler and its answer to the caller: as JSON,
// unless something had to be said before.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, m *Message, p *params, peer Peer) {
	modern := peer.Modern()
	in := &Incoming{Method: m.Method, Params: p.raw, Arguments: p.arguments, Cursor: p.cursor, Peer: peer, HTTP: r}
	var must bool
	if in.Name, must = p.named(m.Method); must && in.Name == "" || p.bad || len(in.Name) > maxName {
		writeError(w, statusOf(CodeInvalidParams, modern), m.ID, &RPCError{Code: CodeInvalidParams, Message: "The params are not what " + m.Method + " takes: a name or uri, and arguments that are an object."})
		return
	}
	st := &stream{w: w}
	ctx := r.Context()
	if modern {
		in.Inputs, in.State = p.inputs, p.state
	} else {
		// A client that goes away has not cancelled (2025-11-25, transports, "sending
		// messages"); what it started ends, and is on record.
		var cancel context.CancelFunc
		if ctx = context.WithoutCancel(ctx); s.Life != nil {
			ctx = outliving{s.Life, ctx}
		}
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		if session := r.Header.Get(headerSession); session != "" {
			defer s.clients.fly(flight{session, string(m.ID)}, cancel)()
			if s.Sessions {
				in.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError) {
					return s.ask(ctx, r.Context(), session, st, method, params)
				}
			}
		}
	}
	if len(p.token) > 0 {
		in.Progress = func(params json.RawMessage) { st.notify(MethodProgress, retoken(params, p.token)) }
	}
	in.Notify = st.notify
	result, rpcErr := s.handle(ctx, in)
	if rpcErr == nil && !in.Asks {
		result = fit(result, m.Method, modern, in.Typed)
	}
	st.answer(m.ID, result, rpcErr, modern)
}

// outliving ends with a life, and has the values of a request.
type outliving struct {
	context.Context
	request context.Context
}

// Value asks the life first: what cancels it is found there, so that deriving from this
// costs no goroutine.
func (o outliving) Value(key any) any {
	if v := o.Context.Value(key); v != nil {
		return v
	}
	return o.request.Value(key)
}

// maxName bounds the names of tools and prompts, and URIs.
const maxName = 8 << 10

// handle serves a request by whichever of the two a server was given.
func (s *Server) handle(ctx context.Context, in *Incoming) (json.RawMessage, *RPCError) {
	if s.Handler != nil {
		return s.Handler.Serve(ctx, in)
	}
	switch in.Method {
	case MethodToolsList:
		tools, err := s.Tools.Tools(ctx, in.HTTP)
		if err != nil {
			return nil, internalError(err)
		}
		return ListOf("tools", tools, ""), nil
	case MethodToolsCall:
		return s.Tools.CallTool(ctx, in)
	}
	return nil, NotOffered()
}

// NotOffered refuses a method.
func NotOffered() *RPCError {
	return &RPCError{Code: CodeMethodNotFound, Message: "The method is not offered here."}
}

// ListOf is the result of a list method: the items under their name, and the
// cursor of the next page where there is one.
func ListOf(what string, items []json.RawMessage, next string) json.RawMessage {
	n := len(what) + len(next) + 64
	for _, t := range items {
		n += len(t) + 1
	}
	out := append(make([]byte, 0, n), `{"`...)
	out = append(append(out, what...), `":[`...)
	for i, t := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, t...)
	}
	out = append(out, ']')
	if next != "" {
		out = appendString(append(out, `,"nextCursor":`...), next)
	}
	return append(out, '}')
}

// retoken puts the caller's own token into the params of a progress notification.
func retoken(params, token json.RawMessage) json.RawMessage {
	out := append(append(make([]byte, 0, len(params)+len(token)+32), `{"progressToken":`...), token...)
	if len(params) == 0 || params[0] != '{' {
		return append(out, '}')
	}
	err := topMembers(params, func(k string, v []byte) {
		if k != "progressToken" {
			out = append(append(appendString(append(out, ','), k), ':'), v...)
		}
	})
	if err != nil {
		return append(append(append(out[:0], `{"progressToken":`...), token...), '}')
	}
	return append(out, '}')
}

// cacheable are the methods whose results carry caching hints in 2026-07-28.
func cacheable(method string) bool {
	switch method {
	case MethodToolsList, MethodResourcesList, MethodTemplatesList, MethodPromptsList, MethodResourcesRead, MethodDiscover:
		return true
	}
	return false
}

// WithMembers puts members in front of an object's own.
func WithMembers(result json.RawMessage, members string) json.RawMessage {
	if len(result) < 2 || result[0] != '{' {
		return result
	}
	out := append(append(make([]byte, 0, len(result)+len(members)+2), '{'), members...)
	if len(bytes.TrimSpace(result[1:len(result)-1])) > 0 {
		out = append(out, ',')
	}
	return append(out, result[1:]...)
}

// SetMember gives a member of an object, which was checked already, another value:
// a string.
func SetMember(object json.RawMessage, name, value string) json.RawMessage {
	return WithMembers(without(object, name), string(appendString(append(appendString(nil, name), ':'), value)))
}

// without leaves members of an object out.
func without(result json.RawMessage, names ...string) json.RawMessage {
	out := append(make([]byte, 0, len(result)), '{')
	err := topMembers(result, func(k string, v []byte) {
		for _, n := range names {
			if k == n {
				return
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(appendString(out, k), ':'), v...)
	})
	if err != nil {
		return result
	}
	return append(out, '}')
}
