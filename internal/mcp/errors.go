package mcp

import (
	"errors"
	"net/http"
	"regexp"
	"time"

	"patchbay/internal/plane"
)

// Error is how an exchange failed. Ending says what that proves; Text is the
// peer's own words, bounded, for an operator's eyes only.
type Error struct {
	Ending     plane.Ending
	RPC        *RPCError
	Challenges []string // WWW-Authenticate
	RetryAfter time.Duration
	Text       string
	Cause      error
}

// Error is a sentence of ours, without any of the peer's words.
func (e *Error) Error() string { return e.Ending.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// AsError finds the *Error in err, or makes one of an unexpected error.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Ending: plane.Ending{Fault: plane.FaultTransport, Detail: "The exchange with the server broke."}, Cause: err}
}

const maxPeerText = 512

func fault(f plane.Fault, detail string, cause error) *Error {
	return &Error{Ending: plane.Ending{Fault: f, Detail: detail}, Cause: cause}
}

// statusError describes a non-2xx answer. sentSession says that the request
// named a session.
func statusError(resp *http.Response, body []byte, sentSession bool) *Error {
	e := &Error{Ending: plane.Ending{Status: resp.StatusCode, Fault: plane.FaultHTTP}}
	e.Challenges = resp.Header.Values("Www-Authenticate")
	e.RetryAfter = retryAfter(resp.Header.Get("Retry-After"))
	e.Text = string(body[:min(len(body), maxPeerText)])
	end := &e.Ending
	if m, err := ReadMessage(body, Answer); err == nil && m.Err != nil {
		e.RPC = m.Err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden && len(e.Challenges) > 0:
		end.Challenge = true
		end.Detail = "The server rejected the credential."
	case code == http.StatusForbidden:
		end.Detail = "The server refused the request (HTTP 403)."
	case sentSession && (code == http.StatusNotFound || code == http.StatusBadRequest && sessionShaped(e)):
		end.SessionLost = true
		end.Detail = "The server no longer knows the session."
	case code == http.StatusBadRequest && e.RPC != nil && e.RPC.Code == CodeHeaderMismatch:
		end.HeaderMismatch = true
		end.Detail = "The server found the request's headers not to match its body."
	case code >= 300 && code < 400:
		end.Detail = "The server redirects to another address; redirects are not followed."
	case code == http.StatusTooManyRequests:
		end.Detail = "The server limits the rate of requests (HTTP 429)."
	case code >= 500:
		end.Detail = "The server failed (HTTP " + resp.Status[:min(3, len(resp.Status))] + ")."
	default:
		end.Detail = "The server refused the request (HTTP " + resp.Status[:min(3, len(resp.Status))] + ")."
	}
	if e.RPC != nil && !end.Challenge && !end.SessionLost && !end.HeaderMismatch && resp.StatusCode < 500 {
		end.RPC, end.RPCCode = true, e.RPC.Code
	}
	return e
}

// sessionShaped tells the 400 that some servers give for a lost session from
// every other 400.
func sessionShaped(e *Error) bool {
	text := e.Text
	if e.RPC != nil {
		text = e.RPC.Message
	}
	return sessionRE.MatchString(text)
}

// sessionRE is narrow on purpose: what matches is proof that the call did not
// run, and an effect may be sent again after it.
var sessionRE = regexp.MustCompile(`(?i)\b(no valid|invalid|unknown|missing|expired)( mcp)? session\b|\bsession( id)?( was| is)? (not found|unknown|expired|invalid|missing|required)\b|\bmcp-session-id\b`)

func retryAfter(v string) time.Duration {
	if v == "" {
		return 0
	}
	if d, err := time.ParseDuration(v + "s"); err == nil && d > 0 {
		return min(d, time.Hour)
	}
	if t, err := http.ParseTime(v); err == nil {
		return min(max(time.Until(t), 0), time.Hour)
	}
	return 0
}
