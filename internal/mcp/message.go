package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// RPCError is the error member of a JSON-RPC answer.
type RPCError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error shows the code only: the message is the peer's text.
func (e *RPCError) Error() string { return fmt.Sprintf("JSON-RPC error %d", e.Code) }

// Message is one JSON-RPC message with the bytes of its parts. It is a request
// when Method and ID are set, a notification when only Method is, else an answer.
type Message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Err    *RPCError

	// Of a result that is an object, read in the same pass.
	isError    bool
	needsInput bool
	typed      bool

	spelled bool // a string holds \u or \/ escapes
}

// clone copies the message out of the buffer it was read from.
func (m *Message) clone() Message {
	out := *m
	out.ID, out.Params, out.Result = bytes.Clone(m.ID), bytes.Clone(m.Params), bytes.Clone(m.Result)
	if m.Err != nil {
		e := *m.Err
		e.Data = bytes.Clone(e.Data)
		out.Err = &e
	}
	return out
}

// IsAnswer reports whether the message answers a request.
func (m *Message) IsAnswer() bool { return m.Method == "" }

// HasID reports whether an id other than null is present.
func (m *Message) HasID() bool { return len(m.ID) > 0 && !bytes.Equal(m.ID, []byte("null")) }

// ReadMessage reads one message. Batches belong to a version that is never
// negotiated and are refused.
func ReadMessage(b []byte, r Reading) (Message, error) {
	var m Message
	var version, seenMethod bool
	if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '[' {
		return m, fmt.Errorf("%w: batches are not part of the versions spoken here", ErrJSON)
	}
	s := scan(b, r)
	defer s.done()
	s.inner = func(key string) func(string, []byte) error {
		if key != "result" {
			return nil
		}
		return func(key string, v []byte) error {
			switch key {
			case "isError":
				m.isError = string(v) == "true"
			case "resultType":
				s, _ := String(v)
				m.needsInput, m.typed = s == "input_required", true
			}
			return nil
		}
	}
	err := s.members(func(key string, value []byte) error {
		switch key {
		case "jsonrpc":
			v, _ := String(value)
			version = v == "2.0"
		case "id":
			if !validID(value) {
				return fmt.Errorf("%w: the id is neither a string nor a number", ErrJSON)
			}
			m.ID = value
		case "method":
			s, ok := String(value)
			if !ok || s == "" {
				return fmt.Errorf("%w: the method is not a name", ErrJSON)
			}
			m.Method, seenMethod = s, true
		case "params":
			if value[0] != '{' && value[0] != 'n' {
				return fmt.Errorf("%w: params is not an object", ErrJSON)
			}
			m.Params = value
		case "result":
			m.Result = value
		case "error":
			e, err := readError(value)
			m.Err = e
			return err
		}
		return nil
	})
	m.spelled = s.spelled
	switch {
	case err != nil:
		return m, err
	case !version:
		return m, fmt.Errorf(`%w: "jsonrpc" is not "2.0"`, ErrJSON)
	case !seenMethod && (m.Result == nil) == (m.Err == nil):
		return m, fmt.Errorf("%w: neither a request nor an answer", ErrJSON)
	case seenMethod && (m.Result != nil || m.Err != nil):
		return m, fmt.Errorf("%w: both a request and an answer", ErrJSON)
	}
	return m, nil
}

func validID(v []byte) bool {
	return v[0] == '"' || v[0] == '-' || v[0] >= '0' && v[0] <= '9' || bytes.Equal(v, []byte("null"))
}

func readError(value []byte) (*RPCError, error) {
	if value[0] != '{' {
		return nil, fmt.Errorf("%w: error is not an object", ErrJSON)
	}
	e := &RPCError{}
	err := Members(value, Answer, func(key string, v []byte) error {
		switch key {
		case "code":
			n, err := strconv.ParseInt(string(v), 10, 64)
			if err != nil {
				n = CodeInternal // a code that is no integer says nothing
			}
			e.Code = n
		case "message":
			e.Message, _ = String(v)
		case "data":
			e.Data = v
		}
		return nil
	})
	return e, err
}

// sameID matches an answer's id to the integer that was sent. A peer that turns
// it into a string is matched too: our own ids are always numbers, so there is
// no other request it could mean.
func sameID(raw []byte, sent int64) bool {
	var buf [24]byte
	want := strconv.AppendInt(buf[:0], sent, 10)
	if bytes.Equal(raw, want) {
		return true
	}
	return len(raw) == len(want)+2 && raw[0] == '"' && bytes.Equal(raw[1:len(raw)-1], want)
}

// appendRequest writes an envelope of our own; params must be valid JSON or nil.
func appendRequest(dst []byte, id int64, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if id >= 0 {
		dst = append(dst, `"id":`...)
		dst = strconv.AppendInt(dst, id, 10)
		dst = append(dst, ',')
	}
	dst = append(dst, `"method":"`...)
	dst = append(dst, method...)
	dst = append(dst, '"')
	if params != nil {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

// appendString writes s as a JSON string.
func appendString(dst []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
	b, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return append(dst, `""`...)
	}
	return append(dst, b...)
}
