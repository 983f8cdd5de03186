package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
)

// Records are what was asked, done and decided.
type Records interface {
	Approvals(ctx context.Context, open bool, limit int) ([]plane.Approval, error)
	Approval(ctx context.Context, id plane.ApprovalID) (plane.Approval, error)
	Rules(ctx context.Context) ([]plane.Rule, error)
	DropRule(ctx context.Context, who plane.Principal, id string) error
	CallRecords
}

// ApprovalRow is one approval.
type ApprovalRow struct {
	ID        string    `json:"id"`
	State     string    `json:"state"`
	Agent     string    `json:"agent"`
	Server    string    `json:"server"`
	Tool      string    `json:"tool"`
	Why       string    `json:"why"`
	Arguments string    `json:"arguments,omitempty"` // as they will be sent; of one that is shown and open
	Digest    string    `json:"arguments_digest"`
	Call      string    `json:"call"`
	Run       string    `json:"run"`
	AskedFor  string    `json:"asked_for"` // whose run it is
	AskedAt   time.Time `json:"asked_at"`
	ExpiresAt time.Time `json:"expires_at"`
	DecidedBy string    `json:"decided_by,omitempty"`
	DecidedAt time.Time `json:"decided_at,omitzero"`
	Note      string    `json:"note,omitempty"`
}

// ApprovalsListInput says which.
type ApprovalsListInput struct {
	All   bool `json:"all,omitempty" help:"Those that were decided or expired too."`
	Limit int  `json:"limit,omitempty" help:"How many." default:"50"`
}

// ApprovalsList is approvals, newest first.
type ApprovalsList struct {
	Approvals []ApprovalRow `json:"approvals"`
}

// Text draws them.
func (o *ApprovalsList) Text(w io.Writer, s Style) {
	if len(o.Approvals) == 0 && s.Terminal {
		fmt.Fprintln(w, "Nothing waits for an approval.")
		return
	}
	var rows [][]string
	for _, a := range o.Approvals {
		rows = append(rows, []string{a.ID, s.state(a.State), a.Agent, a.Server + "/" + bridge.Visible(a.Tool), s.ago(a.AskedAt), a.AskedFor, a.Why})
	}
	table(w, s, []string{"APPROVAL", "STATE", "AGENT", "TOOL", "ASKED", "FOR", "WHY"}, rows)
}

// ApprovalInput names an approval.
type ApprovalInput struct {
	ID string `arg:"" json:"id" help:"Id of the approval." predictor:"approval"`
}

// Text draws one.
func (a *ApprovalRow) Text(w io.Writer, s Style) {
	fmt.Fprintf(w, "approval\t%s\nstate\t%s\nagent\t%s\ntool\t%s/%s\nwhy\t%s\nasked for\t%s, %s\nexpires\t%s\ncall\t%s\nrun\t%s\narguments\t%s\n", a.ID, s.state(a.State), a.Agent, a.Server,
		bridge.Visible(a.Tool), a.Why, a.AskedFor, s.ago(a.AskedAt), a.ExpiresAt.UTC().Format("2006-01-02 15:04 UTC"), a.Call, a.Run, bridge.Visible(a.Arguments))
	if a.DecidedBy != "" {
		fmt.Fprintf(w, "decided\t%s, %s\n", a.DecidedBy, s.ago(a.DecidedAt))
	}
	if a.State == string(plane.ApprovalPending) {
		fmt.Fprintf(w, "\nThe call is sent once, exactly as shown, if you approve it:\n  patchbay approvals decide %s approve|deny|always-allow\n", a.ID)
	}
}

// DecideInput is a person's word.
type DecideInput struct {
	ID       string `arg:"" json:"id" help:"Id of the approval." predictor:"approval"`
	Decision string `arg:"" json:"decision" help:"approve: this call, once. deny: it is not sent. always-allow: and every later call of the tool by this agent, until its definition changes." enum:"approve,deny,always-allow"`
	Note     string `json:"note,omitempty" help:"What the agent is told beside it."`
}

