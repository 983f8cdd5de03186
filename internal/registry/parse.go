package registry

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"patchbay/internal/plane"
)

// Bounds of one declaration.
const (
	maxFile    = 64 << 10
	maxDepth   = 8
	maxText    = 2000 // description
	maxAddress = 2048
	maxArgs    = 64
	maxArg     = 4096
	maxEnv     = 64
	maxAgents  = 64
	maxRules   = 256
)

// document is a declaration as people write it.
type document struct {
	Name        string            `yaml:"name"`
	Transport   string            `yaml:"transport"`
	URL         string            `yaml:"url"`
	Command     string            `yaml:"command"`
	Args        []string          `yaml:"args"`
	Env         map[string]string `yaml:"env"`
	Destination string            `yaml:"destination"`
	Agents      *[]string         `yaml:"agents"`
	Roles       *[]string         `yaml:"roles"` // the same by its older name
	Auth        string            `yaml:"auth"`
	Tools       struct {
		Allow []string `yaml:"allow"`
		Deny  []string `yaml:"deny"`
	} `yaml:"tools"`
	Default     bool   `yaml:"default"`
	Description string `yaml:"description"`
	Icon        string `yaml:"icon"`
	Source      string `yaml:"source"`
}

// Parse reads one declaration, YAML or JSON, strictly: every error names the file, the
// line and the column. Placeholder is the one value that env may have.
func Parse(file string, body []byte, placeholder string) (plane.Declaration, error) {
	if len(body) > maxFile {
		return plane.Declaration{}, plane.Errorf(plane.InvalidInput, "%s is larger than %d bytes, which a declaration never is.", file, maxFile).At("declaration")
	}
	f, err := parseYAML(file, body)
	if err != nil {
		return plane.Declaration{}, err
	}
	var d document
	if err := yaml.NodeToValue(f.Docs[0].Body, &d, yaml.Strict()); err != nil {
		return plane.Declaration{}, badYAML(file, err)
	}
	r := &reader{file: file, root: f.Docs[0].Body}
	return r.declaration(&d, placeholder)
}

// parseYAML reads one document without what makes YAML dangerous: anchors, aliases,
// merges and tags of one's own.
func parseYAML(file string, body []byte) (*ast.File, error) {
	f, err := looseYAML(file, body)
	if err != nil {
		return nil, err
	}
	v := &plain{file: file}
	v.walk(f.Docs[0].Body, 0)
	return f, v.err
}

// looseYAML reads one document as it is, if it is not deep.
func looseYAML(file string, body []byte) (*ast.File, error) {
	if !shallow(body) {
		return nil, plane.Errorf(plane.InvalidInput, "%s is nested too deep.", file).At("declaration")
	}
	parsing <- struct{}{}
	f, err := parser.ParseBytes(body, 0)
	<-parsing
	if err != nil {
		return nil, badYAML(file, err)
	}
	docs := slices.DeleteFunc(f.Docs, func(d *ast.DocumentNode) bool { return d == nil || d.Body == nil })
	switch len(docs) {
	case 0:
		return nil, plane.Errorf(plane.InvalidInput, "%s is empty.", file).At("declaration")
	case 1:
		f.Docs = docs
		return f, nil
	}
	return nil, plane.Errorf(plane.InvalidInput, "%s holds %d documents; write one declaration a file.", file, len(docs)).At("declaration")
}

// parsing holds how many texts are parsed at once: each may take a moment.
var parsing = make(chan struct{}, 2)

// Bounds of a text before it is parsed: the parser's time and memory grow with the square
// of its depth.
const (
	maxOpen   = 16  // brackets that are open at once
	maxInline = 16  // indicators at the beginning of one line, as in - - - a
	maxIndent = 120 // columns
	maxMarks  = 4096
)

