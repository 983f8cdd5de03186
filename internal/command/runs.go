package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/ledger"
	"patchbay/internal/plane"
	"patchbay/internal/policy"
	"patchbay/internal/run"
)

// RunsStartInput asks an agent something.
type RunsStartInput struct {
	Prompt string `arg:"" json:"prompt" help:"The question."`
	Team   string `json:"team,omitempty" help:"The team it is for, whose connections it may use."`
	Agent  string `json:"agent,omitempty" help:"The agent that answers." default:"general" predictor:"agent"`
}

// RunRow is one run.
type RunRow struct {
	ID        string    `json:"id"`
	Agent     string    `json:"agent"`
	State     string    `json:"state"`
	Waiting   string    `json:"waiting_for,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Prompt    string    `json:"prompt"`
	Answer    string    `json:"answer,omitempty"`
	Turns     int       `json:"turns"`
	Principal string    `json:"principal"`
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Team      string    `json:"team,omitempty"`
	Revision  int64     `json:"agent_revision"` // of the agent's attached servers
}

// Text draws one run.
func (o *RunRow) Text(w io.Writer, s Style) {
	fmt.Fprintf(w, "%s\t%s\n", o.ID, s.state(o.State))
}

func runRow(r plane.Run) RunRow {
	return RunRow{ID: string(r.ID), Agent: r.Agent, State: string(r.State), Waiting: r.WaitingFor, Reason: r.Reason, Prompt: r.Prompt,
		Answer: r.Answer, Turns: r.Turns, Principal: r.Principal, CreatedAt: r.CreatedAt, EndedAt: r.EndedAt, Team: r.Caller.Team, Revision: r.Revision}
}

// RunCancelled is a run that was stopped.
type RunCancelled RunRow

// Text is silent: it was done.
func (o *RunCancelled) Text(io.Writer, Style) {}

// RunsListInput bounds the list.
type RunsListInput struct {
	Agent  string `json:"agent,omitempty" help:"Of one agent." predictor:"agent"`
	State  string `json:"state,omitempty" enum:",queued,running,waiting,succeeded,failed,cancelled" default:"" help:"In this state alone: queued, running, waiting, succeeded, failed or cancelled."`
	Limit  int    `json:"limit,omitempty" help:"How many runs." default:"20"`
	Before string `json:"before,omitempty" help:"Older than this one, by id."`
}

// RunsList is runs, newest first.
type RunsList struct {
	Runs []RunRow `json:"runs"`
}

// Text draws the runs.
func (o *RunsList) Text(w io.Writer, s Style) {
	if len(o.Runs) == 0 && s.Terminal {
		fmt.Fprintln(w, `No run yet. Start one: patchbay ask "…"`)
		return
	}
	var rows [][]string
	for _, r := range o.Runs {
		state := s.state(r.State)
		if r.Waiting != "" {
			state += " (" + r.Waiting + ")"
		}
		prompt := r.Prompt
		if s.Terminal {
			prompt = oneLine(prompt, 60)
		}
		rows = append(rows, []string{r.ID, r.Agent, state, s.ago(r.CreatedAt), prompt})
	}
	table(w, s, []string{"RUN", "AGENT", "STATE", "BEGAN", "PROMPT"}, rows)
}

// RunInput names a run.
type RunInput struct {
	Run string `arg:"" json:"run" help:"Id of the run, or 'last'." predictor:"run"`
}

// RunsShowInput names a run.
type RunsShowInput struct {
	RunInput
	Evidence bool `json:"evidence,omitempty" help:"With where its answer comes from."`
}

// CallRow is one call of a run.
type CallRow struct {
	ID         string    `json:"id"`
	Tool       string    `json:"tool"`
	Server     string    `json:"server"`
	Class      string    `json:"class"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Attempts   []Attempt `json:"attempts"`
	PlannedAt  time.Time `json:"planned_at"`
	DoneAt     time.Time `json:"done_at,omitzero"`
	Upstream   float64   `json:"upstream_ms,omitempty"`  // of it, waiting for the server
	Origin     string    `json:"error_origin,omitempty"` // auth, policy, transport, protocol or tool
	Bytes      int       `json:"bytes"`
	Replaces   string    `json:"replaces,omitempty"`
	ResolvedBy string    `json:"resolved_by,omitempty"`
	Note       string    `json:"note,omitempty"`

	Run             string          `json:"run"` // or the client's session
	Agent           string          `json:"agent"`
	Principal       string          `json:"principal"`
	ArgumentsDigest string          `json:"arguments_digest"`
	Arguments       string          `json:"arguments,omitempty"` // of a run's call, when one is shown
	ResultDigest    string          `json:"result_digest,omitempty"`
	Target          string          `json:"target,omitempty"`
	Held            string          `json:"held,omitempty"` // why its target is kept from others
	Key             string          `json:"idempotency_key,omitempty"`
	Approval        string          `json:"approval,omitempty"`
	Evidence        string          `json:"evidence,omitempty"`
	Completion      json.RawMessage `json:"invocation_completion,omitempty"`
}

