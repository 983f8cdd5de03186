// Package model speaks to language models. It promises that a provider reads
// nothing from the environment, retries nothing by itself, reaches only the
// endpoint it was given a transport for, and that a key shows in no error.
package model

import (
	"context"
	"errors"
	"net/http"
	"time"

	"patchbay/internal/plane"
)

// Request is one turn's input.
type Request struct {
	System   string
	Messages []plane.Message
	Tools    []plane.ToolSpec
}

// Answer is what the model said.
type Answer struct {
	Parts  []plane.Part // text and tool uses, in order
	Stop   string       // the provider's word for why it stopped
	Input  int64        // tokens
	Output int64
}

// Text joins the text of the answer.
func (a *Answer) Text() string {
	out := ""
	for _, p := range a.Parts {
		out += p.Text
	}
	return out
}

// Provider answers turns.
type Provider interface {
	// Turn streams text to delta as it comes and returns the whole answer. A
	// failure is an *Error.
	Turn(ctx context.Context, r Request, delta func(string)) (Answer, error)
	// Describe names provider and model for people.
	Describe() string
	// Schemas names the subset of JSON Schema that it takes: anthropic, openai or
	// gemini.
	Schemas() string
}

// Error is a failed turn.
type Error struct {
	Sentence   string
	Transient  bool // worth another try
	RetryAfter time.Duration
	Cause      error
}

// Error returns the sentence.
func (e *Error) Error() string { return e.Sentence }

// Unwrap returns the cause, for the log.
func (e *Error) Unwrap() error { return e.Cause }

// failure classifies what an SDK returned. status is 0 when none came.
func failure(ctx context.Context, status int, cause error) error {
	if ctx.Err() != nil {
		return &Error{Sentence: "The model's answer was not waited for.", Cause: errors.Join(context.Cause(ctx), cause)}
	}
	e := &Error{Cause: cause}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.Sentence = "The model's provider rejected the API key; check the variable that api_key_env names."
	case status == http.StatusNotFound:
		e.Sentence = "The model's provider does not know the model or the path; check model and base_url."
	case status == http.StatusTooManyRequests:
		e.Sentence, e.Transient = "The model's provider limits the rate of requests.", true
	case status >= 500:
		e.Sentence, e.Transient = "The model's provider failed.", true
	case status >= 400:
		e.Sentence = "The model's provider refused the request."
	default:
		e.Sentence, e.Transient = "The model's provider could not be reached.", true
	}
	return e
}

// maxTokens is asked for where a provider demands a number.
const maxTokens = 8192

func input(raw []byte) any {
	if len(raw) == 0 {
		return struct{}{}
	}
	return rawJSON(raw)
}

type rawJSON []byte

// MarshalJSON hands the model's own bytes back to it.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }
