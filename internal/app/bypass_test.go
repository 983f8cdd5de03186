package app_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
)

// attempt is one way round the gateway. Connect is the head of the CONNECT, SNI what the
// client says inside, and request what it sends there; %H is the far end's host:port, %P
// the placeholder, %T the token in basic, %N the port.
type attempt struct {
	what, connect, sni, request string
}

const (
	openTunnel = "CONNECT %H HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\n\r\n"
	withBearer = "Authorization: Bearer %P\r\n"
)

func tunnelTo(host string) string {
	return "CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\nProxy-Authorization: Basic %T\r\n\r\n"
}

func inner(line, host, more string) string {
	return line + " HTTP/1.1\r\nHost: " + host + "\r\n" + withBearer + more + "\r\n"
}

// attempts are what a client that wants the secret elsewhere, or another host, would try.
func attempts() []attempt {
	var out []attempt
	for _, host := range []string{"127.0.0.1:1", "localhost:%N", "evil.example.com:443", "127.0.0.1.:%N", "127.1:%N", "2130706433:%N", "0x7f000001:%N", "0177.0.0.1:%N", "[::1]:%N", "[::ffff:10.0.0.1]:%N", "[64:ff9b::7f00:1]:%N",
		"127.0.0.1.nip.io:%N", "127.0.0.1%25lo:%N", "me@127.0.0.1:%N", "127.0.0.1:%N@evil.example.com:443", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:%N/", "169.254.169.254:80", "metadata.google.internal:80", "１２７.0.0.1:%N", ":%N", "127.0.0.2:%N", "0.0.0.0:%N"} {
		out = append(out, attempt{"CONNECT " + host, tunnelTo(host), "", ""})
	}
	for what, head := range map[string]string{
		"CONNECT of nobody":           "CONNECT %H HTTP/1.1\r\nHost: %H\r\n\r\n",
		"CONNECT with a wrong token":  "CONNECT %H HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Bearer pba_wrong\r\n\r\n",
		"CONNECT with two tokens":     "CONNECT %H HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\nProxy-Authorization: Basic %T\r\n\r\n",
		"CONNECT as Authorization":    "CONNECT %H HTTP/1.1\r\nHost: %H\r\nAuthorization: Basic %T\r\n\r\n",
		"plain http, absolute":        "GET http://%H/x HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\n" + withBearer + "\r\n",
		"plain http, another Host":    "GET http://%H/x HTTP/1.1\r\nHost: evil.example.com\r\nProxy-Authorization: Basic %T\r\n" + withBearer + "\r\n",
		"plain http, to metadata":     "GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\nProxy-Authorization: Basic %T\r\n\r\n",
		"plain http, with a user":     "GET http://me@%H/x HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\n\r\n",
		"https by an absolute form":   "GET https://%H/x HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\n" + withBearer + "\r\n",
		"the gateway as a web server": "GET /x HTTP/1.1\r\nHost: %H\r\nProxy-Authorization: Basic %T\r\n" + withBearer + "\r\n",
	} {
		out = append(out, attempt{what, head, "", ""})
	}
	for what, sni := range map[string]string{"SNI of another host": "evil.example.com", "SNI of a name for an address": "localhost"} {
		out = append(out, attempt{what, openTunnel, sni, inner("GET /x", "%H", "")})
	}
	out = append(out, attempt{"no TLS inside", openTunnel, "plain", inner("GET /x", "%H", "")}, attempt{"another protocol inside", openTunnel, "plain", "SSH-2.0-x\r\n"})
	for _, host := range []string{"evil.example.com", "127.0.0.1:1", "127.0.0.1", "localhost:%N", "%H.", "me@%H", "127.0.0.1.:%N", "[::1]:%N", "evil.example.com:%N", " ", "%H, evil.example.com"} {
		out = append(out, attempt{"Host " + host, openTunnel, "", inner("GET /x", host, "")})
	}
	for _, path := range []string{"/../x", "/a/../x", "/a/./x", "/%2e%2e/x", "/a/%2E%2E/x", "/a%2fx", "/a%5cx", "/a\\x", "//x", "/a//x", "/x%00", "/%252e%252e/x", "/a/..;/x%2f", "http://evil.example.com/x", "https://%H/x", "//evil.example.com/x", "*", "x", "/x#f%2f"} {
		out = append(out, attempt{"path " + path, openTunnel, "", inner("GET "+path, "%H", "")})
	}
	for what, more := range map[string]string{
		"Connection drops the credential": "Connection: Authorization\r\n", "Connection drops another": "Connection: close, X-Key\r\n", "two lengths": "Content-Length: 1\r\nContent-Length: 2\r\n", "a signed length": "Content-Length: +1\r\n",
		"TE of another kind": "Transfer-Encoding: xchunked\r\n", "TE twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "TE with a tab": "Transfer-Encoding:\tchunked, chunked\r\n", "a space before the colon": "X-Key : 1\r\n",
		"an empty header name": ": 1\r\n", "a bare line": "X-Key\r\n", "two Hosts": "Host: evil.example.com\r\n", "X-Forwarded-Host": "X-Forwarded-Host: evil.example.com\r\n", "Forwarded": "Forwarded: host=evil.example.com\r\n", "a method in a header": "X-HTTP-Method-Override: DELETE\r\n",
		"a path in a header": "X-Original-URL: /admin\r\n", "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "the placeholder in another header": "X-Key: %P\r\n", "in a cookie": "Cookie: k=%P\r\n", "in the agent's name": "User-Agent: %P\r\n",
		"the credential twice": "Authorization: Bearer %P\r\n", "in a header's name": "X-%P: 1\r\n", "in base64": "X-Key: %B\r\n", "percent-encoded": "X-Key: %E\r\n", "NUL in a header": "X-Key: a\x00b\r\n",
	} {
		out = append(out, attempt{what, openTunnel, "", inner("GET /x", "%H", more)})
	}
	for what, request := range map[string]string{
		"the placeholder in the path": inner("GET /x/%P", "%H", ""), "in the query": inner("GET /x?key=%P", "%H", ""), "encoded in the query": inner("GET /x?key=%E", "%H", ""), "CONNECT inside": inner("CONNECT evil.example.com:443", "%H", ""), "TRACE": inner("TRACE /x", "%H", ""),
		"a method of its own": inner("G%20T /x", "%H", ""), "no Host": "GET /x HTTP/1.1\r\n" + withBearer + "\r\n", "HTTP/1.0 without a Host": "GET /x HTTP/1.0\r\n" + withBearer + "\r\n", "no HTTP at all": "\x00\x01\x02\x03\r\n\r\n", "HTTP/3": "GET /x HTTP/3.0\r\nHost: %H\r\n\r\n",
		"as Basic where a bearer goes": "GET /x HTTP/1.1\r\nHost: %H\r\nAuthorization: Basic %B\r\n\r\n", "a prefix of its own": "GET /x HTTP/1.1\r\nHost: %H\r\nAuthorization: Bearer x%P\r\n\r\n",
		"a fold before the Host": "GET /x HTTP/1.1\r\n Host: evil.example.com\r\nHost: %H\r\n\r\n",
	} {
		out = append(out, attempt{what, openTunnel, "", request})
	}
	return out
}

