package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"patchbay/internal/plane"
)

// schemas holds compiled schemas by the fingerprint of their definition. They
// compile at their first use; the oldest go when there are too many.
type schemas struct {
	mu   sync.Mutex
	by   map[string]*compiled
	used []string // oldest first
}

const (
	schemasKept = 512
	checkSteps  = 20_000 // schema evaluations of one check; a hostile schema is exponential
	faultsShown = 8
	maxSchema   = 32 << 10  // bytes of a schema that is compiled
	maxChecked  = 256 << 10 // bytes of what is checked; larger is left to the server
)

// compiled is a tool's two schemas. One without local check says why.
type compiled struct {
	once   sync.Once
	input  *checker
	output *checker
}

// checker is one schema that was compiled, or the reason why it was not.
type checker struct {
	why  string
	flat *flat // nil where the schema says more

	mu     sync.Mutex // one check at a time: steps belong to it
	steps  int
	schema *jsonschema.Schema
}

// of returns a definition's schemas.
func (s *schemas) of(d *plane.Definition) *compiled {
	s.mu.Lock()
	c := s.by[d.Fingerprint]
	if c == nil {
		if s.by == nil {
			s.by = map[string]*compiled{}
		}
		c = &compiled{}
		s.by[d.Fingerprint] = c
		if s.used = append(s.used, d.Fingerprint); len(s.used) > schemasKept {
			delete(s.by, s.used[0])
			s.used = slices.Delete(s.used, 0, 1)
		}
	}
	s.mu.Unlock()
	c.once.Do(func() { c.input, c.output = compile(d.InputSchema), compile(d.OutputSchema) })
	return c
}

// compile makes a checker of a schema: 2020-12 unless it says draft 7, in a scope
// of its own, with nothing loaded from anywhere. A schema of another dialect, or
// one that does not compile, is checked by the server alone.
func compile(raw json.RawMessage) *checker {
	c := &checker{}
	if len(raw) == 0 || raw[0] != '{' {
		return c // nothing to check
	}
	if hugeNumber(raw) {
		c.why = "the schema holds a number that is too large to be checked here"
		return c
	}
	if len(raw) > maxSchema {
		c.why = "the schema is too large to be checked here"
		return c
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	obj, ok := doc.(map[string]any)
	if err != nil || !ok {
		c.why = "the schema cannot be read"
		return c
	}
	draft := jsonschema.Draft2020
	if s, _ := obj["$schema"].(string); s != "" {
		switch strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(s, "http://"), "https://"), "#") {
		case "json-schema.org/draft/2020-12/schema":
		case "json-schema.org/draft-07/schema", "json-schema.org/draft-06/schema", "json-schema.org/draft-04/schema":
			draft = jsonschema.Draft7 // what 4 says otherwise is converted
		default:
			c.why = "the schema is of a dialect that is not known here"
			return c
		}
		delete(obj, "$schema")
	}
	fromDraft4(obj, 0)
	defer func() {
		if p := recover(); p != nil {
			c.schema, c.why = nil, "the schema does not compile"
		}
	}()
	comp := jsonschema.NewCompiler()
	comp.DefaultDraft(draft)
	comp.UseLoader(nowhere{})
	comp.UseRegexpEngine((&patterns{c: c}).compile)
	comp.AssertFormat()
	comp.RegisterVocabulary(&jsonschema.Vocabulary{URL: "mem:steps", Compile: func(*jsonschema.CompilerContext, map[string]any) (jsonschema.SchemaExt, error) {
		return stepper{c}, nil
	}})
	comp.AssertVocabs()
	if err := comp.AddResource("mem:///tool", doc); err != nil {
		c.why = "the schema does not compile"
		return c
	}
	if c.schema, err = comp.Compile("mem:///tool"); err != nil {
		c.why = "the schema does not compile"
		return c
	}
	c.flat = flatten(raw)
	return c
}

// fromDraft4 turns the exclusive bounds of draft 4, which are booleans, into
// today's.
func fromDraft4(v any, depth int) {
	if depth > 80 {
		return
	}
	switch x := v.(type) {
	case map[string]any:
		exclusiveBounds(x)
		for _, e := range x {
			fromDraft4(e, depth+1)
		}
	case []any:
		for _, e := range x {
			fromDraft4(e, depth+1)
		}
	}
}

type nowhere struct{}

// Load refuses: a schema brings all that it needs.
func (nowhere) Load(string) (any, error) { return nil, errors.New("bridge: schemas load nothing") }

// patterns compiles the patterns of one schema within bounds. One that this engine
// cannot do, or that is too large, is no check.
type patterns struct {
	c    *checker
	size int // instructions so far
}

const (
	maxPattern      = 512    // bytes
	maxInstructions = 10_000 // of all patterns of a schema
	maxMatched      = 32 << 10
)

func (p *patterns) compile(s string) (jsonschema.Regexp, error) {
	if len(s) > maxPattern || p.size > maxInstructions {
		return anything(s), nil
	}
	parsed, err := syntax.Parse(s, syntax.Perl)
	if err != nil || weight(parsed) > maxInstructions {
		return anything(s), nil
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return anything(s), nil
	}
	if p.size += len(prog.Inst); p.size > maxInstructions {
		return anything(s), nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return anything(s), nil
	}
	return &counted{p.c, re, len(prog.Inst)}, nil
}

