package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"patchbay/internal/plane"
)

// ToolSet is a server that has tools and nothing else. Definitions are sent as
// they are, in the order given; a result must be a JSON object.
type ToolSet interface {
	Tools(ctx context.Context, r *http.Request) ([]json.RawMessage, error)
	CallTool(ctx context.Context, in *Incoming) (json.RawMessage, *RPCError)
}

// Handler serves every method that is not the transport's own: lists, calls,
// resources, prompts and completion. A result must be a JSON object. What it does
// not offer it answers with CodeMethodNotFound.
type Handler interface {
	Serve(ctx context.Context, in *Incoming) (json.RawMessage, *RPCError)
}

// Server is the server half for both eras at one URL. Requests are read strictly.
// Origin and Host are the listener's business.
type Server struct {
	Info         Implementation
	Instructions string
	Tools        ToolSet         // or:
	Handler      Handler         // with what it offers in Capabilities
	Capabilities json.RawMessage // one JSON object; nil for tools whose list may change
	Sessions     bool            // assign a session id to legacy clients
	Keeper       Keeper          // of session ids; nil keeps them in memory
	MaxBody      int             // bytes of a request; 0 for 4 MiB
	Name         string          // of this process, in the ids of what it asks clients

	// Elsewhere is told of an answer (about is the id it answers) or a cancellation that
	// is about no request here: another process may hold it. Its error refuses an
	// answer that nobody waits for. Nil where there is none.
	Elsewhere func(r *http.Request, about string, body []byte) error

	// Owner tells whose request it is, so that nobody takes what all share. Nil for
	// nobody in particular.
	Owner func(r *http.Request) string

	// Stopping ends the streams of notices, and Life the calls under way. Nil for never.
	Stopping <-chan struct{}
	Allowed  func(r *http.Request) bool // whether who listens still may; nil for yes
	Life     context.Context

	memory  memoryKeeper
	clients clients
	asked   atomic.Int64
}

const defaultMaxBody = 4 << 20

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

// body reads a request whole, under the cap.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := s.MaxBody
	if limit == 0 {
		limit = defaultMaxBody
	}
	capped := http.MaxBytesReader(w, r.Body, int64(limit))
	if n := r.ContentLength; n > 0 && n <= int64(limit) {
		b := make([]byte, n)
		_, err := io.ReadFull(capped, b)
		return b, err
	}
	return io.ReadAll(capped)
}

func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	body, err := s.body(w, r)
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			writeError(w, http.StatusRequestEntityTooLarge, nil, &RPCError{Code: CodeInvalidRequest, Message: "The request is too large."})
		} else {
			writeError(w, http.StatusBadRequest, nil, &RPCError{Code: CodeParse, Message: "The request ended before its body did."})
		}
		return
	}
	m, err := ReadMessage(body, Strict)
	if err != nil {
		writeError(w, http.StatusBadRequest, nil, &RPCError{Code: CodeParse, Message: "The request is not one JSON-RPC message."})
		return
	}
	if m.IsAnswer() || !m.HasID() {
		s.aside(w, r, &m, body)
		return
	}
	var p params
	p.read(m.Params)
	if modernRequest(r, &m, &p) {
		s.modern(w, r, &m, &p)
		return
	}
	s.legacy(w, r, &m, &p)
}

// modernRequest decides the era of a request: by header, or by what only the
// modern era puts in a body.
func modernRequest(r *http.Request, m *Message, p *params) bool {
	if v := r.Header.Get(headerProtocol); v != "" {
		return v >= Version20260728
	}
	if r.Header.Get(headerSession) != "" {
		return false
	}
	return m.Method == MethodDiscover || p.version != ""
}

func (s *Server) legacy(w http.ResponseWriter, r *http.Request, m *Message, p *params) {
	if m.Method == MethodInitialize {
		s.initialize(w, r, m)
		return
	}
	version := r.Header.Get(headerProtocol)
	if version == version20250326 {
		version = "" // what a request without the header means; the session has settled on another
	}
	if version != "" && version != Version20250618 && version != Version20251125 {
		writeError(w, http.StatusBadRequest, m.ID, &RPCError{Code: CodeInvalidRequest, Message: "The protocol version is not spoken here."})
		return
	}
	peer := Peer{Version: version}
	if s.Sessions {
		var known bool
		if peer, known = s.keeper().Known(r, r.Header.Get(headerSession)); !known {
			writeError(w, http.StatusNotFound, m.ID, &RPCError{Code: CodeInvalidRequest, Message: "The session is not known; start anew."})
			return
		}
	}
	switch m.Method {
	case MethodPing:
		writeResult(w, m.ID, json.RawMessage(`{}`))
	case MethodSetLevel:
		level := ""
		if topMembers(p.raw, func(k string, v []byte) {
			if k == "level" {
				level, _ = String(v)
			}
		}) != nil || !logLevels[level] {
			writeError(w, http.StatusOK, m.ID, &RPCError{Code: CodeInvalidParams, Message: "That is not a log level."})
			return
		}
		s.clients.setLevel(r.Header.Get(headerSession), level)
		writeResult(w, m.ID, json.RawMessage(`{}`))
	default:
		peer.LogLevel = s.clients.level(r.Header.Get(headerSession))
		s.serve(w, r, m, p, peer)
	}
}

var logLevels = map[string]bool{"debug": true, "info": true, "notice": true, "warning": true, "error": true, "critical": true, "alert": true, "emergency": true}

func (s *Server) initialize(w http.ResponseWriter, r *http.Request, m *Message) {
	var p struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || p.ProtocolVersion == "" {
		writeError(w, http.StatusOK, m.ID, &RPCError{Code: CodeInvalidParams, Message: "initialize needs a protocolVersion."})
		return
	}
	version := Version20251125
	if p.ProtocolVersion == Version20250618 {
		version = Version20250618
	}
	if s.Sessions {
		id, err := s.keeper().Begin(r, Peer{Version: version, Capabilities: p.Capabilities})
		if err != nil {
			writeError(w, http.StatusOK, m.ID, internalError(err))
			return
		}
		w.Header().Set(headerSession, id)
	}
	writeResult(w, m.ID, s.describe(fmt.Sprintf(`"protocolVersion":%q`, version)))
}

// describe is the body that initialize and server/discover share.
func (s *Server) describe(first string) json.RawMessage {
	offers := s.Capabilities
	if offers == nil {
		offers = json.RawMessage(`{"tools":{"listChanged":true}}`)
	}
	info, _ := json.Marshal(s.Info)                 // two strings always marshal
	instructions, _ := json.Marshal(s.Instructions) // so does one
	out := fmt.Appendf(nil, `{%s,"capabilities":%s,"serverInfo":%s`, first, offers, info)
	if s.Instructions != "" {
		out = fmt.Appendf(out, `,"instructions":%s`, instructions)
	}
	return append(out, '}')
}

func (s *Server) end(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerSession)
	if _, known := s.keeper().Known(r, id); !known {
		http.Error(w, "the session is not known", http.StatusNotFound)
		return
	}
	s.keeper().End(r, id)
	s.clients.end(id)
	w.WriteHeader(http.StatusNoContent)
}

func internalError(err error) *RPCError {
	return &RPCError{Code: CodeInternal, Message: plane.Public(err).Message}
}
