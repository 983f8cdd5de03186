package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"patchbay/internal/plane"
)

// ToolSet is what a Server offers. Definitions are sent as they are, in the
// order given; a result must be a JSON object.
type ToolSet interface {
	Tools(ctx context.Context, r *http.Request) ([]json.RawMessage, error)
	CallTool(ctx context.Context, call *Incoming) (json.RawMessage, *RPCError)
}

// Incoming is a tools/call as it was read.
type Incoming struct {
	Name      string
	Arguments json.RawMessage // one JSON object, or nil
	Version   string
	HTTP      *http.Request
	Progress  func(done, total float64, message string) // nil when nobody listens
}

// Server is the server half, tools only, for both eras at one URL. Requests are
// read strictly. Origin and Host are the listener's business.
type Server struct {
	Info         Implementation
	Instructions string
	Tools        ToolSet
	Sessions     bool   // assign a session id to legacy clients
	Keeper       Keeper // of session ids; nil keeps them in memory
	MaxBody      int    // bytes of a request; 0 for 4 MiB
	MaxSessions  int    // 0 for 1,000; over it the oldest ends

	mu        sync.Mutex
	sessions  []string
	listeners map[chan struct{}]struct{}
}

// Keeper makes the session ids of legacy clients and knows them again.
type Keeper interface {
	Begin(r *http.Request) (id string, err error)
	Known(r *http.Request, id string) bool
	End(r *http.Request, id string)
}

const (
	defaultMaxBody     = 4 << 20
	defaultMaxSessions = 1000
	maxListeners       = 1000
)

// ServeHTTP serves the endpoint.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		s.post(w, r)
	case http.MethodGet:
		s.listenLegacy(w, r)
	case http.MethodDelete:
		s.end(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

// ListChanged tells every listener that the list changed.
func (s *Server) ListChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.listeners {
		select {
		case ch <- struct{}{}:
		default: // it has one to read already
		}
	}
}

func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	limit := s.MaxBody
	if limit == 0 {
		limit = defaultMaxBody
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(limit)))
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			writeError(w, http.StatusRequestEntityTooLarge, nil, &RPCError{Code: CodeInvalidRequest, Message: "The request is too large."})
		}
		return
	}
	m, err := ReadMessage(body, Strict)
	if err != nil {
		writeError(w, http.StatusBadRequest, nil, &RPCError{Code: CodeParse, Message: "The request is not one JSON-RPC message."})
		return
	}
	if m.IsAnswer() || !m.HasID() {
		w.WriteHeader(http.StatusAccepted) // nothing here waits for one
		return
	}
	if modernRequest(r, &m) {
		s.modern(w, r, &m)
		return
	}
	s.legacy(w, r, &m)
}

// modernRequest decides the era of a request: by header, or by what only the
// modern era puts in a body.
func modernRequest(r *http.Request, m *Message) bool {
	if v := r.Header.Get(headerProtocol); v != "" {
		return v >= Version20260728
	}
	if r.Header.Get(headerSession) != "" {
		return false
	}
	return m.Method == methodDiscover || metaString(m.Params, metaVersion) != ""
}

func metaString(params json.RawMessage, key string) (found string) {
	if len(params) == 0 || params[0] != '{' {
		return ""
	}
	topMembers(params, func(k string, meta []byte) { // params were checked with the message
		if k == "_meta" && meta[0] == '{' {
			topMembers(meta, func(k string, v []byte) {
				if k == key {
					found, _ = String(v)
				}
			})
		}
	})
	return found
}

func (s *Server) legacy(w http.ResponseWriter, r *http.Request, m *Message) {
	if m.Method == methodInitialize {
		s.initialize(w, r, m)
		return
	}
	if v := r.Header.Get(headerProtocol); v != "" && v != Version20250618 && v != Version20251125 {
		writeError(w, http.StatusBadRequest, m.ID, &RPCError{Code: CodeInvalidRequest, Message: "The protocol version is not spoken here."})
		return
	}
	if s.Sessions && !s.knows(r) {
		writeError(w, http.StatusNotFound, m.ID, &RPCError{Code: CodeInvalidRequest, Message: "The session is not known; start anew."})
		return
	}
	switch m.Method {
	case methodPing:
		writeResult(w, m.ID, json.RawMessage(`{}`))
	case methodToolsList:
		s.list(w, r, m, "")
	case methodToolsCall:
		s.call(w, r, m, r.Header.Get(headerProtocol))
	default:
		writeError(w, http.StatusOK, m.ID, &RPCError{Code: CodeMethodNotFound, Message: "The method is not offered here."})
	}
}

