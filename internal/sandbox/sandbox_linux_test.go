package sandbox

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func runner(t *testing.T, change func(*Options)) *Runner {
	t.Helper()
	o := Options{Kind: "bubblewrap", Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), Most: 8}
	if change != nil {
		change(&o)
	}
	r, err := New(t.Context(), o)
	if err != nil {
		t.Fatalf("no sandbox here: %v", err)
	}
	t.Cleanup(r.Close)
	return r
}

// inside runs a shell's words in a sandbox and returns what it printed.
func inside(t *testing.T, r *Runner, s Spec, script string) (string, *Process) {
	t.Helper()
	s.Name, s.Command, s.Args = "test", "sh", []string{"-c", script}
	p, err := r.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(p.Stdout, 1<<20))
		if err != nil {
			b = append(b, err.Error()...)
		}
		out <- string(b)
	}()
	select {
	case text := <-out:
		return text, p
	case <-time.After(20 * time.Second):
		p.Close()
		t.Fatalf("%q does not end", script)
	}
	return "", nil
}

// TestNothingOfTheHost looks around from inside.
func TestNothingOfTheHost(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secretFile, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATCHBAY_KEYS", "a key of the server")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	shown := filepath.Join(t.TempDir(), "deep", "shown")
	if err := os.MkdirAll(shown, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shown, "tool"), []byte("#!/bin/sh\necho by config\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := runner(t, func(o *Options) { o.Read = []string{shown} })
	for name, tt := range map[string]struct{ script, want string }{
		"what config shows":          {"tool; touch " + shown + "/x 2>/dev/null || echo refused", "by config\nrefused"},
		"a file of the host":         {"cat " + secretFile + " 2>/dev/null || echo refused", "refused"},
		"the home of root":           {"ls -A /root 2>/dev/null | wc -l", "0"},
		"passwords":                  {"cat /etc/shadow 2>/dev/null || echo refused", "refused"},
		"people":                     {"grep -c . /etc/passwd", "2"},
		"the environment":            {"env | grep -c KEYS", "0"},
		"other processes":            {"[ $(ls /proc | grep -c '^[0-9]') -lt 8 ] && echo few", "few"},
		"the system":                 {"touch /usr/x 2>/dev/null || echo refused", "refused"},
		"the root":                   {"touch /x 2>/dev/null || echo refused", "refused"},
		"its own init":               {"echo > /run/patchbay/init 2>/dev/null || echo refused", "refused"},
		"its home":                   {"pwd; echo kept > f && cat f", "/home/agent\nkept"},
		"a port of the host":         {"exec 3<>/dev/tcp/127.0.0.1/" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port) + " 2>/dev/null && echo reached || echo refused", "refused"},
		"any address":                {"timeout 3 bash -c 'exec 3<>/dev/tcp/1.1.1.1/80' 2>/dev/null && echo reached || echo refused", "refused"},
		"a namespace of its own":     {"unshare -U true 2>/dev/null && echo made || echo refused", "refused"},
		"a mount":                    {"mount -t tmpfs x /tmp 2>/dev/null && echo made || echo refused", "refused"},
		"capabilities":               {"grep -E 'Cap(Eff|Prm|Bnd|Amb)' /proc/self/status | grep -vc 0000000000000000", "0"},
		"privileges to come":         {"grep NoNewPrivs /proc/self/status | cut -f2", "1"},
		"the filter":                 {"grep Seccomp: /proc/self/status | cut -f2", "2"},
		"the memory of process 1":    {"head -c1 /proc/1/mem >/dev/null 2>&1 && echo read || echo refused", "refused"},
		"the environment of 1":       {"cat /proc/1/environ 2>/dev/null | wc -c", "0"},
		"the end of process 1":       {"kill -9 1 2>/dev/null; sleep 0.2; echo alive", "alive"},
		"a device":                   {"ls /dev/mem /dev/kmsg /dev/sda 2>/dev/null | wc -l", "0"},
		"more than its share of tmp": {"head -c 300000000 /dev/zero > /tmp/big 2>/dev/null; [ $(stat -c %s /tmp/big) -lt 300000000 ] && echo bounded", "bounded"},
		"shared memory":              {"mkdir /dev/x 2>/dev/null || echo refused", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			script := "bash -c " + quoted(tt.script)
			got, p := inside(t, r, Spec{}, script)
			p.Close()
			if strings.TrimSpace(got) != tt.want {
				t.Errorf("%s\ngave %q, want %q", tt.script, got, tt.want)
			}
		})
	}
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// TestTheOneWayOut: what is sent to the proxy's address arrives at the gateway's socket.
func TestTheOneWayOut(t *testing.T) {
	r := runner(t, nil)
	gateway := func(l net.Listener) {
		http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "asked for %s", req.URL) }))
	}
	got, p := inside(t, r, Spec{Gateway: gateway, Files: map[string][]byte{"ca.pem": []byte("a certificate")}, Env: []string{"HTTP_PROXY=" + Proxy, "http_proxy=" + Proxy}},
		"curl -sS http://api.example.com/x; cat /run/patchbay/ca.pem")
	p.Close()
	if got != "asked for http://api.example.com/xa certificate" {
		t.Errorf("%q; %v", got, p.Why())
	}
	got, p = inside(t, r, Spec{}, "curl -sS -x "+Proxy+" http://api.example.com/x 2>&1 | head -c 30")
	p.Close()
	if !strings.HasPrefix(got, "curl: (") {
		t.Errorf("without a gateway: %q", got)
	}
}