// TestNoWayRoundTheGateway: every attempt is refused and on record, nothing of it reaches
// the far end, and the secret goes nowhere.
func TestNoWayRoundTheGateway(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	_, port, _ := net.SplitHostPort(o.host)
	fill := strings.NewReplacer("%H", o.host, "%N", port, "%P", o.placeholder, "%T", base64.StdEncoding.EncodeToString([]byte("agent:"+o.token)), "%B", base64.StdEncoding.EncodeToString([]byte(o.placeholder+":x")),
		"%E", strings.ReplaceAll(url.QueryEscape(o.placeholder), "_", "%5F"))
	list := attempts()
	if len(list) < 60 {
		t.Fatalf("%d attempts", len(list))
	}
	unknown := 0 // who nobody is, and what cannot be read, is not always on record
	for _, a := range list {
		status, said := o.tries(t, fill.Replace(a.connect), a.sni, fill.Replace(a.request))
		if status >= 200 && status < 400 {
			t.Errorf("%s: %d %s", a.what, status, said)
		}
		if n, auth := o.far.requests(); n > 0 {
			t.Fatalf("%s: it reached the far end with %q", a.what, auth)
		}
		if strings.Contains(said, outSecret) {
			t.Errorf("%s: the secret is told", a.what)
		}
		if a.request == "" && status == http.StatusBadRequest {
			unknown++ // the gateway's own port could not read it: nobody is known
		}
	}
	if unknown > 8 || len(list)-unknown < 60 {
		t.Errorf("%d attempts were not understood", unknown)
	}
	for _, r := range o.log(t, len(list)-unknown) {
		if r.State != "denied" || r.Reason == "" {
			t.Errorf("%+v", r)
		}
	}
	t.Logf("%d attempts, %d of them not understood", len(list), unknown)
}

