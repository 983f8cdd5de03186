package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
	"patchbay/internal/secret"
)

// TeamServers are what teams declare.
type TeamServers interface {
	List(ctx context.Context, who plane.Principal, team string) ([]command.ProposalRow, error)
	Put(ctx context.Context, who plane.Principal, team, name string, body json.RawMessage, fresh bool) (command.ProposalRow, error)
	Accept(ctx context.Context, who plane.Principal, team, name, id string) (command.ProposalRow, error)
	Drop(ctx context.Context, who plane.Principal, team, name string) (command.ProposalRow, error)
	PutSecret(ctx context.Context, who plane.Principal, team, ref string, value secret.Text) error
	DropSecret(ctx context.Context, who plane.Principal, team, ref string) error
}

// Gallery is the registry as other programs read it.
type Gallery interface {
	Servers(ctx context.Context, q registry.Query) (registry.Page, error)
	Version(name, version string) (registry.Entry, error)
}

// teamDeclaration is a declaration with the team that it is for.
type teamDeclaration struct {
	Team        string          `json:"team"`
	Declaration json.RawMessage `json:"declaration"`
}

// secretValue is a secret and whose it is: a team's, or the organisation's.
type secretValue struct {
	Team  string `json:"team,omitempty"`
	Value string `json:"value"`
}

// registry mounts teams' servers, secrets and the registry's read-only face.
func (a *API) registry() {
	a.mux.HandleFunc("GET /api/mcp-servers/{team}", a.team(func(r *http.Request, who plane.Principal, team string) (any, int, error) {
		list, err := a.teams.List(r.Context(), who, team)
		return map[string]any{"servers": list}, http.StatusOK, err
	}))
	a.mux.HandleFunc("POST /api/mcp-servers/{team}", a.team(func(r *http.Request, who plane.Principal, team string) (any, int, error) {
		body, err := whole(r)
		if err != nil {
			return nil, 0, err
		}
		row, err := a.teams.Put(r.Context(), who, team, "", body, true)
		return row, http.StatusCreated, err
	}))
	// The team may stand in the body instead: {"team": …, "declaration": {…}}.
	a.mux.HandleFunc("POST /api/mcp-servers", a.team(func(r *http.Request, who plane.Principal, _ string) (any, int, error) {
		var in teamDeclaration
		if err := decode(http.MaxBytesReader(nil, r.Body, maxBody), &in); err != nil {
			return nil, 0, err
		}
		row, err := a.teams.Put(r.Context(), who, in.Team, "", in.Declaration, true)
		return row, http.StatusCreated, err
	}))
	a.mux.HandleFunc("PUT /api/mcp-servers/{team}/{name}", a.team(func(r *http.Request, who plane.Principal, team string) (any, int, error) {
		body, err := whole(r)
		if err != nil {
			return nil, 0, err
		}
		row, err := a.teams.Put(r.Context(), who, team, r.PathValue("name"), body, false)
		return row, http.StatusOK, err
	}))
	a.mux.HandleFunc("DELETE /api/mcp-servers/{team}/{name}", a.team(func(r *http.Request, who plane.Principal, team string) (any, int, error) {
		row, err := a.teams.Drop(r.Context(), who, team, r.PathValue("name"))
		return row, http.StatusOK, err
	}))
	a.mux.HandleFunc("POST /api/mcp-servers/{team}/{name}/accept", a.team(func(r *http.Request, who plane.Principal, team string) (any, int, error) {
		var in struct {
			ID string `json:"id"` // the proposal that was looked at
		}
		if err := decode(http.MaxBytesReader(nil, r.Body, maxBody), &in); err != nil {
			return nil, 0, err
		}
		row, err := a.teams.Accept(r.Context(), who, team, r.PathValue("name"), in.ID)
		return row, http.StatusOK, err
	}))
	for _, path := range []string{"/api/secrets/{ref}", "/secrets/{ref}"} {
		a.mux.HandleFunc("PUT "+path, a.team(a.putSecret))
		a.mux.HandleFunc("DELETE "+path, a.team(func(r *http.Request, who plane.Principal, _ string) (any, int, error) {
			return nil, http.StatusNoContent, a.teams.DropSecret(r.Context(), who, r.URL.Query().Get("team"), r.PathValue("ref"))
		}))
	}
	a.mux.HandleFunc("GET /v0.1/servers", a.gallery(func(r *http.Request) (any, error) {
		q, err := galleryQuery(r)
		if err != nil {
			return nil, err
		}
		return a.shelf.Servers(r.Context(), q)
	}))
	a.mux.HandleFunc("GET /v0.1/servers/{name}/versions", a.gallery(func(r *http.Request) (any, error) {
		e, err := a.shelf.Version(r.PathValue("name"), "latest")
		if err != nil {
			return nil, err
		}
		return registry.Page{Servers: []registry.Entry{e}, Metadata: registry.Metadata{Count: 1}}, nil
	}))
	a.mux.HandleFunc("GET /v0.1/servers/{name}/versions/{version}", a.gallery(func(r *http.Request) (any, error) {
		return a.shelf.Version(r.PathValue("name"), r.PathValue("version"))
	}))
}

