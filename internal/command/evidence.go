package command

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/plane"
	"patchbay/internal/run"
)

// EvidenceRow is where one observation came from.
type EvidenceRow struct {
	ID          string    `json:"id"`
	Call        string    `json:"call"`
	Provider    string    `json:"provider"`
	Connection  string    `json:"connection"`
	Version     int64     `json:"version"`
	Tool        string    `json:"tool"`
	Fingerprint string    `json:"fingerprint"`
	Labels      []string  `json:"labels"`
	ReservedAt  time.Time `json:"reserved_at"`
	ObservedAt  time.Time `json:"observed_at,omitzero"` // absent: a reservation, and no result
	Digest      string    `json:"result_digest,omitempty"`
}

func evidenceRows(list []plane.Evidence) []EvidenceRow {
	out := []EvidenceRow{}
	for _, e := range list {
		out = append(out, EvidenceRow{ID: string(e.ID), Call: string(e.Call), Provider: e.Provider, Connection: string(e.Connection), Version: e.Version, Tool: e.Tool,
			Fingerprint: e.Fingerprint, Labels: e.Labels.Names(), ReservedAt: e.ReservedAt, ObservedAt: e.ObservedAt, Digest: e.Digest})
	}
	return out
}

// evidenceText draws sources.
func evidenceText(w io.Writer, rows []EvidenceRow, sources []string) {
	fmt.Fprintln(w, "\nevidence")
	for _, e := range rows {
		state := "reserved, not observed"
		if !e.ObservedAt.IsZero() {
			state = "observed " + e.ObservedAt.UTC().Format("15:04:05.000") + " sha256:" + e.Digest
		}
		fmt.Fprintf(w, "%s\t%s\t%s v%d\t%s\t%s\n", e.ID, bridge.Visible(e.Tool), e.Provider, e.Version, strings.Join(e.Labels, ","), state)
	}
	for _, s := range sources {
		if !strings.HasPrefix(s, "evd_") {
			fmt.Fprintf(w, "%s\n", bridge.Visible(s))
		}
	}
}

// ExportInput names a run and a form.
type ExportInput struct {
	Run    string `arg:"" json:"run" help:"Id of the run, or 'last'." predictor:"run"`
	Format string `json:"format,omitempty" help:"prov: W3C PROV-JSON of where its answer comes from. intoto: a signed in-toto statement of its calls' receipts." enum:"prov,intoto" default:"prov"`
}

// Export is a document.
type Export struct {
	Format   string          `json:"format"`
	Document json.RawMessage `json:"document"`
}

// Text writes the document alone.
func (o *Export) Text(w io.Writer, _ Style) {
	w.Write(o.Document)
	fmt.Fprintln(w)
}

// Proven is what a run's record says of where its answer comes from.
type Proven interface {
	Evidence(ctx context.Context, id plane.RunID) ([]plane.Evidence, []string, error)
	Arguments(ctx context.Context, c plane.Call) string
}

// evidenceCommands hand on where answers come from.
func evidenceCommands(d Deps) []*Command {
	return []*Command{
		define(About{Name: "runs.export", Summary: "Writes where a run's answer comes from, for other programs.", ReadOnly: true, Right: plane.RunsRead, Example: "runs export last --format intoto", Untrusted: true},
			func(ctx context.Context, who plane.Principal, in *ExportInput) (*Export, error) {
				id, err := runID(ctx, d, who, in.Run)
				if err != nil {
					return nil, err
				}
				v, err := d.Runs.Show(ctx, id)
				if err != nil {
					return nil, err
				}
				ev, sources, err := d.Runs.Evidence(ctx, id)
				if err != nil {
					return nil, err
				}
				doc := prov(v, ev, sources)
				if in.Format == "intoto" {
					if doc, err = d.receipts(v, ev); err != nil {
						return nil, err
					}
				}
				b, err := json.Marshal(doc)
				return &Export{Format: in.Format, Document: b}, err
			}),
	}
}

