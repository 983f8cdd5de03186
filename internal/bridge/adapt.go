package bridge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"patchbay/internal/mcp"
)

// Dialect is the subset of JSON Schema that a model's provider takes. What the
// server receives never depends on it: see docs/schemas.md for the whole
// transformation.
type Dialect string

// The dialects. DialectPlain is for callers that take any schema.
const (
	DialectPlain     Dialect = ""
	DialectAnthropic Dialect = "anthropic"
	DialectOpenAI    Dialect = "openai"
	DialectGemini    Dialect = "gemini"
)

const (
	maxProjected = 64 << 10 // bytes of a schema as a model is shown it
	maxNodes     = 10_000
	maxInline    = 6 // how deep a definition that contains itself is unfolded
)

// project brings an input schema into a dialect. back turns arguments by the
// projected names into those of the server; it is nil where no name changed. why
// says that the provider cannot take the tool.
func project(schema json.RawMessage, d Dialect) (out json.RawMessage, back *renames, why string) {
	out = modelSchema(schema)
	if d == DialectPlain {
		return out, nil, ""
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.UseNumber()
	var root map[string]any
	if dec.Decode(&root) != nil {
		return emptyObject, nil, ""
	}
	back = &renames{}
	p := &projection{d: d, root: root, top: back, defs: map[string]*renames{}}
	p.lift()
	res := p.schema(root, back, 0, nil)
	switch {
	case p.nodes > maxNodes:
		return nil, nil, "its schema is too large for a model"
	case p.odd && p.renamed:
		return nil, nil, "its schema refers to a part of itself by a name that the model's provider does not take"
	}
	if p.changed {
		b, err := json.Marshal(res)
		if err != nil {
			return emptyObject, nil, ""
		}
		out = b
	}
	if len(out) > maxProjected {
		return nil, nil, "its schema is too large for a model"
	}
	if !p.renamed {
		back = nil
	}
	return out, back, ""
}

// renames maps the names of one object's members back, and what lies below.
type renames struct {
	props map[string]*renamed
	items *renames
	rest  *renames // of members that no property names
	link  *renames // of the definition that is referred to
}

// maxLinks bounds how many references are followed for one value.
const maxLinks = 16

func (r *renames) prop(key string) *renamed {
	for range maxLinks {
		if r == nil {
			break
		}
		if p := r.props[key]; p != nil {
			return p
		}
		r = r.link
	}
	return nil
}

func (r *renames) below(part func(*renames) *renames) *renames {
	for range maxLinks {
		if r == nil {
			break
		}
		if b := part(r); b != nil {
			return b
		}
		r = r.link
	}
	return nil
}

type renamed struct {
	name string
	sub  *renames
}

// restore rewrites arguments to the server's names; numbers and strings keep
// their text.
func (r *renames) restore(args json.RawMessage) json.RawMessage {
	if r == nil || len(args) == 0 || args[0] != '{' && args[0] != '[' {
		return args
	}
	out := []byte{args[0]}
	sep := func() {
		if len(out) > 1 {
			out = append(out, ',')
		}
	}
	var err error
	if args[0] == '{' {
		err = mcp.Members(args, mcp.Strict, func(key string, v []byte) error {
			sub := r.below(func(r *renames) *renames { return r.rest })
			if p := r.prop(key); p != nil {
				key, sub = p.name, p.sub
			}
			q, err := json.Marshal(key)
			if err != nil {
				return err
			}
			sep()
			out = append(append(append(out, q...), ':'), sub.restore(v)...)
			return nil
		})
	} else {
		err = mcp.Elements(args, mcp.Strict, func(v []byte) error {
			sep()
			out = append(out, r.below(func(r *renames) *renames { return r.items }).restore(v)...)
			return nil
		})
	}
	if err != nil {
		return args // it is refused for what it is
	}
	return append(out, args[0]+2)
}

// lift takes what the root refers to into the root: a model must see the arguments
// of a tool whose whole schema is a reference.
func (p *projection) lift() {
	for range maxLinks {
		ref, ok := p.root["$ref"].(string)
		if !ok || !strings.HasPrefix(ref, "#/") {
			return
		}
		target, ok := p.at(ref).(map[string]any)
		if !ok {
			return
		}
		delete(p.root, "$ref")
		p.changed = true
		merge(p.root, target)
	}
}

// at is what a local reference points to, or nil.
func (p *projection) at(ref string) any {
	target := any(p.root)
	for _, s := range segments(ref) {
		m, ok := target.(map[string]any)
		if !ok {
			return nil
		}
		target = m[s]
	}
	return target
}

// segments are the names in a local reference.
func segments(ref string) []string {
	path := strings.Split(strings.TrimPrefix(ref, "#"), "/")[1:]
	for i, s := range path {
		if u, err := url.PathUnescape(s); err == nil {
			s = u
		}
		path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
	}
	return path
}

type projection struct {
	d                     Dialect
	root                  map[string]any
	top                   *renames
	defs                  map[string]*renames
	nodes                 int
	said                  int // bytes that went into descriptions
	changed, renamed, odd bool
}

// dropped say nothing to a model.
var dropped = []string{"$schema", "$id", "$comment", "$anchor", "$dynamicAnchor", "$vocabulary", "id"}

// schema projects one subschema. trail are the definitions being unfolded.
func (p *projection) schema(v any, back *renames, depth int, trail []string) any {
	if p.nodes++; p.nodes > maxNodes || depth > 80 {
		p.nodes = maxNodes + 1
		return map[string]any{}
	}
	m, ok := v.(map[string]any)
	if !ok {
		if p.d == DialectGemini {
			p.changed = true
			return map[string]any{}
		}
		return v
	}
	p.changed = exclusiveBounds(m) || p.changed
	if ref, ok := m["$ref"].(string); ok {
		if res, done := p.ref(m, ref, back, depth, trail); done {
			return res
		}
	}
	if p.d == DialectGemini {
		m = p.subset(m)
	}
	out := make(map[string]any, len(m))
	names := p.names(m, back)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		e := m[k]
		if slices.Contains(dropped, k) {
			if _, text := e.(string); text {
				p.changed = true
				continue
			}
		}
		out[k] = p.member(k, e, names, back, depth, trail)
	}
	if isArray(m) && m["items"] == nil && m["prefixItems"] == nil {
		out["items"], p.changed = map[string]any{}, true
	}
	return out
}

