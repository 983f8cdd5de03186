package web

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/a-h/templ"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// standing is how one tool stands, in a few words.
func standing(t command.ToolRow) string {
	switch {
	case t.Unsupported != "":
		return "not offered: " + t.Unsupported
	case t.LeftOut != "":
		return "off: " + t.LeftOut
	case t.Held != "":
		return "held: " + t.Held
	case t.Class == string(plane.Query):
		return "used; may be repeated" + askedBy(t)
	}
	return "used; may change things, never repeated" + askedBy(t)
}

// askedBy says for which agents a tool waits for a person, or is blocked.
func askedBy(t command.ToolRow) string {
	by := map[string][]string{}
	for _, a := range t.Asks {
		by[a.Mode] = append(by[a.Mode], a.Agent)
	}
	out := ""
	if l := by[string(plane.Ask)]; len(l) > 0 {
		out += "; asks a person for " + joined(l)
	}
	if l := by[string(plane.Block)]; len(l) > 0 {
		out += "; blocked for " + joined(l)
	}
	return out
}

// visible shows what somebody else wrote with nothing in it hidden.
func visible(s string) string { return bridge.Visible(s) }

func kinds(r command.DiffRow) string { return catalog.Kinds(r.Changes) }

// originWord says whose failure it was.
func originWord(origin string) string {
	if w, ok := origins[origin]; ok {
		return w
	}
	return "not kept"
}

var origins = map[string]string{"auth": "the sign-in", "policy": "rules of Patchbay", "transport": "no answer from the server", "protocol": "an answer that is none", "tool": "the tool itself"}

// msOf shows a length in ms, exactly where it is short.
func msOf(ms float64) string {
	switch {
	case ms == 0:
		return "0 ms"
	case ms < 10:
		return strconv.FormatFloat(ms, 'f', 2, 64) + " ms"
	case ms < 1000:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	}
	return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
}

func trustWords(trust string) string {
	if trust == "guarded" {
		return "guarded: it gets from teams only what an org admin accepted"
	}
	return trust
}

func noneOf(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return joined(list)
}

// accountOf says whose account at the server it is, as far as anybody said.
func accountOf(s command.ServerRow) string {
	if s.Auth == string(plane.AuthNone) {
		return "none is needed"
	}
	if s.State == string(plane.StateAwaiting) {
		return "none yet"
	}
	if s.Label != "" {
		return visible(s.Label)
	}
	return "the one that was signed in; a label says which"
}

// nowIs says what stands, where a refused form has something else.
func nowIs(v *visit, field, now string) string {
	if v.stale && v.form.Has(field) && v.form.Get(field) != now {
		if now == "" {
			now = "left out"
		}
		return "Now it is " + now + "."
	}
	return ""
}

// inline has a form saved without loading the page anew, where there is script.
func inline() templ.Attributes {
	return templ.Attributes{"hx-post": "", "hx-target": "#main", "hx-select": "#main", "hx-swap": "outerHTML show:none"}
}

// count says how many of something there are.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

func allOr(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return joined(list)
}

// onOffer says why a list of the registry is empty.
func onOffer(q string) string {
	if q == "" {
		return "Nothing is on offer. A file in registry.path, or patchbay registry add, puts a server here."
	}
	return "Nothing on offer matches."
}

// localLink is the path of a link of ours.
func localLink(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return "/connections"
	}
	return u.RequestURI()
}

// onPage is a hint as a page gives it: a command line helps nobody there, and what is a
// flag elsewhere is a field.
func onPage(next string) string {
	if strings.HasPrefix(next, "patchbay ") || strings.HasPrefix(next, "--") {
		return ""
	}
	return strings.NewReplacer(", with --auth.", ": “Signs in by”.", "--scope me adds it for your own runs.", "Whose: “me” adds it for your own runs.").Replace(next)
}

// oldOf is a field of a refused form, where that form was about something.
func (v *visit) oldOf(key, value, name string) string {
	if v.form.Get(key) == value {
		return v.form.Get(name)
	}
	return ""
}

// auditUntil is the audit before a time, with the filter that stands.
func auditUntil(v *visit, until string) string {
	q := v.r.URL.Query()
	q.Del("until")
	if until != "" {
		q.Set("until", until)
	}
	return "/audit?" + q.Encode()
}

// person is somebody as the viewer knows them.
func (v *visit) person(id string) string {
	id = strings.TrimPrefix(id, "person:")
	switch {
	case id == v.who.ID && v.who.Kind == plane.KindLocal:
		return "you, the local admin"
	case id == v.who.ID:
		return "you"
	case strings.Contains(id, "|"): // issuer and subject
		return id[strings.LastIndexByte(id, '|')+1:]
	}
	return id
}

// scope is whose something is, as the viewer knows them.
func (v *visit) scope(s string) string {
	if who, ok := strings.CutPrefix(s, "user:"); ok {
		if who == v.who.ID {
			return "you"
		}
		return "user " + v.person(who)
	}
	return s
}

func callerOf(c *command.ConfigShow) string {
	if c.Admin {
		return c.Caller + ", an org admin"
	}
	return c.Caller
}

// tookOf says how long a call took, and how much of it was its server's.
func tookOf(c command.CallRow) string {
	if c.Upstream > 0 {
		return took(c) + ", of which " + msOf(c.Upstream) + " waiting for " + c.Server
	}
	return took(c)
}

// runHref is a run's page with one of its choices set and the others as they are.
func runHref(v *visit, id, name, value string) string {
	q := url.Values{}
	for _, k := range []string{"evidence", "steps"} {
		if was := v.r.URL.Query().Get(k); was != "" {
			q.Set(k, was)
		}
	}
	q.Del(name)
	if value != "" {
		q.Set(name, value)
	}
	if len(q) == 0 {
		return "/runs/" + id
	}
	return "/runs/" + id + "?" + q.Encode()
}
