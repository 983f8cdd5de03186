package command

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/ledger"
	"patchbay/internal/plane"
)

// AuditRecords are the entries of the audit.
type AuditRecords interface {
	Audit(ctx context.Context, f plane.AuditFilter) ([]plane.AuditEntry, error)
	Verify(ctx context.Context) (ledger.Verified, error)
}

// AuditInput says which entries.
type AuditInput struct {
	Who    string `json:"who,omitempty" help:"By whom."`
	Action string `json:"action,omitempty" help:"What kind, from its beginning: call, approval, connection, …"`
	What   string `json:"what,omitempty" help:"About what, from its beginning: an id."`
	Since  string `json:"since,omitempty" help:"From a time on: 2026-11-30, an RFC 3339 time, or how long ago, as 24h."`
	Until  string `json:"until,omitempty" help:"Before a time."`
	Limit  int    `json:"limit,omitempty" help:"How many, newest first." default:"100"`
	Format string `json:"format,omitempty" help:"text, or csv to hand on." enum:"text,csv," default:""`
}

// AuditRow is one entry.
type AuditRow struct {
	ID       string    `json:"id"`
	Lane     string    `json:"lane"`
	At       time.Time `json:"at"`
	Who      string    `json:"who"`
	Action   string    `json:"action"`
	What     string    `json:"what"`
	Decision string    `json:"decision"`
	Digest   string    `json:"digest,omitempty"`
}

// AuditList is entries, newest first.
type AuditList struct {
	Entries []AuditRow `json:"entries"`
	Format  string     `json:"format,omitempty"` // as it was asked for
}

// Text draws them.
func (o *AuditList) Text(w io.Writer, s Style) {
	if o.Format == "csv" {
		c := csv.NewWriter(w)
		c.Write([]string{"id", "lane", "at", "who", "action", "what", "decision", "digest"})
		for _, e := range o.Entries {
			c.Write([]string{e.ID, cell(e.Lane), e.At.UTC().Format(time.RFC3339Nano), cell(e.Who), cell(e.Action), cell(e.What), cell(e.Decision), cell(e.Digest)})
		}
		c.Flush()
		return
	}
	var rows [][]string
	for _, e := range o.Entries {
		rows = append(rows, []string{e.At.UTC().Format("2006-01-02 15:04:05"), bridge.Visible(e.Who), e.Action, bridge.Visible(e.What), bridge.Visible(e.Decision)})
	}
	table(w, s, []string{"AT", "WHO", "ACTION", "WHAT", "DECISION"}, rows)
}

// cell keeps a value from being read as a formula by a spreadsheet.
func cell(v string) string {
	if v != "" && (v[0] == '=' || v[0] == '+' || v[0] == '-' || v[0] == '@' || v[0] == '\t' || v[0] == '\r') {
		return "'" + v
	}
	return v
}

// VerifyInput is empty.
type VerifyInput struct{}

// AuditVerified is what a look at the whole audit found.
type AuditVerified struct {
	OK     bool         `json:"ok"`
	Lanes  []AuditLane  `json:"lanes"`
	Faults []AuditFault `json:"faults"`
}

// AuditLane is one replica's lane.
type AuditLane struct {
	Lane        string `json:"lane"`
	Entries     int64  `json:"entries"`
	Open        int64  `json:"open"` // not sealed yet
	Checkpoints int    `json:"checkpoints"`
	First       int64  `json:"first"`
	Head        int64  `json:"head"`
	HeadHash    string `json:"head_hash"` // keep it elsewhere: a lane that was cut short has another
}

// AuditFault is a place where the audit is not what was signed.
type AuditFault struct {
	Lane string `json:"lane"`
	At   string `json:"at"`
	What string `json:"what"`
}

// Text draws it.
func (o *AuditVerified) Text(w io.Writer, s Style) {
	for _, l := range o.Lanes {
		fmt.Fprintf(w, "%s\t%d entries\t%d checkpoints\thead %d %s\t%d open\n", l.Lane, l.Entries, l.Checkpoints, l.Head, l.HeadHash, l.Open)
	}
	for _, f := range o.Faults {
		fmt.Fprintf(w, "%s\t%s\t%s: %s\n", s.state("failed"), f.Lane, f.At, f.What)
	}
	if o.OK {
		fmt.Fprintln(w, "Every entry is as it was sealed.")
	}
}

// Failed makes the command line exit with 1.
func (o *AuditVerified) Failed() bool { return !o.OK }

func auditCommands(d Deps) []*Command {
	admin := func(who plane.Principal) error {
		if !d.Policy().Admin(who) {
			return plane.Errorf(plane.Forbidden, "The audit is the org admins'.")
		}
		return nil
	}
	return []*Command{
		define(About{Name: "audit.list", Summary: "Lists what was decided and done, newest first.", ReadOnly: true, Right: plane.AdminRight, Example: "audit list --action approval", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *AuditInput) (*AuditList, error) {
				if err := admin(who); err != nil {
					return nil, err
				}
				f := plane.AuditFilter{Who: in.Who, Action: in.Action, What: in.What, Limit: min(max(in.Limit, 1), maxAudit)}
				var err error
				if f.Since, err = moment(in.Since, d.Now(), "since"); err != nil {
					return nil, err
				}
				if f.Until, err = moment(in.Until, d.Now(), "until"); err != nil {
					return nil, err
				}
				all, err := d.Records.Audit(ctx, f)
				if err != nil {
					return nil, err
				}
				out := &AuditList{Entries: []AuditRow{}, Format: in.Format}
				for _, e := range all {
					out.Entries = append(out.Entries, AuditRow{ID: e.ID, Lane: e.Lane, At: e.At, Who: e.Who, Action: e.Action, What: e.What, Decision: e.Decision, Digest: e.Digest})
				}
				return out, nil
			}),
		define(About{Name: "audit.verify", Summary: "Checks every entry of the audit against what was signed.", ReadOnly: true, Right: plane.AdminRight, Example: "audit verify"},
			func(ctx context.Context, who plane.Principal, in *VerifyInput) (*AuditVerified, error) {
				if err := admin(who); err != nil {
					return nil, err
				}
				v, err := d.Records.Verify(ctx)
				if err != nil {
					return nil, err
				}
				out := &AuditVerified{OK: len(v.Faults) == 0, Lanes: []AuditLane{}, Faults: []AuditFault{}}
				for _, l := range v.Lanes {
					out.Lanes = append(out.Lanes, AuditLane{l.Lane, l.Entries, l.Open, l.Checkpoints, l.First, l.Head, l.HeadHash})
				}
				for _, f := range v.Faults {
					out.Faults = append(out.Faults, AuditFault(f))
				}
				return out, nil
			}),
	}
}

const maxAudit = 100_000

// moment reads a time as people write it.
func moment(s string, now time.Time, field string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, plane.Errorf(plane.InvalidInput, "%q is no time; write 2026-11-30, 2026-11-30T15:04:05Z, or 24h for a day ago.", oneLine(s, 40)).At(field)
}