// TestBounds: what breaks out of its bounds is stopped there and named, and takes nobody
// else along.
func TestBounds(t *testing.T) {
	r := runner(t, func(o *Options) {
		o.Limits.Memory, o.Limits.Processes, o.Limits.Files, o.Limits.CPU = 200<<20, 40, 32, 2*time.Second
	})
	other, err := r.Start(t.Context(), Spec{Name: "other", Command: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for name, tt := range map[string]struct{ script, why string }{
		"memory":           {`python3 -c 'x = bytearray(600 << 20); import time; time.sleep(20)'`, "MiB of memory"},
		"shared memory":    {`python3 -c 'import mmap; mmap.mmap(-1, 1 << 20)' 2>/dev/null || exit 9`, "status 9"},
		"files in memory":  {`head -c 120000000 /dev/zero > /tmp/a; head -c 120000000 /dev/zero > /dev/shm/b; sleep 20`, "MiB of memory"},
		"another's limits": {`python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))' 2>/dev/null || exit 10`, "status 10"},
		"a dead first thread": {`python3 -c '
import ctypes, platform, threading, time
def hold():
    x = bytearray(600 << 20)
    time.sleep(20)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)'`, "MiB of memory"},
		"no such command in the sandbox": {`exec /run/patchbay/init enter uid=0 nproc=10 nofile=32 fsize=1000 cpu=1 core=0 -- nothing-of-the-kind`, "there is no command"},
		"a fork bomb":                    {`(for i in $(seq 200); do sleep 5 & done) 2>/dev/null; n=0; for d in /proc/[0-9]*; do n=$((n+1)); done; [ $n -lt 60 ] && exit 7; exit 6`, "status 7"},
		"files":                          {`python3 -c 'x = [open("/dev/null") for i in range(100)]' 2>/dev/null || exit 8`, "status 8"},
		"the processor":                  {`while :; do :; done`, "signal"},
		"a crash":                        {`kill -SEGV $$`, "segmentation fault"},
		"its end":                        {`exit 3`, "status 3"},
		"no command":                     {`exec no-such-command-here`, "status 127"},
	} {
		t.Run(name, func(t *testing.T) {
			_, p := inside(t, r, Spec{}, tt.script)
			select {
			case <-p.Done():
			case <-time.After(20 * time.Second):
				p.Close()
				t.Fatal("it goes on")
			}
			if !strings.Contains(p.Reason(), tt.why) {
				t.Errorf("%s; %v", p.Reason(), p.Why())
			}
		})
	}
	fmt.Fprintln(other.Stdin, "still here")
	if line, err := bufio.NewReader(other.Stdout).ReadString('\n'); err != nil || line != "still here\n" {
		t.Errorf("the other one: %q %v", line, err)
	}
}

// TestMuchOnStderr: a gigabyte there costs nothing but the reading.
func TestMuchOnStderr(t *testing.T) {
	r := runner(t, nil)
	_, p := inside(t, r, Spec{}, "head -c 1073741824 /dev/zero >&2; echo the last words >&2")
	<-p.Done()
	if p.words.bytes() < 1<<30 || !strings.HasSuffix(p.words.last(), "the last words") || len(p.words.tail) > keptWords {
		t.Errorf("%d bytes, kept %d", p.words.bytes(), len(p.words.tail))
	}
}

// TestTheWholeTreeEnds: children that detached themselves go too.
func TestTheWholeTreeEnds(t *testing.T) {
	r := runner(t, nil)
	mark := "sleep 98" + strconv.Itoa(os.Getpid()%1000)
	p, err := r.Start(t.Context(), Spec{Name: "test", Command: "sh", Args: []string{"-c", "setsid nohup " + mark + " >/dev/null 2>&1 & (setsid " + mark + " >/dev/null 2>&1 &); " + mark}})
	if err != nil {
		t.Fatal(err)
	}
	within(t, "all three run", func() bool { return count(t, mark) == 3 })
	p.Close()
	if n := count(t, mark); n != 0 {
		t.Errorf("%d outlived it", n)
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("its directory is still there: %v", err)
	}
}

// count is how many processes of this machine have that command line.
func count(t *testing.T, cmdline string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")) == cmdline {
			n++
		}
	}
	return n
}

