package web

import (
	"strconv"

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
		return "used; may be repeated"
	}
	return "used; may change things, never repeated"
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
