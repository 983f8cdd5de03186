package run

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// StoredRun is a run with its sealed parts.
type StoredRun = struct {
	plane.Run
	SealedPrompt, SealedAnswer []byte
}

// StoredResult is an observation, still sealed.
type StoredResult = struct {
	ID      plane.ResultID
	Call    plane.CallID
	IsError bool
	Body    []byte
	Whole   []byte
}

// Store is what runs need of a database.
type Store interface {
	Write(ctx context.Context, fn func(plane.Tx) error) error
	AddAudit(t plane.Tx, e plane.AuditEntry) error
	AttachRun(t plane.Tx, id plane.RunID, fence, revision int64, list []plane.Attachment) error
	Records
	Leases
	Log
	Results
	Provenance
	Memories
}

// Provenance is where what a run read comes from.
type Provenance interface {
	EvidenceOfRun(ctx context.Context, run plane.RunID) ([]plane.Evidence, error)
	Lineage(ctx context.Context, owner string) ([]string, error)
	Lineages
	Taints
}

// Lineages say what answers and memories come from.
type Lineages interface {
	SetLineage(t plane.Tx, owner string, sources []string) error
	CompactLineage(t plane.Tx, owner string) error
	CopyLineage(t plane.Tx, from, to string) error
}

// Taints are the labels of what was read.
type Taints interface {
	Taint(t plane.Tx, run plane.RunID, conversation string, labels plane.Labels) error
	ThreadLabels(ctx context.Context, conversation string) (plane.Labels, error)
}

// Memories are what agents keep.
type Memories interface {
	AddMemory(t plane.Tx, m *plane.Memory, body []byte, words string) error
	Memories(ctx context.Context, agent, conversation string, limit int) ([]StoredMemory, error)
	SearchMemories(ctx context.Context, agent, conversation string, words []string, limit int) ([]StoredMemory, error)
	CountMemories(t plane.Tx, agent string) (int, error)
}

// StoredMemory is a memory, still sealed.
type StoredMemory = struct {
	plane.Memory
	Sealed []byte
}

// Records are the rows of runs.
type Records interface {
	InsertRun(t plane.Tx, r *plane.Run, sealedPrompt []byte) error
	RunByID(ctx context.Context, id plane.RunID) (StoredRun, error)
	Runs(ctx context.Context, f plane.RunFilter) ([]StoredRun, error)
	Waiting
	AskCancel(t plane.Tx, id plane.RunID, reason string) (bool, error)
}

// Waiting runs go on when what they wait for has come.
type Waiting interface {
	RequeueRun(t plane.Tx, id plane.RunID) (bool, error)
	WaitsStill(t plane.Tx, id plane.RunID) (bool, error)
	Rounds(ctx context.Context, parent plane.RunID) ([]StoredRun, error)
}

// Leases say who works on a run.
type Leases interface {
	DueRuns(ctx context.Context, now time.Time, limit int) ([]plane.RunID, error)
	DropLeases(t plane.Tx) error
	ClaimRun(t plane.Tx, id plane.RunID, owner string, until time.Time) error
	HoldRun(t plane.Tx, id plane.RunID, fence int64, until time.Time, spent time.Duration) (bool, error)
	LeaveRun(t plane.Tx, r *plane.Run, sealedAnswer []byte) error
}

// Log is a run's transcript and its events.
type Log interface {
	TurnRun(t plane.Tx, id plane.RunID, fence int64, turns int) error
	AddEvent(t plane.Tx, e *plane.Event, sealed []byte) error
	NextSeq(t plane.Tx, run plane.RunID) (int64, error)
	Events(ctx context.Context, run plane.RunID, after int64, limit int) ([]plane.Event, error)
	Transcript
}

// Transcript is what model and tools said.
type Transcript interface {
	AddMessage(t plane.Tx, run plane.RunID, seq int, body []byte) error
	Messages(ctx context.Context, run plane.RunID) ([][]byte, error)
}