// TestItDoesNotOutliveItsStarter kills a process that had started a sandbox.
func TestItDoesNotOutliveItsStarter(t *testing.T) {
	mark := "sleep 97" + strconv.Itoa(os.Getpid()%1000)
	if os.Getenv("SANDBOX_STARTER") != "" {
		r := runner(t, nil)
		p, err := r.Start(t.Context(), Spec{Name: "test", Command: "sh", Args: []string{"-c", os.Getenv("SANDBOX_STARTER")}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("started")
		<-p.Done()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestItDoesNotOutliveItsStarter$")
	cmd.Env = append(os.Environ(), "SANDBOX_STARTER=setsid "+mark+" & "+mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Fatalf("%q %v", line, err)
	}
	within(t, "both run", func() bool { return count(t, mark) == 2 })
	cmd.Process.Kill()
	cmd.Wait()
	within(t, "both are gone", func() bool { return count(t, mark) == 0 })
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not in time: %s", what)
}

// TestThereIsASandboxOrNothing: where none can be made, New says why, and the number of
// them is bounded.
func TestThereIsASandboxOrNothing(t *testing.T) {
	t.Run("no bubblewrap", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := New(t.Context(), Options{Kind: "bubblewrap", Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "apt install bubblewrap") {
			t.Error(err)
		}
	})
	t.Run("one that does not work", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "bwrap"), []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 9 && exit\necho 'No permissions to create a new namespace' >&2\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		_, err := New(t.Context(), Options{Kind: "bubblewrap", Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "No permissions") {
			t.Error(err)
		}
	})
	t.Run("too many", func(t *testing.T) {
		r := runner(t, func(o *Options) { o.Most = 1 })
		p, err := r.Start(t.Context(), Spec{Name: "one", Command: "cat"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Start(t.Context(), Spec{Name: "two", Command: "cat"}); err == nil || !strings.Contains(err.Error(), "which is the most") {
			t.Error(err)
		}
		p.Close()
		if p, err = r.Start(t.Context(), Spec{Name: "two", Command: "cat"}); err != nil {
			t.Fatal(err)
		}
		p.Close()
	})
	t.Run("closed while one begins", func(t *testing.T) {
		for i := range 12 {
			r := runner(t, nil)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if p, err := r.Start(t.Context(), Spec{Name: "one", Command: "cat"}); err == nil {
					<-p.Done()
				}
			}()
			time.Sleep(time.Duration(i) * 4 * time.Millisecond)
			ended := make(chan struct{})
			go func() { r.Close(); close(ended) }()
			select {
			case <-ended:
				<-done
			case <-time.After(10 * time.Second):
				t.Fatal("closing does not end")
			}
		}
	})
	t.Run("nothing to read", func(t *testing.T) {
		_, err := New(t.Context(), Options{Kind: "bubblewrap", Read: []string{"/nonexistent"}, Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "sandbox.read: /nonexistent is no directory here") {
			t.Error(err)
		}
	})
	t.Run("nobody waits", func(t *testing.T) {
		r := runner(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if p, err := r.Start(ctx, Spec{Name: "one", Command: "cat"}); err == nil {
			p.Close()
		}
		if n := len(r.open); n > 0 {
			t.Errorf("%d left", n)
		}
	})
}

// TestAContainer drives the other backend, with a stand-in for the engine that makes what
// it is asked for and refuses what it does not know.
func TestAContainer(t *testing.T) {
	bin := t.TempDir()
	script, err := os.ReadFile("testdata/engine.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "docker"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	shown := t.TempDir()
	if err := os.WriteFile(filepath.Join(shown, "shown"), []byte("by config"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shown, 0o755); err != nil {
		t.Fatal(err)
	}
	r := runner(t, func(o *Options) { o.Kind, o.Image, o.Read = "container", "the-image", []string{shown} })
	gateway := func(l net.Listener) {
		http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprintf(w, "asked for %s ", req.URL) }))
	}
	got, p := inside(t, r, Spec{Gateway: gateway, Env: []string{"http_proxy=" + Proxy}, Files: map[string][]byte{"ca.pem": []byte("cert ")}},
		"curl -sS http://api.example.com/x; cat /run/patchbay/ca.pem "+shown+"/shown; id -u; pwd; echo $http_proxy; ls /root 2>&1 | wc -l; ls "+bin+" 2>/dev/null; true")
	<-p.Done()
	if want := "asked for http://api.example.com/x cert by config" + strconv.Itoa(60000+p.slot) + "\n/home/agent\n" + Proxy + "\n1\n"; got != want || p.Reason() != "it ended by itself with status 0" {
		t.Errorf("%q, want %q\n%v", got, want, p.Why())
	}
	if _, err := New(t.Context(), Options{Kind: "container", Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "image") {
		t.Error(err)
	}
}

// TestTheInitIsBuiltFromItsSource holds what is embedded to the source beside it, where
// the Go that built it is the one that runs the test.
func TestTheInitIsBuiltFromItsSource(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		f, err := os.Open("inits/" + arch + ".gz")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		have, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.Read(bytes.NewReader(have))
		if err != nil || info.Path != "patchbay/internal/sandbox/init" {
			t.Fatalf("%s: %v", arch, err)
		}
		if info.GoVersion != runtime.Version() {
			t.Logf("%s was built by %s; this is %s", arch, info.GoVersion, runtime.Version())
			continue
		}
		built := filepath.Join(t.TempDir(), arch)
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", built, "./init")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		want, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("inits/%s.gz is not what init/main.go gives; run make inits", arch)
		}
	}
}
