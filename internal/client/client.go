// Package client is the typed client of Patchbay's API, and the CLI's only road
// to a server.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Client speaks to one server.
type Client struct {
	base string
	at   string // where the server is, for people
	http *http.Client
}

// New makes a client of base, which a transport of the caller's reaches.
func New(base string, transport http.RoundTripper) *Client {
	return &Client{base: strings.TrimRight(base, "/"), at: base, http: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// At names where the server is, for people, where its address does not say it.
func (c *Client) At(where string) *Client {
	c.at = where
	return c
}

// Command runs a command: in is its input, out a pointer to its output.
func (c *Client) Command(ctx context.Context, name string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return plane.Errorf(plane.InvalidInput, "The input cannot be written as JSON.").Because(err)
	}
	resp, err := c.do(ctx, http.MethodPost, "/api/commands/"+name, "application/json", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return plane.Errorf(plane.Internal, "The server's answer cannot be read; are client and server of one version?").Because(err)
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, path, accept string, body []byte) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "The server's address cannot be read.").Because(err)
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, plane.Errorf(plane.Unavailable, "No Patchbay server answers at %s.", c.at).Then("Start one in another terminal: patchbay serve").Because(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, problem(resp)
	}
	return resp, nil
}

// problem reads an error back into the one type.
func problem(resp *http.Response) error {
	var p struct {
		Detail     string     `json:"detail"`
		Code       plane.Kind `json:"code"`
		Next       string     `json:"next"`
		Field      string     `json:"field"`
		Limit      string     `json:"limit"`
		RetryAfter float64    `json:"retry_after"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&p); err != nil || p.Code == "" {
		return plane.Errorf(plane.Unavailable, "The server answered with HTTP %d and no reason; is it a Patchbay?", resp.StatusCode).Then("Check PATCHBAY_URL.")
	}
	return &plane.Error{Kind: p.Code, Message: p.Detail, Next: p.Next, Field: p.Field, Limit: p.Limit,
		RetryAfter: time.Duration(p.RetryAfter * float64(time.Second))}
}

// ErrStop ends Events without an error when its callback returns it.
var ErrStop = errors.New("client: stop")

// Events streams a run's events to fn until the run ends or waits for a person.
// A broken stream is taken up again where it stopped.
func (c *Client) Events(ctx context.Context, run string, after int64, fn func(plane.Event) error) error {
	for broken := 0; ; {
		ended, err := c.eventsOnce(ctx, run, &after, fn)
		switch {
		case errors.Is(err, ErrStop):
			return nil
		case err != nil || ended:
			return err
		}
		if broken++; broken > 5 {
			return plane.Errorf(plane.Unavailable, "The stream of the run's events broke off.").Then("patchbay runs show " + run)
		}
		select {
		case <-time.After(time.Duration(broken) * 200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const maxEventLine = 4 << 20

func (c *Client) eventsOnce(ctx context.Context, run string, after *int64, fn func(plane.Event) error) (ended bool, err error) {
	resp, err := c.do(ctx, http.MethodGet, fmt.Sprintf("/api/runs/%s/events?until=waiting&after=%d", run, *after), "text/event-stream", nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), maxEventLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var ev plane.Event
		if err := json.Unmarshal(data, &ev); err != nil {
			return false, plane.Errorf(plane.Internal, "An event of the run cannot be read.").Because(err)
		}
		if ev.Seq > 0 {
			*after = ev.Seq
		}
		if err := fn(ev); err != nil {
			return false, err
		}
		if ev.Kind == plane.EventRunEnded || ev.Kind == plane.EventRunWaiting {
			return true, nil
		}
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return false, nil
}
