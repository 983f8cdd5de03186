package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/secret"
)

// Consent is how connections come and go.
type Consent interface {
	Add(ctx context.Context, who plane.Principal, r consent.Request) (consent.Added, error)
	Connect(ctx context.Context, who plane.Principal, id plane.ConnectionID) (consent.Added, error)
	Await(ctx context.Context, hash string) (consent.Ended, error)
	SignIn
	Manage
	Edit
}

// SignIn is a sign-in whose redirect goes to the caller's own machine.
type SignIn interface {
	StartFor(ctx context.Context, who plane.Principal, id plane.ConnectionID, redirect, back string) (consent.Leaving, error)
	FinishFor(ctx context.Context, who plane.Principal, cb consent.Callback) (consent.Done, error)
}

// Manage changes what is there.
type Manage interface {
	Logout(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error)
	Remove(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error)
	Rename(ctx context.Context, who plane.Principal, id plane.ConnectionID, name, label string) (plane.Connection, error)
}

// off refuses while MCP is off.
func (d Deps) off() error {
	if !d.MCP {
		return plane.Errorf(plane.Unavailable, "MCP is off on this server.").Then("Set mcp.enabled: true in patchbay.yaml.")
	}
	return nil
}

// scope reads --scope: me is the caller's own, channel the team of this channel.
func scope(s *policy.Snapshot, who plane.Principal, text string) (plane.Scope, error) {
	bad := func(format string, args ...any) (plane.Scope, error) {
		return plane.Scope{}, plane.Errorf(plane.InvalidInput, format, args...).At("scope").Then("--scope me, channel, team:<id>, agent:<slug> or org")
	}
	switch text {
	case "", "me":
		if !who.HasUserScope() {
			return bad("A token of nobody has no scope of its own; say whose the connection shall be.")
		}
		return plane.Scope{Kind: plane.ScopeUser, Name: who.ID}, nil
	case "channel":
		if who.Team == "" {
			return bad("There is no channel here; name the team.")
		}
		return plane.Scope{Kind: plane.ScopeTeam, Name: who.Team}, nil
	}
	sc, ok := plane.ParseScope(text)
	if !ok || sc.Kind == plane.ScopeUser {
		return bad("%q is no scope that can be written to.", oneLine(text, 40))
	}
	return sc, nil
}

// MCPAddInput describes a connection.
type MCPAddInput struct {
	Name          string   `arg:"" json:"name" help:"Name to call it by: a-z, 0-9 and -."`
	Address       string   `arg:"" optional:"" name:"url" json:"url,omitempty" help:"Address of the server."`
	URL           string   `name:"url" json:"-" help:"The same as a flag." placeholder:"URL"`
	From          string   `json:"from,omitempty" help:"The registry's entry that it is taken from; left out with the address, the one of its name." predictor:"entry"`
	Scope         string   `json:"scope,omitempty" help:"Whose it is: me, channel, team:<id>, agent:<slug> or org." default:"me"`
	Auth          string   `json:"auth,omitempty" help:"How it signs in: none, bearer, api_key:<header>, basic:<user> or oauth; left out, the server is asked."`
	Label         string   `json:"label,omitempty" help:"What people call it."`
	Agents        []string `json:"agents,omitempty" help:"Agents it serves; left out, every open agent." predictor:"agent"`
	Header        []string `json:"headers,omitempty" sep:"none" sensitive:"" placeholder:"NAME: VALUE" help:"A header with its credential; a value of - is read from standard input. Better leave it out: a link asks for it."`
	ClientID      string   `json:"client_id,omitempty" help:"OAuth client that the server's operator made for Patchbay."`
	ClientSecret  string   `kong:"-" json:"client_secret,omitempty" sensitive:""`
	ClientAuth    string   `json:"client_auth,omitempty" enum:",client_secret_basic,client_secret_post,none" default:"" help:"How that client authenticates."`
	OmitResource  bool     `json:"omit_resource,omitempty" help:"Leave out the resource parameter, for servers that refuse it; then a token's audience is not checked."`
	Issuer        string   `json:"trusted_issuer,omitempty" help:"Accept this issuer although it differs from where it was found (org admins)."`
	AuthServer    string   `json:"auth_server,omitempty" help:"Authorization server, where nothing names one."`
	SkipPKCECheck bool     `json:"skip_pkce_check,omitempty" help:"Sign in although the server does not say that it supports PKCE (org admins)."`
}

