// Package storetest is the behaviour that every database must show, and the
// throwaway PostgreSQL cluster that tests and benchmarks run against. Test code
// only.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"patchbay/internal/freeport"
)

// Cluster is a running PostgreSQL.
type Cluster struct {
	URL string
	run func(name string, args ...string) error
	dir string
	up  []string // pg_ctl's arguments that start it
}

// Restart ends every connection at once, as a crash does, and starts it again.
func (c *Cluster) Restart() error {
	if err := c.run("pg_ctl", "-D", c.data(), "-m", "immediate", "-w", "stop"); err != nil {
		return err
	}
	return c.run("pg_ctl", c.up...)
}

// Data is the directory of its files.
func (c *Cluster) Data() string { return c.data() }

// Reopen starts another cluster on a copy of one's files, as they were left on a disk, and
// returns its URL and its end.
func (c *Cluster) Reopen(data string) (url string, stop func(), err error) {
	for _, args := range [][]string{{"chown", "-R", "postgres", data}, {"chmod", "700", data}, {"rm", "-f", filepath.Join(data, "postmaster.pid")}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil && os.Getuid() == 0 {
			return "", nil, fmt.Errorf("storetest: %w: %s", err, out)
		}
	}
	port, err := freeport.Take()
	if err != nil {
		return "", nil, err
	}
	log := filepath.Join(c.dir, fmt.Sprintf("log-%d", port))
	err = c.run("pg_ctl", "-D", data, "-w", "-l", log, "-o", fmt.Sprintf("-p %d -k %s -c listen_addresses=127.0.0.1", port, c.dir), "start")
	if err != nil {
		why, _ := os.ReadFile(log) // the reason is there, if anywhere
		return "", nil, fmt.Errorf("%w%s", err, why)
	}
	return "postgres://postgres@" + freeport.Addr(port) + "/postgres?sslmode=disable", func() { c.run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop") }, nil
}

// Stop ends it and takes its files away.
func (c *Cluster) Stop() {
	c.run("pg_ctl", "-D", c.data(), "-m", "immediate", "stop") // the files go next; nothing depends on it
	os.RemoveAll(c.dir)
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// StartPostgres is StartCluster for who needs its URL and its end.
func StartPostgres() (url string, stop func(), err error) {
	c, err := StartCluster()
	if err != nil {
		return "", nil, err
	}
	return c.URL, c.Stop, nil
}

// StartCluster starts a cluster of its own on loopback. As root it runs as the
// user postgres, which PostgreSQL demands.
func StartCluster() (_ *Cluster, err error) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return nil, errors.New("storetest: PostgreSQL is not installed (Debian package postgresql)")
	}
	bin := bins[len(bins)-1]
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	run := func(name string, args ...string) error {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		if os.Getuid() == 0 {
			cmd = exec.Command("runuser", append([]string{"-u", "postgres", "--", filepath.Join(bin, name)}, args...)...)
		}
		cmd.Dir = dir
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.WaitDelay = time.Second // pg_ctl's child keeps the pipe
		if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return fmt.Errorf("storetest: %s: %w: %s", name, err, out.String())
		}
		return nil
	}
	if os.Getuid() == 0 {
		if out, err := exec.Command("chown", "postgres", dir).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("storetest: %w: %s", err, out)
		}
	}
	data := filepath.Join(dir, "data")
	if err := run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale"); err != nil {
		return nil, err
	}
	port, err := freeport.Take()
	if err != nil {
		return nil, err
	}
	opts := fmt.Sprintf("-p %d -k %s -c listen_addresses=127.0.0.1 -c max_connections=200", port, dir)
	cl := &Cluster{dir: dir, run: run, up: []string{"-D", data, "-w", "-l", filepath.Join(dir, "log"), "-o", opts, "start"}}
	if err := run("pg_ctl", cl.up...); err != nil {
		why, _ := os.ReadFile(filepath.Join(dir, "log")) // the reason is there, if anywhere
		return nil, fmt.Errorf("%w%s", err, why)
	}
	cl.URL = "postgres://postgres@" + freeport.Addr(port) + "/postgres?sslmode=disable"
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, cl.URL)
		if err == nil {
			return cl, c.Close(ctx)
		}
		if ctx.Err() != nil {
			cl.Stop()
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
