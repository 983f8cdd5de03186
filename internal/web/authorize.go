package web

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"

	"patchbay/internal/authserver"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// authorize is where MCP clients send people: it asks whether the client may act for them.
func (p *Pages) authorize(w http.ResponseWriter, r *http.Request) {
	opened(w)
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		p.render(w, r, http.StatusMethodNotAllowed, problemPage(p.site(r), titles[405], "This address shows a page and takes its form.", "", ""))
		return
	}
	if err := authserver.CheckQuery(r); err != nil {
		p.problem(w, r, err)
		return
	}
	who, ok := p.caller(w, r)
	if !ok {
		return
	}
	if who.Kind == plane.KindVisitor {
		p.first(w, r)
		return
	}
	if r.Method == http.MethodPost {
		p.decided(w, r, who)
		return
	}
	ask, back, err := p.o.Clients.Begin(r.Context(), r.URL.RawQuery, who, looks(r))
	switch {
	case err != nil:
		p.declined(w, r, err)
	case back != "":
		http.Redirect(w, r, back, http.StatusSeeOther)
	default:
		p.question(w, r, http.StatusOK, who, ask, "")
	}
}

// looks reports whether a browser shows what it asked for to a person, and does not only
// fetch it ahead, or for a part of another page.
func looks(r *http.Request) bool {
	dest := r.Header.Get("Sec-Fetch-Dest")
	return r.Header.Get("Sec-Purpose") == "" && r.Header.Get("Purpose") == "" && (dest == "" || dest == "document")
}

// opened lets a page stay in the window that another site opened for it: a client that
// watches for the window's return would lose it otherwise. Nothing here is in its reach: it
// is another origin's, and cannot be framed.
func opened(w http.ResponseWriter) { w.Header().Set("Cross-Origin-Opener-Policy", "unsafe-none") }

// decided takes the person's answer.
func (p *Pages) decided(w http.ResponseWriter, r *http.Request, who plane.Principal) {
	f, ok := p.form(w, r)
	if !ok {
		return
	}
	d := authserver.Decision{Allow: f.Get("do") == "allow", Print: f.Get("print"), Team: f.Get("team")}
	if !d.Allow && f.Get("do") != "deny" {
		p.problem(w, r, unknownForm())
		return
	}
	var err error
	if d.Rights, err = plane.ParseRights(f["scope"]); err != nil {
		p.problem(w, r, err)
		return
	}
	back, other, err := p.o.Clients.Decide(r.Context(), r.URL.RawQuery, who, d)
	switch {
	case err != nil:
		p.declined(w, r, err)
	case other != nil:
		p.question(w, r, http.StatusConflict, who, *other, "What is asked has changed since this page was loaded. Nothing was done; look again.")
	default:
		p.goBack(w, r, back, d.Allow)
	}
}

// goBack sends the browser on to the client, without a redirect: a browser would hold it,
// and whatever the client's own page leads to, against the form's page.
func (p *Pages) goBack(w http.ResponseWriter, r *http.Request, back string, allowed bool) {
	s := p.site(r)
	s.refresh = "0; url=" + back
	s.foot = "You can close this page once the client goes on."
	p.render(w, r, http.StatusOK, backPage(s, back, hostOf(back), allowed))
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "the client"
	case u.Host == "":
		return u.Scheme + ":"
	}
	return u.Host
}

// declined says why a client does not get what it asks for, to the person and, where it is
// safe to send them there, to the client.
func (p *Pages) declined(w http.ResponseWriter, r *http.Request, err error) {
	var no *authserver.Refused
	if !errors.As(err, &no) {
		p.problem(w, r, err)
		return
	}
	if no.Go && r.Method == http.MethodGet { // a form's answer does not leave this site
		http.Redirect(w, r, no.Back, http.StatusSeeOther)
		return
	}
	e := plane.Public(no.Err)
	p.render(w, r, http.StatusBadRequest, declinedPage(p.site(r), e.Message, e.Next, no.Host, no.Back))
}

// nextCookie brings a browser back to where it was before it was signed in by a link.
const nextCookie = "patchbay-next"

