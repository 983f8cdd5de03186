package web

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	_ "time/tzdata" // times are shown in the viewer's zone, wherever this runs

	"github.com/a-h/templ"

	"patchbay/internal/authn"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// visit is one request for a page of the dashboard, by somebody who is signed in.
type visit struct {
	p    *Pages
	ctx  context.Context
	r    *http.Request
	who  plane.Principal
	now  time.Time
	zone *time.Location
	at   string // the entry of the navigation

	title  string     // of the document
	stale  bool       // the form was refused because what it changes is another by now
	told   string     // what was done
	failed string     // or why it was not
	form   url.Values // of a form that was refused, to be shown filled in
	st     *command.Status
	once   func(v *visit) (templ.Component, error) // answers a form itself: with what is shown once
}

// pageDef is a page of the dashboard: what it shows, and what its forms do. A form that was
// done leads to another page, with what to tell there.
type pageDef struct {
	at   string
	show func(v *visit) (templ.Component, error)
	act  func(v *visit, f url.Values) (told, to string, err error)
}

// page mounts a page of the dashboard.
func (p *Pages) page(path string, d pageDef) {
	h := p.dash(d)
	p.mux.HandleFunc("GET "+path, h)
	p.mux.HandleFunc("POST "+path, h)
}

// dash serves a page of the dashboard.
func (p *Pages) dash(d pageDef) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && p.over(r) {
			p.keep(w, r)
			return
		}
		who, ok := p.caller(w, r)
		if !ok {
			return
		}
		if who.Kind == plane.KindVisitor {
			p.problem(w, r, plane.Errorf(plane.Unauthenticated, "This page is for who is signed in.").Then("patchbay signin prints a link that signs this browser in."))
			return
		}
		v := &visit{p: p, ctx: r.Context(), r: r, who: who, now: time.Now(), at: d.at, zone: zoneOf(r)}
		status, show := http.StatusOK, d.show // of this request alone
		if r.Method == http.MethodPost {
			f, ok := p.pageForm(w, r)
			if !ok {
				return
			}
			if d.act == nil {
				p.problem(w, r, unknownForm())
				return
			}
			told, to, err := d.act(v, f)
			if err == nil && v.once != nil {
				v.told, show = told, v.once
			} else if err == nil {
				flash(w, told)
				http.Redirect(w, r, to, http.StatusSeeOther)
				return
			}
			if err != nil {
				e := plane.Public(err)
				v.stale = e.Kind == plane.Conflict
				if v.failed, v.form, status = e.Message, f, http.StatusConflict; onPage(e.Next) != "" {
					v.failed += " " + onPage(e.Next)
				}
			}
		} else {
			v.told = told(w, r)
		}
		inner, err := show(v)
		if err == nil {
			v.st, err = ask[command.Status](v, "status", &command.StatusInput{})
		}
		if err != nil {
			p.missing(w, r, v, err)
			return
		}
		p.render(w, r, status, shell(v, inner))
	}
}

// missing says what is wrong on a page of the dashboard, with the way to the others. What
// only a log can explain stands alone.
func (p *Pages) missing(w http.ResponseWriter, r *http.Request, v *visit, err error) {
	e := plane.Public(err)
	status := statusOf(e.Kind)
	st, serr := ask[command.Status](v, "status", &command.StatusInput{})
	if status == http.StatusInternalServerError || serr != nil {
		p.problem(w, r, err)
		return
	}
	v.st, v.title = st, titles[status]
	p.render(w, r, status, shell(v, missingPage(titles[status], e.Message, e.Next)))
}

// ask runs a command as every surface does.
func ask[T any](v *visit, name string, in any) (*T, error) {
	return command.Perform[T](v.ctx, v.p.o.Commands, v.who, name, in)
}

// do runs a command whose output nobody looks at.
func do(v *visit, name string, in any) error {
	cmd, err := v.p.o.Commands.Get(name)
	if err == nil {
		_, err = cmd.Run(v.ctx, v.who, in)
	}
	return err
}

// toldCookie holds what was done until the next page shows it.
const toldCookie = "told"

func flash(w http.ResponseWriter, text string) {
	http.SetCookie(w, &http.Cookie{Name: toldCookie, Value: base64.RawURLEncoding.EncodeToString([]byte(text)), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: 60})
}

func told(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(toldCookie)
	if err != nil || c.Value == "" {
		return ""
	}
	http.SetCookie(w, &http.Cookie{Name: toldCookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: -1})
	b, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || len(b) > 1000 {
		return ""
	}
	return string(b)
}

// zoneOf is the viewer's zone, which a script left in a cookie; without one, UTC.
func zoneOf(r *http.Request) *time.Location {
	if c, err := r.Cookie("tz"); err == nil && len(c.Value) < 64 {
		if name, err := url.QueryUnescape(c.Value); err == nil && name != "Local" {
			if z, err := time.LoadLocation(name); err == nil {
				return z
			}
		}
	}
	return time.UTC
}

// old is a field of a refused form, or what it was.
func (v *visit) old(name, was string) string {
	if v.form.Has(name) { // a page has several forms
		return v.form.Get(name)
	}
	return was
}