// prov is a run as W3C PROV-JSON: its answer, derived from what it used.
func prov(v run.View, ev []plane.Evidence, sources []string) any {
	type m = map[string]any
	q := func(id string) string { return "pb:" + id }
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	activity, entity, agent := m{}, m{}, m{}
	used, generated, derived, associated, informed := m{}, m{}, m{}, m{}, m{}
	runNode := m{"prov:type": "pb:Run", "prov:startTime": at(v.CreatedAt)}
	if !v.EndedAt.IsZero() {
		runNode["prov:endTime"] = at(v.EndedAt)
	}
	activity[q(string(v.ID))] = runNode
	agent[q("agent/"+v.Agent)] = m{"prov:type": m{"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}}
	associated["_:run"] = m{"prov:activity": q(string(v.ID)), "prov:agent": q("agent/" + v.Agent)}
	answer := q(string(v.ID) + "/answer")
	if v.State == plane.RunSucceeded {
		entity[answer] = m{"prov:type": "pb:Answer"}
		generated["_:answer"] = m{"prov:entity": answer, "prov:activity": q(string(v.ID)), "prov:time": at(v.EndedAt)}
	}
	for _, e := range ev {
		call := q(string(e.Call))
		activity[call] = m{"prov:type": "pb:Call", "prov:startTime": at(e.ReservedAt), "pb:tool": e.Tool, "pb:fingerprint": e.Fingerprint}
		informed["_:"+string(e.Call)] = m{"prov:informed": call, "prov:informant": q(string(v.ID))}
		provider := q("connection/" + string(e.Connection) + "/" + fmt.Sprint(e.Version))
		agent[provider] = m{"prov:type": "pb:Connection", "pb:endpoint": e.Provider}
		associated["_:"+string(e.Call)] = m{"prov:activity": call, "prov:agent": provider}
		if e.ObservedAt.IsZero() {
			continue
		}
		entity[q(string(e.ID))] = m{"prov:type": "pb:Observation", "pb:sha256": e.Digest, "pb:labels": strings.Join(e.Labels.Names(), ",")}
		generated["_:"+string(e.ID)] = m{"prov:entity": q(string(e.ID)), "prov:activity": call, "prov:time": at(e.ObservedAt)}
	}
	for i, s := range sources {
		id := q(strings.ReplaceAll(s, "|", "/"))
		if _, ok := entity[id]; !ok {
			entity[id] = m{"prov:type": "pb:Source"}
		}
		used[fmt.Sprintf("_:u%d", i)] = m{"prov:activity": q(string(v.ID)), "prov:entity": id}
		if v.State == plane.RunSucceeded {
			derived[fmt.Sprintf("_:d%d", i)] = m{"prov:generatedEntity": answer, "prov:usedEntity": id}
		}
	}
	out := m{"prefix": m{"pb": "urn:patchbay:", "prov": "http://www.w3.org/ns/prov#"}, "activity": activity, "agent": agent, "wasAssociatedWith": associated}
	for name, set := range map[string]m{"entity": entity, "used": used, "wasGeneratedBy": generated, "wasDerivedFrom": derived, "wasInformedBy": informed} {
		if len(set) > 0 {
			out[name] = set
		}
	}
	return out
}

// Types of the signed statement.
const (
	statementType = "https://in-toto.io/Statement/v1"
	receiptsType  = "urn:patchbay:receipts:v1"
	payloadType   = "application/vnd.in-toto+json"
)

// receipts is a run's calls as an in-toto statement in a DSSE envelope, signed by the
// ring's key.
func (d Deps) receipts(v run.View, ev []plane.Evidence) (any, error) {
	type m = map[string]any
	sources := map[plane.CallID]plane.Evidence{}
	for _, e := range ev {
		sources[e.Call] = e
	}
	subject, calls := []m{}, []m{}
	for _, c := range v.Calls {
		r := m{"call": c.ID, "connection": c.Connection, "version": c.Version, "server": c.Server, "tool": c.Tool, "fingerprint": c.Fingerprint, "class": c.Class,
			"state": c.State, "attempts": c.Attempts, "argumentsDigest": m{"sha256": c.ArgsDigest}, "plannedAt": c.PlannedAt.UTC()}
		if !c.DoneAt.IsZero() {
			r["doneAt"] = c.DoneAt.UTC()
		}
		if e, ok := sources[c.ID]; ok {
			r["evidence"], r["provider"] = e.ID, e.Provider
		}
		if c.Proof != "" {
			r["invocation_completion"] = json.RawMessage(c.Proof)
		}
		if c.Approval != "" {
			r["approval"] = c.Approval
		}
		calls = append(calls, r)
		if c.Result != "" {
			subject = append(subject, m{"name": string(c.ID), "digest": m{"sha256": c.Result}})
		}
	}
	if len(subject) == 0 {
		return nil, plane.Errorf(plane.Conflict, "No call of the run was answered: there is nothing to attest.").Then("patchbay runs show " + string(v.ID))
	}
	payload, err := json.Marshal(m{"_type": statementType, "subject": subject, "predicateType": receiptsType,
		"predicate": m{"run": v.ID, "agent": v.Agent, "principal": v.Principal, "state": v.State, "startedAt": v.CreatedAt.UTC(), "calls": calls}})
	if err != nil {
		return nil, err
	}
	key, sig := d.Sign(PreAuth(payloadType, payload))
	return m{"payloadType": payloadType, "payload": base64.StdEncoding.EncodeToString(payload),
		"signatures": []m{{"keyid": key, "sig": base64.StdEncoding.EncodeToString(sig)}}}, nil
}

// PreAuth is what a DSSE signature covers: the type and the payload with their lengths.
func PreAuth(kind string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload)
}
