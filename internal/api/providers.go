package api

import (
	"context"
	"encoding/json"
	"net/http"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// providersPath is where an agent's accounts are.
const providersPath = "/api/agents/{slug}/mcp/providers"

// route is one route of the accounts, for the mux and for the document.
type route struct {
	method, path, id, summary string
	in                        func() any // a pointer to the zero body; nil for none
	out                       any
	do                        func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, in any) (any, error)
}

// providerRoutes are the accounts' routes.
func providerRoutes() []route {
	return []route{
		{"GET", "", "providers.list", "An agent's accounts and how they stand.", nil, command.ProviderList{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, _ string, _ any) (any, error) {
				return p.List(ctx, who, agent)
			}},
		{"POST", "", "providers.save", "Saves an account and reads its tools. With new_account it is one of its own; else the one known by its address.",
			func() any { return new(command.SaveRequest) }, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, _ string, in any) (any, error) {
				return p.Save(ctx, who, agent, in.(*command.SaveRequest))
			}},
		{"GET", "/{provider}", "providers.show", "One account with all that its server lists.", nil, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, _ any) (any, error) {
				return p.One(ctx, who, agent, id)
			}},
		{"PUT", "/{provider}", "providers.update", "Edits an account; a blank token keeps the saved credential.",
			func() any { return new(command.UpdateRequest) }, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, in any) (any, error) {
				return p.Update(ctx, who, agent, id, in.(*command.UpdateRequest))
			}},
		{"POST", "/{provider}/discover", "providers.discover", "Reads an account's tools now; that it fails is said by the catalog's health.", nil, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, _ any) (any, error) {
				return p.Discover(ctx, who, agent, id)
			}},
		{"POST", "/{provider}/enable", "providers.enable", "Says which tools of an account are used and what class they have, all or nothing, and turns it on unless keep_state says otherwise.",
			func() any { return new(command.EnableRequest) }, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, in any) (any, error) {
				return p.Enable(ctx, who, agent, id, in.(*command.EnableRequest))
			}},
		{"POST", "/{provider}/disable", "providers.disable", "Turns an account off; no server is asked.",
			func() any { return new(command.DisableRequest) }, command.Provider{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, in any) (any, error) {
				return p.Disable(ctx, who, agent, id, in.(*command.DisableRequest))
			}},
		{"GET", "/{provider}/drift", "providers.drift", "What changed at an account's server since it was connected.", nil, command.MCPDiff{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, _ any) (any, error) {
				return p.Drift(ctx, who, agent, id)
			}},
		{"POST", "/{provider}/drift", "providers.decide", "Lets changed definitions in, or keeps tools out.",
			func() any { return new(command.DriftRequest) }, command.MCPDiff{},
			func(ctx context.Context, p *command.Providers, who plane.Principal, agent, id string, in any) (any, error) {
				return p.Decide(ctx, who, agent, id, in.(*command.DriftRequest))
			}},
	}
}

// providers mounts the routes.
func (a *API) providers() {
	for _, rt := range providerRoutes() {
		a.mux.HandleFunc(rt.method+" "+providersPath+rt.path, func(w http.ResponseWriter, r *http.Request) { a.provider(w, r, rt) })
	}
}

func (a *API) provider(w http.ResponseWriter, r *http.Request, rt route) {
	who, err := a.who(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	var in any
	if rt.in != nil {
		in = rt.in()
		if err := decode(http.MaxBytesReader(w, r.Body, maxBody), in); err != nil {
			a.fail(w, r, err)
			return
		}
	}
	agent, id := r.PathValue("slug"), r.PathValue("provider")
	out, err := rt.do(r.Context(), a.accounts, who, agent, id, in)
	if err != nil {
		if e := plane.Public(err); e.Field == "url" { // these routes call it so
			named := *e
			named.Field = "endpoint"
			err = named.Because(err)
		}
		if plane.KindOf(err) == plane.Conflict && id != "" {
			if now, nerr := a.accounts.Now(r.Context(), who, agent, id); nerr == nil {
				a.refuse(w, r, err, now, withoutToken(in))
				return
			}
		}
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(out)
}

// withoutToken is what was sent, fit to be sent back.
func withoutToken(in any) any {
	if u, ok := in.(*command.UpdateRequest); ok {
		c := *u
		c.Token = ""
		return &c
	}
	return in
}