// first says how the owner of this computer signs in, and remembers what for.
func (p *Pages) first(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && len(r.URL.RawQuery) <= maxNext {
		http.SetCookie(w, &http.Cookie{Name: nextCookie, Value: base64.RawURLEncoding.EncodeToString([]byte(r.URL.RequestURI())), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: 600})
	}
	p.render(w, r, http.StatusUnauthorized, firstPage(p.site(r), len(r.URL.RawQuery) <= maxNext))
}

// maxNext keeps the cookie within what browsers take.
const maxNext = 2600

// next is where a browser was before it was signed in by a link.
func next(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(nextCookie)
	if err != nil {
		return "/"
	}
	http.SetCookie(w, &http.Cookie{Name: nextCookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: -1})
	b, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || !strings.HasPrefix(string(b), authserver.AuthorizePath+"?") || strings.ContainsAny(string(b), "\r\n\\") {
		return "/"
	}
	return string(b)
}

// goOn sends a browser that has just signed in to the question that it came for. It is no
// redirect: where the question leads on to the client by itself, a browser would hold that
// against the form's page.
func (p *Pages) goOn(w http.ResponseWriter, r *http.Request, to string) {
	s := p.site(r)
	s.refresh = "0; url=" + to
	p.render(w, r, http.StatusOK, signedInPage(s, to))
}

// letIn is the question as the page shows it.
type letIn struct {
	authserver.Ask
	action, problem string
	who             string
	about           string // what the agent is for
	servers         []string
	tools           int
	more            bool        // servers than are named
	teams           [][2]string // by name, with what comes with each
	since, sinceISO string
}

// maxNamed is how many servers the question names.
const maxNamed = 12

func (p *Pages) question(w http.ResponseWriter, r *http.Request, status int, who plane.Principal, ask authserver.Ask, problem string) {
	v := letIn{Ask: ask, action: r.URL.RequestURI(), problem: problem, who: who.Name()}
	if who.Kind == plane.KindLocal {
		v.who = "you, the owner of this install"
	}
	if ask.Agent != "" {
		show, err := command.Perform[command.AgentShow](r.Context(), p.o.Commands, who, "agents.show", &command.AgentInput{Agent: ask.Agent})
		if err != nil {
			p.problem(w, r, err)
			return
		}
		v.about = show.Agent.Description
		for _, s := range show.Servers {
			if s.Why != "" {
				continue
			}
			v.tools += s.Tools
			if v.more = len(v.servers) == maxNamed; !v.more {
				v.servers = append(v.servers, fmt.Sprintf("%s (%d)", s.Name, s.Tools))
			}
		}
	}
	for _, team := range ask.Teams {
		with := who
		with.Team = team
		more, err := command.Perform[command.AgentShow](r.Context(), p.o.Commands, with, "agents.show", &command.AgentInput{Agent: ask.Agent})
		if ask.Agent == "" || err != nil {
			continue
		}
		n := 0
		for _, s := range more.Servers {
			if s.Why == "" {
				n += s.Tools
			}
		}
		v.teams = append(v.teams, [2]string{team, fmt.Sprintf("%s: %s in all", team, toolCount(n))})
	}
	if !ask.Before.IsZero() {
		t := ask.Before.In(zoneOf(r))
		v.since, v.sinceISO = t.Format("2 January 2006, 15:04"), t.Format(time.RFC3339)
	}
	s := p.site(r)
	s.foot = "Opening this page changes nothing; only its buttons do. If you did not expect it, close it, and nothing is let in."
	p.render(w, r, status, letInPage(s, v))
}

// heading asks.
func (v letIn) heading() string {
	switch {
	case v.since != "":
		return "Go on with " + v.Name + "?"
	case v.Agent == "":
		return "Let " + v.Name + " use Patchbay as you?"
	}
	return "Let " + v.Name + " use " + v.Agent + "?"
}

// target is the other end of the cable.
func (v letIn) target() (string, string) {
	if v.Agent == "" {
		return "Patchbay", "its commands"
	}
	return v.Agent, "agent"
}

// vouches says who stands behind the client's name.
func (v letIn) vouches() string {
	switch v.Kind {
	case authserver.Operators:
		return "registered by an operator of this Patchbay"
	case authserver.Document:
		return "described by " + v.Vouched
	}
	return "it says so itself; nobody has checked"
}