// Results are the observations of calls.
type Results interface {
	SaveResult(t plane.Tx, id plane.ResultID, run plane.RunID, call plane.CallID, isError bool, body, whole []byte) error
	ResultsOfRun(ctx context.Context, run plane.RunID) ([]StoredResult, error)
	KeptBytes(ctx context.Context, run plane.RunID) (int, error)
	WholeResult(ctx context.Context, run plane.RunID, id plane.ResultID) (StoredResult, error)
	CallsOfRun(ctx context.Context, run plane.RunID) ([]plane.Call, error)
	AttemptsOfRun(ctx context.Context, run plane.RunID) ([]plane.Attempt, error)
}

// purposeContent is the purpose of everything that is other people's data.
const purposeContent = "content"

func bind(run plane.RunID, record string) secret.Bind {
	return secret.Bind{Purpose: purposeContent, Scope: string(run), Record: record}
}

// ApprovalBind is what the arguments of a call that waits for a person are bound to.
func ApprovalBind(id plane.ApprovalID) secret.Bind {
	return secret.Bind{Purpose: purposeContent, Record: string(id)}
}

func memoryBind(id plane.MemoryID) secret.Bind {
	return secret.Bind{Purpose: purposeContent, Record: string(id)}
}

// ContentBind names what a sealed value of a run is bound to, by where it rests.
func ContentBind(s plane.Sealed) secret.Bind {
	id, rest, _ := strings.Cut(s.Key, " ")
	switch s.Place {
	case "run.prompt":
		return bind(plane.RunID(id), "prompt")
	case "run.answer":
		return bind(plane.RunID(id), "answer")
	case "message":
		return bind(plane.RunID(id), messageRecord(int(s.Num)))
	case "event":
		return bind(plane.RunID(id), eventRecord(s.Num))
	case "approval":
		return ApprovalBind(plane.ApprovalID(s.Key))
	case "memory":
		return memoryBind(plane.MemoryID(s.Key))
	case "result.whole":
		return bind(plane.RunID(id), "whole/"+rest)
	}
	return bind(plane.RunID(id), "result/"+rest)
}

func (e *Engine) seal(run plane.RunID, record string, b []byte) []byte {
	return e.o.Ring.Seal(bind(run, record), b)
}

func (e *Engine) open(run plane.RunID, record string, blob []byte) ([]byte, error) {
	b, err := e.o.Ring.Open(bind(run, record), blob)
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The run's stored text cannot be opened with the keys of this server.").Because(err)
	}
	return b, nil
}

func messageRecord(seq int) string { return fmt.Sprintf("message/%d", seq) }
func eventRecord(seq int64) string { return fmt.Sprintf("event/%d", seq) }

func (e *Engine) addMessage(t plane.Tx, run plane.RunID, seq int, m plane.Message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return e.o.Store.AddMessage(t, run, seq, e.seal(run, messageRecord(seq), b))
}

func (e *Engine) transcript(ctx context.Context, run plane.RunID) ([]plane.Message, error) {
	blobs, err := e.o.Store.Messages(ctx, run)
	if err != nil {
		return nil, err
	}
	out := make([]plane.Message, 0, len(blobs))
	for i, blob := range blobs {
		b, err := e.open(run, messageRecord(i+1), blob)
		if err != nil {
			return nil, err
		}
		m := plane.Message{Seq: i + 1}
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// observations are the results of a run's calls, by call.
func (e *Engine) observations(ctx context.Context, run plane.RunID) (map[plane.CallID]plane.ToolOutcome, error) {
	rows, err := e.o.Store.ResultsOfRun(ctx, run)
	if err != nil {
		return nil, err
	}
	out := make(map[plane.CallID]plane.ToolOutcome, len(rows))
	for _, r := range rows {
		b, err := e.open(run, "result/"+string(r.ID), r.Body)
		if err != nil {
			return nil, err
		}
		out[r.Call] = plane.ToolOutcome{Text: string(b), IsError: r.IsError}
	}
	return out, nil
}
