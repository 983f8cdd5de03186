package api

import (
	"html/template"
	"net/http"
	"sort"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"patchbay/internal/plane"
)

// referencePath is the page that shows the OpenAPI document to people.
const referencePath = "/api/reference"

func (a *API) reference() { a.mux.HandleFunc("GET "+referencePath, a.page) }

// The page is whole in itself: no script, nothing from elsewhere.
var referencePage = template.Must(template.New("reference").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Patchbay API</title>
<style>
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
code,pre{font:14px/1.45 ui-monospace,monospace}pre{overflow:auto;padding:.5rem;border:1px solid #8886}
h2{font-size:1.1rem;margin:2rem 0 .2rem}details{margin:.3rem 0}summary{cursor:pointer}
table{border-collapse:collapse}td{padding:.1rem .8rem .1rem 0;vertical-align:top}
</style></head><body>
<main><h1>Patchbay API {{.Version}}</h1>
<p>The machine-readable form is <a href="openapi.json">openapi.json</a> (OpenAPI 3.1). Everything stands under <code>/api</code> and, the same, under <code>/api/v1</code>. Errors are problem details (RFC 9457) with a <code>code</code> and, where something helps, a <code>next</code>.</p>
<nav aria-label="Operations"><details><summary>{{len .Operations}} operations</summary><ul>{{range .Operations}}<li><a href="#{{.ID}}"><code>{{.Method}} {{.Path}}</code></a></li>{{end}}</ul></details></nav>
{{range .Operations}}<section aria-labelledby="{{.ID}}"><h2 id="{{.ID}}"><code>{{.Method}} {{.Path}}</code></h2><p>{{.Summary}}</p>
{{if .In}}<details><summary>Body</summary>{{template "fields" .In}}</details>{{end}}{{if .Out}}<details><summary>Answer</summary>{{template "fields" .Out}}</details>{{end}}</section>
{{end}}</main></body></html>
{{define "fields"}}<table>{{range .}}<tr><td><code>{{.Name}}</code></td><td>{{.Type}}{{if .Required}}, required{{end}}</td><td>{{.Doc}}</td></tr>{{end}}</table>{{end}}`))

type field struct {
	Name, Type, Doc string
	Required        bool
}

type operation struct {
	ID, Method, Path, Summary string
	In, Out                   []field
}

func (a *API) page(w http.ResponseWriter, r *http.Request) {
	if _, err := a.who(r); err != nil {
		a.fail(w, r, err)
		return
	}
	doc := a.document31()
	view := struct {
		Version    string
		Operations []operation
	}{Version: a.version}
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "POST": item.Post, "PUT": item.Put} {
			if op == nil {
				continue
			}
			o := operation{ID: op.OperationID, Method: method, Path: path, Summary: op.Summary}
			if op.RequestBody != nil {
				o.In = fields(doc, op.RequestBody.Content)
			}
			if ok := op.Responses["200"]; ok != nil {
				o.Out = fields(doc, ok.Content)
			}
			view.Operations = append(view.Operations, o)
		}
	}
	sort.Slice(view.Operations, func(i, j int) bool {
		x, y := view.Operations[i], view.Operations[j]
		return x.Path+" "+x.Method < y.Path+" "+y.Method
	})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'")
	if err := referencePage.Execute(w, view); err != nil {
		a.log.Warn("the reference could not be written", "err", plane.Public(err).Message)
	}
}

func fields(doc *huma.OpenAPI, content map[string]*huma.MediaType) []field {
	m := content["application/json"]
	if m == nil {
		return nil
	}
	s := resolve(doc, m.Schema)
	var out []field
	for name, p := range s.Properties {
		f := field{Name: name, Doc: p.Description}
		for _, r := range s.Required {
			f.Required = f.Required || r == name
		}
		f.Type = typeName(p)
		out = append(out, f)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func resolve(doc *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	if s.Ref == "" {
		return s
	}
	return doc.Components.Schemas.SchemaFromRef(s.Ref)
}

func typeName(s *huma.Schema) string {
	switch {
	case s.Ref != "":
		return s.Ref[strings.LastIndex(s.Ref, "/")+1:]
	case s.Type == huma.TypeArray && s.Items != nil:
		return "list of " + typeName(s.Items)
	case s.Type == "":
		return "any"
	}
	return s.Type
}
