package registry

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/internal/plane"
)

// gitRepo is a repository made with git itself.
type gitRepo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T) *gitRepo {
	r := &gitRepo{t, filepath.Join(t.TempDir(), "work")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *gitRepo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *gitRepo) write(files map[string]string) {
	r.t.Helper()
	for name, body := range files {
		p := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "x")
}

// serve is the repository over HTTP, by git's own server.
func (r *gitRepo) serve() (url string) {
	r.t.Helper()
	exe := filepath.Join(r.git("--exec-path"), "git-http-backend")
	bare := filepath.Join(filepath.Dir(r.dir), "srv", "team.git")
	if _, err := os.Stat(bare); err != nil {
		r.git("clone", "-q", "--bare", r.dir, bare)
		r.git("--git-dir", bare, "config", "uploadpack.allowFilter", "true") // as the big hosts do
	}
	h := &cgi.Handler{Path: exe, Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"}}
	srv := httptest.NewServer(h)
	r.t.Cleanup(srv.Close)
	r.git("remote", "add", "srv", bare)
	return srv.URL + "/team.git"
}

func names(s plane.RepoSnapshot) string {
	var out []string
	for _, d := range s.Declared {
		out = append(out, fmt.Sprintf("%s/%s", d.Layer, d.Name))
	}
	return strings.Join(out, " ")
}

var client = &http.Client{Transport: http.DefaultTransport}

const good = "name: %s\nurl: https://%[1]s.example.com/mcp\n"

func TestARepositoryDeclares(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{
		".patchbay/mcp/docs.yaml":     fmt.Sprintf(good, "docs"),
		".patchbay/mcp/twice.yaml":    fmt.Sprintf(good, "docs"),
		".patchbay/mcp/bad.yaml":      "name: bad\nurl: https://bad.example.com/?token=s3cr3t\n",
		".patchbay/mcp/greedy.yaml":   fmt.Sprintf(good, "greedy") + "default: true\n",
		".patchbay/mcp/README.md":     "not one",
		".patchbay/mcp/large.yaml":    fmt.Sprintf(good, "large") + "description: " + strings.Repeat("x", 100<<10),
		".mcp.json":                   `{"mcpServers":{"notes":{"type":"http","url":"https://notes.example.com/mcp","headers":{"Authorization":"Bearer ${NOTES_TOKEN}"}},"leaky":{"url":"https://l.example.com/mcp","headers":{"Authorization":"Bearer s3cr3tvalue"}},"files":{"command":"npx","args":["-y","fs"],"env":{"KEY":"` + mark + `"}},"Upper":{"url":"https://u.example.com/mcp"}}}`,
		"skills/review/SKILL.md":      "---\nname: review\ndescription: how to review\nmcp_servers:\n  - {name: lint, url: \"https://lint.example.com/mcp\"}\nmcp_tools: [linear, linear]\n---\nText --- more\n",
		"skills/broken/SKILL.md":      "---\nmcp_servers:\n  - name: b\n    url: https://b.example.com/mcp#x\n---\n",
		"skills/plain/SKILL.md":       "No front matter\n",
		"skills/loose.md":             "---\nmcp_tools: [never]\n---\n",
		"src/.mcp.json":               `{"mcpServers":{"never":{"url":"https://n.example.com/mcp"}}}`,
		".patchbay/mcp/sub/deep.yaml": fmt.Sprintf(good, "never"),
	})
	url := r.serve()
	for what, address := range map[string]string{"by path": r.dir, "over HTTP": url} {
		s, err := ReadRepository(t.Context(), plane.RepoSnapshot{Team: "payments"}, address, client, mark, &Scanner{Links: defaultLinks})
		if err != nil {
			t.Fatalf("%s: %v %v", what, err, cause(err))
		}
		if got := names(s); got != "repository/docs repository/files repository/notes skill/lint" || strings.Join(s.Wanted, " ") != "linear" || s.Branch != "main" || len(s.Commit) != 40 {
			t.Errorf("%s: %s, wanted %v, branch %s", what, got, s.Wanted, s.Branch)
		}
		if s.Declared[2].Auth != plane.AuthBearer || !strings.HasPrefix(s.Declared[0].From, ".patchbay/mcp/docs.yaml at "+s.Commit[:12]) {
			t.Errorf("%s: %+v", what, s.Declared)
		}
		told := strings.Join(s.Problems, "\n")
		for _, want := range []string{"twice.yaml: docs is declared by another file", "bad.yaml", "has a query", "greedy.yaml: default: true is the registry's", "large.yaml: it ", "leaky", "small: upper", "skills/broken/SKILL.md:4:10: the url has a fragment"} {
			if want == "leaky" {
				want = ".mcp.json: The header Authorization holds a value of its own"
			}
			if !strings.Contains(told, want) {
				t.Errorf("%s: nothing says %q:\n%s", what, want, told)
			}
		}
		if strings.Contains(told, "s3cr3t") {
			t.Errorf("%s: a secret is repeated:\n%s", what, told)
		}
	}
}

// TestOnlyTheDefaultBranch: a branch that says otherwise changes nothing, and a default
// branch that is renamed under us is followed.
func TestOnlyTheDefaultBranch(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{".mcp.json": `{"mcpServers":{"fine":{"url":"https://fine.example.com/mcp"}}}`})
	url := r.serve()
	bare := filepath.Join(filepath.Dir(r.dir), "srv", "team.git")
	r.git("checkout", "-q", "-b", "evil")
	r.write(map[string]string{".mcp.json": `{"mcpServers":{"evil":{"url":"https://evil.example.com/mcp"}}}`})
	r.git("push", "-q", "srv", "evil")
	read := func(known plane.RepoSnapshot) plane.RepoSnapshot {
		t.Helper()
		s, err := ReadRepository(t.Context(), known, url, client, mark, &Scanner{Links: defaultLinks})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := read(plane.RepoSnapshot{Team: "payments"})
	if names(first) != "repository/fine" || first.Branch != "main" {
		t.Fatalf("%s of %s", names(first), first.Branch)
	}
	if again := read(first); again.Commit != first.Commit || names(again) != "repository/fine" {
		t.Errorf("%+v", again)
	}
	// Renamed, and with another commit.
	r.git("checkout", "-q", "main")
	r.write(map[string]string{".mcp.json": `{"mcpServers":{"newer":{"url":"https://newer.example.com/mcp"}}}`})
	r.git("push", "-q", "srv", "main:trunk")
	r.git("--git-dir", bare, "symbolic-ref", "HEAD", "refs/heads/trunk")
	r.git("--git-dir", bare, "update-ref", "-d", "refs/heads/main")
	if s := read(first); names(s) != "repository/newer" || s.Branch != "trunk" {
		t.Errorf("%s of %s", names(s), s.Branch)
	}
	// What cannot be read keeps what was known.
	s, err := ReadRepository(t.Context(), first, url+"x", client, mark, &Scanner{Links: defaultLinks})
	if plane.KindOf(err) != plane.Unavailable || names(s) != "repository/fine" {
		t.Errorf("%s %v", names(s), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadRepository(ctx, first, url, client, mark, &Scanner{Links: defaultLinks}); err == nil {
		t.Error("a look that is over went on")
	}
}

func TestARepositoryWithoutACommit(t *testing.T) {
	r := newRepo(t)
	url := r.serve()
	for _, address := range []string{r.dir, url} {
		if s, err := ReadRepository(t.Context(), plane.RepoSnapshot{Team: "p"}, address, client, mark, &Scanner{Links: defaultLinks}); err != nil || len(s.Declared) != 0 {
			t.Errorf("%s: %+v %v", address, s, err)
		}
	}
}

// TestASmallPackOfMuch: zeros are small on the wire; what they inflate to is bounded.
func TestASmallPackOfMuch(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{".mcp.json": `{"mcpServers":{}}`, "zeros": strings.Repeat("\x00", 150<<20)})
	url := r.serve()
	r.git("--git-dir", filepath.Join(filepath.Dir(r.dir), "srv", "team.git"), "config", "uploadpack.allowFilter", "false")
	if _, err := ReadRepository(t.Context(), plane.RepoSnapshot{Team: "p"}, url, client, mark, nil); err == nil || !strings.Contains(cause(err), "holds more than") {
		t.Errorf("%v", cause(err))
	}
}

// TestTheWorkedExample: what the documentation shows reads, and allows seven tools.
func TestTheWorkedExample(t *testing.T) {
	files, problems := Files("../../registry", mark)
	if len(problems) > 0 || len(files) != 1 || files[0].Name != "github" || len(files[0].Allow) != 7 || files[0].Destination != "github-mcp" {
		t.Fatalf("%+v %v", files, problems)
	}
	d := BuiltIn()["github-mcp"]
	m := &Merged{Declared: files[0], NamedBy: plane.LayerAgent}
	if why := Drop(m, &plane.Agent{Slug: "general", Trust: plane.Open}, "payments", true, false, Reach{"github-mcp": d}); why != "" {
		t.Errorf("%s", why)
	}
}
