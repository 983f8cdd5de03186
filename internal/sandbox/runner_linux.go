package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"patchbay/internal/plane"
)

// Runner starts sandboxes by one backend. Close it.
type Runner struct {
	o       Options
	back    backend
	dir     string // the init, the filter and the files of /etc
	groups  *groups
	firstID int // of the users that sandboxes get

	mu     sync.Mutex
	slots  []bool
	open   map[*Process]struct{}
	closed bool
}

// started is how long a sandbox may take until its command runs.
const started = 10 * time.Second

// New makes a runner and runs a command in it, to see that it can. The error says why
// there is no sandbox here.
func New(ctx context.Context, o Options) (*Runner, error) {
	if o.Most <= 0 {
		o.Most = 64
	}
	r := &Runner{o: o, open: map[*Process]struct{}{}, slots: make([]bool, o.Most)}
	var err error
	switch o.Kind {
	case "container":
		r.back, err = newContainer(o.Engine, o.Image)
	default:
		r.back, err = newBubblewrap()
	}
	if err != nil {
		return nil, err
	}
	// Far above what systems give to people, services and containers.
	r.firstID = 1_900_000_000 + rand.IntN(1000)*o.Most
	if r.o.Kind == "container" { // an engine without root has this many
		r.firstID = 60_000
	}
	for _, dir := range o.Read {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, &errUnusable{"sandbox.read: " + dir + " is no directory here", err}
		}
	}
	if err := r.files(); err != nil {
		return nil, &errUnusable{"the sandbox's files cannot be written", err}
	}
	if r.groups = (&groups{}); o.Kind != "container" { // an engine has its own
		r.groups = findGroups()
		r.groups.sweep()
	}
	if err := r.try(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// try runs the init's shortest way.
func (r *Runner) try(ctx context.Context) error {
	p, err := r.Start(ctx, Spec{Name: "trial", Command: "true"})
	if err != nil {
		return &errUnusable{r.back.about() + " cannot make a sandbox here", err}
	}
	defer p.Close()
	select {
	case <-p.Done():
	case <-time.After(started):
		return &errUnusable{r.back.about() + " does not end", nil}
	}
	if p.end.word != "exit" || p.end.n != 0 {
		return &errUnusable{r.back.about() + " cannot run a command", p.Why()}
	}
	return nil
}

// files writes what every sandbox is shown.
func (r *Runner) files() error {
	sweep()
	dir, err := os.MkdirTemp("", fmt.Sprintf("patchbay-sandbox-%d-", os.Getpid()))
	if err != nil {
		return err
	}
	r.dir = dir
	program, err := initProgram()
	if err != nil {
		return err
	}
	for name, f := range map[string]struct {
		b    []byte
		mode os.FileMode
	}{
		"init":              {program, 0o755},
		"filter":            {filter(), 0o644},
		"etc.passwd":        {[]byte("root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:" + home + ":/bin/sh\n"), 0o644},
		"etc.group":         {[]byte("root:x:0:\nagent:x:1000:\n"), 0o644},
		"etc.hosts":         {[]byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644},
		"etc.nsswitch.conf": {[]byte("passwd: files\ngroup: files\nhosts: files\n"), 0o644},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), f.b, f.mode); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), f.mode); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// sweep takes away what a killed process left.
func sweep() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "patchbay-sandbox-*-*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[2])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			os.RemoveAll(dir)
		}
	}
}

// Force says which limits hold here, for people.
func (r *Runner) Force() []string {
	l := r.o.Limits
	out := []string{r.back.about(), "no network but the way to the credential gateway", "read-only system, empty home",
		fmt.Sprintf("%d processes, %d files, %d MiB of memory, %s of CPU a process", l.Processes, l.Files, l.Memory>>20, l.CPU)}
	if r.o.Kind == "container" {
		out = append(out, "the engine's seccomp filter")
	} else {
		out = append(out, "a seccomp filter of "+strconv.Itoa(len(refused)+len(missing)+5)+" rules")
	}
	if r.back.uids() {
		out = append(out, "a user of its own")
	} else {
		out = append(out, "a namespace of users")
	}
	out = append(out, r.back.holds()...)
	names := r.groups.names()
	if len(names) > 0 {
		out = append(out, "cgroups: "+strings.Join(names, ", "))
	}
	if r.o.Kind != "container" && !slices.Contains(names, "memory") {
		out = append(out, "no cgroup for memory can be written here: it is watched, and what the kernel holds for a server is not counted")
	}
	return out
}

