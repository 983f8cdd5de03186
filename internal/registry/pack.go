package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// weigh refuses a pack that would take more than maxInflated bytes when it is read: a
// small one may hold gigabytes of zeros, or of copies.
func weigh(ctx context.Context, pack []byte) error {
	s := packfile.NewScanner(bytes.NewReader(pack))
	defer s.Close()
	_, objects, err := s.Header()
	if err != nil {
		return err
	}
	m := &meter{ctx: ctx, left: maxInflated}
	for range objects {
		h, err := s.NextObjectHeader()
		if err != nil {
			return err
		}
		if m.head = m.head[:0]; h.Length > m.left {
			return errHeavy
		}
		if _, _, err := s.NextObject(m); err != nil {
			return err
		}
		if !h.Type.IsDelta() {
			continue
		}
		// A delta begins with the sizes of what it is made of, and of what it makes.
		_, n := binary.Uvarint(m.head)
		if n <= 0 {
			return errHeavy
		}
		made, k := binary.Uvarint(m.head[n:])
		if k <= 0 || made > uint64(max(m.left, 0)) {
			return errHeavy
		}
		m.left -= int64(made)
	}
	return nil
}

var errHeavy = fmt.Errorf("the repository's tip holds more than %d bytes", maxInflated)

// meter counts what is inflated, and keeps its beginning.
type meter struct {
	ctx  context.Context
	left int64
	head []byte
}

// Write counts.
func (m *meter) Write(p []byte) (int, error) {
	if m.left -= int64(len(p)); m.left < 0 {
		return 0, errHeavy
	}
	if room := 20 - len(m.head); room > 0 {
		m.head = append(m.head, p[:min(room, len(p))]...)
	}
	return len(p), m.ctx.Err()
}
