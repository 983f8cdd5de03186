package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// geminiKeeps are the keywords of its subset.
var geminiKeeps = []string{"type", "format", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf", "minItems", "maxItems",
	"minimum", "maximum", "minLength", "maxLength", "pattern"}

// subset brings one subschema into Gemini's subset; what it cannot say goes into
// the description, or is left to the server.
func (p *projection) subset(in map[string]any) map[string]any {
	m := maps.Clone(in)
	for _, part := range list(m["allOf"]) {
		if b, ok := part.(map[string]any); ok {
			merge(m, b)
		}
	}
	if one := list(m["oneOf"]); one != nil && m["anyOf"] == nil {
		m["anyOf"] = one
	}
	if c, ok := m["const"]; ok && m["enum"] == nil {
		m["enum"] = []any{c}
	}
	if types, ok := m["type"].([]any); ok {
		delete(m, "type")
		for _, t := range types {
			if t == "null" {
				m["nullable"] = true
			} else if m["type"] == nil {
				m["type"] = t
			}
		}
	}
	if values := list(m["enum"]); values != nil {
		plain := true
		for _, v := range values {
			s, ok := v.(string)
			plain = plain && ok && s != ""
		}
		if !plain {
			b, _ := json.Marshal(values) // decoded from JSON
			text, _ := m["description"].(string)
			m["description"] = strings.TrimSpace(fmt.Sprintf("%s One of: %s", text, clipBytes(b, maxNamedValues)))
			if p.said += len(b); p.said > maxProjected {
				p.nodes = maxNodes + 1
			}
			delete(m, "enum")
		}
	}
	if list(m["required"]) != nil { // it refuses a required name that is not declared beside it
		props, _ := m["properties"].(map[string]any)
		var declared []any
		for _, r := range list(m["required"]) {
			if n, ok := r.(string); ok {
				if _, has := props[n]; has {
					declared = append(declared, n)
				}
			}
		}
		if m["required"] = declared; declared == nil {
			delete(m, "required")
		}
	}
	if f, ok := m["format"].(string); ok && !slices.Contains([]string{"date-time", "int32", "int64", "float", "double", "enum"}, f) {
		delete(m, "format")
	}
	for k := range m {
		if !slices.Contains(geminiKeeps, k) {
			delete(m, k)
		}
	}
	p.changed = true
	return m
}

// maxNamedValues bounds what a description says of an enum, in bytes.
const maxNamedValues = 1024

func clipBytes(b []byte, n int) string {
	if len(b) <= n {
		return string(b)
	}
	return strings.ToValidUTF8(string(b[:n]), "") + "…"
}

func list(v any) []any { l, _ := v.([]any); return l }

// merge takes a branch of allOf into its parent.
func merge(m, b map[string]any) {
	for k, v := range b {
		switch k {
		case "properties":
			props := map[string]any{}
			if have, ok := m[k].(map[string]any); ok {
				maps.Copy(props, have)
			}
			if more, ok := v.(map[string]any); ok {
				maps.Copy(props, more)
			}
			m[k] = props
		case "required":
			m[k] = append(slices.Clone(list(m[k])), list(v)...)
		default:
			if _, has := m[k]; !has {
				m[k] = v
			}
		}
	}
}
