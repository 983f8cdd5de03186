//go:build linux

// Command init is process 1 of a sandbox. It promises that nothing inside outlives the
// Patchbay that started it, that what runs has the limits and the user that were set, that
// more memory than that ends it all, and that the one way out leads to the credential
// gateway. It is built by make inits, embedded in package sandbox, and knows nothing else
// of Patchbay.
//
//	init uid=N gid=N nproc=N nofile=N fsize=N cpu=N rss=N port=N -- COMMAND ARGS...
//
// It says how things ended on the life socket, one word and a number, and waits there for
// its first byte before it starts anything.
package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	self       = "/run/patchbay/init"
	lifeSocket = "/run/patchbay/life.sock"
	gateSocket = "/run/patchbay/egress.sock"

	maxRelays  = 128
	watchEvery = 200 * time.Millisecond

	// Of linux/prctl.h and asm-generic/resource.h.
	prSetDumpable   = 4
	prCapbsetDrop   = 24
	prSetNoNewPrivs = 38
	rlimitNproc     = 6
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "enter" {
		enter(os.Args[2:])
	}
	o, command := options(os.Args[1:])
	life, err := dial(lifeSocket)
	if err != nil {
		die("its starter is not there")
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	if _, err := life.Read(make([]byte, 1)); err != nil {
		os.Exit(0)
	}
	if err := relay(int(o["port"])); err != nil {
		say(life, "relay", 0)
		os.Exit(125)
	}
	pid, err := syscall.ForkExec(self, append([]string{self, "enter"}, os.Args[1:]...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil || len(command) == 0 {
		say(life, "start", 0)
		os.Exit(125)
	}
	// What this process holds of the streams would keep them open after the command.
	for fd := range 3 {
		syscall.Close(fd)
	}
	go func() {
		life.Read(make([]byte, 1))
		os.Exit(0) // its starter is gone: as process 1 goes, so goes everything here
	}()
	go watch(life, o["rss"])
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			os.Exit(125)
		}
		if got != pid {
			continue // an orphan
		}
		if status.Signaled() {
			say(life, "signal", int(status.Signal()))
			os.Exit(128 + int(status.Signal()))
		}
		say(life, "exit", status.ExitStatus())
		os.Exit(status.ExitStatus())
	}
}

func options(args []string) (map[string]uint64, []string) {
	o := map[string]uint64{}
	for i, a := range args {
		if a == "--" {
			return o, args[i+1:]
		}
		k, v, _ := strings.Cut(a, "=")
		n, err := strconv.ParseUint(v, 10, 63)
		if err != nil {
			die("bad option " + a)
		}
		o[k] = n
	}
	return o, nil
}

func die(why string) {
	os.Stderr.WriteString("sandbox: " + why + "\n")
	os.Exit(125)
}

func say(life *os.File, word string, n int) { life.WriteString(word + " " + strconv.Itoa(n) + "\n") }

// enter takes the limits and the user on, and becomes the command.
func enter(args []string) {
	o, command := options(args)
	for _, l := range []struct {
		what int
		name string
	}{{rlimitNproc, "nproc"}, {syscall.RLIMIT_NOFILE, "nofile"}, {syscall.RLIMIT_FSIZE, "fsize"}, {syscall.RLIMIT_CPU, "cpu"}, {syscall.RLIMIT_CORE, "core"}} {
		if err := syscall.Setrlimit(l.what, &syscall.Rlimit{Cur: o[l.name], Max: o[l.name]}); err != nil {
			die("the limit of " + l.name + " cannot be set")
		}
	}
	syscall.Setpriority(syscall.PRIO_PROCESS, 0, 5) // beside the server's own work
	if uid := int(o["uid"]); uid != 0 {
		for c := range uintptr(64) { // the bounding set; what it does not have is no error to us
			syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, c, 0)
		}
		if syscall.Setgroups(nil) != nil || syscall.Setresgid(int(o["gid"]), int(o["gid"]), int(o["gid"])) != nil || syscall.Setresuid(uid, uid, uid) != nil {
			die("its user cannot be taken on")
		}
		var none [2]unix.CapUserData // the inheritable set is left
		if unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]) != nil {
			die("its capabilities cannot be given up")
		}
	}
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0); err != 0 {
		die("privileges cannot be given up")
	}
	path := look(command[0])
	if path == "" {
		die("there is no command " + strconv.Quote(command[0]) + " in the sandbox")
	}
	err := syscall.Exec(path, command, os.Environ())
	die(strconv.Quote(command[0]) + " cannot be run: " + err.Error())
}

// look finds a command as a shell does.
func look(name string) string {
	runs := func(p string) bool {
		st, err := os.Stat(p)
		return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
	}
	if strings.Contains(name, "/") {
		if runs(name) {
			return name
		}
		return ""
	}
	for _, dir := range strings.Split(os.Getenv("PATH"), ":") {
		if p := dir + "/" + name; dir != "" && runs(p) {
			return p
		}
	}
	return ""
}

// watch ends everything when the processes here hold more memory than they may, with what
// lies in the places where they can write. A limit on addresses would end Go and Node at
// their start. What cannot be looked at is taken for too much.
func watch(life *os.File, most uint64) {
	for {
		time.Sleep(watchEvery)
		total, ok := resident()
		for _, dir := range []string{"/tmp", "/home/agent", "/dev/shm"} {
			var st syscall.Statfs_t
			if syscall.Statfs(dir, &st) == nil {
				total += (st.Blocks - st.Bfree) * uint64(st.Bsize)
			}
		}
		if !ok || total > most {
			say(life, "memory", int(total>>20))
			os.Exit(137)
		}
	}
}

// resident sums what all processes here hold.
func resident() (total uint64, ok bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0, false
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return 0, false
	}
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' || name == "1" {
			continue
		}
		n := statm("/proc/" + name + "/statm")
		if n == 0 { // its first thread has ended; the others hold what it holds
			if tasks, err := os.ReadDir("/proc/" + name + "/task"); err == nil {
				for _, t := range tasks {
					n = max(n, statm("/proc/"+name+"/task/"+t.Name()+"/statm"))
				}
			}
		}
		total += n
	}
	return total, true
}

func statm(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0 // it has ended
	}
	words := strings.Fields(string(b))
	if len(words) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(words[1], 10, 63)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

func dial(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// relay carries what is sent to the port of this network, which holds nothing else, to the
// credential gateway.
func relay(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := syscall.Listen(fd, maxRelays); err != nil {
		return err
	}
	slots := make(chan struct{}, maxRelays)
	go func() {
		for {
			slots <- struct{}{}
			near, _, err := syscall.Accept4(fd, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
			if err != nil {
				<-slots
				time.Sleep(10 * time.Millisecond)
				continue
			}
			go func() {
				defer func() { <-slots }()
				join(os.NewFile(uintptr(near), "near"))
			}()
		}
	}()
	return nil
}

func join(near *os.File) {
	defer near.Close()
	far, err := dial(gateSocket)
	if err != nil {
		return
	}
	defer far.Close()
	done := make(chan struct{})
	go func() {
		pump(far, near)
		close(done)
	}()
	pump(near, far)
	<-done
}

// pump copies until the end, and passes the end on.
func pump(to, from *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err != nil || n == 0 {
			break
		}
	}
	for _, half := range []struct {
		f   *os.File
		how int
	}{{to, syscall.SHUT_WR}, {from, syscall.SHUT_RD}} {
		if c, err := half.f.SyscallConn(); err == nil {
			c.Control(func(fd uintptr) { syscall.Shutdown(int(fd), half.how) })
		}
	}
}
