package app_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
)

// TestHeadsThatTwoReadersTakeForTwo: what could be read as another request than the one
// that was judged is refused, recorded, and reaches nobody, in a tunnel and by plain http.
func TestHeadsThatTwoReadersTakeForTwo(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	auth := "Authorization: Bearer " + o.placeholder + "\r\n"
	head := func(more, body string) string {
		return "POST /x HTTP/1.1\r\nHost: " + o.host + "\r\n" + more + "\r\n" + body
	}
	for name, request := range map[string]string{
		"CL.TE":                  head(auth+"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nG"),
		"TE.CL":                  head(auth+"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n"),
		"two lengths":            head(auth+"Content-Length: 1\r\nContent-Length: 2\r\n", "ab"),
		"the same length twice":  head(auth+"Content-Length: 1\r\nContent-Length: 1\r\n", "a"),
		"a folded header":        head("Authorization: Bearer\r\n "+o.placeholder+"\r\nContent-Length: 0\r\n", ""),
		"a folded length":        head(auth+"Content-Length:\r\n 5\r\n", "abcde"),
		"a space before a colon": head(auth+"Content-Length : 5\r\n", "abcde"),
		"a line without its CR":  head(auth+"X-A: b\nX-C: d\r\nContent-Length: 0\r\n", ""),
		"a CR in a line":         head(auth+"X-A: b\rX-C: d\r\nContent-Length: 0\r\n", ""),
		"another encoding":       head(auth+"Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
		"two encodings":          head(auth+"Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
		"an encoding twice":      head(auth+"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"),
		"a signed length":        head(auth+"Content-Length: +5\r\n", "abcde"),
		"a chunk of no size":     head(auth+"Transfer-Encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n"),
		"a header without colon": head(auth+"Content-Length 5\r\n", "abcde"),
	} {
		in := o.opens(t, "Basic "+base64.StdEncoding.EncodeToString([]byte("agent:"+o.token)))
		if _, err := io.WriteString(in, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(in), nil)
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %+v %v", name, resp, err)
			continue
		}
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(b), "The request cannot be taken: ") {
			t.Errorf("%s: %s %v", name, b, err)
		}
		in.Close()
	}
	if n, _ := o.far.requests(); n > 1 { // of the chunk, whose head is fine, the beginning may be sent
		t.Errorf("%d requests reached the far end", n)
	}
	refused := 0
	for _, r := range o.log(t, 14) {
		if r.State == "denied" && strings.HasPrefix(r.Reason, "The request cannot be taken: ") {
			refused++
		}
	}
	if refused < 14 {
		t.Errorf("%d are on record", refused)
	}
	// Bodies of every kind pass, and what follows them is read as what it is.
	in := o.opens(t, "Basic "+base64.StdEncoding.EncodeToString([]byte("agent:"+o.token)))
	r := bufio.NewReader(in)
	for i, c := range []struct{ request, want string }{
		{"POST /body HTTP/1.1\r\nHost: " + o.host + "\r\nContent-Length: 9\r\n\r\nGET / x\r\n", "9 bytes of body"},
		{"POST /body HTTP/1.1\r\nHost: " + o.host + "\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n4\r\nGET \r\n0\r\nX-T: 1\r\n\r\n", "7 bytes of body"},
		{"\r\nGET /hello HTTP/1.1\r\nHost: " + o.host + "\r\n\r\n", "GET /hello"},
		{"POST /body HTTP/1.1\r\nHost: " + o.host + "\r\nContent-Length: 0\r\n\r\n", "0 bytes of body"},
	} {
		for part := range strings.SplitAfterSeq(c.request, "C") { // in pieces
			if _, err := io.WriteString(in, part); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(b), c.want) {
			t.Errorf("%d: %s %v", i, b, err)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(o.a.EgressURL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nProxy-Authorization: Bearer %s\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", o.token)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("by plain http: %+v %v", resp, err)
	}
}

// plainly is a server by plain http that the agent general may reach, with a client of the
// gateway.
func plainly(t *testing.T, h http.HandlerFunc) (*outward, *http.Client) {
	t.Helper()
	far := httptest.NewServer(h)
	t.Cleanup(far.Close)
	u, err := url.Parse(far.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "", fmt.Sprintf("agents: {general: {destinations: [api]}}\negress:\n  listen: 127.0.0.1:0\n  allow: [{to: %q, for: [api]}]\n  destinations: {api: {hosts: [127.0.0.1], port: %s}}\n", far.URL, u.Port()))
	o := &outward{served: s}
	var token command.TokenCreated
	if err := s.do("tokens.create", command.TokensCreateInput{Label: "plain", Agent: "general"}, &token); err != nil {
		t.Fatal(err)
	}
	o.token, o.proxy = token.ID, strings.Replace(s.a.EgressURL(), "http://", "http://agent:"+token.Value+"@", 1)
	proxy, err := url.Parse(o.proxy)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{Proxy: http.ProxyURL(proxy)}
	t.Cleanup(tr.CloseIdleConnections)
	return o, &http.Client{Transport: tr}
}

// TestARevokedTokenEndsPlainRequests: a stream by plain http ends like a tunnel does.
func TestARevokedTokenEndsPlainRequests(t *testing.T) {
	o, c := plainly(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			fmt.Fprint(w, "data: more\n\n")
			http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	})
	req, err := http.NewRequestWithContext(context.Background(), "GET", "http://127.0.0.1:"+o.port(t)+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%+v %v", resp, err)
	}
	defer resp.Body.Close()
	if err := o.do("tokens.revoke", command.TokenInput{ID: o.token}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, resp.Body); close(ended) }()
	select {
	case <-ended:
	case <-time.After(6 * time.Second):
		t.Error("the stream goes on")
	}
}

// port is that of the destination api.
func (o *outward) port(t *testing.T) string {
	t.Helper()
	var l command.DestinationsList
	if err := o.do("destinations.list", command.DestinationsInput{}, &l); err != nil {
		t.Fatal(err)
	}
	for _, d := range l.Destinations {
		if d.Name == "api" {
			return fmt.Sprint(d.Port)
		}
	}
	t.Fatal("there is no destination api")
	return ""
}

// TestARequestUnderWayIsWaitedFor: when the server stops, what is under way is done first.
func TestARequestUnderWayIsWaitedFor(t *testing.T) {
	begun := make(chan struct{})
	o, c := plainly(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		time.Sleep(1500 * time.Millisecond)
		fmt.Fprint(w, "done")
	})
	answer := make(chan string, 1)
	at := "http://127.0.0.1:" + o.port(t) + "/"
	go func() {
		resp, err := c.Post(at, "text/plain", strings.NewReader("x"))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		answer <- fmt.Sprint(string(b), err)
	}()
	<-begun
	o.stop()
	if got := <-answer; got != "done<nil>" {
		t.Error(got)
	}
}
