package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/internal/plane"
)

// groups are the cgroups under which this process may make others: one directory for each
// controller, or one for all.
type groups struct {
	dirs map[string]string // controller: directory
	v2   bool
}

const cgroupRoot = "/sys/fs/cgroup"

// findGroups looks for what can be written here. What cannot be written is not used.
func findGroups() *groups {
	g := &groups{dirs: map[string]string{}}
	_, err := os.Stat(cgroupRoot + "/cgroup.controllers")
	g.v2 = err == nil
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return g
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(own)), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, c := range []string{"memory", "pids", "cpu"} {
			dir := filepath.Join(cgroupRoot, c, parts[2])
			if g.v2 {
				dir = filepath.Join(cgroupRoot, parts[2])
			}
			if (!g.v2 && slices.Contains(strings.Split(parts[1], ","), c) || g.v2 && parts[1] == "") && g.works(dir, c) {
				g.dirs[c] = dir
			}
		}
	}
	return g
}

// knob is the file that bounds a controller.
func (g *groups) knob(c string) string {
	switch {
	case c == "memory" && !g.v2:
		return "memory.limit_in_bytes"
	case c == "cpu" && !g.v2:
		return "cpu.cfs_quota_us"
	}
	return c + ".max"
}

// beside are further bounds of a controller: no swap, and all of a group ends at once.
func (g *groups) beside(c string, l Limits) map[string]string {
	switch {
	case c == "memory" && g.v2:
		return map[string]string{"memory.swap.max": "0", "memory.oom.group": "1"}
	case c == "memory":
		return map[string]string{"memory.memsw.limit_in_bytes": strconv.FormatInt(l.Memory, 10)}
	}
	return nil
}

const groupPrefix = "patchbay-"

// sweep takes away the groups of processes that were killed.
func (g *groups) sweep() {
	for _, dir := range g.dirs {
		left, err := filepath.Glob(filepath.Join(dir, groupPrefix+"*-*"))
		if err != nil {
			continue
		}
		for _, l := range left {
			pid, err := strconv.Atoi(strings.Split(filepath.Base(l), "-")[1])
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				os.Remove(l) // one that is not empty stays
			}
		}
	}
}

// works tries whether a group can be made there and bounded.
func (g *groups) works(dir, c string) bool {
	trial := filepath.Join(dir, groupPrefix+strconv.Itoa(os.Getpid())+"-trial")
	if os.Mkdir(trial, 0o755) != nil {
		return false
	}
	defer os.Remove(trial)
	f, err := os.OpenFile(filepath.Join(trial, g.knob(c)), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func (g *groups) names() []string {
	var out []string
	for c := range g.dirs {
		out = append(out, c)
	}
	slices.Sort(out)
	return out
}

// cpus is how much of the machine one sandbox may use, in processors.
const cpus = 1

// group is one sandbox's.
type group struct{ dirs []string }

// put makes a group and puts the process at the other end of a connection into it, before
// that starts anything.
func (g *groups) put(conn *net.UnixConn, l Limits) (*group, error) {
	out := &group{}
	if len(g.dirs) == 0 {
		return out, nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return out, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		return out, fmt.Errorf("whose connection it is cannot be seen: %w", errors.Join(cerr, err))
	}
	if cred.Pid <= 0 || int(cred.Pid) == os.Getpid() { // 0 would be ourselves
		return out, errors.New("the sandbox's init cannot be seen from here, to be put under a cgroup")
	}
	name := groupPrefix + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(string(plane.NewSessionID(time.Now())))
	values := map[string]string{"memory": strconv.FormatInt(l.Memory, 10), "pids": strconv.Itoa(l.Processes + 32), "cpu": strconv.Itoa(cpus * 100_000)}
	if g.v2 {
		values["cpu"] += " 100000"
	}
	for c, parent := range g.dirs {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			continue // less holds; the init's own limits do
		}
		if !slices.Contains(out.dirs, dir) {
			out.dirs = append(out.dirs, dir)
		}
		if err := os.WriteFile(filepath.Join(dir, g.knob(c)), []byte(values[c]), 0); err != nil {
			continue
		}
		for knob, value := range g.beside(c, l) { // what the kernel here has of it
			if err := os.WriteFile(filepath.Join(dir, knob), []byte(value), 0); err != nil && !os.IsNotExist(err) {
				continue
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(int(cred.Pid))), 0); err != nil {
			out.end()
			return &group{}, fmt.Errorf("the sandbox cannot be put under a cgroup: %w", err)
		}
	}
	return out, nil
}

// overfull reports that the kernel ended a process here for want of memory.
func (g *group) overfull() bool {
	for _, dir := range g.dirs {
		for _, f := range []string{"memory.events", "memory.oom_control"} {
			b, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil {
				continue
			}
			for line := range strings.SplitSeq(string(b), "\n") {
				if n, ok := strings.CutPrefix(line, "oom_kill "); ok && n != "0" {
					return true
				}
			}
		}
	}
	return false
}

// end takes the group away, with whatever is left in it.
func (g *group) end() {
	for _, dir := range g.dirs {
		for range 50 {
			if os.Remove(dir) == nil || os.IsNotExist(syscall.Access(dir, 0)) {
				break
			}
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				break
			}
			for p := range strings.FieldsSeq(string(b)) {
				if pid, err := strconv.Atoi(p); err == nil && pid != os.Getpid() {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
