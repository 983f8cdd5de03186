// Package freeport gives tests and benchmarks a port on loopback for a process
// that must be told its port before it starts. It promises that the port stays
// free until then, as far as one process can: it comes from below the range out
// of which systems serve port 0 and outgoing connections, and is given out once.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	lowest = 15000
	beyond = 32768 // where Linux's own choice begins; other systems' is higher
	tries  = 1000
)

var (
	mu    sync.Mutex
	given = map[int]bool{} // at most beyond-lowest
)

// Take returns a port on 127.0.0.1 that nobody listens on.
func Take() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := lowest + rand.IntN(beyond-lowest)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			continue
		}
		given[port] = true
		return port, l.Close()
	}
	return 0, errors.New("freeport: no port on loopback is free")
}

// Addr is the port's address on loopback.
func Addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