func whole(r *http.Request) (json.RawMessage, error) {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, plane.Errorf(plane.InvalidInput, "The request is larger than %d bytes.", maxBody)
		}
		return nil, plane.Errorf(plane.InvalidInput, "The request's body cannot be read.").Because(err)
	}
	return b, nil
}

// team is a route about one team.
func (a *API) team(do func(r *http.Request, who plane.Principal, team string) (any, int, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := a.who(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		out, code, err := do(r, who, r.PathValue("team"))
		if err != nil {
			a.fail(w, r, err)
			return
		}
		if code == http.StatusNoContent {
			w.WriteHeader(code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(out)
	}
}

// putSecret takes {"value": …, "team": …}; the team may stand in the query too.
func (a *API) putSecret(r *http.Request, who plane.Principal, _ string) (any, int, error) {
	var in secretValue
	if err := decode(http.MaxBytesReader(nil, r.Body, maxBody), &in); err != nil {
		return nil, 0, err
	}
	if in.Team == "" {
		in.Team = r.URL.Query().Get("team")
	}
	return nil, http.StatusNoContent, a.teams.PutSecret(r.Context(), who, in.Team, r.PathValue("ref"), secret.New(in.Value))
}

// gallery is a route of the registry's read-only face: for everybody where config says
// so, else for who is known.
func (a *API) gallery(do func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.openShelf {
			w.Header().Set("Access-Control-Allow-Origin", "*")
		} else if _, err := a.who(r); err != nil {
			a.fail(w, r, err)
			return
		}
		out, err := do(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(out)
	}
}

func galleryQuery(r *http.Request) (registry.Query, error) {
	v := r.URL.Query()
	q := registry.Query{Search: v.Get("search"), Cursor: v.Get("cursor"), Latest: true}
	if s := v.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return q, plane.Errorf(plane.InvalidInput, "limit is a number from 1.").At("limit")
		}
		q.Limit = n
	}
	if s := v.Get("version"); s != "" && !strings.EqualFold(s, "latest") {
		return q, plane.Errorf(plane.InvalidInput, "version is latest; one version of a server is at /v0.1/servers/{name}/versions/{version}.").At("version")
	}
	if s := v.Get("updated_since"); s != "" {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return q, plane.Errorf(plane.InvalidInput, "updated_since is a time as 2026-11-30T15:04:05Z.").At("updated_since")
		}
		q.UpdatedSince = t
	}
	if len(q.Search) > 200 || len(q.Cursor) > 1000 {
		return q, plane.Errorf(plane.InvalidInput, "search and cursor are shorter than that.").At("search")
	}
	return q, nil
}
