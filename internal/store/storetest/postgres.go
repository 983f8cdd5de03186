// Package storetest is the behaviour that every database must show, and the
// throwaway PostgreSQL cluster that tests and benchmarks run against. Test code
// only.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartPostgres starts a cluster of its own on loopback and returns its URL and
// what ends it. As root it runs as the user postgres, which PostgreSQL demands.
func StartPostgres() (url string, stop func(), err error) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return "", nil, errors.New("storetest: PostgreSQL is not installed (Debian package postgresql)")
	}
	bin := bins[len(bins)-1]
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return "", nil, err
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
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
			return "", nil, fmt.Errorf("storetest: %w: %s", err, out)
		}
	}
	data := filepath.Join(dir, "data")
	if err := run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale"); err != nil {
		return "", nil, err
	}
	opts := fmt.Sprintf("-p %d -k %s -c listen_addresses=127.0.0.1 -c max_connections=200", port, dir)
	if err := run("pg_ctl", "-D", data, "-w", "-l", filepath.Join(dir, "log"), "-o", opts, "start"); err != nil {
		return "", nil, err
	}
	stop = func() {
		run("pg_ctl", "-D", data, "-m", "immediate", "stop") // the files go next; nothing depends on it
		os.RemoveAll(dir)
	}
	url = "postgres://postgres@127.0.0.1:" + strconv.Itoa(port) + "/postgres?sslmode=disable"
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, url)
		if err == nil {
			return url, stop, c.Close(ctx)
		}
		if ctx.Err() != nil {
			stop()
			return "", nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