// Attempt is one time a call went out.
type Attempt struct {
	N       int       `json:"n"`
	At      time.Time `json:"at"`
	DoneAt  time.Time `json:"done_at,omitzero"`
	Outcome string    `json:"outcome"`
	Detail  string    `json:"detail,omitempty"`
}

// Step is one line of a run's timeline.
type Step struct {
	Turn    int     `json:"turn"`
	Kind    string  `json:"kind"` // model, call, tool, note, wait, asks
	Label   string  `json:"label"`
	Start   float64 `json:"start_s"` // since the run began
	Seconds float64 `json:"seconds"`
	OK      bool    `json:"ok"`
	Detail  string  `json:"detail,omitempty"`
}

// RunsShow is one run with calls and timeline.
type RunsShow struct {
	Run      RunRow        `json:"run"`
	Evidence []EvidenceRow `json:"evidence,omitempty"` // when it is asked for
	Sources  []string      `json:"sources,omitempty"`  // of the answer
	Rounds   []RunRow      `json:"rounds,omitempty"`   // of a pipeline
	Servers  []RunServer   `json:"servers,omitempty"`  // declared ones that it had
	Calls    []CallRow     `json:"calls"`
	Steps    []Step        `json:"steps"`
	Last     int64         `json:"last_event"` // that the steps know of
}

// ResolveInput says what became of an unknown call.
type ResolveInput struct {
	ID      string `arg:"" json:"id" help:"Id of the call, or of a run with one unknown call."`
	Outcome string `arg:"" json:"outcome" enum:"done,not-done,send-again" help:"done, not-done or send-again."`
	Note    string `json:"note,omitempty" help:"What you saw, for the record."`
}

// Resolved says that it was taken.
type Resolved struct {
	Call    string `json:"call"`
	Outcome string `json:"outcome"`
}

// Text says nothing: success is quiet.
func (o *Resolved) Text(io.Writer, Style) {}

// notInTeam refuses a team that was named.
func notInTeam(who plane.Principal) error {
	no := policy.NotInTeam(who)
	return plane.Errorf(no.Kind, "%s", no.Reason).At("team").Then(no.Next)
}

func runCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "runs.start", Summary: "Asks an agent something; the run goes on by itself.", Right: plane.RunsWrite, Example: "runs start \"Where is order 1002?\""},
			func(ctx context.Context, who plane.Principal, in *RunsStartInput) (*RunRow, error) {
				if in.Agent == "" {
					in.Agent = "general"
				}
				if in.Team != "" {
					if !d.Policy().Member(who, in.Team) {
						return nil, notInTeam(who)
					}
					who.Team = in.Team
				}
				r, err := d.Runs.Begin(ctx, who, in.Agent, in.Prompt)
				row := runRow(r)
				return &row, err
			}),
		define(About{Name: "runs.list", Summary: "Lists the latest runs.", ReadOnly: true, Right: plane.RunsRead, Example: "runs list --limit 5", Alias: "ls", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *RunsListInput) (*RunsList, error) {
				if in.Limit < 0 || in.Limit > 1000 {
					return nil, plane.Errorf(plane.InvalidInput, "A list has 1 to 1000 runs.").At("limit")
				}
				rs, err := d.Runs.List(ctx, plane.RunFilter{Principal: whose(d, who), Agent: in.Agent, State: plane.RunState(in.State), Before: plane.RunID(in.Before), Limit: in.Limit})
				out := &RunsList{Runs: []RunRow{}}
				for _, r := range rs {
					out.Runs = append(out.Runs, runRow(r))
				}
				return out, err
			}),
		define(About{Name: "runs.show", Summary: "Shows one run: its calls and its timeline.", ReadOnly: true, Right: plane.RunsRead, Example: "runs show last", Alias: "get", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *RunsShowInput) (*RunsShow, error) {
				id, err := runID(ctx, d, who, in.Run)
				if err != nil {
					return nil, err
				}
				return showRun(ctx, d, id, in.Evidence)
			}),
		define(About{Name: "runs.cancel", Summary: "Stops a run.", Right: plane.RunsWrite, Example: "runs cancel last"},
			func(ctx context.Context, who plane.Principal, in *RunInput) (*RunCancelled, error) {
				id, err := runID(ctx, d, who, in.Run)
				if err != nil {
					return nil, err
				}
				if err := d.Runs.Cancel(ctx, who, id); err != nil {
					return nil, err
				}
				return &RunCancelled{ID: string(id), State: string(plane.RunCancelled)}, nil
			}),
		define(About{Name: "runs.resolve", Summary: "Says what became of a call whose outcome is unknown.", Right: plane.RunsWrite, Example: "runs resolve last done --note seen"},
			func(ctx context.Context, who plane.Principal, in *ResolveInput) (*Resolved, error) {
				if who.ThroughClient() {
					return nil, notForClients()
				}
				id, err := unknownCall(ctx, d, who, in.ID)
				if err != nil {
					return nil, err
				}
				if c, err := d.Calls(ctx, id); err != nil || !d.Policy().MayDecide(who, c.Principal, c.Agent) {
					return nil, plane.Errorf(plane.Forbidden, "The person whose run it is, the agent's operators and org admins say what became of a call.").Because(err)
				}
				if err := d.Runs.Resolve(ctx, who, id, ledger.Resolution(in.Outcome), in.Note); err != nil {
					return nil, err
				}
				return &Resolved{Call: string(id), Outcome: in.Outcome}, nil
			}),
	}
}

func runID(ctx context.Context, d Deps, who plane.Principal, s string) (plane.RunID, error) {
	if s == "last" {
		rs, err := d.Runs.List(ctx, plane.RunFilter{Principal: whose(d, who), Limit: 1})
		if err != nil {
			return "", err
		}
		if len(rs) == 0 {
			return "", plane.Errorf(plane.NotFound, "There is no run yet.").Then(`patchbay ask "…"`)
		}
		return rs[0].ID, nil
	}
	if !plane.IsRunID(s) {
		return "", plane.Errorf(plane.InvalidInput, "%q is not the id of a run.", oneLine(s, 60)).At("run").Then("patchbay runs list")
	}
	v, err := d.Runs.Show(ctx, plane.RunID(s))
	if err != nil {
		return "", err
	}
	if !d.Policy().MaySee(who, v.Run) {
		return "", plane.Errorf(plane.NotFound, "There is no such run.").At("run").Then("patchbay runs list")
	}
	return plane.RunID(s), nil
}

// whose narrows a list to the caller's own runs, but for an org admin.
func whose(d Deps, who plane.Principal) string {
	if d.Policy().Admin(who) {
		return ""
	}
	return who.ID
}

