package mcp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
)

// exchange is one POST and the answer to it.
type exchange struct {
	method       string
	params       []byte
	name         string      // mirrored into Mcp-Name
	extra        http.Header // mirrored arguments
	modern       bool
	opening      bool // initialize: the answer's header assigns the session
	notification bool
	first        time.Duration // until the response header
	answers      bool          // a call, for which the server may say and ask things
	progress     func(params json.RawMessage)
	log          func(params json.RawMessage)
	ask          func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)
}

var (
	errIdle  = errors.New("mcp: no progress in time")
	errTotal = errors.New("mcp: the exchange took too long")
)

// watch bounds an exchange: one timer, pushed back by progress, never past the
// total.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	detach func() bool
	idle   time.Duration

	mu     sync.Mutex
	end    time.Time
	asking int // questions that are open
}

// newWatch derives a context that ends with parent. With outlives it does so until
// detach is called; from then on only the watch itself can end it, so that a stream may
// be drained after its caller has gone.
func newWatch(parent context.Context, first, idle, total time.Duration, outlives bool) *watch {
	w := &watch{end: time.Now().Add(total), idle: idle}
	if outlives {
		w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(parent))
		w.detach = context.AfterFunc(parent, func() { w.cancel(context.Cause(parent)) })
	} else {
		w.ctx, w.cancel = context.WithCancelCause(parent)
		w.detach = func() bool { return false }
	}
	w.timer = time.AfterFunc(min(first, total), w.expire)
	return w
}

func (w *watch) expire() {
	w.mu.Lock()
	end := w.end
	w.mu.Unlock()
	if time.Now().Before(end) {
		w.cancel(errIdle)
	} else {
		w.cancel(errTotal)
	}
}

func (w *watch) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asking == 0 {
		w.timer.Reset(min(w.idle, time.Until(w.end)))
	}
}

// ask stops the clock while somebody is asked on the server's behalf: waiting for a
// person is not counted.
func (w *watch) ask() (answered func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking++
	began := time.Now()
	w.timer.Reset(plane.AskedMost)
	return func() {
		w.mu.Lock()
		w.asking--
		w.end = w.end.Add(time.Since(began))
		w.mu.Unlock()
		w.progress()
	}
}

// pause waits d without counting it as silence.
func (w *watch) pause(d time.Duration) error {
	w.timer.Reset(time.Until(w.end))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		w.progress()
		return nil
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}

func (w *watch) stop() {
	w.detach()
	w.timer.Stop()
	w.cancel(nil)
}

// failure turns an error of the transport into an *Error.
func (w *watch) failure(err error) *Error {
	cause := context.Cause(w.ctx)
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTooLarge):
		return fault(plane.FaultTooLarge, "The server's answer is over the response cap.", err)
	case errors.Is(cause, errIdle), errors.Is(cause, errTotal), errors.Is(cause, context.DeadlineExceeded):
		e = fault(plane.FaultTimeout, "The server did not answer in time.", err)
	case cause != nil:
		e = fault(plane.FaultCancelled, "The request was cancelled.", err)
	default:
		e = fault(plane.FaultTransport, "The connection to the server broke.", err)
	}
	// The transport knows whether anything was sent; one that does not say has
	// proved nothing.
	var sent interface{ NothingSent() bool }
	if errors.As(err, &sent) && sent.NothingSent() {
		e.Ending.NothingSent = true
		if e.Ending.Fault == plane.FaultTransport {
			e.Ending.Detail = "The server could not be reached."
			var says interface{ Sentence() string }
			if errors.As(err, &says) && says.Sentence() != "" {
				e.Ending.Detail = says.Sentence()
			}
		}
		var refused interface{ Refused() bool }
		if errors.As(err, &refused) && refused.Refused() {
			e.Ending.Detail, e.Ending.Refused = "The server's address is not allowed.", true
		}
	}
	return e
}

