package mcp

import "context"

// bigBody is the size from which a body counts against the Budget.
const bigBody = 64 << 10

// Budget bounds the memory that bodies over bigBody may take in the whole
// process. A reader takes room for the largest body before its first growth, so
// that readers wait with nothing in hand and cannot block each other.
type Budget struct{ room chan struct{} }

// NewBudget allows bytes of memory in units of the response cap.
func NewBudget(bytes, perBody int) *Budget {
	return &Budget{room: make(chan struct{}, max(1, bytes/max(1, perBody)))}
}

func (b *Budget) take(ctx context.Context, _ int) error {
	select {
	case b.room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Budget) give(int) { <-b.room }
