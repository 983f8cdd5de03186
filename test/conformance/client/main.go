// Command client is the program that the official conformance suites drive: our
// wire, one scenario a start, no SDK. The server's URL is the last argument.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"patchbay/internal/mcp"
)

type scenario func(ctx context.Context, c *mcp.Client, input json.RawMessage) error

var scenarios = map[string]scenario{
	"initialize":                          listOnly,
	"request-metadata":                    nothing,
	"tools_call":                          callOne("add_numbers", `{"a":5,"b":3}`),
	"elicitation-sep1034-client-defaults": callOne("test_client_elicitation_defaults", `{}`),
	"sse-retry":                           callOne("test_reconnection", `{}`),
	"json-schema-ref-no-deref":            listOnly,
	"json-schema-2020-12-preservation":    echoSchema,
	"sep-2322-client-request-state":       rounds,
	"http-standard-headers":               everyKind,
	"http-custom-headers":                 givenCalls,
	"http-invalid-tool-headers":           validTools,
}

func main() {
	name := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	if strings.HasPrefix(name, "auth/") && len(os.Args) > 1 {
		ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
		defer cancel()
		if err := signedIn(ctx, os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	run, ok := scenarios[name]
	if !ok || len(os.Args) < 2 {
		fmt.Fprintf(os.Stderr, "no scenario %q here\n", name)
		os.Exit(2)
	}
	if err := drive(run, os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func drive(run scenario, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	c, err := mcp.NewClient(mcp.Options{
		Endpoint: url, Transport: &http.Transport{}, Info: mcp.Implementation{Name: "patchbay-conformance", Version: "1"},
		Capabilities: json.RawMessage(`{"elicitation":{"form":{}}}`),
		Answer:       elicit,
		Bounds: mcp.Bounds{Header: 10 * time.Second, Idle: 20 * time.Second, Total: 25 * time.Second,
			Body: 2 << 20, Tools: 256, Pages: 16, Resumes: 3},
	})
	if err != nil {
		return err
	}
	if err := c.Open(ctx); err != nil {
		return err
	}
	defer c.Close()
	// A server may ask something on its own stream: it has to stand first.
	c.Listen()
	select {
	case <-c.Listening():
	case <-ctx.Done():
		return ctx.Err()
	}
	return run(ctx, c, json.RawMessage(os.Getenv("MCP_CONFORMANCE_CONTEXT")))
}

// elicit accepts a form with the defaults that its schema names.
func elicit(_ context.Context, method string, params json.RawMessage) (json.RawMessage, *mcp.RPCError) {
	if method != "elicitation/create" {
		return nil, &mcp.RPCError{Code: mcp.CodeMethodNotFound, Message: "not offered"}
	}
	var p struct {
		Schema struct {
			Properties map[string]struct {
				Type    string          `json:"type"`
				Default json.RawMessage `json:"default"`
			} `json:"properties"`
		} `json:"requestedSchema"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "unreadable"}
	}
	content := map[string]json.RawMessage{}
	for k, v := range p.Schema.Properties {
		switch {
		case v.Default != nil:
			content[k] = v.Default
		case v.Type == "boolean":
			content[k] = json.RawMessage(`true`)
		}
	}
	out, err := json.Marshal(map[string]any{"action": "accept", "content": content})
	if err != nil {
		return nil, &mcp.RPCError{Code: mcp.CodeInternal, Message: "unwritable"}
	}
	return out, nil
}

func nothing(context.Context, *mcp.Client, json.RawMessage) error { return nil }

func listOnly(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
	_, err := list(ctx, c)
	return err
}

type tool struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"inputSchema"`
}

func list(ctx context.Context, c *mcp.Client) ([]tool, error) {
	l, err := c.ListTools(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]tool, 0, len(l.Tools))
	for _, raw := range l.Tools {
		var t tool
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func call(ctx context.Context, c *mcp.Client, tools []tool, name, args string) error {
	in := mcp.Call{Name: name, Arguments: json.RawMessage(args)}
	for _, t := range tools {
		if t.Name == name {
			hs, err := mcp.ParamHeaders(t.Schema)
			if err != nil {
				return err
			}
			in.Headers = hs
		}
	}
	_, err := c.Call(ctx, in)
	return err
}

func callOne(name, args string) scenario {
	return func(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
		tools, err := list(ctx, c)
		if err != nil {
			return err
		}
		return call(ctx, c, tools, name, args)
	}
}

func echoSchema(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
	tools, err := list(ctx, c)
	if err != nil {
		return err
	}
	for _, t := range tools {
		if t.Name == "json_schema_2020_12_tool" {
			return call(ctx, c, tools, "json_schema_echo", `{"schema":`+string(t.Schema)+`}`)
		}
	}
	return fmt.Errorf("the tool is not listed")
}

// rounds answers each request for input and goes back with the state it was
// given, to that tool and no other.
func rounds(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
	for _, name := range []string{"test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type"} {
		in := mcp.Call{Name: name, Arguments: json.RawMessage(`{}`)}
		for range 4 {
			r, err := c.Call(ctx, in)
			if err != nil {
				fmt.Fprintln(os.Stderr, name, err)
				break
			}
			if !r.NeedsInput {
				break
			}
			var need struct {
				Requests map[string]struct {
					Method string          `json:"method"`
					Params json.RawMessage `json:"params"`
				} `json:"inputRequests"`
				State *string `json:"requestState"`
			}
			if err := json.Unmarshal(r.Result, &need); err != nil {
				return err
			}
			responses := map[string]json.RawMessage{}
			for id, q := range need.Requests {
				a, rpcErr := elicit(ctx, q.Method, q.Params)
				if rpcErr != nil {
					return rpcErr
				}
				responses[id] = a
			}
			extra, err := json.Marshal(struct {
				Responses map[string]json.RawMessage `json:"inputResponses"`
				State     *string                    `json:"requestState,omitempty"`
			}{responses, need.State})
			if err != nil {
				return err
			}
			in.Extra = extra[1 : len(extra)-1]
		}
	}
	return nil
}

func everyKind(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
	if tools, err := list(ctx, c); err == nil && len(tools) > 0 {
		call(ctx, c, tools, tools[0].Name, `{}`)
	}
	var res struct {
		Resources []struct{ URI string }
		Prompts   []struct{ Name string }
	}
	if raw, err := c.Request(ctx, "resources/list", "", nil); err == nil && json.Unmarshal(raw, &res) == nil && len(res.Resources) > 0 {
		uri, _ := json.Marshal(res.Resources[0].URI)
		c.Request(ctx, "resources/read", res.Resources[0].URI, json.RawMessage(`{"uri":`+string(uri)+`}`))
	}
	if raw, err := c.Request(ctx, "prompts/list", "", nil); err == nil && json.Unmarshal(raw, &res) == nil && len(res.Prompts) > 0 {
		name, _ := json.Marshal(res.Prompts[0].Name)
		c.Request(ctx, "prompts/get", res.Prompts[0].Name, json.RawMessage(`{"name":`+string(name)+`,"arguments":{}}`))
	}
	return nil
}

func givenCalls(ctx context.Context, c *mcp.Client, input json.RawMessage) error {
	tools, err := list(ctx, c)
	if err != nil {
		return err
	}
	var in struct {
		ToolCalls []struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"toolCalls"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return err
	}
	for _, t := range in.ToolCalls {
		args := string(t.Arguments)
		if args == "" {
			args = `{}`
		}
		if err := call(ctx, c, tools, t.Name, args); err != nil {
			fmt.Fprintln(os.Stderr, t.Name, err)
		}
	}
	return nil
}

func validTools(ctx context.Context, c *mcp.Client, _ json.RawMessage) error {
	tools, err := list(ctx, c)
	if err != nil {
		return err
	}
	for _, t := range tools {
		if _, err := mcp.ParamHeaders(t.Schema); err != nil {
			fmt.Fprintln(os.Stderr, t.Name, "dropped:", err)
			continue
		}
		if err := call(ctx, c, tools, t.Name, `{"region":"us-west1"}`); err != nil {
			fmt.Fprintln(os.Stderr, t.Name, err)
		}
	}
	return nil
}
