package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// bubblewrap wraps commands with Debian's package: namespaces of their own, a root of their
// own, and no capability.
type bubblewrap struct {
	path, version string
	root          bool
}

func newBubblewrap() (*bubblewrap, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, &errUnusable{"bubblewrap is not installed (apt install bubblewrap)", nil}
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return nil, &errUnusable{"bubblewrap does not start", err}
	}
	return &bubblewrap{path: path, version: strings.TrimSpace(string(out)), root: os.Geteuid() == 0}, nil
}

func (b *bubblewrap) about() string { return b.version }

// uids: as root every sandbox gets a user that nobody else has, so that the number of its
// processes is its own; as anybody else its namespace of users counts them.
func (b *bubblewrap) uids() bool { return b.root }

func (b *bubblewrap) holds() []string { return nil }

// system is what programs need of the host's system to start.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}

// settings are the files of /etc that programs read to start; none holds a secret.
var settings = []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/mime.types", "/etc/ssl/openssl.cnf"}

func (b *bubblewrap) wrap(x *box) (*exec.Cmd, error) {
	a := []string{"--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1", "--new-session", "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"}
	if b.root {
		a = append(a, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP") // the init gives them up
	} else {
		a = append(a, "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000")
	}
	size := strconv.FormatInt(x.limits.FileBytes, 10)
	for _, dir := range system {
		switch st, err := os.Lstat(dir); {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(dir)
			if err != nil {
				return nil, err
			}
			a = append(a, "--symlink", to, dir)
		default:
			a = append(a, "--ro-bind", dir, dir)
		}
	}
	for _, f := range settings {
		a = append(ways(a, f), "--ro-bind-try", f, f)
	}
	a = append(a, "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--perms", "1777", "--size", size, "--tmpfs", home, "--dir", Inside)
	for _, dir := range x.read {
		a = append(ways(a, dir), "--ro-bind", dir, dir)
	}
	for _, name := range x.names {
		to := filepath.Join(Inside, name)
		if rest, ok := strings.CutPrefix(name, "etc."); ok {
			to = "/etc/" + rest
		}
		a = append(a, "--ro-bind", filepath.Join(x.dir, name), to)
	}
	a = append(a, "--remount-ro", "/", "--chdir", home)
	for _, v := range x.env {
		k, value, _ := strings.Cut(v, "=")
		a = append(a, "--setenv", k, value)
	}
	filter, err := os.Open(x.filter)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(b.path, append(append(a, "--seccomp", "3", "--"), x.init...)...)
	cmd.ExtraFiles = []*os.File{filter}
	return cmd, nil
}

// ways makes the directories above a path: those that bubblewrap makes of itself only root
// may enter.
func ways(a []string, path string) []string {
	for i := range path {
		if i > 0 && path[i] == '/' {
			a = append(a, "--perms", "0755", "--dir", path[:i])
		}
	}
	return a
}

// home is empty, and what is written there is gone with the sandbox.
const home = "/home/agent"
