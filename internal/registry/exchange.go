package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// The official registry's shape (its API v0.1, server.json schema 2025-12-11), as far as
// we write and read it.

// schemaURL is what server objects say they follow.
const schemaURL = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

// metaKey is where the registry's own words about an entry stand.
const metaKey = "io.modelcontextprotocol.registry/official"

// Server is a server.json.
type Server struct {
	Schema      string       `json:"$schema,omitempty"`
	Name        string       `json:"name"`
	Title       string       `json:"title,omitempty"`
	Description string       `json:"description"`
	Version     string       `json:"version"`
	WebsiteURL  string       `json:"websiteUrl,omitempty"`
	Repository  *Repository  `json:"repository,omitempty"`
	Icons       []Icon       `json:"icons,omitempty"`
	Remotes     []Remote     `json:"remotes,omitempty"`
	Packages    []packageRef `json:"packages,omitempty"`
}

// Repository is where a server's source is.
type Repository struct {
	URL    string `json:"url,omitempty"`
	Source string `json:"source,omitempty"`
}

// Icon is a picture of a server.
type Icon struct {
	Src string `json:"src"`
}

// Remote is an address of a server.
type Remote struct {
	Type      string           `json:"type"`
	URL       string           `json:"url"`
	Headers   []Input          `json:"headers,omitempty"`
	Variables map[string]Input `json:"variables,omitempty"`
}

// Input is a value that a person gives.
type Input struct {
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	Value       string `json:"value,omitempty"`
	Default     string `json:"default,omitempty"`
	IsRequired  bool   `json:"isRequired,omitempty"`
	IsSecret    bool   `json:"isSecret,omitempty"`
}

type packageRef struct {
	Type       string `json:"registryType"`
	Identifier string `json:"identifier"`
}

// Entry is one server with the registry's words about it.
type Entry struct {
	Server Server          `json:"server"`
	Meta   json.RawMessage `json:"_meta"`
}

