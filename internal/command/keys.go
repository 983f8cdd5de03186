package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"patchbay/internal/connect"
	"patchbay/internal/plane"
)

// KeysInput takes nothing.
type KeysInput struct{}

// KeysStatusInput says how exact a count is wanted.
type KeysStatusInput struct {
	Recent bool `json:"recent,omitempty" help:"As last counted, where counting takes longer than a moment."`
}

// KeysStatus is the ring and what each key sealed.
type KeysStatus struct {
	Keys      []connect.KeyUse `json:"keys"`
	CountedAt time.Time        `json:"counted_at,omitzero"` // with recent; zero: the first count is under way
}

// Text draws the keys.
func (o *KeysStatus) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, k := range o.Keys {
		state := "old"
		switch {
		case k.Active:
			state = "active"
		case !k.InRing:
			state = "missing"
		case k.Total == 0:
			state = "unused"
		}
		rows = append(rows, []string{k.ID, state, fmt.Sprint(k.Blobs["credential"]), fmt.Sprint(k.Blobs["ticket"] + k.Blobs["client"] + k.Blobs["revocation"]), fmt.Sprint(k.Total)})
	}
	table(w, s, []string{"KEY", "STATE", "CREDENTIALS", "TICKETS AND CLIENTS", "ALL BLOBS"}, rows)
}

// KeysRotated is what a rotation did.
type KeysRotated struct {
	Active  string   `json:"active"`
	Sealed  int      `json:"sealed"`            // anew, under the active key
	Stuck   int      `json:"stuck"`             // could not be opened and stay as they are
	Own     bool     `json:"own_file"`          // the ring is Patchbay's own file
	Retired []string `json:"retired,omitempty"` // keys taken out of the ring
	Unused  []string `json:"unused,omitempty"`  // keys that nothing uses any more
}

// Text says what is left to do.
func (o *KeysRotated) Text(w io.Writer, _ Style) {
	fmt.Fprintf(w, "%d sealed values are under the key %s now.\n", o.Sealed, o.Active)
	if o.Stuck > 0 {
		fmt.Fprintf(w, "%d could not be opened with the keys of this server and stay as they are.\n", o.Stuck)
	}
	if o.Own {
		fmt.Fprintln(w, "The key file in the data directory is a new one: back it up again. The old one opens nothing that is written from now on.")
	}
	for _, id := range o.Retired {
		fmt.Fprintf(w, "The key %s was used by nothing any more and is taken out of the ring.\n", id)
	}
	for _, id := range o.Unused {
		fmt.Fprintf(w, "Nothing uses the key %s any more; take it out of the ring.\n", id)
	}
}

// ConfigInput takes nothing.
type ConfigInput struct{}

// ConfigTier is the servers of one scope.
type ConfigTier struct {
	Scope   string   `json:"scope"`
	Servers []string `json:"servers"`
	Pinned  []string `json:"pinned"`
}

// ConfigShow is the tiers in sight.
type ConfigShow struct {
	File   string       `json:"file"`
	Admin  bool         `json:"admin"` // the caller is an org admin
	Caller string       `json:"caller"`
	Tiers  []ConfigTier `json:"tiers"`
	Teams  []string     `json:"teams"`           // that the caller belongs to; an org admin's are all
	Roles  []ConfigRole `json:"roles,omitempty"` // for org admins: whom config names
}

// ConfigRole is what config lets people do.
type ConfigRole struct {
	Role   string   `json:"role"`
	Of     string   `json:"of,omitempty"` // the team or the agent
	People []string `json:"people"`       // as config names them
}

// Text names each tier's servers.
func (o *ConfigShow) Text(w io.Writer, _ Style) {
	file := o.File
	if file == "" {
		file = "none, defaults"
	}
	fmt.Fprintf(w, "file\t%s\nyou are\t%s\n", file, o.Caller)
	for _, t := range o.Tiers {
		var words []string
		for _, n := range t.Servers {
			if slices.Contains(t.Pinned, n) {
				n += " (pinned)"
			}
			words = append(words, n)
		}
		fmt.Fprintf(w, "%s\t%s\n", tier(t.Scope), strings.Join(words, ", "))
	}
}

// Said is one sentence.
type Said struct {
	Text_ string `json:"text"`
}

// Text writes it.
func (o *Said) Text(w io.Writer, _ Style) { fmt.Fprintln(w, o.Text_) }