// MCPAdded is what became of it.
type MCPAdded struct {
	Server    ServerRow `json:"server"`
	Detected  string    `json:"detected,omitempty"`
	Link      string    `json:"link,omitempty"` // for the asker alone
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	SignInURL string    `json:"authorization_url,omitempty"`
	Tools     int       `json:"tools"`
	Warning   string    `json:"warning,omitempty"`

	hash string // to wait for the outcome by
}

// Text says what to do next.
func (o *MCPAdded) Text(w io.Writer, s Style) {
	switch o.Detected {
	case "":
	case string(plane.AuthBearer):
		fmt.Fprintf(w, "%[1]s asks for a credential and does not say of which kind, so a bearer token is assumed.\nIf it wants another: patchbay mcp remove %[1]s, then add it with --auth api_key:<header> or basic:<user>.\n", o.Server.Name)
	default:
		fmt.Fprintf(w, "%s was asked how it signs in: %s\n", o.Server.Name, o.Detected)
	}
	switch {
	case o.SignInURL != "":
		fmt.Fprintf(w, "Sign in there:\n\n  %s\n", o.SignInURL)
	case o.Link != "":
		verb := "paste its credential there"
		if o.Server.Auth == string(plane.AuthOAuth) {
			verb = "sign in there"
		}
		fmt.Fprintf(w, "Open this link within %d minutes and %s. It is for you alone and works once.\n\n  %s\n", minutes(o.ExpiresAt, s.Now), verb, o.Link)
	case o.Detected == "" && o.Server.Auth == string(plane.AuthNone):
		fmt.Fprintf(w, "%[1]s is added; nothing was asked yet. patchbay mcp test %[1]s asks it for its tools.\n", o.Server.Name)
	default:
		fmt.Fprintln(w, connected(o.Server.Name, plane.TicketOutcome{Tools: o.Tools, Warning: o.Warning}))
	}
}

func minutes(until, now time.Time) int {
	return max(1, int(until.Sub(now).Round(time.Minute)/time.Minute))
}

// connected is the sentence of a connection that works.
func connected(name string, o plane.TicketOutcome) string {
	if o.Warning != "" {
		return name + " is connected. " + bridge.Visible(o.Warning)
	}
	tools := "1 tool"
	if o.Tools != 1 {
		tools = fmt.Sprintf("%d tools", o.Tools)
	}
	return fmt.Sprintf("%s is connected: %s. Your runs can use it now.", name, tools)
}

// added draws what consent did.
func added(d Deps, who plane.Principal, a consent.Added) *MCPAdded {
	out := &MCPAdded{Detected: string(a.Detected), Tools: a.Outcome.Tools, Warning: a.Outcome.Warning}
	out.Server = serverRow(policy.Attached{Connection: &a.Connection}, d.Catalogs.Get(a.Connection.ID))
	if a.Link != nil {
		out.Link, out.ExpiresAt, out.hash = a.Link.URL, a.Link.ExpiresAt, a.Link.Hash
	}
	return out
}

// settle waits for a link's outcome and says it to whoever asked.
func settle(d Deps) func(ctx context.Context, out Output) (string, error) {
	return func(ctx context.Context, out Output) (string, error) {
		o, ok := out.(*MCPAdded)
		if !ok || o.hash == "" {
			return "", nil
		}
		end, err := d.Consent.Await(ctx, o.hash)
		switch {
		case err != nil || end.Silent:
			return "", err
		case end.State == plane.TicketCompleted:
			return connected(o.Server.Name, end.Outcome), nil
		}
		return fmt.Sprintf("The link for %s expired unused. patchbay mcp connect %s makes another.", o.Server.Name, o.Server.Name), nil
	}
}

