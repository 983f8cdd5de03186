package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"patchbay/internal/plane"
)

const (
	eventPage = 500
	pollEvery = time.Second // for runs that another replica works on
	pingEvery = 15 * time.Second
)

// events streams a run's events, or lists them where JSON is asked for.
func (a *API) events(w http.ResponseWriter, r *http.Request) {
	who, err := a.who(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if !who.Rights.Has(plane.RunsRead) {
		a.fail(w, r, plane.Errorf(plane.Forbidden, "The token lacks the scope runs:read."))
		return
	}
	id := plane.RunID(r.PathValue("id"))
	if !plane.IsRunID(string(id)) {
		a.fail(w, r, plane.Errorf(plane.NotFound, "There is no such run."))
		return
	}
	after := int64(0)
	for _, v := range []string{r.URL.Query().Get("after"), r.Header.Get("Last-Event-ID")} {
		if v == "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			a.fail(w, r, plane.Errorf(plane.InvalidInput, "after is the number of an event.").At("after"))
			return
		}
		after = n
	}
	run, err := a.runs.Get(r.Context(), id)
	if err == nil && !a.maySee(who, run) {
		err = plane.Errorf(plane.NotFound, "There is no such run.")
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		evs, err := a.runs.Events(r.Context(), id, after, eventPage)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		if evs == nil {
			evs = []plane.Event{}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"events": evs})
		return
	}
	release, ok := a.watching.take(who.ID)
	if !ok {
		a.fail(w, r, plane.Errorf(plane.Limited, "Too many streams are open.").Then("Close one, or read the events without a stream."))
		return
	}
	defer release()
	a.stream(w, r, id, after)
}

// Bounds of streams: in all, of one caller, and how long one lasts; Last-Event-ID goes on.
const (
	maxStreams    = 1000
	maxStreamsWho = 64
	streamLife    = time.Hour
	checkEvery    = 5 * time.Second
)

// streams counts who follows runs.
type streams struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

func (s *streams) take(who string) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]int{}
	}
	if s.all >= maxStreams || s.by[who] >= maxStreamsWho {
		return nil, false
	}
	s.all++
	s.by[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.by[who]--; s.by[who] == 0 {
			delete(s.by, who)
		}
	}, true
}

// still reports whether the caller may go on reading: a session may have ended.
func (a *API) still(r *http.Request, id plane.RunID) bool {
	who, err := a.who(r)
	if err != nil || !who.Rights.Has(plane.RunsRead) {
		return false
	}
	run, err := a.runs.Get(r.Context(), id)
	return err == nil && a.maySee(who, run)
}

func (a *API) stream(w http.ResponseWriter, r *http.Request, id plane.RunID, after int64) {
	watch := a.runs.Watch(id)
	defer watch.Close()
	rc := http.NewResponseController(w)
	rc.SetWriteDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	send := func(ev plane.Event) error {
		b, err := json.Marshal(ev)
		if err != nil {
			return err
		}
		if ev.Seq > 0 {
			fmt.Fprintf(w, "id: %d\n", ev.Seq)
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", b)
		return err
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	began := time.Now()
	last, checked := began, began
	for {
		if now := time.Now(); now.Sub(checked) > checkEvery {
			if checked = now; now.Sub(began) > streamLife || !a.still(r, id) {
				return
			}
		}
		// Stored events first, then what is said between them.
		for {
			evs, err := a.runs.Events(r.Context(), id, after, eventPage)
			if err != nil {
				return
			}
			for _, ev := range evs {
				if send(ev) != nil {
					return
				}
				after, last = ev.Seq, time.Now()
				if ev.Kind == plane.EventRunEnded || ev.Kind == plane.EventRunWaiting && r.URL.Query().Get("until") == "waiting" {
					rc.Flush()
					return
				}
			}
			if len(evs) < eventPage {
				break
			}
		}
		if rc.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-a.ending: // Last-Event-ID goes on elsewhere
			return
		case <-watch.News:
		case ev := <-watch.Deltas:
			if send(ev) != nil {
				return
			}
			for n := len(watch.Deltas); n > 0; n-- {
				if send(<-watch.Deltas) != nil {
					return
				}
			}
		case <-poll.C:
			if time.Since(last) > pingEvery {
				fmt.Fprint(w, ": waiting\n\n")
				last = time.Now()
			}
		}
	}
}
