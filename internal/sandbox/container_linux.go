package sandbox

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// container wraps commands with docker or podman, in an image that config names.
type container struct {
	engine, path, version, image string
}

func newContainer(engine, image string) (*container, error) {
	if image == "" {
		return nil, &errUnusable{"sandbox: container needs an image (sandbox.image)", nil}
	}
	for _, name := range []string{"docker", "podman"} {
		if engine != "" && engine != name {
			continue
		}
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, "--version").Output()
		if err != nil {
			return nil, &errUnusable{name + " does not start", err}
		}
		version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return &container{name, path, version, image}, nil
	}
	return nil, &errUnusable{"neither docker nor podman is installed", nil}
}

func (c *container) about() string { return c.version + ", image " + c.image }

func (c *container) uids() bool { return true }

func (c *container) holds() []string { return []string{"memory and processes by " + c.engine} }

func (c *container) wrap(x *box) (*exec.Cmd, error) {
	size := strconv.FormatInt(x.limits.FileBytes, 10)
	a := []string{"run", "--rm", "--interactive", "--pull", "never", "--network", "none", "--read-only", "--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "SETPCAP",
		"--security-opt", "no-new-privileges", "--hostname", "sandbox", "--user", "0:0", "--workdir", home,
		"--memory", strconv.FormatInt(x.limits.Memory, 10), "--memory-swap", strconv.FormatInt(x.limits.Memory, 10), "--pids-limit", strconv.Itoa(x.limits.Processes + 32), "--shm-size", size,
		"--tmpfs", "/tmp:rw,mode=1777,size=" + size, "--tmpfs", home + ":rw,mode=1777,size=" + size}
	for _, dir := range x.read {
		a = append(a, "--volume", dir+":"+dir+":ro")
	}
	for _, name := range x.names {
		if strings.HasPrefix(name, "etc.") {
			continue // the image's own
		}
		a = append(a, "--volume", filepath.Join(x.dir, name)+":"+filepath.Join(Inside, name)+":ro")
	}
	for _, v := range x.env {
		if !strings.HasPrefix(v, "PATH=") { // the image's own
			a = append(a, "--env", v)
		}
	}
	a = append(a, "--entrypoint", x.init[0], c.image)
	return exec.Command(c.path, append(a, x.init[1:]...)...), nil
}
