package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"patchbay/internal/plane"
)

// Object is a JSON object as it was written, numbers and all.
type Object json.RawMessage

// MarshalJSON writes the object as it is.
func (o Object) MarshalJSON() ([]byte, error) {
	if len(o) == 0 {
		return []byte("null"), nil
	}
	return o, nil
}

// UnmarshalJSON keeps what was written.
func (o *Object) UnmarshalJSON(b []byte) error {
	*o = bytes.Clone(b)
	if string(b) == "null" {
		*o = nil
	}
	return nil
}

// Decode reads the object from a command line.
func (o *Object) Decode(ctx *kong.DecodeContext) error {
	var s string
	if err := ctx.Scan.PopValueInto("object", &s); err != nil {
		return err
	}
	*o = Object(s)
	return nil
}

// groups describe the first words of commands.
var groups = map[string]string{"mcp": "MCP servers and their tools.", "runs": "Runs of agents.", "agents": "Agents.",
	"approvals": "Calls that wait for a person.", "rules": "What people allowed always.", "calls": "Calls of runs and clients.", "audit": "What was decided and done.",
	"registry": "Servers on offer.", "proposals": "Servers that teams have, and those proposed to them.", "destinations": "Hosts that agents may reach by name.", "secrets": "Secrets that destinations name.", "egress": "The credential gateway.",
	"clients": "MCP clients that people signed in.", "people": "Who was seen here.", "tokens": "API and agent tokens.", "keys": "The key ring.", "config": "The config file and what was added beside it."}

// Extra is a verb of one surface that is no command of the registry.
type Extra struct {
	Group, Name, Help string
	Value             any // pointer to a struct that kong understands
}

// Grammar is the commands as a command line: one for every surface that parses
// text.
type Grammar struct {
	root   any
	byPath map[string]*Command
}

// Grammar builds the grammar from the inputs' own tags. Extras stand beside the
// commands, or in place of one of the same name.
func (r *Registry) Grammar(extras ...Extra) *Grammar {
	g := &Grammar{byPath: map[string]*Command{}}
	type verb struct {
		name, help, alias string
		typ               reflect.Type
		cmd               *Command
		value             any
	}
	byGroup := map[string][]verb{}
	taken := map[string]bool{}
	for _, e := range extras {
		byGroup[e.Group] = append(byGroup[e.Group], verb{name: e.Name, help: e.Help, typ: reflect.TypeOf(e.Value), value: e.Value})
		taken[e.Group+" "+e.Name] = true
	}
	for _, c := range r.All() {
		group, name, ok := strings.Cut(c.Name, ".")
		if !ok {
			group, name = "", group
		}
		if !taken[group+" "+name] {
			byGroup[group] = append(byGroup[group], verb{name: name, help: c.Summary, alias: c.Alias, typ: reflect.TypeOf(c.Input()), cmd: c})
		}
	}
	build := func(group string, verbs []verb) reflect.Value {
		slices.SortFunc(verbs, func(a, b verb) int { return strings.Compare(a.name, b.name) })
		var fs []reflect.StructField
		for i, v := range verbs {
			tag := fmt.Sprintf(`cmd:"" name:%q help:%q`, v.name, v.help)
			if v.alias != "" {
				tag += fmt.Sprintf(` aliases:%q`, v.alias)
			}
			fs = append(fs, reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: v.typ, Tag: reflect.StructTag(tag)})
		}
		out := reflect.New(reflect.StructOf(fs)).Elem()
		for i, v := range verbs {
			if v.value != nil {
				out.Field(i).Set(reflect.ValueOf(v.value))
				continue
			}
			out.Field(i).Set(reflect.ValueOf(v.cmd.Input()))
			g.byPath[strings.TrimSpace(group+" "+v.name)] = v.cmd
		}
		return out
	}
	var fs []reflect.StructField
	var values []reflect.Value
	top := build("", byGroup[""])
	for i := range top.NumField() {
		f := top.Type().Field(i)
		fs = append(fs, reflect.StructField{Name: fmt.Sprintf("T%d", i), Type: f.Type, Tag: f.Tag})
		values = append(values, top.Field(i))
	}
	var names []string
	for name := range byGroup {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		v := build(name, byGroup[name])
		fs = append(fs, reflect.StructField{Name: fmt.Sprintf("G%d", i), Type: v.Type(), Tag: reflect.StructTag(fmt.Sprintf(`cmd:"" name:%q help:%q`, name, groups[name]))})
		values = append(values, v)
	}
	root := reflect.New(reflect.StructOf(fs))
	for i, v := range values {
		root.Elem().Field(i).Set(v)
	}
	g.root = root.Interface()
	return g
}

