//go:build !linux

package sandbox

import (
	"context"
	"os"
)

// Runner starts sandboxes; there is none on this system.
type Runner struct{}

// Process is a command in a sandbox.
type Process struct{ Stdin, Stdout *os.File }

// New says that there is no sandbox.
func New(context.Context, Options) (*Runner, error) {
	return nil, &errUnusable{"there is a sandbox on Linux only", nil}
}

// Force is empty.
func (*Runner) Force() []string { return nil }

// Close does nothing.
func (*Runner) Close() {}

// Start says that there is no sandbox.
func (*Runner) Start(context.Context, Spec) (*Process, error) {
	return nil, &errUnusable{"there is a sandbox on Linux only", nil}
}

// Done is never closed.
func (*Process) Done() <-chan struct{} { return nil }

// Close does nothing.
func (*Process) Close() {}

// Why is nothing.
func (*Process) Why() error { return nil }

// Reason is nothing.
func (*Process) Reason() string { return "" }
