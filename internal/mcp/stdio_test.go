package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/internal/plane"
)

// process is a stdio server in this process: fn gets each message and a way to say
// something.
type process struct {
	out  *io.PipeWriter
	told atomic.Int64
}

func startProcess(t *testing.T, o StdioOptions, fn func(p *process, id, method string, params json.RawMessage)) (*Stdio, *process) {
	t.Helper()
	if o.Message == 0 {
		o.Message = 64 << 10
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &process{out: outW}
	go func() {
		in := bufio.NewReader(inR)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			var m struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
				Params json.RawMessage `json:"params"`
			}
			if err := json.Unmarshal(line, &m); err != nil {
				p.say(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"one line, one message"}}`)
				continue
			}
			p.told.Add(1)
			switch {
			case m.Method == MethodDiscover:
				p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, m.ID)
			case m.Method == MethodInitialize:
				p.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}`, m.ID)
			default:
				fn(p, string(m.ID), m.Method, m.Params)
			}
		}
	}()
	s := NewStdio(inW, outR, o)
	t.Cleanup(func() { outW.Close(); inR.Close(); s.Close() })
	return s, p
}

func (p *process) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

func stdioClient(t *testing.T, s *Stdio, change func(*Options)) *Client {
	t.Helper()
	c := newTestClient(t, "stdio://test/1", func(o *Options) {
		o.Transport = s
		if change != nil {
			change(o)
		}
	})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

const text = `{"content":[{"type":"text","text":"fine"}]}`

func TestStdioCalls(t *testing.T) {
	s, p := startProcess(t, StdioOptions{Strays: 10}, func(p *process, id, method string, params json.RawMessage) {
		if method == MethodToolsCall {
			p.say("starting up, please wait") // what servers print
			p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, id)
			p.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, text)
		}
	})
	c := stdioClient(t, s, nil)
	if c.Era() != EraLegacy || !c.Shareable() {
		t.Errorf("era %v, shareable %v", c.Era(), c.Shareable())
	}
	progress := 0
	// Arguments are the caller's bytes: their line breaks must not end the message.
	r, err := c.Call(t.Context(), Call{Name: "x", Arguments: json.RawMessage("{\n  \"a\":\r\n 1}"), Progress: func(json.RawMessage) { progress++ }})
	if err != nil || string(r.Result) != text || progress != 1 {
		t.Fatalf("%s, progress %d: %v", r.Result, progress, err)
	}
	before := p.told.Load()
	p.say(`{"jsonrpc":"2.0","id":77,"method":"ping"}`) // outside of a call: answered by the transport
	p.say(`{"jsonrpc":"2.0","id":78,"method":"roots/list"}`)
	for range 200 {
		if p.told.Load() == before+2 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d answers to the server's questions", p.told.Load()-before)
}

func TestStdioListens(t *testing.T) {
	s, p := startProcess(t, StdioOptions{}, func(*process, string, string, json.RawMessage) {})
	changed := make(chan struct{}, 1)
	c := stdioClient(t, s, func(o *Options) { o.ListChanged = func() { changed <- struct{}{} } })
	c.Listen()
	<-c.Listening()
	p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("the notice did not arrive")
	}
}

// TestStdioEnds tells what a process may do to us and how each is named. Only where no
// byte went may a call be sent again.
func TestStdioEnds(t *testing.T) {
	call := func(c *Client) *Error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := c.Call(ctx, Call{Name: "x", Arguments: json.RawMessage(`{}`)})
		if err == nil {
			return nil
		}
		return AsError(err)
	}
	for name, tt := range map[string]struct {
		do    func(p *process, id string)
		fault plane.Fault
		gone  bool
	}{
		"exits":    {func(p *process, id string) { p.out.Close() }, plane.FaultTransport, true},
		"hangs":    {func(p *process, id string) {}, plane.FaultTimeout, false},
		"floods":   {func(p *process, id string) { p.say("%s", strings.Repeat("x", 65<<10)) }, plane.FaultTooLarge, true},
		"no break": {func(p *process, id string) { p.out.Write(make([]byte, 130<<10)) }, plane.FaultTooLarge, true},
		"no json":  {func(p *process, id string) { p.say("%s", strings.Repeat("hello\n", 12)) }, plane.FaultProtocol, true},
		"talks": {func(p *process, id string) {
			p.say("%s", strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/x"}`+"\n", 3000))
		}, plane.FaultProtocol, true},
		"half line": {func(p *process, id string) { p.out.Write([]byte(`{"jsonrpc":`)); p.out.Close() }, plane.FaultTransport, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := startProcess(t, StdioOptions{Strays: 10, Why: func() (string, error) { return "status 3", errors.New("exit status 3") }}, func(p *process, id, method string, _ json.RawMessage) {
				if method == MethodToolsCall {
					go tt.do(p, id)
				}
			})
			c := stdioClient(t, s, nil)
			e := call(c)
			if e == nil || e.Ending.Fault != tt.fault || e.Ending.NothingSent {
				t.Fatalf("%+v", e)
			}
			for range 100 {
				if s.Gone() == tt.gone {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if s.Gone() != tt.gone {
				t.Fatalf("gone: %v", s.Gone())
			}
			if !tt.gone {
				return
			}
			if e := call(c); e == nil || !e.Ending.NothingSent {
				t.Errorf("after the end: %+v", e)
			}
		})
	}
}

// TestStdioDoesNotWaitForAReader: a process that does not read its stdin holds up nobody
// for longer than they wait.
func TestStdioDoesNotWaitForAReader(t *testing.T) {
	inR, inW := io.Pipe() // nobody reads
	outR, outW := io.Pipe()
	s := NewStdio(inW, outR, StdioOptions{Message: 1 << 10})
	defer func() { s.Close(); inR.Close(); outW.Close() }()
	c := newTestClient(t, "stdio://test/1", func(o *Options) { o.Transport = s })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Open(ctx); err == nil {
		t.Fatal("opened")
	}
}
