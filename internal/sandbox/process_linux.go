package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ended is how the init said that its command ended.
type ended struct {
	word string
	n    int
}

// Process is a command in a sandbox. Its Stdin and Stdout are the caller's to use, its
// stderr is logged and bounded.
type Process struct {
	Stdin  *os.File
	Stdout *os.File

	r      *Runner
	name   string
	slot   int
	dir    string
	life   *net.UnixListener
	gate   *net.UnixListener
	conn   *net.UnixConn // to the init
	cmd    *exec.Cmd
	words  *lastWords
	group  *group
	waited chan error
	done   chan struct{}
	end    ended // once done
	once   sync.Once

	mu      sync.Mutex
	closing bool // nobody wants it any more
}

// Done is closed when nothing of the sandbox is left.
func (p *Process) Done() <-chan struct{} { return p.done }

// spawn starts the wrapped command with three streams.
func (p *Process) spawn(cmd *exec.Cmd) error {
	inR, inW, err := os.Pipe()
	if err != nil {
		return err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		for _, f := range []*os.File{inR, inW, outR, outW} {
			f.Close()
		}
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "XDG_RUNTIME_DIR=" + os.Getenv("XDG_RUNTIME_DIR")} // the wrapper's
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	p.Stdin, p.Stdout = inW, outR
	if err != nil {
		errR.Close()
		return err
	}
	p.cmd, p.waited = cmd, make(chan error, 1)
	p.words = newLastWords(errR, p.r.o.Log, p.name)
	go func() { p.waited <- cmd.Wait() }()
	return nil
}

// begin waits for the init, puts it under its groups, and has it start the command.
func (p *Process) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, started)
	defer cancel()
	type accepted struct {
		conn *net.UnixConn
		err  error
	}
	got := make(chan accepted, 1)
	go func() {
		conn, err := p.life.AcceptUnix()
		got <- accepted{conn, err}
	}()
	var err error
	var a accepted
	select {
	case a = <-got:
		err = a.err
	case werr := <-p.waited:
		p.waited <- werr
		p.words.settle()
		err = errors.Join(errors.New("the sandbox ended before its command began: "+p.words.last()), werr)
	case <-ctx.Done():
		err = errors.Join(errors.New("the sandbox did not come up: "+p.words.last()), ctx.Err())
	}
	p.life.Close() // one init, one connection
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = a.conn
	if p.closing {
		return errors.New("the sandbox was closed before its command began")
	}
	if p.group, err = p.r.groups.put(p.conn, p.r.o.Limits); err == nil {
		_, err = p.conn.Write([]byte("g"))
	}
	if err != nil {
		return err
	}
	go p.watch()
	return nil
}

// watch waits for the end, however it comes.
func (p *Process) watch() {
	b, err := io.ReadAll(io.LimitReader(p.conn, 64)) // until the init is gone, or we let go of it
	if err == nil {
		word, n, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		p.end.word = word
		if p.end.n, err = strconv.Atoi(n); err != nil {
			p.end.n = -1
		}
	}
	p.finish()
}

// Close ends the command and everything that it started, and waits until it is gone.
func (p *Process) Close() {
	p.mu.Lock()
	p.closing = true
	if p.conn != nil {
		p.conn.Close() // the init ends, and with it all processes of its namespace
	} else if p.life != nil {
		p.life.Close() // it does not begin
	}
	p.mu.Unlock()
	<-p.done
}

// finish clears everything away, once.
func (p *Process) finish() {
	p.once.Do(func() {
		defer close(p.done)
		for _, l := range []*net.UnixListener{p.life, p.gate} {
			if l != nil {
				l.Close()
			}
		}
		if p.conn != nil {
			p.conn.Close()
		}
		if p.cmd != nil {
			p.reap()
		}
		if p.group != nil {
			p.mu.Lock()
			closed := p.closing
			p.mu.Unlock()
			if !closed && p.group.overfull() {
				p.end = ended{"memory", int(p.r.o.Limits.Memory >> 20)}
			}
			p.group.end()
		}
		for _, f := range []*os.File{p.Stdin, p.Stdout} {
			if f != nil && p.cmd == nil {
				f.Close()
			}
		}
		if p.Stdin != nil {
			p.Stdin.Close()
		}
		if p.words != nil {
			p.words.close()
		}
		os.RemoveAll(p.dir)
		p.r.leave(p)
		if p.cmd != nil && p.name != "trial" {
			p.r.o.Log.Info("a stdio server's process ended", "server", p.name, "how", p.reason(), "stderr", p.words.last(), "stderr_bytes", p.words.bytes())
		}
	})
}

// reap waits for the wrapper, and kills it when it lingers.
func (p *Process) reap() {
	select {
	case <-p.waited:
		return
	case <-time.After(2 * time.Second):
	}
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.waited
}

// Why says how the process ended, for a log and never for a prompt; nil while it runs.
func (p *Process) Why() error {
	select {
	case <-p.done:
		return errors.New(p.reason() + ": " + p.words.last())
	default:
		return nil
	}
}

// What the init begins its own words with, and the status that it ends with then.
const (
	sandboxSays = "sandbox: "
	initFailed  = 125
)

// reason is a sentence of ours.
func (p *Process) reason() string {
	switch p.end.word {
	case "exit":
		if says, ok := strings.CutPrefix(p.words.last(), sandboxSays); ok && p.end.n == initFailed {
			return says // the init's own words
		}
		return "it ended by itself with status " + strconv.Itoa(p.end.n)
	case "signal":
		return "it was ended by the signal " + syscall.Signal(p.end.n).String()
	case "memory":
		return fmt.Sprintf("it wanted more than the %d MiB of memory that it may hold, and was ended", p.r.o.Limits.Memory>>20)
	case "":
		return "it was ended"
	}
	return "its sandbox could not " + p.end.word
}

// Reason is why the process ended by itself, "" while it runs or when it was closed.
func (p *Process) Reason() string {
	select {
	case <-p.done:
		if p.end.word != "" {
			return p.reason()
		}
	default:
	}
	return ""
}