func unknownCall(ctx context.Context, d Deps, who plane.Principal, s string) (plane.CallID, error) {
	if plane.IsCallID(s) {
		c, err := d.Calls(ctx, plane.CallID(s))
		if err != nil || !d.Policy().MaySee(who, plane.Run{Principal: c.Principal, Agent: c.Agent}) {
			return "", plane.Errorf(plane.NotFound, "There is no such call.").At("id").Then("patchbay status").Because(err)
		}
		return c.ID, nil
	}
	id, err := runID(ctx, d, who, s)
	if err != nil {
		return "", err
	}
	v, err := d.Runs.Show(ctx, id)
	if err != nil {
		return "", err
	}
	var found []string
	for _, c := range v.Calls {
		if c.State == plane.CallUnknown {
			found = append(found, string(c.ID))
		}
	}
	switch len(found) {
	case 1:
		return plane.CallID(found[0]), nil
	case 0:
		return "", plane.Errorf(plane.Conflict, "No call of that run is unknown.").Then("patchbay runs show " + string(id))
	}
	return "", plane.Errorf(plane.Conflict, "Several calls of that run are unknown; name one: %s.", strings.Join(found, ", "))
}

func showRun(ctx context.Context, d Deps, id plane.RunID, evidence bool) (*RunsShow, error) {
	v, err := d.Runs.Show(ctx, id)
	if err != nil {
		return nil, err
	}
	evs, err := d.Runs.Events(ctx, id, 0, maxShownEvents)
	if err != nil {
		return nil, err
	}
	out := &RunsShow{Run: runRow(v.Run), Calls: callRows(v), Steps: steps(v.CreatedAt, evs), Servers: runServers(v.Attached)}
	if len(evs) > 0 {
		out.Last = evs[len(evs)-1].Seq
	}
	for _, r := range v.Rounds {
		out.Rounds = append(out.Rounds, runRow(r))
	}
	if evidence {
		ev, sources, err := d.Runs.Evidence(ctx, id)
		if err != nil {
			return nil, err
		}
		out.Evidence, out.Sources = evidenceRows(ev), sources
	}
	return out, nil
}

const maxShownEvents = 2000

func callRows(v run.View) []CallRow {
	out := []CallRow{}
	for _, c := range v.Calls {
		out = append(out, callRow(c, v.Attempts))
	}
	return out
}

// steps folds events into the lines of a timeline.
func steps(began time.Time, evs []plane.Event) []Step {
	out := []Step{}
	at := func(t time.Time) float64 { return max(t.Sub(began).Seconds(), 0) }
	open := map[string]int{} // span of a turn or call -> its line
	for _, ev := range evs {
		var data struct {
			Call, Name, Text, Reason, Server, Error, Output, State, Outcome, By string
			Kind                                                                string
			Approval, Decision                                                  string
			OK                                                                  bool
			Bytes                                                               int
		}
		json.Unmarshal(ev.Data, &data) // a shape of a later version shows without detail
		switch ev.Kind {
		case plane.EventTurnStarted:
			open["turn"] = len(out)
			out = append(out, Step{Turn: ev.Turn, Kind: "model", Label: fmt.Sprintf("turn %d", ev.Turn), Start: at(ev.At), OK: true})
		case plane.EventUsage:
			if i, ok := open["turn"]; ok {
				out[i].Seconds = at(ev.At) - out[i].Start
			}
		case plane.EventSpanStart:
			open[data.Call] = len(out)
			out = append(out, Step{Turn: ev.Turn, Kind: "call", Label: ev.Span, Start: at(ev.At)})
		case plane.EventSpanEnd:
			if i, ok := open[data.Call]; ok {
				out[i].Seconds, out[i].OK = at(ev.At)-out[i].Start, data.OK
				out[i].Detail = fmt.Sprintf("%d bytes", data.Bytes)
				if data.Error != "" {
					out[i].Detail = data.Error
				}
			}
		case plane.EventToolResult:
			if data.Call == "" {
				out = append(out, Step{Turn: ev.Turn, Kind: "tool", Label: data.Name, Start: at(ev.At), OK: data.OK})
			}
		case plane.EventRunNote:
			out = append(out, Step{Turn: ev.Turn, Kind: "note", Label: strings.TrimSpace(data.Kind + " " + data.Server), Start: at(ev.At), Detail: data.Reason})
		case plane.EventCallUnknown:
			out = append(out, Step{Turn: ev.Turn, Kind: "wait", Label: ev.Span, Start: at(ev.At), Detail: "outcome unknown"})
		case plane.EventApprovalRequested:
			out = append(out, Step{Turn: ev.Turn, Kind: "asks", Label: ev.Span, Start: at(ev.At), Detail: data.Approval})
		case plane.EventApprovalDecided:
			out = append(out, Step{Turn: ev.Turn, Kind: "note", Label: "approval " + data.Decision, Start: at(ev.At), OK: true, Detail: strings.TrimSpace("by " + data.By)})
		case plane.EventCallResolved:
			out = append(out, Step{Turn: ev.Turn, Kind: "note", Label: "resolved " + data.Outcome, Start: at(ev.At), OK: true, Detail: "by " + data.By})
		}
	}
	return out
}

