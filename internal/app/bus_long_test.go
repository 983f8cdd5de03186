//go:build long

package app_test

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/internal/freeport"
	"patchbay/internal/plane"
)

// natsServer runs a NATS server of its own: a process, built from its module.
func natsServer(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "nats-server")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	port, err := freeport.Take()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-a", "127.0.0.1", "-p", fmt.Sprint(port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	within(t, 20*time.Second, "the NATS server", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "nats://" + addr
}

// TestTheBusOutside replays them at a NATS server of its own; without trust, and without
// leave to decide, the bare subject and decisions are refused.
func TestTheBusOutside(t *testing.T) {
	url := natsServer(t)
	s := start(t, "", busTeams("url: \""+url+"\", trusted_publishers: true, allow_decisions: true"))
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	within(t, 10*time.Second, "the bus", func() bool {
		_, err := nc.Request("kapelle.controller.command", []byte("{}"), time.Second)
		return err == nil
	})
	replay(t, nc, "kapelle")
	s.stop()
	s = start(t, s.dir, busTeams("url: \""+url+"\""))
	within(t, 10*time.Second, "the bus", func() bool {
		_, err := nc.Request("kapelle.controller.command", []byte("{}"), time.Second)
		return err == nil
	})
	if got := onBus(t, nc, "kapelle.controller.command", busRequest("payments", "agent:payments/general", "", "list")); got[0].OK || got[0].Code != string(plane.Unauthenticated) {
		t.Errorf("%+v", got)
	}
	s.stop()
	start(t, s.dir, busTeams("url: \""+url+"\", trusted_publishers: true"))
	within(t, 10*time.Second, "the bus", func() bool {
		_, err := nc.Request("kapelle.controller.command", []byte("{}"), time.Second)
		return err == nil
	})
	if got := onBus(t, nc, "kapelle.controller.command", busRequest("payments", "", "ada@example.com", "forget", "linear")); got[0].OK || !strings.Contains(got[0].Error, "nats.allow_decisions") {
		t.Errorf("%+v", got)
	}
}

// TestThreeReplicasAnswerOnce: each request has one answer, and all replicas see what one
// of them stored.
func TestThreeReplicasAnswerOnce(t *testing.T) {
	url := natsServer(t)
	pg := cluster(t)
	for range 3 {
		start(t, "", onPostgres(pg.URL, busTeams("url: \""+url+"\", trusted_publishers: true, allow_decisions: true")))
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	time.Sleep(300 * time.Millisecond)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 60 {
		body := busRequest("payments", "", "ada@example.com", "list")
		if i == 0 {
			onBus(t, nc, "kapelle.controller.command", busRequest("payments", "agent:payments/general", "", "propose", "linear", linearYAML))
		}
		if i < 8 {
			body = busRequest("payments", "", "ada@example.com", "accept", "linear")
		}
		wg.Go(func() {
			got := onBus(t, nc, "kapelle.controller.command", body)
			if len(got) != 1 {
				t.Errorf("%d answers", len(got))
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(got[0].Text, "is accepted") {
				won++
			} else if !got[0].OK && got[0].Code != string(plane.NotFound) && got[0].Code != string(plane.Conflict) {
				t.Errorf("%+v", got[0])
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d accepted it", won)
	}
}
