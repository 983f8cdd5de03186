package registry

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"patchbay/internal/plane"
)

func TestFilesThatPeopleBring(t *testing.T) {
	claude := `{"mcpServers": {
		"Linear, Support": {"type": "http", "url": "https://mcp.linear.app/mcp"},
		"github": {"type": "streamable-http", "url": "https://api.githubcopilot.com/mcp/", "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}},
		"region": {"url": "https://${REGION:-eu}.example.com/${env:PATH_PART}/mcp"},
		"old": {"type": "sse", "url": "https://old.example.com/sse"},
		"files": {"command": "npx", "args": ["-y", "fs"]},
		"two": {"url": "https://t.example.com/mcp", "headers": {"A": "1", "B": "2"}},
		"off": {"url": "https://o.example.com/mcp", "disabled": true},
		"***": {"url": "https://s.example.com/mcp"},
		"odd": {"type": "pigeon", "url": "https://p.example.com/mcp"},
		"empty": {}
	}}`
	vscode := `{
		// VS Code's
		"inputs": [{"type": "promptString", "id": "key", "description": "The key", "password": true},],
		"servers": {
			"vanta": {"type": "http", "url": "https://mcp.vanta.com/mcp", "headers": {"X-Api-Key": "${input:key}"}}, /* one */
		}
	}`
	serverJSON := `{"$schema":"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json","name":"com.acme/crm-server","description":"CRM","version":"1.0.0",
		"remotes":[{"type":"sse","url":"https://x.example.com/sse"},{"type":"streamable-http","url":"https://{tenant}.acme.example/{space}/mcp",
		"variables":{"tenant":{"description":"Your tenant","isRequired":true},"space":{"default":"main"}},"headers":[{"name":"Authorization","value":"Bearer {token}","isSecret":true}]}]}`
	ours := "name: docs\nurl: https://docs.example.com/mcp\nauth: oauth\ntools: {deny: [drop_*]}\n"
	show := func(content string, values map[string]string) string {
		t.Helper()
		list, err := Import([]byte(content), values)
		if err != nil {
			return plane.Public(err).Message
		}
		var out []string
		for _, m := range list {
			line := m.Name + " " + m.URL + " " + m.Header
			if m.Problem != "" {
				line = m.Name + ": " + m.Problem
			}
			out = append(out, strings.TrimSpace(line))
		}
		return strings.Join(out, "\n")
	}
	for _, c := range []struct {
		what, content string
		values        map[string]string
		want          []string
	}{
		{"Claude Code", claude, map[string]string{"GITHUB_TOKEN": "tok", "PATH_PART": "a/b?c"}, []string{"linear-support https://mcp.linear.app/mcp", "github https://api.githubcopilot.com/mcp/ Authorization: Bearer tok",
			"region https://eu.example.com/a%2Fb%3Fc/mcp", "old: HTTP with SSE", "files: it is a stdio server", "two: it has several headers", "off: it is turned off", ": its name holds no letter", "odd: its type", "empty: it names no url"}},
		{"a variable is missing", claude, nil, []string{"github: the value of GITHUB_TOKEN is missing", "region: the value of PATH_PART is missing"}},
		{"VS Code", vscode, map[string]string{"input:key": "k"}, []string{"vanta https://mcp.vanta.com/mcp X-Api-Key: k"}},
		{"server.json", serverJSON, map[string]string{"tenant": "acme-1", "token": "tok", "space": "a b/c"}, []string{"crm-server https://acme-1.acme.example/a%20b%2Fc/mcp Authorization: Bearer tok"}},
		{"a default", serverJSON, map[string]string{"tenant": "acme", "token": "t"}, []string{"crm-server https://acme.acme.example/main/mcp"}},
		{"a host that is none", serverJSON, map[string]string{"tenant": "evil.com/#", "token": "t"}, []string{"crm-server: the value of tenant cannot stand in a host's name"}},
		{"a value is missing", serverJSON, map[string]string{"tenant": "acme"}, []string{"crm-server: the value of token is missing"}},
		{"wrapped", `{"server":` + serverJSON + `,"_meta":{}}`, map[string]string{"tenant": "acme", "token": "t"}, []string{"crm-server https://"}},
		{"ours", ours, nil, []string{"docs https://docs.example.com/mcp"}},
		{"nothing", `{"x": 1}`, nil, []string{"names no server"}},
		{"no JSON", "hello", nil, []string{"no JSON with mcpServers"}},
		{"too large", strings.Repeat(" ", maxImport+1), nil, []string{"larger than"}},
		{"twice", `{"mcpServers":{"a b":{"url":"https://a.example.com"},"a-b":{"url":"https://b.example.com"}}}`, nil, []string{"a-b https://a.example.com", "a-b-2 https://b.example.com"}},
	} {
		got := show(c.content, c.values)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in\n%s", c.what, want, got)
			}
		}
	}
	vars := func(content string) string {
		list, err := Variables([]byte(content))
		return fmt.Sprint(list, err)
	}
	for content, want := range map[string]string{claude: "[{GITHUB_TOKEN   true true} {PATH_PART   false true} {REGION eu  false true}] <nil>", vscode: "[{input:key  The key true true}] <nil>",
		serverJSON: "[{space main  false false} {tenant  Your tenant false true} {token   true false}] <nil>", ours: "[] <nil>"} {
		if got := vars(content); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"mcpServers":{"a":{"url":"https://${X}.example.com"}}} // x`))
	f.Add([]byte(`{"name":"a/b","remotes":[{"type":"streamable-http","url":"https://{a}/"}]}`))
	f.Add([]byte("/* \"/"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Variables(b); err != nil && plane.KindOf(err) != plane.InvalidInput {
			t.Fatal(err)
		}
		list, err := Import(b, map[string]string{"X": "x"})
		if err != nil && plane.KindOf(err) != plane.InvalidInput {
			t.Fatal(err)
		}
		for _, m := range list {
			if m.Problem == "" && !plane.ValidSlug(m.Name) {
				t.Fatalf("%q", m.Name)
			}
		}
	})
}