type official struct {
	Status      string    `json:"status"`
	PublishedAt time.Time `json:"publishedAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	IsLatest    bool      `json:"isLatest"`
}

// Page is one page of entries.
type Page struct {
	Servers  []Entry  `json:"servers"`
	Metadata Metadata `json:"metadata"`
}

// Metadata says how to go on.
type Metadata struct {
	NextCursor string `json:"nextCursor,omitempty"`
	Count      int    `json:"count"`
}

// Query is what a page is of.
type Query struct {
	Search       string
	Cursor       string
	Limit        int // at most 100; 0 for 30
	Latest       bool
	UpdatedSince time.Time
	MirrorOnly   bool // the upstream's entries, not ours
}

// Bounds of a page.
const (
	pageDefault = 30
	pageMost    = 100
)

// Servers is one page of our own entries, or of the mirror's.
func (s *Service) Servers(ctx context.Context, q Query) (Page, error) {
	after, err := cursor(q.Cursor)
	if err != nil {
		return Page{}, err
	}
	if q.MirrorOnly {
		return s.mirrorPage(ctx, q, after)
	}
	switch {
	case q.Limit < 0:
		return Page{}, plane.Errorf(plane.InvalidInput, "limit is 1 to %d.", pageMost).At("limit")
	case q.Limit == 0:
		q.Limit = pageDefault
	}
	q.Limit = min(q.Limit, pageMost)
	out := Page{Servers: []Entry{}}
	for _, e := range s.own() {
		at := e.Server.Name
		if at <= after || !holds(e.Server, q.Search) || e.updated().Before(q.UpdatedSince) {
			continue
		}
		if len(out.Servers) == q.Limit {
			out.Metadata.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(out.Servers[q.Limit-1].Server.Name))
			break
		}
		out.Servers = append(out.Servers, e)
	}
	out.Metadata.Count = len(out.Servers)
	return out, nil
}

func holds(s Server, search string) bool {
	search = strings.ToLower(search)
	return search == "" || strings.Contains(strings.ToLower(s.Name), search) || strings.Contains(strings.ToLower(s.Description), search) || strings.Contains(strings.ToLower(s.Title), search)
}

func cursor(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) > 400 {
		return "", plane.Errorf(plane.InvalidInput, "The cursor is none of ours.").At("cursor")
	}
	return string(b), nil
}

// own are our entries that an editor can use, in order of names.
func (s *Service) own() []Entry {
	var out []Entry
	for _, d := range s.Registry() {
		if d.Transport == plane.HTTP {
			out = append(out, s.entry(d))
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Server.Name, b.Server.Name) })
	return out
}

// entry is a declaration in the official shape. Its version changes with it.
func (s *Service) entry(d plane.Declared) Entry {
	body, err := json.Marshal(d.Declaration)
	if err != nil { // strings and numbers always marshal
		body = nil
	}
	sum := sha256.Sum256(body)
	srv := Server{Schema: schemaURL, Name: s.space() + "/" + d.Name, Title: d.Name, Description: short(cmp.Or(d.Description, d.Name+" at "+host(d.URL)), 100),
		Version: "0.0.0-" + hex.EncodeToString(sum[:6]), WebsiteURL: d.Link, Remotes: []Remote{{Type: "streamable-http", URL: d.URL, Headers: headersOf(d.Auth)}}}
	if d.Icon != "" {
		srv.Icons = []Icon{{d.Icon}}
	}
	at := d.At
	if at.IsZero() {
		at = time.Unix(0, 0).UTC()
	}
	meta, err := json.Marshal(map[string]official{metaKey: {"active", at, at, true}})
	if err != nil {
		meta = []byte("{}")
	}
	return Entry{srv, meta}
}

func (s *Service) space() string {
	if s.o.Space == nil {
		return "local.patchbay"
	}
	return s.o.Space()
}

// headersOf are the headers that a person fills in.
func headersOf(a plane.Auth) []Input {
	switch {
	case !a.Pasted():
		return nil
	case a == plane.AuthBearer:
		return []Input{{Name: "Authorization", Description: "Bearer and the token", IsRequired: true, IsSecret: true}}
	}
	return []Input{{Name: a.Header(), Description: "The credential", IsRequired: true, IsSecret: true}}
}

func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

func short(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func (e Entry) updated() time.Time {
	var m map[string]official
	if json.Unmarshal(e.Meta, &m) != nil {
		return time.Time{}
	}
	return m[metaKey].UpdatedAt
}

// Version is one version of one of our entries; latest is the only one there is.
func (s *Service) Version(name, version string) (Entry, error) {
	for _, e := range s.own() {
		if e.Server.Name == name && (version == "latest" || version == e.Server.Version) {
			return e, nil
		}
	}
	return Entry{}, plane.Errorf(plane.NotFound, "The registry has no such server, or not that version.").Then("GET /v0.1/servers")
}

// Declaration is what an entry says, as far as Patchbay can use it. What a person would
// have to fill in is left as it stands, and the parser refuses it.
func (e Entry) Declaration() plane.Declaration {
	d := plane.Declaration{Name: plane.SlugOf(e.Server.Name[strings.LastIndex(e.Server.Name, "/")+1:]), Transport: plane.HTTP, Description: e.Server.Description, Link: e.Server.WebsiteURL}
	if d.Link == "" && e.Server.Repository != nil {
		d.Link = e.Server.Repository.URL
	}
	for _, r := range e.Server.Remotes {
		if r.Type != "streamable-http" {
			continue
		}
		d.URL, d.Auth = r.URL, authOf(r.Headers)
		return d
	}
	if d.Transport = plane.Stdio; len(e.Server.Packages) > 0 {
		d.Command = e.Server.Packages[0].Type + ":" + e.Server.Packages[0].Identifier
	}
	return d
}

// authOf is how the headers of a remote sign in.
func authOf(headers []Input) plane.Auth {
	for _, h := range headers {
		switch {
		case strings.EqualFold(h.Name, "Authorization"):
			return plane.AuthBearer
		case h.IsSecret:
			if a, err := plane.ParseAuth("api_key:" + h.Name); err == nil {
				return a
			}
		}
	}
	return plane.AuthOAuth
}

func (s *Service) mirrorPage(ctx context.Context, q Query, after string) (Page, error) {
	name, version, _ := strings.Cut(after, "\x00")
	list, err := s.o.Store.Mirror(ctx, "", q.Search, name, version, q.Latest, q.Limit+1)
	if err != nil {
		return Page{}, err
	}
	out := Page{Servers: []Entry{}}
	for _, m := range list {
		if len(out.Servers) == q.Limit {
			last := list[q.Limit-1]
			out.Metadata.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(last.Name + "\x00" + last.Version))
			break
		}
		var e Entry
		if json.Unmarshal(m.Body, &e) == nil {
			out.Servers = append(out.Servers, e)
		}
	}
	out.Metadata.Count = len(out.Servers)
	return out, nil
}

// Mirrored is a server of the mirrored registry by its name there, with the versions that
// are known of it.
func (s *Service) Mirrored(ctx context.Context, name string) (plane.Declaration, []string, error) {
	list, err := s.o.Store.Mirror(ctx, name, "", "", "", false, 200)
	if err != nil {
		return plane.Declaration{}, nil, err
	}
	var versions []string
	var out *plane.Declaration
	for _, m := range list {
		versions = append(versions, m.Version)
		var e Entry
		if json.Unmarshal(m.Body, &e) == nil && (m.Latest || out == nil) {
			d := e.Declaration()
			out = &d
		}
	}
	if out == nil {
		return plane.Declaration{}, nil, plane.Errorf(plane.NotFound, "The mirrored registry has no %q.", bounded(name)).At("name").Then("patchbay registry list --mirror")
	}
	return *out, versions, nil
}
