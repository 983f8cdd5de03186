package plane_test

import (
	"testing"

	"patchbay/internal/plane"
)

func TestWhoseFailureItIs(t *testing.T) {
	for _, c := range []struct {
		what string
		end  plane.Ending
		want plane.ErrorOrigin
	}{
		{"an answer", plane.Ending{Answered: true}, ""},
		{"the tool's own word", plane.Ending{Answered: true, IsError: true}, plane.ByTool},
		{"a challenge", plane.Ending{Challenge: true, Status: 401}, plane.ByAuth},
		{"forbidden", plane.Ending{Status: 403, Fault: plane.FaultHTTP}, plane.ByAuth},
		{"no credential", plane.Ending{NothingSent: true, Fault: plane.FaultTransport, Kind: plane.Unauthenticated}, plane.ByAuth},
		{"an address that is not allowed", plane.Ending{Refused: true, NothingSent: true}, plane.ByPolicy},
		{"a changed definition", plane.Ending{NothingSent: true, Fault: plane.FaultTransport, Kind: plane.Conflict}, plane.ByPolicy},
		{"a limit", plane.Ending{NothingSent: true, Kind: plane.Limited}, plane.ByPolicy},
		{"no dial", plane.Ending{NothingSent: true, Fault: plane.FaultTransport}, plane.ByTransport},
		{"a server that is left alone", plane.Ending{NothingSent: true, Fault: plane.FaultTransport, Kind: plane.Unavailable}, plane.ByTransport},
		{"out of time", plane.Ending{Fault: plane.FaultTimeout}, plane.ByTransport},
		{"a broken server", plane.Ending{Status: 500, Fault: plane.FaultHTTP}, plane.ByTransport},
		{"invalid params", plane.Ending{RPC: true, RPCCode: -32602}, plane.ByProtocol},
		{"no JSON", plane.Ending{Status: 200, Fault: plane.FaultProtocol}, plane.ByProtocol},
		{"too much", plane.Ending{Status: 200, Fault: plane.FaultTooLarge}, plane.ByProtocol},
	} {
		if got := c.end.Origin(); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
