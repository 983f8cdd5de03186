package ledger

import (
	"cmp"

	"patchbay/internal/plane"
)

// Verdict is what an ending proves.
type Verdict string

// The verdicts of design D7.
const (
	NothingRan Verdict = "nothing_ran" // may be sent once more
	Refused    Verdict = "refused"
	Answered   Verdict = "answered"
	Uncertain  Verdict = "uncertain" // an effect may have happened
)

const (
	methodNotFound = -32601
	invalidParams  = -32602

	// What a server says instead of beginning (2026-07-28, "errors"; 2025-11-25,
	// URL elicitation).
	headerMismatch     = -32020
	missingCapability  = -32021
	unsupportedVersion = -32022
	elicitationNeeded  = -32042
)

// Judge is design D7 as one function. Everything that is not plainly proof or
// refusal is uncertain.
func Judge(e plane.Ending) Verdict {
	switch {
	case e.Answered && e.IsError:
		return Refused
	case e.Answered:
		return Answered
	case e.NothingSent, e.Challenge, e.SessionLost, e.HeaderMismatch:
		return NothingRan
	case e.RPC && e.RPCCode == methodNotFound && e.Status < 500:
		return NothingRan
	case e.RPC && refusal(e.RPCCode) && e.Status < 500:
		return Refused
	case e.Status >= 400 && e.Status < 500:
		return Refused
	}
	return Uncertain
}

func refusal(code int64) bool {
	switch code {
	case invalidParams, headerMismatch, missingCapability, unsupportedVersion, elicitationNeeded:
		return true
	}
	return false
}

// Outcome is the state in which a call of that class ends, and why.
func Outcome(class plane.Class, e plane.Ending) (plane.CallState, string) {
	switch Judge(e) {
	case Answered:
		return plane.CallSucceeded, ""
	case Uncertain:
		if class != plane.Query {
			return plane.CallUnknown, cmp.Or(e.Detail, "Nothing proves how the call ended.")
		}
	}
	return plane.CallFailed, e.Detail
}

// Event is what may happen to a call.
type Event string

// Events of a call.
const (
	EvDispatch       Event = "dispatch"
	EvAsk            Event = "ask"
	EvAwait          Event = "await_approval"
	EvSucceed        Event = "succeed"
	EvFail           Event = "fail"
	EvLoseTrack      Event = "lose_track"
	EvResolveDone    Event = "resolve_done"
	EvResolveNotDone Event = "resolve_not_done"
)

// eventOf is the event that leads to a state a call can end an attempt in.
func eventOf(to plane.CallState) Event {
	switch to {
	case plane.CallSucceeded:
		return EvSucceed
	case plane.CallUnknown:
		return EvLoseTrack
	}
	return EvFail
}

// Next is the machine of a call:
//
//	planned ──dispatch──> dispatched ──succeed──> succeeded
//	   │ │                 │ │  └─────fail──────> failed
//	   │ └──fail──> failed │ └──lose_track──> unknown ──resolve_done──────> resolved_done
//	   │                   │                     └─resolve_not_done─> resolved_not_done
//	   │                   ├─dispatch (again, on proof)
//	   │                   └─ask──> awaiting_input ──dispatch──> dispatched
//	   │                                  └─lose_track──> unknown, a query ──fail──> failed
//	   └─await_approval──> awaiting_approval ──dispatch──> dispatched
//	                                  └──fail──> failed
//
// It reports false for a step that does not exist.
func Next(from plane.CallState, ev Event) (plane.CallState, bool) {
	to, ok := steps[step{from, ev}]
	return to, ok
}

type step struct {
	from plane.CallState
	ev   Event
}

var steps = map[step]plane.CallState{
	{plane.CallPlanned, EvDispatch}:          plane.CallDispatched,
	{plane.CallPlanned, EvFail}:              plane.CallFailed,
	{plane.CallPlanned, EvAwait}:             plane.CallAwaitingApproval,
	{plane.CallAwaitingApproval, EvDispatch}: plane.CallDispatched,
	{plane.CallAwaitingApproval, EvFail}:     plane.CallFailed,
	{plane.CallDispatched, EvDispatch}:       plane.CallDispatched,
	{plane.CallDispatched, EvAsk}:            plane.CallAwaitingInput,
	{plane.CallAwaitingInput, EvDispatch}:    plane.CallDispatched,
	{plane.CallAwaitingInput, EvFail}:        plane.CallFailed,
	{plane.CallAwaitingInput, EvLoseTrack}:   plane.CallUnknown,
	{plane.CallDispatched, EvSucceed}:        plane.CallSucceeded,
	{plane.CallDispatched, EvFail}:           plane.CallFailed,
	{plane.CallDispatched, EvLoseTrack}:      plane.CallUnknown,
	{plane.CallUnknown, EvResolveDone}:       plane.CallResolvedDone,
	{plane.CallUnknown, EvResolveNotDone}:    plane.CallResolvedNotDone,
}
