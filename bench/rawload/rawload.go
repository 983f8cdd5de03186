// Package rawload is a lean MCP client for load: one kept-alive connection a
// session, prepared requests, nothing decoded that need not be.
package rawload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Target is an endpoint.
type Target struct {
	Host, Path string
	Token      string // bearer; empty for none
}

// Session is one MCP session. It is not safe for concurrent use.
type Session struct {
	to   Target
	conn net.Conn
	br   *bufio.Reader
	head []byte
	buf  []byte
	body bytes.Buffer
	id   int64
}

// Open dials and performs the legacy handshake.
func Open(to Target) (*Session, error) {
	c, err := net.DialTimeout("tcp", to.Host, 5*time.Second)
	if err != nil {
		return nil, err
	}
	s := &Session{to: to, conn: c, br: bufio.NewReaderSize(c, 32<<10)}
	if err := s.Begin(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// Begin performs the handshake, on the connection that is there: a new session.
func (s *Session) Begin() error {
	s.head = s.header("", "")
	h, err := s.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return err
	}
	s.head = s.header(h.Get("Mcp-Session-Id"), "2025-06-18")
	_, err = s.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return err
}

func (s *Session) header(session, version string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n", s.to.Path, s.to.Host)
	if s.to.Token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", s.to.Token)
	}
	if session != "" {
		fmt.Fprintf(&b, "Mcp-Session-Id: %s\r\n", session)
	}
	if version != "" {
		fmt.Fprintf(&b, "Mcp-Protocol-Version: %s\r\n", version)
	}
	b.WriteString("Content-Length: ")
	return []byte(b.String())
}

// Call sends one tools/call and checks that a result came.
func (s *Session) Call(tool, args string) error {
	s.id++
	msg := `{"jsonrpc":"2.0","id":` + strconv.FormatInt(s.id, 10) + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
	if _, err := s.post(msg); err != nil {
		return err
	}
	if b := s.body.Bytes(); !bytes.Contains(b[:min(len(b), 512)], []byte(`"result"`)) || bytes.Contains(b[:min(len(b), 4096)], []byte(`"isError":true`)) {
		return fmt.Errorf("no result: %.200s", b)
	}
	return nil
}

// List asks for the tools, and returns how many bytes came.
func (s *Session) List() (int, error) {
	s.id++
	if _, err := s.post(`{"jsonrpc":"2.0","id":` + strconv.FormatInt(s.id, 10) + `,"method":"tools/list"}`); err != nil {
		return 0, err
	}
	if !bytes.Contains(s.body.Bytes(), []byte(`"inputSchema"`)) {
		return 0, fmt.Errorf("no tools: %.200s", s.body.Bytes())
	}
	return s.body.Len(), nil
}

func (s *Session) post(msg string) (http.Header, error) {
	s.buf = append(s.buf[:0], s.head...)
	s.buf = strconv.AppendInt(s.buf, int64(len(msg)), 10)
	s.buf = append(append(s.buf, "\r\n\r\n"...), msg...)
	if err := s.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := s.conn.Write(s.buf); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(s.br, nil)
	if err != nil {
		return nil, err
	}
	s.body.Reset()
	if _, err := io.Copy(&s.body, resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("HTTP %d: %.200s", resp.StatusCode, s.body.Bytes())
	}
	return resp.Header, nil
}

// Close ends the session, as clients do, and the connection.
func (s *Session) Close() {
	defer s.conn.Close()
	s.end()
}

// end asks for the session's end.
func (s *Session) end() {
	head := bytes.Replace(s.head, []byte("POST "), []byte("DELETE "), 1)
	if s.conn.SetDeadline(time.Now().Add(5*time.Second)) != nil {
		return
	}
	if _, err := s.conn.Write(append(head, "0\r\n\r\n"...)); err != nil {
		return
	}
	if resp, err := http.ReadResponse(s.br, nil); err == nil {
		resp.Body.Close()
	}
}
