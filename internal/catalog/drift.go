package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Kind is what a changed definition introduced.
type Kind string

// The kinds, the mildest first. Grading warns; it decides nothing.
const (
	KindAdded        Kind = "added"
	KindText         Kind = "text"
	KindWidened      Kind = "schema_widened" // what was taken before is still taken
	KindSchema       Kind = "schema_changed" // what was taken before may be refused, or what comes back differs
	KindRenamed      Kind = "renamed"        // the same schemas under a new name
	KindHint         Kind = "hint_flipped"   // the server says otherwise whether it only reads
	KindURL          Kind = "new_url"        // an address that was not there before
	KindOtherTool    Kind = "names_other"    // it speaks of a tool of another connection
	KindInstruction  Kind = "instruction"    // text that addresses the model, or that cannot be seen
	KindInstructions Kind = "instructions"   // the server's own instructions
	KindScopes       Kind = "scopes_grown"   // the server asks for more than was granted
	maxShownText          = 300              // of a text in a change
	maxOfAKind            = 8                // changes of one kind
	maxGraded             = 128 << 10        // bytes of a definition that is compared
	maxWhere              = 200              // bytes of a place in it
	maxGradeDepth         = 80               // of what is compared
	maxGradeText          = 256 << 10        // of what is searched for addresses and instructions
)

// Change is one difference between two definitions.
type Change struct {
	Kind   Kind   `json:"kind"`
	Where  string `json:"where"` // a JSON pointer into the definition
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Kinds names the kinds of changes, each once.
func Kinds(changes []Change) string {
	var out []string
	for _, c := range changes {
		if !slices.Contains(out, string(c.Kind)) {
			out = append(out, string(c.Kind))
		}
	}
	return strings.Join(out, ", ")
}

// Grade compares two definitions of one tool and says what the second
// introduced. others are names of other connections' tools, which a description
// has no reason to speak of.
func Grade(before, after []byte, others []string) []Change {
	g := &grading{}
	if len(before) > maxGraded || len(after) > maxGraded {
		g.add(KindSchema, "", "", "It is too large to be compared.")
		return g.out
	}
	a, aok := tree(before)
	b, bok := tree(after)
	if len(before) == 0 {
		g.add(KindAdded, "", "", "")
		a, aok = map[string]any{}, true
		g.quiet = true
	}
	if !aok || !bok {
		g.add(KindSchema, "", "", "")
		return g.out
	}
	g.compare("", a, b, 0)
	g.quiet = false
	g.introduced(string(before), texts(b), texts(a), others)
	if g.more > 0 {
		g.out = append(g.out, Change{Kind: KindText, After: fmt.Sprintf("and %d more of a kind that is shown already", g.more)})
	}
	return g.out
}

func tree(raw []byte) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err == nil
}

type grading struct {
	out   []Change
	kinds map[Kind]int
	more  int // left out: every kind has a bound of its own, so that none hides another
	quiet bool
}

func (g *grading) add(k Kind, where string, before, after any) {
	if g.quiet {
		return
	}
	switch { // wherever it changed: text is text, and a hint a hint
	case k != KindSchema && k != KindWidened:
	case isText(where):
		k = KindText
	case isHint(where):
		k = KindHint
	}
	if g.kinds == nil {
		g.kinds = map[Kind]int{}
	}
	if g.kinds[k]++; g.kinds[k] > maxOfAKind {
		g.more++
		return
	}
	g.out = append(g.out, Change{Kind: k, Where: where, Before: short(before), After: short(after)})
}

func short(v any) string {
	s, ok := v.(string)
	if !ok {
		if v == nil {
			return ""
		}
		b, err := json.Marshal(v)
		if err != nil {
			return ""
		}
		s = string(b)
	}
	return clip(s, maxShownText)
}

// compare walks both definitions.
func (g *grading) compare(at string, a, b any, depth int) {
	if depth > maxGradeDepth {
		return
	}
	ma, aok := a.(map[string]any)
	mb, bok := b.(map[string]any)
	if !aok || !bok {
		if !same(a, b) {
			g.add(kindOf(at, a, b), at, a, b)
		}
		return
	}
	keys := slices.Sorted(maps.Keys(ma))
	for k := range mb {
		if _, ok := ma[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if at == "" && k == "_meta" {
			continue // it is no part of the definition
		}
		va, ina := ma[k]
		vb, inb := mb[k]
		where := below(at, k)
		switch {
		case ina && inb:
			g.compare(where, va, vb, depth+1)
		case inb:
			g.add(addedKind(where, vb), where, nil, vb)
		default:
			g.add(removedKind(where), where, va, nil)
		}
	}
}

// below is the place of a member. A place that is long already grows no more.
func below(at, k string) string {
	if len(at) > maxWhere {
		return at
	}
	return at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(k, maxWhere))
}

