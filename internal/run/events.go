package run

import (
	"context"
	"encoding/json"
	"sync"

	"patchbay/internal/plane"
)

// pending is an event that waits for its transaction.
type pending struct {
	kind, span string
	data       any
	at         int64 // microseconds; 0 takes the transaction's time
}

// append writes events in a transaction and returns them numbered. The caller
// publishes them once the transaction is durable.
func (w *worker) append(t plane.Tx, ps ...pending) ([]plane.Event, error) {
	out := make([]plane.Event, 0, len(ps))
	for _, p := range ps {
		data, err := json.Marshal(p.data)
		if err != nil {
			return nil, err
		}
		ev := plane.Event{Seq: w.seq + 1, At: t.Now(), Run: w.run.ID, Turn: w.run.Turns, Kind: p.kind, Span: p.span, Data: data}
		if p.at != 0 {
			ev.At = plane.FromMicros(p.at)
		}
		if err := w.e.o.Store.AddEvent(t, &ev, w.e.seal(w.run.ID, eventRecord(ev.Seq), data)); err != nil {
			return nil, err
		}
		w.seq++
		out = append(out, ev)
	}
	return out, nil
}

// commit runs fn and the events in one transaction and publishes them. One
// commit of a run is under way at a time, so numbers follow the commits.
func (w *worker) commit(ctx context.Context, fn func(plane.Tx) error, ps ...pending) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.seq
	var evs []plane.Event
	err := w.e.o.Store.Write(ctx, func(t plane.Tx) error {
		w.seq = before
		if fn != nil {
			if err := fn(t); err != nil {
				return err
			}
		}
		var err error
		evs, err = w.append(t, ps...)
		return err
	})
	if err != nil {
		w.seq = before
		return err
	}
	w.e.hub.publish(evs)
	return nil
}

// appendFree adds an event to a run that nobody holds.
func (e *Engine) appendFree(t plane.Tx, run plane.RunID, kind string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	seq, err := e.o.Store.NextSeq(t, run)
	if err != nil {
		return err
	}
	ev := plane.Event{Seq: seq, At: t.Now(), Run: run, Kind: kind, Data: b}
	return e.o.Store.AddEvent(t, &ev, e.seal(run, eventRecord(seq), b))
}

// Events returns a run's stored events after a number.
func (e *Engine) Events(ctx context.Context, run plane.RunID, after int64, limit int) ([]plane.Event, error) {
	evs, err := e.o.Store.Events(ctx, run, after, limit)
	if err != nil {
		return nil, err
	}
	for i := range evs {
		if evs[i].Data, err = e.open(run, eventRecord(evs[i].Seq), evs[i].Data); err != nil {
			return nil, err
		}
	}
	return evs, nil
}

// hub tells watchers in this process of a run's news. Stored events are read
// from the store; the hub carries deltas, and says when to look.
type hub struct {
	mu   sync.Mutex
	subs map[plane.RunID]map[*Watch]struct{}
}

// Watch is one watcher of one run.
type Watch struct {
	h      *hub
	run    plane.RunID
	News   chan struct{}    // there may be new stored events
	Deltas chan plane.Event // text as it comes; dropped when nobody reads
}

func newHub() *hub { return &hub{subs: map[plane.RunID]map[*Watch]struct{}{}} }

const deltaBuffer = 256

// Watch begins to watch a run; Close ends it.
func (e *Engine) Watch(run plane.RunID) *Watch {
	w := &Watch{h: e.hub, run: run, News: make(chan struct{}, 1), Deltas: make(chan plane.Event, deltaBuffer)}
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if e.hub.subs[run] == nil {
		e.hub.subs[run] = map[*Watch]struct{}{}
	}
	e.hub.subs[run][w] = struct{}{}
	return w
}

// Close ends the watch.
func (w *Watch) Close() {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	delete(w.h.subs[w.run], w)
	if len(w.h.subs[w.run]) == 0 {
		delete(w.h.subs, w.run)
	}
}

func (h *hub) each(run plane.RunID, fn func(*Watch)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.subs[run] {
		fn(w)
	}
}

func (h *hub) poke(run plane.RunID) {
	h.each(run, func(w *Watch) {
		select {
		case w.News <- struct{}{}:
		default:
		}
	})
}

func (h *hub) publish(evs []plane.Event) {
	if len(evs) > 0 {
		h.poke(evs[0].Run)
	}
}

func (h *hub) delta(ev plane.Event) {
	h.each(ev.Run, func(w *Watch) {
		select {
		case w.Deltas <- ev:
		default:
		}
	})
}
