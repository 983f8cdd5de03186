package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"patchbay/internal/plane"
)

const defaultRetry = time.Second

// streamAnswer reads events until the answer to id. A stream that is cut is
// resumed by GET where the server numbered its events; nothing is posted again.
func (c *Client) streamAnswer(w *watch, body io.Reader, id int64, ex *exchange) (Message, error) {
	var lastID string
	retry := defaultRetry
	fruitless := 0
	var closer io.Closer
	defer func() {
		if closer != nil {
			closer.Close()
		}
	}()
	for {
		s := newSSE(body, c.o.Bounds.Body)
		held := false
		s.grow = func(int) error {
			if held || c.o.Big == nil {
				return nil
			}
			held = true
			return c.o.Big.take(w.ctx, c.o.Bounds.Body)
		}
		m, progressed, err := c.readStream(w, s, id, ex, &lastID, &retry)
		s.free()
		if held {
			c.o.Big.give(c.o.Bounds.Body)
		}
		if err == nil {
			return m, nil
		}
		var e *Error
		if errors.As(err, &e) || errors.Is(err, errTooLarge) || w.ctx.Err() != nil {
			return Message{}, err
		}
		cutOff := fault(plane.FaultTransport, "The server's stream ended before the answer.", err)
		if fruitless++; progressed {
			fruitless = 0
		}
		if lastID == "" || ex.modern || fruitless > c.o.Bounds.Resumes {
			return Message{}, cutOff
		}
		if err := w.pause(retry); err != nil {
			return Message{}, err
		}
		resp, err := c.get(w.ctx, lastID)
		if err != nil {
			if w.ctx.Err() != nil {
				return Message{}, err
			}
			continue // the server may be on its way back
		}
		if closer != nil {
			closer.Close()
		}
		closer = resp.Body
		r, kind, err := c.decoded(w, resp)
		if err != nil || resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
			return Message{}, cutOff
		}
		body = r
	}
}

// readStream reads one stream. progressed says whether it carried anything.
func (c *Client) readStream(w *watch, s *sseReader, id int64, ex *exchange, lastID *string, retry *time.Duration) (m Message, progressed bool, err error) {
	for {
		ev, err := s.next()
		if err != nil {
			return Message{}, progressed, err
		}
		if ev.HasID {
			if ev.ID == *lastID && ev.ID != "" && len(ev.Data) > 0 {
				continue // replayed
			}
			*lastID = ev.ID
		}
		if ev.Retry > 0 {
			*retry = min(ev.Retry, c.o.Bounds.Total)
		}
		if len(ev.Data) == 0 {
			continue
		}
		progressed = true
		m, err := ReadMessage(ev.Data, Answer)
		if err != nil {
			return Message{}, progressed, fault(plane.FaultProtocol, "The server's stream holds something other than JSON-RPC.", err)
		}
		if m.IsAnswer() {
			if sameID(m.ID, id) || m.Err != nil && !m.HasID() {
				return m.clone(), progressed, nil
			}
			continue // of another request; it means nothing here
		}
		c.incoming(w, &m, ex)
	}
}

// incoming handles a request or a notification of the server; ex is the call on
// whose stream it came, or nil.
func (c *Client) incoming(w *watch, m *Message, ex *exchange) {
	if !m.HasID() {
		c.notified(m, ex)
		return
	}
	method, params := m.Method, bytes.Clone(m.Params)
	id := bytes.Clone(m.ID)
	if ex != nil && ex.ask != nil && method != MethodPing {
		c.relay(w, id, method, params, ex.ask)
		return
	}
	ctx := context.WithoutCancel(w.ctx)
	select {
	case c.replies <- struct{}{}:
	default:
		return // a server that floods gets no answer
	}
	c.workers.Go(func() {
		defer func() { <-c.replies }()
		ctx, cancel := context.WithTimeout(ctx, c.o.Bounds.Idle)
		defer cancel()
		c.reply(ctx, id, method, params)
	})
}

// notified hands on a notice of the server.
func (c *Client) notified(m *Message, ex *exchange) {
	switch {
	case m.Method == MethodProgress:
		if ex != nil && ex.progress != nil {
			ex.progress(bytes.Clone(m.Params))
		}
	case m.Method == MethodLog && ex != nil && ex.log != nil:
		ex.log(bytes.Clone(m.Params))
	case m.Method == MethodListChanged:
		if c.o.ListChanged != nil {
			c.o.ListChanged()
		}
	case c.o.Notified != nil:
		c.o.Notified(m.Method, bytes.Clone(m.Params))
	}
}