func isArray(m map[string]any) bool { return m["type"] == "array" }

// names gives every property of an object a name that providers take, and notes
// the way back.
func (p *projection) names(m map[string]any, back *renames) map[string]string {
	props, _ := m["properties"].(map[string]any)
	if len(props) == 0 {
		return nil
	}
	if back.props == nil {
		back.props = map[string]*renamed{}
	}
	out := make(map[string]string, len(props))
	for _, k := range slices.Sorted(maps.Keys(props)) {
		n := k
		if !goodKey(k) {
			n = safeKey(k)
			p.changed, p.renamed = true, true
		}
		out[k] = n
		if back.props[n] == nil {
			back.props[n] = &renamed{name: k, sub: &renames{}}
		}
	}
	return out
}

// goodKey is what every provider takes as a property's name.
func goodKey(k string) bool {
	if k == "" || len(k) > 64 || k[0] >= '0' && k[0] <= '9' || k[0] == '-' {
		return false
	}
	for i := range len(k) {
		c := k[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// safeKey is a name that stands for another one. It depends on that name alone, so
// that every branch of a schema gives it the same, and carries a digest, so that no
// other name is meant by it.
func safeKey(k string) string {
	var b strings.Builder
	for _, r := range k {
		if b.Len() == 40 {
			break
		}
		if r < 0x80 && goodKey("a"+string(r)) {
			b.WriteRune(r)
		} else if !strings.HasSuffix(b.String(), "_") {
			b.WriteByte('_')
		}
	}
	n := strings.Trim(b.String(), "_-")
	if n == "" || n[0] >= '0' && n[0] <= '9' {
		n = strings.TrimSuffix("p_"+n, "_")
	}
	sum := sha256.Sum256([]byte(k))
	return n + "_" + hex.EncodeToString(sum[:3])
}

// member projects one keyword's value.
func (p *projection) member(k string, v any, names map[string]string, back *renames, depth int, trail []string) any {
	switch k {
	case "properties":
		props, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := make(map[string]any, len(props))
		for _, n := range slices.Sorted(maps.Keys(props)) {
			out[names[n]] = p.schema(props[n], back.props[names[n]].sub, depth+1, trail)
		}
		return out
	case "required":
		list, ok := v.([]any)
		if !ok {
			return v
		}
		out := make([]any, 0, len(list))
		for _, e := range list {
			if s, ok := e.(string); ok && names[s] != "" {
				e = names[s]
			}
			out = append(out, e)
		}
		return out
	case "$defs", "definitions":
		defs, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := make(map[string]any, len(defs))
		for _, n := range slices.Sorted(maps.Keys(defs)) {
			out[n] = p.schema(defs[n], p.def(n), depth+1, trail)
		}
		return out
	case "items", "contains", "unevaluatedItems":
		if _, list := v.([]any); list {
			return p.branches(v, p.items(back), depth, trail)
		}
		return p.schema(v, p.items(back), depth+1, trail)
	case "prefixItems":
		return p.branches(v, p.items(back), depth, trail)
	case "additionalProperties", "unevaluatedProperties":
		if back.rest == nil {
			back.rest = &renames{}
		}
		if _, is := v.(bool); is {
			return v
		}
		return p.schema(v, back.rest, depth+1, trail)
	case "anyOf", "oneOf", "allOf":
		return p.branches(v, back, depth, trail)
	case "not", "if", "then", "else":
		return p.schema(v, back, depth+1, trail)
	}
	return v
}

func (p *projection) items(back *renames) *renames {
	if back.items == nil {
		back.items = &renames{}
	}
	return back.items
}

func (p *projection) def(name string) *renames {
	if p.defs[name] == nil {
		p.defs[name] = &renames{}
	}
	return p.defs[name]
}

func (p *projection) branches(v any, back *renames, depth int, trail []string) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, 0, len(list))
	for _, e := range list {
		out = append(out, p.schema(e, back, depth+1, trail))
	}
	return out
}

// ref follows a reference: Gemini takes none, so that it is unfolded there, and a
// definition that contains itself is cut to an open object; elsewhere it stays.
func (p *projection) ref(m map[string]any, ref string, back *renames, depth int, trail []string) (any, bool) {
	name := ""
	if path := segments(ref); len(path) == 2 && (path[0] == "$defs" || path[0] == "definitions") {
		name = path[1]
	} else if ref != "#" {
		p.odd = true
	}
	if p.d != DialectGemini {
		switch {
		case name != "":
			back.link = p.def(name)
		case ref == "#":
			back.link = p.top
		}
		return nil, false
	}
	p.changed = true
	again := 0
	for _, t := range trail {
		if t == ref {
			again++
		}
	}
	t, ok := p.at(ref).(map[string]any)
	if !ok || again > 0 || len(trail) > maxInline {
		return map[string]any{"type": "object"}, true
	}
	merged := maps.Clone(m)
	delete(merged, "$ref")
	merge(merged, t)
	return p.schema(merged, back, depth+1, append(slices.Clone(trail), ref)), true
}

// exclusiveBounds turns the exclusive bounds of draft 4 in one schema into today's,
// and reports whether there were any.
func exclusiveBounds(m map[string]any) (changed bool) {
	for _, k := range [][2]string{{"exclusiveMinimum", "minimum"}, {"exclusiveMaximum", "maximum"}} {
		if on, ok := m[k[0]].(bool); ok {
			changed = true
			delete(m, k[0])
			if bound, has := m[k[1]]; on && has {
				m[k[0]] = bound
				delete(m, k[1])
			}
		}
	}
	return changed
}
