package plane

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what sort of trouble an Error is. Surfaces, and only surfaces, map
// it to a status, an exit code or a JSON-RPC code.
type Kind string

// The kinds. Anything that is not an *Error is Internal, and its text stays in
// the log.
const (
	InvalidInput    Kind = "invalid_input"
	Unauthenticated Kind = "unauthenticated"
	Forbidden       Kind = "forbidden"
	NotFound        Kind = "not_found"
	Conflict        Kind = "conflict"
	Gone            Kind = "gone"
	Limited         Kind = "limited"
	Unavailable     Kind = "unavailable"
	Internal        Kind = "internal"
)

// Error is the one error type of the program: a kind, a sentence for the person
// who asked, and the next step where there is one. Cause goes to the log only.
type Error struct {
	Kind       Kind
	Message    string
	Next       string        // the command or link that helps
	Field      string        // the input it is about
	Limit      string        // the name of the limit that was hit
	RetryAfter time.Duration // zero when nobody knows
	Cause      error
}

// Error returns the sentence; the cause is never part of it.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the log access to the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an Error of the given kind. The cause is set with Because, so
// that its text never becomes part of the sentence.
func Errorf(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Because records the first cause; a later call changes nothing.
func (e *Error) Because(err error) *Error {
	if e.Cause == nil {
		e.Cause = err
	}
	return e
}

// Then names the next step.
func (e *Error) Then(next string) *Error { e.Next = next; return e }

// At names the input field.
func (e *Error) At(field string) *Error { e.Field = field; return e }

// Over names the limit.
func (e *Error) Over(limit string) *Error { e.Limit = limit; return e }

// KindOf is the kind of err: Internal for anything that is not an *Error.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Sentence is what a surface that has only text says of err: what happened, and what to do.
func Sentence(err error) string {
	e := Public(err)
	if e.Next == "" {
		return e.Message
	}
	return e.Message + " " + e.Next
}

// Public is what a surface may show of err. The text of an unknown error is
// replaced, since it may hold anything.
func Public(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: Internal, Message: "Something went wrong inside Patchbay; the server's log has the cause.", Cause: err}
}