// shallow reports that a text cannot be deep, without parsing it. A bracket within quotes
// counts too: no declaration has sixteen of them open.
func shallow(b []byte) bool {
	open, marks := 0, 0
	for line := range bytes.Lines(b) {
		inline, i := 0, 0
		for i < len(line) {
			switch c := line[i]; {
			case c == ' ':
				i++
			case (c == '-' || c == '?' || c == ':' || c == '&' || c == '*' || c == '!' || c == '|' || c == '>') && inline <= maxInline:
				inline++
				i++
			default:
				goto rest
			}
		}
	rest:
		if i > maxIndent || inline > maxInline {
			return false
		}
		inside, again := 0, 0
		for k, c := range line[i:] {
			if next := i + k + 1; (c == '-' || c == '?' || c == ':') && next < len(line) && line[next] == ' ' {
				if again++; again > maxInline {
					return false
				}
			} else if c != ' ' {
				again = 0
			}
			switch c {
			case '[', '{':
				open++
				marks++
			case ']', '}':
				open = max(0, open-1)
			case ':', ',', '&', '*', '!', '?':
				inside++
			}
			if open > maxOpen {
				return false
			}
		}
		marks += inside
		if marks > 4*maxMarks {
			return false
		}
	}
	return true
}

// plain refuses what is not plain data.
type plain struct {
	file string
	err  error
}

func (v *plain) walk(n ast.Node, depth int) {
	if v.err != nil || n == nil {
		return
	}
	bad := func(why string) {
		v.err = plane.Errorf(plane.InvalidInput, "%s: %s.", place(v.file, n), why).At("declaration")
	}
	if depth > maxDepth {
		bad("this is nested too deep")
		return
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode:
		bad("anchors and aliases are not taken; write the value")
	case *ast.MergeKeyNode:
		bad("merge keys are not taken; write the value")
	case *ast.TagNode:
		bad("tags are not taken; write the value")
	case *ast.MappingNode:
		for _, m := range n.Values {
			v.walk(m, depth)
		}
	case *ast.MappingValueNode:
		v.walk(n.Key, depth+1)
		v.walk(n.Value, depth+1)
	case *ast.SequenceNode:
		for _, e := range n.Values {
			v.walk(e, depth+1)
		}
	}
}

func place(file string, n ast.Node) string {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return file
	}
	p := n.GetToken().Position
	return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
}

var documentKeys = []string{"name", "transport", "url", "command", "args", "env", "destination", "agents", "roles", "auth", "tools", "allow", "deny", "default", "description", "icon", "source"}

// badYAML says where it stands and what, without the library's excerpt: that would
// repeat what may be a secret.
func badYAML(file string, err error) error {
	where, word := file, ""
	var at yaml.Error
	if errors.As(err, &at) {
		if tk := at.GetToken(); tk != nil && tk.Position != nil {
			where, word = fmt.Sprintf("%s:%d:%d", file, tk.Position.Line, tk.Position.Column), tk.Value
		}
	}
	var unknown *yaml.UnknownFieldError
	var twice *yaml.DuplicateKeyError
	again := errors.As(err, &twice) || at != nil && strings.Contains(at.GetMessage(), "already defined")
	switch {
	case errors.As(err, &unknown):
		e := plane.Errorf(plane.InvalidInput, "%s: there is no key %q in a declaration.", where, bounded(word)).At("declaration").Because(err)
		if n := plane.Nearest(word, documentKeys); n != "" {
			e.Message += fmt.Sprintf(" Did you mean %q?", n)
		}
		return e
	case again:
		return plane.Errorf(plane.InvalidInput, "%s: the key %q stands here twice.", where, bounded(word)).At("declaration").Because(err)
	}
	return plane.Errorf(plane.InvalidInput, "%s: this is not what a declaration has here.", where).At("declaration").
		Then("docs/registry.md shows one.").Because(err)
}

