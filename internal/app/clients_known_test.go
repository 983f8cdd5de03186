package app_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// playback plays what a client of others is known to send, and what its person does.
type playback struct {
	t    *testing.T
	s    *served
	v    *visitor
	vars map[string]string
}

// TestKnownClients: the requests of clients that people have, word for word but for what is
// made at the time, with what each must be answered.
func TestKnownClients(t *testing.T) {
	files, err := filepath.Glob("testdata/clients/*.txtar")
	if err != nil || len(files) < 6 {
		t.Fatalf("%v %v", files, err)
	}
	docs := map[string]string{} // of clients, by path
	far := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, strings.ReplaceAll(docs[r.URL.Path], "{{far}}", "https://"+r.Host))
	}))
	t.Cleanup(far.Close)
	trusting(t, far)
	s := start(t, "", fmt.Sprintf("clients: {known: {cursor: {name: Cursor, redirect_uris: [\"cursor://anysphere.cursor-mcp/oauth/callback\"]}}}\negress: {allow: [{to: %q, for: [\"clients:documents\"]}]}\n",
		strings.TrimPrefix(far.URL, "https://")))
	sum := sha256.Sum256([]byte(strings.Repeat("v", 43)))
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := &playback{t: t, s: s, v: local(t, s), vars: map[string]string{"base": "http://" + s.a.Addr(), "far": far.URL, "verifier": strings.Repeat("v", 43), "challenge": base64.RawURLEncoding.EncodeToString(sum[:])}}
			for len(a.Files) > 0 && strings.HasPrefix(a.Files[0].Name, "serve ") {
				docs[strings.TrimPrefix(a.Files[0].Name, "serve ")] = string(a.Files[0].Data)
				a.Files = a.Files[1:]
			}
			for i := 0; i+1 < len(a.Files); i += 2 {
				n, kind, _ := strings.Cut(a.Files[i].Name, " ")
				if a.Files[i+1].Name != n+" answer" {
					t.Fatalf("%s has no answer", a.Files[i].Name)
				}
				r.t.Logf("step %s", n)
				r.play(kind, r.fill(string(a.Files[i].Data)), strings.Split(strings.TrimSpace(r.fill(string(a.Files[i+1].Data))), "\n"))
			}
		})
	}
}

// fill puts in what was made at the time.
func (r *playback) fill(text string) string {
	for k, v := range r.vars {
		text = strings.ReplaceAll(text, "{{"+k+"}}", v)
	}
	return text
}

func (r *playback) play(kind, text string, want []string) {
	r.t.Helper()
	switch kind {
	case "request":
		r.request(text, want)
		return
	case "silent":
		req, err := http.NewRequest("GET", r.vars["base"]+"/oauth/authorize?"+strings.TrimSpace(text), nil)
		if err != nil {
			r.t.Fatal(err)
		}
		_, _, h := r.v.do(req)
		r.sent(h.Get("Location"), want)
		return
	}
	head, query, _ := strings.Cut(strings.TrimSpace(text), "\n")
	button, name, _ := strings.Cut(head, " ")
	g := &guest{t: r.t, s: r.s, v: r.v, base: r.vars["base"]}
	at := r.vars["base"] + "/oauth/authorize?" + query
	form, code, body := g.page(at)
	asks := "Let " + name + " use "
	if button == "again" {
		button, asks = "allow", "Go on with "+name+"?"
	}
	if code != http.StatusOK || !strings.Contains(html.UnescapeString(body), asks) {
		r.t.Fatalf("%d %s", code, body)
	}
	form.Set("do", button)
	_, body = r.v.post(at, form)
	m := backRE.FindStringSubmatch(body)
	if m == nil {
		r.t.Fatal(body)
	}
	r.sent(html.UnescapeString(m[1]), want)
}

// sent holds where a browser is sent to what is wanted.
func (r *playback) sent(to string, want []string) {
	r.t.Helper()
	u, err := url.Parse(to)
	if err != nil || !strings.HasPrefix(to, want[0]+"?") {
		r.t.Fatalf("the browser is sent to %q", to)
	}
	for _, w := range want[1:] {
		if name, as, ok := strings.Cut(w, " > "); ok {
			r.vars[as] = u.Query().Get(name)
		} else if name, value, _ := strings.Cut(w, " ="); u.Query().Get(name) != strings.TrimPrefix(value, " ") || u.Query().Has(name) != (value != "") {
			r.t.Errorf("%s is %q, not %q", name, u.Query().Get(name), value)
		}
	}
}

// request sends one as it was written, and holds its answer to what is wanted.
func (r *playback) request(text string, want []string) {
	r.t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	raw := strings.ReplaceAll(strings.TrimSpace(head), "\n", "\r\n") + fmt.Sprintf("\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", r.s.a.Addr(), len(body), body)
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil {
		r.t.Fatal(err)
	}
	req.RequestURI, req.URL.Scheme, req.URL.Host = "", "http", r.s.a.Addr()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if fmt.Sprint(resp.StatusCode) != want[0] {
		r.t.Fatalf("%d, not %s: %s", resp.StatusCode, want[0], b)
	}
	var got map[string]any
	for _, w := range want[1:] {
		if !strings.HasPrefix(w, ".") {
			name, value, _ := strings.Cut(w, ": ")
			if h := resp.Header.Get(name); h == "" || value != "." && !strings.Contains(h, value) {
				r.t.Errorf("%s: %q", w, h)
			}
			continue
		}
		if got == nil {
			if err := json.Unmarshal(b, &got); err != nil {
				r.t.Fatalf("%s: %v", b, err)
			}
		}
		if name, as, ok := strings.Cut(w[1:], " > "); ok {
			if r.vars[as], _ = got[name].(string); r.vars[as] == "" {
				r.t.Errorf("there is no %s in %s", name, b)
			}
			continue
		}
		if name, value, _ := strings.Cut(w[1:], " = "); fmt.Sprint(got[name]) != value {
			r.t.Errorf("%s is %v, not %s", name, got[name], value)
		}
	}
}
