package ingress

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// unsubscribeTime is how long the end of a subscription may take.
const unsubscribeTime = 5 * time.Second

// Serve takes one request of a client to what its agent may use.
func (a *Agents) Serve(ctx context.Context, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	switch in.Method {
	case mcp.MethodToolsList, mcp.MethodResourcesList, mcp.MethodTemplatesList, mcp.MethodPromptsList,
		mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet, mcp.MethodComplete, mcp.MethodSubscribe, mcp.MethodUnsubscribe:
	default:
		return nil, mcp.NotOffered()
	}
	s, done, err := a.session(in.HTTP)
	if err != nil {
		return nil, rpcError(err)
	}
	defer done()
	switch in.Method {
	case mcp.MethodToolsCall:
		return a.call(ctx, s, in)
	case mcp.MethodResourcesRead, mcp.MethodPromptsGet, mcp.MethodComplete:
		return a.read(ctx, s, in)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		if err := s.Subscribe(ctx, in.Name, in.Method == mcp.MethodSubscribe); err != nil {
			return nil, rpcError(err)
		}
		return json.RawMessage(`{}`), nil
	}
	page, err := s.Page(in.Method, in.Cursor)
	if err != nil {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: plane.Public(err).Message}
	}
	return page, nil
}

// callerFor is what the client of a request can take ahead of the answer.
func callerFor(in *mcp.Incoming) bridge.Caller {
	f := flagsOf(in.Peer.Capabilities)
	c := bridge.Caller{Modern: in.Peer.Modern(), Capabilities: capabilities[f], Elicits: f&mayElicit != 0, LogLevel: in.Peer.LogLevel, Progress: in.Progress}
	if !c.Modern || c.LogLevel != "" {
		c.Log = func(params json.RawMessage) { in.Notify(mcp.MethodLog, params) }
	}
	if in.Ask != nil && f != 0 {
		c.Ask = func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *mcp.RPCError) {
			if !mayAsk(f, method, params) {
				return nil, mcp.NotOffered()
			}
			return in.Ask(ctx, method, params)
		}
	}
	return c
}

// call takes a tool call down the road. What was refused or failed before the server
// answered is a tool error: a model can read it.
func (a *Agents) call(ctx context.Context, s *bridge.Session, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	tool, ok := s.Tool(in.Name)
	if !ok {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "There is no tool of that name here."}
	}
	if in.Peer.Modern() {
		if e := mcp.CheckParamHeaders(in.HTTP.Header, in.Arguments, tool.Definition.ParamHeaders); e != nil {
			return nil, e
		}
	}
	out, err := s.Call(ctx, bridge.In{Alias: in.Name, Arguments: in.Arguments, Caller: callerFor(in), Inputs: in.Inputs, State: in.State})
	switch {
	case err != nil:
		return nil, rpcError(err)
	case out.RPC != nil:
		return nil, out.RPC
	case out.SignIn != "":
		return a.signIn(in, out)
	case out.Raw != nil:
		in.Typed, in.Asks = out.Typed, out.Asks
		return out.Raw, nil
	}
	return inWords(out), nil
}

// read takes a request for a resource, a prompt or a completion down the same road.
func (a *Agents) read(ctx context.Context, s *bridge.Session, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	r := bridge.Reading{Method: in.Method, Name: in.Name, Prompt: in.Method == mcp.MethodPromptsGet, Arguments: in.Arguments, Caller: callerFor(in),
		Inputs: in.Inputs, State: in.State}
	if in.Method == mcp.MethodComplete {
		var err error
		if r.Name, r.Prompt, r.Extra, err = completion(in.Params); err != nil {
			return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: plane.Public(err).Message}
		}
	}
	out, err := s.Read(ctx, r)
	switch {
	case err != nil:
		return nil, rpcError(err)
	case out.SignIn != "":
		result, rpcErr := a.signIn(in, out)
		if rpcErr == nil && !in.Typed { // a tool error is no form of these
			rpcErr = &mcp.RPCError{Code: mcp.CodeInternal, Message: a.signInText(out)}
		}
		return result, rpcErr
	case out.RPC != nil:
		return nil, out.RPC
	case out.Raw == nil:
		return nil, &mcp.RPCError{Code: mcp.CodeInternal, Message: out.Text}
	}
	in.Typed, in.Asks = out.Typed, out.Asks
	return out.Raw, nil
}

