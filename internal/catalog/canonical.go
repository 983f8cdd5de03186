package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"

	"patchbay/internal/mcp"
)

// Canonical writes a tool object in the form that fingerprints are taken over:
// members sorted by the bytes of their names, no white space, strings decoded
// and written with the fewest escapes, numbers as the server wrote them, the
// top-level _meta left out. Duplicate members and lone surrogates are refused.
func Canonical(raw []byte) ([]byte, error) {
	if err := mcp.Check(raw, mcp.Strict); err != nil {
		return nil, err
	}
	return canonical(nil, raw, true)
}

func canonical(dst, raw []byte, top bool) ([]byte, error) {
	switch raw[0] {
	case '{':
		type member struct {
			key   string
			value []byte
		}
		var ms []member
		err := mcp.Members(raw, mcp.Strict, func(key string, value []byte) error {
			if !top || key != "_meta" {
				ms = append(ms, member{key, value})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		slices.SortFunc(ms, func(a, b member) int { return strings.Compare(a.key, b.key) })
		dst = append(dst, '{')
		for i, m := range ms {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(canonicalString(dst, m.key), ':')
			if dst, err = canonical(dst, m.value, false); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	case '[':
		dst = append(dst, '[')
		first := true
		err := mcp.Elements(raw, mcp.Strict, func(v []byte) (err error) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst, err = canonical(dst, v, false)
			return err
		})
		return append(dst, ']'), err
	case '"':
		s, _ := mcp.String(raw)
		return canonicalString(dst, s), nil
	}
	return append(dst, raw...), nil
}

const hexDigits = "0123456789abcdef"

// canonicalString escapes what JSON demands and nothing else.
func canonicalString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// Fingerprint is the lower-case hex SHA-256 of the canonical form.
func Fingerprint(raw []byte) (string, error) {
	c, err := Canonical(raw)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(c)
	return hex.EncodeToString(sum[:]), nil
}

// Identify reads just the name and the fingerprint of a tool object. Bytes that
// have no canonical form are identified by themselves.
func Identify(raw []byte) (name, fingerprint string) {
	mcp.Members(raw, mcp.Answer, func(key string, v []byte) error { // an unreadable object has no name
		if key == "name" {
			name, _ = mcp.String(v)
		}
		return nil
	})
	fingerprint, err := Fingerprint(raw)
	if err != nil {
		sum := sha256.Sum256(raw)
		fingerprint = "raw:" + hex.EncodeToString(sum[:])
	}
	return name, fingerprint
}