// request turns the input into what consent takes.
func (in *MCPAddInput) request(s *policy.Snapshot, who plane.Principal) (consent.Request, error) {
	r := consent.Request{Name: in.Name, URL: in.Address, Label: in.Label, Auth: in.Auth, Agents: in.Agents, ClientSecret: secret.New(in.ClientSecret),
		OAuth: plane.OAuthOptions{ClientID: in.ClientID, ClientAuth: in.ClientAuth, OmitResource: in.OmitResource, TrustedIssuer: in.Issuer,
			AuthServer: in.AuthServer, SkipPKCECheck: in.SkipPKCECheck}}
	if in.Address == "" {
		r.URL = in.URL
	} else if in.URL != "" && in.URL != in.Address {
		return r, plane.Errorf(plane.InvalidInput, "Two addresses are given.").At("url")
	}
	var err error
	if r.Scope, err = scope(s, who, in.Scope); err != nil {
		return r, err
	}
	if len(in.Header) > 0 {
		if len(in.Header) > 1 {
			return r, plane.Errorf(plane.InvalidInput, "A connection has one credential, so one header.").At("headers")
		}
		auth, value, err := headerAuth(in.Header[0])
		if err != nil {
			return r, err
		}
		if in.Auth != "" && in.Auth != string(auth) {
			return r, plane.Errorf(plane.InvalidInput, "The header says %s and auth says %s.", auth, oneLine(in.Auth, 40)).At("auth")
		}
		r.Auth, r.Secret = string(auth), secret.New(value)
	}
	if in.ClientID != "" && r.Auth == "" {
		r.Auth = string(plane.AuthOAuth)
	}
	return r, nil
}

// fromRegistry fills in what the registry says of a server that is named without an
// address.
func (in *MCPAddInput) fromRegistry(d Deps, r *consent.Request) error {
	if r.URL != "" && in.From == "" {
		return nil
	}
	name := or(in.From, in.Name)
	e, err := d.Registry.Entry(name)
	if err != nil {
		if in.From == "" {
			return nil // the address is what is missing
		}
		return err
	}
	switch {
	case e.Transport != plane.HTTP:
		return plane.Errorf(plane.InvalidInput, "%s is a stdio server: it runs in a sandbox where it is attached, and signs in nowhere.", name).At("from").Then("An operator attaches it: agents.<agent>.servers: [" + name + "] in patchbay.yaml (docs/stdio.md)")
	case r.URL != "" && r.URL != e.URL:
		return plane.Errorf(plane.InvalidInput, "The registry's %s is at another address.", name).At("url")
	}
	r.URL, r.Label = e.URL, or(r.Label, oneLine(e.Description, 80))
	if r.Auth == "" && e.Auth != plane.AuthNone {
		r.Auth = string(e.Auth)
	}
	if len(r.Agents) == 0 {
		r.Agents = e.Agents
	}
	r.Declared = plane.DeclaredAs{Name: e.Name, Layer: plane.LayerRegistry, Auth: e.Auth, Allow: e.Allow, Deny: e.Deny}
	return nil
}

// headerAuth reads "Name: value" as a kind of sign-in and its credential. An
// explicit Authorization header is a token: it switches OAuth off.
func headerAuth(h string) (plane.Auth, string, error) {
	name, value, ok := strings.Cut(h, ":")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if !ok || value == "" {
		return "", "", plane.Errorf(plane.InvalidInput, "A header is written NAME: VALUE.").At("headers")
	}
	if strings.ContainsAny(value, "\r\n") || len(value) > consent.MaxToken {
		return "", "", plane.Errorf(plane.InvalidInput, "A header's value is one line of at most %d characters.", consent.MaxToken).At("headers")
	}
	if strings.EqualFold(name, "Authorization") {
		kind, token, ok := strings.Cut(value, " ")
		if !ok || !strings.EqualFold(kind, "Bearer") {
			return "", "", plane.Errorf(plane.InvalidInput, "An Authorization header is written Authorization: Bearer TOKEN.").At("headers").Then("--auth basic:<user> for a password.")
		}
		return plane.AuthBearer, strings.TrimSpace(token), nil
	}
	auth, err := plane.ParseAuth("api_key:" + name)
	return auth, value, err
}

// MCPAddJSONInput is a server as other programs write it.
type MCPAddJSONInput struct {
	Name  string `arg:"" json:"name" help:"Name to call it by: a-z, 0-9 and -."`
	JSON  Object `arg:"" name:"json" json:"json" sensitive:"headers" help:"The server as JSON, as in {\"type\": \"http\", \"url\": …}; the command line reads it from standard input for -."`
	Scope string `json:"scope,omitempty" help:"Whose it is: me, channel, team:<id>, agent:<slug> or org." default:"me"`
}

