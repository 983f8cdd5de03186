package command

import (
	"context"
	"fmt"
	"io"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// MCPChanged is a connection after a change.
type MCPChanged struct {
	Server ServerRow `json:"server"`
	Done   string    `json:"done"` // what was done, one sentence
}

// Text says what was done.
func (o *MCPChanged) Text(w io.Writer, _ Style) { fmt.Fprintln(w, o.Done) }

// RenameInput gives another name or label.
type RenameInput struct {
	Name  string `arg:"" json:"name" help:"Name of the server, or scope/name." predictor:"server"`
	To    string `arg:"" optional:"" json:"to,omitempty" help:"The new name."`
	Label string `json:"label,omitempty" help:"What people call it."`
}

// manageCommands change connections that are there.
func manageCommands(d Deps) []*Command {
	change := func(done string, fn func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error)) func(context.Context, plane.Principal, *NameInput) (*MCPChanged, error) {
		return func(ctx context.Context, who plane.Principal, in *NameInput) (*MCPChanged, error) {
			return changed(ctx, d, who, in.Name, done, fn)
		}
	}
	return []*Command{
		define(About{Name: "mcp.logout", Summary: "Takes a server's credential away and has it revoked; the connection stays.", Right: plane.MCPWrite, Example: "mcp logout linear"},
			change("%s is signed out. Its preferences are kept.", func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
				return d.Consent.Logout(ctx, who, id)
			})),
		define(About{Name: "mcp.remove", Summary: "Takes a connection away: its links, its credential, its catalog.", Right: plane.MCPWrite, Example: "mcp remove linear", Alias: "rm"},
			change("%s is removed. Its calls stay on record.", func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
				return d.Consent.Remove(ctx, who, id)
			})),
		define(About{Name: "mcp.rename", Summary: "Gives a connection another name or label.", Right: plane.MCPWrite, Example: "mcp rename linear tickets --label Tickets"},
			func(ctx context.Context, who plane.Principal, in *RenameInput) (*MCPChanged, error) {
				if in.To == "" && in.Label == "" {
					return nil, plane.Errorf(plane.InvalidInput, "Say the new name or the new label.").At("to")
				}
				done := in.Name + " is now %s."
				if in.To == "" {
					done = "%s has a new label."
				}
				return changed(ctx, d, who, in.Name, done, func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error) {
					return d.Consent.Rename(ctx, who, id, in.To, in.Label)
				})
			}),
		define(About{Name: "mcp.why", Summary: "Says why a tool can or cannot be called, and what decided it.", ReadOnly: true, Right: plane.MCPRead, Example: "mcp why linear/get_issue", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *WhyInput) (*Why, error) { return why(d, who, in) }),
	}
}

func changed(ctx context.Context, d Deps, who plane.Principal, name, done string, fn func(ctx context.Context, who plane.Principal, id plane.ConnectionID) (plane.Connection, error)) (*MCPChanged, error) {
	if err := d.off(); err != nil {
		return nil, err
	}
	a, err := connection(d.Policy(), who, name)
	if err != nil {
		return nil, err
	}
	conn, err := fn(ctx, who, a.ID)
	if err != nil {
		return nil, err
	}
	return &MCPChanged{Server: serverRow(policy.Attached{Connection: &conn}, d.Catalogs.Get(conn.ID)), Done: fmt.Sprintf(done, conn.Slug)}, nil
}
