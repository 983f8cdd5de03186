package web

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"patchbay/internal/command"
	"patchbay/internal/connect"
	"patchbay/internal/plane"
)

func (p *Pages) governPages() {
	p.page("/audit", pageDef{at: "/audit", show: func(v *visit) (templ.Component, error) {
		v.title = "Audit"
		in := auditQuery(v.r.URL.Query())
		l, err := ask[command.AuditList](v, "audit.list", &in)
		if err != nil {
			return nil, err
		}
		return auditPage(v, l, in), nil
	}})
	p.mux.HandleFunc("GET /audit.csv", p.auditCSV)
	p.page("/egress", pageDef{at: "/egress", show: func(v *visit) (templ.Component, error) {
		v.title = "Gateway"
		state := v.r.URL.Query().Get("state")
		d, err := ask[command.DestinationsList](v, "destinations.list", &command.DestinationsInput{})
		if err != nil {
			return nil, err
		}
		l, err := ask[command.EgressLog](v, "egress.log", &command.EgressLogInput{State: state, Limit: pageRuns, Before: v.r.URL.Query().Get("before")})
		if plane.KindOf(err) == plane.Forbidden {
			l, err = nil, nil
		}
		return egressPage(v, l, d, state), err
	}})
	p.page("/settings", pageDef{at: "/settings", show: showSettings, act: func(v *visit, f url.Values) (string, string, error) {
		if f.Get("do") != "reload" {
			return "", "", unknownForm()
		}
		return "The config file is read again.", "/settings", do(v, "config.reload", &command.ConfigInput{})
	}})
	p.page("/settings/tokens", pageDef{at: "/settings", show: func(v *visit) (templ.Component, error) { return showTokens(v, nil) }, act: changeTokens})
	p.page("/settings/clients", pageDef{at: "/settings", show: showClients, act: revokeClient})
	p.page("/settings/keys", pageDef{at: "/settings", show: func(v *visit) (templ.Component, error) {
		v.title = "Keys"
		k, err := ask[command.KeysStatus](v, "keys.status", &command.KeysStatusInput{Recent: true})
		if err != nil {
			return nil, err
		}
		return keysPage(v, k), nil
	}, act: func(v *visit, f url.Values) (string, string, error) {
		if f.Get("do") != "rotate" {
			return "", "", unknownForm()
		}
		out, err := ask[command.KeysRotated](v, "keys.rotate", &command.KeysInput{})
		if err != nil {
			return "", "", err
		}
		return fmt.Sprintf("%d values are sealed anew.", out.Sealed), "/settings/keys", nil
	}})
	p.page("/search", pageDef{at: "", show: search})
}

func auditQuery(q url.Values) command.AuditInput {
	return command.AuditInput{Who: q.Get("who"), Action: q.Get("action"), What: q.Get("what"), Since: q.Get("since"), Until: q.Get("until"), Limit: pageRuns}
}

