package ingress

import (
	"encoding/json"
	"strings"

	"patchbay/internal/mcp"
)

// offers is what an agent's endpoint is: the tools, resources and prompts of all its
// connections as one server.
var offers = json.RawMessage(`{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"prompts":{"listChanged":true},"completions":{},"logging":{}}`)

// What a client may be asked, of what is handed on. Everything else that it says is
// dropped: a server is told nothing that would not work.
const (
	mayElicit byte = 1 << iota
	mayElicitURL
	maySample
	maySampleTools
	maySampleContext
	mayListRoots
	maxFlags = 1<<iota - 1
)

// capabilities are what the flags mean, written out once.
var capabilities = func() (out [maxFlags + 1]json.RawMessage) {
	for f := range out {
		f := byte(f)
		var parts []string
		object := func(name string, members ...string) {
			parts = append(parts, `"`+name+`":{`+strings.Join(members, ",")+`}`)
		}
		switch {
		case f&mayElicit != 0 && f&mayElicitURL != 0:
			object("elicitation", `"form":{}`, `"url":{}`)
		case f&mayElicitURL != 0:
			object("elicitation", `"url":{}`)
		case f&mayElicit != 0:
			object("elicitation")
		}
		if f&maySample != 0 {
			var members []string
			if f&maySampleTools != 0 {
				members = append(members, `"tools":{}`)
			}
			if f&maySampleContext != 0 {
				members = append(members, `"context":{}`)
			}
			object("sampling", members...)
		}
		if f&mayListRoots != 0 {
			object("roots")
		}
		out[f] = json.RawMessage("{" + strings.Join(parts, ",") + "}")
	}
	return out
}()

// flagsOf reads what a client says.
func flagsOf(said json.RawMessage) (f byte) {
	if len(said) <= len("{}") {
		return 0
	}
	var c struct {
		Elicitation map[string]json.RawMessage `json:"elicitation"`
		Sampling    map[string]json.RawMessage `json:"sampling"`
		Roots       map[string]json.RawMessage `json:"roots"`
	}
	if json.Unmarshal(said, &c) != nil {
		return 0
	}
	has := func(m map[string]json.RawMessage, name string, flag byte) {
		if _, ok := m[name]; ok {
			f |= flag
		}
	}
	if c.Elicitation != nil {
		has(c.Elicitation, "form", mayElicit)
		has(c.Elicitation, "url", mayElicitURL)
		if len(c.Elicitation) == 0 {
			f |= mayElicit
		}
	}
	if c.Sampling != nil {
		f |= maySample
		has(c.Sampling, "tools", maySampleTools)
		has(c.Sampling, "context", maySampleContext)
	}
	if c.Roots != nil {
		f |= mayListRoots
	}
	return f
}

// mayAsk reports whether a client with those flags may be asked that.
func mayAsk(f byte, method string, params json.RawMessage) bool {
	switch method {
	case mcp.MethodElicit:
		if urlMode(params) {
			return f&mayElicitURL != 0
		}
		return f&mayElicit != 0
	case mcp.MethodSample:
		return f&maySample != 0
	case mcp.MethodRoots:
		return f&mayListRoots != 0
	}
	return false
}

// urlMode reports anything but a form, which is what a question is without a mode.
func urlMode(params json.RawMessage) bool {
	mode := "form"
	err := mcp.Members(params, mcp.Strict, func(key string, v []byte) error {
		if key == "mode" {
			mode, _ = mcp.String(v)
		}
		return nil
	})
	return err != nil || mode != "form"
}
