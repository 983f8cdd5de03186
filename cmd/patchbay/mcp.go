package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

type mcpGroup struct {
	List  mcpListCmd  `cmd:"" aliases:"ls" help:"List the MCP servers and how they stand."`
	Show  mcpShowCmd  `cmd:"" aliases:"get" help:"Show one MCP server with its tools."`
	Test  mcpTestCmd  `cmd:"" help:"Ask an MCP server for its tools now."`
	Tools mcpToolsCmd `cmd:"" help:"List the tools of one MCP server or of all."`
	Call  mcpCallCmd  `cmd:"" help:"Call a tool, on the record."`
}

type mcpListCmd struct{}

func (mcpListCmd) Run(e *env) error {
	return e.command("mcp.list", command.MCPListInput{}, &command.MCPList{})
}

type mcpShowCmd struct {
	Name string `arg:"" help:"Name of the server, or scope/name." predictor:"server"`
}

func (c *mcpShowCmd) Run(e *env) error {
	return e.command("mcp.show", command.NameInput{Name: c.Name}, &command.MCPShow{})
}

type mcpTestCmd struct {
	Name string `arg:"" help:"Name of the server, or scope/name." predictor:"server"`
}

func (c *mcpTestCmd) Run(e *env) error {
	return e.command("mcp.test", command.NameInput{Name: c.Name}, &command.MCPTest{})
}

type mcpToolsCmd struct {
	Name string `arg:"" optional:"" help:"Only this server's tools." predictor:"server"`
}

func (c *mcpToolsCmd) Run(e *env) error {
	return e.command("mcp.tools", command.MCPToolsInput{Name: c.Name}, &command.MCPTools{})
}

type mcpCallCmd struct {
	Name      string   `arg:"" help:"Name of the server." predictor:"server"`
	Tool      string   `arg:"" help:"The tool's own name, or its alias." predictor:"tool"`
	Arguments string   `arg:"" optional:"" help:"Arguments as a JSON object; - reads it from standard input."`
	Arg       []string `short:"a" placeholder:"KEY=VALUE" sep:"none" help:"One argument, typed by the tool's schema. May be repeated."`
	Agent     string   `help:"The agent to call as." default:"general" predictor:"agent"`
}

const maxArguments = 2 << 20

func (c *mcpCallCmd) Run(e *env) error {
	in := command.MCPCallInput{Name: c.Name, Tool: c.Tool, Agent: c.Agent}
	var err error
	if in.Arguments, err = c.arguments(e.in); err != nil {
		return err
	}
	for _, kv := range c.Arg {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return plane.Errorf(plane.InvalidInput, "%q is not KEY=VALUE.", kv).At("arg")
		}
		if in.Pairs == nil {
			in.Pairs = map[string]string{}
		}
		in.Pairs[k] = v
	}
	var out command.MCPCall
	if err := e.client.Command(e.ctx, "mcp.call", in, &out); err != nil {
		if e.ctx.Err() != nil {
			fmt.Fprintln(e.err, "patchbay: No longer waiting. Whether the call took effect is on record.\nNext: patchbay status")
			return exitCode(exitUsage)
		}
		return err
	}
	if err := e.write(&out); err != nil {
		return err
	}
	if out.IsError {
		return exitCode(exitFailed)
	}
	return nil
}

// arguments reads the object that was given.
func (c *mcpCallCmd) arguments(stdin io.Reader) (json.RawMessage, error) {
	text := c.Arguments
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(stdin, maxArguments))
		if err != nil {
			return nil, plane.Errorf(plane.InvalidInput, "The arguments cannot be read from standard input.").Because(err)
		}
		text = string(b)
	}
	if text == "" {
		return nil, nil
	}
	var obj map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &obj); err != nil || obj == nil {
		return nil, plane.Errorf(plane.InvalidInput, "The arguments are not a JSON object.").At("arguments").
			Then(`patchbay mcp call ` + c.Name + ` ` + c.Tool + ` '{"key": "value"}'`)
	}
	return json.RawMessage(text), nil // as it was written, numbers and all
}