func same(a, b any) bool { return compact(a) == compact(b) }

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// textMembers say something to people and change nothing of what is taken.
var textMembers = []string{"title", "description", "$comment", "examples", "deprecated"}

func parts(at string) (parent, last string) {
	list := strings.Split(at, "/")
	last = list[len(list)-1]
	if len(list) > 2 {
		parent = list[len(list)-2]
	}
	return parent, last
}

// isText reports that a place holds text for people: a member of that name, or
// something in it, that is no property of a schema.
func isText(at string) bool {
	list := strings.Split(at, "/")[1:]
	if len(list) > 0 && list[0] == "icons" || at == "/annotations/title" {
		return true
	}
	for i, s := range list {
		if slices.Contains(textMembers, s) && (i == 0 || !slices.Contains(named, list[i-1])) {
			return true
		}
	}
	return false
}

// named are the members whose own members have names that a server chose.
var named = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}

func isHint(at string) bool {
	return strings.HasPrefix(at, "/annotations/") && at != "/annotations/title" || at == "/annotations"
}

// kindOf grades a value that is another now.
func kindOf(at string, a, b any) Kind {
	_, last := parts(at)
	switch {
	case last == "required" && subset(b, a), (last == "enum" || last == "type") && subset(a, b):
		return KindWidened
	case last == "additionalProperties" && b == true:
		return KindWidened
	case looser(last, a, b):
		return KindWidened
	}
	return KindSchema
}

// looser reports a bound that takes more than before.
func looser(member string, a, b any) bool {
	na, aok := a.(json.Number)
	nb, bok := b.(json.Number)
	if !aok || !bok {
		return false
	}
	fa, _ := na.Float64()
	fb, _ := nb.Float64()
	switch member {
	case "maximum", "maxLength", "maxItems", "maxProperties", "exclusiveMaximum":
		return fb > fa
	case "minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum":
		return fb < fa
	}
	return false
}

// subset reports that everything of a stands in b; a single value is a list of
// one.
func subset(a, b any) bool {
	la, lb := listOf(a), listOf(b)
	for _, x := range la {
		if !slices.ContainsFunc(lb, func(y any) bool { return same(x, y) }) {
			return false
		}
	}
	return true
}

func listOf(v any) []any {
	if l, ok := v.([]any); ok {
		return l
	}
	return []any{v}
}

func addedKind(at string, v any) Kind {
	parent, last := parts(at)
	switch {
	case parent == "properties", parent == "$defs" || parent == "definitions", last == "default":
		return KindWidened
	case last == "required" && len(listOf(v)) == 0, last == "additionalProperties" && v == true:
		return KindWidened
	}
	return KindSchema
}

func removedKind(at string) Kind {
	_, last := parts(at)
	switch {
	case isText(at):
		return KindText
	case isHint(at):
		return KindHint
	case slices.Contains([]string{"required", "enum", "pattern", "format", "maximum", "minimum", "maxLength", "minLength", "maxItems", "minItems", "additionalProperties"}, last):
		return KindWidened
	}
	return KindSchema
}

type text struct{ where, s string }

// texts are all strings of a definition, keys too.
func texts(v any) []text {
	var out []text
	total := 0
	var walk func(at string, v any, depth int)
	walk = func(at string, v any, depth int) {
		if depth > maxGradeDepth || total > maxGradeText {
			return
		}
		switch x := v.(type) {
		case string:
			total += len(x)
			out = append(out, text{at, x})
		case []any:
			for i, e := range x {
				walk(below(at, strconv.Itoa(i)), e, depth+1)
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(x)) {
				if at == "" && k == "_meta" {
					continue
				}
				total += len(k)
				out = append(out, text{below(at, k), k})
				walk(below(at, k), x[k], depth+1)
			}
		}
	}
	walk("", v, 0)
	return out
}

