package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"patchbay/internal/authn"
	"patchbay/internal/connect"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Tokens are API and agent tokens.
type Tokens interface {
	Create(ctx context.Context, by plane.Principal, n authn.NewToken) (plane.Token, string, error) // the value, for the one time it is shown
	List(ctx context.Context) ([]plane.Token, error)
	Revoke(ctx context.Context, by plane.Principal, id string) error
}

// Keys is the rotation of the key ring.
type Keys interface {
	Status(ctx context.Context) ([]connect.KeyUse, error)
	// Counted is Status as it was last counted, and when that was, where counting takes
	// longer than a moment; before the first count has ended there is nothing.
	Counted(ctx context.Context) ([]connect.KeyUse, time.Time)
	Rotate(ctx context.Context) (KeysRotated, error)
}

// TokenRow is one token, without its value.
type TokenRow struct {
	ID        string    `json:"id"`
	Label     string    `json:"label,omitempty"`
	For       string    `json:"for"` // service, or the person or agent it stands for
	Team      string    `json:"team,omitempty"`
	Scopes    []string  `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	UsedAt    time.Time `json:"used_at,omitzero"`
	Revoked   bool      `json:"revoked,omitempty"`
}

func tokenRow(k plane.Token) TokenRow {
	r := TokenRow{ID: k.ID, Label: k.Label, For: "service", Team: k.Team, Scopes: k.Rights.Names(), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt,
		UsedAt: k.UsedAt, Revoked: !k.RevokedAt.IsZero()}
	switch {
	case k.Agent != "" && k.Person != "":
		r.For = "agent " + k.Agent + " for " + k.Person
	case k.Agent != "":
		r.For = "agent " + k.Agent
	case k.Person != "":
		r.For = k.Person
	}
	return r
}

// TokensCreateInput describes a token.
type TokensCreateInput struct {
	Label   string   `arg:"" optional:"" json:"label,omitempty" help:"What it is for."`
	Scopes  []string `json:"scopes,omitempty" help:"What it may do: mcp:read, mcp:write, runs:read, runs:write, config:write, admin."`
	Service bool     `json:"service,omitempty" help:"A token of nobody (org admins)."`
	Agent   string   `json:"agent,omitempty" help:"A token for one agent's MCP endpoint (its operators)." predictor:"agent"`
	Team    string   `json:"team,omitempty" help:"With --agent: the team whose connections it also uses."`
	Me      bool     `json:"me,omitempty" help:"With --agent: your own connections too."`
	Expires string   `json:"expires,omitempty" help:"How long it lives, as in 30d or 12h; never ends it." default:"90d"`
}

// TokenCreated is a token with its value, shown once.
type TokenCreated struct {
	TokenRow
	Value    string `json:"token"`
	Endpoint string `json:"endpoint,omitempty"` // of an agent's token: where its client connects
}

// Text shows the value, and nothing else, where a program reads.
func (o *TokenCreated) Text(w io.Writer, s Style) {
	if s.Terminal {
		fmt.Fprintf(w, "This is shown once. Keep it where secrets are kept.\n\n  ")
	}
	fmt.Fprintln(w, o.Value)
	if s.Terminal && o.Endpoint != "" {
		fmt.Fprintf(w, "\nAn MCP client connects to %s\nwith the header Authorization: Bearer and the token (docs/agents.md).\n", o.Endpoint)
	}
}

// TokensListInput takes nothing.
type TokensListInput struct{}

// TokensList is tokens, newest first.
type TokensList struct {
	Tokens []TokenRow `json:"tokens"`
}

// Text draws the tokens.
func (o *TokensList) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, k := range o.Tokens {
		state := "live"
		if k.Revoked {
			state = "revoked"
		} else if !k.ExpiresAt.IsZero() && k.ExpiresAt.Before(s.Now) {
			state = "expired"
		}
		used, ends := "used "+s.ago(k.UsedAt), "ends never"
		if k.UsedAt.IsZero() {
			used = "never used"
		}
		if !k.ExpiresAt.IsZero() {
			ends = "ends " + k.ExpiresAt.UTC().Format("2006-01-02")
		}
		rows = append(rows, []string{k.ID, state, k.For, strings.Join(k.Scopes, " "), used, ends, k.Label})
	}
	table(w, s, []string{"TOKEN", "STATE", "FOR", "SCOPES", "USED", "ENDS", "LABEL"}, rows)
}

// TokenInput names a token.
type TokenInput struct {
	ID string `arg:"" json:"id" help:"Id of the token, tok_…"`
}

// Text is silent: it was done.
func (o *TokenRow) Text(io.Writer, Style) {}

// life reads how long a token lives.
func life(s string) (time.Duration, error) {
	if s == "never" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days+" ", "%d ", &n); err == nil && n > 0 && n <= 3650 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, plane.Errorf(plane.InvalidInput, "%q is no length of time; write 30d, 12h or never.", oneLine(s, 20)).At("expires")
	}
	return d, nil
}

// newToken judges who may make what.
func newToken(s *policy.Snapshot, who plane.Principal, in *TokensCreateInput) (authn.NewToken, error) {
	n := authn.NewToken{Label: oneLine(in.Label, 80), Agent: in.Agent, Team: in.Team}
	var err error
	if n.Life, err = life(in.Expires); err != nil {
		return n, err
	}
	if who.Token != "" {
		return n, plane.Errorf(plane.Forbidden, "A token makes no tokens; a signed-in person does.")
	}
	if in.Agent != "" {
		switch {
		case len(in.Scopes) > 0 || in.Service:
			return n, plane.Errorf(plane.InvalidInput, "An agent token opens the agent's MCP endpoint and has no scopes.").At("scopes")
		case !hasAgent(s, in.Agent):
			return n, plane.Errorf(plane.NotFound, "There is no agent %q.", oneLine(in.Agent, 40)).At("agent").Then("patchbay agents list")
		case !s.Operator(who, in.Agent):
			return n, plane.Errorf(plane.Forbidden, "Only the operators of %s make its tokens.", in.Agent)
		case in.Team != "" && !s.Admin(who) && !s.Member(who, in.Team), in.Team != "" && !s.Team(in.Team):
			return n, notInTeam(who)
		}
		if in.Me {
			n.Person = who.ID
		}
		return n, nil
	}
	if n.Rights, err = plane.ParseRights(in.Scopes); err != nil {
		return n, err
	}
	switch {
	case n.Rights == 0:
		return n, plane.Errorf(plane.InvalidInput, "Say what the token may do.").At("scopes").Then("--scopes " + strings.Join(plane.RightNames(), ","))
	case in.Team != "" || in.Me:
		return n, plane.Errorf(plane.InvalidInput, "--team and --me go with --agent.").At("team")
	case in.Service && !s.Admin(who):
		return n, plane.Errorf(plane.Forbidden, "Only an org admin makes a service token.")
	case !in.Service:
		n.Person = who.ID
	}
	return n, nil
}

func hasAgent(s *policy.Snapshot, slug string) bool { _, ok := s.Agent(slug); return ok }

// ownToken says whether a token is the caller's to see and to end.
func ownToken(s *policy.Snapshot, who plane.Principal, k plane.Token) bool {
	return s.Admin(who) || who.HasUserScope() && (k.Person == who.ID || k.CreatedBy == who.ID) || k.Agent != "" && s.Operator(who, k.Agent)
}

func adminCommands(d Deps) []*Command {
	return slices.Concat(tokenCommands(d), keyCommands(d), configCommands(d))
}

func tokenCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "tokens.create", Summary: "Makes an API or agent token and shows it once.", Right: plane.AdminRight, Example: "tokens create ci --scopes mcp:read,runs:write"},
			func(ctx context.Context, who plane.Principal, in *TokensCreateInput) (*TokenCreated, error) {
				n, err := newToken(d.Policy(), who, in)
				if err != nil {
					return nil, err
				}
				k, value, err := d.Tokens.Create(ctx, who, n)
				if err != nil {
					return nil, err
				}
				out := &TokenCreated{TokenRow: tokenRow(k), Value: value}
				if k.Agent != "" && d.AgentURL != nil {
					out.Endpoint = d.AgentURL(k.Agent)
				}
				return out, nil
			}),
		define(About{Name: "tokens.list", Summary: "Lists tokens, without their values.", ReadOnly: true, Right: plane.AdminRight, Example: "tokens list", Alias: "ls"},
			func(ctx context.Context, who plane.Principal, _ *TokensListInput) (*TokensList, error) {
				ks, err := d.Tokens.List(ctx)
				out := &TokensList{Tokens: []TokenRow{}}
				for _, k := range ks {
					if ownToken(d.Policy(), who, k) {
						out.Tokens = append(out.Tokens, tokenRow(k))
					}
				}
				return out, err
			}),
		define(About{Name: "tokens.revoke", Summary: "Ends a token at once.", Right: plane.AdminRight, Example: "tokens revoke tok_01hzzzzzzzzzzzzzzzzzzzzzzz"},
			func(ctx context.Context, who plane.Principal, in *TokenInput) (*TokenRow, error) {
				ks, err := d.Tokens.List(ctx)
				if err != nil {
					return nil, err
				}
				for _, k := range ks {
					if k.ID == in.ID && ownToken(d.Policy(), who, k) {
						row := tokenRow(k)
						row.Revoked = true
						return &row, d.Tokens.Revoke(ctx, who, k.ID)
					}
				}
				return nil, plane.Errorf(plane.NotFound, "There is no such token.").At("id").Then("patchbay tokens list")
			}),
	}
}
