// Package kill ends the server with SIGKILL at random points of runs that have
// effects, and counts at the far end what was executed. It takes minutes: run
// it with make kill.
package kill
