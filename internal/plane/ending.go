package plane

import "time"

// Ending is how an attempt to call a tool ended, as the wire saw it. The ledger
// judges it (design D7); nobody else draws conclusions from a status.
type Ending struct {
	Refused        bool          // by our own policy on addresses
	NothingSent    bool          // refused dial, no header written, or a stream the peer says it never processed
	Status         int           // HTTP status of the answer; 0 for none
	Challenge      bool          // a 401, or a 403 that carries a challenge
	SessionLost    bool          // a 404, or a session-shaped 400, to a request that named a session
	HeaderMismatch bool          // the peer refused the mirrored headers
	RPC            bool          // a JSON-RPC error answered the request
	RPCCode        int64         // its code
	Answered       bool          // a result answered the request
	IsError        bool          // the result says so
	Fault          Fault         // what broke, when nothing answered
	Detail         string        // one sentence without any of the peer's words
	Kind           Kind          // of our own error, when nothing went out because of one
	Upstream       time.Duration // how long the server was waited for, over all attempts
}

// ErrorOrigin is whose failure it was that a call failed by.
type ErrorOrigin string

// Origins of errors.
const (
	ByAuth      ErrorOrigin = "auth"      // no credential, or one that the server rejects
	ByPolicy    ErrorOrigin = "policy"    // rules, limits and checks of Patchbay
	ByTransport ErrorOrigin = "transport" // no answer: unreachable, out of time, an HTTP error
	ByProtocol  ErrorOrigin = "protocol"  // an answer that is none, or that refuses the request
	ByTool      ErrorOrigin = "tool"      // the tool says that it failed
)

// Origin tells whose failure it was; empty for none.
func (e Ending) Origin() ErrorOrigin {
	switch {
	case e.Answered && e.IsError:
		return ByTool
	case e.Answered:
		return ""
	case e.Challenge, e.Kind == Unauthenticated, e.Status == 401 || e.Status == 403:
		return ByAuth
	case e.Refused, e.Kind != "" && e.Kind != Unavailable && e.Kind != Internal:
		return ByPolicy
	case e.RPC, e.Fault == FaultProtocol, e.Fault == FaultTooLarge, e.HeaderMismatch, e.SessionLost:
		return ByProtocol
	}
	return ByTransport
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
