package authserver

import (
	"net/url"
	"strings"
	"testing"
)

func TestRedirect(t *testing.T) {
	for raw, want := range map[string]class{
		"https://claude.ai/api/mcp/auth_callback":        web,
		"https://chatgpt.com/connector_platform_oauth":   web,
		"https://vscode.dev/redirect":                    web,
		"https://10.0.0.1:8443/cb":                       web,
		"http://127.0.0.1/":                              loopback,
		"http://127.0.0.1:33418":                         loopback,
		"http://localhost:6274/oauth/callback":           loopback,
		"http://[::1]:1/cb?x=1":                          loopback,
		"cursor://anysphere.cursor-mcp/oauth/callback":   private,
		"com.example.app:/oauth":                         private,
		"vscode://vscode.github-authentication/did-auth": private,
	} {
		if got, host, err := redirect(raw); err != nil || got != want || host == "" {
			t.Errorf("%s: %v %q %v", raw, got, host, err)
		}
	}
	for _, raw := range []string{"", "x", "/cb", "//evil.example/cb", "https:", "https:///cb", "https:evil.example", "HTTPS://a.example/cb", "https://a.example:0/cb", "https://a.example:99999/cb", "https://a.example:/cb",
		"https://a..example/cb", "https://-a.example/cb", "https://a.example./cb", "https://1.2.3/cb", "https://0x7f.1/cb", "https://2130706433/cb", "https://a_b.example/cb", "https://a.example/ cb", "https://a.example/{x}",
		"http://127.0.0.1:080/", "http://127.0.0.1:/", "http://127.1/", "http://localhost.evil/", "http://LOCALHOST/", "http://[::ffff:127.0.0.1]/", "http://[::1%25lo]/", "https://[fe80::1%25eth0]/", "https://%61.example/",
		"https://a.example/cb?state=1", "https://a.example/cb?iss=x", "file:///etc/passwd", "JavaScript:alert(1)", "intent://x", "about:blank", "https://a.example/" + strings.Repeat("x", 600)} {
		if got, _, err := redirect(raw); err == nil {
			t.Errorf("%q passes as %v", raw, got)
		}
	}
}

func TestMatches(t *testing.T) {
	have := []string{"https://a.example/cb", "http://127.0.0.1:1/cb", "http://localhost/cb?x=1", "http://[::1]/"}
	for asked, want := range map[string]bool{
		"https://a.example/cb": true, "http://127.0.0.1:1/cb": true, "http://127.0.0.1:65535/cb": true, "http://127.0.0.1/cb": true, "http://localhost:5/cb?x=1": true, "http://[::1]:7/": true,
		"https://a.example:443/cb": false, "https://a.example/cb/": false, "http://localhost:1/cb": false, "http://127.0.0.1:1/cb?": false, "http://127.0.0.1:0/cb": false, "http://127.0.0.1:070/cb": false,
		"http://[::1]:7": false, "http://localhost:5/cb?x=2": false, "http://127.0.0.1:1@evil.example/cb": false, "https://127.0.0.1:1/cb": false,
	} {
		if got := matches(have, asked); got != want {
			t.Errorf("%s: %v", asked, got)
		}
	}
}

// FuzzRedirect: what passes is what a browser takes it for, and nowhere else than the host
// that a person is shown.
func FuzzRedirect(f *testing.F) {
	for _, s := range []string{"https://a.example/cb", "http://127.0.0.1:1/cb", "http://[::1]/", "com.x:/cb", `https://a\@b/`, "https://a@b", "http://localhost:1#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, host, err := redirect(raw)
		if err != nil {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.User != nil || u.Fragment != "" || strings.ContainsAny(raw, "\\ \r\n\t#") {
			t.Fatalf("%q passes", raw)
		}
		switch c {
		case web:
			if u.Scheme != "https" || u.Host != host || !strings.HasPrefix(raw, "https://"+host) {
				t.Fatalf("%q is shown as %q", raw, host)
			}
		case loopback:
			if h := u.Hostname(); h != "127.0.0.1" && h != "::1" && h != "localhost" {
				t.Fatalf("%q is not here", raw)
			}
		case private:
			if u.Scheme == "http" || u.Scheme == "https" || u.Scheme == "javascript" || u.Scheme == "data" {
				t.Fatalf("%q passes", raw)
			}
		}
		if !matches([]string{raw}, raw) || matches([]string{raw}, raw+"x") {
			t.Fatalf("%q does not match itself alone", raw)
		}
	})
}
