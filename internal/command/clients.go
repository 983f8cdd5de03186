package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Clients are the MCP clients that people let act for them.
type Clients interface {
	List(ctx context.Context, person string) ([]plane.Authorization, error) // "" for everybody's
	Revoke(ctx context.Context, by plane.Principal, id string) error
}

// People are who was seen here.
type People interface {
	People(ctx context.Context) ([]plane.Person, error)
	RevokePerson(ctx context.Context, by plane.Principal, id string, out bool) error
}

// ClientRow is one client that a person lets act for them at one address.
type ClientRow struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Client    string    `json:"client"`  // its id
	Returns   string    `json:"returns"` // host that it was sent back to
	Agent     string    `json:"agent,omitempty"`
	Person    string    `json:"person"`
	Team      string    `json:"team,omitempty"`
	Scopes    []string  `json:"scopes"`
	CreatedAt time.Time `json:"created_at"`
	UsedAt    time.Time `json:"used_at,omitzero"`
	ExpiresAt time.Time `json:"expires_at"`
}

func clientRow(a plane.Authorization) ClientRow {
	r := ClientRow{ID: a.ID, Name: a.Name, Client: a.Client, Returns: a.Host, Person: a.Person, Team: a.Team, Scopes: a.Rights.Names(), CreatedAt: a.CreatedAt, UsedAt: a.UsedAt, ExpiresAt: a.ExpiresAt}
	if i := strings.LastIndexByte(a.Path, '/'); i > 0 {
		r.Agent = a.Path[i+1:]
	}
	return r
}

// ClientsListInput says whose.
type ClientsListInput struct {
	All bool `json:"all,omitempty" help:"Everybody's (org admins)."`
}

// ClientsList is the clients, newest first.
type ClientsList struct {
	Clients []ClientRow `json:"clients"`
}

// Text draws the clients.
func (o *ClientsList) Text(w io.Writer, s Style) {
	if len(o.Clients) == 0 && s.Terminal {
		fmt.Fprintln(w, "No client was let in. Add an agent's address to an MCP client, and it sends you to sign in: docs/agents.md")
	}
	var rows [][]string
	for _, c := range o.Clients {
		agent, used := c.Agent, "used "+s.ago(c.UsedAt)
		if agent == "" {
			agent = "the commands"
		}
		if c.UsedAt.IsZero() {
			used = "never used"
		}
		rows = append(rows, []string{c.ID, c.Name, c.Returns, agent, c.Person, used, "ends " + c.ExpiresAt.UTC().Format("2006-01-02")})
	}
	table(w, s, []string{"CLIENT", "NAME", "RETURNS TO", "AGENT", "PERSON", "USED", "ENDS"}, rows)
}

// ClientInput names what a person let a client do.
type ClientInput struct {
	ID string `arg:"" json:"id" help:"Id of the client, aut_…" predictor:"client"`
}

// Text is silent: it was done.
func (o *ClientRow) Text(io.Writer, Style) {}

// PersonRow is somebody who was seen.
type PersonRow struct {
	ID      string    `json:"id"`
	Email   string    `json:"email,omitempty"`
	Name    string    `json:"name,omitempty"`
	SeenAt  time.Time `json:"seen_at"`
	Revoked bool      `json:"revoked,omitempty"`
}

// PeopleListInput takes nothing.
type PeopleListInput struct{}

// PeopleList is everybody who was seen, by address.
type PeopleList struct {
	People []PersonRow `json:"people"`
}

// Text draws the people.
func (o *PeopleList) Text(w io.Writer, s Style) {
	if len(o.People) == 0 && s.Terminal {
		fmt.Fprintln(w, "Nobody was seen yet but the owner of this computer, whom nothing shuts out.")
	}
	var rows [][]string
	for _, p := range o.People {
		state := "in"
		if p.Revoked {
			state = "shut out"
		}
		rows = append(rows, []string{p.Email, state, "seen " + s.ago(p.SeenAt), p.Name, p.ID})
	}
	table(w, s, []string{"PERSON", "STATE", "SEEN", "NAME", "ID"}, rows)
}

// PersonInput names somebody.
type PersonInput struct {
	Person string `arg:"" json:"person" help:"Their verified address, or issuer|subject." predictor:"person"`
}

// Text is silent: it was done.
func (o *PersonRow) Text(io.Writer, Style) {}

