// Package oauth is the client's side of OAuth 2.1 as MCP servers use it:
// detection, discovery (RFC 9728, RFC 8414, OpenID), registration (RFC 7591),
// PKCE, authorization (RFC 8707, RFC 9207), exchange, refresh and revocation
// (RFC 7009). It promises that identifiers are kept byte for byte, that a
// request goes only where Check lets it, and that an error says whether the
// other side may have acted. It stores nothing and waits for nobody.
package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Client speaks to the metadata and token endpoints of one connection's
// authorization server.
type Client struct {
	Transport http.RoundTripper         // the connection's own lane; follows no redirect
	Check     func(rawURL string) error // judges every URL before it is used
	Now       func() time.Time
	Timeout   time.Duration // of one request; zero for 15 s
}

// Bounds.
const (
	maxBody        = 1 << 20
	defaultTimeout = 15 * time.Second
	maxLife        = 30 * 24 * time.Hour // a longer expires_in is cut to this
)

// Error is how a step failed. Its text is a sentence of ours; Code and
// Description are the other side's words, bounded and printable.
type Error struct {
	Sentence    string
	Code        string // error of RFC 6749 §5.2, or ""
	Description string
	Status      int
	NoMetadata  bool   // nothing was found that describes an authorization server
	Transient   bool   // trying again later may help, nothing was refused
	Unknown     bool   // the request may have been acted on, nobody knows
	Next        string // what helps, where a rule of ours refused
	Attempts    []Attempt
	Cause       error
}

// Error returns the sentence with the other side's code.
func (e *Error) Error() string {
	if e.Code != "" && !strings.Contains(e.Sentence, e.Code) {
		return strings.TrimSuffix(e.Sentence, ".") + ": " + e.Code + "."
	}
	return e.Sentence
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

func failed(cause error, format string, args ...any) *Error {
	return &Error{Sentence: fmt.Sprintf(format, args...), Cause: cause}
}

// AsError finds the *Error in err, or makes a transient one.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Sentence: "The authorization server could not be asked.", Transient: true, Cause: err}
}

// Attempt is one thing that discovery tried.
type Attempt struct {
	URL     string `json:"url"`
	Outcome string `json:"outcome"`
}

// answer is a bounded response.
type answer struct {
	status int
	json   bool
	body   []byte
}

// unsent is what a lane's error says of itself.
type unsent interface{ NothingSent() bool }

// send does one request. Its error says whether the other side may have acted.
func (c *Client) send(ctx context.Context, req *http.Request) (answer, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	bare := *req.URL
	bare.RawQuery = ""
	if err := c.Check(bare.String()); err != nil {
		e := failed(err, "%s", plane.Public(err).Message)
		e.Next = plane.Public(err).Next
		return answer{}, e
	}
	resp, err := c.Transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		e := failed(err, "%s did not answer.", text(req.URL.Host))
		e.Transient = true
		var u unsent
		e.Unknown = !errors.As(err, &u) || !u.NothingSent()
		return answer{}, e
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	a := answer{status: resp.StatusCode, body: body}
	if err != nil {
		e := failed(err, "The answer of %s broke off.", text(req.URL.Host))
		e.Transient, e.Unknown, e.Status = true, true, resp.StatusCode
		return a, e
	}
	if len(body) > maxBody {
		return a, failed(nil, "The answer of %s is larger than %d bytes.", text(req.URL.Host), maxBody)
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	trimmed := bytes.TrimSpace(body)
	a.json = len(trimmed) > 0 && trimmed[0] == '{' && media != "text/html" && json.Valid(body)
	return a, nil
}

// get fetches metadata. miss says why a candidate is passed over (field cases
// F008, F010): a 4xx, a redirect, or something that is not a JSON object.
func (c *Client) get(ctx context.Context, raw string, into any) (miss string, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "no URL", nil
	}
	req := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{"Accept": {"application/json"}}}
	a, err := c.send(ctx, req)
	switch {
	case err != nil:
		return "", err
	case a.status >= 500 || a.status == http.StatusTooManyRequests:
		e := failed(nil, "%s answered HTTP %d.", text(raw), a.status)
		e.Transient, e.Status = true, a.status
		return "", e
	case a.status != http.StatusOK:
		return fmt.Sprintf("HTTP %d", a.status), nil
	case !a.json:
		return "not JSON", nil
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		return "JSON of another shape", nil
	}
	return "", nil
}

// text bounds words of the other side and makes them printable.
func text(s string) string {
	out := make([]rune, 0, 200)
	for _, r := range s {
		if len(out) == 200 {
			break
		}
		if r < 0x20 || r == 0x7f || r > 0x7e {
			r = ' '
		}
		out = append(out, r)
	}
	return strings.TrimSpace(string(out))
}

// code keeps an error code only in the characters that RFC 6749 §5.2 gives it.
func code(s string) string {
	if len(s) > 60 || strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.'
	}) {
		return "an error"
	}
	return s
}

// Declined is what an authorization response says instead of a code.
func Declined(word, description string) *Error {
	e := failed(nil, "The authorization server refused: %s.", code(word))
	e.Code, e.Description = code(word), text(description)
	if word == "access_denied" {
		e.Sentence = "Access was declined there."
		e.Code = ""
	}
	return e
}
