package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Listing is a server's list with its own bytes.
type Listing struct {
	Tools []json.RawMessage
	Notes []string // why the list is not whole
}

// ListTools follows the pages to the caps. A repeated cursor ends the listing;
// the page it led to is not added twice.
func (c *Client) ListTools(ctx context.Context) (Listing, error) {
	return c.list(ctx, MethodToolsList, "tools")
}

// Extras are what a server lists beside its tools.
type Extras struct {
	Resources, Templates, Prompts []json.RawMessage
	Notes                         []string
}

// ListExtras lists resources and prompts where the server says that it has any. A
// list that it does not give is a note.
func (c *Client) ListExtras(ctx context.Context) (Extras, error) {
	var out Extras
	for _, k := range []struct {
		has          bool
		method, what string
		into         *[]json.RawMessage
	}{{c.hasResources, MethodResourcesList, "resources", &out.Resources}, {c.hasResources, MethodTemplatesList, "resourceTemplates", &out.Templates},
		{c.hasPrompts, MethodPromptsList, "prompts", &out.Prompts}} {
		if !k.has {
			continue
		}
		l, err := c.list(ctx, k.method, k.what)
		if err != nil {
			if ctx.Err() != nil {
				return out, err
			}
			if e := AsError(err).Ending; k.method != MethodTemplatesList || !e.RPC || e.RPCCode != CodeMethodNotFound { // many have none
				out.Notes = append(out.Notes, "The server did not list its "+k.what+".")
			}
			continue
		}
		*k.into, out.Notes = l.Tools, append(out.Notes, l.Notes...)
	}
	return out, nil
}

func (c *Client) list(ctx context.Context, method, what string) (Listing, error) {
	var l Listing
	seen := map[string]bool{}
	cursor, has := "", false
	for page := 0; ; page++ {
		if page == c.o.Bounds.Pages {
			l.Notes = append(l.Notes, fmt.Sprintf("The list of %s was cut after %d pages (catalog_pages).", what, page))
			return l, nil
		}
		next, more, err := c.listPage(ctx, &l, method, what, cursor, has)
		if err != nil {
			return Listing{}, err
		}
		if len(l.Tools) > c.o.Bounds.Tools {
			l.Notes = append(l.Notes, fmt.Sprintf("The list was cut at %d %s (catalog_tools).", c.o.Bounds.Tools, what))
			l.Tools = l.Tools[:c.o.Bounds.Tools]
			return l, nil
		}
		// An empty cursor ends a legacy list and is a real one in 2026-07-28.
		if !more || next == "" && c.era == EraLegacy {
			return l, nil
		}
		if seen[next] || has && next == cursor {
			l.Notes = append(l.Notes, "The server's pages repeat; the list was ended there.")
			return l, nil
		}
		seen[next] = true
		cursor, has = next, true
	}
}

func (c *Client) listPage(ctx context.Context, l *Listing, method, what, cursor string, has bool) (next string, more bool, err error) {
	params := []byte{'{'}
	if c.era == EraModern {
		params = append(append(append(params, `"_meta":{`...), c.meta...), '}')
	}
	if has {
		if len(params) > 1 {
			params = append(params, ',')
		}
		params = appendString(append(params, `"cursor":`...), cursor)
	}
	m, err := c.do(ctx, exchange{method: method, params: append(params, '}'), modern: c.era == EraModern, first: c.o.Bounds.Header})
	if err != nil {
		return "", false, err
	}
	bad := func(err error) error {
		return fault(plane.FaultProtocol, "The server's list of "+what+" cannot be read.", err)
	}
	found := false
	err = Members(m.Result, Answer, func(key string, v []byte) error {
		switch key {
		case what:
			found = true
			return Elements(v, Answer, func(item []byte) error {
				l.Tools = append(l.Tools, bytes.Clone(item))
				return nil
			})
		case "nextCursor":
			next, more = String(v)
		}
		return nil
	})
	if err != nil || !found {
		return "", false, bad(err)
	}
	return next, more, nil
}

// Call is one request that a server serves for a caller. Arguments are spliced as
// they are: they must be one JSON object that Check accepts.
type Call struct {
	Method    string // tools/call when empty
	Name      string // of a tool or prompt, or a resource's URI
	Arguments json.RawMessage
	Headers   []plane.ParamHeader // arguments mirrored into headers
	Trace     string              // W3C traceparent; empty for none
	Key       string              // idempotency key; empty for none
	Extra     json.RawMessage     // further members of params, without braces
	LogLevel  string              // of the log messages that are wanted meanwhile

	// Capabilities are what the server may ask in the modern era; nil for what
	// Options say.
	Capabilities json.RawMessage

	// What comes ahead of the answer. Nil for nobody.
	Progress func(params json.RawMessage)
	Log      func(params json.RawMessage)
	Ask      func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)
}

