package mcp

import (
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
		c.incoming(w.ctx, &m, ex)
	}
}

// incoming handles a request or a notification of the server.
func (c *Client) incoming(ctx context.Context, m *Message, ex *exchange) {
	if !m.HasID() {
		switch m.Method {
		case methodProgress:
			if ex != nil && ex.progress != nil {
				ex.progress(json.RawMessage(append([]byte(nil), m.Params...)))
			}
		case methodListChanged:
			if c.o.ListChanged != nil {
				c.o.ListChanged()
			}
		}
		return
	}
	method, params := m.Method, append(json.RawMessage(nil), m.Params...)
	id := append(json.RawMessage(nil), m.ID...)
	ctx = context.WithoutCancel(ctx)
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

// reply answers a request of the server on a POST of its own.
func (c *Client) reply(ctx context.Context, id json.RawMessage, method string, params json.RawMessage) {
	result, rpcErr := json.RawMessage(`{}`), (*RPCError)(nil)
	switch {
	case method == methodPing:
	case c.o.Answer == nil:
		rpcErr = &RPCError{Code: CodeMethodNotFound, Message: "This client offers no such capability."}
	default:
		result, rpcErr = c.o.Answer(ctx, method, params)
	}
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

func (c *Client) listen(ctx context.Context) {
	wait := listenFirst
	var lastID string
	for ctx.Err() == nil {
		began := time.Now()
		useful, again := c.holdStream(ctx, &lastID)
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
func (c *Client) holdStream(ctx context.Context, lastID *string) (useful, again bool) {
	lctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := time.AfterFunc(c.o.Bounds.Header, cancel)
	defer header.Stop()
	resp, err := c.openListener(lctx, *lastID)
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
			c.incoming(lctx, &m, nil)
		}
	}
}

func (c *Client) openListener(ctx context.Context, lastID string) (*http.Response, error) {
	if c.era == EraLegacy {
		return c.get(ctx, lastID)
	}
	params := append(append([]byte(`{"_meta":{`), c.meta...), `},"notifications":{"toolsListChanged":true}}`...)
	body := appendRequest(nil, c.nextID.Add(1), methodListen, params)
	req, err := c.request(ctx, http.MethodPost, body)
	if err != nil {
		return nil, err
	}
	c.mirror(req, &exchange{method: methodListen, modern: true})
	return c.o.Transport.RoundTrip(req)
}
