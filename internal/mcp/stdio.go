package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
)

// StdioOptions are the bounds of a Stdio.
type StdioOptions struct {
	Message int                              // bytes of one message
	Strays  int                              // lines that are no message, until the process is given up
	Stray   func(line []byte)                // told of each such line; may be nil
	Why     func() (why string, cause error) // the process ended, once its stdout has; may be nil
}

// Stdio carries a Client over a process's standard streams, one message a line
// (transports, "stdio"). It is a transport like another: a request's answer is a stream
// of events, so that the same bounds and scans hold as over HTTP. Close it.
//
// What the server says by itself belongs to the one call in flight, where there is one;
// notices else go to the listener, and questions are refused.
type Stdio struct {
	o    StdioOptions
	in   chan *stdioLine
	done chan struct{} // closed when nothing more is read
	stop chan struct{}
	once sync.Once

	strays atomic.Int64  // lines that are no message
	idle   *rate.Limiter // of what belongs to no call

	mu       sync.Mutex
	waiting  map[string]*stdioStream // by id
	listener *stdioStream
	err      error // once done
}

// What a process may say that belongs to no call, in messages a second, and at once.
const (
	idleRate  = 100
	idleBurst = 2000
)

// errFloods is a process that talks by itself without end.
var errFloods = fault(plane.FaultProtocol, "The server's process floods its stdout with what nobody asked for.", nil)

// stdioLine is one message on its way out.
type stdioLine struct {
	ctx  context.Context
	text []byte
	sent chan error // of the write; ErrUnsent before a byte went
}

// maxStdioQueue bounds messages that wait for a process which does not read.
const maxStdioQueue = 16

// NewStdio speaks to a process that reads in and writes out.
func NewStdio(in io.Writer, out io.Reader, o StdioOptions) *Stdio {
	s := &Stdio{o: o, in: make(chan *stdioLine, maxStdioQueue), done: make(chan struct{}), stop: make(chan struct{}), waiting: map[string]*stdioStream{}, idle: rate.NewLimiter(idleRate, idleBurst)}
	go s.write(in)
	go s.read(out)
	return s
}

// Close ends the exchange; the process is its starter's.
func (s *Stdio) Close() { s.once.Do(func() { close(s.stop) }) }

// Gone reports that the process is no longer heard.
func (s *Stdio) Gone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// unsentError is a message of which no byte reached the process. Of an earlier one's end
// only the sentence is told.
type unsentError struct{ cause error }

// Sentence says why the process is not there.
func (e *unsentError) Sentence() string {
	var f *Error
	if errors.As(e.cause, &f) {
		return f.Ending.Detail
	}
	return ""
}

func (e *unsentError) Error() string   { return "mcp: the process was not reached" }
func (*unsentError) NothingSent() bool { return true }

// RoundTrip sends one message, or opens the stream of notices.
func (s *Stdio) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if req.Method == http.MethodGet {
		return s.listen(req)
	}
	if req.Method != http.MethodPost {
		return stdioAnswer(req, http.StatusMethodNotAllowed, nil), nil
	}
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return nil, &unsentError{err}
	}
	m, err := ReadMessage(body, Answer)
	if err != nil {
		return nil, &unsentError{err}
	}
	// A line break outside of a string is white space, and inside there is none.
	for i, c := range body {
		if c == '\n' || c == '\r' {
			body[i] = ' '
		}
	}
	if m.IsAnswer() || !m.HasID() {
		if err := s.send(ctx, body); err != nil {
			return nil, err
		}
		return stdioAnswer(req, http.StatusAccepted, nil), nil
	}
	w := s.expect(string(m.ID), m.Method, req.Header[headerMethod] != nil)
	if w == nil {
		return nil, &unsentError{s.cause()}
	}
	if err := s.send(ctx, body); err != nil {
		s.forget(w)
		return nil, err
	}
	w.release = context.AfterFunc(ctx, func() { s.abandon(w, ctx.Err()) })
	return stdioAnswer(req, http.StatusOK, w), nil
}

func stdioAnswer(req *http.Request, status int, body io.ReadCloser) *http.Response {
	r := &http.Response{StatusCode: status, Status: strconv.Itoa(status) + " " + http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: body, ContentLength: -1, Request: req}
	if body == nil {
		r.Body = http.NoBody
	} else {
		r.Header["Content-Type"] = []string{"text/event-stream"}
	}
	return r
}

// expect makes the stream of one request's answer; nil once nothing is heard.
func (s *Stdio) expect(id, method string, modern bool) *stdioStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Gone() {
		return nil
	}
	w := &stdioStream{s: s, id: id, modern: modern, more: make(chan struct{}, 1), call: method != MethodListen}
	s.waiting[id] = w
	if method == MethodListen {
		s.listener = w
	}
	return w
}

func (s *Stdio) listen(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Gone() {
		return nil, &unsentError{s.err}
	}
	w := &stdioStream{s: s, more: make(chan struct{}, 1)}
	s.listener = w
	w.release = context.AfterFunc(req.Context(), func() { w.end(req.Context().Err()) })
	return stdioAnswer(req, http.StatusOK, w), nil
}

func (s *Stdio) forget(w *stdioStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[w.id] == w {
		delete(s.waiting, w.id)
	}
	if s.listener == w {
		s.listener = nil
	}
}

// abandon ends a stream whose reader went away. A legacy client says so by itself; in the
// modern era the closed stream says it, and here that is a notice.
func (s *Stdio) abandon(w *stdioStream, err error) {
	s.mu.Lock()
	open := w.id != "" && s.waiting[w.id] == w
	s.mu.Unlock()
	s.forget(w)
	w.end(err)
	if open && w.modern {
		note := []byte(`{"jsonrpc":"2.0","method":"` + MethodCancelled + `","params":{"requestId":` + w.id + `}}`)
		s.offer(note)
	}
}

