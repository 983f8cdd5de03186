package plane

import "time"

// EgressState is how far a request went that an agent sent by itself.
//
//	denied
//	dispatched -> succeeded | failed | unknown
//
// Queries (GET, HEAD, OPTIONS) are written down when they have ended.
type EgressState string

// The states.
const (
	EgressDenied     EgressState = "denied"
	EgressDispatched EgressState = "dispatched"
	EgressSucceeded  EgressState = "succeeded"
	EgressFailed     EgressState = "failed"
	EgressUnknown    EgressState = "unknown"
)

// EgressRecord is one request through the credential gateway. It holds neither query nor
// body.
type EgressRecord struct {
	ID          string
	At, DoneAt  time.Time
	Agent, Team string
	Principal   string
	Destination string // empty where none admitted it
	Host        string
	Port        int
	Method      string // CONNECT for a tunnel that was refused, or is not looked into
	Path        string
	State       EgressState
	Status      int  // of the answer, 0 for none
	Injected    bool // a secret went in
	Sent        int64
	Received    int64
	Reason      string
	Owner       string // the process that holds it
}

// EgressFilter says which records; the zero value of a field is any.
type EgressFilter struct {
	Agent, Host string
	State       EgressState
	Before      string // id
	Limit       int
}

// Authority is a certificate authority: its certificate, PEM, and its sealed key.
type Authority struct {
	Name string
	Cert string
	Blob []byte
	At   time.Time
}

// NewEgressID makes an id; now gives its time part.
func NewEgressID(now time.Time) string { return newID("egr_", now) }
