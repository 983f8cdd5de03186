package mcp

import (
	"io"
	"sync"
)

// stdioStream is the events of one request, or the notices.
type stdioStream struct {
	s       *Stdio
	id      string
	modern  bool
	call    bool
	release func() bool
	more    chan struct{}

	mu  sync.Mutex
	buf []byte
	err error
}

// maxStdioNotices bounds what waits for a slow reader; notices over it are dropped, an
// answer never.
const maxStdioNotices = 1 << 20

func (w *stdioStream) push(line []byte, answer bool) {
	w.mu.Lock()
	if w.err == nil && (answer || len(w.buf) < maxStdioNotices) {
		w.buf = append(append(append(w.buf, "data: "...), line...), '\n', '\n')
	}
	w.mu.Unlock()
	w.wake()
}

func (w *stdioStream) end(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.wake()
}

func (w *stdioStream) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// Read waits for the next event.
func (w *stdioStream) Read(p []byte) (int, error) {
	for {
		w.mu.Lock()
		if len(w.buf) > 0 {
			n := copy(p, w.buf)
			w.buf = w.buf[n:]
			w.mu.Unlock()
			return n, nil
		}
		err := w.err
		w.mu.Unlock()
		if err != nil {
			return 0, err
		}
		<-w.more
	}
}

// Close lets go of the stream.
func (w *stdioStream) Close() error {
	if w.release != nil {
		w.release()
	}
	w.s.abandon(w, io.ErrClosedPipe)
	return nil
}