// Reply is what the server answered to a call, with its own bytes.
type Reply struct {
	Result     json.RawMessage
	IsError    bool
	NeedsInput bool // 2026-07-28: resultType input_required
	Typed      bool // it says its resultType
	Spelled    bool // strings hold escapes that may stand for plain characters
}

// Call sends one call, once. A failure is an *Error whose Ending says what is
// known of the call.
func (c *Client) Call(ctx context.Context, call Call) (Reply, error) {
	modern := c.era == EraModern
	if call.Method == "" {
		call.Method = MethodToolsCall
	}
	if !modern && call.LogLevel != "" {
		c.wantLevel(ctx, call.LogLevel)
	}
	ex := exchange{method: call.Method, params: c.callParams(&call), name: call.Name, modern: modern, first: c.o.Bounds.Idle, answers: true,
		progress: call.Progress, log: call.Log, ask: call.Ask}
	if modern && len(call.Headers) > 0 {
		ex.extra = paramHeaders(call.Arguments, call.Headers)
	}
	m, err := c.do(ctx, ex)
	if err != nil {
		return Reply{}, err
	}
	return Reply{Result: m.Result, IsError: m.isError, NeedsInput: m.needsInput, Typed: m.typed, Spelled: m.spelled}, nil
}

// callParams writes the params of a call; _meta, where there is one, stands first.
func (c *Client) callParams(call *Call) []byte {
	modern := c.era == EraModern
	size := len(call.Name) + len(call.Arguments) + len(call.Extra) + len(c.meta) + len(call.Capabilities) + 160
	out := append(make([]byte, 0, size), '{')
	open := len(out)
	comma := func() {
		if len(out) > open {
			out = append(out, ',')
		}
	}
	if modern || call.Trace != "" || call.Key != "" {
		out = append(out, `"_meta":{`...)
		open = len(out)
		switch {
		case modern && call.Capabilities != nil:
			out = append(append(append(out, c.metaHead...), call.Capabilities...), c.metaTail...)
		case modern:
			out = append(out, c.meta...)
		}
		if modern && call.LogLevel != "" {
			out = append(out, `,"`+metaLogLevel+`":`...)
			out = appendString(out, call.LogLevel)
		}
		if call.Trace != "" {
			comma()
			out = appendString(append(out, `"traceparent":`...), call.Trace)
		}
		if call.Key != "" {
			comma()
			out = appendString(append(out, `"`+metaKey+`":`...), call.Key)
		}
		out = append(out, '}')
		open = 1
	}
	if call.Name != "" {
		comma()
		key := `"name":`
		if call.Method != MethodToolsCall && call.Method != MethodPromptsGet {
			key = `"uri":`
		}
		out = appendString(append(out, key...), call.Name)
	}
	if len(call.Arguments) > 0 {
		comma()
		out = append(append(out, `"arguments":`...), call.Arguments...)
	}
	if len(call.Extra) > 0 {
		comma()
		out = append(out, call.Extra...)
	}
	return append(out, '}')
}

// wantLevel asks a legacy server for log messages, once for each level.
func (c *Client) wantLevel(ctx context.Context, level string) {
	c.levelMu.Lock()
	defer c.levelMu.Unlock()
	if !c.hasLogging || c.level == level {
		return
	}
	params := appendString([]byte(`{"level":`), level)
	if _, err := c.Request(ctx, MethodSetLevel, "", append(params, '}')); err == nil || AsError(err).Ending.RPC {
		c.level = level // a server that refuses is not asked again
	}
}

// topMembers visits the members of an object that was checked already.
func topMembers(b []byte, fn func(key string, value []byte)) error {
	s := scan(b, Answer)
	defer s.done()
	return s.object(func(key string, value []byte) error { fn(key, value); return nil })
}

// paramHeaders takes the mirrored arguments out of the arguments.
func paramHeaders(args json.RawMessage, hs []plane.ParamHeader) http.Header {
	out := http.Header{}
	for _, h := range hs {
		raw := []byte(args)
		for _, p := range h.Path {
			var found []byte
			if len(raw) == 0 || raw[0] != '{' || Members(raw, Strict, func(k string, v []byte) error {
				if k == p {
					found = v
				}
				return nil
			}) != nil {
				raw = nil
				break
			}
			raw = found
		}
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		text := string(raw)
		if s, ok := String(raw); ok {
			text = s
		}
		out[http.CanonicalHeaderKey(headerParam+h.Name)] = []string{encodeHeader(text)}
	}
	return out
}

