package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
)

// CallRecords are the rows of calls.
type CallRecords interface {
	Calls(ctx context.Context, f plane.CallFilter) ([]plane.Call, error)
	AttemptsOfCall(ctx context.Context, id plane.CallID) ([]plane.Attempt, error)
	Claims(ctx context.Context) ([]plane.Claim, error)
	AuditRecords
}

// Attention is how long an unknown call of a client stays in view. Its claim stays
// until somebody says what became of it.
const Attention = 7 * 24 * time.Hour

// CallsListInput says which calls.
type CallsListInput struct {
	Unknown    bool   `json:"unknown,omitempty" help:"Those that nobody knows the outcome of."`
	All        bool   `json:"all,omitempty" help:"With --unknown: those of clients that are older than seven days, too."`
	Agent      string `json:"agent,omitempty" help:"Of one agent." predictor:"agent"`
	Server     string `json:"server,omitempty" help:"Of one server." predictor:"server"`
	Connection string `json:"connection,omitempty" help:"Of one connection, by id, within the last seven days."`
	State      string `json:"state,omitempty" enum:",succeeded,failed,unknown,dispatched,awaiting_approval" default:"" help:"In this state alone: succeeded, failed, unknown, dispatched or awaiting_approval."`
	Run        string `json:"run,omitempty" help:"Of one run, or of a client's session."`
	Limit      int    `json:"limit,omitempty" help:"How many." default:"50"`
	Before     string `json:"before,omitempty" help:"Older than this one, by id."`
}

// CallsList is calls, newest first.
type CallsList struct {
	Calls []CallRow `json:"calls"`
}

// Text draws them.
func (o *CallsList) Text(w io.Writer, s Style) {
	if len(o.Calls) == 0 && s.Terminal {
		fmt.Fprintln(w, "No call.")
		return
	}
	var rows [][]string
	for _, c := range o.Calls {
		rows = append(rows, []string{c.ID, s.state(c.State), c.Agent, c.Server + "/" + bridge.Visible(c.Tool), c.Class, s.ago(c.PlannedAt), c.Reason})
	}
	table(w, s, []string{"CALL", "STATE", "AGENT", "TOOL", "CLASS", "BEGAN", "WHY"}, rows)
}

// CallInput names a call.
type CallInput struct {
	ID string `arg:"" json:"id" help:"Id of the call." predictor:"call"`
}

// Text draws one call: what was asked, of whom, when, and what may be done about it.
func (c *CallRow) Text(w io.Writer, s Style) {
	began := c.PlannedAt.UTC().Format("2006-01-02 15:04:05 UTC")
	if s.Terminal {
		began += ", " + s.ago(c.PlannedAt)
	}
	fmt.Fprintf(w, "call\t%s\nstate\t%s\nagent\t%s\nfor\t%s\ntool\t%s/%s (%s)\nbegan\t%s\n", c.ID, s.state(c.State), c.Agent, c.Principal, c.Server, bridge.Visible(c.Tool), c.Class, began)
	if c.Reason != "" {
		fmt.Fprintf(w, "why\t%s\n", c.Reason)
	}
	if c.Target != "" {
		fmt.Fprintf(w, "target\t%s\n", bridge.Visible(c.Target))
	}
	switch c.Held {
	case "":
	case c.Reason:
		fmt.Fprint(w, "claim\tits target is held\n")
	default:
		fmt.Fprintf(w, "claim\t%s\n", c.Held)
	}
	fmt.Fprintf(w, "arguments\tsha256:%s\n", c.ArgumentsDigest)
	if c.Arguments != "" {
		fmt.Fprintf(w, "arguments\t%s\n", bridge.Visible(c.Arguments))
	}
	if c.ResultDigest != "" {
		fmt.Fprintf(w, "result\tsha256:%s\n", c.ResultDigest)
	}
	if c.Key != "" {
		fmt.Fprintf(w, "idempotency key\t%s\n", c.Key)
	}
	for _, a := range c.Attempts {
		fmt.Fprintf(w, "attempt %d\t%s, %s %s\n", a.N, a.At.UTC().Format("15:04:05.000"), a.Outcome, a.Detail)
	}
	if c.ResolvedBy != "" {
		fmt.Fprintf(w, "resolved\tby %s %s\n", c.ResolvedBy, bridge.Visible(c.Note))
	}
	if c.State == string(plane.CallUnknown) {
		fmt.Fprint(w, unknownText(c))
	}
}

// unknownText says what a person has to know to settle an unknown call, and what each
// answer does.
func unknownText(c *CallRow) string {
	text := fmt.Sprintf(`
%s was asked of %s at %s, for %s. It may have happened: the request left, and no answer proves either way.
Look at %s, then say:
  patchbay runs resolve %s done        it happened. The agent is told so, and nothing is sent.
  patchbay runs resolve %s not-done    it did not. The agent is told so, and nothing is sent.
`, bridge.Visible(c.Tool), c.Server, c.PlannedAt.UTC().Format("2006-01-02 15:04:05 UTC"), c.Principal, c.Server, c.ID, c.ID)
	if plane.IsRunID(c.Run) {
		text += fmt.Sprintf("  patchbay runs resolve %s send-again  it did not, and is to be sent once more, as a new call with the same idempotency key.\n", c.ID)
	}
	return text + "Until then no other effect on the same target is sent.\n"
}