func (s *Server) initialize(w http.ResponseWriter, r *http.Request, m *Message) {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || p.ProtocolVersion == "" {
		writeError(w, http.StatusOK, m.ID, &RPCError{Code: CodeInvalidParams, Message: "initialize needs a protocolVersion."})
		return
	}
	version := Version20251125
	if p.ProtocolVersion == Version20250618 {
		version = Version20250618
	}
	switch {
	case s.Sessions && s.Keeper != nil:
		id, err := s.Keeper.Begin(r)
		if err != nil {
			writeError(w, http.StatusOK, m.ID, internalError(err))
			return
		}
		w.Header().Set(headerSession, id)
	case s.Sessions:
		id := string(plane.NewSessionID(plane.SystemClock{}.Now()))
		s.mu.Lock()
		limit := s.MaxSessions
		if limit == 0 {
			limit = defaultMaxSessions
		}
		if len(s.sessions) >= limit {
			s.sessions = slices.Delete(s.sessions, 0, 1)
		}
		s.sessions = append(s.sessions, id)
		s.mu.Unlock()
		w.Header().Set(headerSession, id)
	}
	writeResult(w, m.ID, s.describe(fmt.Sprintf(`"protocolVersion":%q`, version)))
}

// describe is the body that initialize and server/discover share.
func (s *Server) describe(first string) json.RawMessage {
	info, _ := json.Marshal(s.Info)                 // two strings always marshal
	instructions, _ := json.Marshal(s.Instructions) // so does one
	out := fmt.Appendf(nil, `{%s,"capabilities":{"tools":{"listChanged":true}},"serverInfo":%s`, first, info)
	if s.Instructions != "" {
		out = fmt.Appendf(out, `,"instructions":%s`, instructions)
	}
	return append(out, '}')
}

// knows says whether a request's session is one of ours.
func (s *Server) knows(r *http.Request) bool {
	if id := r.Header.Get(headerSession); s.Keeper != nil {
		return s.Keeper.Known(r, id)
	} else {
		return s.known(id)
	}
}

func (s *Server) known(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return id != "" && slices.Contains(s.sessions, id)
}

func (s *Server) end(w http.ResponseWriter, r *http.Request) {
	if !s.knows(r) {
		http.Error(w, "the session is not known", http.StatusNotFound)
		return
	}
	if id := r.Header.Get(headerSession); s.Keeper != nil {
		s.Keeper.End(r, id)
	} else {
		s.DropSession(id)
	}
	w.WriteHeader(http.StatusNoContent)
}

// DropSession forgets a session; "" forgets all of them.
func (s *Server) DropSession(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = slices.DeleteFunc(s.sessions, func(x string) bool { return id == "" || x == id })
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, m *Message, extra string) {
	tools, err := s.Tools.Tools(r.Context(), r)
	if err != nil {
		writeError(w, http.StatusOK, m.ID, internalError(err))
		return
	}
	out := append([]byte(`{`), extra...)
	out = append(out, `"tools":[`...)
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, t...)
	}
	writeResult(w, m.ID, append(out, ']', '}'))
}

func internalError(err error) *RPCError {
	return &RPCError{Code: CodeInternal, Message: plane.Public(err).Message}
}

