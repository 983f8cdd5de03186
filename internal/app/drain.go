package app

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// ending ends a server without leaving a caller in the air: first it asks for no
// more, then it lets what is under way end, then it tells the rest.
type ending struct {
	asked    atomic.Bool   // health says so, and connections are closed after their answer
	streams  chan struct{} // closed: whoever follows something comes back elsewhere
	calls    context.Context
	endCalls context.CancelFunc
}

func newEnding() *ending {
	e := &ending{streams: make(chan struct{})}
	e.calls, e.endCalls = context.WithCancel(context.Background())
	return e
}

// closing has connections closed by their next answer while the server ends, so
// that no request is sent into one that is being closed.
func (e *ending) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.asked.Load() {
			w.Header().Set("Connection", "close")
			if r.URL.Path == "/healthz" {
				http.Error(w, "stopping", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// tellTime is how long those who are told at the end have to write their answer.
const tellTime = 2 * time.Second

// drain ends the listeners.
func (a *App) drain() {
	e := a.ending
	e.asked.Store(true)
	if a.store.Kind() != "sqlite" { // others take over: let balancers notice
		time.Sleep(a.cfg.Limits.DrainNotice)
	}
	close(e.streams)
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Limits.Drain)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range a.servers {
		wg.Go(func() {
			if s.Shutdown(ctx) == nil {
				return
			}
			e.endCalls()
			last, cancel := context.WithTimeout(context.Background(), tellTime)
			defer cancel()
			if s.Shutdown(last) != nil {
				s.Close()
			}
		})
	}
	wg.Wait()
	e.endCalls()
}