// callCommands show calls, of runs and of clients.
func callCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "calls.list", Summary: "Lists calls of runs and clients, or those whose outcome is unknown.", ReadOnly: true, Right: plane.RunsRead, Example: "calls list --unknown", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *CallsListInput) (*CallsList, error) {
				return listCalls(ctx, d, who, in)
			}),
		define(About{Name: "calls.show", Summary: "Shows a call: what was asked of whom, when, and how it ended.", ReadOnly: true, Right: plane.RunsRead, Example: "calls show cal_…", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *CallInput) (*CallRow, error) {
				c, err := callOf(ctx, d, who, in.ID)
				if err != nil {
					return nil, err
				}
				attempts, err := d.Records.AttemptsOfCall(ctx, c.ID)
				if err != nil {
					return nil, err
				}
				row := callRow(c, attempts)
				claims, err := d.Records.Claims(ctx)
				if err != nil {
					return nil, err
				}
				for _, k := range claims {
					if k.Call == c.ID {
						row.Held = k.Why
					}
				}
				row.Arguments = d.Runs.Arguments(ctx, c)
				return &row, nil
			}),
	}
}

const (
	callsPage    = 500
	callsScanned = 10_000 // rows that are looked through for those in sight
)

func listCalls(ctx context.Context, d Deps, who plane.Principal, in *CallsListInput) (*CallsList, error) {
	f := plane.CallFilter{Agent: in.Agent, Server: in.Server, State: in.State, Before: plane.CallID(in.Before), Limit: callsPage}
	if in.Connection != "" {
		f.Connection, f.Since = plane.ConnectionID(in.Connection), d.Now().Add(-Attention)
	}
	if in.Unknown {
		f.State = string(plane.CallUnknown)
	}
	if in.Run != "" {
		f.Run = plane.RunID(in.Run)
		if in.Run == "last" {
			id, err := runID(ctx, d, who, in.Run)
			if err != nil {
				return nil, err
			}
			f.Run = id
		}
	}
	out := &CallsList{Calls: []CallRow{}}
	old := d.Now().Add(-Attention)
	for scanned := 0; scanned < callsScanned && len(out.Calls) < in.Limit; scanned += callsPage {
		page, err := d.Records.Calls(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, c := range page {
			f.Before = c.ID
			gone := in.Unknown && !in.All && c.Fence == 0 && c.PlannedAt.Before(old)
			if len(out.Calls) < in.Limit && !gone && d.Policy().MaySee(who, plane.Run{Principal: c.Principal, Agent: c.Agent}) {
				out.Calls = append(out.Calls, callRow(c, nil))
			}
		}
		if len(page) < callsPage {
			break
		}
	}
	return out, nil
}

// callOf finds a call that the caller may see.
func callOf(ctx context.Context, d Deps, who plane.Principal, id string) (plane.Call, error) {
	none := plane.Errorf(plane.NotFound, "There is no such call.").At("id").Then("patchbay calls list")
	if !plane.IsCallID(id) {
		return plane.Call{}, none
	}
	c, err := d.Calls(ctx, plane.CallID(id))
	if plane.KindOf(err) == plane.NotFound || err == nil && !d.Policy().MaySee(who, plane.Run{Principal: c.Principal, Agent: c.Agent}) {
		return plane.Call{}, none
	}
	return c, err
}

func callRow(c plane.Call, attempts []plane.Attempt) CallRow {
	row := CallRow{ID: string(c.ID), Run: string(c.Run), Agent: c.Agent, Principal: c.Principal, Tool: c.Tool, Server: c.Server, Class: string(c.Class), State: string(c.State), Reason: c.Reason,
		PlannedAt: c.PlannedAt, DoneAt: c.DoneAt, Bytes: c.Bytes, Replaces: string(c.Replaces), ResolvedBy: c.ResolvedBy, Note: c.Note, Attempts: []Attempt{},
		ArgumentsDigest: c.ArgsDigest, ResultDigest: c.Result, Target: c.Target, Origin: string(c.Origin), Upstream: mean(c.Upstream, 1), Approval: string(c.Approval), Evidence: string(c.Evidence)}
	if c.Class == plane.Effect && c.Attempts > 0 {
		row.Key = c.Key()
	}
	if c.Proof != "" {
		row.Completion = json.RawMessage(c.Proof)
	}
	for _, a := range attempts {
		if a.Call == c.ID {
			row.Attempts = append(row.Attempts, Attempt{a.N, a.At, a.DoneAt, a.Outcome, a.Detail})
		}
	}
	return row
}