// Decided is an approval after a decision.
type Decided ApprovalRow

// Text is silent: it was done.
func (o *Decided) Text(io.Writer, Style) {}

// RuleRow is a standing word on a tool.
type RuleRow struct {
	ID          string    `json:"id"`
	Scope       string    `json:"scope"` // agent:<slug>
	Server      string    `json:"server"`
	Tool        string    `json:"tool"`
	Mode        string    `json:"mode"`
	Fingerprint string    `json:"fingerprint"` // of the only definition that it holds for
	By          string    `json:"by"`
	At          time.Time `json:"at"`
}

// RulesListInput is empty.
type RulesListInput struct{}

// RulesList is the rules that people made by "always allow".
type RulesList struct {
	Rules []RuleRow `json:"rules"`
}

// Text draws them.
func (o *RulesList) Text(w io.Writer, s Style) {
	if len(o.Rules) == 0 && s.Terminal {
		fmt.Fprintln(w, "There is no rule. One is made by: patchbay approvals decide ID always-allow")
		return
	}
	var rows [][]string
	for _, r := range o.Rules {
		rows = append(rows, []string{r.ID, r.Scope, r.Server + "/" + bridge.Visible(r.Tool), r.Mode, r.By, s.ago(r.At)})
	}
	table(w, s, []string{"RULE", "SCOPE", "TOOL", "MODE", "BY", "MADE"}, rows)
}

// RuleInput names a rule.
type RuleInput struct {
	ID string `arg:"" json:"id" help:"Id of the rule." predictor:"rule"`
}

// RuleRemoved is a rule that is gone.
type RuleRemoved struct {
	ID string `json:"id"`
}

// Text is silent: it was done.
func (o *RuleRemoved) Text(io.Writer, Style) {}

// approvalCommands ask people, and take their word.
func approvalCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "approvals.list", Summary: "Lists the calls that wait for a person's approval.", ReadOnly: true, Right: plane.RunsRead, Example: "approvals list", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *ApprovalsListInput) (*ApprovalsList, error) {
				all, err := d.Records.Approvals(ctx, !in.All, maxApprovals)
				if err != nil {
					return nil, err
				}
				out := &ApprovalsList{Approvals: []ApprovalRow{}}
				for _, a := range all {
					if len(out.Approvals) < in.Limit && seesApproval(d, who, &a) {
						out.Approvals = append(out.Approvals, approvalRow(d, &a))
					}
				}
				return out, nil
			}),
		define(About{Name: "approvals.show", Summary: "Shows an approval: what would be sent, for whom, and why it is asked.", ReadOnly: true, Right: plane.RunsRead, Example: "approvals show apr_…", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *ApprovalInput) (*ApprovalRow, error) {
				a, err := approval(ctx, d, who, in.ID)
				if err != nil {
					return nil, err
				}
				row := approvalRow(d, &a)
				return &row, nil
			}),
		define(About{Name: "approvals.decide", Summary: "Lets a call pass, once or always, or refuses it.", Right: plane.RunsWrite, Example: "approvals decide apr_… approve"},
			func(ctx context.Context, who plane.Principal, in *DecideInput) (*Decided, error) {
				a, err := approval(ctx, d, who, in.ID)
				if err != nil {
					return nil, err
				}
				if err := mayDecide(d, who, &a, plane.Decision(in.Decision)); err != nil {
					return nil, err
				}
				if a, err = d.Runs.Decide(ctx, who, a.ID, plane.Decision(in.Decision), in.Note); err != nil {
					return nil, err
				}
				if in.Decision == string(plane.AlwaysAllow) {
					if err := d.Renew(ctx); err != nil {
						return nil, err
					}
				}
				row := Decided(approvalRow(d, &a))
				return &row, nil
			}),
		define(About{Name: "rules.list", Summary: "Lists the rules that people made by always-allow.", ReadOnly: true, Right: plane.MCPRead, Example: "rules list", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *RulesListInput) (*RulesList, error) {
				all, err := d.Records.Rules(ctx)
				if err != nil {
					return nil, err
				}
				out := &RulesList{Rules: []RuleRow{}}
				for _, r := range all {
					if d.Policy().Operator(who, r.Agent) {
						out.Rules = append(out.Rules, RuleRow{ID: r.ID, Scope: "agent:" + r.Agent, Server: r.Server, Tool: r.Tool, Mode: string(r.Mode), Fingerprint: r.Fingerprint, By: r.By, At: r.At})
					}
				}
				return out, nil
			}),
		define(About{Name: "rules.remove", Summary: "Takes a rule away: the tool asks again.", Right: plane.ConfigWrite, Example: "rules remove rul_…", Alias: "rm"},
			func(ctx context.Context, who plane.Principal, in *RuleInput) (*RuleRemoved, error) {
				all, err := d.Records.Rules(ctx)
				if err != nil {
					return nil, err
				}
				for _, r := range all {
					if r.ID == in.ID && d.Policy().Operator(who, r.Agent) {
						if err := d.Records.DropRule(ctx, who, r.ID); err != nil {
							return nil, err
						}
						return &RuleRemoved{ID: r.ID}, d.Renew(ctx)
					}
				}
				return nil, plane.Errorf(plane.NotFound, "There is no such rule.").At("id").Then("patchbay rules list")
			}),
	}
}