// endRuns cancels the runs under way that somebody asked for who is let in no more.
func endRuns(ctx context.Context, d Deps, by plane.Principal, theirs func(*plane.Run) bool) error {
	var errs []error
	for _, state := range []plane.RunState{plane.RunQueued, plane.RunRunning, plane.RunWaiting} {
		runs, err := d.Runs.List(ctx, plane.RunFilter{State: state, Limit: maxEnded})
		errs = append(errs, err)
		for i := range runs {
			if !theirs(&runs[i]) {
				continue
			}
			if err := d.Runs.Cancel(ctx, by, runs[i].ID); err != nil && plane.KindOf(err) != plane.Conflict && plane.KindOf(err) != plane.Gone {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// maxEnded bounds the runs that are looked through.
const maxEnded = 10_000

func clientCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "clients.list", Summary: "Lists the MCP clients that you let act for you.", ReadOnly: true, Right: plane.AdminRight, Example: "clients list", Alias: "ls"},
			func(ctx context.Context, who plane.Principal, in *ClientsListInput) (*ClientsList, error) {
				if in.All && !d.Policy().Admin(who) {
					return nil, plane.Errorf(plane.Forbidden, "Only an org admin sees everybody's clients.").At("all")
				}
				person := who.ID
				if in.All {
					person = ""
				}
				all, err := d.Clients.List(ctx, person)
				out := &ClientsList{Clients: []ClientRow{}}
				for _, a := range all {
					out.Clients = append(out.Clients, clientRow(a))
				}
				return out, err
			}),
		define(About{Name: "clients.revoke", Summary: "Takes back what a client may do, at once.", Right: plane.AdminRight, Example: "clients revoke aut_01hzzzzzzzzzzzzzzzzzzzzzzz"},
			func(ctx context.Context, who plane.Principal, in *ClientInput) (*ClientRow, error) {
				person := who.ID
				if d.Policy().Admin(who) {
					person = ""
				}
				all, err := d.Clients.List(ctx, person)
				if err != nil {
					return nil, err
				}
				for _, a := range all {
					if a.ID == in.ID {
						row := clientRow(a)
						if err := d.Clients.Revoke(ctx, who, a.ID); err != nil {
							return nil, err
						}
						return &row, endRuns(ctx, d, who, func(r *plane.Run) bool { return r.Caller.Token == a.ID })
					}
				}
				return nil, plane.Errorf(plane.NotFound, "There is no such client.").At("id").Then("patchbay clients list")
			}),
	}
}

func peopleCommands(d Deps) []*Command {
	change := func(ctx context.Context, who plane.Principal, person string, out bool) (*PersonRow, error) {
		if !d.Policy().Admin(who) {
			return nil, plane.Errorf(plane.Forbidden, "Only an org admin shuts people out.")
		}
		all, err := d.People.People(ctx)
		if err != nil {
			return nil, err
		}
		var found []plane.Person
		for _, p := range all {
			if p.ID == person {
				found = []plane.Person{p}
				break
			}
			if p.Email != "" && plane.SameAddress(p.Email, person) {
				found = append(found, p)
			}
		}
		switch {
		case len(found) == 0:
			return nil, plane.Errorf(plane.NotFound, "Nobody of that name was seen here.").At("person").Then("patchbay people list")
		case len(found) > 1:
			return nil, plane.Errorf(plane.Conflict, "%d people have that address.", len(found)).At("person").Then("Name one by id: patchbay people list")
		case out && found[0].ID == who.ID:
			return nil, plane.Errorf(plane.InvalidInput, "That is you: you would not get in again.").At("person")
		}
		p := found[0]
		row := &PersonRow{ID: p.ID, Email: p.Email, Name: p.Name, SeenAt: p.SeenAt, Revoked: out}
		if err := d.People.RevokePerson(ctx, who, p.ID, out); err != nil || !out {
			return row, err
		}
		return row, endRuns(ctx, d, who, func(r *plane.Run) bool { return r.Caller.ID == p.ID })
	}
	return []*Command{
		define(About{Name: "people.list", Summary: "Lists who was seen here (org admins).", ReadOnly: true, Right: plane.AdminRight, Example: "people list", Alias: "ls"},
			func(ctx context.Context, who plane.Principal, _ *PeopleListInput) (*PeopleList, error) {
				if !d.Policy().Admin(who) {
					return nil, plane.Errorf(plane.Forbidden, "Only an org admin sees who was seen.")
				}
				all, err := d.People.People(ctx)
				out := &PeopleList{People: []PersonRow{}}
				for _, p := range all {
					out.People = append(out.People, PersonRow{ID: p.ID, Email: p.Email, Name: p.Name, SeenAt: p.SeenAt, Revoked: !p.RevokedAt.IsZero()})
				}
				return out, err
			}),
		define(About{Name: "people.revoke", Summary: "Shuts somebody out: browsers, tokens and clients, at once.", Right: plane.AdminRight, Example: "people revoke ada@example.com"},
			func(ctx context.Context, who plane.Principal, in *PersonInput) (*PersonRow, error) {
				return change(ctx, who, in.Person, true)
			}),
		define(About{Name: "people.restore", Summary: "Lets somebody in again. What clients had is not given back.", Right: plane.AdminRight, Example: "people restore ada@example.com"},
			func(ctx context.Context, who plane.Principal, in *PersonInput) (*PersonRow, error) {
				return change(ctx, who, in.Person, false)
			}),
	}
}