// completion reads what a completion is about; extra are its other members.
func completion(params json.RawMessage) (name string, prompt bool, extra json.RawMessage, err error) {
	bad := plane.Errorf(plane.InvalidInput, "completion/complete needs a ref and an argument.")
	var p struct {
		Ref struct {
			Type string `json:"type"`
			Name string `json:"name"`
			URI  string `json:"uri"`
		} `json:"ref"`
		Argument json.RawMessage `json:"argument"`
		Context  json.RawMessage `json:"context"`
	}
	if json.Unmarshal(params, &p) != nil || len(p.Argument) == 0 || p.Argument[0] != '{' {
		return "", false, nil, bad
	}
	extra = append([]byte(`"argument":`), p.Argument...)
	if len(p.Context) > 0 && p.Context[0] == '{' {
		extra = append(append(extra, `,"context":`...), p.Context...)
	}
	switch {
	case p.Ref.Type == "ref/prompt" && p.Ref.Name != "":
		return p.Ref.Name, true, extra, nil
	case p.Ref.Type == "ref/resource" && p.Ref.URI != "":
		return p.Ref.URI, false, extra, nil
	}
	return "", false, nil, bad
}

// signIn tells a client that a person has to sign the connection in: by a URL that
// it shows, where it can, else in words.
func (a *Agents) signIn(in *mcp.Incoming, out *bridge.Out) (json.RawMessage, *mcp.RPCError) {
	link := ""
	if a.o.Link != nil {
		link = a.o.Link(out.SignIn)
	}
	if link == "" || flagsOf(in.Peer.Capabilities)&mayElicitURL == 0 {
		out.Next = strings.TrimSpace(out.Next + " " + link)
		return inWords(out), nil
	}
	ask := map[string]string{"mode": "url", "elicitationId": string(out.SignIn), "url": link, "message": out.Text}
	if in.Peer.Modern() {
		b, _ := json.Marshal(map[string]any{"resultType": "input_required", // strings always marshal
			"inputRequests": map[string]any{"sign_in": map[string]any{"method": mcp.MethodElicit, "params": ask}}})
		in.Typed, in.Asks = true, true
		return b, nil
	}
	data, _ := json.Marshal(map[string]any{"elicitations": []any{ask}}) // so do these
	return nil, &mcp.RPCError{Code: mcp.CodeElicitationNeeded, Message: out.Text, Data: data}
}

func (a *Agents) signInText(out *bridge.Out) string {
	return strings.TrimSpace(out.Text + " " + out.Next)
}

// Subscribe holds the subscriptions of a modern client's stream.
func (a *Agents) Subscribe(r *http.Request, uris []string) (end func()) {
	s, done, err := a.session(r)
	if err != nil {
		return func() {}
	}
	var held []string
	for _, uri := range uris {
		if s.Subscribe(r.Context(), uri, true) == nil {
			held = append(held, uri)
		}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), unsubscribeTime)
		defer cancel()
		for _, uri := range held {
			if err := s.Subscribe(ctx, uri, false); err != nil {
				break // the session ends some time
			}
		}
		done()
	}
}

// elsewhere passes on what is about a request that another replica holds.
func (a *Agents) elsewhere(r *http.Request, about string, body []byte) error {
	to, _, asked := strings.Cut(about, "-") // ids of questions begin with who asks
	if a.o.Pass == nil || asked && to == a.o.Replica {
		if asked {
			return plane.Errorf(plane.Gone, "Nothing here waits for this answer any more.")
		}
		return nil
	}
	return a.o.Pass(r.Context(), to, callerOf(r).agent, r.Header.Get("Mcp-Session-Id"), body)
}

// Hear takes in what another replica passed, and reports whether it is about a request
// here.
func (a *Agents) Hear(agent, session string, message []byte) bool {
	s := a.servers()[agent]
	if s == nil {
		return false
	}
	m, err := mcp.ReadMessage(message, mcp.Strict)
	return err == nil && s.Aside(session, &m)
}

// inWords is a call that ended in words of ours, or in the server's marked as data,
// as a result; it names the call where there is one.
func inWords(out *bridge.Out) json.RawMessage {
	text := out.Text
	if out.Next != "" {
		text += " Next: " + out.Next
	}
	body := map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}, "isError": out.IsError}
	switch {
	case out.Call != nil && out.IsError:
		body["_meta"] = map[string]string{"patchbay/call": string(out.Call.ID), "patchbay/state": string(out.Call.State)}
	case out.Limit != nil:
		body["_meta"] = map[string]any{"patchbay/limit": out.Limit.Limit, "patchbay/retry_after": out.Limit.RetryAfter.Seconds()}
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