// secretIn reports whether a described server brings a credential along.
func secretIn(o Object) bool {
	var s struct {
		Headers map[string]json.RawMessage                              `json:"headers"`
		Servers map[string]struct{ Headers map[string]json.RawMessage } `json:"mcpServers"`
	}
	if json.Unmarshal(o, &s) != nil {
		return true
	}
	n := len(s.Headers)
	for _, x := range s.Servers {
		n += len(x.Headers)
	}
	return n > 0
}

// addInput reads the form that Claude Code, Cursor and VS Code write.
func (in *MCPAddJSONInput) addInput() (*MCPAddInput, error) {
	var s struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Command string            `json:"command"`
	}
	var whole struct {
		Servers map[string]json.RawMessage `json:"mcpServers"`
	}
	raw := json.RawMessage(in.JSON)
	if json.Unmarshal(raw, &whole) == nil && len(whole.Servers) > 0 { // a whole file was pasted
		one, ok := whole.Servers[in.Name]
		if !ok && len(whole.Servers) == 1 {
			for _, v := range whole.Servers {
				one, ok = v, true
			}
		}
		if !ok {
			return nil, plane.Errorf(plane.InvalidInput, "Several servers are described, and none is called %s.", oneLine(in.Name, 40)).At("json")
		}
		raw = one
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "The server is not described by a JSON object.").At("json").Then(`{"type": "http", "url": "https://mcp.example.com/mcp"}`)
	}
	switch {
	case s.Type == "sse":
		return nil, plane.Errorf(plane.InvalidInput, "HTTP with SSE is the transport of 2024; Patchbay speaks Streamable HTTP.").At("json").Then("Ask the server's operator for its Streamable HTTP address.")
	case s.Command != "" || s.Type == "stdio":
		return nil, plane.Errorf(plane.InvalidInput, "A stdio server is not added but declared: a file of the registry says how it is started.").At("json").Then("docs/stdio.md says how")
	case s.Type != "" && !slices.Contains([]string{"http", "streamable-http", "streamableHttp"}, s.Type):
		return nil, plane.Errorf(plane.InvalidInput, "The type is %q; http is known.", oneLine(s.Type, 40)).At("json")
	}
	out := &MCPAddInput{Name: in.Name, Address: s.URL, Scope: in.Scope}
	for k, v := range s.Headers {
		if strings.Contains(v, "${") {
			return nil, plane.Errorf(plane.InvalidInput, "The header %s names a variable, which is not filled in here.", oneLine(k, 40)).At("json").Then("Leave the header out: a link asks for the value.")
		}
		out.Header = append(out.Header, k+": "+v)
	}
	return out, nil
}

