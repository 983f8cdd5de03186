package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"patchbay/internal/authn"
	"patchbay/internal/plane"
)

// htmxConfig: nothing is evaluated, styled inline, kept or asked of another site, and an
// answer that refuses is shown like any other.
const htmxConfig = `{"includeIndicatorStyles":false,"allowEval":false,"allowScriptTags":false,"selfRequestsOnly":true,"historyCacheSize":0,"historyEnabled":false,"scrollIntoViewOnBoost":false,"responseHandling":[{"code":"204","swap":false},{"code":"...","swap":true}]}`

// field is one of a form that came when nobody was signed in.
type field struct {
	name, value string
	secret      bool
}

// secretFields are never written into a page.
var secretFields = []string{"client_secret", "token", "secret", "value", "file"}

// over reports whether the browser's session has ended.
func (p *Pages) over(r *http.Request) bool {
	_, err := p.o.Auth.Principal(r)
	return plane.KindOf(err) == plane.Unauthenticated && r.Header.Get("Authorization") == ""
}

// keep answers a form whose session has ended: with what was typed, but for secrets.
func (p *Pages) keep(w http.ResponseWriter, r *http.Request) {
	f, ok := p.pageForm(w, r)
	if !ok {
		return
	}
	var fields []field
	for name, values := range f {
		for _, v := range values {
			if s := slices.Contains(secretFields, name); !s || v != "" {
				fields = append(fields, field{name, v, s})
			}
		}
	}
	slices.SortStableFunc(fields, func(a, b field) int { return compareBool(a.secret, b.secret) })
	signIn := ""
	if p.o.Auth.CanSignIn() {
		signIn = authn.SignInPath + "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	p.render(w, r, http.StatusUnauthorized, keptPage(p.site(r), r.URL.RequestURI(), fields, signIn))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func fieldID(i int) string { return fmt.Sprintf("kept-%d", i) }

// withBefore is the address of the page that begins after an id.
func withBefore(u *url.URL, id string) string {
	q := u.Query()
	q.Del("before")
	if id != "" {
		q.Set("before", id)
	}
	if len(q) == 0 {
		return u.Path
	}
	return u.Path + "?" + q.Encode()
}