// do sends one message and returns the answer to it. The POST happens once,
// whatever comes of it.
func (c *Client) do(ctx context.Context, ex exchange) (Message, error) {
	id := int64(-1)
	if !ex.notification {
		id = c.nextID.Add(1)
	}
	prompt := c.prompt.Load() // then the stream is drained before this returns
	w := newWatch(ctx, ex.first, c.o.Bounds.Idle, c.o.Bounds.Total, !prompt)
	handedOver := false
	defer func() {
		if !handedOver {
			w.stop()
		}
	}()
	params := ex.params
	if ex.answers {
		params = withProgress(params, id)
	}
	req, err := c.request(w.ctx, http.MethodPost, appendRequest(make([]byte, 0, len(params)+96), id, ex.method, params))
	if err != nil {
		return Message{}, err
	}
	c.mirror(req, &ex)
	resp, err := c.o.Transport.RoundTrip(req)
	if err != nil {
		e := c.hinted(w.failure(err))
		c.tellCancelled(ctx, id, &ex, e)
		return Message{}, e
	}
	w.progress()
	if set := resp.Header["Set-Cookie"]; len(set) > 0 {
		c.jar.SetCookies(c.url, resp.Cookies())
		c.cookies.Store(true)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(&watchedBody{resp.Body, w}, 16<<10)) // a cut error body still has its status
		return Message{}, statusError(resp, text, req.Header[headerSession] != nil)
	}
	if ex.notification {
		resp.Body.Close()
		return Message{}, nil
	}
	if ex.opening {
		if c.session = resp.Header.Get(headerSession); !visible(c.session) {
			resp.Body.Close()
			return Message{}, fault(plane.FaultProtocol, "The server assigned a malformed session id.", nil)
		}
	}
	m, err := c.answer(w, resp, id, &ex)
	if err != nil {
		resp.Body.Close()
		e := c.hinted(w.failure(err))
		c.tellCancelled(ctx, id, &ex, e)
		return Message{}, e
	}
	handedOver = true
	if prompt {
		c.drain(w, resp.Body, promptEnd)
	} else {
		go c.drain(w, resp.Body, min(c.o.Bounds.Idle, 2*time.Second))
	}
	if m.Err != nil {
		e := &Error{Ending: plane.Ending{RPC: true, RPCCode: m.Err.Code, Detail: "The server answered with an error."}, RPC: m.Err,
			Text: cut(m.Err.Message, maxPeerText)}
		return Message{}, e
	}
	return m, nil
}

// hinted adds what the transport knows of a server that did not answer.
func (c *Client) hinted(e *Error) *Error {
	if h, ok := c.o.Transport.(interface{ Hint() string }); ok && e.Ending.Fault == plane.FaultTimeout && h.Hint() != "" {
		out := *e
		out.Ending.Detail += " " + h.Hint()
		return &out
	}
	return e
}

// mirror writes the headers that 2026-07-28 demands beside the body.
func (c *Client) mirror(req *http.Request, ex *exchange) {
	if !ex.modern {
		return
	}
	req.Header[headerProtocol] = []string{Version20260728}
	delete(req.Header, headerSession)
	req.Header[headerMethod] = []string{ex.method}
	if ex.name != "" {
		req.Header[headerName] = []string{encodeHeader(ex.name)}
	}
	for k, v := range ex.extra {
		req.Header[k] = v
	}
}

// withProgress adds the progress token to params, whose _meta, when there is
// one, stands first.
func withProgress(params []byte, id int64) []byte {
	out := append(make([]byte, 0, len(params)+48), `{"_meta":{"progressToken":`...)
	out = strconv.AppendInt(out, id, 10)
	if rest, ok := bytes.CutPrefix(params, []byte(`{"_meta":{`)); ok {
		return append(append(out, ','), rest...)
	}
	return append(append(out, `},`...), params[1:]...)
}

func visible(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return len(s) <= 1024
}

// promptEnd is how soon a stream must end after its answer for the next one to
// be drained in the caller's own time.
const promptEnd = 20 * time.Millisecond

// drain reads what follows the answer, so that the connection can be used
// again, for a short while and a few bytes. Most servers end the stream at
// once: theirs are drained without a goroutine.
func (c *Client) drain(w *watch, body io.ReadCloser, patience time.Duration) {
	began := time.Now()
	w.detach()
	w.timer.Reset(patience)
	_, err := io.CopyN(io.Discard, body, 64<<10)
	body.Close()
	w.stop()
	c.prompt.Store(err == io.EOF && time.Since(began) < promptEnd)
}

