package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// stream is the answer to one request: JSON, or, from the moment that something
// has to be said before the result, server-sent events. It may be used by several
// at once; after the answer nothing more is sent.
type stream struct {
	w             http.ResponseWriter
	mu            sync.Mutex
	rc            *http.ResponseController
	begun, closed bool
}

// eventTime is how long a client may take to take one event.
const eventTime = 30 * time.Second

// begin starts the events. The lock is held.
func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-store")
	s.w.WriteHeader(http.StatusOK)
	s.rc = http.NewResponseController(s.w)
}

// event sends one message, and reports whether the stream was still open.
func (s *stream) event(msg []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.begin()
	if bytes.IndexByte(msg, '\n') >= 0 {
		msg = bytes.ReplaceAll(msg, []byte("\n"), []byte(" ")) // between tokens only: strings escape theirs
	}
	if bytes.IndexByte(msg, '\r') >= 0 {
		msg = bytes.ReplaceAll(msg, []byte("\r"), []byte(" "))
	}
	// Whoever stops reading is given up, and holds nobody up; a pair in memory has no
	// deadlines and no need of them.
	_ = s.rc.SetWriteDeadline(time.Now().Add(eventTime))
	s.w.Write(append(append(append(make([]byte, 0, len(msg)+8), "data: "...), msg...), '\n', '\n'))
	err := s.rc.Flush()
	_ = s.rc.SetWriteDeadline(time.Time{})
	return err == nil
}

// open starts the events without one, so that the caller knows that it is heard.
func (s *stream) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	s.rc.Flush()
}

func (s *stream) notify(method string, params json.RawMessage) {
	s.event(appendRequest(nil, -1, method, params))
}

// fit gives a result the form of the caller's era. What may be kept, and by whom,
// is ours to say: a result passed a policy that the server knows nothing of.
func fit(result json.RawMessage, method string, modern, typed bool) json.RawMessage {
	switch {
	case modern && cacheable(method):
		if typed {
			result = without(result, "resultType", "ttlMs", "cacheScope")
		}
		return WithMembers(result, `"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
	case modern && !typed:
		return WithMembers(result, `"resultType":"complete"`)
	case !modern && typed:
		return without(result, "resultType", "ttlMs", "cacheScope")
	}
	return result
}

// answer ends the stream with the result or error of its request.
func (s *stream) answer(id, result json.RawMessage, rpcErr *RPCError, modern bool) {
	s.mu.Lock()
	begun := s.begun
	if !begun {
		s.closed = true
	}
	s.mu.Unlock()
	switch {
	case begun:
		s.event(envelope(id, result, rpcErr))
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	case rpcErr != nil:
		writeError(s.w, statusOf(rpcErr.Code, modern), id, rpcErr)
	default:
		writeResult(s.w, id, result)
	}
}

// statusOf is the HTTP status of an error: the modern era tells some by it.
func statusOf(code int64, modern bool) int {
	switch {
	case !modern:
	case code == CodeMethodNotFound:
		return http.StatusNotFound
	case code == CodeHeaderMismatch, code == CodeMissingCapability, code == CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

func envelope(id, result json.RawMessage, rpcErr *RPCError) []byte {
	if id == nil {
		id = json.RawMessage(`null`)
	}
	out := append(append(append(make([]byte, 0, len(id)+len(result)+48), `{"jsonrpc":"2.0","id":`...), id...), ',')
	if rpcErr != nil {
		b, err := json.Marshal(rpcErr)
		if err != nil { // data that is no JSON
			b = fmt.Appendf(nil, `{"code":%d,"message":"internal error"}`, CodeInternal)
		}
		return append(append(append(out, `"error":`...), b...), '}')
	}
	return append(append(append(out, `"result":`...), result...), '}')
}

// bigResult is from where a result is written from where it lies instead of being
// copied into one piece with its envelope.
const bigResult = 16 << 10

func writeResult(w http.ResponseWriter, id, result json.RawMessage) {
	h := w.Header()
	h["Content-Type"] = jsonType
	if len(result) < bigResult {
		w.Write(envelope(id, result, nil))
		return
	}
	head := envelope(id, nil, nil)
	head = head[:len(head)-1]
	h["Content-Length"] = []string{strconv.Itoa(len(head) + len(result) + 1)}
	w.Write(head)
	w.Write(result)
	w.Write(closing)
}

var closing = []byte{'}'}

func writeError(w http.ResponseWriter, status int, id json.RawMessage, e *RPCError) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	w.Write(envelope(id, nil, e))
}
