package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal's user's side.
func terminal(t *testing.T) *os.File {
	t.Helper()
	ctrl, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctrl.Close() })
	if err := unix.IoctlSetPointerInt(int(ctrl.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ctrl.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty
}

// shown is output that another goroutine writes.
type shown struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *shown) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// Ctrl-C at the question whether a call may pass ends the command, decides nothing, and
// says how to decide later.
func TestCtrlCEndsTheQuestion(t *testing.T) {
	dir := serving(t, "agents: {general: {approvals: {mcp__demo__order_status: ask}}}\n", true)
	tty := terminal(t)
	var errs shown
	code := make(chan int, 1)
	go func() {
		code <- Main([]string{"--data", filepath.Join(dir, "d"), "ask", "Where is order 1002?"}, tty, io.Discard, &errs)
	}()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(errs.String(), "Allow it?"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody was asked: %s", errs.String())
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-code:
		if got != exitUsage || !strings.Contains(errs.String(), "Next: patchbay approvals show apr_") {
			t.Errorf("exit %d: %s", got, errs.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it still asks")
	}
}
