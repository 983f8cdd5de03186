package freeport

import (
	"net"
	"testing"
)

// A port out of the system's own range may be a client's before the process that
// was given it binds it, which is how a test's PostgreSQL once failed to start.
func TestAPortIsNobodysInTheMeantime(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port, err := Take()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < lowest || port >= beyond {
			t.Fatalf("%d was given before, or is of the system's range", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
