package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
)

// Gateway is the credential gateway, as far as people need it.
type Gateway interface {
	Certificate() (pem string, until time.Time, err error)
	Renew(ctx context.Context, who plane.Principal) error
	URL() string
}

// EgressCAInput asks for the gateway's certificate.
type EgressCAInput struct {
	Renew bool `json:"renew,omitempty" help:"Make another one first (org admins); clients must be given it."`
}

// EgressCA is the certificate that clients of the gateway trust.
type EgressCA struct {
	URL         string    `json:"url"` // of the gateway
	Placeholder string    `json:"placeholder"`
	Until       time.Time `json:"until"`
	PEM         string    `json:"pem"`
}

// Text is the certificate alone, to be written to a file.
func (o *EgressCA) Text(w io.Writer, _ Style) { io.WriteString(w, o.PEM) }

// EgressLogInput says which requests.
type EgressLogInput struct {
	Agent  string `json:"agent,omitempty" help:"Of this agent alone." predictor:"agent"`
	Host   string `json:"host,omitempty" help:"To this host alone."`
	State  string `json:"state,omitempty" enum:",denied,dispatched,succeeded,failed,unknown" default:"" help:"In this state alone: denied, dispatched, succeeded, failed or unknown."`
	Limit  int    `json:"limit,omitempty" help:"At most so many." default:"50"`
	Before string `json:"before,omitempty" help:"Older than this one, by id."`
}

// EgressRow is one request through the gateway.
type EgressRow struct {
	ID          string    `json:"id"`
	At          time.Time `json:"at"`
	DoneAt      time.Time `json:"done_at,omitzero"`
	Agent       string    `json:"agent"`
	Team        string    `json:"team,omitempty"`
	By          string    `json:"by,omitempty"` // whose token it was, or the stdio server that sent it
	Destination string    `json:"destination,omitempty"`
	Host        string    `json:"host"`
	Port        int       `json:"port"`
	Method      string    `json:"method"`
	Path        string    `json:"path,omitempty"`
	State       string    `json:"state"`
	Status      int       `json:"status,omitempty"`
	Injected    bool      `json:"injected"`
	Sent        int64     `json:"sent"`
	Received    int64     `json:"received"`
	Reason      string    `json:"reason,omitempty"`
}

// EgressLog is what went where, newest first.
type EgressLog struct {
	Requests []EgressRow `json:"requests"`
}

// Text draws the requests.
func (o *EgressLog) Text(w io.Writer, s Style) {
	var rows [][]string
	for _, r := range o.Requests {
		status := ""
		if r.Status > 0 {
			status = fmt.Sprint(r.Status)
		}
		secret := ""
		if r.Injected {
			secret = "secret"
		}
		rows = append(rows, []string{s.ago(r.At), r.Agent, s.state(r.State), r.Method, bridge.Visible(fmt.Sprintf("%s:%d%s", r.Host, r.Port, r.Path)), status, r.Destination, secret, bridge.Visible(r.Reason)})
	}
	table(w, s, []string{"AT", "AGENT", "STATE", "METHOD", "WHERE", "STATUS", "DESTINATION", "WITH", "REASON"}, rows)
}

func egressCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "egress.ca", Summary: "Prints the certificate that clients of the credential gateway trust.", Right: plane.MCPRead, Example: "egress ca"},
			func(ctx context.Context, who plane.Principal, in *EgressCAInput) (*EgressCA, error) {
				if in.Renew {
					if !d.Policy().Admin(who) {
						return nil, plane.Errorf(plane.Forbidden, "The gateway's authority is the org admins'.")
					}
					if err := d.Gateway.Renew(ctx, who); err != nil {
						return nil, err
					}
				}
				cert, until, err := d.Gateway.Certificate()
				if err != nil {
					return nil, err
				}
				return &EgressCA{URL: d.Gateway.URL(), Placeholder: d.Registry.Placeholder(), Until: until, PEM: cert}, nil
			}),
		define(About{Name: "egress.log", Summary: "Lists what went through the credential gateway, newest first.", ReadOnly: true, Right: plane.AdminRight, Example: "egress log --state denied", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *EgressLogInput) (*EgressLog, error) {
				if !d.Policy().Admin(who) && (in.Agent == "" || !d.Policy().Operator(who, in.Agent)) {
					return nil, plane.Errorf(plane.Forbidden, "What went through the gateway is the org admins' to see, and of an agent its operators'.").Then("--agent " + strings.TrimSpace(in.Agent+" NAME"))
				}
				list, err := d.Egress(ctx, plane.EgressFilter{Agent: in.Agent, Host: in.Host, State: plane.EgressState(in.State), Before: in.Before, Limit: min(max(in.Limit, 1), 1000)})
				out := &EgressLog{Requests: []EgressRow{}}
				for _, e := range list {
					out.Requests = append(out.Requests, EgressRow{e.ID, e.At, e.DoneAt, e.Agent, e.Team, e.Principal, e.Destination, e.Host, e.Port, e.Method, e.Path, string(e.State), e.Status, e.Injected, e.Sent, e.Received, e.Reason})
				}
				return out, err
			}),
	}
}
