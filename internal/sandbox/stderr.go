package sandbox

import (
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// lastWords reads what a process says on its stderr: some of it goes to the log, the end
// of it is kept, the rest is let go.
type lastWords struct {
	r    io.ReadCloser
	done chan struct{}

	mu   sync.Mutex
	tail []byte
	n    int64
}

const (
	keptWords   = 1 << 10
	loggedWords = 64 << 10 // of one process
)

func newLastWords(r io.ReadCloser, log *slog.Logger, name string) *lastWords {
	w := &lastWords{r: r, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		buf := make([]byte, 8<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				w.mu.Lock()
				if w.n < loggedWords {
					log.Debug("a stdio server says", "server", name, "text", plain(buf[:n]))
				}
				w.n += int64(n)
				w.tail = append(w.tail, buf[:n]...)
				if len(w.tail) > keptWords {
					w.tail = append(w.tail[:0], w.tail[len(w.tail)-keptWords:]...)
				}
				w.mu.Unlock()
			}
			if err != nil {
				return
			}
		}
	}()
	return w
}

// plain makes a foreign text fit for a log.
func plain(b []byte) string {
	q := strconv.QuoteToASCII(strings.TrimSpace(string(b)))
	return q[1 : len(q)-1]
}

func (w *lastWords) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return plain(w.tail)
}

func (w *lastWords) bytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// settle waits a little for what is still in the pipe of a process that ended.
func (w *lastWords) settle() {
	select {
	case <-w.done:
	case <-time.After(time.Second):
	}
}

// close lets go of the stream; what came before is read.
func (w *lastWords) close() {
	w.r.Close()
	<-w.done
}
