package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/a-h/templ"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

func (p *Pages) connectionPages() {
	p.page("/connections", pageDef{at: "/connections", show: func(v *visit) (templ.Component, error) {
		v.title = "Connections"
		l, err := ask[command.MCPList](v, "mcp.list", &command.MCPListInput{})
		if err != nil {
			return nil, err
		}
		return connectionsPage(v, connectionsOf(l.Servers, v.r.URL.Query())), nil
	}})
	p.page("/connections/add", pageDef{at: "/connections", show: showAdd, act: add})
	p.page("/connections/{id}", pageDef{at: "/connections", show: showConnection, act: changeConnection})
	p.page("/connections/{id}/tools/{tool}", pageDef{at: "/connections", show: showTool, act: classify})
	p.page("/connections/{id}/remove", pageDef{at: "/connections", show: func(v *visit) (templ.Component, error) {
		s, err := ask[command.MCPShow](v, "mcp.show", &command.NameInput{Name: v.r.PathValue("id")})
		if err != nil {
			return nil, err
		}
		v.title = "Remove " + nameOf(s.Server)
		return removePage(v, s), nil
	}, act: func(v *visit, _ url.Values) (string, string, error) {
		return "The connection is removed.", "/connections", do(v, "mcp.remove", &command.NameInput{Name: v.r.PathValue("id")})
	}})
}

// pageConnections is how many connections a page lists.
const pageConnections = 100

// connectionsView is a page of the connections in sight.
type connectionsView struct {
	q           string
	rows        []command.ServerRow
	found, all  int
	page, pages int
}

// connectionsOf finds connections by name or address: those that need somebody first.
func connectionsOf(all []command.ServerRow, q url.Values) connectionsView {
	x := connectionsView{q: strings.TrimSpace(q.Get("q")), all: len(all)}
	rows := slices.DeleteFunc(slices.Clone(all), func(s command.ServerRow) bool {
		return !strings.Contains(strings.ToLower(s.Name+" "+s.Label+" "+s.URL), strings.ToLower(x.q))
	})
	slices.SortStableFunc(rows, func(a, b command.ServerRow) int { return compareBool(!alarming(a), !alarming(b)) })
	x.found, x.pages = len(rows), max((len(rows)+pageConnections-1)/pageConnections, 1)
	x.page, _ = strconv.Atoi(q.Get("page"))
	x.page = min(max(x.page, 1), x.pages)
	x.rows = rows[min((x.page-1)*pageConnections, len(rows)):min(x.page*pageConnections, len(rows))]
	return x
}

