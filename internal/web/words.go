package web

import (
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
