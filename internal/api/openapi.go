package api

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"patchbay/internal/command"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
)

// openapi serves the document.
func (a *API) openapi(w http.ResponseWriter, r *http.Request) {
	if _, err := a.who(r); err != nil {
		a.fail(w, r, err)
		return
	}
	b, err := json.MarshalIndent(a.document31(), "", " ")
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}

// document31 describes the surface from its Go types, so it cannot drift.
func (a *API) document31() *huma.OpenAPI {
	reg := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{OpenAPI: "3.1.0", Info: &huma.Info{Title: "Patchbay", Version: a.version}, Components: &huma.Components{Schemas: reg}}
	body := func(t reflect.Type, hint string) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{"application/json": {Schema: reg.Schema(t, true, hint)}}
	}
	problem := &huma.Response{Description: "Refused.", Content: map[string]*huma.MediaType{
		"application/problem+json": {Schema: reg.Schema(reflect.TypeFor[Problem](), true, "Problem")}}}
	for _, c := range a.commands.All() {
		doc.AddOperation(&huma.Operation{OperationID: c.Name, Method: http.MethodPost, Path: "/api/commands/" + c.Name, Summary: c.Summary,
			RequestBody: &huma.RequestBody{Content: body(reflect.TypeOf(c.Input()).Elem(), c.Name+"Input")},
			Responses: map[string]*huma.Response{
				"200":     {Description: "Done.", Content: body(reflect.TypeOf(c.Output()).Elem(), c.Name+"Output")},
				"default": problem}})
	}
	doc.AddOperation(&huma.Operation{OperationID: "oauth.start", Method: http.MethodPost, Path: "/api/agents/{slug}/mcp/oauth/start",
		Summary:     "Takes a connection straight to its sign-in, for a caller who has a browser at hand.",
		Parameters:  []*huma.Param{{Name: "slug", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}}},
		RequestBody: &huma.RequestBody{Content: body(reflect.TypeFor[startRequest](), "Start")},
		Responses: map[string]*huma.Response{"200": {Description: "Where the browser goes.", Content: body(reflect.TypeFor[startAnswer](), "Started")},
			"default": problem}})
	doc.AddOperation(&huma.Operation{OperationID: "runs.events", Method: http.MethodGet, Path: "/api/runs/{id}/events",
		Summary: "A run's events as JSON, or as a stream with Accept: text/event-stream; Last-Event-ID resumes it.",
		Parameters: []*huma.Param{
			{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}},
			{Name: "after", In: "query", Schema: &huma.Schema{Type: huma.TypeInteger}}},
		Responses: map[string]*huma.Response{"200": {Description: "Events.", Content: body(reflect.TypeFor[struct {
			Events []plane.Event `json:"events"`
		}](), "Events")}, "default": problem}})
	for _, rt := range providerRoutes() {
		op := &huma.Operation{OperationID: rt.id, Method: rt.method, Path: providersPath + rt.path, Summary: rt.summary,
			Parameters: []*huma.Param{{Name: "slug", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}},
			Responses:  map[string]*huma.Response{"200": {Description: "Done.", Content: body(reflect.TypeOf(rt.out), rt.id+"Answer")}, "default": problem}}
		if rt.path != "" {
			op.Parameters = append(op.Parameters, &huma.Param{Name: "provider", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
		if rt.in != nil {
			op.RequestBody = &huma.RequestBody{Required: true, Content: body(reflect.TypeOf(rt.in()).Elem(), rt.id+"Body")}
		}
		doc.AddOperation(op)
	}
	declarationRoutes(doc, body, problem)
	return doc
}

// declarationRoutes describes teams' servers, secrets and the registry.
func declarationRoutes(doc *huma.OpenAPI, body func(reflect.Type, string) map[string]*huma.MediaType, problem *huma.Response) {
	row, page, entry := reflect.TypeFor[command.ProposalRow](), reflect.TypeFor[registry.Page](), reflect.TypeFor[registry.Entry]()
	list := reflect.TypeFor[struct {
		Servers []command.ProposalRow `json:"servers"`
	}]()
	decl := reflect.TypeFor[plane.Declaration]()
	for _, r := range []struct {
		id, method, path, summary string
		in, out                   reflect.Type
		hint                      string
		params                    []string
	}{
		{"mcp-servers.list", http.MethodGet, "/api/mcp-servers/{team}", "The servers that a team has, and those proposed to it.", nil, list, "TeamServers", []string{"team"}},
		{"mcp-servers.add", http.MethodPost, "/api/mcp-servers/{team}", "Declares a server for a team, in force at once.", decl, row, "TeamServer", []string{"team"}},
		{"mcp-servers.add-for", http.MethodPost, "/api/mcp-servers", "The same, with the team beside the declaration.", reflect.TypeFor[teamDeclaration](), row, "TeamServer", nil},
		{"mcp-servers.put", http.MethodPut, "/api/mcp-servers/{team}/{name}", "Declares a server for a team, in place of what was.", decl, row, "TeamServer", []string{"team", "name"}},
		{"mcp-servers.forget", http.MethodDelete, "/api/mcp-servers/{team}/{name}", "Turns a proposed server down, or ends a team's.", nil, row, "TeamServer", []string{"team", "name"}},
		{"mcp-servers.accept", http.MethodPost, "/api/mcp-servers/{team}/{name}/accept", "Accepts a proposed server.", nil, row, "TeamServer", []string{"team", "name"}},
		{"secrets.put-value", http.MethodPut, "/api/secrets/{ref}", "Stores a secret that a destination names; nobody reads it again.", reflect.TypeFor[secretValue](), nil, "", []string{"ref"}},
		{"secrets.drop", http.MethodDelete, "/api/secrets/{ref}", "Takes a secret away; team stands in the query.", nil, nil, "", []string{"ref"}},
		{"registry.servers", http.MethodGet, "/v0.1/servers", "The registry in the official shape: search, cursor, limit, version=latest, updated_since.", nil, page, "RegistryPage", nil},
		{"registry.versions", http.MethodGet, "/v0.1/servers/{name}/versions", "The versions of one server.", nil, page, "RegistryPage", []string{"name"}},
		{"registry.version", http.MethodGet, "/v0.1/servers/{name}/versions/{version}", "One version of one server; latest is the newest.", nil, entry, "RegistryEntry", []string{"name", "version"}},
	} {
		op := &huma.Operation{OperationID: r.id, Method: r.method, Path: r.path, Summary: r.summary, Responses: map[string]*huma.Response{"default": problem}}
		for _, p := range r.params {
			op.Parameters = append(op.Parameters, &huma.Param{Name: p, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
		if r.in != nil {
			op.RequestBody = &huma.RequestBody{Required: true, Content: body(r.in, r.id+"Body")}
		}
		op.Responses["204"] = &huma.Response{Description: "Done."}
		if r.out != nil {
			delete(op.Responses, "204")
			op.Responses["200"] = &huma.Response{Description: "Done.", Content: body(r.out, r.hint)}
		}
		doc.AddOperation(op)
	}
}
