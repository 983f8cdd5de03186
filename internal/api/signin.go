package api

import (
	"context"
	"encoding/json"
	"net/http"

	"patchbay/internal/consent"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// describe says what a command takes, as --help does.
func (a *API) describe(w http.ResponseWriter, r *http.Request) {
	if _, err := a.who(r); err != nil {
		a.fail(w, r, err)
		return
	}
	cmd, err := a.commands.Get(r.PathValue("name"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	help, err := a.commands.Help(cmd.Name)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"name": cmd.Name, "summary": cmd.Summary, "read_only": cmd.ReadOnly, "scopes": cmd.Right.Names(),
		"untrusted": cmd.Untrusted, "help": help})
}

// startRequest names the connection to sign in again, or the account to add to
// the agent.
type startRequest struct {
	Connection   string `json:"provider_id,omitempty"`
	NewAccount   bool   `json:"new_account,omitempty"`
	Name         string `json:"name,omitempty"`
	Endpoint     string `json:"endpoint,omitempty"`
	ClientID     string `json:"client_id,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
}

type startAnswer struct {
	URL        string `json:"authorization_url"`
	Connection string `json:"provider_id"`
}

// startSignIn takes a link that is the caller's own straight to the sign-in, for
// a page that sends the browser on by itself.
func (a *API) startSignIn(w http.ResponseWriter, r *http.Request) {
	who, err := a.who(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if !a.mcp {
		a.fail(w, r, plane.Errorf(plane.Unavailable, "MCP is off on this server."))
		return
	}
	var in startRequest
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), &in); err != nil {
		a.fail(w, r, err)
		return
	}
	if !who.HasUserScope() {
		a.fail(w, r, plane.Errorf(plane.Forbidden, "Only a signed-in person begins a sign-in."))
		return
	}
	l, err := a.start(r.Context(), who, r.PathValue("slug"), in)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(startAnswer{l.URL, string(l.Connection.ID)})
}

func (a *API) start(ctx context.Context, who plane.Principal, agent string, in startRequest) (consent.Leaving, error) {
	switch {
	case in.Connection != "" && in.NewAccount:
		return consent.Leaving{}, plane.Errorf(plane.InvalidInput, "provider_id signs an account in again, new_account adds one: say one of them.").At("provider_id")
	case in.Connection != "" && !plane.IsConnectionID(in.Connection):
		return consent.Leaving{}, plane.Errorf(plane.InvalidInput, "provider_id is the id of a connection.").At("provider_id").Then("POST /api/commands/mcp.list")
	case in.Connection != "":
		return a.signIn.StartFor(ctx, who, plane.ConnectionID(in.Connection), "", agent)
	}
	return a.signIn.StartAccount(ctx, who, consent.Request{Label: in.Name, URL: in.Endpoint, Scope: plane.Scope{Kind: plane.ScopeAgent, Name: agent},
		ClientSecret: secret.New(in.ClientSecret), OAuth: plane.OAuthOptions{ClientID: in.ClientID}}, in.NewAccount, agent)
}

// document serves our client ID metadata document, to anybody: it says who we
// are and where answers go.
func (a *API) document(local bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, err := a.signIn.Document(local)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public, max-age=3600")
		json.NewEncoder(w).Encode(m)
	}
}
