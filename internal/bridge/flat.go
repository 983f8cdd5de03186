package bridge

import (
	"bytes"
	"encoding/json"
	"slices"

	"patchbay/internal/mcp"
)

// flat is a schema of plain values only, as most tools have: what fits it is told
// without reading the arguments into values. What does not is left to the whole
// check, which says why.
type flat struct {
	closed   bool
	required []string
	props    map[string]string // name: string, integer, number or boolean
}

// annotations say something and demand nothing.
var annotations = []string{"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"}

// flatten returns the schema's flat form, or nil where it says more.
func flatten(raw json.RawMessage) *flat {
	f := &flat{props: map[string]string{}}
	kind, plain := "", true
	err := mcp.Members(raw, mcp.Strict, func(key string, v []byte) error {
		switch key {
		case "type":
			kind, _ = mcp.String(v)
		case "properties":
			ok := v[0] == '{' && mcp.Members(v, mcp.Strict, func(name string, v []byte) error {
				f.props[name] = flatKind(v)
				plain = plain && f.props[name] != ""
				return nil
			}) == nil
			plain = plain && ok
		case "required":
			plain = plain && json.Unmarshal(v, &f.required) == nil
		case "additionalProperties":
			f.closed = string(v) == "false"
			plain = plain && (f.closed || string(v) == "true")
		case "$schema":
		default:
			plain = plain && slices.Contains(annotations, key)
		}
		return nil
	})
	if err != nil || !plain || kind != "object" {
		return nil
	}
	return f
}

// flatKind is the one type that a property's schema demands, or nothing where it
// demands more.
func flatKind(raw []byte) (kind string) {
	if raw[0] != '{' {
		return ""
	}
	plain := true
	if mcp.Members(raw, mcp.Strict, func(key string, v []byte) error {
		if key == "type" {
			kind, _ = mcp.String(v)
		} else {
			plain = plain && slices.Contains(annotations, key)
		}
		return nil
	}) != nil || !plain || !slices.Contains([]string{"string", "integer", "number", "boolean"}, kind) {
		return ""
	}
	return kind
}

// fits reports that arguments, which were checked as JSON, fit for certain.
func (f *flat) fits(args json.RawMessage) bool {
	there, good := 0, true
	err := mcp.Members(args, mcp.Strict, func(key string, v []byte) error {
		kind, known := f.props[key]
		switch {
		case !known:
			good = good && !f.closed
		case kind == "string":
			good = good && v[0] == '"'
		case kind == "boolean":
			good = good && (v[0] == 't' || v[0] == 'f')
		case v[0] != '-' && (v[0] < '0' || v[0] > '9'):
			good = false
		case kind == "integer":
			good = good && !bytes.ContainsAny(v, ".eE")
		}
		if slices.Contains(f.required, key) {
			there++
		}
		return nil
	})
	return err == nil && good && there == len(f.required)
}