func bounded(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

// reader turns a document into a declaration and says where it is wrong.
type reader struct {
	file string
	root ast.Node
}

// bad is an error about the value at a path, as env.KEY.
func (r *reader) bad(path, format string, args ...any) *plane.Error {
	where := r.file
	if p, err := yaml.PathString("$." + path); err == nil && r.root != nil {
		if n, err := p.FilterNode(r.root); err == nil && n != nil {
			where = place(r.file, n)
		}
	}
	field, _, _ := strings.Cut(path, ".")
	return plane.Errorf(plane.InvalidInput, "%s: %s", where, fmt.Sprintf(format, args...)).At(field)
}

func (r *reader) declaration(d *document, placeholder string) (plane.Declaration, error) {
	out := plane.Declaration{Name: d.Name, Transport: plane.Transport(d.Transport), URL: d.URL, Command: d.Command, Args: d.Args, Env: d.Env,
		Destination: d.Destination, Default: d.Default, Allow: d.Tools.Allow, Deny: d.Tools.Deny, Description: d.Description, Icon: d.Icon, Link: d.Source}
	if err := r.name(d.Name); err != nil {
		return out, err
	}
	agents, err := r.agents(d)
	if err != nil {
		return out, err
	}
	out.Agents = agents
	if err := r.transport(d, &out, placeholder); err != nil {
		return out, err
	}
	out.Auth = plane.AuthNone
	if d.Auth != "" {
		if out.Auth, err = plane.ParseAuth(d.Auth); err != nil {
			return out, r.bad("auth", "%s", plane.Public(err).Message)
		}
	}
	if d.Destination != "" && !plane.ValidSlug(d.Destination) {
		return out, r.bad("destination", "%q cannot be the name of a destination; use a-z, 0-9 and -.", bounded(d.Destination))
	}
	if len(d.Tools.Allow)+len(d.Tools.Deny) > maxRules {
		return out, r.bad("tools", "there may be %d rules.", maxRules)
	}
	prefs := plane.Preferences{Allow: out.Allow, Deny: out.Deny}
	if err := prefs.Validate(); err != nil {
		return out, r.bad("tools", "%s", plane.Public(err).Message)
	}
	for path, v := range map[string]string{"url": d.URL, "command": d.Command, "description": d.Description, "icon": d.Icon, "source": d.Source} {
		if invisible(v) || path != "description" && strings.ContainsAny(v, "\n\t") {
			return out, r.bad(path, "it holds characters that nobody sees.")
		}
	}
	for _, v := range slices.Concat(d.Args, d.Tools.Allow, d.Tools.Deny) {
		if invisible(v) {
			return out, r.bad("args", "a value holds characters that nobody sees.")
		}
	}
	if len(d.Description) > maxText {
		return out, r.bad("description", "the description has more than %d bytes.", maxText)
	}
	for path, link := range map[string]string{"icon": d.Icon, "source": d.Source} {
		if link == "" {
			continue
		}
		if u, err := url.Parse(link); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(link) > maxAddress {
			return out, r.bad(path, "%s is an https address.", path)
		}
	}
	return out, nil
}

func (r *reader) name(name string) error {
	switch {
	case plane.ValidSlug(name):
		return nil
	case name == "":
		return r.bad("name", "the declaration has no name.")
	case plane.ValidSlug(strings.ToLower(name)):
		return r.bad("name", "names are written small: %s.", strings.ToLower(name))
	}
	for _, c := range name {
		if c > 0x7e {
			return r.bad("name", "%q holds a character that looks like another; use a-z, 0-9 and -.", bounded(name))
		}
	}
	return r.bad("name", "%q cannot be a name; use a-z, 0-9 and -, at most %d characters.", bounded(name), plane.MaxSlug)
}

func (r *reader) agents(d *document) ([]string, error) {
	for _, key := range []string{"agents", "roles"} {
		if p, err := yaml.PathString("$." + key); err == nil && r.root != nil {
			if n, err := p.FilterNode(r.root); err == nil && n != nil && n.Type() == ast.NullType {
				return nil, r.bad(key, "%s names nobody, so that it would serve nobody; leave it out for every open agent.", key)
			}
		}
	}
	list, key := d.Agents, "agents"
	if d.Roles != nil {
		if list != nil {
			return nil, r.bad("roles", "agents and roles are one thing; write agents.")
		}
		list, key = d.Roles, "roles"
	}
	if list == nil {
		return nil, nil
	}
	switch {
	case len(*list) == 0:
		return nil, r.bad(key, "%s names nobody, so that it would serve nobody; leave it out for every open agent.", key)
	case len(*list) > maxAgents:
		return nil, r.bad(key, "%s names more than %d agents.", key, maxAgents)
	}
	for _, a := range *list {
		if !plane.ValidSlug(a) {
			return nil, r.bad(key, "%q is no agent's slug.", bounded(a))
		}
	}
	out := slices.Clone(*list)
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (r *reader) transport(d *document, out *plane.Declaration, placeholder string) error {
	if out.Transport == "" {
		if out.Transport = plane.HTTP; d.Command != "" {
			out.Transport = plane.Stdio
		}
	}
	switch strings.ToLower(d.Transport) {
	case "", "http", "stdio":
	case "streamable-http", "streamablehttp":
		out.Transport = plane.HTTP
	case "sse":
		return r.bad("transport", "HTTP with SSE is the transport of 2024; Patchbay speaks Streamable HTTP. Ask the server's operator for that address.")
	default:
		return r.bad("transport", "the transport is %q; http and stdio are known.", bounded(d.Transport))
	}
	if out.Transport == plane.Stdio {
		return r.stdio(d, placeholder)
	}
	if d.Command != "" || len(d.Args) > 0 || len(d.Env) > 0 {
		return r.bad("command", "command, args and env go with transport: stdio.")
	}
	return r.address(d.URL)
}

func (r *reader) address(raw string) error {
	switch u, err := url.Parse(raw); {
	case raw == "":
		return r.bad("url", "the declaration names no url.")
	case plane.Placeholder(raw) != "":
		return r.bad("url", "%s in the url stands for a value; write the value.", bounded(plane.Placeholder(raw)))
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || len(raw) > maxAddress:
		return r.bad("url", "the url is no http or https address.")
	case u.User != nil:
		return r.bad("url", "the url holds a user or password; auth says how the server is signed in to, and a destination's secret is the credential.")
	case u.RawQuery != "" || u.ForceQuery:
		return r.bad("url", "the url has a query, where tokens hide; auth says how the server is signed in to, and a destination's secret is the credential.")
	case u.Fragment != "":
		return r.bad("url", "the url has a fragment, which no server sees.")
	}
	return nil
}

func (r *reader) stdio(d *document, placeholder string) error {
	switch {
	case d.URL != "":
		return r.bad("url", "a url goes with transport: http.")
	case d.Auth != "" && d.Auth != string(plane.AuthNone):
		return r.bad("auth", "auth goes with transport: http; a stdio server holds the placeholder in env, and its destination says how the secret goes in.")
	case d.Command == "" || len(d.Command) > maxArg || strings.ContainsAny(d.Command, "\x00\n\r"):
		return r.bad("command", "a stdio server is started by a command.")
	case len(d.Args) > maxArgs || len(d.Env) > maxEnv:
		return r.bad("args", "there may be %d args and %d variables.", maxArgs, maxEnv)
	}
	for i, a := range d.Args {
		if len(a) > maxArg || strings.ContainsRune(a, 0) {
			return r.bad(fmt.Sprintf("args[%d]", i), "an argument has at most %d bytes.", maxArg)
		}
	}
	for k, v := range d.Env {
		switch {
		case !envName(k):
			return r.bad("env", "%q is no name of a variable.", bounded(k))
		case v != placeholder:
			return r.bad("env."+k, "the value of %s must be the placeholder %s: a declaration carries no secret.", k, placeholder)
		}
	}
	return nil
}

// envName admits a variable that is not the loader's or the shell's.
func envName(k string) bool {
	if k == "" || len(k) > 100 || strings.HasPrefix(k, "LD_") || strings.HasPrefix(k, "DYLD_") || slices.Contains([]string{"PATH", "HOME", "IFS", "BASH_ENV", "ENV", "NODE_OPTIONS", "PYTHONPATH", "PYTHONSTARTUP"}, k) {
		return false
	}
	for i := range len(k) {
		c := k[i]
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}