// relay hands a question of the server to whoever made the call, and its answer
// back. The call's clock stands still meanwhile.
func (c *Client) relay(w *watch, id json.RawMessage, method string, params json.RawMessage, ask func(context.Context, string, json.RawMessage) (json.RawMessage, *RPCError)) {
	select {
	case c.replies <- struct{}{}:
	default:
		return
	}
	answered := w.ask()
	c.workers.Go(func() {
		defer func() { <-c.replies }()
		result, rpcErr := ask(w.ctx, method, params)
		answered()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), c.o.Bounds.Header)
		defer cancel()
		c.sendReply(ctx, id, result, rpcErr)
	})
}

// reply answers a request of the server on a POST of its own.
func (c *Client) reply(ctx context.Context, id json.RawMessage, method string, params json.RawMessage) {
	result, rpcErr := json.RawMessage(`{}`), (*RPCError)(nil)
	switch {
	case method == MethodPing:
	case c.o.Answer == nil:
		rpcErr = &RPCError{Code: CodeMethodNotFound, Message: "This client offers no such capability."}
	default:
		result, rpcErr = c.o.Answer(ctx, method, params)
	}
	c.sendReply(ctx, id, result, rpcErr)
}

func (c *Client) sendReply(ctx context.Context, id, result json.RawMessage, rpcErr *RPCError) {
	body := append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), ',')
	if rpcErr != nil {
		b, err := json.Marshal(rpcErr)
		if err != nil {
			return
		}
		body = append(append(body, `"error":`...), b...)
	} else {
		body = append(append(body, `"result":`...), result...)
	}
	req, err := c.request(ctx, http.MethodPost, append(body, '}'))
	if err != nil {
		return
	}
	if resp, err := c.o.Transport.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
}

func (c *Client) get(ctx context.Context, lastID string) (*http.Response, error) {
	req, err := c.request(ctx, http.MethodGet, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		req.Header.Set("Last-Event-Id", lastID)
	}
	return c.o.Transport.RoundTrip(req)
}

// Backoff of the listener: it starts over only after a stream that lived or
// carried something, so a server that accepts and hangs up is asked ever less.
const (
	listenFirst  = time.Second
	listenLast   = 5 * time.Minute
	listenWorthy = 30 * time.Second
)

// listen hears of what the server tells by itself, or, of a modern one, of changes
// of resources.
func (c *Client) listen(ctx context.Context, h hears, uris []string) {
	wait := listenFirst
	var lastID string
	for ctx.Err() == nil {
		began := time.Now()
		useful, again := c.holdStream(ctx, h, uris, &lastID)
		if !again {
			return
		}
		if useful || time.Since(began) > listenWorthy {
			wait = listenFirst
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, listenLast)
	}
}

// holdStream holds one stream. again is false where the server offers none.
func (c *Client) holdStream(ctx context.Context, h hears, uris []string, lastID *string) (useful, again bool) {
	lctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := time.AfterFunc(c.o.Bounds.Header, cancel)
	defer header.Stop()
	resp, err := c.openListener(lctx, h, uris, *lastID)
	c.listenOnce.Do(func() { close(c.listening) })
	if err != nil {
		return false, ctx.Err() == nil
	}
	header.Stop()
	defer resp.Body.Close()
	if resp.StatusCode/100 == 4 {
		return false, false // 405 by the specification, others in the field
	}
	if resp.StatusCode != http.StatusOK {
		return false, true
	}
	s := newSSE(resp.Body, c.o.Bounds.Body)
	defer s.free()
	for {
		ev, err := s.next()
		if err != nil {
			return useful, !errors.Is(err, errTooLarge)
		}
		if ev.HasID {
			*lastID = ev.ID
		}
		if len(ev.Data) == 0 {
			continue
		}
		m, err := ReadMessage(ev.Data, Answer)
		if err != nil {
			return useful, false
		}
		useful = true
		if !m.IsAnswer() {
			c.incoming(&watch{ctx: lctx}, &m, nil)
		}
	}
}

func (c *Client) openListener(ctx context.Context, h hears, uris []string, lastID string) (*http.Response, error) {
	if c.era == EraLegacy {
		return c.get(ctx, lastID)
	}
	params := append(append([]byte(`{"_meta":{`), c.meta...), `},"notifications":`...)
	what, err := json.Marshal(struct {
		hears
		URIs []string `json:"resourceSubscriptions,omitempty"`
	}{h, uris})
	if err != nil {
		return nil, err
	}
	params = append(append(params, what...), '}')
	body := appendRequest(nil, c.nextID.Add(1), MethodListen, params)
	req, err := c.request(ctx, http.MethodPost, body)
	if err != nil {
		return nil, err
	}
	c.mirror(req, &exchange{method: MethodListen, modern: true})
	return c.o.Transport.RoundTrip(req)
}
