// Package sandbox runs a stdio server where it can harm nothing. It promises that the
// command sees a read-only system, an empty home and none of the host's files but what
// config names; that its network holds nothing but the way to the credential gateway; that
// processes, files, memory and CPU are bounded; that it dies with its whole tree when it is
// closed, when it breaks a bound, and when this process ends however it ends; and that
// where none of this can be had nothing is run.
//
// A backend only says how the command is wrapped; sockets, limits, watching and killing are
// the runner's, so that no backend can leave one out.
package sandbox

import (
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"time"
)

// Limits of one sandbox.
type Limits struct {
	Memory    int64         // resident bytes of all its processes
	Processes int           // with threads
	Files     int           // open in one process
	FileBytes int64         // of one file, and of home and of /tmp each
	CPU       time.Duration // of one process, in all
}

// DefaultLimits suit a server in Node or Python.
func DefaultLimits() Limits {
	return Limits{Memory: 512 << 20, Processes: 128, Files: 256, FileBytes: 256 << 20, CPU: time.Hour}
}

// Options of a Runner.
type Options struct {
	Kind   string   // bubblewrap, container
	Read   []string // directories of the host that are shown inside, read-only, at the same path
	Image  string   // of container
	Engine string   // of container: docker or podman; empty for what is there
	Limits Limits
	Most   int // sandboxes at once
	Log    *slog.Logger
}

// Spec is one command to run.
type Spec struct {
	Name    string // for people
	Command string
	Args    []string
	Env     []string           // NAME=value; nothing of this process's own environment is passed
	Files   map[string][]byte  // placed in Inside
	Gateway func(net.Listener) // serves what is sent out; nil for no way out
}

// Inside is the directory of a sandbox's own files; Proxy is where its way out begins.
const (
	Inside = "/run/patchbay"
	Proxy  = "http://127.0.0.1:3128"
)

const proxyPort = 3128

// box is what a backend needs to know to wrap a command.
type box struct {
	dir    string // on the host: sockets and files, to be shown as Inside
	names  []string
	init   []string // the command line, from the init on
	env    []string
	read   []string
	limits Limits
	filter string // path of the compiled seccomp filter
	uid    int    // for the command, 0 for the caller's own
}

// backend wraps commands.
type backend interface {
	// name and version, for people.
	about() string
	// wrap makes the command that runs a box.
	wrap(b *box) (*exec.Cmd, error)
	// uids reports that commands can be given a user of their own.
	uids() bool
	// holds are the limits that it keeps beside what the init does.
	holds() []string
}

// errUnusable is why there is no sandbox here.
type errUnusable struct {
	why   string
	cause error
}

func (e *errUnusable) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %v", e.why, e.cause)
	}
	return e.why
}

func (e *errUnusable) Unwrap() error { return e.cause }