func keyCommands(d Deps) []*Command {
	admin := func(who plane.Principal) error {
		if !d.Policy().Admin(who) {
			return plane.Errorf(plane.Forbidden, "Only an org admin may do that.")
		}
		return nil
	}
	return []*Command{
		define(About{Name: "keys.status", Summary: "Counts the sealed values of each key of the ring.", ReadOnly: true, Right: plane.AdminRight, Example: "keys status"},
			func(ctx context.Context, who plane.Principal, in *KeysStatusInput) (*KeysStatus, error) {
				if err := admin(who); err != nil {
					return nil, err
				}
				if in.Recent {
					ks, at := d.Keys.Counted(ctx)
					return &KeysStatus{Keys: ks, CountedAt: at}, nil
				}
				ks, err := d.Keys.Status(ctx)
				return &KeysStatus{Keys: ks}, err
			}),
		define(About{Name: "keys.rotate", Summary: "Seals everything anew under the active key, while serving.", Right: plane.AdminRight, Example: "keys rotate"},
			func(ctx context.Context, who plane.Principal, _ *KeysInput) (*KeysRotated, error) {
				if err := admin(who); err != nil {
					return nil, err
				}
				r, err := d.Keys.Rotate(ctx)
				return &r, err
			}),
		define(About{Name: "config.reload", Summary: "Reads the config file again; a bad one changes nothing.", Right: plane.AdminRight, Example: "config reload"},
			func(ctx context.Context, who plane.Principal, _ *ConfigInput) (*Said, error) {
				if err := admin(who); err != nil {
					return nil, err
				}
				text, err := d.Reload(ctx)
				return &Said{text}, err
			}),
		define(About{Name: "signin", Summary: "Prints a one-time link that signs a browser in as the local admin.", Right: plane.AdminRight, Example: "signin"},
			func(_ context.Context, who plane.Principal, _ *ConfigInput) (*Said, error) {
				if who != plane.Local {
					return nil, plane.Errorf(plane.Forbidden, "Only the owner of the server's socket may do that.")
				}
				text, err := d.SignIn()
				return &Said{text}, err
			}),
	}
}

// AgentInput names an agent.
type AgentInput struct {
	Agent string `arg:"" json:"agent" help:"Slug of the agent." predictor:"agent"`
}

// AgentServer is one connection as an agent sees it.
type AgentServer struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Scope string `json:"scope"`
	Tools int    `json:"tools"`
	Why   string `json:"unavailable,omitempty"`
}

// AgentShow is one agent with its servers.
type AgentShow struct {
	Agent   AgentRow      `json:"agent"`
	Servers []AgentServer `json:"servers"`
}

// Text draws the agent.
func (o *AgentShow) Text(w io.Writer, s Style) {
	a := o.Agent
	fmt.Fprintf(w, "agent\t%s\nfor\t%s\ntrust\t%s\nmodel\t%s\ntools\t%s\n\n", a.Slug, a.Description, a.Trust, a.Model, strings.Join(a.Tools, " "))
	var rows [][]string
	for _, v := range o.Servers {
		state := s.state("ok")
		if v.Why != "" {
			state = v.Why
		}
		rows = append(rows, []string{v.Name, tier(v.Scope), fmt.Sprint(v.Tools), state})
	}
	table(w, s, []string{"SERVER", "SCOPE", "TOOLS", "STATE"}, rows)
}

func configCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "config.show", Summary: "Names the servers of each tier in sight.", ReadOnly: true, Right: plane.MCPRead, Example: "config show"},
			func(ctx context.Context, who plane.Principal, _ *ConfigInput) (*ConfigShow, error) {
				snap := d.Policy()
				out := &ConfigShow{File: d.Info(ctx, who).Config, Admin: snap.Admin(who), Caller: who.Name(), Tiers: []ConfigTier{}, Teams: snap.TeamsOf(who)}
				if out.Admin {
					out.Teams = snap.Teams()
					for _, r := range snap.Roles() {
						out.Roles = append(out.Roles, ConfigRole{r.Name, r.Of, append([]string{}, r.People...)})
					}
				}
				if out.Teams == nil {
					out.Teams = []string{}
				}
				for _, a := range snap.Visible(who) {
					sc := a.Scope.String()
					if n := len(out.Tiers); n == 0 || out.Tiers[n-1].Scope != sc {
						out.Tiers = append(out.Tiers, ConfigTier{Scope: sc, Servers: []string{}, Pinned: []string{}})
					}
					t := &out.Tiers[len(out.Tiers)-1]
					t.Servers = append(t.Servers, a.Slug)
					if a.Origin != plane.Added {
						t.Pinned = append(t.Pinned, a.Slug)
					}
				}
				return out, nil
			}),
		define(About{Name: "agents.show", Summary: "Shows one agent and the servers it may use.", ReadOnly: true, Right: plane.MCPRead, Example: "agents show general", Alias: "get"},
			func(_ context.Context, who plane.Principal, in *AgentInput) (*AgentShow, error) {
				snap := d.Policy()
				a, ok := snap.Agent(in.Agent)
				if !ok {
					return nil, plane.Errorf(plane.NotFound, "There is no agent %q.", oneLine(in.Agent, 40)).At("agent").Then("patchbay agents list")
				}
				out := &AgentShow{Agent: agentRow(d, snap, who, a), Servers: []AgentServer{}}
				for _, at := range snap.Resolve(a.Slug, who) {
					v := AgentServer{ID: string(at.ID), Name: at.Slug, Scope: at.Scope.String(), Why: at.Why}
					if c := d.Catalogs.Get(at.ID); c != nil {
						v.Tools = len(c.Definitions)
					}
					out.Servers = append(out.Servers, v)
				}
				return out, nil
			}),
	}
}
