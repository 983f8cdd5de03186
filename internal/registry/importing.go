package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"patchbay/internal/plane"
)

// Imported is one server of a file that people bring: Claude Code's, Cursor's, VS Code's,
// a server.json, or a declaration of ours.
type Imported struct {
	Name    string // a slug
	As      string // as the file calls it
	URL     string
	Auth    plane.Auth // "" where the server is to be asked
	Header  string     // "Name: value", the one credential
	Note    string     // description
	Allow   []string
	Deny    []string
	Problem string // why it cannot be used
}

// Variable is a value that a file leaves to whoever imports it.
type Variable struct {
	Name     string // of ${NAME}, ${env:NAME} and {NAME}; input:<id> of ${input:<id>}
	Default  string
	Prompt   string
	Secret   bool
	Required bool
}

// maxImport bounds a file, and how many servers it may name.
const (
	maxImport  = 1 << 20
	maxServers = 200
)

type fileServer struct {
	Type     string            `json:"type"`
	URL      string            `json:"url"`
	HTTPURL  string            `json:"httpUrl"`
	Headers  map[string]string `json:"headers"`
	Command  string            `json:"command"`
	Disabled bool              `json:"disabled"`
}

type fileInput struct {
	ID          string `json:"id"`
	Description string `json:"description"`
	Default     string `json:"default"`
	Password    bool   `json:"password"`
}

type importFile struct {
	MCPServers map[string]fileServer `json:"mcpServers"`
	Servers    map[string]fileServer `json:"servers"`
	Inputs     []fileInput           `json:"inputs"`
	Server                           // a server.json
	Wrapped    *Server               `json:"server"` // or as a registry answers it
}

// variableRE finds ${VAR}, ${VAR:-default}, ${env:VAR} and ${input:id}.
var variableRE = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_.-]*(?::[A-Za-z0-9][A-Za-z0-9_.-]*)?)(?::-([^}]*))?\}`)

// braceRE finds the {name} of a server.json.
var braceRE = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_.-]*)\}`)

func readImport(content []byte) (*importFile, error) {
	if len(content) > maxImport {
		return nil, plane.Errorf(plane.InvalidInput, "The file is larger than %d bytes.", maxImport).At("content")
	}
	var f importFile
	if err := json.Unmarshal(withoutComments(content), &f); err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "The file is no JSON with mcpServers, no servers of VS Code and no server.json.").At("content").Because(err)
	}
	if f.Wrapped != nil {
		f.Server = *f.Wrapped
	}
	if len(f.MCPServers) == 0 {
		f.MCPServers = f.Servers
	}
	if n := len(f.MCPServers); n > maxServers {
		return nil, plane.Errorf(plane.InvalidInput, "The file names %d servers; %d are taken at once.", n, maxServers).At("content")
	}
	return &f, nil
}

// withoutComments takes // and /* */ out of a file as VS Code writes it, and commas before
// a closing bracket.
func withoutComments(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] == '"':
			j := i + 1
			for j < len(b) && b[j] != '"' {
				if b[j] == '\\' {
					j++
				}
				j++
			}
			j = min(j+1, len(b))
			out = append(out, b[i:j]...)
			i = j - 1
		case b[i] == '/' && i+1 < len(b) && b[i+1] == '/':
			for i < len(b) && b[i] != '\n' {
				i++
			}
			out = append(out, '\n')
		case b[i] == '/' && i+1 < len(b) && b[i+1] == '*':
			end := bytes.Index(b[i+2:], []byte("*/"))
			if end < 0 {
				return out
			}
			i += end + 3
		case b[i] == ']' || b[i] == '}':
			k := len(out)
			for k > 0 && strings.IndexByte(" \t\r\n", out[k-1]) >= 0 {
				k--
			}
			if k > 0 && out[k-1] == ',' {
				out = append(out[:k-1], out[k:]...)
			}
			out = append(out, b[i])
		default:
			out = append(out, b[i])
		}
	}
	return out
}

