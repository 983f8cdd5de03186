package plane

// Ending is how an attempt to call a tool ended, as the wire saw it. The ledger
// judges it (design D7); nobody else draws conclusions from a status.
type Ending struct {
	Refused        bool   // by our own policy on addresses
	NothingSent    bool   // refused dial, no header written, or a stream the peer says it never processed
	Status         int    // HTTP status of the answer; 0 for none
	Challenge      bool   // a 401, or a 403 that carries a challenge
	SessionLost    bool   // a 404, or a session-shaped 400, to a request that named a session
	HeaderMismatch bool   // the peer refused the mirrored headers
	RPC            bool   // a JSON-RPC error answered the request
	RPCCode        int64  // its code
	Answered       bool   // a result answered the request
	IsError        bool   // the result says so
	Fault          Fault  // what broke, when nothing answered
	Detail         string // one sentence without any of the peer's words
}

// Settlement is how a call is settled.
type Settlement struct {
	Ending
	// Observe joins the transaction: an own run commits its observation with the
	// outcome.
	Observe func(Tx) error
	// Late joins the transaction that settles a call by an answer that came after
	// somebody else had given it up for unknown.
	Late func(Tx) error
}

// Fault classifies what broke on the wire.
type Fault string

// Faults.
const (
	FaultNone      Fault = ""
	FaultTimeout   Fault = "timeout"
	FaultTransport Fault = "transport"
	FaultProtocol  Fault = "protocol"
	FaultTooLarge  Fault = "too_large"
	FaultHTTP      Fault = "http"
	FaultCancelled Fault = "cancelled"
)