// Text draws the run.
func (o *RunsShow) Text(w io.Writer, s Style) {
	r := &o.Run
	fmt.Fprintf(w, "run\t%s\nagent\t%s\nstate\t%s\nbegan\t%s\nprompt\t%s\n", r.ID, r.Agent, s.state(r.State), s.ago(r.CreatedAt), oneLine(r.Prompt, 200))
	if r.Reason != "" {
		fmt.Fprintf(w, "reason\t%s\n", r.Reason)
	}
	for _, x := range o.Servers {
		fmt.Fprintf(w, "server\t%s\n", bridge.Visible(x.String()))
	}
	fmt.Fprintln(w)
	total := 0.001
	for _, st := range o.Steps {
		total = max(total, st.Start+st.Seconds)
	}
	for _, st := range o.Steps {
		status := "ok"
		switch {
		case st.Kind == "note":
			status = "note"
		case st.Kind == "wait":
			status = "unknown"
		case st.Kind == "asks":
			status = "waiting"
		case !st.OK:
			status = "failed"
		}
		label := bridge.Visible(st.Label)
		if !s.Terminal {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%.3f\t%.3f\t%s\n", st.Turn, st.Kind, label, status, st.Start, st.Seconds, st.Detail)
			continue
		}
		fmt.Fprintf(w, "%-40s %s %9s  %s %s\n", oneLine(label, 40), bar(st.Start, st.Seconds, total, 24), took(time.Duration(st.Seconds*float64(time.Second))), s.state(status), st.Detail)
	}
	for _, c := range o.Calls {
		if c.State == string(plane.CallUnknown) {
			fmt.Fprintf(w, "\nIt is not known whether %s took effect: %s%s", c.ID, c.Reason, unknownText(&c))
		}
	}
	for _, c := range o.Calls {
		if c.State == string(plane.CallAwaitingApproval) {
			fmt.Fprintf(w, "\n%s at %s waits for a person's approval; look at it, and decide:\n  patchbay approvals show %[3]s\n  patchbay approvals decide %[3]s approve|deny|always-allow\n", bridge.Visible(c.Tool), c.Server, c.Approval)
		}
	}
	for _, x := range o.Rounds {
		fmt.Fprintf(w, "round\t%s\t%s\t%s\n", x.ID, x.Agent, s.state(x.State))
	}
	if o.Evidence != nil {
		evidenceText(w, o.Evidence, o.Sources)
	}
	if r.Answer != "" {
		fmt.Fprintf(w, "\n%s\n", bridge.Visible(r.Answer))
	}
}

// bar places a step on a line of n cells.
func bar(start, length, total float64, n int) string {
	from := min(int(start/total*float64(n)), n-1)
	cells := min(max(int(length/total*float64(n)+0.5), 1), n-from)
	return strings.Repeat("·", from) + strings.Repeat("█", cells) + strings.Repeat("·", n-from-cells)
}