// href is the address of another page of them.
func (x connectionsView) href(page int) string {
	q := url.Values{}
	if x.q != "" {
		q.Set("q", x.q)
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	if len(q) == 0 {
		return "/connections"
	}
	return "/connections?" + q.Encode()
}

func showAdd(v *visit) (templ.Component, error) {
	v.title = "Add a server"
	q := strings.ToLower(strings.TrimSpace(v.r.URL.Query().Get("q")))
	l, err := ask[command.RegistryList](v, "registry.list", &command.RegistryListInput{})
	if err != nil {
		return nil, err
	}
	on := slices.DeleteFunc(l.Servers, func(e command.RegistryRow) bool {
		return q != "" && !strings.Contains(strings.ToLower(e.Name+" "+e.Description), q)
	})
	return addPage(v, on[:min(len(on), 50)], q), nil
}

// add connects a server, and leads to its sign-in where it wants one.
func add(v *visit, f url.Values) (string, string, error) {
	if f.Get("do") == "import" {
		out, err := ask[command.Imported](v, "mcp.import", &command.MCPImportInput{Content: f.Get("file"), Scope: f.Get("whose")})
		if err != nil {
			return "", "", err
		}
		v.once = func(v *visit) (templ.Component, error) {
			v.title = "What was read"
			return importedPage(v, out.Servers), nil
		}
		return "The file was read: " + count(len(out.Servers), "server") + ".", "", nil
	}
	auth := f.Get("auth")
	switch auth {
	case "api_key", "basic":
		auth += ":" + strings.TrimSpace(f.Get("auth_name"))
	}
	in := &command.MCPAddInput{Name: strings.TrimSpace(f.Get("name")), Address: strings.TrimSpace(f.Get("url")), From: f.Get("from"), Scope: f.Get("scope"), Auth: auth, Label: strings.TrimSpace(f.Get("label")),
		Agents: words(f.Get("agents")), ClientID: strings.TrimSpace(f.Get("client_id")), ClientSecret: f.Get("client_secret"), ClientAuth: f.Get("client_auth"), AuthServer: strings.TrimSpace(f.Get("auth_server")), OmitResource: f.Has("omit_resource")}
	out, err := ask[command.MCPAdded](v, "mcp.add", in)
	if err != nil {
		return "", "", err
	}
	return in.Name + " is added.", signInOr(out, "/connections/"+out.Server.ID), nil
}

// signInOr is the path of a sign-in, where one is wanted.
func signInOr(a *command.MCPAdded, else_ string) string {
	if u, err := url.Parse(a.Link); err == nil && a.Link != "" {
		return u.RequestURI()
	}
	return else_
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' || r == '\r' })
}

// connectionView is one connection with what changed at it.
type connectionView struct {
	show   *command.MCPShow
	diff   *command.MCPDiff
	choose string     // all, none, read-only: boxes that are set and not saved
	form   url.Values // of a refused form
	calls  []command.CallRow
	stats  *command.Stats // nil where they are not the viewer's to see
	no     string         // why
}

func connection(v *visit) (connectionView, error) {
	x := connectionView{choose: v.r.URL.Query().Get("select")}
	id := v.r.PathValue("id")
	var err error
	if x.show, err = ask[command.MCPShow](v, "mcp.show", &command.NameInput{Name: id}); err != nil {
		return x, err
	}
	x.diff, err = ask[command.MCPDiff](v, "mcp.diff", &command.DiffInput{Name: id})
	v.title = nameOf(x.show.Server)
	return x, err
}

func showConnection(v *visit) (templ.Component, error) {
	x, err := connection(v)
	if err != nil {
		return nil, err
	}
	x.form = v.form
	l, err := ask[command.CallsList](v, "calls.list", &command.CallsListInput{Connection: x.show.Server.ID, Limit: 10})
	if err != nil {
		return nil, err
	}
	x.calls = l.Calls
	x.stats, err = ask[command.Stats](v, "stats", &command.StatsInput{Server: x.show.Server.ID})
	if plane.KindOf(err) == plane.Forbidden {
		x.stats, x.no, err = nil, plane.Public(err).Message, nil
	}
	return connectionPage(v, x), err
}

// used is whether a tool's box is set: as it was chosen, where that was refused.
func (x connectionView) used(t command.ToolRow) bool {
	if slices.Contains(x.form["known"], t.Name) {
		return slices.Contains(x.form["use"], t.Name)
	}
	switch x.choose {
	case "all":
		return true
	case "none":
		return false
	case "read-only":
		return t.Hint == "read-only"
	}
	return t.LeftOut == ""
}

// differs says how a tool stands now, where another was chosen on the page that was refused.
func (x connectionView) differs(t command.ToolRow) string {
	now := t.LeftOut == ""
	switch {
	case !slices.Contains(x.form["known"], t.Name) || x.used(t) == now:
		return ""
	case now:
		return "it is used now"
	}
	return "it is left out now"
}

// changeConnection does what a form of a connection's page asks for.
func changeConnection(v *visit, f url.Values) (string, string, error) {
	id := v.r.PathValue("id")
	here := "/connections/" + id
	version, verr := strconv.ParseInt(strings.ReplaceAll(f.Get("version"), ",", ""), 10, 64)
	name := &command.NameInput{Name: id}
	tool := f.Get("tool")
	switch what := f.Get("do"); what {
	case "refresh":
		out, err := ask[command.MCPTest](v, "mcp.refresh", name)
		if err != nil {
			return "", "", err
		}
		return "It was read just now: " + count(out.Tools, "tool") + ".", here, nil
	case "connect":
		out, err := ask[command.MCPAdded](v, "mcp.connect", &command.ConnectInput{Name: id})
		if err != nil {
			return "", "", err
		}
		return "A new sign-in.", signInOr(out, here), nil
	case "enable":
		return "It is on.", here, do(v, "mcp.enable", name)
	case "disable":
		return "It is off; no server is asked.", here, do(v, "mcp.disable", name)
	case "edit":
		if verr != nil {
			return "", "", noVersion()
		}
		in := &command.EditInput{Name: id, URL: strings.TrimSpace(f.Get("url")), Agents: words(f.Get("agents")), Version: version}
		if len(in.Agents) == 0 {
			in.Agents = []string{"open"}
		}
		return "It is changed.", here, do(v, "mcp.edit", in)
	case "hold", "take":
		if verr != nil {
			return "", "", noVersion()
		}
		in := &command.ToolsSetInput{Name: id, New: map[string]string{"hold": "hold", "take": "use"}[what], Version: version}
		return map[string]string{"hold": "New definitions wait for a person from now on.", "take": "New definitions are used from now on."}[what], here, do(v, "mcp.tools-set", in)
	case "logout":
		return "Its credential is taken away.", here, do(v, "mcp.logout", name)
	case "rename":
		return "It is renamed.", here, do(v, "mcp.rename", &command.RenameInput{Name: id, To: strings.TrimSpace(f.Get("name")), Label: strings.TrimSpace(f.Get("label"))})
	case "accept", "block", "save":
		if verr != nil {
			return "", "", noVersion()
		}
		if what != "save" && (strings.ContainsAny(tool, "*?[") || tool == "" || what == "accept" && len(f.Get("fingerprint")) < 32) {
			return "", "", unknownForm()
		}
		in := &command.DiffInput{Name: id, Version: version}
		switch what {
		case "accept":
			in.Accept, in.Fingerprint = []string{tool}, f.Get("fingerprint")
			return tool + " is let in.", here, do(v, "mcp.diff", in)
		case "block":
			in.Block = []string{tool}
			return tool + " is kept out.", here, do(v, "mcp.diff", in)
		}
		return saveTools(v, f, id, version)
	}
	return "", "", unknownForm()
}

func noVersion() error {
	return plane.Errorf(plane.InvalidInput, "The form lacks the version that was looked at.")
}

// saveTools keeps which tools are used: those of the page, and no others.
func saveTools(v *visit, f url.Values, id string, version int64) (string, string, error) {
	in := &command.ToolsSetInput{Name: id, Version: version}
	for _, t := range f["known"] {
		if slices.Contains(f["use"], t) {
			in.Include = append(in.Include, t)
		} else {
			in.Exclude = append(in.Exclude, t)
		}
	}
	if len(in.Include)+len(in.Exclude) == 0 {
		return "", "", unknownForm()
	}
	return fmt.Sprintf("%d of %d tools are used.", len(in.Include), len(f["known"])), "/connections/" + id + "#tools", do(v, "mcp.tools-set", in)
}

func toolOf(v *visit) (connectionView, command.ToolRow, error) {
	x, err := connection(v)
	if err != nil {
		return x, command.ToolRow{}, err
	}
	i := slices.IndexFunc(x.show.Tools, func(t command.ToolRow) bool { return t.Name == v.r.PathValue("tool") })
	if i < 0 {
		return x, command.ToolRow{}, plane.Errorf(plane.NotFound, "%s offers no such tool now.", nameOf(x.show.Server))
	}
	v.title = x.show.Tools[i].Name
	return x, x.show.Tools[i], nil
}

func showTool(v *visit) (templ.Component, error) {
	x, t, err := toolOf(v)
	if err != nil {
		return nil, err
	}
	if l, err := ask[command.MCPTools](v, "mcp.tools", &command.MCPToolsInput{Name: v.r.PathValue("id")}); err == nil {
		for _, full := range l.Tools {
			if full.Name == t.Name {
				t.InputSchema = full.InputSchema
			}
		}
	}
	return toolPage(v, x, t), nil
}

// classify keeps a person's review of exactly the definition that was shown.
func classify(v *visit, f url.Values) (string, string, error) {
	version, err := strconv.ParseInt(strings.ReplaceAll(f.Get("version"), ",", ""), 10, 64)
	if err != nil {
		return "", "", unknownForm()
	}
	id, tool := v.r.PathValue("id"), v.r.PathValue("tool")
	in := &command.ClassifyInput{Name: id, Tool: tool, Class: f.Get("class"), Version: version}
	if in.Class == string(plane.Query) {
		in.Fingerprint = f.Get("fingerprint")
	}
	return tool + " is of class " + in.Class + ".", "/connections/" + id + "/tools/" + url.PathEscape(tool), do(v, "mcp.classify", in)
}

func nameOf(s command.ServerRow) string {
	if s.Label != "" {
		return s.Label
	}
	return s.Name
}

// stateOf is the one word for how a connection stands.
func stateOf(s command.ServerRow) string {
	switch {
	case !s.Enabled:
		return "off"
	case s.State != "connected":
		return s.State
	}
	return s.Health
}

func alarming(s command.ServerRow) bool {
	return s.Enabled && (s.State == "auth_error" || s.Health == "unavailable" || s.Health == "unauthorized")
}

func serves(s command.ServerRow) string {
	if len(s.Agents) == 0 {
		return "every open agent"
	}
	return joined(s.Agents)
}

// trouble is what is wrong with a connection, and the one button that helps.
type trouble struct{ text, do, button string }

func troubleOf(s command.ServerRow) trouble {
	detail := ""
	if s.Detail != "" {
		detail = ": " + strings.TrimSuffix(strings.TrimPrefix(visible(s.Detail), s.Name+": "), ".")
	}
	switch {
	case !s.Enabled:
		return trouble{"It is turned off; no server is asked.", "enable", "Turn it on"}
	case s.State == "awaiting_credential":
		return trouble{"Nobody has signed it in yet.", "connect", "Sign in"}
	case s.State == "auth_error":
		return trouble{"It cannot be used: " + plane.ReasonText(s.Reason) + ".", "connect", "Sign in anew"}
	case s.Health == "unauthorized":
		return trouble{"The server does not let it in" + detail, "connect", "Sign in anew"}
	case s.Health == "unavailable":
		return trouble{"The server does not answer as it should" + detail + ". New credentials will not help.", "refresh", "Try it now"}
	case s.Health == "pending":
		return trouble{"Nobody has read its tools yet.", "refresh", "Read them now"}
	}
	return trouble{}
}

func newDefinitions(x connectionView) string {
	waiting := 0
	for _, r := range x.diff.Tools {
		if r.State == "held" {
			waiting++
		}
	}
	switch {
	case waiting > 0:
		return fmt.Sprintf("wait for a person; %d do now", waiting)
	case x.diff.Hold:
		return "wait for a person"
	}
	return "are used"
}

// group is tools of one hint.
type group struct {
	title string
	tools []command.ToolRow
}

func groups(tools []command.ToolRow) []group {
	by := []group{{title: "Read-only, the server says"}, {title: "May write, the server says"}, {title: "The server gives no hint"}}
	for _, t := range tools {
		switch t.Hint {
		case "read-only":
			by[0].tools = append(by[0].tools, t)
		case "none", "":
			by[2].tools = append(by[2].tools, t)
		default:
			by[1].tools = append(by[1].tools, t)
		}
	}
	return slices.DeleteFunc(by, func(g group) bool { return len(g.tools) == 0 })
}

func hintsOf(tools []command.ToolRow) string {
	none := 0
	for _, t := range tools {
		if t.Hint == "none" || t.Hint == "" {
			none++
		}
	}
	return count(len(tools), "tool") + ", " + number(none) + " without a hint"
}

func noTools(s command.ServerRow) string {
	if s.CapturedAt.IsZero() {
		return "Its tools were not read yet."
	}
	return "The server offers no tools."
}

func selectWord(w string) string {
	return map[string]string{"all": "All", "none": "None", "read-only": "Read-only"}[w]
}

func number64(n int64) string { return strconv.FormatInt(n, 10) }

func pathEscape(s string) string  { return url.PathEscape(s) }
func queryEscape(s string) string { return url.QueryEscape(s) }