func (v *visit) docTitle() string {
	switch {
	case v.failed != "":
		return "That did not work · " + v.title
	case v.told != "":
		return strings.TrimSuffix(v.told, ".") + " · " + v.title
	}
	return v.title
}

// asks counts what waits for a person.
func (v *visit) asks() int { return len(v.st.Unknown) + len(v.st.Asked) }

// entry is one of the navigation.
type entry struct{ name, path, icon string }

var mainNav = []entry{{"Overview", "/", "overview"}, {"Agents", "/agents", "agent"}, {"Connections", "/connections", "jack"}, {"Registry", "/registry", "registry"},
	{"Proposals", "/proposals", "inbox"}, {"Runs", "/runs", "run"}, {"Calls", "/calls", "calls"}, {"Approvals", "/approvals", "hand"}, {"Why?", "/why", "why"}}

var ruleNav = []entry{{"Audit", "/audit", "doc"}, {"Gateway", "/egress", "out"}, {"Settings", "/settings", "key"}}

// when shows a time as people read it; exact is the whole of it.
func (v *visit) when(t time.Time) (shown, exact, iso string) {
	if t.IsZero() {
		return "never", "", ""
	}
	t = t.In(v.zone)
	now := v.now.In(v.zone)
	exact, iso = t.Format("2 Jan 2006 15:04:05 MST"), t.Format(time.RFC3339)
	ago := v.now.Sub(t)
	switch {
	case ago >= 0 && ago < time.Minute:
		shown = "just now"
	case ago >= 0 && ago < time.Hour:
		shown = fmt.Sprintf("%d min ago", int(ago.Minutes()))
	case t.Year() == now.Year() && t.YearDay() == now.YearDay():
		shown = t.Format("15:04:05")
	case t.Year() == now.Year():
		shown = t.Format("2 Jan 15:04")
	default:
		shown = t.Format("2 Jan 2006")
	}
	return shown, exact, iso
}

// lasted shows a length of time.
func lasted(d time.Duration) string {
	switch {
	case d < 0:
		return "–"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// between is how long something took, or has taken so far.
func (v *visit) between(from, to time.Time) string {
	if to.IsZero() {
		to = v.now
	}
	return lasted(to.Sub(from))
}

// chip is a state's word, icon and tone.
type chip struct{ tone, icon, word string }

// chips are how states look. What is well is quiet.
var chips = map[string]chip{
	"ok": {"ok", "yes", "OK"}, "connected": {"ok", "yes", "signed in"}, "pending": {"idle", "wait", "not read yet"}, "unavailable": {"bad", "bad", "unavailable"}, "unauthorized": {"bad", "key", "not let in"},
	"awaiting_credential": {"wait", "key", "waits for a sign-in"}, "auth_error": {"bad", "key", "signed out"}, "off": {"idle", "no", "off"},
	"queued": {"idle", "wait", "queued"}, "running": {"wait", "run", "running"}, "waiting": {"wait", "hand", "waiting for a person"}, "succeeded": {"ok", "yes", "succeeded"}, "failed": {"bad", "bad", "failed"}, "cancelled": {"idle", "no", "cancelled"},
	"planned": {"idle", "wait", "planned"}, "awaiting_approval": {"wait", "hand", "waits for approval"}, "dispatched": {"wait", "run", "under way"}, "awaiting_input": {"wait", "hand", "waits for input"}, "unknown": {"unknown", "odd", "unknown"},
	"resolved_done": {"idle", "yes", "done, a person said"}, "resolved_not_done": {"idle", "no", "not done, a person said"},
	"proposed": {"wait", "inbox", "proposed"}, "curated": {"ok", "yes", "accepted"}, "forgotten": {"idle", "no", "forgotten"}, "expired": {"idle", "no", "expired"},
	"approved": {"ok", "yes", "approved"}, "denied": {"bad", "no", "denied"}, "held": {"warn", "held", "held"}, "blocked": {"idle", "no", "kept out"}, "adopted": {"idle", "yes", "in use"}, "accepted": {"ok", "yes", "accepted"}, "absent": {"idle", "no", "gone"}, "refused": {"bad", "no", "refused"}, "would_add": {"idle", "yes", "would be added"},
}

func chipOf(state string) chip {
	if c, ok := chips[state]; ok {
		return c
	}
	return chip{"tag", "", state}
}

// theme keeps the viewer's choice.
func (p *Pages) theme(w http.ResponseWriter, r *http.Request) {
	f, ok := p.form(w, r)
	if !ok {
		return
	}
	c := &http.Cookie{Name: "theme", Value: f.Get("theme"), Path: "/", SameSite: http.SameSiteLaxMode, MaxAge: 365 * 24 * 3600}
	if c.Value != "light" && c.Value != "dark" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
	to := "/"
	if u, err := url.Parse(f.Get("back")); err == nil && u.Host == "" && u.Scheme == "" && strings.HasPrefix(u.Path, "/") && !strings.HasPrefix(u.Path, "//") {
		to = u.RequestURI()
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// themeOf is what the viewer chose.
func themeOf(r *http.Request) string {
	if c, err := r.Cookie("theme"); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return "auto"
}

const signOut = authn.SignOutPath
