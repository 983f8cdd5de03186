package app_test

import (
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
)

// TestGitGoesThroughTheGateway: git clones and pushes over HTTPS with the placeholder as
// its password; the host gets the token, for the user that the destination names.
func TestGitGoesThroughTheGateway(t *testing.T) {
	o := newOutward(t, "{kind: basic, user: x-access-token}", "")
	work, bare := filepath.Join(o.dir, "work"), filepath.Join(o.dir, "srv", "team.git")
	commit(t, work, map[string]string{"README": "hello\n"})
	env := append(os.Environ(), "HTTPS_PROXY="+o.proxy, "https_proxy="+o.proxy, "NO_PROXY=", "no_proxy=", "GIT_SSL_CAINFO="+o.ca, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("clone", "-q", "--bare", work, bare)
	git("--git-dir", bare, "config", "http.receivepack", "true")
	backend := &cgi.Handler{Path: filepath.Join(git("--exec-path"), "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=t", "GIT_CONFIG_GLOBAL=/dev/null"}}
	o.far.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "x-access-token" || password != outSecret {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	})
	copied := filepath.Join(o.dir, "copy")
	git("clone", "-q", "https://me:"+o.placeholder+"@"+o.host+"/team.git", copied)
	if b, err := os.ReadFile(filepath.Join(copied, "README")); err != nil || string(b) != "hello\n" {
		t.Fatalf("%s %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(copied, "NEW"), []byte(strings.Repeat("new\n", 200_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	git("-C", copied, "add", "-A")
	git("-C", copied, "commit", "-q", "-m", "x")
	git("-C", copied, "push", "-q", "origin", "HEAD")
	if got, want := git("--git-dir", bare, "rev-parse", "HEAD"), git("-C", copied, "rev-parse", "HEAD"); got != want {
		t.Errorf("%s was pushed, and %s is there", want, got)
	}
	within(t, 5*time.Second, "the push's record", func() bool { // the client may have its answer first
		return slices.ContainsFunc(o.log(t, 4), func(r command.EgressRow) bool {
			return r.Path == "/team.git/git-receive-pack" && r.State == "succeeded" && r.Injected && r.Method == "POST"
		})
	})
}