// returns says where the answer goes.
func (v letIn) returns() string {
	switch {
	case v.Here:
		return "a program on this computer,"
	case v.Private:
		return "a program on this computer, by its scheme"
	}
	return ""
}

// beware says what an unknown client's name is worth.
func (v letIn) beware() string {
	text := "Anybody can give a client any name. "
	if v.Kind == authserver.Document {
		text = v.Vouched + " says what this client is, and nobody else does. "
	}
	text += "Go on only if you have just added this server to " + v.Name + " yourself, "
	if v.Here || v.Private {
		return text + "on this computer."
	}
	return text + "and " + v.Returns + " is its address."
}

// agent is what it uses.
func (v letIn) agent() string {
	if v.about == "" {
		return v.Agent
	}
	return v.Agent + ": " + v.about
}

// lasts says how long.
func (v letIn) lasts() string {
	if d := int(v.Life.Hours() / 24); d >= 2 {
		return fmt.Sprintf("%d days, then you are asked to sign in again", d)
	}
	return lasted(v.Life) + ", then you are asked to sign in again"
}

// uses says what of.
func (v letIn) uses() string {
	if v.Agent == "" {
		return "the commands that are ticked below, as you"
	}
	switch {
	case len(v.servers) == 0:
		return "no tools yet: no server is attached for you"
	case v.more:
		return fmt.Sprintf("%s, of %s and others", toolCount(v.tools), strings.Join(v.servers, ", "))
	}
	return fmt.Sprintf("%s, of %s", toolCount(v.tools), strings.Join(v.servers, ", "))
}

// ticked are rights that the page proposes to give: those that change settings are for the
// person to tick, unless they did before.
func (v letIn) ticked(r plane.Rights) bool {
	return r&(plane.ConfigWrite|plane.AdminRight) == 0 || v.Given&r != 0
}

// lead says what is asked.
func (v letIn) lead() string {
	switch {
	case v.since == "":
		return "It wants to act for " + v.who + ". It never sees a password or token of the servers behind Patchbay, and every call is checked and on record."
	case v.Here || v.Private:
		return "You let it in before. It is a program on this computer, so that you are asked to go on by a button: not every program here need be the one that you let in."
	}
	return "You let it in before, and it asks you again."
}

// warns reports whether the client's name is only its own word, or its document's.
func (v letIn) warns() bool { return v.since == "" && v.Kind != authserver.Operators }

// each lists single rights.
func each(r plane.Rights) (out []plane.Rights) {
	for _, n := range r.Names() {
		if one, err := plane.ParseRights([]string{n}); err == nil {
			out = append(out, one)
		}
	}
	return out
}

// meanings say what rights are for.
var meanings = map[plane.Rights]string{plane.MCPRead: "see servers and their tools", plane.MCPWrite: "change servers, tools, proposals and secrets, as you may", plane.RunsRead: "see runs and calls, as you may",
	plane.RunsWrite: "start runs and call tools; what waits for a person stays yours to decide", plane.ConfigWrite: "change the settings of your teams", plane.AdminRight: "everything that an org admin may"}

// showClients lists the clients that the viewer let in or, for an admin, everybody did.
func showClients(v *visit) (templ.Component, error) {
	v.title = "Connected apps"
	c, err := ask[command.ConfigShow](v, "config.show", &command.ConfigInput{})
	if err != nil {
		return nil, err
	}
	all := v.r.URL.Query().Get("all") == "1"
	l, err := ask[command.ClientsList](v, "clients.list", &command.ClientsListInput{All: all})
	if err != nil {
		return nil, err
	}
	return clientsPage(v, l, all, c.Admin), nil
}

func revokeClient(v *visit, f url.Values) (string, string, error) {
	err := do(v, "clients.revoke", &command.ClientInput{ID: f.Get("id")})
	return "It was taken back; the client's tokens are over.", v.r.URL.RequestURI(), err
}

func toolCount(n int) string {
	if n == 1 {
		return "1 tool"
	}
	return number(n) + " tools"
}

// agentOr is what a client may use, by name.
func agentOr(c command.ClientRow) string {
	if c.Agent == "" {
		return "the commands"
	}
	return c.Agent
}