// Root is what kong is given, as a plugin of a surface's own grammar or by
// itself.
func (g *Grammar) Root() any { return g.root }

// Selected is the command that a parsed line names, with its input; nil for an
// extra.
func (g *Grammar) Selected(k *kong.Context) (*Command, any) {
	var words []string
	var in reflect.Value
	for _, p := range k.Path {
		if p.Command != nil {
			words = append(words, p.Command.Name)
			in = p.Command.Target
		}
	}
	c := g.byPath[strings.Join(words, " ")]
	if c == nil {
		return nil, nil
	}
	return c, in.Addr().Interface()
}

// Spoken turns "mcp tools set NAME" into the command of that name: a verb with
// an argument cannot have verbs of its own in the grammar.
func Spoken(args []string) []string {
	for i := 0; i+3 < len(args); i++ {
		if args[i] == "mcp" && args[i+1] == "tools" && args[i+2] == "set" {
			return append(append(append([]string{}, args[:i+1]...), "tools-set"), args[i+3:]...)
		}
	}
	return args
}

// leave is how kong's --help comes back without ending the program.
type leave struct{}

// Parse reads one command line in words. help is set instead of a command when
// it was asked for.
func (r *Registry) Parse(args []string) (cmd *Command, in any, help string, err error) {
	g := r.Grammar()
	var out bytes.Buffer
	parser, err := kong.New(g.Root(), kong.Name("patchbay"), kong.Writers(&out, &out), kong.Exit(func(int) { panic(leave{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		return nil, nil, "", err
	}
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(leave); !ok {
				panic(p)
			}
			cmd, in, help, err = nil, nil, out.String(), nil
		}
	}()
	k, perr := parser.Parse(Spoken(args))
	if perr != nil {
		return nil, nil, "", plane.Errorf(plane.InvalidInput, "%s.", strings.TrimSuffix(capital(perr.Error()), ".")).Then("--help says what there is.")
	}
	cmd, in = g.Selected(k)
	if cmd == nil {
		return nil, nil, "", plane.Errorf(plane.InvalidInput, "Name a command.").Then("--help says what there is.")
	}
	return cmd, in, "", nil
}

// Help is what --help of one command says on every surface.
func (r *Registry) Help(name string) (string, error) {
	if _, err := r.Get(name); err != nil {
		return "", err
	}
	_, _, help, err := r.Parse(append(strings.Split(name, "."), "--help"))
	return help, err
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// normalize holds an input to its own tags, whatever surface it came by: what is
// required is there, what is one of a few is one of them, what was left out has
// its default.
func normalize(in any) error {
	v := reflect.ValueOf(in).Elem()
	for i := range v.NumField() {
		f, tag := v.Field(i), v.Type().Field(i).Tag
		if f.Kind() != reflect.String {
			if d := tag.Get("default"); d != "" && f.Kind() == reflect.Int && f.IsZero() {
				var n int64
				fmt.Sscan(d, &n) // our own tag
				f.SetInt(n)
			}
			continue
		}
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		if f.String() == "" {
			f.SetString(tag.Get("default"))
		}
		_, arg := tag.Lookup("arg")
		_, optional := tag.Lookup("optional")
		if arg && !optional && f.String() == "" {
			return plane.Errorf(plane.InvalidInput, "%s is missing.", capital(name)).At(name)
		}
		if enum := tag.Get("enum"); enum != "" && f.String() != "" && !slices.Contains(strings.Split(enum, ","), f.String()) {
			return plane.Errorf(plane.InvalidInput, "%s is one of %s.", capital(name), strings.ReplaceAll(enum, ",", ", ")).At(name)
		}
	}
	return nil
}