// Variables are what a file leaves open, in order of names.
func Variables(content []byte) ([]Variable, error) {
	f, err := readImport(content)
	if err != nil {
		if declarations(content) != nil {
			return nil, nil // a declaration has none
		}
		return nil, err
	}
	out := map[string]Variable{}
	add := func(text string, secret bool) {
		for _, m := range variableRE.FindAllStringSubmatch(text, 100) {
			name := strings.TrimPrefix(m[1], "env:")
			v := out[name]
			v.Name, v.Default, v.Secret, v.Required = name, m[2], v.Secret || secret, true
			out[name] = v
		}
	}
	for _, s := range f.MCPServers {
		add(s.URL+s.HTTPURL, false)
		for _, h := range s.Headers {
			add(h, true)
		}
	}
	for _, in := range f.Inputs {
		if v, used := out["input:"+in.ID]; used {
			v.Prompt, v.Default, v.Secret = in.Description, in.Default, v.Secret || in.Password
			out[v.Name] = v
		}
	}
	for _, r := range f.Remotes {
		for name, in := range r.Variables {
			out[name] = Variable{name, or(in.Default, in.Value), in.Description, in.IsSecret, in.IsRequired}
		}
		for _, h := range r.Headers {
			if h.Value == "" {
				out["header:"+h.Name] = Variable{"header:" + h.Name, h.Default, h.Description, h.IsSecret, h.IsRequired}
			}
			for _, m := range braceRE.FindAllStringSubmatch(h.Value, 20) {
				out[m[1]] = Variable{m[1], "", h.Description, h.IsSecret, h.IsRequired}
			}
		}
	}
	list := slices.Collect(maps.Values(out))
	slices.SortFunc(list, func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Import reads a file with the values of its variables. A server that cannot be used says
// why and takes no other with it.
func Import(content []byte, values map[string]string) ([]Imported, error) {
	f, err := readImport(content)
	if err != nil {
		if list := declarations(content); list != nil {
			return list, nil
		}
		return nil, err
	}
	var out []Imported
	for _, as := range slices.Sorted(maps.Keys(f.MCPServers)) {
		out = append(out, importServer(as, f.MCPServers[as], values))
	}
	if len(f.MCPServers) == 0 && f.Name != "" {
		out = append(out, importJSON(&f.Server, values))
	}
	if len(out) == 0 {
		return nil, plane.Errorf(plane.InvalidInput, "The file names no server: it has neither mcpServers nor servers, and is no server.json.").At("content")
	}
	taken := map[string]bool{}
	for i := range out {
		name := out[i].Name
		for n := 2; taken[out[i].Name] && n < 1000; n++ {
			out[i].Name = fmt.Sprintf("%s-%d", name[:min(len(name), plane.MaxSlug-4)], n)
		}
		taken[out[i].Name] = true
	}
	return out, nil
}

// declarations reads our own form, as it is exported: one document or several; nil where
// it is none.
func declarations(content []byte) []Imported {
	docs := bytes.Split(content, []byte("\n---\n"))
	if len(docs) > maxServers {
		return nil
	}
	var out []Imported
	for _, doc := range docs {
		d, err := Parse("file", doc, "")
		if err != nil {
			return nil
		}
		one := Imported{Name: d.Name, As: d.Name, URL: d.URL, Auth: d.Auth, Note: d.Description, Allow: d.Allow, Deny: d.Deny}
		if d.Transport == plane.Stdio {
			one.Problem = noStdio
		}
		out = append(out, one)
	}
	return out
}

const noStdio = "it is a stdio server, which is declared in a file of the registry (docs/stdio.md)"

// Bounds of what variables are filled into, and of how many.
const (
	maxFilled    = 16 << 10
	maxVariables = 16
)

func importServer(as string, s fileServer, values map[string]string) Imported {
	out := Imported{Name: plane.SlugOf(as), As: as, URL: or(s.URL, s.HTTPURL)}
	switch {
	case out.Name == "":
		out.Problem = "its name holds no letter or digit that a name could be made of"
	case s.Type == "sse":
		out.Problem = "HTTP with SSE is the transport of 2024; ask the server's operator for its Streamable HTTP address"
	case s.Command != "" || s.Type == "stdio":
		out.Problem = noStdio
	case s.Type != "" && !slices.Contains([]string{"http", "streamable-http", "streamableHttp"}, s.Type):
		out.Problem = "its type is none that is known"
	case s.Disabled:
		out.Problem = "it is turned off there"
	case out.URL == "":
		out.Problem = "it names no url"
	case len(s.Headers) > 1:
		out.Problem = "it has several headers; Patchbay sends one credential"
	}
	if out.Problem != "" {
		return out
	}
	missing := ""
	out.URL, missing = fill(out.URL, values, url.PathEscape)
	for name, value := range s.Headers {
		v, open := fill(value, values, nil)
		out.Header = name + ": " + v
		if missing == "" {
			missing = open
		}
	}
	if missing != "" {
		out.Header, out.Problem = "", "the value of "+missing+" is missing"
	}
	return out
}

// fill puts values in place of variables and names the first that has none. Escape makes
// a value safe where it stands.
func fill(text string, values map[string]string, escape func(string) string) (out, missing string) {
	if n := strings.Count(text, "${"); len(text) > maxFilled || n > maxVariables {
		return "", "a shorter text"
	}
	out = variableRE.ReplaceAllStringFunc(text, func(m string) string {
		part := variableRE.FindStringSubmatch(m)
		name := strings.TrimPrefix(part[1], "env:")
		v, ok := values[name]
		if len(v) > maxFilled/2 {
			v, ok = "", false
		}
		if !ok || v == "" {
			if v = part[2]; v == "" && !strings.Contains(m, ":-") {
				if missing == "" {
					missing = name
				}
				return m
			}
		}
		if escape != nil && !strings.HasPrefix(text, m) { // a whole address may be a variable
			return escape(v)
		}
		return v
	})
	return out, missing
}

func importJSON(s *Server, values map[string]string) Imported {
	as := s.Name[strings.LastIndex(s.Name, "/")+1:]
	out := Imported{Name: plane.SlugOf(as), As: s.Name, Note: s.Description}
	i := slices.IndexFunc(s.Remotes, func(r Remote) bool { return r.Type == "streamable-http" })
	switch {
	case out.Name == "":
		out.Problem = "its name holds no letter or digit that a name could be made of"
	case i < 0 && len(s.Remotes) > 0:
		out.Problem = "it has no Streamable HTTP address"
	case i < 0:
		out.Problem = noStdio
	}
	if out.Problem != "" {
		return out
	}
	r := s.Remotes[i]
	missing := ""
	long := len(r.URL) > maxAddress || strings.Count(r.URL, "{") > maxVariables || len(r.Headers) > maxVariables
	for _, h := range r.Headers {
		long = long || len(h.Value) > maxAddress || strings.Count(h.Value, "{") > maxVariables
	}
	if long {
		out.Problem = "its address or a header is too long"
		return out
	}
	value := func(name string, in Input) string {
		v := or(values[name], or(in.Value, in.Default))
		if len(v) > maxFilled/2 {
			v = ""
		}
		if v == "" && missing == "" {
			missing = name
		}
		return v
	}
	var bad string
	out.URL, bad = inAddress(r.URL, func(name string) string { return value(name, r.Variables[name]) })
	var secrets []string
	for _, h := range r.Headers {
		v := h.Value
		if v == "" {
			if v = or(values["header:"+h.Name], h.Default); v == "" && !h.IsRequired {
				continue
			}
			if v == "" && missing == "" {
				missing = "header:" + h.Name
			}
		}
		v = braceRE.ReplaceAllStringFunc(v, func(m string) string { return value(m[1:len(m)-1], Input{}) })
		secrets = append(secrets, h.Name+": "+v)
	}
	switch {
	case bad != "":
		out.Problem = bad
	case missing != "":
		out.Problem = "the value of " + missing + " is missing"
	case len(secrets) > 1:
		out.Problem = "it wants several headers; Patchbay sends one credential"
	case len(secrets) == 1:
		out.Header = secrets[0]
	}
	return out
}

var hostPartRE = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)

// inAddress fills the {name} of an address: in its host only what a host may hold, behind
// it escaped (field case F151).
func inAddress(raw string, value func(string) string) (out, bad string) {
	end := len(raw)
	if i := strings.Index(raw, "://"); i >= 0 {
		if j := strings.IndexAny(raw[i+3:], "/?#"); j >= 0 {
			end = i + 3 + j
		}
	}
	head := braceRE.ReplaceAllStringFunc(raw[:end], func(m string) string {
		v := value(m[1 : len(m)-1])
		if v != "" && !hostPartRE.MatchString(v) {
			bad = "the value of " + m[1:len(m)-1] + " cannot stand in a host's name"
		}
		return v
	})
	tail := braceRE.ReplaceAllStringFunc(raw[end:], func(m string) string { return url.PathEscape(value(m[1 : len(m)-1])) })
	return head + tail, bad
}

// FilterPattern is one pattern for frameworks that put a server's name and _ before the
// names of its tools: each server's rules are anchored to its own prefix, so that one
// cannot leak into another's. Tools of no server here are let through.
func FilterPattern(servers map[string]plane.Preferences) string {
	var alternatives, names []string
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		p := servers[name]
		names = append(names, regexp.QuoteMeta(name))
		var deny []string
		for _, d := range append(slices.Clone(p.Deny), p.Excluded...) {
			deny = append(deny, globPattern(d))
		}
		alt := regexp.QuoteMeta(name) + "_"
		if len(deny) > 0 {
			alt += "(?!(?:" + strings.Join(deny, "|") + ")$)"
		}
		allow := []string{".*"}
		if len(p.Allow) > 0 {
			allow = nil
			for _, a := range p.Allow {
				allow = append(allow, globPattern(a))
			}
		}
		alternatives = append(alternatives, alt+"(?:"+strings.Join(allow, "|")+")")
	}
	if len(names) == 0 {
		return "^.*$"
	}
	alternatives = append(alternatives, "(?!(?:"+strings.Join(names, "|")+")_).*")
	return "^(?:" + strings.Join(alternatives, "|") + ")$"
}

func globPattern(g string) string {
	parts := strings.Split(g, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return strings.Join(parts, ".*")
}
