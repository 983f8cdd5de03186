// Package secret keeps values that must not be shown. Text promises that no
// print verb, JSON, slog, error or reflection-based dump reveals its value; the
// Sealer promises that a blob opens only under the purpose, scope and record it
// was sealed for, with a key of the ring.
package secret

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

const hidden = "[secret]"

// Text is a secret string. It cannot be compared with ==, printed or marshalled.
// The zero value is empty.
type Text struct {
	// A closure: fmt walks unexported fields, and pointers under a wrong verb,
	// without asking Format, but of a func it can only print the address. It
	// also makes == a compile error.
	p func() string
}

// New hides s.
func New(s string) Text { return Text{p: func() string { return s }} }

// Empty reports that there is no value.
func (t Text) Empty() bool { return t.p == nil || t.p() == "" }

// Expose hands the value to f. Only the packages that inject credentials may
// call it; imports_test.go holds the list.
func (t Text) Expose(f func(string)) {
	if t.p == nil {
		f("")
		return
	}
	f(t.p())
}

// Equal compares in constant time.
func (t Text) Equal(o Text) bool {
	var a, b string
	t.Expose(func(s string) { a = s })
	o.Expose(func(s string) { b = s })
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// Format writes a placeholder for every verb and flag.
func (t Text) Format(s fmt.State, _ rune) { io.WriteString(s, hidden) }

// String returns a placeholder.
func (Text) String() string { return hidden }

// GoString returns a placeholder.
func (Text) GoString() string { return hidden }

// MarshalText returns a placeholder, for JSON, YAML and XML alike.
func (Text) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue returns a placeholder.
func (Text) LogValue() slog.Value { return slog.StringValue(hidden) }
