package registry

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"patchbay/internal/plane"
)

// Skill is what a SKILL.md says of servers in its front matter.
type Skill struct {
	Servers []plane.Declaration // mcp_servers
	Wanted  []string            // mcp_tools: the registry's, by name
}

// ReadSkill reads the front matter of a SKILL.md. Keys that are not about servers are
// somebody else's and left alone.
func ReadSkill(file string, body []byte, placeholder string) (Skill, error) {
	var out Skill
	front, ok := frontMatter(body)
	if !ok {
		return out, nil
	}
	f, err := looseYAML(file, front)
	if err != nil {
		return out, err
	}
	var raw struct {
		Servers ast.Node `yaml:"mcp_servers"`
		Tools   []string `yaml:"mcp_tools"`
	}
	if err := yaml.NodeToValue(f.Docs[0].Body, &raw); err != nil {
		return out, badYAML(file, err)
	}
	for _, n := range raw.Tools {
		if !plane.ValidSlug(n) {
			return out, plane.Errorf(plane.InvalidInput, "%s: mcp_tools names servers of the registry; %q is no name.", file, bounded(n))
		}
		if !slices.Contains(out.Wanted, n) {
			out.Wanted = append(out.Wanted, n)
		}
	}
	if len(raw.Tools) > maxDeclared {
		return out, plane.Errorf(plane.InvalidInput, "%s: a skill wants at most %d servers.", file, maxDeclared)
	}
	if v := (&plain{file: file}); raw.Servers != nil {
		if v.walk(raw.Servers, 0); v.err != nil {
			return out, v.err
		}
	}
	seq, ok := raw.Servers.(*ast.SequenceNode)
	if raw.Servers != nil && !ok {
		return out, plane.Errorf(plane.InvalidInput, "%s: mcp_servers is a list of declarations.", place(file, raw.Servers))
	}
	if seq == nil {
		return out, nil
	}
	if len(seq.Values) > maxDeclared {
		return out, plane.Errorf(plane.InvalidInput, "%s: a skill declares at most %d servers.", file, maxDeclared)
	}
	for _, n := range seq.Values {
		var d document
		if err := yaml.NodeToValue(n, &d, yaml.Strict()); err != nil {
			return out, badYAML(file, err)
		}
		r := &reader{file: file, root: n}
		decl, err := r.declaration(&d, placeholder)
		if err != nil {
			return out, err
		}
		out.Servers = append(out.Servers, decl)
	}
	return out, nil
}

// frontMatter is what stands between the first two lines of ---, with the lines before
// counted.
func frontMatter(b []byte) ([]byte, bool) {
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	rest, ok := bytes.CutPrefix(b, []byte("---\n"))
	if !ok {
		return nil, false
	}
	front, _, ok := bytes.Cut(rest, []byte("\n---"))
	if !ok {
		return nil, false
	}
	return append([]byte("\n"), front...), true // so that line numbers are the file's
}

type parsed struct {
	d   plane.Declaration
	err error
}

// fromMCPJSON reads a repository's .mcp.json. It is held to what every declaration is: no
// secret stands in it, so that a header with a value, and env that is not the
// placeholder, are refused.
func fromMCPJSON(b []byte, placeholder string) ([]parsed, error) {
	var f struct {
		Servers map[string]struct {
			Type    string            `json:"type"`
			URL     string            `json:"url"`
			Headers map[string]string `json:"headers"`
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"mcpServers"`
	}
	if _, err := parseYAML(repoFile, b); err != nil { // JSON is YAML: the same bounds
		return nil, err
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "it is no JSON with mcpServers").Because(err)
	}
	if len(f.Servers) > maxServers {
		return nil, plane.Errorf(plane.InvalidInput, "it names more than %d servers", maxServers)
	}
	var out []parsed
	for _, name := range sortedNames(f.Servers) {
		s := f.Servers[name]
		doc := map[string]any{"name": name}
		set := func(k string, v any, on bool) {
			if on {
				doc[k] = v
			}
		}
		set("transport", s.Type, s.Type != "")
		set("url", s.URL, s.URL != "")
		set("command", s.Command, s.Command != "")
		set("args", s.Args, len(s.Args) > 0)
		set("env", s.Env, len(s.Env) > 0)
		if len(s.Headers) > 0 {
			auth, err := headersAuth(s.Headers, placeholder)
			if err != nil {
				out = append(out, parsed{plane.Declaration{Name: name}, err})
				continue
			}
			doc["auth"] = string(auth)
		}
		raw, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		d, err := Parse(repoFile, raw, placeholder)
		out = append(out, parsed{d, err})
	}
	return out, nil
}

// headersAuth is how headers of a .mcp.json sign in: one, whose value is a variable or the
// placeholder.
func headersAuth(h map[string]string, placeholder string) (plane.Auth, error) {
	if len(h) > 1 {
		return "", plane.Errorf(plane.InvalidInput, "%s has several headers; Patchbay sends one credential.", repoFile)
	}
	for name, value := range h {
		bare := variableRE.ReplaceAllString(value, "")
		bare = string(bytes.ReplaceAll([]byte(bare), []byte(placeholder), nil))
		auth := plane.AuthBearer
		if !strings.EqualFold(name, "Authorization") {
			var err error
			if auth, err = plane.ParseAuth("api_key:" + name); err != nil {
				return "", err
			}
			if bare != "" {
				return "", plane.Errorf(plane.InvalidInput, "The header %s holds a value of its own; a declaration carries no secret.", bounded(name))
			}
			return auth, nil
		}
		if !strings.EqualFold(bare, "Bearer ") && !strings.EqualFold(bare, "Bearer") && bare != "" {
			return "", plane.Errorf(plane.InvalidInput, "The header %s holds a value of its own; a declaration carries no secret.", bounded(name))
		}
		return auth, nil
	}
	return "", nil
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
