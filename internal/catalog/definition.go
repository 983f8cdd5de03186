package catalog

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// Read reads one tool object. It never fails: what cannot be offered says why
// in Unsupported and is shown all the same, so that one bad tool takes no other
// with it.
func Read(raw json.RawMessage, lim plane.Limits) (d plane.Definition) {
	d = plane.Definition{Raw: raw, Class: plane.Effect}
	d.Name, d.Fingerprint = Identify(raw)
	if err := mcp.Check(raw, mcp.Strict); err != nil {
		d.Unsupported = "the definition is not unambiguous JSON"
		return d
	}
	defer func() { d.Harmless = d.Harmless || d.SideEffectFree() }()
	err := mcp.Members(raw, mcp.Strict, func(key string, v []byte) error {
		switch key {
		case "description":
			if s, ok := mcp.String(v); ok {
				d.Description = clip(s, lim.DescriptionBytes)
			}
		case "inputSchema":
			d.InputSchema = v
		case "outputSchema":
			d.OutputSchema = v
		case "annotations":
			if v[0] == '{' {
				return mcp.Members(v, mcp.Strict, func(k string, h []byte) error {
					switch k {
					case "readOnlyHint":
						d.ReadOnly = string(h) == "true"
					case "destructiveHint":
						d.Destructive, d.Harmless = string(h) == "true", string(h) == "false"
					}
					return nil
				})
			}
		}
		return nil
	})
	switch {
	case err != nil:
		d.Unsupported = "the definition is not an object"
	case d.Name == "":
		d.Unsupported = "the tool has no name"
	case len(d.Name) > maxName:
		d.Unsupported = fmt.Sprintf("the name is longer than %d bytes", maxName)
	default:
		d.Unsupported = schemaFault(d.InputSchema, lim)
	}
	if d.Unsupported == "" {
		if d.ParamHeaders, err = mcp.ParamHeaders(d.InputSchema); err != nil {
			d.Unsupported = err.Error()
		}
	}
	return d
}

// maxName is far above every real tool name; what is longer is not one.
const maxName = 1024

// schemaFault says why a tool with this input schema cannot be offered. Output
// schemas are not looked at: trouble there never hides a tool.
func schemaFault(schema json.RawMessage, lim plane.Limits) string {
	if len(schema) > lim.SchemaBytes {
		return fmt.Sprintf("the input schema is larger than %d bytes (schema_bytes)", lim.SchemaBytes)
	}
	if len(schema) == 0 || schema[0] != '{' {
		return "" // offered with an empty object schema
	}
	return walkSchema(schema, 1, lim.SchemaDepth)
}

func walkSchema(v []byte, depth, limit int) string {
	if depth > limit {
		return fmt.Sprintf("the input schema is nested deeper than %d levels (schema_depth)", limit)
	}
	fault := ""
	into := func(v []byte) {
		if fault == "" && (v[0] == '{' || v[0] == '[') {
			fault = walkSchema(v, depth+1, limit)
		}
	}
	switch v[0] {
	case '{':
		mcp.Members(v, mcp.Strict, func(key string, m []byte) error { // v was checked as a whole
			if ref, ok := mcp.String(m); ok && (key == "$ref" || key == "$dynamicRef") && !strings.HasPrefix(ref, "#") {
				fault = "the input schema refers to another document"
			}
			into(m)
			return nil
		})
	case '[':
		mcp.Elements(v, mcp.Strict, func(m []byte) error { into(m); return nil })
	}
	return fault
}

// clip shortens s to at most n bytes on a rune boundary.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