// weight is about how many instructions a pattern unfolds to.
func weight(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n += weight(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Max, re.Min, 1)
	}
	return min(n, 1<<30)
}

// counted is a pattern whose work counts as steps of the check.
type counted struct {
	c    *checker
	re   *regexp.Regexp
	size int
}

// MatchString matches what is not too long.
func (r *counted) MatchString(s string) bool {
	if len(s) > maxMatched {
		return true // left to the server
	}
	if r.c.steps -= 1 + len(s)*r.size/1000; r.c.steps < 0 {
		panic(errSteps)
	}
	return r.re.MatchString(s)
}

// String is the pattern.
func (r *counted) String() string { return r.re.String() }

type anything string

// MatchString takes everything.
func (anything) MatchString(string) bool { return true }

// String is the pattern.
func (a anything) String() string { return string(a) }

// stepper counts the steps of a check and ends one that takes too many.
type stepper struct{ c *checker }

var errSteps = errors.New("bridge: the check took too long")

// Validate counts one step.
func (s stepper) Validate(*jsonschema.ValidatorContext, any) {
	if s.c.steps--; s.c.steps < 0 {
		panic(errSteps)
	}
}

// check returns what does not fit, in our own words but for names, or nothing.
// What cannot be checked fits.
func (c *checker) check(raw json.RawMessage) (faults []string) {
	if c.schema == nil || c.flat != nil && c.flat.fits(raw) || len(raw) > maxChecked || hugeNumber(raw) {
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return []string{"it is not JSON"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = checkSteps
	defer func() {
		if p := recover(); p != nil {
			faults = nil // left to the server
		}
	}()
	var bad *jsonschema.ValidationError
	if err := c.schema.Validate(v); !errors.As(err, &bad) {
		return nil
	}
	if cyclic(bad) {
		return nil
	}
	collect(bad, &faults)
	return faults
}

// hugeNumber reports a number whose exact value would take much time and memory:
// what compares numbers exactly writes out every digit.
func hugeNumber(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case c == '-' || c >= '0' && c <= '9':
			start, exponent := i, -1
			for i < len(raw) && strings.IndexByte("0123456789+-.eE", raw[i]) >= 0 {
				if raw[i]|0x20 == 'e' {
					exponent = i + 1
				}
				i++
			}
			if i-start > maxNumber || exponent >= 0 && len(bytes.TrimLeft(raw[exponent:i], "+-0")) > 3 {
				return true
			}
			i--
		}
	}
	return false
}

// maxNumber bounds the characters of a number that is checked; its exponent has
// three digits at most.
const maxNumber = 400

// cyclic reports that a schema refers to itself without end.
func cyclic(e *jsonschema.ValidationError) bool {
	_, is := e.ErrorKind.(*kind.RefCycle)
	return is || slices.ContainsFunc(e.Causes, cyclic)
}

// collect takes the innermost causes.
func collect(e *jsonschema.ValidationError, out *[]string) {
	if len(e.Causes) == 0 {
		if len(*out) < faultsShown {
			*out = append(*out, sentence(e))
		}
		return
	}
	for _, c := range e.Causes {
		collect(c, out)
	}
}

func sentence(e *jsonschema.ValidationError) string {
	at, in := "the whole", ""
	if len(e.InstanceLocation) > 0 {
		at = name(strings.Join(e.InstanceLocation, "/"))
		in = " in " + at
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return names(k.Missing) + " is missing" + in
	case *kind.AdditionalProperties:
		return names(k.Properties) + " is not taken" + in
	case *kind.Type:
		return fmt.Sprintf("%s is %s, not %s", at, k.Got, strings.Join(k.Want, " or "))
	case *kind.Enum:
		return at + " is none of the values that the schema names"
	case *kind.Const:
		return at + " is not the value that the schema names"
	case *kind.FalseSchema:
		return at + " must not be there"
	}
	path := e.ErrorKind.KeywordPath()
	if len(path) == 0 {
		return at + " does not fit"
	}
	return at + " does not fit " + name(path[len(path)-1])
}

// name shows what a server or a caller wrote as a word in quotes: nothing in it
// can be read as a sentence of ours.
func name(s string) string {
	out := make([]rune, 0, maxNamed)
	for _, r := range s {
		if len(out) == maxNamed {
			out = append(out, '…')
			break
		}
		if r > 0x20 && r < 0x7f && !strings.ContainsRune("\"'`<>{}:;,!?", r) || unicode.IsLetter(r) {
			out = append(out, r)
		} else {
			out = append(out, '_')
		}
	}
	return `"` + string(out) + `"`
}

// maxNamed bounds a name in our own sentences, namesShown how many.
const (
	maxNamed   = 40
	namesShown = 4
)

func names(list []string) string {
	out := make([]string, 0, len(list))
	for _, n := range list[:min(len(list), namesShown)] {
		out = append(out, name(n))
	}
	return strings.Join(out, ", ")
}
