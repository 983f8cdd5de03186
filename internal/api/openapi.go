package api

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"patchbay/internal/plane"
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
	return doc
}
