package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// serverPath is the page of one connection.
const serverPath = "/connections/"

// serverView is one connection with what changed at it.
type serverView struct {
	show   *command.MCPShow
	diff   *command.MCPDiff
	action string
	told   string // what was done
	failed string // or why it was not
}

func (v serverView) name() string {
	if v.show.Server.Label != "" {
		return v.show.Server.Label
	}
	return v.show.Server.Name
}

func (v serverView) read() (shown, iso string) {
	if v.show.Server.CapturedAt.IsZero() {
		return "never", ""
	}
	return clock(v.show.Server.CapturedAt)
}

func (v serverView) waiting() (n int) {
	for _, r := range v.diff.Tools {
		if r.State == "held" {
			n++
		}
	}
	return n
}

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

// detail is why it does not answer, where it does not.
func detail(v serverView) string {
	if v.show.Server.Detail == "" {
		return ""
	}
	return ": " + visible(v.show.Server.Detail)
}

func readAt(v serverView) string { at, _ := v.read(); return at }

func holds(v serverView) string {
	switch n := v.waiting(); {
	case n > 0:
		return fmt.Sprintf("wait for a person; %d do now", n)
	case v.diff.Hold:
		return "wait for a person"
	}
	return "are used"
}

// visible shows what a server wrote with nothing in it hidden.
func visible(s string) string { return bridge.Visible(s) }

func kinds(r command.DiffRow) string { return catalog.Kinds(r.Changes) }

func version(v serverView) string { return fmt.Sprint(v.show.Version) }

// server shows one connection, reads it again, lets changed definitions in and
// keeps tools out.
func (p *Pages) server(w http.ResponseWriter, r *http.Request) {
	if !p.on(w, r) {
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
	id := r.PathValue("id")
	if r.Method != http.MethodPost {
		p.showServer(w, r, who, id, http.StatusOK, "", "")
		return
	}
	f, ok := p.form(w, r)
	if !ok {
		return
	}
	told, err := p.decide(r.Context(), who, id, f)
	if err != nil {
		e := plane.Public(err)
		p.showServer(w, r, who, id, http.StatusConflict, "", e.Message)
		return
	}
	p.showServer(w, r, who, id, http.StatusOK, told, "")
}

// decide does what a form of the page asks for.
func (p *Pages) decide(ctx context.Context, who plane.Principal, id string, f url.Values) (string, error) {
	tool := f.Get("tool")
	in := command.DiffInput{Name: id}
	if _, err := fmt.Sscan(f.Get("version"), &in.Version); err != nil && f.Get("action") != "refresh" {
		return "", plane.Errorf(plane.InvalidInput, "The form lacks the version that was looked at.")
	}
	switch f.Get("action") {
	case "refresh":
		out := &command.MCPTest{}
		if err := p.command(ctx, who, "mcp.refresh", &command.NameInput{Name: id}, &out); err != nil {
			return "", err
		}
		return fmt.Sprintf("It was read just now: %d tools.", out.Tools), nil
	case "accept":
		in.Accept, in.Fingerprint = []string{tool}, f.Get("fingerprint")
	case "block":
		in.Block = []string{tool}
	default:
		return "", plane.Errorf(plane.InvalidInput, "The form asks for nothing that is known.")
	}
	out := &command.MCPDiff{}
	if err := p.command(ctx, who, "mcp.diff", &in, &out); err != nil {
		return "", err
	}
	if in.Block != nil {
		return tool + " is kept out.", nil
	}
	return tool + " is let in.", nil
}

// command runs a command of the registry, as every surface does.
func (p *Pages) command(ctx context.Context, who plane.Principal, name string, in, out any) error {
	cmd, err := p.o.Commands.Get(name)
	if err != nil {
		return err
	}
	got, err := cmd.Run(ctx, who, in)
	if err != nil {
		return err
	}
	switch to := out.(type) {
	case **command.MCPTest:
		*to = got.(*command.MCPTest)
	case **command.MCPShow:
		*to = got.(*command.MCPShow)
	case **command.MCPDiff:
		*to = got.(*command.MCPDiff)
	}
	return nil
}

func (p *Pages) showServer(w http.ResponseWriter, r *http.Request, who plane.Principal, id string, status int, told, failed string) {
	v := serverView{action: serverPath + id, told: told, failed: failed}
	err := p.command(r.Context(), who, "mcp.show", &command.NameInput{Name: id}, &v.show)
	if err == nil {
		err = p.command(r.Context(), who, "mcp.diff", &command.DiffInput{Name: id}, &v.diff)
	}
	if err != nil {
		p.problem(w, r, err)
		return
	}
	p.render(w, r, status, serverPage(p.site(r), v))
}