// dials the gateway, byte by byte.
func (o *outward) dials(t *testing.T) net.Conn {
	t.Helper()
	at, err := url.Parse(o.a.EgressURL())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

// opens a tunnel to the far end; TLS inside it is not begun.
func (o *outward) opens(t *testing.T, auth string) *tls.Conn {
	t.Helper()
	conn := o.dials(t)
	fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: %[2]s\r\n\r\n", o.host, auth)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%+v %v", resp, err)
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
}

// tries makes one attempt, and returns the status of the first answer that refuses, or of
// the last.
func (o *outward) tries(t *testing.T, head, sni, request string) (int, string) {
	t.Helper()
	conn := o.dials(t)
	defer conn.Close()
	if _, err := io.WriteString(conn, head); err != nil {
		return 0, err.Error()
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: strings.Fields(head)[0]})
	if err != nil {
		return 0, err.Error()
	}
	if request == "" || resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body) // what was said, as far as it came
		return resp.StatusCode, string(b)
	}
	var in io.ReadWriter = conn
	if sni != "plain" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		name := sni
		if name == "" {
			name = "127.0.0.1"
		}
		tc := tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: name, InsecureSkipVerify: sni != ""}) // it is the attempt that matters
		if err := tc.Handshake(); err != nil {
			return 0, err.Error()
		}
		in = tc
	}
	if _, err := io.WriteString(in, request); err != nil {
		return 0, err.Error()
	}
	resp, err = http.ReadResponse(bufio.NewReader(in), nil)
	if err != nil {
		return 0, err.Error()
	}
	b, _ := io.ReadAll(resp.Body) // what was said, as far as it came
	return resp.StatusCode, string(b)
}

// TestASecondRequestInATunnel, and one by HTTP/2, are judged each for itself.
func TestASecondRequestInATunnel(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", ", methods: [GET], paths: [\"/x*\"]")
	good := "GET /x HTTP/1.1\r\nHost: " + o.host + "\r\nAuthorization: Bearer " + o.placeholder + "\r\n\r\n"
	in := o.opens(t, "Basic "+base64.StdEncoding.EncodeToString([]byte("agent:"+o.token)))
	r := bufio.NewReader(in)
	for i, c := range []struct {
		request string
		status  int
	}{
		{good, 200}, {strings.Replace(good, "Host: "+o.host, "Host: evil.example.com", 1), 403}, {strings.Replace(good, "GET", "DELETE", 1), 403}, {strings.Replace(good, "/x", "/y", 1), 403}, {good, 200},
	} {
		if _, err := io.WriteString(in, c.request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		b, _ := io.ReadAll(resp.Body) // to get to the next
		if resp.StatusCode != c.status {
			t.Errorf("%d: %d %s", i, resp.StatusCode, b)
		}
	}
	// HTTP/2 with another authority.
	c := o.opens(t, "Bearer "+o.token)
	c2 := tls.Client(c.NetConn(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := c2.Handshake(); err != nil || c2.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatalf("%v", err)
	}
	h2 := &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c2, nil }}
	defer h2.CloseIdleConnections()
	for host, want := range map[string]int{o.host: 200, "evil.example.com": 403} {
		req, err := http.NewRequest("GET", "https://"+o.host+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Authorization", "Bearer "+o.placeholder)
		resp, err := h2.RoundTrip(req)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %+v %v", host, resp, err)
		}
	}
	if n, _ := o.far.requests(); n != 3 {
		t.Errorf("%d requests reached the far end", n)
	}
}

// TestARevokedTokenEndsItsTunnels: within seconds, and no request more is taken.
func TestARevokedTokenEndsItsTunnels(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	c := o.client(t, false)
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", nil); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	var list command.TokensList
	if err := o.do("tokens.list", command.TokensListInput{}, &list); err != nil || len(list.Tokens) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	var gone map[string]any
	if err := o.do("tokens.revoke", command.TokenInput{ID: list.Tokens[0].ID}, &gone); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := o.sends(t, c, "GET", "/hello", "", nil); status == 200 {
		t.Errorf("a revoked token sends: %s", body)
	}
	within(t, 5*time.Second, "the tunnel's end", func() bool {
		_, err := c.Get("https://" + o.host + "/hello")
		return err != nil && strings.Contains(err.Error(), "Proxy Authentication Required")
	})
}
