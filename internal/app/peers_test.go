package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/app"
	"patchbay/test/peers"
)

// at is s as a client reaches it, with the identity that it has.
func (s *served) at(method, token, session, body string) (*http.Response, error) {
	req, _ := http.NewRequest(method, s.agentURL("general"), strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Mcp-Session-Id", session)
	return http.DefaultClient.Do(req)
}

// Of two replicas, a client may reach either: a session that ends at one is over at the
// other; an answer and a cancellation find the replica that holds what they are about;
// where that one is gone, the answer is refused.
func TestReplicasShareSessions(t *testing.T) {
	pg := cluster(t)
	var done atomic.Int64
	url := sdkServer(t, false, asks(&done))
	var apps []*served
	for range 2 {
		port := peers.FreePort(t)
		apps = append(apps, startWith(t, "", onPostgres(pg.URL, fmt.Sprintf("limits: {drain: 2s}\ncluster: {advertise: \"http://127.0.0.1:%d\"}\norg: {connections: {up: {url: %q}}}\n", port, url)+allow("up", url)),
			func(o *app.Options) { o.Config.Listen = fmt.Sprintf("127.0.0.1:%d", port) }))
	}
	a, b := apps[0], apps[1]
	token := a.agentToken("general")
	begin := func() string {
		t.Helper()
		resp, err := a.at("POST", token, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}`)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		return resp.Header.Get("Mcp-Session-Id")
	}
	status := func(s *served, method, session, body string) int {
		t.Helper()
		resp, err := s.at(method, token, session, body)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	over := begin()
	if n := status(b, "POST", over, list); n != 200 {
		t.Fatalf("the other replica: %d", n)
	}
	if n := status(b, "DELETE", over, ""); n != 204 {
		t.Errorf("DELETE: %d", n)
	}
	within(t, 5*time.Second, "the end at the first", func() bool { return status(a, "POST", over, list) == 404 })

	// A question that one asks is answered at the other.
	session := begin()
	call := func(s *served, id int) (question string, rest *bufio.Reader) {
		t.Helper()
		resp, err := s.at("POST", token, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"mcp__up__greet"}}`, id))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		rest = bufio.NewReader(resp.Body)
		for {
			line, err := rest.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var m struct {
				ID     json.RawMessage
				Method string
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &m) == nil && m.Method == "elicitation/create" {
				return string(m.ID), rest
			}
		}
	}
	question, rest := call(a, 5)
	answer := func(q string) string {
		return `{"jsonrpc":"2.0","id":` + q + `,"result":{"action":"accept","content":{"name":"Ada"}}}`
	}
	if n := status(b, "POST", session, answer(question)); n != 202 {
		t.Errorf("the answer at the other replica: %d", n)
	}
	if said, err := io.ReadAll(rest); err != nil || !strings.Contains(string(said), "accept Ada") {
		t.Errorf("%s %v", said, err)
	}
	// A cancellation too.
	_, rest = call(a, 6)
	if n := status(b, "POST", session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":6}}`); n != 202 {
		t.Errorf("the cancellation: %d", n)
	}
	if said, err := io.ReadAll(rest); err != nil || !strings.Contains(string(said), `"id":6`) {
		t.Errorf("%s %v", said, err)
	}
	a.settle(1)
	// Nobody is heard without the ring.
	for _, mac := range []string{"", "AAAA"} {
		req, _ := http.NewRequestWithContext(context.Background(), "POST", "http://"+a.a.Addr()+"/internal/peer", strings.NewReader(`{"agent":"general"}`))
		req.Header.Set("Patchbay-Time", fmt.Sprint(time.Now().Unix()))
		req.Header.Set("Patchbay-Mac", mac)
		if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != 404 {
			t.Errorf("%v %v", resp, err)
		}
	}
	question, _ = call(a, 7)
	a.stop()
	if n := status(b, "POST", session, answer(question)); n != 404 {
		t.Errorf("an answer for a replica that is gone: %d", n)
	}
	if n := done.Load(); n != 1 {
		t.Errorf("%d", n)
	}
}
