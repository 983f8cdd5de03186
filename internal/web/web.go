// Package web is the pages: the dashboard, the connect page and its results, the OAuth
// callback, signing in, and the question whether an MCP client may act for somebody. It promises that looking at a page changes nothing, that every
// page works by keyboard and without script, that what was typed is not lost when a form
// is refused, and that no page shows a secret or names what is somebody else's.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/a-h/templ"

	"patchbay/internal/authn"
	"patchbay/internal/authserver"
	"patchbay/internal/command"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
)

//go:embed assets/patchbay.css
var stylesheet []byte

//go:embed assets/htmx.js
var htmx []byte

//go:embed assets/htmx-sse.js
var htmxSSE []byte

//go:embed assets/patchbay.js
var ownScript []byte

// script is one file: htmx, with what lets it follow a stream, and ours.
var script = bytes.Join([][]byte{htmx, htmxSSE, ownScript}, []byte("\n"))

// hashed names an asset by what it holds, so that it may be kept for ever.
func hashed(ext string, b []byte) string {
	sum := sha256.Sum256(b)
	return "/assets/patchbay." + hex.EncodeToString(sum[:6]) + ext
}

var cssPath, jsPath = hashed(".css", stylesheet), hashed(".js", script)

// Options of the pages.
type Options struct {
	Auth      *authn.Authenticator
	Clients   *authserver.Server
	Consent   *consent.Service
	Commands  *command.Registry
	Log       *slog.Logger
	PublicURL func() string
	MCP       bool
	Ending    <-chan struct{} // closed: streams end
	Limits    [][2]string     // by name, as they are in force
}

// Pages serves them.
type Pages struct {
	o        Options
	mux      *http.ServeMux
	watchers atomic.Int32 // open streams
}

// New makes the pages.
func New(o Options) *Pages {
	p := &Pages{o: o, mux: http.NewServeMux()}
	p.mux.HandleFunc(consent.ConnectPath+"{nonce}", p.connect)
	p.mux.HandleFunc(consent.CallbackPath, p.callback)
	p.mux.HandleFunc("/api"+consent.CallbackPath, p.callback)
	p.overviewPages()
	p.agentPages()
	p.connectionPages()
	p.runPages()
	p.governPages()
	p.mux.HandleFunc("POST /preferences/theme", p.theme)
	p.mux.HandleFunc("GET /connections/events", p.watchConnections)
	p.mux.HandleFunc(authserver.AuthorizePath, p.authorize)
	p.mux.HandleFunc("GET "+authn.SignInPath, p.signIn)
	p.mux.HandleFunc("GET "+authn.CallbackPath, p.signedIn)
	p.mux.HandleFunc(authn.LocalPath+"{code}", p.local)
	p.mux.HandleFunc("POST "+authn.SignOutPath, p.signOut)
	p.asset(cssPath, "text/css; charset=utf-8", stylesheet)
	p.asset(jsPath, "text/javascript; charset=utf-8", script)
	return p
}

// asset serves a file that never changes under its name, compressed where that is taken.
func (p *Pages) asset(path, kind string, b []byte) {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(b)
		err = errors.Join(err, z.Close())
	}
	p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
		h.Set("Vary", "Accept-Encoding")
		if err == nil && takesGzip(r) {
			h.Set("Content-Encoding", "gzip")
			w.Write(packed.Bytes())
			return
		}
		w.Write(b)
	})
}

// Serves reports whether a path is one of the pages'.
func (p *Pages) Serves(r *http.Request) bool {
	_, pattern := p.mux.Handler(r)
	return pattern != ""
}

// policyHeader is what a page may load and where its forms may go.
const policyHeader = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP serves one page.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policyHeader)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	p.mux.ServeHTTP(w, r)
}

// site is what every page's shell needs.
type site struct {
	css, host, theme, foot, refresh string
}

func (p *Pages) site(r *http.Request) site {
	s := site{css: cssPath, theme: "auto"}
	if u, err := url.Parse(p.o.PublicURL()); err == nil {
		s.host = u.Host
	}
	if c, err := r.Cookie("theme"); err == nil && (c.Value == "light" || c.Value == "dark") {
		s.theme = c.Value
	}
	return s
}

// packers compress pages. No page repeats a secret beside what another site can put there:
// forms of another site are refused, and a secret is shown once, as the answer to one.
var packers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of gzip's
	}
	return z
}}

func takesGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

func (p *Pages) render(w http.ResponseWriter, r *http.Request, status int, page templ.Component) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Add("Vary", "Accept-Encoding")
	var err error
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		w.WriteHeader(status)
		z := packers.Get().(*gzip.Writer)
		z.Reset(w)
		err = errors.Join(page.Render(r.Context(), z), z.Close())
		packers.Put(z)
	} else {
		w.WriteHeader(status)
		err = page.Render(r.Context(), w)
	}
	if err != nil {
		p.o.Log.Warn("a page could not be written", "path", route(r), "err", err)
	}
}

