package bridge

import (
	"bytes"
	"encoding/json"

	"patchbay/internal/mcp"
)

var emptyObject = json.RawMessage(`{"type":"object","properties":{}}`)

// modelSchema is a tool's input schema in a form that model providers take.
// Everything else of it is the server's own bytes: providers refuse whole
// requests over a root that is no object or that holds a combinator, so only
// the root is rewritten.
func modelSchema(schema json.RawMessage) json.RawMessage { return visibleStrings(rootObject(schema)) }

// visibleStrings rewrites the strings of a schema, its names aside, so that
// nothing in them is invisible. A schema of plain text keeps its bytes.
func visibleStrings(raw json.RawMessage) json.RawMessage {
	plain := !bytes.Contains(raw, []byte(`\u`))
	for i := 0; i < len(raw) && plain; i++ {
		plain = raw[i] < 0x7f
	}
	if plain {
		return raw
	}
	switch raw[0] {
	case '"':
		s, _ := mcp.String(raw)
		if v := Visible(s); v != s {
			if b, err := json.Marshal(v); err == nil {
				return b
			}
			return json.RawMessage(`""`)
		}
	case '{', '[':
		out := []byte{raw[0]}
		add := func(name string, v []byte) error {
			if len(out) > 1 {
				out = append(out, ',')
			}
			if raw[0] == '{' {
				q, err := json.Marshal(name)
				if err != nil {
					return err
				}
				out = append(append(out, q...), ':')
			}
			out = append(out, visibleStrings(v)...)
			return nil
		}
		err := error(nil)
		if raw[0] == '{' {
			err = mcp.Members(raw, mcp.Strict, add)
		} else {
			err = mcp.Elements(raw, mcp.Strict, func(v []byte) error { return add("", v) })
		}
		if err != nil {
			return emptyObject
		}
		return append(out, raw[0]+2) // the closing brace or bracket
	}
	return raw
}

// rootObject makes the root an object without combinators.
func rootObject(schema json.RawMessage) json.RawMessage {
	if len(schema) == 0 || schema[0] != '{' {
		return emptyObject
	}
	var kind json.RawMessage
	var order []string
	members := map[string]json.RawMessage{}
	err := mcp.Members(schema, mcp.Strict, func(key string, v []byte) error {
		if key == "type" {
			kind = v
		}
		order = append(order, key)
		members[key] = v
		return nil
	})
	if err != nil {
		return emptyObject
	}
	if kind != nil && string(kind) != `"object"` && !bytes.Contains(kind, []byte(`"object"`)) {
		return emptyObject
	}
	combined := false
	for _, k := range []string{"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const"} {
		if _, ok := members[k]; ok {
			combined = true
		}
	}
	_, hasProps := members["properties"]
	if string(kind) == `"object"` && !combined && hasProps {
		return schema
	}
	if !hasProps {
		members["properties"] = liftProperties(members)
		order = append(order, "properties")
	}
	out := []byte(`{"type":"object"`)
	for _, k := range order {
		switch k {
		case "type", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const":
			continue
		}
		name, err := json.Marshal(k)
		if err != nil {
			return emptyObject
		}
		out = append(append(append(append(out, ','), name...), ':'), members[k]...)
	}
	return append(out, '}')
}

// liftProperties unites what the branches of a root combinator allow, so that
// the model still sees the arguments; the server checks which go together.
func liftProperties(members map[string]json.RawMessage) json.RawMessage {
	out := []byte{'{'}
	seen := map[string]bool{}
	for _, k := range []string{"anyOf", "oneOf", "allOf"} {
		branches := members[k]
		if len(branches) == 0 || branches[0] != '[' {
			continue
		}
		mcp.Elements(branches, mcp.Strict, func(b []byte) error { // checked with the whole definition
			if b[0] != '{' {
				return nil
			}
			return mcp.Members(b, mcp.Strict, func(key string, props []byte) error {
				if key != "properties" || props[0] != '{' {
					return nil
				}
				return mcp.Members(props, mcp.Strict, func(name string, v []byte) error {
					if seen[name] {
						return nil
					}
					seen[name] = true
					q, err := json.Marshal(name)
					if err != nil {
						return err
					}
					if len(out) > 1 {
						out = append(out, ',')
					}
					out = append(append(append(out, q...), ':'), v...)
					return nil
				})
			})
		})
	}
	return append(out, '}')
}