// ConnectInput names a connection to sign in.
type ConnectInput struct {
	Name      string `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	Local     bool   `json:"local,omitempty" help:"Take the sign-in's answer on your own machine, for servers that send browsers to loopback only."`
	NoBrowser bool   `json:"no_browser,omitempty" help:"With --local: print the address and read the address that the browser ends at."`
	Redirect  string `json:"redirect,omitempty" hidden:"" help:"Where on your own machine the answer arrives."`
}

// DefaultRedirect is the address on the caller's own machine when they paste the
// answer.
const DefaultRedirect = "http://127.0.0.1:33418" + consent.LocalCallback

// redirect admits an address on the caller's own machine and no other.
func (in *ConnectInput) redirect() (string, error) {
	if in.Redirect == "" {
		return DefaultRedirect, nil
	}
	u, err := url.Parse(in.Redirect)
	if err != nil || u.Scheme != "http" || (u.Hostname() != "127.0.0.1" && u.Hostname() != "localhost") || u.Port() == "" || u.Path != consent.LocalCallback || u.RawQuery != "" || u.User != nil {
		return "", plane.Errorf(plane.InvalidInput, "The redirect must be http://127.0.0.1:PORT%s.", consent.LocalCallback).At("redirect")
	}
	return in.Redirect, nil
}

// FinishInput is where the browser ended.
type FinishInput struct {
	URL string `arg:"" json:"url" sensitive:"" help:"The whole address that the browser ended at."`
}

// Callback reads what an authorization server put into a redirect.
func (in *FinishInput) callback() (consent.Callback, error) {
	u, err := url.Parse(strings.TrimSpace(in.URL))
	if err != nil || u.RawQuery == "" {
		return consent.Callback{}, plane.Errorf(plane.InvalidInput, "That is not the address that the browser ended at: it holds no answer.").At("url")
	}
	return consent.ReadCallback(u.Query()), nil
}

func connectCommands(d Deps) []*Command {
	add := func(ctx context.Context, who plane.Principal, in *MCPAddInput) (*MCPAdded, error) {
		if err := d.off(); err != nil {
			return nil, err
		}
		r, err := in.request(d.Policy(), who)
		if err != nil {
			return nil, err
		}
		if err := in.fromRegistry(d, &r); err != nil {
			return nil, err
		}
		a, err := d.Consent.Add(ctx, who, r)
		if err != nil {
			return nil, err
		}
		return added(d, who, a), nil
	}
	cmds := []*Command{
		define(About{Name: "mcp.add", Summary: "Connects an MCP server; what needs a sign-in gets a one-time link.", Right: plane.MCPWrite,
			Example: "mcp add linear https://mcp.linear.app/mcp --scope org"}, add),
		define(About{Name: "mcp.add-json", Summary: "Connects an MCP server described as JSON.", Right: plane.MCPWrite,
			Example: `mcp add-json linear '{"type":"http","url":"https://mcp.linear.app/mcp"}'`},
			func(ctx context.Context, who plane.Principal, in *MCPAddJSONInput) (*MCPAdded, error) {
				full, err := in.addInput()
				if err != nil {
					return nil, err
				}
				return add(ctx, who, full)
			}),
		define(About{Name: "mcp.connect", Summary: "Makes a one-time link that signs a server in, the first time or again.", Right: plane.MCPWrite,
			Example: "mcp connect linear", Alias: "login"},
			func(ctx context.Context, who plane.Principal, in *ConnectInput) (*MCPAdded, error) {
				return connectServer(ctx, d, who, in)
			}),
		define(About{Name: "mcp.finish", Summary: "Ends a sign-in whose answer arrived on your own machine.", Right: plane.MCPWrite,
			Example: "mcp finish http://127.0.0.1:33418/callback?code=c"},
			func(ctx context.Context, who plane.Principal, in *FinishInput) (*MCPAdded, error) {
				if err := d.off(); err != nil {
					return nil, err
				}
				cb, err := in.callback()
				if err != nil {
					return nil, err
				}
				done, err := d.Consent.FinishFor(ctx, who, cb)
				if err != nil {
					return nil, err
				}
				return added(d, who, consent.Added{Connection: done.Connection, Outcome: done.Outcome}), nil
			}),
	}
	for _, c := range cmds[:3] {
		c.Settle = settle(d)
	}
	return cmds
}

func connectServer(ctx context.Context, d Deps, who plane.Principal, in *ConnectInput) (*MCPAdded, error) {
	if err := d.off(); err != nil {
		return nil, err
	}
	a, err := connection(d.Policy(), who, in.Name)
	if err != nil {
		return nil, err
	}
	if !in.Local && !in.NoBrowser {
		link, err := d.Consent.Connect(ctx, who, a.ID)
		if err != nil {
			return nil, err
		}
		return added(d, who, link), nil
	}
	redirect, err := in.redirect()
	if err != nil {
		return nil, err
	}
	l, err := d.Consent.StartFor(ctx, who, a.ID, redirect, "")
	if err != nil {
		return nil, err
	}
	out := added(d, who, consent.Added{Connection: l.Connection})
	out.SignInURL = l.URL
	return out, nil
}

// Ticket is what a link's end is waited for by; it opens nothing.
func (o *MCPAdded) Ticket() string { return o.hash }

// AwaitLink is what Settle takes of a link that was given out before a restart.
func AwaitLink(server, ticket string) *MCPAdded {
	return &MCPAdded{Server: ServerRow{Name: server}, hash: ticket}
}
