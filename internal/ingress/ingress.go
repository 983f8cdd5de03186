// Package ingress is the MCP surface towards agents: the commands at /mcp, with the
// same inputs, outputs and refusals as every other surface, and at /mcp/agents/{slug}
// the tools, resources and prompts that one agent may use. It promises that who is
// calling is known before anything is read, and that a session, with its notices and
// its questions, serves whoever began it and nobody else.
package ingress

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"patchbay/internal/command"
	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// Commands serves the commands as MCP tools.
type Commands struct {
	registry *command.Registry
	who      func(*http.Request) (plane.Principal, error)
	defs     func() ([]json.RawMessage, error) // made at the first listing
}

// New makes the endpoint. who tells the caller of a request, metadata where the endpoint's
// description stands.
func New(registry *command.Registry, version string, who func(*http.Request) (plane.Principal, error), metadata func(*http.Request) string) http.Handler {
	c := &Commands{registry: registry, who: who, defs: sync.OnceValues(func() ([]json.RawMessage, error) { return definitions(registry) })}
	return refuseStrangers(who, metadata, registry, &mcp.Server{Info: mcp.Implementation{Name: "patchbay", Version: version}, Tools: c,
		Instructions: "The commands of this Patchbay server."})
}

// definitions describes every command as a tool.
func definitions(registry *command.Registry) ([]json.RawMessage, error) {
	var defs []json.RawMessage
	for _, cmd := range registry.All() {
		schema := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer).Schema(reflect.TypeOf(cmd.Input()).Elem(), false, "")
		help, err := registry.Help(cmd.Name)
		if err != nil {
			return nil, err
		}
		def, err := json.Marshal(map[string]any{"name": cmd.Name, "description": help, "inputSchema": schema,
			"annotations": annotations(cmd)})
		if err != nil {
			return nil, err
		}
		defs = append(defs, def)
	}
	return defs, nil
}

// annotations claim only that a command reads, where it does; what the others
// may change is for the protocol's own defaults to fear.
func annotations(cmd *command.Command) map[string]bool {
	if cmd.ReadOnly {
		return map[string]bool{"readOnlyHint": true, "openWorldHint": false}
	}
	return map[string]bool{"readOnlyHint": false}
}

// refuseStrangers answers 401 before anything of a request is read.
func refuseStrangers(who func(*http.Request) (plane.Principal, error), metadata func(*http.Request) string, registry *command.Registry, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := who(r)
		if err == nil && p.Kind == plane.KindAgent {
			err = plane.Errorf(plane.Forbidden, "An agent token opens its agent's endpoint, not the commands.")
		}
		if err != nil {
			code := refusalStatus(err)
			w.Header().Set("WWW-Authenticate", challenge(r, metadata, code == http.StatusUnauthorized, commandScopes))
			http.Error(w, plane.Public(err).Message, code)
			return
		}
		if p.ThroughClient() {
			if lacks := steps(r, registry, p); lacks != 0 {
				w.Header().Set("WWW-Authenticate", challenge(r, metadata, false, strings.Join((p.Rights|lacks).Names(), " "))+`, error="insufficient_scope"`)
				http.Error(w, "The client was not let in for this: it lacks the scope "+strings.Join(lacks.Names(), " ")+".", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// maxPeeked bounds what is read ahead of a request: a command's input is small.
const maxPeeked = 1 << 20

// steps are the rights that a client lacks for the command that it calls, for which it sends
// its person again (MCP authorization, scope challenge). The body is read and put back.
func steps(r *http.Request, registry *command.Registry, p plane.Principal) plane.Rights {
	if r.Method != http.MethodPost {
		return 0
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxPeeked))
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), r.Body), r.Body}
	var call struct {
		Method string `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	if err != nil || json.Unmarshal(b, &call) != nil || call.Method != mcp.MethodToolsCall {
		return 0
	}
	cmd, err := registry.Get(call.Params.Name)
	if err != nil || p.Rights.Has(cmd.Right) {
		return 0
	}
	return cmd.Right &^ p.Rights
}

// Tools lists the commands to whoever may call them.
func (c *Commands) Tools(_ context.Context, r *http.Request) ([]json.RawMessage, error) {
	if _, err := c.who(r); err != nil {
		return nil, err
	}
	return c.defs()
}

// CallTool runs a command. A refusal is a tool error with the code.
func (c *Commands) CallTool(ctx context.Context, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	who, err := c.who(in.HTTP)
	if err != nil {
		return refusal(err), nil
	}
	cmd, err := c.registry.Get(in.Name)
	if err != nil {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: plane.Public(err).Message}
	}
	input := cmd.Input()
	if len(in.Arguments) > 0 {
		if err := strict(in.Arguments, input); err != nil {
			return refusal(err), nil
		}
	}
	out, err := cmd.Run(ctx, who, input)
	if err != nil {
		return refusal(err), nil
	}
	b, err := json.Marshal(out)
	if err != nil {
		return refusal(err), nil
	}
	return result(b, false), nil
}

func refusal(err error) json.RawMessage {
	e := plane.Public(err)
	body := map[string]any{"error": map[string]any{"code": e.Kind, "message": e.Message, "next": e.Next}}
	b, _ := json.Marshal(body) // strings always marshal
	return result(b, true)
}

func result(structured []byte, isError bool) json.RawMessage {
	b, _ := json.Marshal(map[string]any{ // valid JSON and a string always marshal
		"content":           []any{map[string]string{"type": "text", "text": string(structured)}},
		"structuredContent": json.RawMessage(structured),
		"isError":           isError,
	})
	return b
}

func strict(args json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return plane.Errorf(plane.InvalidInput, "The arguments are not what this command takes.").Because(err)
	}
	return nil
}