// call runs a tool. The answer is JSON unless the caller asked for progress.
func (s *Server) call(w http.ResponseWriter, r *http.Request, m *Message, version string) {
	in := &Incoming{Version: version, HTTP: r}
	var token json.RawMessage
	bad := func(msg string) {
		writeError(w, http.StatusOK, m.ID, &RPCError{Code: CodeInvalidParams, Message: msg})
	}
	if len(m.Params) == 0 || m.Params[0] != '{' {
		bad("tools/call needs params.")
		return
	}
	argsOK := true
	err := topMembers(m.Params, func(key string, v []byte) {
		switch key {
		case "name":
			in.Name, _ = String(v)
		case "arguments":
			argsOK = v[0] == '{'
			in.Arguments = v
		case "_meta":
			if v[0] == '{' {
				topMembers(v, func(k string, mv []byte) {
					if k == "progressToken" {
						token = mv
					}
				})
			}
		}
	})
	if err != nil || in.Name == "" || !argsOK {
		bad("tools/call needs a name, and arguments that are an object.")
		return
	}
	var stream *eventStream
	if len(token) > 0 {
		in.Progress = func(done, total float64, message string) {
			if stream == nil {
				stream = startStream(w)
			}
			text, _ := json.Marshal(message) // a string always marshals
			stream.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"progressToken":%s,"progress":%v,"total":%v,"message":%s}}`,
				methodProgress, token, done, total, text))
		}
	}
	result, rpcErr := s.Tools.CallTool(r.Context(), in)
	if version == Version20260728 && rpcErr == nil {
		result = withResultType(result)
	}
	if stream == nil {
		if rpcErr != nil {
			writeError(w, http.StatusOK, m.ID, rpcErr)
			return
		}
		writeResult(w, m.ID, result)
		return
	}
	stream.send(envelope(m.ID, result, rpcErr))
}

func withResultType(result json.RawMessage) json.RawMessage {
	has := false
	if len(result) < 2 || result[0] != '{' || topMembers(result, func(k string, _ []byte) { has = has || k == "resultType" }) != nil || has {
		return result
	}
	out := append([]byte(`{"resultType":"complete"`), ',')
	if string(bytes.TrimSpace(result[1:len(result)-1])) == "" {
		out = out[:len(out)-1]
	}
	return append(out, result[1:]...)
}

func envelope(id, result json.RawMessage, rpcErr *RPCError) []byte {
	if id == nil {
		id = json.RawMessage(`null`)
	}
	out := append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), ',')
	if rpcErr != nil {
		b, err := json.Marshal(rpcErr)
		if err != nil { // data that is no JSON
			b = fmt.Appendf(nil, `{"code":%d,"message":"internal error"}`, CodeInternal)
		}
		return append(append(append(out, `"error":`...), b...), '}')
	}
	return append(append(append(out, `"result":`...), result...), '}')
}

func writeResult(w http.ResponseWriter, id, result json.RawMessage) {
	w.Header()["Content-Type"] = jsonType
	w.Write(envelope(id, result, nil))
}

func writeError(w http.ResponseWriter, status int, id json.RawMessage, e *RPCError) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	w.Write(envelope(id, nil, e))
}

// eventStream writes server-sent events, each flushed.
type eventStream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func startStream(w http.ResponseWriter) *eventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	s := &eventStream{w, http.NewResponseController(w)}
	s.rc.Flush()
	return s
}

func (s *eventStream) send(msg []byte) {
	msg = bytes.ReplaceAll(msg, []byte("\n"), []byte(" ")) // between tokens only: strings escape theirs
	s.w.Write(append(append([]byte("data: "), msg...), '\n', '\n'))
	s.rc.Flush()
}

func (s *Server) listenLegacy(w http.ResponseWriter, r *http.Request) {
	if v := r.Header.Get(headerProtocol); v >= Version20260728 || s.Sessions && !s.knows(r) ||
		!strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		w.Header().Set("Allow", "POST")
		http.Error(w, "no stream here", http.StatusMethodNotAllowed)
		return
	}
	s.listen(w, r, nil, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, methodListChanged))
}

// listen holds a stream and sends note for every change of the list.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, first, note []byte) {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	if s.listeners == nil {
		s.listeners = map[chan struct{}]struct{}{}
	}
	full := len(s.listeners) >= maxListeners
	if !full {
		s.listeners[ch] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		http.Error(w, "too many streams", http.StatusServiceUnavailable)
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ch)
		s.mu.Unlock()
	}()
	stream := startStream(w)
	if first != nil {
		stream.send(first)
	}
	for {
		select {
		case <-ch:
			stream.send(note)
		case <-r.Context().Done():
			return
		}
	}
}
