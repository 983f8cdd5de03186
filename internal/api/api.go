// Package api is the HTTP surface: every command at /api/commands/{name}, runs
// and their events, and the OpenAPI document of it all. It translates and
// decides nothing. Who is calling is told to it by the listener.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"patchbay/internal/command"
	"patchbay/internal/consent"
	"patchbay/internal/oauth"
	"patchbay/internal/plane"
	"patchbay/internal/run"
)

// Runs is the part of the runtime whose events are streamed.
type Runs interface {
	Get(ctx context.Context, id plane.RunID) (plane.Run, error)
	Events(ctx context.Context, id plane.RunID, after int64, limit int) ([]plane.Event, error)
	Watch(id plane.RunID) *run.Watch
}

// API serves the HTTP surface.
type API struct {
	commands *command.Registry
	accounts *command.Providers
	runs     Runs
	log      *slog.Logger
	version  string
	signIn   SignIn
	who      func(*http.Request) (plane.Principal, error)
	maySee   func(plane.Principal, plane.Run) bool
	mcp      bool
	keys     func() []SigningKey
	mux      *http.ServeMux
	ending   <-chan struct{}
	watching streams

	teams     TeamServers
	shelf     Gallery
	openShelf bool
}

// maxBody bounds a request's body, in bytes.
const maxBody = 4 << 20

// SignIn begins sign-ins for callers who have a browser at hand, and describes us
// to authorization servers.
type SignIn interface {
	StartFor(ctx context.Context, who plane.Principal, id plane.ConnectionID, redirect, back string) (consent.Leaving, error)
	StartAccount(ctx context.Context, who plane.Principal, r consent.Request, own bool, back string) (consent.Leaving, error)
	Document(local bool) (oauth.Metadata, error)
}

// Options of the surface.
type Options struct {
	Commands  *command.Registry
	Providers *command.Providers
	Runs      Runs
	SignIn    SignIn
	Log       *slog.Logger
	Version   string
	Who       func(*http.Request) (plane.Principal, error) // the caller, or why there is none
	MaySee    func(who plane.Principal, run plane.Run) bool
	Keys      func() []SigningKey // that receipts and checkpoints are signed with, active first
	MCP       bool                // servers can be signed in at all
	Teams     TeamServers
	Gallery   Gallery
	Open      bool            // the gallery is for everybody
	Ending    <-chan struct{} // closed when whoever follows a run must come back elsewhere
}

// New makes the surface.
func New(o Options) *API {
	a := &API{commands: o.Commands, accounts: o.Providers, runs: o.Runs, signIn: o.SignIn, log: o.Log, version: o.Version, who: o.Who, maySee: o.MaySee, mcp: o.MCP, keys: o.Keys, ending: o.Ending, mux: http.NewServeMux(), teams: o.Teams, shelf: o.Gallery, openShelf: o.Open}
	a.mux.HandleFunc("GET /api/commands/{name}", a.describe)
	a.mux.HandleFunc("POST /api/agents/{slug}/mcp/oauth/start", a.startSignIn)
	a.providers()
	a.registry()
	a.reference()
	a.mux.HandleFunc("GET "+consent.DocumentPath, a.document(false))
	a.mux.HandleFunc("GET "+consent.LocalDocumentPath, a.document(true))
	a.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	a.mux.HandleFunc("GET "+signingPath, a.signing)
	a.mux.HandleFunc("GET /api/openapi.json", a.openapi)
	a.mux.HandleFunc("POST /api/commands/{name}", a.command)
	a.mux.HandleFunc("GET /api/runs/{id}/events", a.events)
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, plane.Errorf(plane.NotFound, "There is nothing at this address.").Then("GET /api/openapi.json lists what there is."))
	})
	return a
}

// ServeHTTP serves one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/"); ok { // the same by another name
		r2 := *r
		u := *r.URL
		u.Path = "/api/" + rest
		if raw, ok := strings.CutPrefix(u.RawPath, "/api/v1/"); ok {
			u.RawPath = "/api/" + raw
		}
		r2.URL = &u
		r = &r2
	}
	a.mux.ServeHTTP(w, r)
}

// status maps kinds to HTTP, the one table of this surface.
var status = map[plane.Kind]int{
	plane.InvalidInput: http.StatusBadRequest, plane.Unauthenticated: http.StatusUnauthorized, plane.Forbidden: http.StatusForbidden,
	plane.NotFound: http.StatusNotFound, plane.Conflict: http.StatusConflict, plane.Gone: http.StatusGone,
	plane.Limited: http.StatusTooManyRequests, plane.Unavailable: http.StatusServiceUnavailable, plane.Internal: http.StatusInternalServerError,
}

// Problem is an error over HTTP (RFC 9457) with our code.
type Problem struct {
	Type       string     `json:"type"`
	Title      string     `json:"title"`
	Status     int        `json:"status"`
	Detail     string     `json:"detail"`
	Code       plane.Kind `json:"code"`
	Next       string     `json:"next,omitempty"`
	Field      string     `json:"field,omitempty"`
	Limit      string     `json:"limit,omitempty"`
	RetryAfter float64    `json:"retry_after,omitempty"` // seconds
	// Of a conflict: how it stands now, and what was sent, without its secret.
	Current   *command.Provider `json:"current,omitempty"`
	Submitted any               `json:"submitted,omitempty"`
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) { a.refuse(w, r, err, nil, nil) }

// refuse is fail with both states of a conflict.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error, current *command.Provider, submitted any) {
	e := plane.Public(err)
	code := status[e.Kind]
	if code == 0 {
		code = http.StatusInternalServerError
	}
	if code >= 500 {
		a.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err, "cause", errors.Unwrap(err))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter.Seconds())+1))
	}
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(Problem{Type: "about:blank", Title: http.StatusText(code), Status: code, Detail: e.Message, Code: e.Kind,
		Next: e.Next, Field: e.Field, Limit: e.Limit, RetryAfter: e.RetryAfter.Seconds(), Current: current, Submitted: submitted})
}

func (a *API) command(w http.ResponseWriter, r *http.Request) {
	who, err := a.who(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	cmd, err := a.commands.Get(r.PathValue("name"))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	in := cmd.Input()
	if err := decode(http.MaxBytesReader(w, r.Body, maxBody), in); err != nil {
		a.fail(w, r, err)
		return
	}
	out, err := cmd.Run(r.Context(), who, in)
	if err != nil {
		if name := command.Named(in); name != "" && plane.KindOf(err) == plane.Conflict {
			if now, nerr := a.accounts.Standing(r.Context(), who, name); nerr == nil {
				a.refuse(w, r, err, now, in)
				return
			}
		}
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(out)
}

// decode reads one JSON object strictly. An empty body is an empty object.
func decode(r io.Reader, into any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if errors.Is(err, io.EOF) {
		return nil
	}
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return plane.Errorf(plane.InvalidInput, "The request is larger than %d bytes.", maxBody)
	}
	if err == nil && d.More() {
		err = errors.New("api: data after the object")
	}
	if err != nil {
		// The decoder's text may repeat what was sent.
		return plane.Errorf(plane.InvalidInput, "The request's body is not the JSON object that this command takes.").
			Then("GET /api/openapi.json describes it.").Because(err)
	}
	return nil
}