// auditCSV hands the filtered entries on.
func (p *Pages) auditCSV(w http.ResponseWriter, r *http.Request) {
	who, ok := p.caller(w, r)
	if !ok {
		return
	}
	v := &visit{p: p, ctx: r.Context(), r: r, who: who}
	in := auditQuery(r.URL.Query())
	in.Limit = 100_000
	l, err := ask[command.AuditList](v, "audit.list", &in)
	if err != nil {
		p.problem(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="audit.csv"`)
	c := csv.NewWriter(w)
	c.Write([]string{"id", "at", "who", "action", "what", "decision", "digest"})
	for _, e := range l.Entries {
		c.Write([]string{e.ID, e.At.UTC().Format(time.RFC3339Nano), cell(e.Who), cell(e.Action), cell(e.What), cell(e.Decision), e.Digest})
	}
	c.Flush()
	if err := c.Error(); err != nil {
		p.o.Log.Warn("an export could not be written", "err", err)
	}
}

// cell keeps a spreadsheet from taking a text for a formula.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

func showSettings(v *visit) (templ.Component, error) {
	v.title = "Settings"
	st, err := ask[command.Status](v, "status", &command.StatusInput{})
	if err != nil {
		return nil, err
	}
	c, err := ask[command.ConfigShow](v, "config.show", &command.ConfigInput{})
	if err != nil {
		return nil, err
	}
	return settingsPage(v, st, c, v.p.o.Limits), nil
}

func showTokens(v *visit, once *command.TokenCreated) (templ.Component, error) {
	v.title = "Tokens"
	l, err := ask[command.TokensList](v, "tokens.list", &command.TokensListInput{})
	if err != nil {
		return nil, err
	}
	a, err := ask[command.AgentsList](v, "agents.list", &command.AgentsListInput{})
	if err != nil {
		return nil, err
	}
	return tokensPage(v, l, a.Agents, once), nil
}

// changeTokens ends a token, or makes one. A fresh value is on the page that answers the
// form, and nowhere after it.
func changeTokens(v *visit, f url.Values) (string, string, error) {
	switch f.Get("do") {
	case "revoke":
		return "The token is ended.", "/settings/tokens", do(v, "tokens.revoke", &command.TokenInput{ID: f.Get("id")})
	case "create":
		made, err := ask[command.TokenCreated](v, "tokens.create", &command.TokensCreateInput{Label: strings.TrimSpace(f.Get("label")), Agent: f.Get("agent"), Team: strings.TrimSpace(f.Get("team")), Expires: strings.TrimSpace(f.Get("expires")), Scopes: scopesFor(f)})
		if err != nil {
			return "", "", err
		}
		v.once = func(v *visit) (templ.Component, error) { return showTokens(v, made) }
		return "A token was made.", "", nil
	}
	return "", "", unknownForm()
}

func scopesFor(f url.Values) []string {
	if f.Get("agent") != "" {
		return nil
	}
	return slices.DeleteFunc(f["scope"], func(s string) bool { return !slices.Contains(tokenScopes, s) })
}

// tokenScopes are what a token may be given on the page; one of an admin is made on the
// command line.
var tokenScopes = []string{"mcp:read", "mcp:write", "runs:read", "runs:write", "config:write"}

// hit is something that was found by its name.
type hit struct{ kind, name, note, path string }

const maxHits = 100

// search finds what is in sight by its name.
func search(v *visit) (templ.Component, error) {
	q := strings.TrimSpace(v.r.URL.Query().Get("q"))
	v.title = "Found"
	if len(q) > 100 {
		return nil, plane.Errorf(plane.InvalidInput, "No name is that long.")
	}
	var hits []hit
	found := func(name string) bool {
		return q != "" && len(hits) < maxHits && strings.Contains(strings.ToLower(name), strings.ToLower(q))
	}
	l, err := ask[command.MCPList](v, "mcp.list", &command.MCPListInput{})
	if plane.KindOf(err) == plane.Unavailable { // MCP is off
		l, err = &command.MCPList{}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, s := range l.Servers {
		if found(s.Name + " " + s.Label) {
			hits = append(hits, hit{"connection", nameOf(s), s.Scope, "/connections/" + s.ID})
		}
	}
	if a, err := ask[command.AgentsList](v, "agents.list", &command.AgentsListInput{}); err == nil {
		for _, x := range a.Agents {
			if found(x.Slug) {
				hits = append(hits, hit{"agent", x.Slug, x.Description, "/agents/" + x.Slug})
			}
		}
	}
	if t, err := ask[command.MCPTools](v, "mcp.tools", &command.MCPToolsInput{}); err == nil {
		for _, x := range t.Tools {
			if found(x.Name) {
				hits = append(hits, hit{"tool of " + x.Server, x.Name, short(x.Description, 120), "/connections/" + x.Connection + "/tools/" + url.PathEscape(x.Name)})
			}
		}
	}
	if r, err := ask[command.RegistryList](v, "registry.list", &command.RegistryListInput{Search: q, Limit: 20}); err == nil {
		for _, x := range r.Servers {
			if found(x.Name) {
				hits = append(hits, hit{"on offer in the registry", x.Name, short(x.Description, 120), "/registry?q=" + url.QueryEscape(x.Name)})
			}
		}
	}
	if _, err := ask[command.RunsShow](v, "runs.show", &command.RunsShowInput{RunInput: command.RunInput{Run: q}}); err == nil && strings.HasPrefix(q, "run_") {
		hits = append(hits, hit{"run", q, "", "/runs/" + url.PathEscape(q)})
	}
	if _, err := ask[command.CallRow](v, "calls.show", &command.CallInput{ID: q}); err == nil && strings.HasPrefix(q, "cal_") {
		hits = append(hits, hit{"call", q, "", "/calls/" + url.PathEscape(q)})
	}
	return searchPage(v, q, hits), nil
}

func anyOr(s string) string {
	if s == "" {
		return "All"
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func noneOr(s string) string {
	if s == "" {
		return "none: the defaults stand"
	}
	return s
}

func statusOr(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

func labelOr(t command.TokenRow) string {
	if t.Label == "" {
		return t.ID
	}
	return t.Label
}

func keyStands(k connect.KeyUse) string {
	switch {
	case !k.InRing:
		return "not in the ring: what it sealed does not open"
	case k.Active:
		return "active: new values are sealed with it"
	}
	return "in the ring: opens what it sealed"
}

func where(s command.RegistryRow) string { return whereOf(&s.Declaration) }

func whereOf(d *plane.Declaration) string {
	if d.Transport == plane.Stdio {
		return strings.Join(slices.Concat([]string{d.Command}, d.Args), " ")
	}
	return d.URL
}

func agentsOr(list []string) string {
	if len(list) == 0 {
		return "every open agent"
	}
	return joined(list)
}

// toSeal counts what another key than the active one has sealed, and all that is sealed.
func toSeal(keys []connect.KeyUse) (left, all int) {
	for _, k := range keys {
		all += k.Total
		if !k.Active {
			left += k.Total
		}
	}
	return left, all
}