// CheckParamHeaders compares the mirrored arguments of a request with those in its
// body (2026-07-28, transports, "custom headers from tool parameters").
func CheckParamHeaders(got http.Header, args json.RawMessage, hs []plane.ParamHeader) *RPCError {
	if len(hs) == 0 {
		return nil
	}
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	want := paramHeaders(args, hs)
	for _, h := range hs {
		key := http.CanonicalHeaderKey(headerParam + h.Name)
		said, ok := decodeHeader(got.Get(key))
		meant, _ := decodeHeader(want.Get(key)) // ours
		if !ok || said != meant || (got[key] == nil) != (want[key] == nil) || len(got[key]) > 1 {
			return &RPCError{Code: CodeHeaderMismatch, Message: headerParam + h.Name + " does not say what the body does."}
		}
	}
	return nil
}

const (
	sentinelOpen  = "=?base64?"
	sentinelClose = "?="
)

// encodeHeader writes a value as it is where a header can carry it, else in the
// base64 sentinel (2026-07-28, transports, "value encoding").
func encodeHeader(v string) string {
	plain := strings.TrimSpace(v) == v && !(strings.HasPrefix(v, sentinelOpen) && strings.HasSuffix(v, sentinelClose))
	for i := 0; plain && i < len(v); i++ {
		plain = v[i] >= 0x20 && v[i] < 0x7f
	}
	if plain {
		return v
	}
	return sentinelOpen + base64.StdEncoding.EncodeToString([]byte(v)) + sentinelClose
}

func decodeHeader(v string) (string, bool) {
	inner, ok := strings.CutPrefix(v, sentinelOpen)
	if !ok {
		return v, true
	}
	if inner, ok = strings.CutSuffix(inner, sentinelClose); !ok {
		return v, true
	}
	b, err := base64.StdEncoding.DecodeString(inner)
	return string(b), err == nil
}

// ParamHeaders reads the x-mcp-header annotations of an input schema. An
// invalid one makes the tool unusable in 2026-07-28, and is an error.
func ParamHeaders(schema json.RawMessage) ([]plane.ParamHeader, error) {
	if !bytes.Contains(schema, []byte("x-mcp-header")) {
		return nil, nil
	}
	var out []plane.ParamHeader
	seen := map[string]bool{}
	err := collectHeaders(schema, nil, seen, &out)
	return out, err
}

func collectHeaders(schema json.RawMessage, path []string, seen map[string]bool, out *[]plane.ParamHeader) error {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		prop := s.Properties[name]
		here := append(append([]string(nil), path...), name)
		var p struct {
			Type   json.RawMessage  `json:"type"`
			Header *json.RawMessage `json:"x-mcp-header"`
		}
		if json.Unmarshal(prop, &p) != nil {
			continue
		}
		if p.Header != nil {
			kind, _ := String(p.Type)
			h, ok := String(*p.Header)
			switch {
			case !ok || !token(h):
				return fmt.Errorf("x-mcp-header of %q is not a header name", name)
			case kind != "string" && kind != "integer" && kind != "boolean":
				return fmt.Errorf("x-mcp-header of %q stands on a value that is no string, integer or boolean", name)
			case seen[strings.ToLower(h)]:
				return fmt.Errorf("x-mcp-header %q stands twice", h)
			}
			seen[strings.ToLower(h)] = true
			*out = append(*out, plane.ParamHeader{Path: here, Name: h, Type: kind})
		}
		if err := collectHeaders(prop, here, seen, out); err != nil {
			return err
		}
	}
	return nil
}

// token reports an HTTP field name (RFC 9110 §5.6.2).
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// Request sends any other method and returns its result. params is one JSON
// object without _meta; name is what the modern era mirrors into Mcp-Name.
func (c *Client) Request(ctx context.Context, method, name string, params json.RawMessage) (json.RawMessage, error) {
	inner := bytes.TrimSpace(params)
	if len(inner) < 2 || inner[0] != '{' || inner[len(inner)-1] != '}' {
		inner = []byte("{}")
	}
	modern := c.era == EraModern
	if modern {
		out := append(append([]byte(`{"_meta":{`), c.meta...), '}')
		if rest := bytes.TrimSpace(inner[1 : len(inner)-1]); len(rest) > 0 {
			out = append(append(out, ','), rest...)
		}
		inner = append(out, '}')
	}
	m, err := c.do(ctx, exchange{method: method, params: inner, name: name, modern: modern, first: c.o.Bounds.Header})
	return m.Result, err
}