// TestOneFilterDoesNotLeak: a pattern for frameworks that prefix keeps each server's rules
// to that server. Go's engine has no look-ahead, so the pattern's parts are tried by hand
// as those engines read it: alternative by alternative.
func TestOneFilterDoesNotLeak(t *testing.T) {
	servers := map[string]plane.Preferences{"linear": {Deny: []string{"delete_*"}, Excluded: []string{"save_issue"}}, "github": {Allow: []string{"get_*", "list_issues"}}, "git": {}}
	pattern := FilterPattern(servers)
	want := `^(?:git_(?:.*)|github_(?:get_.*|list_issues)|linear_(?!(?:delete_.*|save_issue)$)(?:.*)|(?!(?:git|github|linear)_).*)$`
	if pattern != want {
		t.Errorf("%s", pattern)
	}
	for name, in := range map[string]bool{"linear_get_issue": true, "linear_delete_issue": false, "linear_save_issue": false, "linear_save_issue_2": true, "github_get_me": true, "github_delete_repo": false,
		"github_list_issues": true, "github_list_issues_all": false, "git_delete_x": true, "remember": true, "kapelle_send_task": true, "linear_": true} {
		if got := passes(pattern, name); got != in {
			t.Errorf("%s: %v", name, got)
		}
	}
	if FilterPattern(nil) != "^.*$" {
		t.Error("no server, and something is left out")
	}
}

// passes reads a pattern as an engine with look-ahead does.
func passes(pattern, name string) bool {
	body := strings.TrimSuffix(strings.TrimPrefix(pattern, "^(?:"), ")$")
	var alts []string
	depth, from := 0, 0
	for i, c := range body {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				alts, from = append(alts, body[from:i]), i+1
			}
		}
	}
	for _, alt := range append(alts, body[from:]) {
		head, rest, ahead := strings.Cut(alt, "(?!")
		if !ahead {
			if regexp.MustCompile("^" + alt + "$").MatchString(name) {
				return true
			}
			continue
		}
		d, end := 1, 0
		for i, c := range rest {
			if c == '(' {
				d++
			} else if c == ')' {
				if d--; d == 0 {
					end = i
					break
				}
			}
		}
		tail, ok := strings.CutPrefix(name, head)
		if ok && !regexp.MustCompile("^(?:"+rest[:end]+")").MatchString(tail) && regexp.MustCompile("^"+rest[end+1:]+"$").MatchString(tail) {
			return true
		}
	}
	return false
}