// Close ends every sandbox.
func (r *Runner) Close() {
	r.mu.Lock()
	r.closed = true
	var all []*Process
	for p := range r.open {
		all = append(all, p)
	}
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range all {
		wg.Go(p.Close)
	}
	wg.Wait()
	os.RemoveAll(r.dir)
}

func (r *Runner) enter(p *Process) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return plane.Errorf(plane.Unavailable, "Patchbay is stopping.")
	}
	for i, taken := range r.slots {
		if !taken {
			r.slots[i], p.slot = true, i
			r.open[p] = struct{}{}
			return nil
		}
	}
	return plane.Errorf(plane.Limited, "%d stdio servers run already, which is the most.", len(r.slots)).Over("sandboxes")
}

func (r *Runner) leave(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.open[p]; ok {
		delete(r.open, p)
		r.slots[p.slot] = false
	}
}

// Start runs a command in a sandbox of its own. It returns when the command has begun.
func (r *Runner) Start(ctx context.Context, s Spec) (*Process, error) {
	p := &Process{r: r, name: s.Name, done: make(chan struct{})}
	if err := r.enter(p); err != nil {
		return nil, err
	}
	if err := r.start(ctx, p, s); err != nil {
		p.finish()
		return nil, err
	}
	return p, nil
}

func (r *Runner) start(ctx context.Context, p *Process, s Spec) error {
	var err error
	if p.dir, err = os.MkdirTemp(r.dir, "box"); err != nil {
		return err
	}
	b := &box{dir: p.dir, limits: r.o.Limits, filter: filepath.Join(r.dir, "filter"), read: r.o.Read, names: []string{"life.sock"}}
	life, err := listen(filepath.Join(p.dir, "life.sock"))
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.life = life
	p.mu.Unlock()
	if s.Gateway != nil {
		gate, err := listen(filepath.Join(p.dir, "egress.sock"))
		if err != nil {
			return err
		}
		p.gate = gate
		b.names = append(b.names, "egress.sock")
		go s.Gateway(gate)
	}
	if err := r.show(b, s.Files); err != nil {
		return err
	}
	if r.back.uids() {
		b.uid = r.firstID + p.slot
	}
	l := r.o.Limits
	b.env = append([]string{"PATH=" + searchPath(b.read), "HOME=" + home, "TMPDIR=/tmp", "LANG=C.UTF-8", "USER=agent"}, s.Env...)
	b.init = append([]string{Inside + "/init", fmt.Sprintf("uid=%d", b.uid), fmt.Sprintf("gid=%d", b.uid), fmt.Sprintf("nproc=%d", l.Processes), fmt.Sprintf("nofile=%d", l.Files),
		fmt.Sprintf("fsize=%d", l.FileBytes), fmt.Sprintf("cpu=%d", int(l.CPU.Seconds())), "core=0", fmt.Sprintf("rss=%d", l.Memory), fmt.Sprintf("port=%d", proxyPort), "--", s.Command}, s.Args...)
	cmd, err := r.back.wrap(b)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}()
	if err := p.spawn(cmd); err != nil {
		return err
	}
	return p.begin(ctx)
}

// show puts the files that all sandboxes have, and those of this one, in the box's
// directory.
func (r *Runner) show(b *box, own map[string][]byte) error {
	common, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range common {
		if e.IsDir() || e.Name() == "filter" {
			continue
		}
		if err := os.Link(filepath.Join(r.dir, e.Name()), filepath.Join(b.dir, e.Name())); err != nil {
			return err
		}
		b.names = append(b.names, e.Name())
	}
	for name, content := range own {
		path := filepath.Join(b.dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil {
			return err
		}
		b.names = append(b.names, name)
	}
	return nil
}

// listen opens a socket that a sandbox's user may speak to; the directory around it is
// nobody else's.
func listen(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o666)
}

// searchPath finds commands in the system and in what config shows.
func searchPath(read []string) string {
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, dir := range read {
		for _, sub := range []string{"", "bin", "node_modules/.bin", ".bin"} {
			path += ":" + filepath.Join(dir, sub)
		}
	}
	return path
}
