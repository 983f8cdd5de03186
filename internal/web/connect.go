package web

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"patchbay/internal/authn"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// linkCookie binds a link to a browser where nobody can sign in.
const linkCookie = "patchbay-link"

// caller tells who looks at a connect page. Where nobody can sign in, a browser
// that holds the link stands for the one who was given it.
func (p *Pages) caller(w http.ResponseWriter, r *http.Request) (plane.Principal, bool) {
	who, err := p.o.Auth.Principal(r)
	switch {
	case err == nil && who.Token == "" && (who.Kind == plane.KindPerson || who.Kind == plane.KindLocal):
		return who, true
	case err == nil:
		p.problem(w, r, plane.Errorf(plane.Forbidden, "This page is for people; a token cannot use it."))
		return who, false
	case plane.KindOf(err) != plane.Unauthenticated:
		p.problem(w, r, err)
		return who, false
	case p.o.Auth.LocalOnly() && r.Header.Get("Authorization") == "":
		return p.visitor(w, r), true
	case p.o.Auth.CanSignIn() && r.Method == http.MethodGet:
		http.Redirect(w, r, authn.SignInPath+"?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return who, false
	}
	p.problem(w, r, err)
	return who, false
}

// visitor is this browser and nothing else.
func (p *Pages) visitor(w http.ResponseWriter, r *http.Request) plane.Principal {
	value := ""
	if c, err := r.Cookie(linkCookie); err == nil && len(c.Value) == 43 {
		value = c.Value
	} else if r.Method == http.MethodPost {
		var b [32]byte
		rand.Read(b[:])
		value = base64.RawURLEncoding.EncodeToString(b[:])
		http.SetCookie(w, &http.Cookie{Name: linkCookie, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(time.Hour.Seconds())})
	}
	sum := sha256.Sum256([]byte(value))
	return plane.Principal{Kind: plane.KindVisitor, ID: "browser:" + hex.EncodeToString(sum[:])}
}

func (p *Pages) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		p.render(w, r, http.StatusMethodNotAllowed, problemPage(p.site(r), titles[405], "This address shows a page and takes its form.", "", ""))
		return
	}
	if !p.on(w, r) {
		return
	}
	who, ok := p.caller(w, r)
	if !ok {
		return
	}
	nonce := r.PathValue("nonce")
	if r.Method != http.MethodPost {
		page, err := p.o.Consent.Open(r.Context(), nonce, who)
		if err != nil {
			p.problem(w, r, err)
			return
		}
		p.show(w, r, http.StatusOK, nonce, page, who, "")
		return
	}
	f, ok := p.form(w, r)
	if !ok {
		return
	}
	if f.Get("action") == "start" {
		l, err := p.o.Consent.Start(r.Context(), nonce, who)
		if err != nil {
			p.again(w, r, nonce, who, err)
			return
		}
		p.leave(w, r, l)
		return
	}
	done, err := p.o.Consent.Complete(r.Context(), nonce, who, secret.New(f.Get("token")))
	if err != nil {
		p.again(w, r, nonce, who, err)
		return
	}
	p.done(w, r, done, who)
}

// on answers 503 while MCP is off.
func (p *Pages) on(w http.ResponseWriter, r *http.Request) bool {
	if !p.o.MCP {
		p.problem(w, r, plane.Errorf(plane.Unavailable, "MCP is off on this server.").Then("An operator turns it on in patchbay.yaml."))
	}
	return p.o.MCP
}

