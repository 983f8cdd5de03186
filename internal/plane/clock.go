package plane

import "time"

// Clock tells the time. Expiries and leases are compared with one value read
// from it and passed into the query, never with SQL's own clock.
type Clock interface{ Now() time.Time }

// SystemClock is the machine's clock in UTC, at the microsecond the database
// keeps.
type SystemClock struct{}

// Now returns the current time.
func (SystemClock) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Tx is an open write transaction, handed to the closure of store.Write. It is
// opaque: the store's methods take it back, and it carries the one time that
// everything in the transaction compares with.
type Tx interface{ Now() time.Time }

// Micros is t as the integer the database keeps; the zero time is 0.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// FromMicros is the inverse of Micros.
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
