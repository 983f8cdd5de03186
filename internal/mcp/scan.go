package mcp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// The scanner reads JSON without decoding it. It is case-sensitive and refuses
// what two readers could understand differently: duplicate members at any depth
// and bytes that are no UTF-8. Lone surrogates are refused where a request or a
// definition is read; in answers they stand only in text, where nothing decides
// by them, and are shown as U+FFFD (docs/adr/0004).

// ErrJSON is wrapped by every refusal of the scanner.
var ErrJSON = errors.New("mcp: not acceptable JSON")

const maxDepth = 512

// Reading is how strict a scan is.
type Reading int

// Strict refuses lone surrogates, Answer lets them stand in strings that are
// values; both refuse everything else that is ambiguous.
const (
	Strict Reading = iota
	Answer
)

type scanner struct {
	b       []byte
	i       int
	depth   int
	reading Reading
	keys    [][]byte // of the objects that are open, innermost last
	room    [12][]byte

	// inner, when set, is asked for a visitor of the outermost object's members
	// that are objects themselves, so that two levels take one pass.
	inner func(key string) func(key string, value []byte) error

	// spelled is set when a string holds an escape that may stand for a plain
	// character: \u or \/.
	spelled bool
}

// Scanners are used again: a call takes six, and each has room for its keys.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

func scan(b []byte, r Reading) *scanner {
	s := scanners.Get().(*scanner)
	s.b, s.reading = b, r
	return s
}

// done gives the scanner back, with nothing in it of what it read.
func (s *scanner) done() {
	*s = scanner{}
	scanners.Put(s)
}

// Check reads all of b as one JSON value.
func Check(b []byte, r Reading) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("%w: invalid UTF-8", ErrJSON)
	}
	s := scan(b, r)
	defer s.done()
	if err := s.value(); err != nil {
		return err
	}
	return s.end()
}

// Members reads all of b as one JSON object and calls fn for each member of it
// with the decoded key and the value's own bytes.
func Members(b []byte, r Reading, fn func(key string, value []byte) error) error {
	s := scan(b, r)
	defer s.done()
	return s.members(fn)
}

// members reads the scanner's bytes as one object.
func (s *scanner) members(fn func(key string, value []byte) error) error {
	if !utf8.Valid(s.b) {
		return fmt.Errorf("%w: invalid UTF-8", ErrJSON)
	}
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != '{' {
		return fmt.Errorf("%w: not an object", ErrJSON)
	}
	if err := s.object(fn); err != nil {
		return err
	}
	return s.end()
}

// Elements reads all of b as one JSON array and calls fn for each element.
func Elements(b []byte, r Reading, fn func(value []byte) error) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("%w: invalid UTF-8", ErrJSON)
	}
	s := scan(b, r)
	defer s.done()
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != '[' {
		return fmt.Errorf("%w: not an array", ErrJSON)
	}
	if err := s.array(fn); err != nil {
		return err
	}
	return s.end()
}

func (s *scanner) end() error {
	s.space()
	if s.i != len(s.b) {
		return s.fail("data after the value")
	}
	return nil
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrJSON, what, s.i)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) value() error {
	s.space()
	if s.i >= len(s.b) {
		return s.fail("the value is missing")
	}
	switch c := s.b[s.i]; {
	case c == '"':
		_, _, err := s.str(s.reading)
		return err
	case c == '{':
		return s.object(nil)
	case c == '[':
		return s.array(nil)
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	return s.fail("an unexpected character")
}

func (s *scanner) literal(word string) error {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return s.fail("an unknown word")
	}
	s.i += len(word)
	return nil
}

func (s *scanner) number() error {
	digits := func() bool {
		from := s.i
		for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
			s.i++
		}
		return s.i > from
	}
	if s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !digits() {
		return s.fail("a malformed number")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !digits() {
			return s.fail("a malformed number")
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !digits() {
			return s.fail("a malformed number")
		}
	}
	return nil
}

func (s *scanner) object(fn func(key string, value []byte) error) error {
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deep")
	}
	s.i++ // {
	base := len(s.keys)
	var many map[string]struct{}
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		s.depth--
		return nil
	}
	for {
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != '"' {
			return s.fail("a member name is missing")
		}
		key, escaped, err := s.str(Strict)
		if err != nil {
			return err
		}
		if escaped {
			if key, err = unescape(key); err != nil {
				return s.fail("a malformed member name")
			}
		}
		if many, err = s.unique(base, many, key); err != nil {
			return err
		}
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != ':' {
			return s.fail("a colon is missing")
		}
		s.i++
		s.space()
		from := s.i
		if err := s.member(key); err != nil {
			return err
		}
		if fn != nil {
			if err := fn(interned(key), s.b[from:s.i:s.i]); err != nil {
				return err
			}
		}
		s.space()
		if s.i >= len(s.b) {
			return s.fail("the object does not end")
		}
		c := s.b[s.i]
		s.i++
		if c == '}' {
			s.keys = s.keys[:base]
			s.depth--
			return nil
		}
		if c != ',' {
			s.i--
			return s.fail("a comma is missing")
		}
	}
}

