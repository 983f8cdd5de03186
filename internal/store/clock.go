package store

import (
	"context"
	"sync/atomic"
	"time"

	"patchbay/internal/plane"
)

// sampled is this machine's clock set right by the database's, so that replicas
// agree on the time however wrong their own is.
type sampled struct {
	local  plane.Clock
	offset atomic.Int64 // nanoseconds to add
}

// Now is the database's time as it was last sampled.
func (c *sampled) Now() time.Time { return c.local.Now().Add(time.Duration(c.offset.Load())) }

// Sampling.
const (
	sampleEvery = time.Minute
	sampleFine  = 2 * time.Millisecond // a difference that is not worth a step
)

// Clock is the time that everything is compared with: the database's, or the one
// that was given to Open.
func (s *Store) Clock() plane.Clock { return s.clock }

// sample asks the database for its time. The answer is good to half of the way
// there and back.
func (s *Store) sample(ctx context.Context, c *sampled) error {
	before := c.local.Now()
	var micros int64
	if err := s.write.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&micros); err != nil {
		return err
	}
	after := c.local.Now()
	trip := after.Sub(before)
	offset := plane.FromMicros(micros).Sub(before.Add(trip / 2))
	if d := offset - time.Duration(c.offset.Load()); d.Abs() > trip/2+sampleFine {
		c.offset.Store(int64(offset))
	}
	return nil
}

// keepTime samples again and again until the store is closed.
func (s *Store) keepTime(c *sampled) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.batch.quit:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		s.sample(ctx, c) // the old offset holds while the database is away
		cancel()
	}
}