var (
	urlRE = lazy(`(?i)\b(?:https?|wss?|ftp|file|data):[^\s"'<>)\]}]{2,200}`)
	// What a description of a tool has no reason to say. Folded text.
	commandRE = lazy(`(?i)\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|rule|previous|prior|earlier|above|prompt)|` +
		`\b(?:you|assistant|model|agent|ai) (?:must|should|shall|need to|have to|are required)\b|` +
		`\b(?:do not|don't|never) (?:tell|mention|reveal|inform|show|ask|warn)\b|` +
		`\bsystem prompt\b|<\s*/?\s*(?:important|system|instruction|secret)\b|` +
		`\b(?:before|instead of|prior to) (?:calling|using|invoking|running|each|any|every)\b|` +
		`\balways (?:call|use|send|include|run|pass)\b|` +
		`\b(?:send|forward|post|upload|append|include)\b.{0,60}\b(?:password|secret|token|credential|api key|private key|conversation|history|contents of)`)
)

// lazy compiles at the first use: most processes grade nothing.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// introduced finds what the new texts bring that the old ones had not.
func (g *grading) introduced(before string, now, then []text, others []string) {
	had := map[string]bool{}
	for _, t := range then {
		had[t.s] = true
	}
	for _, t := range now {
		if had[t.s] {
			continue
		}
		for _, u := range urlRE().FindAllString(t.s, 8) {
			if !strings.Contains(before, u) {
				g.add(KindURL, t.where, nil, u)
			}
		}
		folded := Fold(t.s)
		if m := commandRE().FindString(folded); m != "" {
			g.add(KindInstruction, t.where, nil, m)
		} else if invisible(t.s) {
			g.add(KindInstruction, t.where, nil, "characters that cannot be seen")
		}
		for _, o := range others {
			if len(o) > 3 && word(folded, strings.ToLower(o)) {
				g.add(KindOtherTool, t.where, nil, o)
			}
		}
	}
}

func word(s, w string) bool {
	for i := 0; ; {
		j := strings.Index(s[i:], w)
		if j < 0 {
			return false
		}
		start, end := i+j, i+j+len(w)
		if (start == 0 || !wordByte(s[start-1])) && (end == len(s) || !wordByte(s[end])) {
			return true
		}
		i = start + 1
	}
}

func wordByte(c byte) bool {
	return c == '_' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func invisible(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.Is(unicode.Cf, r) || r >= 0xE0000 && r <= 0xE0FFF || unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	})
}

// lookalikes are letters of other scripts that read as Latin ones.
var lookalikes = strings.NewReplacer("а", "a", "е", "e", "о", "o", "р", "p", "с", "c", "х", "x", "у", "y", "і", "i", "ј", "j", "ѕ", "s", "һ", "h", "ԁ", "d", "ѵ", "v",
	"к", "k", "м", "m", "т", "t", "в", "b", "н", "h", "α", "a", "ο", "o", "ρ", "p", "ν", "v", "ι", "i", "κ", "k", "τ", "t", "υ", "u", "ı", "i", "ɡ", "g", "ｉ", "i")

// Fold brings a text to the form in which it is searched: compatibility forms and
// look-alikes as plain letters, lower case, nothing invisible, white space as one
// blank.
func Fold(s string) string {
	s = strings.ToLower(norm.NFKC.String(s))
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) || r >= 0xE0000 && r <= 0xE0FFF || unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(lookalikes.Replace(s)), " ")
}

// Renamed finds, among absent definitions, one with the schemas of a new one.
func Renamed(fresh []byte, absent map[string][]byte) string {
	want := shape(fresh)
	for _, name := range slices.Sorted(maps.Keys(absent)) {
		if want != "" && shape(absent[name]) == want {
			return name
		}
	}
	return ""
}

// shape is a definition without its name and texts; "" where it takes nothing,
// which is no likeness.
func shape(raw []byte) string {
	v, ok := tree(raw)
	m, is := v.(map[string]any)
	if !ok || !is {
		return ""
	}
	in, _ := m["inputSchema"].(map[string]any)
	if props, _ := in["properties"].(map[string]any); len(props) == 0 {
		return ""
	}
	return compact(map[string]any{"in": m["inputSchema"], "out": m["outputSchema"]})
}