// again shows the page once more where the link still works, with what went
// wrong; the form comes back empty of any secret.
func (p *Pages) again(w http.ResponseWriter, r *http.Request, nonce string, who plane.Principal, err error) {
	var refused *consent.Problem
	if !errors.As(err, &refused) {
		p.problem(w, r, err)
		return
	}
	switch refused.Refusal {
	case consent.BadToken, consent.Rejected, consent.OAuthFailed, consent.WrongKind, consent.Again:
	default:
		p.problem(w, r, err)
		return
	}
	page, oerr := p.o.Consent.Open(r.Context(), nonce, who)
	if oerr != nil {
		p.problem(w, r, err)
		return
	}
	if refused.Cause != nil {
		p.o.Log.Warn("a sign-in did not work", "connection", page.Connection.ID, "refusal", string(refused.Refusal), "cause", refused.Cause)
	}
	p.show(w, r, refused.Refusal.Status(), nonce, page, who, refused.Error())
}

func (p *Pages) show(w http.ResponseWriter, r *http.Request, status int, nonce string, page consent.Page, who plane.Principal, problem string) {
	s := p.site(r)
	s.foot = "Opening this page changes nothing; only its button does. If you did not expect it, close it, and nothing is connected."
	v := newView(page, who, problem)
	v.action = consent.ConnectPath + nonce
	p.render(w, r, status, connectPage(s, v))
}

func (p *Pages) leave(w http.ResponseWriter, r *http.Request, l consent.Leaving) {
	s := p.site(r)
	s.refresh = "1; url=" + l.URL
	s.foot = "Patchbay sends you to one address, the one above. Check that your browser shows it before you type a password."
	p.render(w, r, http.StatusOK, leavingPage(s, name(l.Connection), l.Host, l.URL))
}

// callback takes a browser back from an authorization server.
func (p *Pages) callback(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		p.render(w, r, http.StatusMethodNotAllowed, problemPage(p.site(r), titles[405], "A browser comes back here by itself.", "", ""))
		return
	}
	if !p.on(w, r) {
		return
	}
	who, ok := p.caller(w, r)
	if !ok {
		return
	}
	cb := consent.ReadCallback(r.URL.Query())
	if cb.State == "" {
		p.problem(w, r, plane.Errorf(plane.InvalidInput, "This address was opened without the answer of a sign-in. Nothing was changed."))
		return
	}
	done, again, err := p.o.Consent.Finish(r.Context(), who, cb)
	switch {
	case err != nil:
		p.problem(w, r, err)
	case again != nil:
		p.leave(w, r, *again)
	default:
		p.done(w, r, done, who)
	}
}

func (p *Pages) done(w http.ResponseWriter, r *http.Request, d consent.Done, who plane.Principal) {
	s := p.site(r)
	s.foot = "This link is used up. You can close this page."
	c := d.Connection
	out := result{name: name(c), warning: d.Outcome.Warning, tools: fmt.Sprintf("%d tools are", d.Outcome.Tools)}
	if d.Outcome.Tools == 1 {
		out.tools = "1 tool is"
	}
	out.owner, out.ownerNote, out.users = owner(c, who)
	if u, err := url.Parse(c.Endpoint); err == nil {
		out.host = u.Host
	}
	p.render(w, r, http.StatusOK, donePage(s, out))
}

// result is what the last page shows.
type result struct{ name, owner, ownerNote, users, host, tools, warning string }

// name is what people call a connection.
func name(c plane.Connection) string {
	if c.Label != "" {
		return c.Label
	}
	return c.Slug
}

// owner names whose a connection is and who can use it.
func owner(c plane.Connection, who plane.Principal) (string, string, string) {
	agents := "every open agent"
	if len(c.Agents) > 0 {
		agents = strings.Join(c.Agents, ", ")
	}
	switch c.Scope.Kind {
	case plane.ScopeOrg:
		return "The organisation", "everybody's runs", "runs of " + agents
	case plane.ScopeAgent:
		return c.Scope.Name, "agent", "every run of the agent " + c.Scope.Name
	case plane.ScopeTeam:
		return c.Scope.Name, "team", "runs for the team " + c.Scope.Name
	}
	note := "this machine's owner"
	if who.Email != "" {
		note = who.Email
	}
	return "Your runs", note, "runs that you ask for yourself"
}