// offer sends a message of our own, if there is room.
func (s *Stdio) offer(text []byte) {
	select {
	case s.in <- &stdioLine{ctx: context.Background(), text: text, sent: make(chan error, 1)}:
	default:
	}
}

// send writes one line, or fails when ctx ends first.
func (s *Stdio) send(ctx context.Context, text []byte) error {
	l := &stdioLine{ctx: ctx, text: text, sent: make(chan error, 1)}
	select {
	case s.in <- l:
	case <-s.done:
		return &unsentError{s.cause()}
	case <-ctx.Done():
		return &unsentError{ctx.Err()}
	}
	select {
	case err := <-l.sent:
		return err
	case <-s.done:
	case <-ctx.Done():
	}
	select {
	case err := <-l.sent:
		return err
	default:
	}
	if err := ctx.Err(); err != nil {
		return err // it may be half written: that proves nothing
	}
	return s.cause()
}

func (s *Stdio) write(in io.Writer) {
	for {
		select {
		case l := <-s.in:
			if err := l.ctx.Err(); err != nil {
				l.sent <- &unsentError{err}
				continue
			}
			n, err := in.Write(append(l.text, '\n'))
			if err != nil && n == 0 {
				err = &unsentError{err}
			}
			l.sent <- err
		case <-s.done:
			return
		case <-s.stop:
			return
		}
	}
}

func (s *Stdio) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// read hands every line to whom it belongs, until the process says no more.
func (s *Stdio) read(out io.Reader) {
	r := bufio.NewReaderSize(out, 32<<10)
	var err error
	for err == nil {
		var line []byte
		if line, err = s.line(r); err != nil {
			break
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			err = s.take(line)
		} else if !s.idle.Allow() {
			err = errFloods
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		detail := "The server's process ended before the answer"
		if err = nil; s.o.Why != nil {
			why := ""
			if why, err = s.o.Why(); why != "" {
				detail += ": " + why
			}
		}
		err = fault(plane.FaultTransport, detail+".", err)
	}
	s.mu.Lock()
	s.err = err
	close(s.done)
	all := s.waiting
	s.waiting = map[string]*stdioStream{}
	if s.listener != nil {
		all["listener"] = s.listener
	}
	s.mu.Unlock()
	for _, w := range all {
		w.end(err)
	}
	io.Copy(io.Discard, out) // a process that is being ended must not stand still over its output
	if c, ok := out.(io.Closer); ok {
		c.Close()
	}
}

// line reads one line of at most the bound.
func (s *Stdio) line(r *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > s.o.Message {
			return nil, errTooLarge
		}
		out = append(out, part...)
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err // what has no line break is no message
		}
	}
}

// take sorts one line.
func (s *Stdio) take(line []byte) error {
	m, err := ReadMessage(line, Answer)
	if err != nil {
		if s.o.Stray != nil {
			s.o.Stray(line)
		}
		if s.strays.Add(1) > int64(s.o.Strays) {
			return fault(plane.FaultProtocol, "The server's process writes something other than JSON-RPC to its stdout.", err)
		}
		return nil
	}
	var w *stdioStream
	switch {
	case m.IsAnswer():
		if w = s.asker(m.ID); w != nil {
			s.forget(w)
			w.push(line, true)
			w.end(io.EOF)
		}
	case m.HasID():
		w = s.question(&m, line)
	default:
		if w = s.hears(&m); w != nil {
			w.push(line, false)
		}
	}
	if (w == nil || !w.call) && !s.idle.Allow() {
		return errFloods
	}
	return nil
}

// Hint says what a process did instead of answering, "" for nothing that is known.
func (s *Stdio) Hint() string {
	if n := s.strays.Load(); n > 0 {
		return fmt.Sprintf("It printed %d lines that are no JSON-RPC.", n)
	}
	return ""
}

// asker is whose answer it is; a peer may make a string of a number.
func (s *Stdio) asker(id json.RawMessage) *stdioStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[string(id)]; w != nil {
		return w
	}
	if len(id) > 2 && id[0] == '"' {
		return s.waiting[string(id[1:len(id)-1])]
	}
	if len(id) == 0 || string(id) == "null" { // it could not read what it was asked
		return s.only()
	}
	return nil
}

// only is the one call in flight, or nil. The lock is held.
func (s *Stdio) only() *stdioStream {
	var found *stdioStream
	for _, w := range s.waiting {
		if !w.call {
			continue
		}
		if found != nil {
			return nil
		}
		found = w
	}
	return found
}

// question hands a question of the server to the one call it can belong to.
func (s *Stdio) question(m *Message, line []byte) *stdioStream {
	s.mu.Lock()
	w := s.only()
	s.mu.Unlock()
	if w != nil {
		w.push(line, false)
		return w
	}
	out := append([]byte(`{"jsonrpc":"2.0","id":`), m.ID...)
	if m.Method == MethodPing {
		s.offer(append(out, `,"result":{}}`...))
		return nil
	}
	s.offer(append(out, `,"error":{"code":`+strconv.Itoa(CodeMethodNotFound)+`,"message":"Nobody here can be asked that now."}}`...))
	return nil
}

// hears is whom a notice is for.
func (s *Stdio) hears(m *Message) *stdioStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Method {
	case MethodProgress:
		var p struct {
			Token json.RawMessage `json:"progressToken"`
		}
		if json.Unmarshal(m.Params, &p) != nil {
			return nil
		}
		return s.waiting[string(p.Token)] // the token of a call is its id
	case MethodLog:
		if w := s.only(); w != nil {
			return w
		}
	}
	return s.listener
}