// tellCancelled lets a legacy server know that nobody waits any more. In the
// modern era the closed stream says it.
func (c *Client) tellCancelled(ctx context.Context, id int64, ex *exchange, e *Error) {
	if ex.modern || ex.notification || ex.opening || e.Ending.NothingSent ||
		e.Ending.Fault != plane.FaultCancelled && e.Ending.Fault != plane.FaultTimeout {
		return
	}
	c.workers.Go(func() {
		// The caller's context is over; this has a bound of its own.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.o.Bounds.Header, 5*time.Second))
		defer cancel()
		params := append(strconv.AppendInt([]byte(`{"requestId":`), id, 10), '}')
		c.do(ctx, exchange{method: MethodCancelled, params: params, notification: true, first: c.o.Bounds.Header})
	})
}

// watchedBody pushes the watch back with every byte.
type watchedBody struct {
	r io.Reader
	w *watch
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if n > 0 {
		b.w.progress()
	}
	return n, err
}

// cappedBody refuses the byte after the cap.
type cappedBody struct {
	r    io.Reader
	left int
}

func (b *cappedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.r.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// decoded is the body as text under the cap, with its content type.
func (c *Client) decoded(w *watch, resp *http.Response) (io.Reader, string, error) {
	var r io.Reader = &watchedBody{resp.Body, w}
	switch enc := strings.ToLower(resp.Header.Get("Content-Encoding")); enc {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, "", fault(plane.FaultProtocol, "The server's answer says it is gzip and is not.", err)
		}
		r = z
	default:
		return nil, "", fault(plane.FaultProtocol, "The server's answer has an encoding that nobody asked for.", nil)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		kind = strings.ToLower(strings.TrimSpace(strings.SplitN(resp.Header.Get("Content-Type"), ";", 2)[0]))
	}
	return &cappedBody{r, c.o.Bounds.Body}, kind, nil
}

// answer reads the body of a 2xx response until the answer to id is found.
func (c *Client) answer(w *watch, resp *http.Response, id int64, ex *exchange) (Message, error) {
	body, kind, err := c.decoded(w, resp)
	if err != nil {
		return Message{}, err
	}
	switch {
	case kind == "text/event-stream":
		return c.streamAnswer(w, body, id, ex)
	case kind == "application/json" || kind == "":
		raw, err := c.readBody(w.ctx, body, resp.ContentLength)
		if err != nil {
			return Message{}, brokenBody(err)
		}
		if len(bytes.TrimSpace(raw)) == 0 {
			return Message{}, fault(plane.FaultProtocol, "The server accepted the request and did not answer it.", nil)
		}
		m, err := ReadMessage(raw, Answer)
		if err != nil {
			return Message{}, fault(plane.FaultProtocol, "The server's answer is not a JSON-RPC message.", err)
		}
		if !m.IsAnswer() || !sameID(m.ID, id) && (m.Err == nil || m.HasID()) {
			return Message{}, fault(plane.FaultProtocol, "The server answered another request than the one sent.", nil)
		}
		return m, nil
	}
	return Message{}, fault(plane.FaultProtocol, "The server's answer is neither JSON nor an event stream.", nil)
}

func brokenBody(err error) error {
	if errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) {
		return fault(plane.FaultProtocol, "The server's compressed answer is damaged.", err)
	}
	return err
}

// readBody reads a JSON body, whose size is known or not.
func (c *Client) readBody(ctx context.Context, r io.Reader, length int64) ([]byte, error) {
	size := 2 << 10
	if length > 0 && length <= int64(c.o.Bounds.Body) {
		size = int(length) + 1
	}
	held := false
	defer func() {
		if held {
			c.o.Big.give(c.o.Bounds.Body)
		}
	}()
	buf := make([]byte, 0, min(size, bigBody))
	for {
		if len(buf) == cap(buf) {
			if cap(buf) >= bigBody && !held && c.o.Big != nil {
				if err := c.o.Big.take(ctx, c.o.Bounds.Body); err != nil {
					return nil, err
				}
				held = true
			}
			next := make([]byte, len(buf), max(2*cap(buf), size))
			copy(next, buf)
			buf = next
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