// route is a path without what is secret in it.
func route(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, consent.ConnectPath) {
		return consent.ConnectPath + "…"
	}
	if strings.HasPrefix(r.URL.Path, authn.LocalPath) {
		return authn.LocalPath + "…"
	}
	return r.URL.Path
}

// titles of problems, by HTTP status.
var titles = map[int]string{400: "That did not work", 401: "Sign in first", 403: "This is not yours", 404: "There is no such page", 405: "That cannot be done here",
	409: "The sign-in is not where this expects it", 410: "This link is over", 413: "That is too long", 502: "The sign-in did not work", 503: "Not available"}

// problem shows an error as a page.
func (p *Pages) problem(w http.ResponseWriter, r *http.Request, err error) {
	var refused *consent.Problem
	if errors.As(err, &refused) {
		status := refused.Refusal.Status()
		if refused.Cause != nil {
			p.o.Log.Warn("a sign-in did not work", "refusal", string(refused.Refusal), "cause", refused.Cause)
		}
		p.render(w, r, status, problemPage(p.site(r), titles[status], refused.Error(), refused.Next, back(r, refused)))
		return
	}
	e := plane.Public(err)
	status := statusOf(e.Kind)
	if status >= 500 {
		p.o.Log.Error("a page failed", "path", route(r), "err", err, "cause", errors.Unwrap(err))
	}
	title := titles[status]
	if title == "" {
		title = "Something went wrong"
	}
	p.render(w, r, status, problemPage(p.site(r), title, e.Message, e.Next, ""))
}

// statusOf is the HTTP status that a page answers an error with.
func statusOf(k plane.Kind) int {
	status := map[plane.Kind]int{plane.InvalidInput: 400, plane.Unauthenticated: 401, plane.Forbidden: 403, plane.NotFound: 404, plane.Conflict: 409,
		plane.Gone: 410, plane.Limited: 429, plane.Unavailable: 503}[k]
	if status == 0 {
		return http.StatusInternalServerError
	}
	return status
}

// back is the link that a failed sign-in may be begun again from.
func back(r *http.Request, p *consent.Problem) string {
	nonce, _, ok := strings.Cut(r.URL.Query().Get("state"), ".")
	if !ok || p.Refusal != consent.OAuthFailed && p.Refusal != consent.Again && p.Refusal != consent.Rejected {
		return ""
	}
	return consent.ConnectPath + nonce
}

// sameOrigin admits a form that one of our own pages sent, and nothing that does
// not say where it comes from.
func (p *Pages) sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return true
	case "":
	default:
		return false
	}
	u, err := url.Parse(p.o.PublicURL())
	o := r.Header.Get("Origin")
	return err == nil && o != "" && o == u.Scheme+"://"+u.Host
}

// Bounds of a form's body: any token that will be judged fits, written with
// three bytes a character; what is longer is read and answered, up to a bound.
const (
	maxForm  = consent.MaxToken*3 + 4096
	maxDrain = 1 << 20
)

// maxPageForm bounds a form of the dashboard: 256 long names of tools fit, and a file of
// servers.
const maxPageForm = 2 << 20

// form reads the fields of a form that takes a token. ok is false when it was answered
// already.
func (p *Pages) form(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	return p.fields(w, r, maxForm, "No token is that long. Nothing was stored, and the link still works.", "Go back and paste the token alone.")
}

// pageForm reads the fields of a form of the dashboard.
func (p *Pages) pageForm(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	return p.fields(w, r, maxPageForm, "The form is larger than 2 MiB. Nothing was done.", "Send less at once; a large file goes by the command line: patchbay mcp import FILE")
}

func (p *Pages) fields(w http.ResponseWriter, r *http.Request, most int64, tooLong, next string) (url.Values, bool) {
	if !p.sameOrigin(r) {
		p.problem(w, r, plane.Errorf(plane.Forbidden, "This form was sent by another site. Nothing was done."))
		return nil, false
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		p.problem(w, r, plane.Errorf(plane.InvalidInput, "The form did not arrive whole.").Because(err))
		return nil, false
	}
	if int64(len(b)) > most {
		io.CopyN(io.Discard, r.Body, maxDrain) // so that the answer is read, not a reset
		p.render(w, r, http.StatusRequestEntityTooLarge, problemPage(p.site(r), titles[413], tooLong, next, ""))
		return nil, false
	}
	v, err := url.ParseQuery(string(b))
	if err != nil {
		p.problem(w, r, plane.Errorf(plane.InvalidInput, "The form cannot be read."))
		return nil, false
	}
	return v, true
}