// member reads a member's value, visiting the members of it where inner wants.
func (s *scanner) member(key []byte) error {
	if s.inner != nil && s.depth == 1 && s.i < len(s.b) && s.b[s.i] == '{' {
		if fn := s.inner(string(key)); fn != nil {
			return s.object(fn)
		}
	}
	return s.value()
}

// names are members that nearly every message has; they need no string of their own.
var names = func() map[string]string {
	out := map[string]string{}
	for _, n := range []string{"jsonrpc", "id", "method", "params", "result", "error", "name", "arguments", "_meta", "progressToken", "content", "isError",
		"structuredContent", "resultType", "uri", "cursor", "inputResponses", "requestState", "text", "type", metaVersion, metaCapabilities, metaClientInfo} {
		out[n] = n
	}
	return out
}()

func interned(key []byte) string {
	if n, ok := names[string(key)]; ok {
		return n
	}
	return string(key)
}

// unique compares a few keys in place and moves to a map when there are many.
func (s *scanner) unique(base int, many map[string]struct{}, key []byte) (map[string]struct{}, error) {
	if many == nil {
		for _, k := range s.keys[base:] {
			if bytes.Equal(k, key) {
				return nil, s.fail("a member stands twice")
			}
		}
		if s.keys == nil {
			s.keys = s.room[:0]
		}
		s.keys = append(s.keys, key)
		if len(s.keys)-base > 24 {
			many = make(map[string]struct{}, 64)
			for _, k := range s.keys[base:] {
				many[string(k)] = struct{}{}
			}
			s.keys = s.keys[:base]
		}
		return many, nil
	}
	if _, twice := many[string(key)]; twice {
		return many, s.fail("a member stands twice")
	}
	many[string(key)] = struct{}{}
	return many, nil
}

func (s *scanner) array(fn func(value []byte) error) error {
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deep")
	}
	s.i++ // [
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
		s.depth--
		return nil
	}
	for {
		s.space()
		from := s.i
		if err := s.value(); err != nil {
			return err
		}
		if fn != nil {
			if err := fn(s.b[from:s.i:s.i]); err != nil {
				return err
			}
		}
		s.space()
		if s.i >= len(s.b) {
			return s.fail("the array does not end")
		}
		c := s.b[s.i]
		s.i++
		if c == ']' {
			s.depth--
			return nil
		}
		if c != ',' {
			s.i--
			return s.fail("a comma is missing")
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks the bytes of x that are a quote, a backslash or below 0x20.
func special(x uint64) uint64 {
	q := x ^ ones*'"'
	e := x ^ ones*'\\'
	return ((q-ones)&^q | (e-ones)&^e | (x-ones*0x20)&^x) & highs
}

// plainLen is how many bytes stand before the first special one.
func plainLen(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
		i++
	}
	return i
}

// str reads a string and returns what stands between its quotes.
func (s *scanner) str(r Reading) (raw []byte, escaped bool, err error) {
	s.i++ // "
	from := s.i
	for {
		s.i += plainLen(s.b[s.i:])
		if s.i >= len(s.b) {
			return nil, false, s.fail("a string does not end")
		}
		switch s.b[s.i] {
		case '"':
			raw = s.b[from:s.i]
			s.i++
			return raw, escaped, nil
		case '\\':
			escaped = true
			if s.i+1 < len(s.b) && short[s.b[s.i+1]] {
				s.i += 2
				continue
			}
			if err := s.escape(r); err != nil {
				return nil, false, err
			}
		default:
			return nil, false, s.fail("a control character in a string")
		}
	}
}

// short are the characters of the two-character escapes that nothing else spells.
var short = [256]bool{'"': true, '\\': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape reads the escapes that are left: \/ and \u.
func (s *scanner) escape(r Reading) error {
	if s.i+1 >= len(s.b) {
		return s.fail("a string does not end")
	}
	s.spelled = true
	if s.b[s.i+1] == '/' {
		s.i += 2
		return nil
	}
	if s.b[s.i+1] != 'u' {
		return s.fail("an unknown escape")
	}
	c, ok := hex4(s.b, s.i+2)
	if !ok {
		return s.fail("a malformed escape")
	}
	high := c >= 0xD800 && c < 0xDC00
	if high && s.i+8 <= len(s.b) && s.b[s.i+6] == '\\' && s.b[s.i+7] == 'u' {
		if low, ok := hex4(s.b, s.i+8); ok && low >= 0xDC00 && low < 0xE000 {
			s.i += 12
			return nil
		}
	}
	if c >= 0xD800 && c < 0xE000 && r == Strict {
		return s.fail("a lone surrogate")
	}
	s.i += 6
	return nil
}

func hex4(b []byte, i int) (int, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	n := 0
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int(c-'a'+10)
		case c >= 'A' && c <= 'F':
			n = n<<4 | int(c-'A'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// unescape decodes the inside of a string that has escapes.
func unescape(raw []byte) ([]byte, error) {
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var out string
	if err := json.Unmarshal(quoted, &out); err != nil {
		return nil, err
	}
	return []byte(out), nil
}

// String decodes a JSON string. It reports false for any other value.
func String(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), true
	}
	b, err := unescape(inner)
	return string(b), err == nil
}