const maxApprovals = 1000

func seesApproval(d Deps, who plane.Principal, a *plane.Approval) bool {
	return d.Policy().MaySee(who, plane.Run{Principal: a.Principal, Agent: a.Agent})
}

// approval finds one that the caller may see.
func approval(ctx context.Context, d Deps, who plane.Principal, id string) (plane.Approval, error) {
	none := plane.Errorf(plane.NotFound, "There is no such approval.").At("id").Then("patchbay approvals list")
	if !plane.IsApprovalID(id) {
		return plane.Approval{}, none
	}
	a, err := d.Records.Approval(ctx, plane.ApprovalID(id))
	if plane.KindOf(err) == plane.NotFound || err == nil && !seesApproval(d, who, &a) {
		return plane.Approval{}, none
	}
	return a, err
}

// mayDecide holds the gates: whose run it is, the agent's operators and org admins may
// decide; a standing rule takes an operator or admin.
func mayDecide(d Deps, who plane.Principal, a *plane.Approval, as plane.Decision) error {
	switch {
	case who.ThroughClient():
		return notForClients()
	case !d.Policy().MayDecide(who, a.Principal, a.Agent):
		return plane.Errorf(plane.Forbidden, "The person whose run it is, the operators of %s and org admins decide this.", a.Agent)
	case as == plane.AlwaysAllow && !d.Policy().Operator(who, a.Agent):
		return plane.Errorf(plane.Forbidden, "A rule for every later call takes an operator of %s or an org admin.", a.Agent).Then("patchbay approvals decide " + string(a.ID) + " approve")
	}
	return nil
}

// notForClients keeps from an MCP client what is asked of its person because of what it does.
func notForClients() error {
	return plane.Errorf(plane.Forbidden, "A client does not decide this for its person.").Then("Decide it on the page Approvals, in Slack or with the patchbay command.")
}

func approvalRow(d Deps, a *plane.Approval) ApprovalRow {
	state := a.State
	if (state == plane.ApprovalPending || state == plane.ApprovalApproved) && !d.Now().Before(a.ExpiresAt) {
		state = plane.ApprovalExpired
	}
	return ApprovalRow{ID: string(a.ID), State: string(state), Agent: a.Agent, Server: a.Server, Tool: a.Tool, Why: a.Why, Arguments: d.Unseal(a), Digest: a.ArgsDigest,
		Call: string(a.Call), Run: string(a.Run), AskedFor: a.Principal, AskedAt: a.AskedAt, ExpiresAt: a.ExpiresAt, DecidedBy: a.DecidedBy, DecidedAt: a.DecidedAt, Note: a.Note}
}
