package web

import (
	"net/http"

	"patchbay/internal/authn"
	"patchbay/internal/plane"
)

// signIn sends a browser to the company's own sign-in.
func (p *Pages) signIn(w http.ResponseWriter, r *http.Request) {
	opened(w)
	to, cookie, err := p.o.Auth.Begin(r.Context(), r.URL.Query().Get("next"))
	if err != nil {
		p.problem(w, r, err)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// signedIn takes it back.
func (p *Pages) signedIn(w http.ResponseWriter, r *http.Request) {
	opened(w)
	cookies, next, err := p.o.Auth.Finish(r.Context(), r)
	if err != nil {
		p.o.Log.Warn("a person could not be signed in", "err", err, "cause", plane.Public(err).Cause)
		p.problem(w, r, err)
		return
	}
	for _, c := range cookies {
		http.SetCookie(w, c)
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// local is the link that serve printed: a look shows a button, the button signs
// in, once.
func (p *Pages) local(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		p.render(w, r, http.StatusOK, buttonPage(p.site(r), "Sign in as the local admin", "This browser becomes the owner of this install, until it was not used for 12 hours. The link works once.",
			authn.LocalPath+r.PathValue("code"), "Sign in"))
	case http.MethodPost:
		if _, ok := p.form(w, r); !ok {
			return
		}
		c, err := p.o.Auth.Redeem(r.Context(), r.PathValue("code"))
		if err != nil {
			p.problem(w, r, err)
			return
		}
		http.SetCookie(w, c)
		if to := next(w, r); to != "/" {
			p.goOn(w, r, to)
			return
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		w.Header().Set("Allow", "GET, POST")
		p.render(w, r, http.StatusMethodNotAllowed, problemPage(p.site(r), titles[405], "This address shows a page and takes its form.", "", ""))
	}
}

func (p *Pages) signOut(w http.ResponseWriter, r *http.Request) {
	if _, ok := p.form(w, r); !ok {
		return
	}
	c, err := p.o.Auth.SignOut(r.Context(), r)
	if err != nil {
		p.problem(w, r, err)
		return
	}
	http.SetCookie(w, c)
	p.render(w, r, http.StatusOK, problemPage(p.site(r), "Signed out", "This browser is nobody again.", "", ""))
}
